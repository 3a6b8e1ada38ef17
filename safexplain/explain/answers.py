"""What models and explainers answer, checked: labels, scores, and maps of an explainer that anybody may have written.

A private model is asked for labels here, and for nothing else goes into an explanation by another model; the maps of
native explainers are made by the rules of the hardened classes, without hardening.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from captum.attr import Attribution, Saliency
from torch import Tensor, nn

from safexplain._digest import modules_of
from safexplain.errors import ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.hardened import Hardened
from safexplain.explain.isolation import lend, one_at_a_time
from safexplain.explain.wrap import Asked, Catalogued, harden
from safexplain.hardening.clips import UnitNorm
from safexplain.hardening.hardening import Hardening, plain

Model = Callable[..., Any]
"""(batch, ...) -> scores (batch, classes), of which the largest is the label, or labels (batch,) in whole numbers."""

Explainer = Callable[..., Any]
"""explainer(model) -> an object with `attribute(inputs, target=..., **options)`."""


def outside_inference() -> AbstractContextManager[Any]:
    """Where tensors may enter a graph."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def answers_of(model: Model, asked: tuple[Tensor, ...], extra: Any) -> Any:
    """What a model says of a batch; one in training mode is asked as a private copy."""
    more = extra if isinstance(extra, tuple) else () if extra is None else (extra,)
    with torch.no_grad(), lend(Saliency, {"forward_func": model}) as private:
        out = private.forward_func(*(x.clone() for x in asked), *more)
    return torch.as_tensor(out) if isinstance(out, np.ndarray) and out.dtype.kind in "biuf" else out


def gives_scores(answers: Any) -> bool:
    """Whether answers are (batch, classes) of at least two classes."""
    return isinstance(answers, Tensor) and answers.dim() == 2 and answers.shape[1] > 1


def scores_in(answers: Any, batch: int) -> Tensor:
    """(batch, classes) scores of an explaining model."""
    if not gives_scores(answers) or len(answers) != batch:
        raise InputError(f"expected scores (batch, classes >= 2) of an explaining model, got {shape_of(answers)}")
    scores: Tensor = answers
    return scores


def labels_in(answers: Any, batch: int) -> Tensor:
    """(batch,) int64 labels in the private model's answers."""
    if gives_scores(answers) and len(answers) == batch:
        return plain((answers,))[0].argmax(1)
    if isinstance(answers, Tensor) and answers.shape == (batch,) and is_whole(answers):
        return plain((answers,))[0].long()
    raise InputError(
        "expected of the private model scores (batch, classes >= 2), or labels (batch,) in whole numbers, got"
        f" {shape_of(answers)} for {batch} inputs; of a single output make two: torch.stack([-z, z], 1) of a logit"
    )


def first_two(extra: Any, batch: int) -> Any:
    """Additional arguments for the first two examples of a batch."""
    if isinstance(extra, tuple):
        return tuple(first_two(one, batch) for one in extra)
    return extra[:2] if isinstance(extra, Tensor) and extra.dim() and len(extra) == batch else extra


def made_of(explainer: Explainer, model: Any) -> Any:
    """The explainer of a model; native ones of Captum by the rules of the hardened classes, without hardening."""
    make: Any = explainer
    if isinstance(explainer, Catalogued) or (isinstance(explainer, type) and issubclass(explainer, Hardened)):
        return make(model, hardening=Hardening.none())
    if not callable(explainer) or isinstance(explainer, nn.Module):
        raise ConfigurationTypeError(
            "explainer: expected a class or a function that makes an explainer of a model, as"
            f" captum.attr.InputXGradient or lambda m: IntegratedGradients(m), got {type(explainer).__name__}; of an"
            " explainer that exists already, give its class"
        )
    made = make(model)
    if isinstance(made, Hardened | Asked):
        return made
    if isinstance(made, Attribution):
        return harden(made, Hardening.none())
    if not callable(getattr(made, "attribute", None)):
        raise ConfigurationTypeError(
            f"explainer: expected what it makes to have attribute(inputs, target=...), got {type(made).__name__}"
        )
    return made


def method_of(made: Any) -> str:
    """Name of an explainer's native class."""
    made = made.explainer if isinstance(made, Asked) else made
    return str((made._native if isinstance(made, Hardened) else type(made)).__name__)


def maps_of(
    explainer: Any, model: Any, asked: tuple[Tensor, ...], several: bool, target: Any, options: dict[str, Any]
) -> tuple[Tensor, ...]:
    """The maps of one model: detached, finite, a row for each example."""
    given: Any = tuple(x.clone() for x in asked)
    given = given if several else given[0]
    if isinstance(explainer, Hardened | Asked):
        maps = explainer.attribute(given, target=target, **options)
    else:
        with one_at_a_time(modules_of(model)), torch.enable_grad():
            maps = explainer.attribute(given, target=target, **options)
    tensors = maps if isinstance(maps, tuple) else (maps,)
    alike = all(isinstance(t, Tensor) and t.dim() and len(t) == len(asked[0]) for t in tensors)
    if not alike or len(tensors) != len(asked):
        kinds = ", ".join(str(tuple(t.shape)) if isinstance(t, Tensor) else type(t).__name__ for t in tensors)
        raise RefusedError(
            f"the explainer returned ({kinds}) where {len(asked)} maps of {len(asked[0])} examples were expected"
        )
    return tuple(torch.nan_to_num(t, nan=0.0, posinf=0.0, neginf=0.0).clone() for t in plain(tensors))


def mean_of_unit_maps(maps: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Mean over models of maps of L2 norm 1, each over all its tensors; a map of zeros counts as it is."""
    shapes = [tuple(t.shape for t in one) for one in maps]
    if len(set(shapes)) > 1:
        raise InputError(f"expected maps of one shape from all public models, got {sorted(map(str, set(shapes)))}")
    work = torch.float64 if any(t.dtype == torch.float64 for t in maps[0]) else torch.float32
    total = sum(UnitNorm()(torch.cat([t.reshape(len(t), -1).to(work) for t in one], 1)) for one in maps) / len(maps)
    parts = total.split([t[0].numel() for t in maps[0]], 1)  # type: ignore[union-attr]
    return tuple(p.reshape(t.shape).to(t.dtype) for p, t in zip(parts, maps[0], strict=True))


def is_whole(values: Tensor) -> bool:
    """Whether a tensor holds whole numbers, or truth values."""
    return not values.is_floating_point() and not values.is_complex()


def shape_of(answers: Any) -> str:
    """What something is, for messages."""
    if isinstance(answers, Tensor):
        return f"a tensor of {answers.dtype} of shape {tuple(answers.shape)}"
    return type(answers).__name__
