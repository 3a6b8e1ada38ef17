"""The whole way of an audit, from a model to a verdict and its files. The command line only calls it.

    model + population --train--> reference models --ask--> signals, native and released --attack--> verdicts
    native signals --root cause--> what carries the leak;  all of it --save--> report, certificate, signals

An explainer is whatever makes an object with `attribute`, and a hardening whatever it takes: this module knows neither
of the package's own.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import model_digest, sha256
from safexplain._progress import Progress, named, silent
from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.scoring import FEWEST_FOR_NULL, Scorer
from safexplain.audit.attacks.suite import fitting
from safexplain.audit.certify import certify
from safexplain.audit.collect import collect_signals
from safexplain.audit.controls.accuracy import ADVICE, META, UNUSUAL, Hits, Statistics, below_stated, measured
from safexplain.audit.controls.accuracy import LOOKED_AT as LOOKED_AT_MEMBERS
from safexplain.audit.controls.strength import PRIVACY
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.outcome import AuditRun, environment, pictures
from safexplain.audit.population import Population
from safexplain.audit.queries import (
    Dither,
    Labels,
    Predictions,
    can_crop,
    predict,
    with_channels_last,
)
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.executors import Executor, check_executor, present
from safexplain.audit.references.shadows import Build, Repeated, Shadows, train_shadows
from safexplain.audit.report import ReportData
from safexplain.audit.report.model import ENDPOINT, Configuration
from safexplain.audit.root_cause import Ablation, root_cause, sample
from safexplain.audit.root_cause import sentence as cause_sentence
from safexplain.audit.signals import Signals, hash_examples, side_by_side
from safexplain.audit.splits import refuse_copies
from safexplain.audit.storage.pieces import LARGEST_MAPS, ExplainedStore, bytes_on_disk, free_space
from safexplain.audit.usefulness import Sample, utility_of
from safexplain.errors import ConfigurationError, DataWarning, InputError, RefusedError, SafexplainError
from safexplain.native_maps import Finding as NativeFinding
from safexplain.native_maps import Watch, collecting
from safexplain.outputs import Probability, are_probabilities, as_module
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.result import check_certifiable
from safexplain.verdict.certificate.write import ANSWERS_DIGEST, MODEL_DIGEST
from safexplain.verdict.implied import Implied
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import examples_needed
from safexplain.verdict.privacy_statement import PrivacyStatement
from safexplain.verdict.release import as_written, in_words
from safexplain.verdict.words import limits

__all__ = ["AuditOptions", "AuditRun", "Pool", "audit", "audit_pools", "hardly_better_than_guessing"]

Output = Literal["probability", "logit"]
SubjectData = Literal["training", "pre-training", "fine-tuning"]
"""Whose membership is attacked."""

FEWEST_REFERENCES = 2
"""A pair of reference models: each example is a member of one of them."""

ENOUGH_REFERENCES = 8
"""From here on, more reference models strengthen the likelihood ratio slowly."""

LOOKS = (ENOUGH_REFERENCES, 16, 32)
"""Reference models at each look of an audit of which nobody says how many: it looks again while it is undecided."""

HOUR = 3600.0
"""Seconds within which an audit may begin another look."""

LOOKED_AT = 64
"""Examples on which it is seen whether a model returns probabilities."""

NARROW = 0.003
"""Amplitude of queries about a release with noise: so close that the map hardly changes and the noise averages away."""

SAMPLED = 256
"""Examples whose explanations are looked at before all others, for what cannot be right and for faithfulness."""


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
        dither: how the queries of a patient attacker differ from each other; how many there are is the policy's. None:
            `Dither()`; narrow ones where the release has noise; crops and flips of images whose labels are foreign.
        scored: how many examples are scored, drawn at random (`Population.sample`); reference models train on all.
            None: as many as the policy needs (`verdict.power.examples_needed`).
        accuracy: of the target on examples that it was not trained on, as its owner measured it. Where it is surely
            lower on the non-members here, the data are not what it was trained on, and nothing is certified.
        classes: that are explained of every example beside the predicted one: what a client sees who may choose.
        slices: name -> (n,) numbers or names, parts of the data by which the report is sliced, beside the classes.
        batch_size: examples in one call of the explainer.
        force: judge although the examples were used for the verdict on another configuration; the certificate says so.
        exposed: how many of the members that are found most surely the report and the JSON list, for the owner of the
            data; leave it at 0 where these are shared.
        title: of the report, and name of the model in the certificate. "": the name of the model's class.
        subject: name -> {algorithm: digest} of the audited models; empty: the digest of their parameters.
        materials: name -> digest of what else the certificate should name.
        notes: caveats for the reader.
        privacy: the guarantee of the model's training, if it was differentially private; it names the model's weights.
        canaries: what canaries found about that training, if they were trained.
        search: where a search chose the configuration, on other examples: how many `trials` it ran, and the `digest` of
            what it found; the certificate says so.
        subject_data: whose membership is attacked, where the model was trained in two stages: "pre-training" or
            "fine-tuning" data; the certificate says so. The labels of pre-training data are classes of another task
            than the model's, and never compared with what it predicts. "training": there was one stage.
        quick: a quick look: a leak that is found is proven, but nothing is certified, and no certificate is written.
        seconds: an undecided audit begins another look only if that would probably end within so many seconds.
        store: folder where the answers of each explained model are kept until the audit has finished, so that an
            interrupted one is taken up, and maps that do not fit in memory. None: in that of the reference models,
            where they are kept; else nothing is taken up, and such maps lie among temporary files.

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
    store: str | Path | ExplainedStore | None = None

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
class Pool:
    """A population and the models over it, the target first.

    Args:
        population: the examples that are scored.
        shadows: models and membership; model 0 is the target.
        untrained: a model like the target before training, for the null control where references are few.
        slices: name -> (n,), see `AuditOptions`.
    """

    population: Population
    shadows: Shadows
    untrained: nn.Module | None = None
    slices: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def null(self) -> tuple[int, ...]:
        """Index of the untrained model among `asked`."""
        return () if self.untrained is None else (len(self.shadows.models),)

    @property
    def asked(self) -> Shadows:
        """The models that are asked: all, and last the untrained one, which has no members."""
        if self.untrained is None:
            return self.shadows
        nobody = np.zeros((1, len(self.population)), dtype=bool)
        return Shadows((*self.shadows.models, self.untrained), np.concatenate([self.shadows.membership, nobody]))

    def signals(self, **meta: Any) -> Signals:
        """Who is a member of what, before anything is asked."""
        asked = self.asked
        about = {"population": self.population.digest(), "targets": [0], "null": list(self.null), **meta}
        nothing = {"label": np.zeros(asked.membership.shape)}
        hashes = hash_examples(self.population.x.cpu().numpy())
        return Signals(asked.membership, nothing, None, about, groups=self.population.groups, examples=hashes)


def audit(
    model: nn.Module | Any,
    population: Population,
    recipe: Recipe | Train | Any = None,
    *,
    member: NDArray[np.bool_],
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]],
    hardening: HardeningLike,
    output: Output = "probability",
    arguments: Mapping[str, Any] | None = None,
    build: Build | None = None,
    references: int | Sequence[int] = LOOKS,
    shadows: Shadows | None = None,
    policy: Policy | None = None,
    options: AuditOptions | None = None,
    seed: int = 0,
    cache: ModelCache | str | Path | None = None,
    device: str | torch.device | None = None,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> AuditRun:
    """Train reference models, attack a model's explanations natively and hardened, and judge what is released.

        result = audit(
            model, population, Recipe(lr=3e-3), build=build, member=mask,
            explainer=HardenedInputXGradient, hardening=Hardening.recommended(), references=16,
        )
        result.verdict, result.native.verdict
        result.save("run")

    Args:
        model: the target, in evaluation mode: (n, ...) -> (n, classes) logits or probabilities; or a fitted
            scikit-learn classifier, whose probabilities are explained by perturbation. Or an `Endpoint`, a service that
            runs already: what it answers is judged, `explainer` and `hardening` are what the reference models answer
            with, and nothing is said of native explanations.
        population: the pool of n examples, members and non-members from one source.
        recipe: how the model was trained, as `train_shadows` takes it. The weaker the likeness, the less a certificate
            says. None: no reference models are trained.
        member: (n,) bool, which examples the model was trained on.
        explainer: `explainer(model, hardening=h)` makes an object whose `attribute(x, target=classes, **arguments)`
            gives maps (n, ...): a hardened class, or anything alike. A class with a class method `catalogued()` is
            asked through what that returns, and `method` of that is its name in the certificate; `made_with`, JSON, is
            stated among its options. Several of them answer each query together, each hardened by itself, and are
            judged as one release, called by all of their names ("IG+Saliency").
        hardening: what is released. Target and reference models get two noise keys of the audit's own: the attacker
            knows the hardening, not the key. With `Hardening.none()` the native explanations are judged.
        output: explain the probability of the predicted class, by a softmax where the model returns logits; or what
            the model returns ("logit").
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
        policy: what counts as a leak; default `Policy()`, whose patience is raised where the hardening has noise
            (`Policy.patient`). Where it says that predictions alone are released, these are judged, and nothing is
            explained.
        options: what few need to say.
        seed: of everything random, noise keys included.
        cache: where finished reference models are kept, so that an interrupted audit can be taken up.
        device: where models are trained and asked; the target is moved there. None: where it is.
        executor: sends groups of models elsewhere to be trained, asked and explained, see `train_shadows`; an endpoint
            is asked from here. The result is the same. None: this process.
        progress: told about the long stages.

    Raises:
        InputError: the model, the data or the number of reference models cannot be used, an explanation fails, or the
            privacy statement is about another model or about none, or the canaries are about another training.
        ConfigurationError: a `Recipe` without `build`, or a `Recipe` alone for models that were fine-tuned.
    """
    policy, options = policy or Policy(), options or AuditOptions()
    alone = shadows is not None or recipe is None or options.quick or isinstance(model, Endpoint)
    looks = looks_of(references, len(population), policy, options, alone=alone)
    if isinstance(model, Endpoint):
        known = () if shadows is None else shadows.models
        twin = known[0] if known else None if build is None else build(seed)
        methods = methods_of(explainer, arguments)
        keyed = _keyed(hardening, seed, "references")
        rows = scored_rows(population, checked_member(population, member, looks[0].references), policy, options)
        asked = population.part(rows), np.asarray(member)[rows]
        policy = _begin(model, *asked, policy, options, methods, twin, keyed, progress)
        looks = [looks[0]._replace(policy=policy)]
    folder = cache.folder if isinstance(cache, ModelCache) else cache
    store = ExplainedStore.of(options.store or (None if folder is None else Path(folder) / "explained"))
    began = time.monotonic()
    for number, look in enumerate(looks, 1):
        since = time.monotonic()
        pool, said = prepare(
            model,
            population,
            recipe,
            member=member,
            build=build,
            references=look.references,
            shadows=shadows,
            policy=look.policy,
            options=replace(options, scored=look.scored, store=store),
            seed=seed,
            cache=cache,
            device=device,
            executor=executor,
            progress=look.named(progress),
        )
        found = audit_pools(
            [pool],
            explainer=explainer,
            hardening=hardening,
            output=output,
            arguments=arguments,
            policy=look.policy,
            options=said,
            recipe=recipe,
            seed=seed,
            executor=executor,
            progress=look.named(progress),
        )
        if number < len(looks) and found.result.too_wide:
            now, following = time.monotonic(), looks[number]
            more = following.times(look) * (now - since)
            if now - began + more <= options.seconds:
                del pool, found  # which may be large
                continue
            found = replace(found, next_look=(following.references, following.scored, more))
        store.finish()
        return found
    raise AssertionError("there is at least one look")


class Look(NamedTuple):
    """What an audit looks at, once or, while it is undecided, again.

    Args:
        policy: that judges it: it knows which look this is, and of how many.
        references: models that are trained for it.
        scored: examples.
    """

    policy: Policy
    references: int
    scored: int

    def times(self, before: Look) -> float:
        """How many times longer than an earlier one it takes, about: it asks more models about more examples."""
        return (1 + self.references) / (1 + before.references) * self.scored / before.scored

    def named(self, progress: Progress) -> Progress:
        """Progress that says which look this is, from the second on."""
        if self.policy.look == 1:
            return progress
        return lambda stage, done, total, note="": progress(f"look {self.policy.look}: {stage}", done, total, note)


def looks_of(
    references: int | Sequence[int], examples: int, policy: Policy, options: AuditOptions, *, alone: bool
) -> list[Look]:
    """The looks that are declared before anything is seen.

    Args:
        references: at each; a number alone: there is one.
        examples: of the population.
        policy: whose risk they share.
        options: says how many examples are scored, where somebody chose.
        alone: there is no more than the first, whatever is given.

    Raises:
        InputError: several numbers of references that do not grow.
    """
    numbers = [references] if isinstance(references, int) else list(references)
    if not numbers or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(f"references: expected a number, or several that grow, as {LOOKS}; got {references!r}")
    numbers = numbers[:1] if alone else numbers
    first = options.scored or examples_needed(policy)
    grows = options.scored is None and numbers[0] > 0
    return [
        Look(
            replace(policy, look=i, looks=len(numbers)),
            number,
            min(examples, first * number // numbers[0] if grows else first),
        )
        for i, number in enumerate(numbers, 1)
    ]


def prepare(
    model: nn.Module | Any,
    population: Population,
    recipe: Recipe | Train | Any = None,
    *,
    member: NDArray[np.bool_],
    build: Build | None = None,
    references: int = 8,
    shadows: Shadows | None = None,
    policy: Policy | None = None,
    options: AuditOptions | None = None,
    seed: int = 0,
    cache: ModelCache | str | Path | None = None,
    device: str | torch.device | None = None,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> tuple[Pool, AuditOptions]:
    """What `audit` does before anything is explained: the reference models, and what is to be said of all models.

    Args:
        model: see `audit`, as the rest.
        population: likewise.
        recipe: likewise.
        member: likewise.
        build: likewise.
        references: likewise.
        shadows: likewise.
        policy: likewise; says how many examples are scored.
        options: likewise.
        seed: likewise.
        cache: likewise.
        device: likewise.
        executor: likewise.
        progress: likewise.

    Returns:
        The models over the examples that are scored, the target first, and the options with title, subject and notes,
        both for `audit_pools`.

    Raises:
        InputError, ConfigurationError: as `audit`.
    """
    check_executor(executor)
    options = options or AuditOptions()
    if cache is not None and options.store is None:
        models = cache.folder if isinstance(cache, ModelCache) else Path(cache)
        options = replace(options, store=models / "explained")
    member = checked_member(population, member, references)
    refuse_copies(hash_examples(population.x.cpu().numpy()), member)  # before anything long
    model = as_module(model, population.classes)
    if model.training:
        raise InputError("the model is in training mode, in which its answers vary; call model.eval() first")
    target = model if device is None else model.to(device if executor is None else present(device))
    place = next((p.device for p in target.parameters()), torch.device(device or "cpu"))
    _check_privacy(options, target)
    rows = scored_rows(population, member, policy or Policy(), options)
    part = options.quick or isinstance(target, Endpoint)  # which is asked no more than what is scored
    fitted = (population.part(rows), member[rows]) if part else (population, member)
    notes = [*options.notes, *_fit_notes(target, *fitted, options)]
    notes += _group_notes(population, member)
    if options.labels == "foreign" and shadows is None and (isinstance(recipe, Recipe) or hasattr(recipe, "fit")):
        raise ConfigurationError(
            'subject_data="pre-training": one recipe makes no fine-tuned reference models; pass'
            " shadows=fine_tune(train_shadows(population, recipe, ...), FineTune(...)), or a function that pre-trains"
            " and fine-tunes"
        )
    if shadows is None and recipe is not None and references:
        repeated = Repeated.of(recipe, build, None if isinstance(target, Endpoint) else target, member)
        shadows = train_shadows(
            population,
            recipe,
            build=repeated.build,
            models=references,
            members=repeated.members,
            seed=seed,
            device=place if device is None or executor is None else device,
            cache=cache,
            executor=executor,
            progress=named(progress, "training reference models"),
        )
        if executor is None:
            shadows = replace(shadows, models=tuple(with_channels_last(m, population.x) for m in shadows.models))
    number = 0 if shadows is None else len(shadows.models)
    if number == 0:
        notes.append("No reference models: only threshold attacks ran, so nothing can be certified.")
    elif number < ENOUGH_REFERENCES:
        notes.append(f"Only {number} reference models: a real attacker may train more and find more.")
    if isinstance(recipe, Recipe) and number:
        notes += [note for note in (recipe.caveat(target), recipe.privacy_note(options.privacy)) if note]
    shadows = (shadows or Shadows((), np.zeros((0, len(population)), dtype=bool))).behind(target, member)
    if len(rows) < len(population):
        notes.append(
            f"{len(rows):,} of {len(population):,} examples were scored, drawn at random before anything was seen;"
            " reference models were trained on halves of all."
        )
        population, shadows = population.part(rows), replace(shadows, membership=shadows.membership[:, rows])
    slices = {name: np.asarray(values)[rows] for name, values in options.slices.items()}
    untrained = None
    if len(shadows.models) < FEWEST_FOR_NULL and build is not None:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            untrained = build(seed).to(place).eval()
    if isinstance(target, Endpoint):
        return Pool(population, shadows, untrained, slices), replace(
            options, title=options.title or target.url, notes=tuple(notes)
        )
    title = options.title or type(model).__name__
    subject = options.subject or {title: {MODEL_DIGEST: model_digest(target).hex()}}
    pool = Pool(population, shadows, untrained, slices)
    return pool, replace(options, title=title, subject=subject, notes=tuple(notes))


def scored_rows(
    population: Population, member: NDArray[np.bool_], policy: Policy, options: AuditOptions
) -> NDArray[np.int64]:
    """Indices of the examples that are scored."""
    number = options.scored or examples_needed(policy)
    return np.arange(len(population)) if number >= len(population) else population.sample(member, number)


def audit_pools(
    pools: Sequence[Pool],
    *,
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]],
    hardening: HardeningLike,
    output: Output = "probability",
    arguments: Mapping[str, Any] | None = None,
    policy: Policy | None = None,
    options: AuditOptions | None = None,
    recipe: Recipe | Train | Any = None,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> AuditRun:
    """`audit` where all models are trained: several targets, each with its own pool, are judged together.

    Args:
        pools: disjoint pools with their models, as many in each.
        explainer: see `audit`, as the rest.
        hardening: likewise.
        output: likewise.
        arguments: likewise.
        policy: likewise.
        options: likewise.
        recipe: how the models were trained, for the certificate.
        seed: of noise keys, attacks and controls.
        executor: see `audit`.
        progress: told about the long stages.

    Raises:
        InputError: an explanation fails, or the pools have different numbers of models, or several an endpoint.
        ConfigurationError: an unknown output.
    """
    check_executor(executor)
    options, policy = options or AuditOptions(), (policy or Policy()).patient(noise=hardening.noise is not None)
    alone = policy.release == "prediction"
    if alone:  # no explanation is released that could be hardened
        hardening = hardening.none()
    if output not in ("probability", "logit"):
        raise ConfigurationError(f"output is probability or logit, got {output!r}")
    (first, *others), population = pools[0].shadows.models, pools[0].population
    endpoint = first if isinstance(first, Endpoint) else None
    if len(pools) > 1 and any(isinstance(p.shadows.models[0], Endpoint) for p in pools):
        raise InputError("an endpoint is audited by itself, not beside other targets")
    seen = next(iter(others), None) if endpoint else first  # the labels of an endpoint tell nothing of its outputs
    softmax = output == "probability" and (seen is None or not gives_probabilities(seen, population.x[:LOOKED_AT]))
    methods = methods_of(explainer, arguments)
    way = _Way(methods, output, softmax, policy, options, _as_text(recipe), seed, progress, not hardening.is_none)
    if isinstance(recipe, Recipe):
        way = replace(way, private=(True if options.privacy else None, recipe.dp is not None))
    notes, copies = list(options.notes), len(policy.patience) + (not (endpoint or hardening.is_none))
    features, store = population.x[0].numel() * len(methods), ExplainedStore.of(None if endpoint else options.store)
    whole = 4 * copies * features * sum(p.shadows.membership.size for p in pools)
    implied, why_not = _implied(options, policy, pools)
    notes += why_not
    own = [m for m in methods if hasattr(m.make, "explains") and not (alone or endpoint)]
    odds = [m.name for m in own if m.make.explains(first) == "log odds"]  # type: ignore[attr-defined]
    explained = "class's log odds" if odds else output
    notes += [f"{name} explains the log odds of the predicted class, not its {output}." for name in odds]
    way = replace(way, store=store, executor=executor, large=not alone and whole > LARGEST_MAPS, implied=implied)
    size = bytes_on_disk(copies * sum(p.asked.membership.size for p in pools), features) / 2**30
    keep = not way.large or size < (free := free_space(store.folder) / 2**30)
    if not keep:
        notes.append(
            f"the whole-map attack was left out: the maps of all models would take {size:.3g} GiB on disk, where"
            f" {free:.3g} GiB are free"
        )
    elif way.large:
        notes.append(
            f"The maps of all models were attacked on disk, {size:.3g} GiB of 16 bits a number; they are not in"
            " signals.npz, so that attacks on whole maps cannot be repeated from it."
        )
    if (dither := options.dither) is None and options.labels == "foreign" and can_crop(population):
        dither = Dither("crop-flip", seed=seed)
    elif dither is None:
        averages = hardening.noise is not None and endpoint is None
        dither = Dither("additive", NARROW, seed) if averages else Dither(seed=seed)
    if endpoint:
        told = endpoint.ask(population, policy.patience, dither, progress)
        notes = [endpoint.told, *notes, *told]
    asking = [
        predict(
            pool.asked,
            pool.population,
            patience=policy.patience,
            dither=dither,
            labels=options.labels,
            batch_size=options.batch_size,
            executor=executor,
            progress=named(progress, f"asking for labels{_numbered(i, pools)}"),
        )
        for i, pool in enumerate(pools)
    ]
    inputs = population.x.numpy() if len(pools) == 1 else np.concatenate([p.population.x.numpy() for p in pools])
    configurations: tuple[Configuration, ...]
    causes: tuple[Ablation, ...] = ()
    cause, looked = "", _Looked((), ())
    if endpoint:
        asking = [replace(p, values=endpoint.seen(p.values)) for p in asking]
        signals = {ENDPOINT: way.ask(pools, ENDPOINT, hardening, keep, asking, policy.patience)}
        configurations = (way.judge_endpoint(endpoint, signals[ENDPOINT], inputs, hardening),)
    else:
        looked = looked if alone else way.look(pools, hardening)
        notes += [f"Native explanations that cannot be right: {finding}" for finding in looked.findings]
        name = name_of(hardening)
        once = policy.patience if hardening.is_none else (1,)  # nobody certifies the native one beside another
        signals = {"native": way.ask(pools, "native", hardening.none(), keep, asking, once)}
        if not hardening.is_none:
            signals[name] = way.ask(pools, name, hardening, keep, asking, policy.patience, signals["native"])
        native = signals["native"]
        configurations = tuple(way.judge(n, s, native, inputs, hardening, looked) for n, s in signals.items())
        if not alone:
            causes, cause = way.root_cause(native)
    if store is not options.store:
        store.finish()  # or else whoever made it says when
    for found in signals.values():
        for maps in found.on_disk.values():
            maps.delete_in_the_end()
    judged = configurations[-1]
    subject = options.subject or {
        endpoint.url if endpoint else f"target {i + 1}": _identity(p.shadows.models[0]) for i, p in enumerate(pools)
    }
    materials = dict(options.materials)
    if way.recipe:
        materials["recipe sha256"] = sha256(way.recipe)
    made_in = environment(first, seed)
    if endpoint:
        materials["payload sha256"] = endpoint.payload.digest
        made_in["command"] = endpoint.redacted(made_in["command"])
    stage = None if options.subject_data == "training" else options.subject_data
    said = {
        "subject": subject,
        "explainer": {
            "method": way.method,
            "output": output,
            "softmax": softmax,
            "options": way.said(arguments or {}),
            "shape": list(population.x.shape[1:]),
        },
        "hardening": hardening.to_dict(),
        "noise_stream": getattr(hardening.noise, "stream", None),
        "audit": judged.result.to_dict(),
        "utility": judged.utility.to_dict() if judged.utility else None,
        "materials": materials,
        "environment": made_in,
        "notes": notes,
        "privacy": options.privacy.to_dict() if options.privacy else None,
        "canaries": options.canaries.to_dict() if options.canaries else None,
        "search": options.search,
        "native": configurations[0].result.summary() if len(configurations) > 1 else None,
        "limits": limits(judged.result, keyed=hardening.noise is not None, endpoint=endpoint is not None),
        "subject_data": stage,
    }
    report = ReportData(
        title=options.title or "audit",
        explainer="predictions alone" if alone else f"{way.method} of the predicted {explained}",
        configurations=configurations,
        provenance={},
        pictures=None
        if alone or endpoint
        else pictures(population.x, pools[0].shadows.membership[0], signals, judged.name),
        notes=tuple(notes),
        privacy=options.privacy,
        canaries=options.canaries,
        root_cause=causes,
        root_cause_sentence=cause,
        keyed=hardening.noise is not None,
        subject_data=stage,
        endpoint=endpoint.url if endpoint else None,
    )
    return AuditRun(configurations, signals, report, said, looked.findings)


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
        """The explainer of a model."""
        with self._errors():
            return self.make(forward, hardening=hardening)

    def ask(self, made: Any, x: Tensor, target: Tensor) -> Tensor:
        """Those of an explainer that is made already."""
        with self._errors():
            maps: Tensor = made.attribute(x, target=target, **self.arguments)
        return maps

    @contextmanager
    def _errors(self) -> Iterator[None]:
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
    """The explainers by their names: their own where they have one, else that of the class or function."""
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
    """What `collect_signals` asks: the released maps of a batch. It can be pickled where the explainers can.

    Args:
        methods: that explain, together.
        hardening: of each.
        softmax: the model returns logits, and its probability is explained.
        compares: natively, numbers that are none count as they would be released, as zeros.
    """

    methods: tuple[Method, ...]
    hardening: HardeningLike
    softmax: bool
    compares: bool

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor | list[Tensor]:
        if isinstance(model, Endpoint):  # which decides by itself what it explains, and how
            return model.explain(x)
        maps = [method.ask(made, x, target) for method, made in zip(self.methods, self._made(model), strict=True)]
        if self.hardening.is_none and self.compares:  # what is not released
            maps = [m.nan_to_num(0.0, 0.0, 0.0) for m in maps]
        return maps[0] if len(maps) == 1 else maps

    def hardens_again(self, model: nn.Module) -> bool:
        """Whether `of_native` can take the place of another explanation."""
        return len(self.methods) == 1 and getattr(self._made(model)[0], "hardens_again", False)

    def of_native(self, model: nn.Module, x: Tensor, target: Tensor, native: Tensor) -> Tensor:
        """The same as a call, from native maps of the batch that are known already."""
        ((method, made),) = zip(self.methods, self._made(model), strict=True)
        with method._errors():
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
"""The last model that each release was asked about, and its explainers: no part of a release, which is sent and told by
what made it."""


@dataclass(frozen=True, eq=False)
class _Way:
    """How models are asked and judged."""

    methods: tuple[Method, ...]
    output: Output
    softmax: bool
    policy: Policy
    options: AuditOptions
    recipe: str
    seed: int
    progress: Progress
    compares: bool
    store: ExplainedStore = field(default_factory=lambda: ExplainedStore(None))
    executor: Executor | None = None
    large: bool = False
    implied: Implied | None = None
    scorers: dict[int, Scorer] = field(default_factory=dict)
    private: tuple[bool | None, bool | None] = (None, None)
    """Whether the target and its references were trained with differential privacy; None: nobody says."""

    @property
    def method(self) -> str:
        """Name of the explainer, or of all that are released together."""
        return "+".join(method.name for method in self.methods)

    def said(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The options as a certificate has them: of `attribute`, and what an explainer is made with."""
        made = {method.name: {"made_with": method.made_with} for method in self.methods if method.made_with}
        first = self.methods[0].name
        if len(self.methods) == 1 and not isinstance(arguments.get(first), Mapping):
            return {**arguments, **made.get(first, {})}
        return {name: {**arguments.get(name, {}), **made.get(name, {})} for name in {**arguments, **made}}

    def explain(self, hardening: HardeningLike) -> Release:
        """What is released so hardened."""
        return Release(self.methods, hardening, self.softmax, self.compares)

    def ask(
        self,
        pools: Sequence[Pool],
        name: str,
        hardening: HardeningLike,
        keep: bool,
        asking: Sequence[Predictions],
        patience: tuple[int, ...],
        native: Signals | None = None,
    ) -> Signals:
        """What every model releases, to who asks so often; native maps that are known are hardened again.

        The attacker knows the hardening, not the key: references have another one, and no noise where he is patient.
        """
        target, others = (_keyed(hardening, self.seed, whose) for whose in ("target", "references"))
        released, attackers, quiet = (self.explain(h) for h in (target, others, others.without_noise()))
        alone, natives = self.policy.release == "prediction", None if native is None else native.attributions
        shaped = isinstance(natives, np.ndarray) and natives.shape[2] == pools[0].population.x[0].numel()
        again = shaped and len(pools) == 1 and self.executor is None and not self.options.classes
        if not again or not released.hardens_again(pools[0].shadows.models[0]):
            natives = None
        parts = []
        for i, (pool, predictions) in enumerate(zip(pools, asking, strict=True)):
            about = self._about(pool, name, hardening)
            own_class = isinstance(pool.shadows.models[0], Endpoint)  # which explains and adds noise as it likes
            if (labels := predictions.values.get("label")) is not None and self.options.labels == "own":
                about[META] = self._accuracy(pool, labels)
            parts.append(
                collect_signals(
                    pool.asked,
                    pool.population,
                    None if alone else [released, *[attackers] * (len(pool.asked.models) - 1)],
                    patience=patience,
                    predictions=predictions,
                    natives=natives,
                    labels=self.options.labels,
                    own_class=own_class,
                    without_noise=quiet if own_class or (hardening.noise is not None and not alone) else None,
                    batch_size=self.options.batch_size,
                    keep_attributions=keep,
                    largest_maps=0 if self.large else math.inf,
                    store=self.store,
                    executor=self.executor,
                    targets=(0,),
                    null=pool.null,
                    classes=None if alone else self.options.classes or None,
                    slices=pool.slices,
                    meta=about,
                    progress=named(self.progress, f"explaining ({name}{_numbered(i, pools)})"),
                )
            )
        return side_by_side(parts)

    def _about(self, pool: Pool, name: str, hardening: HardeningLike) -> dict[str, Any]:
        """What signals say about how they came about; `holdout_uses` tells configurations apart by it."""
        about: dict[str, Any] = {
            "explainer": self.method,
            "output": self.output,
            "options": repr([sorted({**m.arguments, **m.made_with}.items()) for m in self.methods]),
            "release": name,
            "seed": self.seed,
            "recipe": self.recipe,
            "asked": repr((self.policy.patience, self.options.classes)),
            "references": len(pool.shadows.models) - 1,
        }
        if any(self.private):
            about[PRIVACY] = dict(zip(("target", "references"), self.private, strict=True))
        if not hardening.is_none:
            about["hardening"] = hardening.to_json()
        (subject,) = _identity(pool.shadows.models[0]).values()
        return {**about, "subject": subject}

    def _accuracy(self, pool: Pool, labels: NDArray[np.float64]) -> dict[str, Any]:
        """How often the models of a pool are right on their non-members, and what else tells of wrong data."""
        membership, population = pool.shadows.membership, pool.population
        return measured(
            labels[: len(membership)],
            population.y.cpu().numpy(),
            membership,
            None if population.groups is None else np.asarray(population.groups),
            self.options.accuracy,
            _statistics(pool.shadows.models[0], population, membership[0], self.options.batch_size),
        )

    def look(self, pools: Sequence[Pool], hardening: HardeningLike) -> _Looked:
        """Explain a sample of the examples by each target, natively and as released."""
        released = _keyed(hardening, self.seed, "target")
        findings: list[NativeFinding] = []
        samples = []
        for i, pool in enumerate(pools):
            model, rng = pool.shadows.models[0], np.random.default_rng([self.seed, i])
            most = SAMPLED // (32 if self.options.quick else 1)
            number = min(len(pool.population), max(1, most // len(pools)))
            chosen = np.sort(rng.choice(len(pool.population), number, replace=False))
            x = pool.population.x[torch.from_numpy(chosen)]
            x = x.to(next((p.device for p in model.parameters()), x.device))
            sample = Sample.of(model, x, self.options.batch_size)
            forward = Probability(model) if self.softmax else model
            own = Watch(logs=False)
            with collecting() as told:
                for method in self.methods:
                    native = sample.explained(_asking(method, forward, hardening.none()))
                    own.add(model, method.name, (native,), inputs=(x,), outputs=sample.outputs.clone)
                    if self.compares:
                        sample = sample.beside(native, sample.explained(_asking(method, forward, released)))
            findings += own.findings(model)
            findings += [f for f in told.findings(model) if f.kind == "incomplete"]
            samples.append(sample)
        return _Looked(tuple(samples), tuple(findings))

    def judge(
        self,
        name: str,
        signals: Signals,
        native: Signals,
        inputs: NDArray[Any],
        hardening: HardeningLike,
        looked: _Looked,
    ) -> Configuration:
        """Attack one configuration; the native one beside it at one query, uncounted, as looking chooses nothing."""
        beside = signals is native and not hardening.is_none
        result = certify(
            signals,
            replace(self.policy, patience=(1,), uncounted=True) if beside else self.policy,
            inputs=None if beside and self.options.quick else inputs,
            scorers=self.scorers,
            force=self.options.force,
            seed=self.seed,
            exposed=self.options.exposed,
            progress=named(self.progress, f"attacking ({name})"),
        )
        result = replace(result, quick=self.options.quick, implied=self.implied)
        if self.policy.release == "prediction":
            return Configuration("native", "no explanation, and predictions as they are", result, None)
        if signals is native:
            return Configuration("native", "the native explanation, as it is", result, None)
        maps = None
        if native.attributions is not None and signals.attributions is not None:
            maps = native.attributions, signals.attributions
        kept = utility_of(looked.samples, maps)
        plain = hardening.to_dict()
        return Configuration(name, as_written(plain), result, kept, in_words(plain))

    def judge_endpoint(
        self, endpoint: Endpoint, signals: Signals, inputs: NDArray[Any], hardening: HardeningLike
    ) -> Configuration:
        """Attack what an endpoint answered."""
        result = certify(
            signals,
            self.policy,
            inputs=inputs,
            force=self.options.force,
            seed=self.seed,
            exposed=self.options.exposed,
            progress=named(self.progress, "attacking"),
        )
        result = replace(result, quick=self.options.quick)
        plain = hardening.to_dict()
        description = f"{as_written(plain)} as declared, and in the reference models"
        return Configuration(ENDPOINT, description, result, None, f"what {endpoint.url} answers")

    def root_cause(self, native: Signals) -> tuple[tuple[Ablation, ...], str]:
        """Which property of the native maps carries the leak."""
        if len(native.models) < FEWEST_FOR_NULL:
            return (), ""
        rows, which = sample(native, self.policy, trains=any(r.learns for r in fitting(native)), seed=self.seed)
        causes = root_cause(
            native, rows=rows, seed=self.seed, fpr=self.policy.fpr, progress=named(self.progress, "root cause")
        )
        return causes, f"{cause_sentence(causes)} {which}" if causes else ""


def _begin(
    endpoint: Endpoint,
    population: Population,
    member: NDArray[np.bool_],
    policy: Policy,
    options: AuditOptions,
    methods: tuple[Method, ...],
    like: nn.Module | None,
    hardening: HardeningLike,
    progress: Progress,
) -> Policy:
    """Everything that can be wrong with an audit of an endpoint, before anything long; the policy that judges it.

    Args:
        endpoint: the target.
        population: the examples.
        member: of them.
        policy: as given.
        options: likewise.
        methods: that explain reference models.
        like: a model like these, by which the shape of their maps is told; None: there are none.
        hardening: of what they release.
        progress: told about the plain questions, which are asked now.
    """
    policy = endpoint.judged_by(policy)
    if options.privacy is not None:
        raise InputError("the privacy statement is about a model's weights, and an endpoint shows none: leave it out")
    if options.labels == "foreign":
        raise InputError("an endpoint is audited for the data that its model was trained on last, not for pre-training")
    if options.classes or len(methods) > 1:
        raise InputError("an endpoint gives one explanation, of the class that it predicts: name one explainer alone")
    endpoint.plan(len(population), policy.patience)
    shape = None
    if like is not None:
        x = population.x[:2].to(next((p.device for p in like.parameters()), torch.device("cpu")))
        mode = like.training
        with torch.no_grad():
            target = like.eval()(x).argmax(1)
        shape = tuple(methods[0](like, hardening, x, target).shape[1:])
        like.train(mode)
    endpoint.begin(population, np.asarray(member, dtype=bool), shape, progress)
    return policy


def _identity(target: nn.Module) -> dict[str, str]:
    """Digest of a target: of the model, or of what an endpoint answered."""
    if isinstance(target, Endpoint):
        return {ANSWERS_DIGEST: target.digest}
    return {MODEL_DIGEST: model_digest(target).hex()}


def _asking(method: Method, forward: Any, hardening: HardeningLike) -> Callable[[Tensor, Tensor], Tensor]:
    """What gives the maps of a batch for the classes."""
    return lambda x, target: method(forward, hardening, x, target)


class _Looked(NamedTuple):
    """What a sample of the explanations showed."""

    samples: tuple[Sample, ...]
    findings: tuple[NativeFinding, ...]


def _numbered(i: int, pools: Sequence[Pool]) -> str:
    """Which of several pools."""
    return f", pool {i + 1}" if len(pools) > 1 else ""


def _keyed(hardening: HardeningLike, seed: int, whose: str) -> HardeningLike:
    """With a key of this audit's own, one for the target and another for the reference models."""
    return hardening.with_key(hashlib.blake2b(f"audit {seed} {whose}".encode(), digest_size=32).digest())


def checked_member(population: Population, member: NDArray[np.bool_], references: int) -> NDArray[np.bool_]:
    """Who is a member, as an array.

    Raises:
        InputError: not one bool for each example; or fewer reference models than an audit takes, and not 0.
    """
    member = np.asarray(member)
    if member.dtype != np.bool_ or member.shape != (len(population),):
        raise InputError(f"expected member (bool) of shape ({len(population)},), got {member.dtype} {member.shape}")
    if references and references < FEWEST_REFERENCES:
        raise InputError(f"references: expected 0 or at least {FEWEST_REFERENCES}, got {references}")
    return member


def name_of(hardening: HardeningLike) -> str:
    """native, recommended or custom."""
    if hardening.is_none:
        return "native"
    recommended = getattr(hardening, "recommended", None)
    return "recommended" if recommended and recommended().to_dict() == hardening.to_dict() else "custom"


def _as_text(recipe: Any) -> str:
    """How reference models were trained, in TOML or, for a function or an estimator, in its own words."""
    if recipe is None or isinstance(recipe, Recipe):
        return "" if recipe is None else recipe.to_toml()
    return str(getattr(recipe, "__qualname__", None) or recipe)


def gives_probabilities(model: nn.Module, x: Tensor) -> bool:
    """Whether a model's outputs are probabilities already; one example is too few to tell."""
    device = next((p.device for p in model.parameters()), x.device)
    with torch.no_grad():
        out = model(x.to(device))
    return len(out) > 1 and are_probabilities(out)


def _check_privacy(options: AuditOptions, target: nn.Module) -> None:
    """The statement must be of this very model's training, and the canaries of that training, and not against it."""
    stated, found = options.privacy, options.canaries
    if stated is not None:
        try:
            stated.check_model(target)
        except RefusedError as error:
            raise InputError(str(error)) from None
    if found is not None:
        check_certifiable(found)
    if stated is None or found is None:
        return
    if found.claim.mechanism not in stated.phases:
        raise InputError(
            f"the canaries are about another training than the privacy statement: {found.claim.mechanism},"
            f" not {', '.join(map(str, stated.phases))}; audit the training that was stated"
        )
    if found.keeps_claim is False:
        raise InputError(f"the canaries refute the privacy statement, which cannot be certified: {found}")


def _implied(options: AuditOptions, policy: Policy, pools: Sequence[Pool]) -> tuple[Implied | None, list[str]]:
    """What the stated guarantee implies for the scored examples, or in a note why it is not about them."""
    if (stated := options.privacy) is None:
        return None, []
    why = ""
    if len(pools) > 1:
        why = "it is about one model, and several are audited"
    elif options.subject_data == "pre-training":
        why = "it is about the fine-tuning data, and the audit about the pre-training data"
    elif (pools[0].population.groups is not None) != (stated.unit == "person"):
        why = (
            "it is about persons, and the data do not say whose each example is (groups)"
            if stated.unit == "person"
            else "it is about single records, and the examples belong together in groups"
        )
    found = None if why else Implied.of(stated, policy.fpr)
    if found is None:
        why = why or "its epsilon is infinite"
        return None, [f"Nothing follows from the privacy statement for the examples that were scored: {why}."]
    return found, []


def _group_notes(population: Population, member: NDArray[np.bool_]) -> list[str]:
    """What it means that the target trained on a part of a group."""
    if population.groups is None:
        return []
    _, group = np.unique(population.groups, return_inverse=True)
    sides = [np.bincount(group, weights=side) > 0 for side in (member, ~member)]
    split = int((sides[0] & sides[1]).sum())
    if not split:
        return []
    return [
        f"{split} of {len(sides[0])} groups have members and non-members of the model: their non-members are more like"
        " members than a stranger's examples, so that less is found."
    ]


def _fit_notes(
    target: nn.Module, population: Population, member: NDArray[np.bool_], options: AuditOptions
) -> list[str]:
    """Accuracy on members and non-members, and what it says about the data; of foreign labels, that there is none."""
    if member.all() or not member.any():
        raise InputError(f"member marks {int(member.sum())} of {len(member)} examples; an audit needs both sides")
    if options.labels == "foreign":
        return [
            f"Members are {int(member.sum()):,} of {len(member):,} examples of the pre-training data, whose labels"
            f" ({len(torch.unique(population.y)):,} classes) are of another task than the model's, so that there is no"
            " accuracy and no loss on them."
        ]
    batch_size = options.batch_size
    device, hits = next((p.device for p in target.parameters()), torch.device("cpu")), []
    with torch.no_grad():
        for start in range(0, len(population), batch_size):
            part = slice(start, start + batch_size)
            predicted = target(population.x[part].to(device)).argmax(1).cpu()
            hits.append((predicted == population.y[part]).numpy())
    hit = np.concatenate(hits)
    inside, outside = float(hit[member].mean()), float(hit[~member].mean())
    notes = [f"Accuracy of the model: {inside:.1%} on members, {outside:.1%} on non-members."]
    if hardly_better_than_guessing(inside, len(torch.unique(population.y))):
        notes.append("It is hardly better than guessing on its members: are the labels and the scaling of x right?")
    groups = None if population.groups is None else np.asarray(population.groups)
    wrong = [below_stated(Hits.of(hit, member, groups), options.accuracy)]
    seen = _statistics(target, population, member, batch_size)
    if seen is not None and (seen.divergence > UNUSUAL or seen.impossible):
        wrong.append(str(seen))
    if said := "; ".join(filter(None, wrong)):
        told = f"{said[:1].upper()}{said[1:]}: {ADVICE}."
        warnings.warn(told, DataWarning, stacklevel=4)
        notes.append(told)
    return notes


def _statistics(
    target: nn.Module, population: Population, member: NDArray[np.bool_], batch_size: int
) -> Statistics | None:
    """Of the target's first batch normalisation, on some of its members."""
    some = np.flatnonzero(member)[:LOOKED_AT_MEMBERS]
    return Statistics.of(target, population.x[torch.from_numpy(some)], batch_size)


def hardly_better_than_guessing(accuracy: float, classes: int) -> bool:
    """Whether an accuracy, from 0 to 1, hints at wrong labels or scaling: half above chance of many classes, five
    percentage points above that of a few.

    >>> hardly_better_than_guessing(0.7, 2), hardly_better_than_guessing(0.54, 2), hardly_better_than_guessing(0.12, 10)
    (False, True, True)
    """
    return accuracy < 1 / classes + min(0.5 / classes, 0.05)
