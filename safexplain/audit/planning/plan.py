"""The plan of an audit: what it will do, how long that takes here, what it needs, and what it can decide at best.

    reference models   models x steps of the recipe
    labels             models x scored examples x (1 + the highest patience)
    explanations       natively the plain query, whose map is hardened again where there is no noise; as released four
                       dithered ones, of a target with noise all of them
    attacks            what they cost on made-up signals of few examples, by the number of examples

Nothing is written, and nothing is looked at that a verdict would rest on: no attack sees the population.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.scoring import FEWEST_FOR_NULL
from safexplain.audit.certify import certify
from safexplain.audit.collect import DITHERS_WITHOUT_NOISE, collect_signals
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.planning.measure import Clock, mixed_rows, rate, training_seconds
from safexplain.audit.population import Population
from safexplain.audit.queries import Dither, Explain, Queries, levels_of, predict
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.fine_tuning import FineTune, fine_tune
from safexplain.audit.references.shadows import Build, Repeated, Shadows
from safexplain.audit.root_cause import root_cause
from safexplain.audit.run import (
    LOOKED_AT,
    LOOKS,
    SAMPLED,
    AuditOptions,
    HardeningLike,
    Look,
    Output,
    Pool,
    Release,
    checked_member,
    gives_probabilities,
    looks_of,
    methods_of,
    name_of,
    scored_rows,
)
from safexplain.audit.signals import Signals
from safexplain.audit.splits import Splits, copies_together
from safexplain.audit.storage.pieces import LARGEST_MAPS, bytes_on_disk
from safexplain.errors import ConfigurationError, InputError
from safexplain.outputs import as_module
from safexplain.verdict.evidence import WHOLE_MAP, at_level, split_level
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import best_certifiable, examples_needed

try:
    import resource
except ImportError:  # Windows does not tell
    resource = None  # type: ignore[assignment]

BUDGET = 6.0
"""Seconds that are measured, about."""

MADE_UP = 128
"""Examples of the signals on which attacks are timed."""

FIXED = 0.75
"""Share of the time of attacks on so few examples that more of them do not add to: the training of trees, and what
starts up. The rest grows with the examples."""

NOISE = 0.3
"""Standard deviation of a made-up number between models, as a share of it."""


@dataclass(frozen=True)
class Stage:
    """A part of an audit.

    Args:
        name: as progress names it.
        seconds: that it will take.
        count: how much there is to do, in the units of its progress.
        unit: what these are.
        says: how that is known, in a few words.
    """

    name: str
    seconds: float
    count: int = 0
    unit: str = ""
    says: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        named = {"stage" if name == "name" else name: value for name, value in asdict(self).items()}
        return {**named, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class Rates:
    """Seconds on this machine, as busy as it is.

    Args:
        training: of one reference model.
        label: of one query for a label.
        native, released: of one explanation; released, where native maps are hardened again, of that.
        attacking: of all attacks on one configuration, about few examples.
    """

    training: float = 0.0
    label: float = 0.0
    native: float = 0.0
    released: float = 0.0
    attacking: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What an audit will cost, and what it can decide at best.

    Args:
        stages: in their order.
        memory_bytes: resident at the peak, about; of a GPU's memory nothing is said.
        disk_bytes: files of the run directory.
        best_certifiable: smallest limit that this sample certifies with a probability of 90 % if nothing leaks: of the
            policy's claim, or an epsilon (of canaries: the largest lower bound that the runs could show).
        limit: the policy's own, to compare with; of canaries the claimed epsilon.
        claim: what both are about: "excess", "whole", another claim of a policy, or "epsilon".
        members, non_members: units that will be scored; of canaries runs on D and D'.
        obstacles: why nothing would be certified, whatever is measured.
        feasible: what would be, in sentences.
        notes: what the plan does not cover.
        took: seconds that planning took.
        examples: of the population, of which `scored` are scored; 0: of canaries.
        references: reference models.
        patience: how often is asked about each example.
        rates: that were measured.
        later: reference models, scored examples and seconds of each further look, which an audit takes as long as it
            is undecided.
    """

    stages: tuple[Stage, ...]
    memory_bytes: int
    disk_bytes: int
    best_certifiable: float
    limit: float
    claim: str
    members: int
    non_members: int
    obstacles: tuple[str, ...] = ()
    feasible: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    took: float = 0.0
    examples: int = 0
    scored: int = 0
    references: int = 0
    patience: tuple[int, ...] = ()
    rates: Rates = Rates()
    later: tuple[tuple[int, int, float], ...] = ()

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def reachable(self) -> bool:
        """Whether the sample could be certified under the policy if nothing leaks; of canaries, whether the runs could
        show as much as is claimed."""
        if self.claim == "epsilon":
            return self.best_certifiable >= self.limit
        return self.best_certifiable <= self.limit and not self.obstacles

    def stage(self, name: str) -> Stage:
        """The stage of this name.

        Raises:
            KeyError: there is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        plain = asdict(replace(self, stages=()))
        del plain["rates"], plain["took"]
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
        return {
            **listed,
            "seconds": round(self.seconds, 3),
            "reachable": self.reachable,
            "stages": [stage.to_dict() for stage in self.stages],
            "planning_seconds": round(self.took, 3),
        }


def plan_audit(
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
    executor: Any = None,
    then: FineTune | None = None,
    budget: float = BUDGET,
    progress: Progress = silent,
) -> Plan:
    """What `audit` with the same arguments will cost, measured in some seconds, and what it can decide at best.

        plan = plan_audit(model, population, recipe, build=build, member=mask, explainer=HardenedIG, hardening=h)
        plan.seconds, plan.memory_bytes, plan.best_certifiable

    A few steps are trained, a few examples asked about and explained, and attacks are run on made-up signals; each rate
    is multiplied by how much of it the audit will do. The times are this machine's, as busy as it is now.

    Args:
        model: see `audit`, as all that is not explained here. An `Endpoint` is asked nothing: its part is the number of
            questions over its rate.
        population: likewise.
        recipe: likewise.
        member: likewise.
        explainer: likewise.
        hardening: likewise.
        output: likewise.
        arguments: likewise.
        build: likewise.
        references: likewise.
        shadows: likewise: trained already, they cost nothing.
        policy: likewise.
        options: likewise.
        seed: likewise.
        cache: likewise; models that are there are taken for finished ones of this audit. Nothing is made or written.
        device: likewise.
        executor: likewise; what several processes gain is not planned: a note says so.
        then: how reference models are fine-tuned after that, for an audit of pre-training data.
        budget: seconds to be spent on measuring, about. One step, fit or explanation may take longer.
        progress: told what is measured.

    Raises:
        InputError, ConfigurationError: as `audit`.
    """
    policy, options = (policy or Policy()).patient(noise=hardening.noise is not None), options or AuditOptions()
    fixed = shadows is not None or recipe is None or options.quick or isinstance(model, Endpoint)
    looks = looks_of(references, len(population), policy, options, alone=fixed)
    policy, references, _ = looks[0]
    member = checked_member(population, member, references if shadows is None else 0)
    if member.all() or not member.any():
        raise InputError(f"member marks {int(member.sum())} of {len(member)} examples; an audit needs both sides")
    if output not in ("probability", "logit"):
        raise ConfigurationError(f"output is probability or logit, got {output!r}")
    if isinstance(recipe, Recipe) and shadows is None and references and build is None:
        raise ConfigurationError("a Recipe trains what build(seed) makes: pass build=")
    endpoint = model if isinstance(model, Endpoint) else None
    policy = policy if endpoint is None else endpoint.judged_by(policy)
    target = as_module(model, population.classes)
    if target.training:
        raise InputError("the model is in training mode, in which its answers vary; call model.eval() first")
    target = target if device is None else target.to(device)
    place = next((p.device for p in target.parameters()), torch.device(device or "cpu"))
    alone = policy.release == "prediction"
    hardening = hardening.none() if alone else hardening
    number = len(shadows.models) if shadows is not None else 0 if recipe is None else references
    rows = scored_rows(population, member, policy, replace(options, scored=looks[0].scored))
    scored, inside, name = population.part(rows), member[rows], name_of(hardening)
    n, level = len(rows), max(levels_of(policy.patience), default=0)
    null = int(1 + number < FEWEST_FOR_NULL and build is not None)
    models, twice = 1 + number + null, endpoint is None and not hardening.is_none
    notes = [] if executor is None else ["The times are those of one process: an executor's gain is not planned."]
    clock, stages, rates = Clock(place, budget), list[Stage](), Rates()

    def tell(done: int, what: str) -> None:
        progress("planning", done, 4, what)

    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        tell(0, "training")
        if shadows is None and number:
            repeated = Repeated.of(recipe, build, None if endpoint else target, member)
            flipped = population.flip(number, seed=seed)
            counts = flipped.sum(1) if repeated.members is None else np.full(number, repeated.members)
            finished = min(_finished(cache), number)
            seconds, says = 0.0, "all trained"
            if finished < number:
                seconds, says = training_seconds(
                    clock, population, recipe, counts, build=repeated.build, seed=seed, seconds=clock.share(0.25)
                )
            rates = replace(rates, training=seconds / number)
            stage = f"{'training' if then is None else 'pre-training'} reference models"
            says += f"; {finished} are finished" if finished else ""
            stages.append(Stage(stage, rates.training * (number - finished), number, "models", says))
        like = target if endpoint is None else shadows.models[0] if shadows is not None and number else None
        if like is None and build is not None:
            like = build(seed).to(place).eval()
        if then is not None and number and build is not None:
            tuned = _tuning_seconds(clock, then, build(seed).to(place).eval(), seed)
            stages.append(Stage("fine-tuning reference models", tuned * number, number, "models"))
        if endpoint is not None:
            asks = endpoint.plan(n, policy.patience)
            stages.append(Stage("asking the endpoint", asks.seconds, asks.questions, "questions", f"{asks}"))
        if like is None:
            notes.append("Without reference models nothing of the explanations or attacks can be measured beforehand.")
        else:
            asker = _Asker(clock, scored, mixed_rows(scored, seed), like, options)
            tell(1, "asking")
            draw, label = asker.label_seconds(clock.share(0.1))
            rates, labels = replace(rates, label=label), n * models * (1 + level)
            here = labels - (n * (1 + level) if endpoint else 0)
            stages.append(Stage("asking for labels", here * label + n * level * draw, labels, "queries"))
            explain: Explain | None = None
            if not alone:
                tell(2, "explaining")
                methods, softmax = methods_of(explainer, arguments), output == "probability"
                softmax = softmax and not gives_probabilities(like, scored.x[:LOOKED_AT])
                explain = Release(methods, hardening.none(), softmax, compares=True)
                native = asker.explaining_seconds(explain, 0, label, clock.share(0.25))
                keyed = Release(methods, hardening.with_key(b"a key of a plan, of no secret"), softmax, compares=True)
                slow = native > clock.share(0.05)  # and then the hardening is a small part
                released = native
                if not slow:
                    start = int(np.clip(clock.share(0.04) / native / 5, 2, n))
                    released = asker.explaining_seconds(keyed, level, label, clock.share(0.15), start)
                again = twice and executor is None and not options.classes and keyed.hardens_again(like)
                rates = replace(rates, native=native, released=max(released - native, 0.0) if again else released)
                often = min(level, DITHERS_WITHOUT_NOISE)
                patient = level if endpoint is not None or hardening.noise is not None else often
                every = n * (1 + len(options.classes)) * ((1 + null) * (1 + patient) + number * (1 + often))
                if endpoint is not None:
                    own = n * number * (1 + often)
                    stages.append(Stage("explaining (endpoint)", own * released, every, "explanations"))
                else:
                    once = n * (1 + len(options.classes)) * models if twice else every
                    looked = min(SAMPLED, n) * (native + released)
                    stages.append(Stage("explaining (native)", once * native + looked, once, "explanations"))
                if twice:
                    every -= again * n * models
                    stages.append(Stage(f"explaining ({name})", every * released, every, "explanations"))
            tell(3, "attacking")
            made = asker.made_up(explain, models, null, policy, options)
            judged = replace(policy, uncounted=True)
            short = clock(lambda: certify(made, judged, seed=seed))
            rates = replace(rates, attacking=short)
            grown = short * (FIXED + (1 - FIXED) * n / len(made))
            names = ["attacking"] if endpoint else ["attacking (native)", *([f"attacking ({name})"] if twice else [])]
            stages += [Stage(each, grown / (1 + (twice and each == "attacking (native)"))) for each in names]
            if explain is not None and endpoint is None and models >= FEWEST_FOR_NULL:
                some = np.arange(len(made))
                each = rate(clock, lambda k: root_cause(made, rows=some < k), len(made), clock.share(0.05), start=16)
                stages.append(Stage("root cause", each * n))
    features = population.x[0].numel() * len(methods_of(explainer, arguments))
    copies = len(policy.patience) + twice
    maps = 0 if alone else 4 * copies * features * models * n
    weights = 0 if like is None else sum(t.numel() * t.element_size() for t in (*like.parameters(), *like.buffers()))
    held = 8 * 20 * copies * models * n + (0 if maps > LARGEST_MAPS else maps)
    kept = weights * number if cache is not None and build is not None and shadows is None else 0
    units = _units(scored, inside, target, policy, number)
    best = best_certifiable(policy, *units)
    tell(4, "done")
    return Plan(
        tuple(stages),
        memory_bytes=resident() + weights * (number + 3) + held,
        disk_bytes=kept + held + (bytes_on_disk(copies * models * n, features) if maps > LARGEST_MAPS else 0),
        best_certifiable=best,
        limit=policy.limit,
        claim=policy.claim,
        members=units[0],
        non_members=units[1],
        obstacles=_obstacles(policy, options, number),
        feasible=_feasible(policy, units, best),
        notes=tuple(notes),
        took=clock.spent,
        examples=len(population),
        scored=n,
        references=number,
        patience=policy.patience,
        rates=rates,
        later=tuple(
            (look.references, look.scored, _seconds(look, before, looks[0], stages)) for before, look in pairwise(looks)
        ),
    )


@dataclass(frozen=True, eq=False)
class _Asker:
    """Asks one model about a few examples, with the clock running.

    Args:
        clock: that measures.
        population: the scored examples.
        rows: these in mixed order.
        model: that is asked.
        options: of the audit.
    """

    clock: Clock
    population: Population
    rows: NDArray[np.int64]
    model: nn.Module
    options: AuditOptions

    def label_seconds(self, seconds: float) -> tuple[float, float]:
        """Seconds of a query that is drawn, and of one prediction for it."""
        n = len(self.population)
        queries = Queries.of(self.population, Dither())
        draw = rate(self.clock, lambda number: queries(range(number), 0), min(n, 256), seconds / 10)

        def work(amount: int) -> None:
            few = self._some(amount)
            level = max(1, amount // len(few) - 1)
            predict(self._alone(few), few, patience=(1, level), **self._how)

        return draw, max(rate(self.clock, work, 32 * n, seconds, start=min(n, 8)) - draw, 0.0)

    def explaining_seconds(self, explain: Explain, level: int, label: float, seconds: float, start: int = 2) -> float:
        """Seconds of one explanation, of the plain query or of some dithered ones too, summaries included."""
        dithers, n = min(level, DITHERS_WITHOUT_NOISE), len(self.population)
        each = rate(self.clock, lambda amount: self.signals(explain, amount, dithers), n, seconds, start=start)
        return max(each / (1 + dithers) - label, each / (1 + dithers) / 3)

    def signals(self, explain: Explain | None, number: int, dithers: int) -> Signals:
        """Of the model, about so many examples."""
        few = self._some(number)
        classes = tuple(self.options.classes) or None if explain is not None else None
        return collect_signals(
            self._alone(few), few, explain, patience=(1, dithers) if dithers > 1 else (1,), targets=(0,),
            classes=classes, **self._how,
        )  # fmt: skip

    def made_up(
        self, explain: Explain | None, models: int, null: int, policy: Policy, options: AuditOptions
    ) -> Signals:
        """Signals of the names and widths that the audit will have, about few examples: what one model says of some,
        at random for each model and each example."""
        level = max(levels_of(policy.patience), default=0)
        like, n = self.signals(explain, 2, min(level, 2)), min(MADE_UP, len(self.population))
        rng, at = np.random.default_rng(0), np.arange(n) % len(like)
        member = rng.random((models, n)) < 0.5
        member[0, :2], member[models - null :] = (True, False), False
        values: dict[str, NDArray[Any]] = {}
        stored = {**like.values, **({} if like.attributions is None else {WHOLE_MAP: like.attributions})}
        for name, seen in stored.items():
            what, here = split_level(name)
            if what == "predictions":
                continue
            shape = (models, n, *np.shape(seen)[2:])
            made = np.broadcast_to(np.asarray(seen)[0][at], shape) * np.exp(NOISE * rng.standard_normal(shape))
            if what == "label":
                made = rng.integers(self.population.classes, size=shape).astype(np.float64)
            made = np.clip(made, 0, 1) if what in ("kept", "shares") else made
            for each in (1,) if here == 1 else levels_of(policy.patience):
                values[what if each == 1 else at_level(what, each)] = made
        meta = {**like.meta, "targets": [0], "null": list(range(models - null, models)), "population": ""}
        groups = None if self.population.groups is None else self.population.groups[:n]
        slices = {"class": rng.integers(3, size=n), **{name: rng.integers(3, size=n) for name in options.slices}}
        return Signals(member, values, values.pop(WHOLE_MAP, None), meta, groups=groups, slices=slices)

    @property
    def _how(self) -> dict[str, Any]:
        return {"dither": Dither(), "labels": self.options.labels, "batch_size": self.options.batch_size}

    def _some(self, number: int) -> Population:
        return self.population.part(self.rows[: max(number, 2)])

    def _alone(self, few: Population) -> Shadows:
        return Shadows((self.model,), np.ones((1, len(few)), dtype=bool))


def _seconds(look: Look, before: Look, first: Look, stages: Sequence[Stage]) -> float:
    """What a later look takes: the models that are new are trained, and all are asked about all its examples."""
    training = sum(s.seconds for s in stages if s.name.startswith("training"))
    new = (look.references - before.references) / first.references
    return (sum(s.seconds for s in stages) - training) * look.times(first) + training * new


def _tuning_seconds(clock: Clock, how: FineTune, like: nn.Module, seed: int) -> float:
    """Seconds of one fine-tuning, by that of a few epochs."""
    start = Shadows((like,), np.ones((1, 2), dtype=bool))

    def work(epochs: int) -> None:
        fine_tune(start, replace(how, recipe=replace(how.recipe, epochs=epochs)), seed=seed, device=clock.device)

    return rate(clock, work, how.recipe.epochs, clock.share(0.1)) * how.recipe.epochs


def _finished(cache: ModelCache | str | Path | None) -> int:
    """Models that lie in a cache."""
    if cache is None:
        return 0
    folder = cache.folder if isinstance(cache, ModelCache) else Path(cache)
    return sum(p.suffix in (".pt", ".model") and not p.name.endswith(".partial.pt") for p in folder.glob("*"))


def _units(
    scored: Population, member: NDArray[np.bool_], target: nn.Module, policy: Policy, references: int
) -> tuple[int, int]:
    """Independent members and non-members that the verdict rests on."""
    signals, _ = copies_together(Pool(scored, Shadows((target,), member[None])).signals())
    certifies = Splits.of(signals, policy, trains=references > 0).certification
    groups = np.arange(len(certifies)) if signals.groups is None else signals.groups
    inside, outside = (len(np.unique(groups[certifies & side])) for side in (member, ~member))
    if not (inside and outside):
        raise InputError(f"the certification split has {inside} members and {outside} non-members; it needs both")
    return inside, outside


def _obstacles(policy: Policy, options: AuditOptions, references: int) -> tuple[str, ...]:
    found = []
    if references < policy.references:
        many = f"{references or 'no'} reference model{'' if references == 1 else 's'}"
        found.append(f"{many} stand behind the attacks, and the policy asks for {policy.references}")
    if options.quick:
        found.append("a quick look certifies nothing")
    if policy.suite:
        found.append("the policy's suite may leave out attacks that fit, and then nothing is certified")
    return tuple(found)


def _feasible(policy: Policy, units: tuple[int, int], best: float) -> tuple[str, ...]:
    """What could be certified where the policy's limit is out of reach."""
    if best <= policy.limit:
        return ()
    name = policy.limit_name
    return (
        f"{name} = {np.ceil(1000 * best) / 1000:.3f} in the policy is the smallest limit within reach of this sample",
        f"{examples_needed(policy):,} examples that are scored, half of them members, would be enough for"
        f" {name} = {policy.limit:.3g}; here are {units[0]:,} members and {units[1]:,} non-members",
    )


def resident() -> int:
    """Bytes that this process has held at most so far: imports, data, what measuring took; 0 where nobody tells."""
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
