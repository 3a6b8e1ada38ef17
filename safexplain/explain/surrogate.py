"""Explanations by other models, trained on public data or as students of labels: by post-processing, they reveal no
more about the private records than the labels, as `guarantee` and a certificate state."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from captum._utils.common import _format_additional_forward_args
from captum.attr import Attribution, Saliency
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import OPAQUE_DIGEST, digest, modules_of
from safexplain._digest import model_digest as digest_of
from safexplain._digest.model_state import network_of
from safexplain._progress import Progress, silent
from safexplain._validate import check_whole, checked_digest
from safexplain._versions import versions
from safexplain.errors import CertificateError, ConfigurationTypeError, InputError, RefusedError
from safexplain.explain import harden
from safexplain.explain.captum import check_mode
from safexplain.explain.certified import check_subject, check_unchanged, checked_model, subject_of
from safexplain.explain.hardened import AuditExplainer, ExplainerFactory, Hardened, check_inputs
from safexplain.explain.isolation import lend
from safexplain.faithfulness import faithfulness
from safexplain.hardening.clips import UnitNorm
from safexplain.hardening.hardening import Hardening, plain_tensors
from safexplain.outputs import are_probabilities
from safexplain.verdict.certificate.read import load_guarantee
from safexplain.verdict.certificate.write import guarantee_statement, write_json
from safexplain.verdict.guarantee import Estimate, Guarantee, Measured, Source

__all__ = ["PublicExplainer", "StudentExplainer"]


class PublicExplainer:
    """Explains the class that a private model predicts, by models that were trained on public data only.

        explainer = PublicExplainer(model, public_models, captum.attr.InputXGradient)
        explainer.attribute(x)

    Only the private model's label is used: another model with the same labels gives the same explanations, bit for bit.
    One public model's map is released as it is; for several, the mean of their maps, each scaled to L2 norm 1 (a map of
    zeros stays one). NaN and infinities are released as zeros. `guarantee` states what holds, and the assumptions.

    Args:
        model: the private model, or any function that returns its answers: (batch, ...) -> scores (batch, classes),
            whose largest is the label, or integer labels (batch,).
        public_models: one module or several, (batch, ...) -> scores (batch, classes), of the same classes, on the same
            device. That their data is public cannot be checked.
        explainer: makes an explainer of a module: a class with Captum's interface, a function such as `lambda m:
            captum.attr.NoiseTunnel(captum.attr.Saliency(m))`, a hardened class or a row's `catalogued()` (both run
            without hardening).
        model_digest: at least 16 bytes that name the private model and its version, if no model can be found in it.

    Raises:
        ConfigurationTypeError: `public_models` are not models, or `explainer` makes no explainer.
        RefusedError: a public model, or the explainer, holds the private model.

    Warns:
        TrainingModeWarning: once for each model that is in training mode, here or in a call.
    """

    _source: ClassVar[Source] = "public models"
    _pinned: tuple[tuple[nn.Module, bytes], ...] = ()
    """The modules that a certificate names, and their digests."""

    def __init__(
        self,
        model: Callable[..., Any],
        public_models: nn.Module | Sequence[nn.Module],
        explainer: Callable[..., Any],
        *,
        model_digest: bytes | None = None,
    ) -> None:
        _check_model(model)
        self.model, self._explainer, self._given_digest = model, explainer, checked_digest(model_digest)
        self.public_models: tuple[nn.Module, ...] = _as_tuple(public_models)
        kinds = [type(m).__name__ for m in self.public_models if not isinstance(m, nn.Module)]
        if kinds or not self.public_models:
            raise ConfigurationTypeError(f"public_models: expected torch modules, got {', '.join(kinds) or 'none':.80}")
        for one in (model, *self.public_models):
            check_mode(one, stacklevel=3)
        if any(_holds(m, model) for m in self.public_models):
            raise RefusedError(
                "expected models that were trained on public data, got the private model, or a model that holds it"
            )
        self._explainers = tuple(_make_explainer(explainer, one) for one in self.public_models)
        if any(_holds(made, model) for made in self._explainers):
            raise RefusedError("the explainer holds the private model: it must explain the model passed to it")
        made = self._explainers[0]
        native = (made.explainer if isinstance(made, AuditExplainer) else made)._native
        digests = tuple(digest_of(one).hex() for one in self.public_models)
        self.guarantee = Guarantee("public models", native.__name__, digests)

    @classmethod
    def from_certificate(
        cls,
        model: Callable[..., Any],
        public_models: nn.Module | Sequence[nn.Module],
        path: str | Path,
        explainer: Callable[..., Any],
        *,
        file: str | Path | None = None,
        public_key: str | Path | bytes | None = None,
        model_digest: bytes | None = None,
    ) -> Self:
        """The explainer of a guarantee's certificate, for exactly the models that it names. `public_models` of a
        `StudentExplainer` is its student; other arguments are as of `Hardened.from_certificate` and the constructor.

        Raises:
            CertificateError: the certificate is damaged, altered, unsigned, of an audit, or about other models, another
                explainer or another file.
            InputError: a file cannot be read, or a model is in training mode.
        """
        found = load_guarantee(path, public_key=public_key)
        stated = found.guarantee
        if stated.source != cls._source:
            other = "StudentExplainer" if stated.source == "student" else "PublicExplainer"
            raise CertificateError(f"{path} is about a {stated.source}: use {other}.from_certificate")
        several, made = _as_tuple(public_models), cls.__new__(cls)
        made._pinned = tuple(checked_model(one) for one in (model, *several) if isinstance(one, nn.Module))
        PublicExplainer.__init__(made, model, several, explainer, model_digest=model_digest)
        check_subject(found, made._private_digest(), path, file)
        actual = made.guarantee
        if (actual.method, sorted(actual.models)) != (stated.method, sorted(stated.models)):
            expected, got = (f"{g.method} of {', '.join(d[:12] for d in sorted(g.models))}" for g in (stated, actual))
            raise CertificateError(f"{path} is about other explaining models: expected {expected}, got {got}")
        made.guarantee = replace(stated, models=actual.models)
        return made

    def attribute(self, inputs: Tensor | tuple[Tensor, ...], target: Any = None, **options: Any) -> Any:
        """Explain, and return detached maps in the inputs' structure, on their device.

        Args:
            inputs: (batch, ...), or a tuple of such.
            target: the explained class, as Captum takes it, without asking the private model. None: the class that it
                predicts for each example.
            **options: of the explainer's `attribute`, the same for all public models. `additional_forward_args` go to
                the private model too.

        Raises:
            InputError: the inputs, or the private model's answers, have the wrong form.
            RefusedError: an explainer returned no maps, or the models have changed since the certificate was loaded.
        """
        tensors, batch = check_inputs(inputs)
        for one in (self.model, *self.public_models):
            check_mode(one, stacklevel=3)
        for module, found in self._pinned:
            check_unchanged(module, found)
        several = isinstance(inputs, tuple)
        with torch.inference_mode(False):
            queries = tuple(x.clone() for x in plain_tensors(tensors))
            inputs = queries if several else queries[0]
            if batch == 0:
                return inputs
            if target is None:
                target = _labels_in(_query_model(self.model, queries, options.get("additional_forward_args")), batch)
                target = target.to(queries[0].device)
            maps = [_finite_maps(explainer, inputs, target, options) for explainer in self._explainers]
            released = maps[0] if len(maps) == 1 else _mean_of_unit_maps(maps)
        return released if several else released[0]

    def measure(self, x: Tensor, *, fraction: float = 0.1, batch_size: int = 256, **options: Any) -> Measured:
        """Quality of these explanations: agreement of the models, and faithfulness of the maps. The figures depend on
        the private model, and the guarantee does not cover them.

        Args:
            x: (n, ...) examples like those that will be explained.
            fraction: of the features that a map names, see `safexplain.faithfulness`.
            batch_size: examples in one call.
            **options: of `attribute`.

        Returns:
            Agreement of the public models' mean probabilities with the private labels. Deletion and insertion of these
                maps, and of the private model's native maps; None if it returns labels only. Each with a 95 % interval.

        Raises:
            InputError: no examples.
        """
        if not isinstance(x, Tensor) or x.dim() < 2 or not len(x):
            raise InputError(f"expected examples (n, ...), at least one; got {getattr(x, 'shape', type(x).__name__)}")
        check_whole("batch_size", batch_size, 1)
        agree, worth = 0, {}
        with torch.inference_mode(False):
            x = plain_tensors((x,))[0].clone()
            parts = torch.split(x, batch_size)
            answers = [_query_model(self.model, (part,)) for part in parts]
            labels = [_labels_in(answer, len(part)) for answer, part in zip(answers, parts, strict=True)]
            questions = list(zip(parts, labels, strict=True))
            for part, label in questions:
                scores = [_query_model(m, (part,)).double() for m in self.public_models]
                together = torch.stack([s if are_probabilities(s) else s.softmax(1) for s in scores]).sum(0)
                agree += int((together.argmax(1) == label).sum())
            if _gives_scores(answers[0]):
                made = _make_explainer(self._explainer, self.model)
                native = torch.cat([_finite_maps(made, *question, options)[0] for question in questions])
                maps = torch.cat([self.attribute(*question, **options) for question in questions])
                with lend(Saliency, {"forward_func": self.model}) as private:
                    of = partial(faithfulness, private.forward_func, x, torch.cat(labels), batch_size=batch_size)
                    ours, theirs = (of(found, fraction=fraction) for found in (maps, native))
                worth = {"deletion": ours.deletion, "insertion": ours.insertion}
                worth |= {"native_deletion": theirs.deletion, "native_insertion": theirs.insertion}
                worth["deletion_difference"] = ours.deletion - theirs.deletion
        agreement = Estimate.of_share(agree, len(x))
        return Measured(len(x), 0.95, fraction, agreement, **{k: Estimate.of_mean(v) for k, v in worth.items()})

    def certificate(
        self,
        path: str | Path,
        *,
        name: str = "model",
        file: str | Path | None = None,
        measured: Measured | None = None,
        notes: Sequence[str] = (),
    ) -> Path:
        """Write the guarantee as a certificate, which `safexplain verify`, `sign` and `from_certificate` read.

        Args:
            path: of the new file.
            name: of the explained model in it.
            file: the explained model's file, whose SHA-256 is recorded for `safexplain verify --model`.
            measured: result of `measure`, published with the guarantee.
            notes: caveats.

        Raises:
            RefusedError: no model is found behind the private one: give its `model_digest`.
            InputError: a file cannot be read, or the certificate cannot be written.
        """
        when = {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
        subject, environment = {name: subject_of(self._private_digest(), file)}, {**versions(), **when}
        content = guarantee_statement(
            subject=subject, guarantee=self.guarantee, measured=measured, environment=environment, notes=notes
        )
        return write_json(path, content)

    def _private_digest(self) -> bytes:
        found = self._given_digest or digest_of(self.model)
        if found == OPAQUE_DIGEST:
            raise RefusedError(f"no model is found in {type(self.model).__name__}: give model_digest=")
        return found


class StudentExplainer(PublicExplainer):
    """Explains the class that a private model predicts, by a student of its labels on public inputs.

        explainer = StudentExplainer(model, public_x, build, recipe, captum.attr.InputXGradient)
        torch.save(explainer.student.state_dict(), "student.pt")
        explainer.certificate("guarantee.json")

    It learns from labels only, as probabilities would teach it what its teacher remembers (docs/surrogates.md).

    Args:
        model, explainer, model_digest: as of `PublicExplainer`.
        public_x: (n, ...) inputs that are public, or whose labels anybody may request.
        build: (seed) -> an untrained module, (batch, ...) -> scores (batch, classes). Unused if the recipe is a
            function.
        recipe: a `safexplain.audit.Recipe`, or a function `train(x, y, generator)` that returns a trained module.
        seed: of the initial weights and of training, together with the recipe's own.
        progress: called while labelling and training.

    Raises:
        RefusedError: the student is, or holds, the private model.
        InputError: inputs or labels do not fit, all labels are one class, or training diverged.
        ConfigurationError, ConfigurationTypeError: `build` or `recipe` has the wrong type.
    """

    _source: ClassVar[Source] = "student"

    def __init__(
        self,
        model: Callable[..., Any],
        public_x: Tensor | NDArray[Any],
        build: Callable[[int], nn.Module] | None,
        recipe: Any,
        explainer: Callable[..., Any],
        *,
        seed: int = 0,
        model_digest: bytes | None = None,
        progress: Progress = silent,
    ) -> None:
        _check_model(model)
        check_whole("seed", seed, 0)
        by_recipe = callable(getattr(recipe, "train", None)) and not isinstance(recipe, type | nn.Module)
        make: Any = build if by_recipe else recipe
        if not callable(make) or isinstance(recipe, type | nn.Module):
            raise ConfigurationTypeError(
                "expected a safexplain.audit.Recipe and build(seed), or a function train(x, y, generator); got"
                f" {recipe!r:.60} and {build!r:.60}"
            )
        start, order = (int(s) for s in np.random.SeedSequence([seed, getattr(recipe, "seed", 0)]).generate_state(2))
        check_mode(model, stacklevel=3)
        with torch.inference_mode(False):
            x = torch.as_tensor(public_x)
            x = x.float() if isinstance(public_x, np.ndarray) and x.dtype == torch.float64 else x
            x = plain_tensors((x,))[0].clone()
            if x.dim() < 2 or len(x) < 2:
                raise InputError(f"public_x: expected inputs (n, ...), at least 2 of them, got {tuple(x.shape)}")
            device = next((p.device for m in modules_of(model) for p in m.parameters()), x.device)
            found: list[Tensor] = []
            for part in torch.split(x.to(device), 256):
                found.append(_labels_in(_query_model(model, (part,)), len(part)))
                progress("asking for labels", sum(map(len, found)), len(x))
            y = torch.cat(found).cpu()
            if int(y.min()) == int(y.max()):
                raise InputError(
                    f"expected public inputs of several classes, got {len(y):,} with the label {int(y[0])}"
                )
            generator = torch.Generator().manual_seed(order)
            with torch.random.fork_rng([]):
                torch.manual_seed(start if by_recipe else order)
                student: Any = make(start) if by_recipe else make(x.to(device), y.to(device), generator)
            if not isinstance(student, nn.Module):
                raise ConfigurationTypeError(f"expected a module as the student, got {type(student).__name__}")
            if _holds(student, model):  # it would start with what its teacher remembers
                raise RefusedError("expected an untrained student, got one that is, copies or holds the private model")
            student = student.to(device)
            if by_recipe:
                tick: Any = partial(progress, "training the student")
                student = recipe.train(student, x, y, generator, lambda share, note="": tick(share, 1.0, note))
        super().__init__(model, student.eval(), explainer, model_digest=model_digest)
        self.guarantee = replace(self.guarantee, source="student", public_inputs=digest(x.cpu()), labels_asked=len(x))

    @property
    def student(self) -> nn.Module:
        """The trained module, in evaluation mode."""
        return self.public_models[0]


def _as_tuple(models: Any) -> tuple[Any, ...]:
    return tuple(models) if isinstance(models, Sequence | nn.ModuleList) else (models,)


def _check_model(model: object) -> None:
    if not callable(model):
        raise ConfigurationTypeError(f"model: expected a module or a function, got {type(model).__name__}")


def _holds(value: object, model: Callable[..., Any]) -> bool:
    """Whether a value is, copies or holds the private model."""
    private = {id(m) for m in (model, network_of(model), *modules_of(model)) if m is not None}
    copy = isinstance(value, nn.Module) and bool(modules_of(model)) and digest_of(value) == digest_of(model)
    return copy or id(value) in private or any(id(p) in private for m in modules_of(value) for p in m.modules())


def _query_model(model: Callable[..., Any], queries: tuple[Tensor, ...], extra: Any = None) -> Any:
    """By a private copy if the model is in training mode."""
    more = _format_additional_forward_args(extra) or ()
    with torch.no_grad(), lend(Saliency, {"forward_func": model}) as private:
        out = private.forward_func(*(x.clone() for x in queries), *more)
    return torch.as_tensor(out) if isinstance(out, np.ndarray) and out.dtype.kind in "biuf" else out


def _gives_scores(answers: Any) -> bool:
    return isinstance(answers, Tensor) and answers.dim() == 2 and answers.shape[1] > 1


def _labels_in(answers: Any, batch: int) -> Tensor:
    """(batch,) int64 labels from the private model's answers."""
    if _gives_scores(answers) and len(answers) == batch:
        return plain_tensors((answers,))[0].argmax(1)
    fractions = isinstance(answers, Tensor) and (answers.is_floating_point() or answers.is_complex())
    if isinstance(answers, Tensor) and answers.shape == (batch,) and not fractions and int(answers.min()) >= 0:
        return plain_tensors((answers,))[0].long()
    got = f"{answers.dtype} of shape {tuple(answers.shape)}" if isinstance(answers, Tensor) else type(answers).__name__
    raise InputError(
        "expected scores (batch, classes >= 2) from the private model, or integer labels (batch,) from 0, got"
        f" {got} for {batch} inputs; turn a single logit z into two: torch.stack([-z, z], 1)"
    )


def _make_explainer(explainer: Any, model: Any) -> Any:
    if isinstance(explainer, ExplainerFactory) or (isinstance(explainer, type) and issubclass(explainer, Hardened)):
        return explainer(model, hardening=Hardening.none())
    made = explainer(model) if callable(explainer) and not isinstance(explainer, nn.Module) else None
    if isinstance(made, Attribution) and not isinstance(made, Hardened):
        made = harden(made, Hardening.none())
    if not isinstance(made, Hardened | AuditExplainer):
        raise ConfigurationTypeError(
            "explainer: expected a class or a function that makes a Captum explainer of a model, as"
            f" captum.attr.InputXGradient, got {explainer!r:.80}"
        )
    return made


def _finite_maps(explainer: Any, inputs: Any, target: Any, options: dict[str, Any]) -> tuple[Tensor, ...]:
    maps = _as_tuple(explainer.attribute(inputs, target=target, **options))
    return tuple(torch.nan_to_num(t, nan=0.0, posinf=0.0, neginf=0.0) for t in plain_tensors(maps))


def _mean_of_unit_maps(maps: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Each is scaled to L2 norm 1 over all its tensors unless it is zero."""
    total = sum(UnitNorm()(torch.cat([t.reshape(len(t), -1).double() for t in one], 1)) for one in maps) / len(maps)
    parts = total.split([t[0].numel() for t in maps[0]], 1)  # type: ignore[union-attr]
    return tuple(p.reshape(t.shape).to(t.dtype) for p, t in zip(parts, maps[0], strict=True))
