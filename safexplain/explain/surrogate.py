"""Explanations by other models: of public data only, or a student of labels. All that leaves of private data is labels.

`PublicExplainer` asks the private model for its label, and explains that class by models of public data.
`StudentExplainer` trains such a model first, on public inputs and the labels that the private model gives them. What
comes out is a function of public data and of labels, so that it tells about the private records what the labels tell
(post-processing): `guarantee` says so in words, and a certificate of its own kind carries it. What the explanations are
worth, `measure` says: they are those of other models.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from captum.attr import Attribution, Saliency
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import OPAQUE_DIGEST, checked_digest, digest, file_sha256, model_digest, modules_of
from safexplain._digest.model_state import network_of
from safexplain._progress import Progress, silent
from safexplain._validate import check_whole
from safexplain._versions import versions
from safexplain.errors import CertificateError, ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.captum.model_checks import check_mode, in_training_mode
from safexplain.explain.certified import check_file
from safexplain.explain.hardened import Hardened, check_inputs
from safexplain.explain.isolation import lend, one_at_a_time
from safexplain.explain.wrap import Asked, Catalogued, harden
from safexplain.faithfulness import faithfulness
from safexplain.hardening.clips import UnitNorm
from safexplain.hardening.hardening import Hardening, plain
from safexplain.outputs import are_probabilities
from safexplain.verdict.certificate.read import load_guarantee
from safexplain.verdict.certificate.sign import sign_certificate
from safexplain.verdict.certificate.write import MODEL_DIGEST, guarantee_statement, write_json
from safexplain.verdict.guarantee import Estimate, Guarantee, Measured, Source

__all__ = ["PublicExplainer", "StudentExplainer"]

Model = Callable[..., Any]
"""(batch, ...) -> scores (batch, classes), of which the largest is the label, or labels (batch,) in whole numbers."""

Explainer = Callable[..., Any]
"""explainer(model) -> an object with `attribute(inputs, target=..., **options)`."""


class Trains(Protocol):
    """What is asked of a `safexplain.audit.Recipe`."""

    def train(
        self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, tick: Callable[[float], None]
    ) -> nn.Module:
        """Train a model in place on all of (x, y) and return it."""


NO_SOFT_LABELS = (
    "soft labels are refused: a student of probabilities repeats its teacher, and with them what that one remembers of"
    " its training records. Measured on digits, explanations of soft students find 2.8 to 4.4 points more of the"
    " members (at 1 % false positives) than the labels do, those of students of labels 0 +- .4. The guarantee holds for"
    " labels only"
)


class PublicExplainer:
    """Explains the class that a private model predicts, by models that were trained on public data only.

        explainer = PublicExplainer(model, public_models, captum.attr.InputXGradient)
        explainer.attribute(x)

    Takes the place of a hardened class. The private model is asked for its label, and for nothing else: another model
    with the same labels gives the same explanations, bit for bit. One public model's map is released as it is; of
    several, the mean of their maps, each scaled to L2 norm 1 (a map of zeros stays one). NaN and infinities come out as
    zeros. Works under `torch.inference_mode`, on empty batches and in threads: Captum's explainers by the rules of the
    hardened classes, others one call at a time for each public model.

    Args:
        model: the private model, or any function that gives its answers: (batch, ...) -> scores (batch, classes), whose
            largest is the label, or the labels (batch,) themselves as integers.
        public_models: one module or several, (batch, ...) -> scores (batch, classes), of the same classes, on the same
            device. That their data is public, nobody can see in them: see `guarantee.assumes`.
        explainer: what makes an explainer of a module: a class of Captum, a function such as
            `lambda m: captum.attr.NoiseTunnel(captum.attr.Saliency(m))`, a hardened class or a row's `catalogued()`
            (both without hardening: there is nothing to hide; a function may choose one).
        model_digest: 16 bytes or more that name the private model and its version, where nothing in it can be seen.

    Attributes:
        model: the private model.
        public_models: the explaining ones.
        guarantee: what holds by construction, and under which assumptions; a frozen `Guarantee`.

    Raises:
        ConfigurationError: no public model, or one in which nothing can be seen.
        ConfigurationTypeError: not models, or not an explainer.
        RefusedError: a public model, or the explainer, holds the private model.

    Warns:
        TrainingModeWarning: once for each model that is in training mode, here or when it is asked.
    """

    _source: ClassVar[Source] = "public models"
    model: Model
    public_models: tuple[nn.Module, ...]
    guarantee: Guarantee
    _explainer: Explainer
    _explainers: tuple[Any, ...]
    _given_digest: bytes | None
    _classes: int | None = None
    _loaded: bytes | None = None
    """Of an explainer that a certificate names: the private model's digest."""

    def __init__(
        self,
        model: Model,
        public_models: nn.Module | Sequence[nn.Module],
        explainer: Explainer,
        *,
        model_digest: bytes | None = None,
    ) -> None:
        self._adopt(model, _several(public_models), explainer, model_digest)

    @classmethod
    def from_certificate(
        cls,
        model: Model,
        public_models: nn.Module | Sequence[nn.Module],
        path: str | Path,
        explainer: Explainer,
        *,
        file: str | Path | None = None,
        public_key: str | Path | bytes | None = None,
        model_digest: bytes | None = None,
    ) -> Self:
        """The explainer that a certificate by construction is about, of the very models that it names.

        A model whose parameters change afterwards is refused when it is asked.

        Args:
            model: the explained model, in evaluation mode.
            public_models: the explaining models; of a `StudentExplainer` its student.
            path: the certificate, signed or not.
            explainer: of the class that the certificate names.
            file: the explained model's file. Given, its SHA-256 must be the one in the certificate.
            public_key: ed25519, PEM: path or bytes. Given, the certificate must be signed with its private key.
            model_digest: as the constructor takes it.

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
        models = _several(public_models)
        for name, one in (("explained", model), *(("explaining", m) for m in models)):
            if any(map(in_training_mode, modules_of(one))):
                raise InputError(f"the {name} {type(one).__name__} is in training mode: call model.eval()")
        made = cls.__new__(cls)
        made._adopt(model, models, explainer, model_digest, stated.public_inputs, stated.labels_asked)
        own = made._own_digest()
        if own.hex() not in found.digests(MODEL_DIGEST):
            raise CertificateError(
                f"{path} is about another model ({', '.join(found.subject)}): expected the {MODEL_DIGEST}"
                f" {', '.join(sorted(d[:12] for d in found.digests(MODEL_DIGEST)))}..., got {own.hex()[:12]}...;"
                " load the same file in the same way as when the certificate was written"
            )
        if sorted(made.guarantee.models) != sorted(stated.models):
            raise CertificateError(
                f"{path} is about other explaining models: expected {_short(stated.models)}, got"
                f" {_short(made.guarantee.models)}"
            )
        if made.guarantee.method != stated.method:
            raise CertificateError(f"{path} is about {stated.method}, got {made.guarantee.method}")
        if file is not None:
            check_file(found.subject, own, file, path)
        made._loaded = own
        return made

    def attribute(self, inputs: Tensor | tuple[Tensor, ...], target: Any = None, **options: Any) -> Any:
        """Explain, and release detached maps in the inputs' structure, on their device.

        Args:
            inputs: (batch, ...), or a tuple of such.
            target: the explained class, as Captum takes it; it is explained as given, and the private model is not
                asked. None: the class that the private model predicts for each example.
            **options: of the explainer's `attribute`, the same for all public models. `additional_forward_args` go to
                the private model too.

        Raises:
            InputError: inputs or the private model's answers are none, or a public model lacks a class.
            RefusedError: an explainer gave something else than maps, or the certificate is about other models.
        """
        tensors, batch = check_inputs(inputs)
        for one in (self.model, *self.public_models):
            check_mode(one, stacklevel=3)
        if self._loaded is not None:
            self._check_models()
        with _outside_inference():
            asked = tuple(x.clone() for x in plain(tensors))
            if batch == 0:
                return asked if isinstance(inputs, tuple) else asked[0]
            if target is None:
                target = self._predicted(asked, options.get("additional_forward_args"))
            several = isinstance(inputs, tuple)
            maps = [
                _maps_of(explainer, model, asked, several, target, options)
                for explainer, model in zip(self._explainers, self.public_models, strict=True)
            ]
            released = maps[0] if len(maps) == 1 else _mean_of_unit_maps(maps)
        return released if several else released[0]

    def measure(
        self,
        x: Tensor,
        *,
        native: Tensor | None = None,
        fraction: float = 0.1,
        baseline: float | Tensor = 0.0,
        confidence: float = 0.95,
        batch_size: int = 256,
        seed: int = 0,
        progress: Progress = silent,
        **options: Any,
    ) -> Measured:
        """What these explanations are worth: whether the models agree, and what the named features carry.

        For your own eyes, or on inputs that are public: the figures are of the private model, and the guarantee is not
        about them.

        Args:
            x: (n, ...) examples like those that will be explained.
            native: (n, ...) maps of the private model itself; None: made here by the same explainer.
            fraction: of the features that a map names, see `safexplain.faithfulness`.
            baseline: what deleted features are set to.
            confidence: of each interval, see `Estimate`.
            batch_size: examples in one call.
            seed: of the order among equal numbers of a map.
            progress: told after each batch.
            **options: of the explainer's `attribute`.

        Returns:
            Agreement: the public models together, by the mean of their probabilities. Deletion and insertion of these
            and of native explanations; None where the private model is a function that gives labels only.

        Raises:
            InputError: no examples, or maps and examples do not fit.
        """
        if not isinstance(x, Tensor) or x.dim() < 2 or not len(x):
            raise InputError(f"expected examples (n, ...), at least one; got {getattr(x, 'shape', type(x).__name__)}")
        check_whole("batch_size", batch_size, 1)
        extra = options.get("additional_forward_args")
        if extra is not None:
            raise InputError("measure asks models of inputs alone: leave out additional_forward_args")
        labels, agree, released, natives, own = [], [], [], [], None
        with _outside_inference():
            x = plain((x,))[0].clone()
            for start in range(0, len(x), batch_size):
                part = x[start : start + batch_size]
                answers = _answers_of(self.model, (part,), None)
                labels.append(_labels_in(answers, len(part)))
                agree.append(self._together(part) == labels[-1])
                if _gives_scores(answers):
                    released.append(self.attribute(part, target=labels[-1], **options))
                    if native is None:
                        own = own or _made_of(self._explainer, self.model)
                        natives.append(_maps_of(own, self.model, (part,), False, labels[-1], options)[0])
                progress("measuring", min(start + batch_size, len(x)), len(x))
            agreement = Estimate.of_share(int(torch.cat(agree).sum()), len(x), confidence)
            if not released:
                return Measured(len(x), confidence, fraction, agreement)
            asked: dict[str, Any] = {"fraction": fraction, "baseline": baseline, "batch_size": batch_size, "seed": seed}
            with lend(Saliency, {"forward_func": self.model}) as private:
                given = (torch.cat(released), torch.cat(natives) if native is None else native)
                ours, theirs = (faithfulness(private.forward_func, x, torch.cat(labels), m, **asked) for m in given)
        return Measured(
            len(x),
            confidence,
            fraction,
            agreement,
            deletion=Estimate.of_mean(ours.deletion, confidence),
            insertion=Estimate.of_mean(ours.insertion, confidence),
            native_deletion=Estimate.of_mean(theirs.deletion, confidence),
            native_insertion=Estimate.of_mean(theirs.insertion, confidence),
            deletion_difference=Estimate.of_mean(ours.deletion - theirs.deletion, confidence),
        )

    def certificate(
        self,
        path: str | Path,
        *,
        name: str = "model",
        file: str | Path | None = None,
        measured: Measured | None = None,
        private_key: str | Path | bytes | None = None,
        notes: Sequence[str] = (),
    ) -> Path:
        """Write the guarantee as a certificate, which `safexplain verify` and `from_certificate` read.

        Args:
            path: where to write.
            name: of the explained model in it.
            file: the explained model's file, whose SHA-256 is written too: `safexplain verify --model` asks for it.
            measured: what `measure` gave, to be published beside the guarantee.
            private_key: ed25519, PEM, to sign with; None: not signed. `safexplain sign` does the same later.
            notes: caveats.

        Raises:
            RefusedError: nothing in the private model tells it from another: give its `model_digest`.
            InputError: a file or key cannot be read, or the certificate cannot be written.
            MissingExtraError: a key is given and the extra `sign` is not installed.
        """
        digests = {MODEL_DIGEST: self._own_digest().hex()}
        if file is not None:
            try:
                digests["sha256"] = file_sha256(file)
            except OSError as error:
                raise InputError(f"the model file {file} cannot be read: {error.strerror or error}") from None
        environment = {
            **versions(),
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }
        content = guarantee_statement(
            subject={name: digests},
            guarantee=self.guarantee,
            measured=measured,
            environment=environment,
            notes=notes,
        )
        return write_json(path, content if private_key is None else sign_certificate(content, private_key))

    def __repr__(self) -> str:
        models = f"{len(self.public_models)} models" if len(self.public_models) > 1 else "1 model"
        return f"{type(self).__name__}({type(self.model).__name__}, {models}, {self.guarantee.method})"

    def _adopt(
        self,
        model: Model,
        models: tuple[nn.Module, ...],
        explainer: Explainer,
        given: bytes | None,
        public_inputs: str = "",
        labels_asked: int = 0,
    ) -> None:
        """Take the models; refuse those of which the guarantee would not hold."""
        _check_model(model)
        self.model, self.public_models, self._explainer = model, models, explainer
        self._given_digest = checked_digest(given)
        for one in (model, *models):
            check_mode(one, stacklevel=4)
        digests = [model_digest(one) for one in models]
        if OPAQUE_DIGEST in digests:
            raise ConfigurationError("public_models: expected modules, in which it can be seen which models they are")
        own = {model_digest(model)} if modules_of(model) else set()
        for one, found in zip(models, digests, strict=True):
            if found in own or _holds(one, model):
                raise RefusedError(
                    f"the explaining {type(one).__name__} is the private model, or holds it: its explanations would be"
                    " native ones. Give models that were trained on public data"
                )
        self._explainers = tuple(_made_of(explainer, one) for one in models)
        if any(_holds(made, model) for made in self._explainers):
            raise RefusedError("the explainer holds the private model: it must explain the model that it is given")
        method = _method_of(self._explainers[0])
        self.guarantee = Guarantee(self._source, method, tuple(d.hex() for d in digests), public_inputs, labels_asked)

    def _own_digest(self) -> bytes:
        """Of the private model, or as it was given."""
        found = self._given_digest or model_digest(self.model)
        if found == OPAQUE_DIGEST:
            raise RefusedError(
                f"nothing in {type(self.model).__name__} tells which model it is: give model_digest=, 16 bytes or more"
                " that name the model and its version"
            )
        return found

    def _check_models(self) -> None:
        """Raise unless all models are those that the certificate names still."""
        found = tuple(model_digest(one).hex() for one in self.public_models)
        if self._own_digest() != self._loaded or found != self.guarantee.models:
            raise RefusedError(
                "a model is no longer the one that the certificate was loaded for: its parameters changed. Load the"
                " certificate again, with the models that it names"
            )

    def _predicted(self, asked: tuple[Tensor, ...], extra: Any) -> Tensor:
        """(batch,) the private model's labels, all of it that goes into an explanation."""
        labels = _labels_in(_answers_of(self.model, asked, extra), len(asked[0])).to(asked[0].device)
        if self._classes is None:
            few = tuple(x[:2] for x in asked)
            more = _first_two(extra, len(asked[0]))
            counts = {_scores_in(_answers_of(m, few, more), len(few[0])).shape[1] for m in self.public_models}
            if len(counts) > 1:
                raise InputError(f"expected public models of the same classes, got {sorted(counts)} outputs")
            self._classes = counts.pop()
        if int(labels.min()) < 0 or int(labels.max()) >= self._classes:
            raise InputError(
                f"the private model predicts class {int(labels.max())}, and the public models know classes 0 to"
                f" {self._classes - 1}"
            )
        return labels

    def _together(self, x: Tensor) -> Tensor:
        """(batch,) the class that the public models predict, by the mean of their probabilities."""
        scores = [_scores_in(_answers_of(m, (x,), None), len(x)).double() for m in self.public_models]
        return sum(s if are_probabilities(s) else s.softmax(1) for s in scores).argmax(1)  # type: ignore[union-attr]


class StudentExplainer(PublicExplainer):
    """Explains the class that a private model predicts, by a student of its labels on public inputs.

        explainer = StudentExplainer(model, public_x, build, recipe, captum.attr.InputXGradient)
        torch.save(explainer.student.state_dict(), "student.pt")
        explainer.certificate("guarantee.json")

    Train it once, offline, and load it where it serves: `StudentExplainer.from_certificate(model, student,
    "guarantee.json", explainer)`. It learns from labels only. Probabilities are refused: a student of them repeats its
    teacher and what that one remembers.

    Args:
        model: as of `PublicExplainer`.
        public_x: (n, ...) inputs that are public, or whose labels anybody may ask for; they need no labels.
        build: (seed) -> an untrained module, (batch, ...) -> scores (batch, classes), of all the private model's
            classes. Not called where the recipe is a function.
        recipe: a `safexplain.audit.Recipe`, or a function `train(x, y, generator)` that returns a trained module.
        explainer: as of `PublicExplainer`.
        labels: (n,) whole numbers, the model's answers where it was asked already; None: it is asked here.
        seed: of the initial weights and of all that is drawn in training, together with the recipe's own.
        batch_size: inputs of which the model is asked at once.
        model_digest: as of `PublicExplainer`.
        progress: told about asking and training.

    Attributes:
        student: the trained module, in evaluation mode, on the private model's device.

    Raises:
        RefusedError: soft labels; or the student is, or holds, the private model.
        InputError: inputs or labels do not fit, all labels are one class, or training diverged.
        ConfigurationError, ConfigurationTypeError: `build` or `recipe` is none.
    """

    _source: ClassVar[Source] = "student"

    def __init__(
        self,
        model: Model,
        public_x: Tensor | NDArray[Any],
        build: Callable[[int], nn.Module] | None,
        recipe: Trains | Callable[[Tensor, Tensor, torch.Generator], nn.Module],
        explainer: Explainer,
        *,
        labels: Tensor | NDArray[Any] | None = None,
        seed: int = 0,
        batch_size: int = 256,
        model_digest: bytes | None = None,
        progress: Progress = silent,
    ) -> None:
        _check_model(model)
        check_whole("seed", seed, 0)
        check_whole("batch_size", batch_size, 1)
        with _outside_inference():
            x = _public(public_x)
            device = next((p.device for m in modules_of(model) for p in m.parameters()), x.device)
            y = _asked(model, x.to(device), batch_size, progress) if labels is None else _given(labels, x)
            if int(y.min()) == int(y.max()):
                raise InputError(
                    f"all {len(y):,} public inputs get the label {int(y[0])}: a student learns nothing from them; give"
                    " inputs of which the model predicts all its classes"
                )
            student = _trained(build, recipe, model, x, y.cpu(), seed, device, progress)
        self._adopt(model, (student,), explainer, model_digest, digest(x.cpu()), len(x))

    @property
    def student(self) -> nn.Module:
        """The trained module, in evaluation mode."""
        return self.public_models[0]


def _several(models: Any) -> tuple[nn.Module, ...]:
    """One model or several as a tuple."""
    found = tuple(models) if isinstance(models, Sequence | nn.ModuleList) else (models,)
    if not found:
        raise ConfigurationError("public_models: expected at least one model, got none")
    if wrong := [type(m).__name__ for m in found if not isinstance(m, nn.Module)]:
        raise ConfigurationTypeError(f"public_models: expected torch modules, got {', '.join(wrong):.100}")
    return found


def _check_model(model: object) -> None:
    """Raise unless it can be asked."""
    if not callable(model):
        raise ConfigurationTypeError(
            f"model: expected a module or a function of inputs, got {type(model).__name__}; of a scikit-learn"
            " classifier give its method predict"
        )


def _holds(value: object, model: Model) -> bool:
    """Whether the private model can be reached from a value."""
    private = {id(m) for m in (model, network_of(model), *modules_of(model)) if m is not None}
    return id(value) in private or any(id(p) in private for m in modules_of(value) for p in m.modules())


def _short(digests: Sequence[str]) -> str:
    return ", ".join(f"{d[:12]}..." for d in sorted(digests))


def _public(inputs: Any) -> Tensor:
    """Public inputs as a tensor of their own."""
    x = torch.as_tensor(inputs)
    if isinstance(inputs, np.ndarray) and x.dtype == torch.float64:
        x = x.float()
    if x.dim() < 2 or len(x) < 2:
        raise InputError(f"public_x: expected inputs (n, ...), at least 2 of them, got {tuple(x.shape)}")
    return plain((x,))[0].clone()


def _asked(model: Model, x: Tensor, batch_size: int, progress: Progress) -> Tensor:
    """(n,) the model's labels of the public inputs."""
    check_mode(model, stacklevel=4)
    found = []
    for start in range(0, len(x), batch_size):
        part = x[start : start + batch_size]
        found.append(_labels_in(_answers_of(model, (part,), None), len(part)))
        progress("asking for labels", start + len(part), len(x))
    return torch.cat(found)


def _given(labels: Any, x: Tensor) -> Tensor:
    """(n,) int64 labels that were asked for already."""
    try:
        y = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        y = None
    if y is None or y.is_floating_point() or y.is_complex() or (y.dim() == 2 and y.shape[1] > 1):
        raise RefusedError(f"{NO_SOFT_LABELS}. labels: expected (n,) whole numbers, got {_shape_of(labels)}")
    if y.shape != x.shape[:1] or int(y.min()) < 0:
        raise InputError(f"labels: expected ({len(x)},) whole numbers from 0 on, got shape {tuple(y.shape)}")
    return y.long()


def _trained(
    build: Callable[[int], nn.Module] | None,
    recipe: Any,
    model: Model,
    x: Tensor,
    y: Tensor,
    seed: int,
    device: torch.device,
    progress: Progress,
) -> nn.Module:
    """A student of these labels, in evaluation mode."""
    start, order = (int(s) for s in np.random.SeedSequence([seed, getattr(recipe, "seed", 0)]).generate_state(2))
    generator = torch.Generator().manual_seed(order)

    def tick(share: float, note: str = "") -> None:
        progress("training the student", share, 1.0, note)

    if callable(getattr(recipe, "train", None)) and not isinstance(recipe, type | nn.Module):
        if not callable(build):
            raise ConfigurationTypeError("a Recipe trains what build(seed) makes: give build, got " + repr(build)[:80])
        with torch.random.fork_rng([]):
            torch.manual_seed(start)
            student = _no_teacher(build(start), model).to(device)
        found = _scores_in(_answers_of(student.eval(), (x[:2].to(device),), None), 2).shape[1]
        if int(y.max()) >= found:
            raise InputError(f"build: the student has {found} outputs, and the model predicts class {int(y.max())}")
        trained: nn.Module = recipe.train(student, x, y, generator, tick)
        return trained.eval()
    if isinstance(recipe, type | nn.Module) or not callable(recipe):
        raise ConfigurationTypeError(
            "recipe: expected a safexplain.audit.Recipe or a function train(x, y, generator), got"
            f" {type(recipe).__name__}"
        )
    with torch.random.fork_rng([]):
        torch.manual_seed(order)
        student = _no_teacher(recipe(x.to(device), y.to(device), generator), model)
    tick(1.0)
    return student.to(device).eval()


def _no_teacher(student: Any, model: Model) -> nn.Module:
    """The student, unless it is none or is the private model: copied, it would start from what that one remembers."""
    if not isinstance(student, nn.Module):
        raise ConfigurationTypeError(f"expected a module as the student, got {type(student).__name__}")
    same = bool(modules_of(model)) and model_digest(student) == model_digest(model)
    if same or _holds(student, model):
        raise RefusedError("the student is the private model, a copy of it, or holds it: build an untrained one")
    return student


# What models and explainers answer, checked: labels, scores, and maps of an explainer that anybody may have written.


def _outside_inference() -> AbstractContextManager[Any]:
    """Where tensors may enter a graph."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _answers_of(model: Model, asked: tuple[Tensor, ...], extra: Any) -> Any:
    """What a model says of a batch; one in training mode is asked as a private copy."""
    more = extra if isinstance(extra, tuple) else () if extra is None else (extra,)
    with torch.no_grad(), lend(Saliency, {"forward_func": model}) as private:
        out = private.forward_func(*(x.clone() for x in asked), *more)
    return torch.as_tensor(out) if isinstance(out, np.ndarray) and out.dtype.kind in "biuf" else out


def _gives_scores(answers: Any) -> bool:
    """Whether answers are (batch, classes) of at least two classes."""
    return isinstance(answers, Tensor) and answers.dim() == 2 and answers.shape[1] > 1


def _scores_in(answers: Any, batch: int) -> Tensor:
    """(batch, classes) scores of an explaining model."""
    if not _gives_scores(answers) or len(answers) != batch:
        raise InputError(f"expected scores (batch, classes >= 2) of an explaining model, got {_shape_of(answers)}")
    scores: Tensor = answers
    return scores


def _labels_in(answers: Any, batch: int) -> Tensor:
    """(batch,) int64 labels in the private model's answers."""
    if _gives_scores(answers) and len(answers) == batch:
        return plain((answers,))[0].argmax(1)
    fractions = isinstance(answers, Tensor) and (answers.is_floating_point() or answers.is_complex())
    if isinstance(answers, Tensor) and answers.shape == (batch,) and not fractions:
        return plain((answers,))[0].long()
    raise InputError(
        "expected of the private model scores (batch, classes >= 2), or labels (batch,) in whole numbers, got"
        f" {_shape_of(answers)} for {batch} inputs; of a single output make two: torch.stack([-z, z], 1) of a logit"
    )


def _first_two(extra: Any, batch: int) -> Any:
    """Additional arguments for the first two examples of a batch."""
    if isinstance(extra, tuple):
        return tuple(_first_two(one, batch) for one in extra)
    return extra[:2] if isinstance(extra, Tensor) and extra.dim() and len(extra) == batch else extra


def _made_of(explainer: Explainer, model: Any) -> Any:
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


def _method_of(made: Any) -> str:
    """Name of an explainer's native class."""
    made = made.explainer if isinstance(made, Asked) else made
    return str((made._native if isinstance(made, Hardened) else type(made)).__name__)


def _maps_of(
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


def _mean_of_unit_maps(maps: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Mean over models of maps of L2 norm 1, each over all its tensors; a map of zeros counts as it is."""
    shapes = [tuple(t.shape for t in one) for one in maps]
    if len(set(shapes)) > 1:
        raise InputError(f"expected maps of one shape from all public models, got {sorted(map(str, set(shapes)))}")
    work = torch.float64 if any(t.dtype == torch.float64 for t in maps[0]) else torch.float32
    total = sum(UnitNorm()(torch.cat([t.reshape(len(t), -1).to(work) for t in one], 1)) for one in maps) / len(maps)
    parts = total.split([t[0].numel() for t in maps[0]], 1)  # type: ignore[union-attr]
    return tuple(p.reshape(t.shape).to(t.dtype) for p, t in zip(parts, maps[0], strict=True))


def _shape_of(answers: Any) -> str:
    """What something is, for messages."""
    if isinstance(answers, Tensor):
        return f"a tensor of {answers.dtype} of shape {tuple(answers.shape)}"
    return type(answers).__name__
