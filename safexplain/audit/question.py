"""What is audited, in one frozen object, which the audit, its plan and the search for a release share.

An explainer is whatever makes an object with `attribute`, and a hardening whatever it takes: this module knows neither
of the package's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain._validate import check_number, check_whole
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.population import Population
from safexplain.audit.queries import Dither, Labels, can_crop
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Build, Shadows
from safexplain.audit.report.model import ENDPOINT, NATIVE
from safexplain.audit.store import Store
from safexplain.errors import ConfigurationError, InputError, SafexplainError, did_you_mean
from safexplain.outputs import Probability, are_probabilities, as_module
from safexplain.verdict.canaries.claim import Finding
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import examples_needed
from safexplain.verdict.privacy_statement import PrivacyStatement

Output = Literal["probability", "logit"]
SubjectData = Literal["training", "pre-training", "fine-tuning"]
"""Whose membership is attacked."""

FEWEST_REFERENCES = 2
"""A pair of reference models: each example is a member of one of them."""

ENOUGH_REFERENCES = 8
"""From here on, more reference models strengthen the likelihood ratio slowly."""

LOOKS = (ENOUGH_REFERENCES, 16, 32)
"""Reference models at each look of an audit if nobody says how many: it looks again while it is undecided."""

HOUR = 3600.0
"""Seconds within which an audit may begin another look."""

TESTED_OUTPUTS = 64
"""Examples that show whether a model returns probabilities."""

NARROW = 0.003
"""Amplitude of queries about a release with noise: so close that the map hardly changes and the noise averages away."""


class HardeningLike(Protocol):
    """What is done to an explanation before it leaves; `safexplain.Hardening` is one."""

    @property
    def noise(self) -> Any:
        """What noise is added; None: none."""

    @property
    def is_none(self) -> bool:
        """Whether values pass through unchanged."""

    def none(self) -> Any:
        """The hardening that changes nothing."""

    def with_key(self, key: bytes) -> Self:
        """The same with this noise key."""

    def without_noise(self) -> Any:
        """The same without its noise, as an attacker runs it on models of his own."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the key."""

    def to_json(self) -> str:
        """The same as text."""


@dataclass(frozen=True, eq=False)
class AuditOptions:
    """What few audits need to say.

    Args:
        dither: how the queries of a patient attacker differ from each other; the policy says how many there are. None:
            `Dither()`; narrow ones where the release has noise; crops and flips of images whose labels are foreign.
        scored: how many examples are scored, drawn at random (`Population.sample`); reference models train on all.
            None: as many as the policy needs (`verdict.power.examples_needed`).
        accuracy: of the target on examples that it was not trained on, as its owner measured it. If it is clearly
            lower on the non-members here, the data are not what it was trained on, and nothing is certified.
        classes: also explained for every example, beside the predicted one: what a client sees who may choose.
        slices: name -> (n,) numbers or names, parts of the data by which the report is sliced, beside the classes.
        batch_size: examples in one call of the explainer.
        force: judge although the examples were used for the verdict on another configuration; the certificate says so.
        exposed: how many of the most exposed members the report and the JSON list, for the owner of the data; leave
            it at 0 if these are shared.
        title: of the report, and name of the model in the certificate. "": the name of the model's class.
        subject: name -> {algorithm: digest} of the audited model; empty: the digest of its parameters.
        materials: name -> digest of what else the certificate should name.
        notes: caveats for the reader.
        privacy: the guarantee of the model's training, if it was differentially private; it names the model's weights.
        canaries: what canaries found about that training, if they were trained.
        search: if a search chose the configuration, on other examples: how many `trials` it ran, and the `digest` of
            what it found; the certificate says so.
        subject_data: whose membership is attacked, if the model was trained in two stages: "pre-training" or
            "fine-tuning" data; the certificate says so. The labels of pre-training data are classes of another task
            than the model's, and never compared with what it predicts. "training": there was one stage.
        quick: a first look: a leak that is found is proven, but nothing is certified, and no certificate is written.
        seconds: an undecided audit begins another look only if that would probably end within so many seconds.
        store: folder in which the answers of each finished model are kept until the audit has ended, so that an
            interrupted one resumes, and maps that do not fit in memory. None: beside the reference models, if these
            are kept; else nothing is resumed, and such maps lie among temporary files.

    Raises:
        ConfigurationError: `subject_data` is none of the three, `accuracy` is no share, or `scored` no whole number.
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
                f"subject_data is one of {', '.join(get_args(SubjectData))}; got {self.subject_data!r}"
            )
        if self.scored is not None:
            check_whole("scored", self.scored, 2)
        if self.accuracy is not None:
            object.__setattr__(self, "accuracy", check_number("accuracy", self.accuracy))
            if not 0 < self.accuracy <= 1:
                raise ConfigurationError(f"accuracy is a share of the examples, in (0, 1], got {self.accuracy!r}")

    @property
    def labels(self) -> Labels:
        """What the labels of the population are."""
        return "foreign" if self.subject_data == "pre-training" else "own"


@dataclass(frozen=True, eq=False)
class Question:
    """What is audited, and how: the arguments of `audit`, of its plan (`plan_audit`) and of the search (`tune`).

    Args:
        model: the target, in evaluation mode: (n, ...) -> (n, classes) logits or probabilities; or a fitted
            scikit-learn classifier, whose probabilities are explained by perturbation. Or an `Endpoint`, a service that
            is running: what it answers is judged, `explainer` and `hardening` are what the reference models answer
            with, and nothing is said of native explanations.
        population: the pool of n examples, members and non-members from one source.
        recipe: how the model was trained, as `train_shadows` takes it. The less alike, the less a certificate says.
            None: no reference models are trained.
        member: (n,) bool, which examples the model was trained on.
        explainer: `explainer(model, hardening=h)` makes an object whose `attribute(x, target=classes, **arguments)`
            gives maps (n, ...): a hardened class, or anything alike. A class with a class method `catalogued()` is
            asked through what that returns, and `method` of that is its name in the certificate; `made_with`, JSON, is
            stated among its options. Several of them answer each query together, each hardened by itself, and are
            judged as one release, called by all of their names ("IG+Saliency").
        hardening: what is released. Target and reference models get two noise keys of the audit's own: the attacker
            knows the hardening, not the key. With `Hardening.none()` the native explanations are judged.
        output: explain the probability of the predicted class, by a softmax if the model returns logits; or what the
            model returns ("logit").
        arguments: of `attribute`, the same for every query; of several explainers, name -> arguments.
        build: makes an untrained model from a seed, see `train_shadows`.
        references: how many reference models are trained, best an even number; 0, or at least 2. Several numbers: while
            nothing but the width of the intervals stands against a verdict, the audit looks again with the next number,
            and as many times more examples scored, if that ends in time (`AuditOptions.seconds`). The models of before
            are kept. All looks share the risk of a wrong verdict (`Policy.risk`), and count as one use.
        shadows: reference models that are trained already, instead of `recipe` and `references`: by differentially
            private training, for example. To attack the membership of pre-training data
            (`AuditOptions(subject_data="pre-training")`, with the population and members of the pre-training), those
            of `fine_tune`.
        policy: what counts as a leak; default `Policy()`, whose patience is raised if the hardening has noise
            (`Policy.patient`). If it says that predictions alone are released, these are judged, and nothing is
            explained.
        options: what few need to say.
        seed: of everything random, noise keys included.
        cache: where finished reference models are kept, so that an interrupted audit resumes.
        device: where models are trained and asked; the target is moved there. None: where it is.
        progress: told about the long stages.

    Raises:
        InputError: the model is in training mode, `member` is not one bool an example or marks one side only, the
            references are too few or do not grow, or the data do not suit an endpoint.
        ConfigurationError: an unknown output, no explainer or one twice, arguments of an unknown explainer, a `Recipe`
            without `build`, or the policy does not suit an endpoint.
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
            raise InputError(f"member marks {int(member.sum())} of {len(member)} examples; an audit needs both sides")
        numbers = [self.references] if isinstance(self.references, int) else list(self.references)
        if not numbers or any(b <= a for a, b in pairwise(numbers)):
            raise InputError(f"references: expected a number, or several that grow, as {LOOKS}; got {numbers!r}")
        if numbers != [0] and numbers[0] < FEWEST_REFERENCES:
            raise InputError(f"references: expected 0 or at least {FEWEST_REFERENCES}, got {numbers[0]}")
        if self.output not in get_args(Output):
            raise ConfigurationError(
                f"output is probability or logit, got {self.output!r}{did_you_mean(self.output, get_args(Output))}"
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
            raise InputError("the model is in training mode, in which its answers vary; call model.eval() first")

    @cached_property
    def target(self) -> nn.Module:
        """The model as a network on the device where it is asked."""
        model: nn.Module = as_module(self.model, self.population.classes)
        return model if self.device is None else model.to(self.device)

    @property
    def endpoint(self) -> Endpoint | None:
        """The service that is audited, if there is one."""
        return self.target if isinstance(self.target, Endpoint) else None

    @property
    def place(self) -> torch.device:
        """Where models are trained and asked."""
        return next((p.device for p in self.target.parameters()), torch.device(self.device or "cpu"))

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """The explainers by their names."""
        return methods_of(self.explainer, self.arguments)

    @property
    def method(self) -> str:
        """Name of the explainer, or of all that are released together."""
        return "+".join(method.name for method in self.methods)

    @property
    def explains(self) -> bool:
        """Whether explanations are released; else predictions alone."""
        return self.policy.release != "prediction"

    @property
    def compares(self) -> bool:
        """Whether native explanations are judged beside the released ones."""
        return self.endpoint is None and not self.hardening.is_none

    @property
    def releases(self) -> dict[str, HardeningLike]:
        """What is attacked, by name: native explanations, those of the hardening ("recommended" or "custom"), which are
        judged; or the answers of an endpoint alone."""
        if self.endpoint is not None:
            return {ENDPOINT: self.hardening}
        found: dict[str, HardeningLike] = {NATIVE: self.hardening.none()}
        if not self.hardening.is_none:
            found["recommended" if getattr(self.hardening, "is_recommended", False) else "custom"] = self.hardening
        return found

    @property
    def dither(self) -> Dither:
        """How the queries of a patient attacker differ."""
        options = self.options
        if options.dither is not None:
            return options.dither
        if options.labels == "foreign" and can_crop(self.population):
            return Dither("crop-flip", seed=self.seed)
        averages = self.hardening.noise is not None and self.endpoint is None
        return Dither("additive", NARROW, self.seed) if averages else Dither(seed=self.seed)

    @property
    def looks(self) -> list[Look]:
        """The looks that are declared before anything is seen."""
        policy, options = self.policy, self.options
        alone = self.shadows is not None or self.recipe is None or options.quick or self.endpoint is not None
        numbers = [self.references] if isinstance(self.references, int) else list(self.references)
        numbers = numbers[:1] if alone else numbers
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
        """The same with one look's policy, references and examples; progress says which look it is, from the second."""
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
        """Indices of the examples that are scored."""
        policy, options = self.policy, self.options
        number = options.scored or examples_needed(policy)
        everything = number >= len(self.population)
        return np.arange(len(self.population)) if everything else self.population.sample(self.member, number)

    def puts_softmax(self, like: nn.Module | None) -> bool:
        """Whether probabilities are explained of models that, as `like`, return logits; None: taken to do so."""
        if self.output == "logit":
            return False
        return like is None or not gives_probabilities(like, self.population.x[:TESTED_OUTPUTS])

    def released_by(self, hardening: HardeningLike, softmax: bool) -> Release:
        """The explainers under this hardening; `softmax` as `puts_softmax`."""
        return Release(self.methods, hardening, softmax, not self.hardening.is_none)

    def map_numbers(self, answers: int) -> int:
        """Numbers in the maps of so many answers, models times examples, at one level of patience."""
        return answers * self.population.x[0].numel() * len(self.methods) * self.explains

    def map_bytes(self, answers: int) -> int:
        """Bytes of all maps: natively, where they are compared, and as released at each level of patience."""
        return 4 * self.map_numbers(answers) * (len(self.policy.patience) + self.compares)

    def keyed(self, whose: str) -> HardeningLike:
        """The hardening with a key of this audit's own, one for the "target" and another for the "references"."""
        return self.hardening.with_key(hashlib.blake2b(f"audit {self.seed} {whose}".encode(), digest_size=32).digest())


class Look(NamedTuple):
    """One look of an audit: the policy, which knows how many looks there are, reference models and scored examples."""

    policy: Policy
    references: int
    scored: int

    def times(self, before: Look) -> float:
        """How many times longer than an earlier one it takes, about: it asks more models about more examples."""
        return (1 + self.references) / (1 + before.references) * self.scored / before.scored


class Method(NamedTuple):
    """One explainer: its name, what makes it, and the arguments of its `attribute`; what it is made with, in JSON."""

    name: str
    make: Callable[..., Any]
    arguments: dict[str, Any]
    made_with: dict[str, Any]

    def __call__(self, forward: Any, hardening: HardeningLike, x: Tensor, target: Tensor) -> Tensor:
        """The released maps of a batch."""
        return self.ask(self.made(forward, hardening), x, target)

    def made(self, forward: Any, hardening: HardeningLike) -> Any:
        """The explainer of a model; what the release would refuse to say, it says, so that it can be counted."""
        naming_all = getattr(hardening, "naming_all", lambda: hardening)
        with self.errors():
            return self.make(forward, hardening=naming_all())

    def ask(self, made: Any, x: Tensor, target: Tensor) -> Tensor:
        """The released maps of an explainer that is made already."""
        with self.errors():
            maps: Tensor = made.attribute(x, target=target, **self.arguments)
        return maps

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Errors of foreign explainers as one line that names the explainer."""
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
    """The explainers by their own names, or that of their class or function."""
    several, arguments = not callable(explainer), arguments or {}
    makers = [explainer] if callable(explainer) else list(explainer)
    if not makers:
        raise ConfigurationError("explainer: expected one, or several that are released together; got none")
    makers = [make.catalogued() if hasattr(make, "catalogued") else make for make in makers]
    names = [getattr(m, "method", None) or getattr(m, "__name__", None) or type(m).__name__ for m in makers]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"explainer: each is released once, got {', '.join(map(str, names))}")
    if several and (unknown := sorted(arguments.keys() - set(names))):
        raise ConfigurationError(f"arguments of several explainers are given by name, {names}; got {unknown}")
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
    """The released maps of a batch, as `ask.explained` asks for them; it can be pickled if the explainers can."""

    methods: tuple[Method, ...]  # that explain together, each hardened by itself
    hardening: HardeningLike
    softmax: bool  # the model returns logits, and its probability is explained
    compares: bool  # of native maps, numbers that are not finite count as they would be released, as zeros

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor | list[Tensor]:
        """The maps of a batch, one of each explainer."""
        if isinstance(model, Endpoint):  # which decides by itself what it explains, and how
            return model.explain(x)
        maps = [method.ask(made, x, target) for method, made in zip(self.methods, self._made(model), strict=True)]
        if self.hardening.is_none and self.compares:
            maps = [m.nan_to_num(0.0, 0.0, 0.0) for m in maps]
        return maps[0] if len(maps) == 1 else maps

    def hardens_again(self, model: nn.Module) -> bool:
        """Whether `of_native` can take the place of another explanation."""
        return len(self.methods) == 1 and getattr(self._made(model)[0], "hardens_again", False)

    def of_native(self, model: nn.Module, x: Tensor, target: Tensor, native: Tensor) -> Tensor:
        """The same as a call, from native maps of the batch that are known already."""
        ((method, made),) = zip(self.methods, self._made(model), strict=True)
        with method.errors():
            released: Tensor = made.of_native(native, x, **method.arguments)
        return released

    def _made(self, model: nn.Module) -> list[Any]:
        """The explainers of a model, made once for all its batches: some read every tree for that."""
        last = _MADE.get(self)
        if last is None or last[0] is not model:
            forward = Probability(model) if self.softmax else model
            _MADE[self] = last = (model, [method.made(forward, self.hardening) for method in self.methods])
        return last[1]


_MADE: WeakKeyDictionary[Release, tuple[nn.Module, list[Any]]] = WeakKeyDictionary()
"""The last model that each release was asked about, and its explainers; not a part of the release, which is sent to
other processes and identified by what it is made with."""


def gives_probabilities(model: nn.Module, x: Tensor) -> bool:
    """Whether a model's outputs are probabilities already; one example is too few to tell."""
    device = next((p.device for p in model.parameters()), x.device)
    with torch.no_grad():
        out = model(x.to(device))
    return len(out) > 1 and are_probabilities(out)


def _check_endpoint(options: AuditOptions, methods: Sequence[Method]) -> None:
    """Raise InputError for what an endpoint cannot be asked."""
    if options.privacy is not None:
        raise InputError("the privacy statement is about a model's weights, and an endpoint shows none: leave it out")
    if options.labels == "foreign":
        raise InputError("an endpoint is audited for the data that its model was trained on last, not for pre-training")
    if options.classes or len(methods) > 1:
        raise InputError("an endpoint gives one explanation, of the class that it predicts: name one explainer alone")
