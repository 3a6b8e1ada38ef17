"""GuidedBackprop and Deconvolution change what nn.ReLU modules pass back; without any they are the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from captum.attr import Attribution, Deconvolution, GuidedBackprop
from torch import nn

from safexplain.errors import RefusedError
from safexplain.explain.isolation import explainers_in

__all__ = ["check_modules", "must_run"]

_KINDS = (GuidedBackprop, Deconvolution)


def check_modules(explainer: Attribution) -> None:
    """Look for ReLU modules.

    Raises:
        RefusedError: the method needs some and the model has none.
    """
    if isinstance(explainer, _KINDS) and not _relus(explainer.model):
        raise RefusedError(_nothing_to_change(explainer, "has no nn.ReLU module"))


@contextmanager
def must_run(explainer: Attribution) -> Iterator[None]:
    """Raise unless a ReLU module runs within, for the methods that are nothing without one."""
    concerned = [e for e in (explainer, *explainers_in(vars(explainer))) if isinstance(e, _KINDS)]
    ran: list[int] = []
    relus = {id(relu): relu for e in concerned for relu in _relus(e.model)}
    handles = [relu.register_forward_hook(lambda *_: ran.append(1)) for relu in relus.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if concerned and not ran:
        raise RefusedError(_nothing_to_change(concerned[0], "called none of its nn.ReLU modules"))


def _relus(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, nn.ReLU)]


def _nothing_to_change(explainer: Attribution, fact: str) -> str:
    kind = next(kind for kind in _KINDS if isinstance(explainer, kind))
    return (
        f"{kind.__name__} changes the gradient of nn.ReLU modules, and {type(explainer.model).__name__} {fact} (ReLU6,"
        " GELU and torch.nn.functional.relu are not changed), so the answer would silently be a plain gradient."
        " Use HardenedSaliency, or give the model nn.ReLU modules"
    )
