"""The arguments of an audit in one frozen object, also of its plan and of the search for a release."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain._validate import check_number, check_whole
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.queries import Dither, Labels, Population, can_crop, device_of
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Build, ModelCache, Shadows
from safexplain.audit.report.tables import ENDPOINT, NATIVE
from safexplain.audit.signals import Store
from safexplain.errors import ConfigurationError, InputError, SafexplainError, did_you_mean
from safexplain.outputs import Probability, are_probabilities, as_module
from safexplain.verdict.canaries.result import Finding
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import examples_needed
from safexplain.verdict.privacy_statement import PrivacyStatement

Output = Literal["probability", "logit"]
SubjectData = Literal["training", "pre-training", "fine-tuning"]  # the data whose membership is attacked
FEWEST_REFERENCES = 2  # a pair of reference models: each example is a member of one of them
ENOUGH_REFERENCES = 8  # reference models above which more of them improve the likelihood ratio only slowly
LOOKS = (ENOUGH_REFERENCES, 16, 32)  # default reference models at each look: an undecided audit takes another look
HOUR = 3600.0
TESTED_OUTPUTS = 64  # examples by which outputs are recognised as probabilities
NARROW = 0.003  # amplitude of queries to a release with noise: the map hardly changes, and the noise averages out


HardeningLike = Any
"""Changes an explanation before its release, as `safexplain.Hardening`: `noise`, `is_none`, `none()`, `with_key(key)`,
`without_noise()`, `to_dict()` and `to_json()`."""


@dataclass(frozen=True, eq=False)
class AuditOptions:
    """Options that few audits need.

    Args:
        dither: how the queries of a patient attacker differ. None: `Dither()`, narrow ones if the release has noise, or
            crops and flips for images whose labels are foreign.
        scored: number of scored examples, drawn at random (`Population.sample`); reference models train on all. None:
            as many as the policy needs (`verdict.power.examples_needed`).
        accuracy: of the target on examples that it was not trained on, by its owner; if it is clearly lower on the
            non-members here, nothing is certified.
        classes: explained besides the predicted one, if clients may choose the class.
        slices: name -> (n,) numbers or names, parts of the data in the report.
        batch_size: examples in one call of the explainer.
        force: judge although the examples were used for another configuration; the certificate says so.
        exposed: number of the most exposed members in the report and the JSON, for the owner of the data.
        title: of the report, and name of the model in the certificate. "": the name of the model's class.
        subject: name -> {algorithm: digest} of the audited model; empty: the digest of its parameters.
        materials: name -> digest of further inputs in the certificate.
        notes: caveats for the reader.
        privacy: guarantee of a differentially private training of the model.
        canaries: result of an audit of that training by canaries.
        search: number of `trials` and `digest` of a search that chose the configuration on other examples.
        subject_data: data whose membership is attacked, if the model was trained in two stages: "pre-training", whose
            labels are never compared with predictions, or "fine-tuning". "training": there was one stage.
        quick: a first look, which can prove a leak but certifies nothing.
        seconds: an undecided audit takes another look only if it would probably end within this time.
        store: folder for the answers of each finished model, until the audit ends, so that it can resume, and for maps
            that do not fit in memory. None: next to the reference models, if these are kept.

    Raises:
        ConfigurationError: an unknown `subject_data`, `accuracy` outside (0, 1], or `scored` not an integer.
    """

    dither: Dither | None = None
    scored: int | None = None
    accuracy: float | None = None
    classes: tuple[int, ...] = ()
    slices: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    batch_size: int = 256
    force: bool = False
    exposed: int = 0
    title: str = ""
    subject: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    materials: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    privacy: PrivacyStatement | None = None
    canaries: Finding | None = None
    search: Mapping[str, Any] | None = None
    subject_data: SubjectData = "training"
    quick: bool = False
    seconds: float = HOUR
    store: str | Path | Store | None = None

    def __post_init__(self) -> None:
        if self.subject_data not in get_args(SubjectData):
            raise ConfigurationError(
                f"subject_data: expected one of {', '.join(get_args(SubjectData))}, got {self.subject_data!r}"
            )
        if self.scored is not None:
            check_whole("scored", self.scored, 2)
        if self.accuracy is not None:
            object.__setattr__(self, "accuracy", check_number("accuracy", self.accuracy))
            if not 0 < self.accuracy <= 1:
                raise ConfigurationError(f"accuracy: expected a share of the examples in (0, 1], got {self.accuracy!r}")

    @property
    def labels(self) -> Labels:
        """Kind of the population's labels."""
        return "foreign" if self.subject_data == "pre-training" else "own"


@dataclass(frozen=True, eq=False)
class Question:
    """The arguments of `audit`, of its plan (`plan_audit`) and of the search (`tune`).

    Args:
        model: the target, in evaluation mode: (n, ...) -> (n, classes) logits or probabilities; or a fitted
            scikit-learn classifier, explained by perturbation; or an `Endpoint`, whose answers are judged, without
            native explanations, while the reference models answer with `explainer` and `hardening`.
        population: the pool of n examples, members and non-members from one source.
        recipe: the model's training, as for `train_shadows`. The closer, the more a certificate means. None: no
            reference models are trained.
        member: (n,) bool, which examples the model was trained on.
        explainer: `explainer(model, hardening=h)` makes an object whose `attribute(x, target=classes, **arguments)`
            gives maps (n, ...), such as a hardened class. Several explainers are hardened separately and judged
            together, as "IG+Saliency".
        hardening: of the released explanations, with other noise keys for target and reference models;
            `Hardening.none()`: the native explanations are judged.
        output: explain the probability of the predicted class, by a softmax if the model returns logits; or the
            output of the model ("logit").
        arguments: of `attribute`, the same for every query; for several explainers, name -> arguments.
        build: makes an untrained model from a seed, see `train_shadows`.
        references: number of reference models, best an even one; 0, or at least 2. Several numbers: if only the width
            of the intervals prevents a verdict, the audit takes another look with the next number, and as many times
            more scored examples, if there is time. All looks share the risk of a wrong verdict (`Policy.risk`), and
            count as one use.
        shadows: trained reference models, instead of `recipe` and `references`; those of `fine_tune`, with population
            and members of the pre-training, for `AuditOptions(subject_data="pre-training")`.
        policy: defines a leak; default `Policy()`, with a higher patience if the hardening has noise
            (`Policy.patient`).
        options: further options.
        seed: of all random numbers, including noise keys.
        cache: folder of finished reference models, so that an interrupted audit resumes.
        device: of all models; the target is moved there. None: the target's.
        progress: called during long stages.

    Raises:
        InputError: the model is in training mode, `member` is not one bool per example or marks one side only, the
            references are too few or do not increase, or the data do not suit an endpoint.
        ConfigurationError: an unknown output, no explainer or one twice, arguments of an unknown one, a `Recipe`
            without `build`, or a policy that does not suit an endpoint.
    """

    model: nn.Module | Any
    population: Population
    recipe: Recipe | Train | Any = None
    _: KW_ONLY
    member: NDArray[np.bool_]
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]]
    hardening: HardeningLike
    output: Output = "probability"
    arguments: Mapping[str, Any] | None = None
    build: Build | None = None
    references: int | Sequence[int] = LOOKS
    shadows: Shadows | None = None
    policy: Policy = field(default_factory=Policy)
    options: AuditOptions = field(default_factory=AuditOptions)
    seed: int = 0
    cache: ModelCache | str | Path | None = None
    device: str | torch.device | None = None
    progress: Progress = silent

    def __post_init__(self) -> None:
        member, policy, options = np.asarray(self.member), self.policy or Policy(), self.options or AuditOptions()
        if member.dtype != np.bool_ or member.shape != (len(self.population),):
            raise InputError(
                f"expected member (bool) of shape ({len(self.population)},), got {member.dtype} {member.shape}"
            )
        if member.all() or not member.any():
            raise InputError(
                f"expected members and non-members, but member marks {int(member.sum())} of {len(member)} examples"
            )
        numbers = self.numbers
        if not numbers or any(b <= a for a, b in pairwise(numbers)):
            raise InputError(f"references: expected one number, or increasing ones such as {LOOKS}, got {numbers!r}")
        if numbers != [0] and numbers[0] < FEWEST_REFERENCES:
            raise InputError(f"references: expected 0 or at least {FEWEST_REFERENCES}, got {numbers[0]}")
        if self.output not in get_args(Output):
            raise ConfigurationError(
                f"output: expected probability or logit, got {self.output!r}"
                f"{did_you_mean(self.output, get_args(Output))}"
            )
        hardening = self.hardening.none() if policy.release == "prediction" else self.hardening
        policy = policy.patient(noise=hardening.noise is not None)
        needs_build = isinstance(self.recipe, Recipe) and self.shadows is None and numbers[0] and self.build is None
        if needs_build and options.labels == "own":
            raise ConfigurationError("a Recipe needs build=, a function that makes an untrained model from a seed")
        if isinstance(self.model, Endpoint):
            policy = self.model.policy_for(policy)
            _check_endpoint(options, self.methods)
        found = {"member": member, "hardening": hardening, "policy": policy, "options": options}
        for name, value in found.items():
            object.__setattr__(self, name, value)
        if self.target.training:
            raise InputError("expected a model in evaluation mode, got one in training mode; call model.eval() first")

    @cached_property
    def target(self) -> nn.Module:
        """The model as a network on the device of the audit."""
        model: nn.Module = as_module(self.model, self.population.classes)
        return model if self.device is None else model.to(self.device)

    @property
    def cache_folder(self) -> Path | None:
        """Folder of finished reference models."""
        folder = self.cache.folder if isinstance(self.cache, ModelCache) else self.cache
        return None if folder is None else Path(folder)

    @property
    def endpoint(self) -> Endpoint | None:
        """The service that is audited, if there is one."""
        return self.target if isinstance(self.target, Endpoint) else None

    @property
    def place(self) -> torch.device:
        """Device of all models."""
        return next((p.device for p in self.target.parameters()), torch.device(self.device or "cpu"))

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """The named explainers."""
        return methods_of(self.explainer, self.arguments)

    @property
    def method(self) -> str:
        """Names of the explainers, such as "IG+Saliency"."""
        return "+".join(method.name for method in self.methods)

    @property
    def explains(self) -> bool:
        """Whether explanations are released."""
        return self.policy.release != "prediction"

    @property
    def compares(self) -> bool:
        """Whether native explanations are judged besides the released ones."""
        return self.endpoint is None and not self.hardening.is_none

    @property
    def releases(self) -> dict[str, HardeningLike]:
        """Name -> hardening of all attacked releases, the judged one last: native explanations and hardened ones
        ("recommended" or "custom"), or an endpoint's answers alone."""
        if self.endpoint is not None:
            return {ENDPOINT: self.hardening}
        found: dict[str, HardeningLike] = {NATIVE: self.hardening.none()}
        if not self.hardening.is_none:
            found["recommended" if getattr(self.hardening, "is_recommended", False) else "custom"] = self.hardening
        return found

    @property
    def dither(self) -> Dither:
        """The dither of a patient attacker's queries."""
        options = self.options
        if options.dither is not None:
            return options.dither
        if options.labels == "foreign" and can_crop(self.population):
            return Dither("crop-flip", seed=self.seed)
        averages = self.hardening.noise is not None and self.endpoint is None
        return Dither("additive", NARROW, self.seed) if averages else Dither(seed=self.seed)

    @property
    def numbers(self) -> list[int]:
        """Numbers of reference models, one for each look."""
        return [self.references] if isinstance(self.references, int) else list(self.references)

    @property
    def looks(self) -> list[Look]:
        """All looks, declared in advance."""
        policy, options = self.policy, self.options
        alone = self.shadows is not None or self.recipe is None or options.quick or self.endpoint is not None
        numbers = self.numbers[:1] if alone else self.numbers
        first = options.scored or examples_needed(policy)
        grows = options.scored is None and numbers[0] > 0
        return [
            Look(
                replace(policy, look=i, looks=len(numbers)),
                number,
                min(len(self.population), first * number // numbers[0] if grows else first),
            )
            for i, number in enumerate(numbers, 1)
        ]

    def at(self, look: Look) -> Question:
        """With one look's policy, references and examples; progress names further looks."""
        options, progress = self.options, self.progress
        if look.policy.look > 1:

            def progress(stage: str, done: float, total: float, note: str = "") -> None:
                self.progress(f"look {look.policy.look}: {stage}", done, total, note)

        return replace(
            self,
            policy=look.policy,
            references=look.references,
            options=replace(options, scored=look.scored),
            progress=progress,
        )

    @property
    def scored_rows(self) -> NDArray[np.int64]:
        """Indices of the scored examples."""
        policy, options = self.policy, self.options
        number = options.scored or examples_needed(policy)
        all_scored = number >= len(self.population)
        return np.arange(len(self.population)) if all_scored else self.population.sample(self.member, number)

    def puts_softmax(self, like: nn.Module | None) -> bool:
        """Whether a softmax is explained, as models like `like` return logits (None: they do)."""
        if self.output == "logit":
            return False
        return like is None or not gives_probabilities(like, self.population.x[:TESTED_OUTPUTS])

    def released_by(self, hardening: HardeningLike, softmax: bool) -> Release:
        """The explainers under this hardening; `softmax` as `puts_softmax`."""
        return Release(self.methods, hardening, softmax, not self.hardening.is_none)

    def map_numbers(self, answers: int) -> int:
        """Numbers in the maps of so many answers (models times examples) at one level."""
        return answers * self.population.x[0].numel() * len(self.methods) * self.explains

    def map_bytes(self, answers: int) -> int:
        """Bytes of all maps: native ones, if compared, and released ones at each level."""
        return 4 * self.map_numbers(answers) * (len(self.policy.patience) + self.compares)

    def keyed(self, whose: str) -> HardeningLike:
        """The hardening with this audit's key for the "target" or the "references"."""
        return self.hardening.with_key(hashlib.blake2b(f"audit {self.seed} {whose}".encode(), digest_size=32).digest())


class Look(NamedTuple):
    """One look of an audit: policy, which counts all looks, and numbers of reference models and scored examples."""

    policy: Policy
    references: int
    scored: int

    def times(self, before: Look) -> float:
        """Approximate duration relative to an earlier look."""
        return (1 + self.references) / (1 + before.references) * self.scored / before.scored


class Method(NamedTuple):
    """One explainer: its name, its constructor, the arguments of its `attribute`, and those of its making, in JSON."""

    name: str
    make: Callable[..., Any]
    arguments: dict[str, Any]
    made_with: dict[str, Any]

    def __call__(self, forward: Any, hardening: HardeningLike, x: Tensor, target: Tensor) -> Tensor:
        """The released maps of a batch."""
        return self.ask(self.made(forward, hardening), x, target)

    def made(self, forward: Any, hardening: HardeningLike) -> Any:
        """The explainer of a model, which also names prohibited columns, to count them."""
        naming_all = getattr(hardening, "naming_all", lambda: hardening)
        with self.errors():
            return self.make(forward, hardening=naming_all())

    def ask(self, made: Any, x: Tensor, target: Tensor) -> Tensor:
        """The same by an explainer from `made`."""
        with self.errors():
            maps: Tensor = made.attribute(x, target=target, **self.arguments)
        return maps

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of foreign explainers into one line that names the explainer."""
        try:
            yield
        except (SafexplainError, torch.cuda.OutOfMemoryError):
            raise
        except (TypeError, AssertionError, RuntimeError, ValueError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(f"{self.name} cannot explain this model: {reason}") from error


def methods_of(
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]], arguments: Mapping[str, Any] | None
) -> tuple[Method, ...]:
    """The explainers, named by `method` or by their class or function."""
    several, arguments = not callable(explainer), arguments or {}
    makers = [explainer] if callable(explainer) else list(explainer)
    if not makers:
        raise ConfigurationError("explainer: expected one or several, got none")
    makers = [make.catalogued() if hasattr(make, "catalogued") else make for make in makers]
    names = [getattr(m, "method", None) or getattr(m, "__name__", None) or type(m).__name__ for m in makers]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"explainer: expected different ones, got {', '.join(map(str, names))}")
    if several and (unknown := sorted(arguments.keys() - set(names))):
        raise ConfigurationError(f"arguments: expected the names of explainers as keys, {names}, got {unknown}")
    return tuple(
        Method(
            str(name),
            make,
            dict(arguments.get(name, {}) if several else arguments),
            dict(getattr(make, "made_with", None) or {}),
        )
        for name, make in zip(names, makers, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Release:
    """An `Explain` function, for released maps; it can be pickled if the explainers can."""

    methods: tuple[Method, ...]  # released together, each hardened by itself
    hardening: HardeningLike
    softmax: bool  # the model returns logits, and its probability is explained
    compares: bool  # NaN and infinity in native maps become zeros, as in a release

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor | list[Tensor]:
        """The maps of a batch, one of each explainer."""
        if isinstance(model, Endpoint):  # it chooses explainer and class
            return model.explain(x)
        maps = [method.ask(made, x, target) for method, made in zip(self.methods, self._made(model), strict=True)]
        if self.hardening.is_none and self.compares:
            maps = [m.nan_to_num(0.0, 0.0, 0.0) for m in maps]
        return maps[0] if len(maps) == 1 else maps

    def hardens_again(self, model: nn.Module) -> bool:
        """Whether `of_native` can replace another explanation."""
        return len(self.methods) == 1 and getattr(self._made(model)[0], "hardens_again", False)

    def of_native(self, model: nn.Module, x: Tensor, target: Tensor, native: Tensor) -> Tensor:
        """The maps of a batch from its native maps."""
        ((method, made),) = zip(self.methods, self._made(model), strict=True)
        with method.errors():
            released: Tensor = made.of_native(native, x, **method.arguments)
        return released

    def _made(self, model: nn.Module) -> list[Any]:
        """The explainers of a model, made once for all its batches."""
        last = _MADE.get(self)
        if last is None or last[0] is not model:
            forward = Probability(model) if self.softmax else model
            _MADE[self] = last = (model, [method.made(forward, self.hardening) for method in self.methods])
        return last[1]


_MADE: WeakKeyDictionary[Release, tuple[nn.Module, list[Any]]] = WeakKeyDictionary()
"""The last model of each release, and its explainers; elsewhere, as the release is pickled and has a digest."""


def gives_probabilities(model: nn.Module, x: Tensor) -> bool:
    """Whether a model's outputs are probabilities; False for a single example."""
    with torch.no_grad():
        out = model(x.to(device_of(model)))
    return len(out) > 1 and are_probabilities(out)


def _check_endpoint(options: AuditOptions, methods: Sequence[Method]) -> None:
    if options.privacy is not None:
        raise InputError("expected no privacy statement, which is about a model's weights, for an endpoint")
    if options.labels == "foreign":
        raise InputError("expected data of the last training stage for an endpoint, got pre-training data")
    if options.classes or len(methods) > 1:
        raise InputError("an endpoint gives one explanation, of its predicted class: pass one explainer and no classes")
