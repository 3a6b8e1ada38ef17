"""The plan of an audit, from counted calls and measured times: what it costs here, and what it can decide at best.
Nothing is written, and no answer on which a verdict would rest is read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain.audit.answers import DITHERS_WITHOUT_NOISE, ExplainModel, predict
from safexplain.audit.attacks.suite import MIN_FOR_NULL
from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.probe import CanaryProbe, runs_within, stages_of
from safexplain.audit.canaries.run import Setting, Threshold, blocks_of, scores_of
from safexplain.audit.controls.splits import Splits, copies_together
from safexplain.audit.queries import Population, Queries, levels_of
from safexplain.audit.question import Look, Question, Release
from safexplain.audit.references.fine_tuning import FineTune, fine_tune
from safexplain.audit.references.parallel import parallel
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Repeated, Shadows, groups_by_steps, is_batchable, train_shadows
from safexplain.audit.report.tables import NATIVE
from safexplain.audit.run import SAMPLED, Models
from safexplain.audit.signals import LARGEST_MAPS
from safexplain.errors import InputError
from safexplain.verdict.canaries.result import CanaryResult, Claim, Errors, ScenarioName
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import best_certifiable, examples_needed
from safexplain.verdict.stats.lower_bounds import CHOOSING, BoundMethod

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

BUDGET = 6.0  # approximate seconds of measuring

ATTACK_START, ATTACK_NUMBER, ATTACK_MAP = 1.0, 3e-5, 2e-7
"""Seconds of all attacks and controls on one release, by `audit.benchmarks.audit_cost` on one core of 2024: fixed; per
level, model and example; and per number of the maps."""

CAUSE_NUMBER = 4e-7  # seconds of the root cause per number of the native maps, likewise
FEWEST_TO_FIT = 64  # examples on which an estimator is fitted first
now = time.perf_counter  # the clock in seconds
GROWTH = 8.0  # the next amount is at most this many times the last one
STEEPEST = 3.0  # the time of a fit grows with at most this power of the number of examples


@dataclass(frozen=True)
class Stage:
    """A part of an audit, by its name in progress: `count` units of work, and how it was estimated (`says`)."""

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
    """Seconds on this machine now: `training` a reference model, a query's `label`, a `native` and a `released`
    explanation (of the hardening alone if native maps are hardened again), and `attacking` one release."""

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
        memory_bytes: approximate peak memory, excluding GPU memory.
        disk_bytes: files of the run directory.
        best_certifiable: smallest limit that this sample certifies with a probability of 90 % if nothing leaks; for
            canaries, the largest lower bound on epsilon that the runs could prove.
        limit: the policy's limit; for canaries the claimed epsilon.
        claim: the quantity of both: "excess", "whole", or "epsilon".
        members, non_members: units that will be scored; for canaries, runs on D and D'.
        needed: scored examples, half of them members, that the limit requires; 0: there are enough.
        obstacles: reasons why nothing can be certified.
        notes: what the plan does not cover.
        took: seconds of planning.
        examples: size of the population, of which `scored` are scored; 0 for canaries.
        references: reference models, which answer with the target so many queries per example (`patience`).
        rates: the measured rates.
        later: reference models, scored examples and seconds of each further look.
    """

    stages: tuple[Stage, ...]
    memory_bytes: int
    disk_bytes: int
    best_certifiable: float
    limit: float
    claim: str
    members: int
    non_members: int
    needed: int = 0
    obstacles: tuple[str, ...] = ()
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
        """Whether the policy's limit could be certified if nothing leaks; for canaries, the claim be refuted."""
        if self.claim == "epsilon":
            return self.best_certifiable >= self.limit
        return self.best_certifiable <= self.limit and not self.obstacles

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
    then: FineTune | None = None,
    budget: float = BUDGET,
    **question: Any,
) -> Plan:
    """Measure in a few seconds what `audit` with the same arguments will cost, and what it can decide at best.

    Args:
        model: see `audit`. An `Endpoint` is not queried.
        population: see `audit`.
        recipe: see `audit`.
        then: how reference models are fine-tuned after their training, for an audit of pre-training data.
        budget: approximate seconds of measuring. One step, fit or explanation may take longer.
        question: as in `audit`. Models in `cache` count as finished.

    Raises:
        InputError, ConfigurationError: as `audit`.
    """
    return planned(Question(model, population, recipe, **question), then=then, budget=budget)


def planned(question: Question, *, then: FineTune | None = None, budget: float = BUDGET) -> Plan:
    """`plan_audit` of a question."""
    looks = question.looks
    question = question.at(looks[0])
    policy, options, endpoint, place = question.policy, question.options, question.endpoint, question.place
    trained, rows = question.shadows, question.scored_rows
    number = len(trained.models) if trained is not None else 0 if question.recipe is None else looks[0].references
    scored, n, level = question.population.part(rows), len(rows), max(levels_of(policy.patience), default=0)
    null = int(1 + number < MIN_FOR_NULL and question.build is not None)
    m, twice = 1 + number + null, question.compares
    clock, stages, rates, notes = Clock(place, budget), list[Stage](), Rates(), list[str]()
    if parallel():
        notes.append("The times are for one process; the speed-up of several processes is not planned.")
    like: nn.Module | None = question.target
    if endpoint is not None:
        like = trained.models[0] if trained is not None and number else None
        like = question.build(question.seed).to(place).eval() if like is None and question.build else like
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        question.progress("planning", 0, 3, "training")
        if trained is None and number:
            kept = [] if question.cache_folder is None else list(question.cache_folder.glob("*"))
            done = sum(p.suffix in (".pt", ".model") and not p.name.endswith(".partial.pt") for p in kept)
            finished = min(done, number)
            seconds, says = (0.0, "all trained") if finished == number else _training_seconds(clock, question, number)
            rates = replace(rates, training=seconds / number)
            says += f"; {finished} are finished" if finished else ""
            stage = f"{'training' if then is None else 'pre-training'} reference models"
            stages.append(Stage(stage, rates.training * (number - finished), number, "models", says))
        if then is not None and number and question.build is not None:
            tuned = _tuning_seconds(clock, then, question.build(question.seed).to(place).eval(), question.seed)
            stages.append(Stage("fine-tuning reference models", tuned * number, number, "models"))
        if endpoint is not None:
            asks = endpoint.plan(n, policy.patience)
            stages.append(Stage("asking the endpoint", asks.seconds, asks.questions, "questions", f"{asks}"))
        if like is None:
            notes.append("Without reference models, the time of explanations cannot be measured beforehand.")
        else:
            question.progress("planning", 1, 3, "asking")
            draw, label = _label_seconds(clock, question, scored, like)
            rates, labels = replace(rates, label=label), n * m * (1 + level)
            local = labels - (n * (1 + level) if endpoint else 0)
            stages.append(Stage("asking for labels", local * label + n * level * draw, labels, "queries"))
            if question.explains:
                question.progress("planning", 2, 3, "explaining")
                native, released, again = _explaining_seconds(clock, question, scored, like)
                rates = replace(rates, native=native, released=released)
                often, each = min(level, DITHERS_WITHOUT_NOISE), n * (1 + len(options.classes))
                patient = level if endpoint is not None or question.hardening.noise is not None else often
                every = each * ((1 + null) * (1 + patient) + number * (1 + often))
                if endpoint is not None:
                    local = n * number * (1 + often)
                    stages.append(Stage("explaining (endpoint)", local * released, every, "explanations"))
                else:
                    once = each * m if twice else every
                    sampled = min(SAMPLED, n) * (native + released)
                    stages.append(Stage("explaining (native)", once * native + sampled, once, "explanations"))
                if twice:
                    seconds = every * (native + released if again else released) - again * n * m * native
                    every -= again * n * m
                    stages.append(Stage(f"explaining ({list(question.releases)[-1]})", seconds, every, "explanations"))
    numbers, maps, copies = question.map_numbers(m * n), question.map_bytes(m * n), len(policy.patience) + twice
    attacking = ATTACK_START + len(policy.patience) * (m * n * ATTACK_NUMBER + numbers * ATTACK_MAP)
    rates = replace(rates, attacking=attacking)
    for name in question.releases:
        compared = name == NATIVE and twice  # attacked at one query
        title = "attacking" if endpoint else f"attacking ({name})"
        stages.append(Stage(title, attacking / len(policy.patience) if compared else attacking))
    if question.explains and endpoint is None and m >= MIN_FOR_NULL:
        stages.append(Stage("root cause", numbers * CAUSE_NUMBER))
    question.progress("planning", 3, 3, "done")
    weights = 0 if like is None else sum(t.numel() * t.element_size() for t in (*like.parameters(), *like.buffers()))
    held = 8 * 20 * copies * m * n + (0 if maps > LARGEST_MAPS else maps)
    cached = weights * number if question.cache is not None and question.build is not None and trained is None else 0
    units = _units(scored, question.member[rows], question.target, policy, number)
    best = best_certifiable(policy, *units)
    return Plan(
        tuple(stages),
        memory_bytes=resident() + weights * (number + 3) + held,
        disk_bytes=cached + held + (2 * maps if maps > LARGEST_MAPS else 0),
        best_certifiable=best,
        limit=policy.limit,
        claim=policy.claim,
        members=units[0],
        non_members=units[1],
        needed=examples_needed(policy) if best > policy.limit else 0,
        obstacles=_obstacles(question, number),
        notes=tuple(notes),
        took=clock.spent,
        examples=len(question.population),
        scored=n,
        references=number,
        patience=policy.patience,
        rates=rates,
        later=tuple(
            (look.references, look.scored, _seconds(look, before, looks[0], stages)) for before, look in pairwise(looks)
        ),
    )


@dataclass(eq=False)
class Clock:
    """Seconds of calls on a device, whose queue is emptied before and after; `budget` is for all measuring."""

    device: torch.device
    budget: float
    began: float = field(default_factory=time.perf_counter)

    def __call__(self, call: Callable[[], Any]) -> float:
        """Seconds of one call."""
        self._wait()
        start = now()
        call()
        self._wait()
        return now() - start

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.began

    def share(self, of: float) -> float:
        """Seconds of a share of the budget, or a tenth of that once the budget is used up."""
        return of * self.budget if self.spent < 1.25 * self.budget else 0.1 * of * self.budget

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def rate(clock: Clock, work: Callable[[int], Any], most: int, seconds: float, *, start: int = 1) -> float:
    """Seconds per unit of `work(units)`, without fixed costs: the slope between two amounts, measured in `seconds`."""
    amount, before = max(1, min(start, most)), (0, 0.0)
    clock(partial(work, amount))  # prepares what later calls share, which may take far longer than they do
    taken = clock(partial(work, amount))
    while amount < most and taken < seconds / 3:
        larger = min(most, max(amount + 1, int(amount * min(GROWTH, seconds / 1.5 / max(taken, 1e-6)))))
        before, amount = (amount, taken), larger
        taken = clock(partial(work, amount))
    few, short = before
    plain = taken / amount
    return min(max((taken - short) / (amount - few), plain / 3), plain)


def _training_seconds(clock: Clock, question: Question, number: int) -> tuple[float, str]:
    """Seconds to train `number` reference models, by a few steps or a small fit, and how they were estimated."""
    population, how, target = question.population, question.recipe, None if question.endpoint else question.target
    repeated, seconds = Repeated.of(how, question.build, target, question.member), clock.share(0.25)
    halves = population.flip(number, seed=question.seed).sum(1)
    counts = halves if repeated.members is None else np.full(number, repeated.members)
    rows, full = _mixed_rows(population, question.seed), int(counts.mean())

    def train(examples: int, together: int, recipe: Any) -> None:
        few, everybody = population.part(rows[:examples]), np.ones((together, examples), dtype=bool)
        train_shadows(few, recipe, build=repeated.build, membership=everybody, seed=question.seed, device=clock.device)

    if not isinstance(how, Recipe):
        return _fit_seconds(clock, lambda examples: train(examples, 1, how), full, seconds, number)
    if (dp := how.dp) is not None:
        size = how.batch_size / full if dp.sample_rate is None else dp.sample_rate
        steps, many = dp.steps or max(1, round(how.epochs / size)), number if dp.trainable == "head" else 1
        each = rate(clock, lambda k: train(full, many, replace(how, dp=replace(dp, steps=k))), steps, seconds)
        return each * steps * number / many, f"{steps} steps each, with differential privacy"
    recipe, groups = replace(how, compile=False), [[i] for i in range(number)]
    if question.build is not None and is_batchable(question.build(question.seed), recipe):
        groups = groups_by_steps(recipe, dict(enumerate(map(int, counts))))

    def steps_of(amount: int) -> None:
        examples = min(full, amount * recipe.batch_size)
        epochs = max(1, round(amount / recipe.steps_per_epoch(examples)))
        train(examples, round(number / len(groups)), replace(recipe, epochs=epochs))

    steps = recipe.steps_per_epoch(full) * recipe.epochs
    each = rate(clock, steps_of, steps, seconds)
    return each * steps * len(groups), f"{steps} steps each{', as if not compiled' if how.compile else ''}"


def _fit_seconds(clock: Clock, fit: Any, full: int, seconds: float, number: int) -> tuple[float, str]:
    """The same by fits of growing samples, up to all members if that is short, and a power law beyond."""
    rows, fits = min(full, FEWEST_TO_FIT), list[tuple[int, float]]()
    fit(rows)
    while not fits or (fits[-1][0] < full and fits[-1][1] < seconds / 3):
        fits.append((rows, clock(partial(fit, rows))))
        rows = full if fits[-1][1] * full / rows < seconds else min(full, 2 * rows)
    (few, short), (many, long) = fits[-2:] if len(fits) > 1 else [(0, 0.0), *fits]
    power = float(np.clip(np.log(long / short) / np.log(many / few), 0, STEEPEST)) if few and short > 0 else 1.0
    return long * (full / many) ** power * number, f"by a fit of {many:,} of {full:,} examples"


def _tuning_seconds(clock: Clock, how: FineTune, like: nn.Module, seed: int) -> float:
    start = Shadows((like,), np.ones((1, 2), dtype=bool))

    def work(epochs: int) -> None:
        fine_tune(start, replace(how, recipe=replace(how.recipe, epochs=epochs)), seed=seed, device=clock.device)

    return rate(clock, work, how.recipe.epochs, clock.share(0.1)) * how.recipe.epochs


def _label_seconds(clock: Clock, question: Question, scored: Population, like: nn.Module) -> tuple[float, float]:
    """Seconds to draw one query, and to predict its label."""
    n, seconds, rows = len(scored), clock.share(0.1), _mixed_rows(scored, question.seed)
    queries = Queries.of(scored, question.dither)
    draw = rate(clock, lambda number: queries(range(number), 0), min(n, 256), seconds / 10)

    def work(amount: int) -> None:
        few = scored.part(rows[: max(amount, 2)])
        _predicted(question, few, like, (1, max(1, amount // len(few) - 1)))

    return draw, max(rate(clock, work, 32 * n, seconds, start=min(n, 8)) - draw, 0.0)


def _predicted(question: Question, few: Population, like: nn.Module, patience: tuple[int, ...]) -> Any:
    options, alone = question.options, Shadows((like,), np.ones((1, len(few)), dtype=bool))
    how = {"dither": question.dither, "labels": options.labels, "batch_size": options.batch_size}
    return predict(alone, few, patience=patience, **how)  # type: ignore[arg-type]


def _explaining_seconds(
    clock: Clock, question: Question, scored: Population, like: nn.Module
) -> tuple[float, float, bool]:
    """Seconds of a native and of a released explanation (of the hardening alone if native maps are hardened again),
    and whether they are."""
    options, rows = question.options, _mixed_rows(scored, question.seed)

    def seconds(release: Release, share: float, start: int = 2) -> float:
        def work(amount: int) -> None:
            few = scored.part(rows[: max(amount, 2)])
            labels = _predicted(question, few, like, (1,)).label[0]
            ExplainModel(
                "the model", release, release, few.x, Queries.of(few, question.dither), (), 0, options.classes, False,
                options.batch_size, True,
            )(like, labels)  # fmt: skip

        return rate(clock, work, len(scored), clock.share(share), start=start) / (1 + len(options.classes))

    softmax = question.puts_softmax(like)
    native = seconds(question.released_by(question.hardening.none(), softmax), 0.25)
    keyed = question.released_by(question.keyed("references"), softmax)
    again = question.compares and not options.classes and keyed.hardens_again(like)
    if question.hardening.is_none or native > clock.share(0.05):  # and then the hardening is a small part
        return native, 0.0 if again else native, again
    released = seconds(keyed, 0.15, int(np.clip(clock.share(0.04) / native / 5, 2, len(scored))))
    return native, max(released - native, 0.0) if again else released, again


def _mixed_rows(population: Population, seed: int) -> NDArray[np.int64]:
    """The examples in random order, but one of each class first, so that any two of them are a population."""
    order = np.random.default_rng([seed, 0x91A]).permutation(len(population))
    first = np.unique(population.y.cpu().numpy()[order], return_index=True)[1]
    return np.concatenate([order[first], np.delete(order, first)])


def _seconds(look: Look, before: Look, first: Look, stages: Sequence[Stage]) -> float:
    """Of a later look: new models are trained, and all models answer about all its examples."""
    training = sum(s.seconds for s in stages if s.name.startswith("training"))
    new = (look.references - before.references) / first.references
    return (sum(s.seconds for s in stages) - training) * look.times(first) + training * new


def _units(
    scored: Population, member: NDArray[np.bool_], target: nn.Module, policy: Policy, references: int
) -> tuple[int, int]:
    """Independent members and non-members that the verdict rests on."""
    signals, _ = copies_together(Models(scored, Shadows((target,), member[None])).signals())
    certifies = Splits.of(signals, policy, trains=references > 0).certification
    groups = np.arange(len(certifies)) if signals.groups is None else signals.groups
    inside, outside = (len(np.unique(groups[certifies & side])) for side in (member, ~member))
    if not (inside and outside):
        raise InputError(f"expected members and non-members in the certification split, got {inside} and {outside}")
    return inside, outside


def _obstacles(question: Question, references: int) -> tuple[str, ...]:
    policy, options, found = question.policy, question.options, []
    if references < policy.references:
        many = f"{references or 'no'} reference model{'' if references == 1 else 's'}"
        found.append(f"the attacks use {many}, but the policy asks for {policy.references}")
    if options.quick:
        found.append("a quick look certifies nothing")
    if policy.suite:
        found.append("the policy's suite may leave out applicable attacks, and then nothing is certified")
    return tuple(found)


def resident() -> int:
    """Peak memory of this process so far in bytes; 0 where the system does not report it."""
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


WARM, TIMED = 1, 6  # steps of the two timed runs, whose difference leaves out fixed costs
GRADIENT_TRAININGS = 3  # trainings that craft a gradient canary; the others need one


def plan_canaries(
    setting: Setting,
    scenarios: Sequence[ScenarioName],
    *,
    runs: int = 1000,
    method: BoundMethod = "pld",
    threshold: Threshold = "auto",
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
) -> Plan:
    """What `run_canaries` will cost for each scenario, and the largest lower bound on epsilon that it could prove."""
    began, placed = time.perf_counter(), setting.to(device)
    block = len(blocks_of(runs, setting.network.parameters, placed.x.device)[0])
    each, alone = _run_seconds(placed, min(runs, block * torch.get_num_threads())), 2 * _run_seconds(placed, 2)
    stages = []
    for name in (name for name in scenarios if name != "worst-case"):
        crafting = (GRADIENT_TRAININGS if name == "gradient" else 1) * alone
        stages.append(Stage(f"{name}: crafting", crafting, 1, "canary"))
        stages.append(Stage(f"{name}: training", runs * each, runs, "runs", f"{setting.recipe.steps:,} steps each"))
    centred = set(scenarios) == {"worst-case"} or ("gradient" in scenarios and setting.recipe.optimizer == "sgd")
    fixed = centred if threshold == "auto" else threshold != "split"
    return _plan(stages, _best(setting.claim, scenarios[0], runs, method, fixed, confidence), began)


def plan_probes(probes: Sequence[CanaryProbe], minutes: float | None = None) -> Plan:
    """The same for one training function, which is called twice: in so many minutes, or with the runs of each probe."""
    began, first = time.perf_counter(), probes[0]
    one = first.seconds_each
    if minutes is not None:
        runs = runs_within(first, minutes)
        last = stages_of(len(probes), runs)[-1][1]
        what = f"{len(probes)} scenarios, up to {last:,} of one"
        return _plan(
            [Stage("canaries", runs * one / first.workers, runs, "runs", what)],
            _best_of(first, last, len(probes)),
            began,
        )
    stages = []
    for probe in probes:
        name, targets = probe.scenario, probe.targets
        if name != "outlier":
            crafting = one * targets if name == "gradient" else one
            stages.append(Stage(f"{name}: crafting", crafting, targets, "canary", "by one whole training"))
        runs = targets * probe.runs
        stages.append(Stage(f"{name}: training", one * runs / probe.workers, runs, "runs", "by one whole training"))
    return _plan(stages, _best_of(first, first.runs, first.targets), began)


def _best_of(probe: CanaryProbe, runs: int, shares: int) -> CanaryResult:
    fixed, confidence = not isinstance(probe.threshold, str), 1 - (1 - probe.confidence) / shares
    return _best(probe.claim, probe.scenario, runs, probe.method, fixed, confidence)


def _run_seconds(setting: Setting, runs: int) -> float:
    taken = {}
    for steps in (WARM, TIMED):
        short = replace(setting, recipe=replace(setting.recipe, steps=steps), claim=setting.claim.after(steps))
        start = time.perf_counter()
        scores_of(short, GradientCanary(0, 0), runs, seed=0, places=[setting.x.device])
        taken[steps] = time.perf_counter() - start
    plain, slope = taken[TIMED] / TIMED, (taken[TIMED] - taken[WARM]) / (TIMED - WARM)
    return min(max(slope, plain / 3), plain) * setting.recipe.steps / runs


def _best(
    claim: Claim, name: ScenarioName, runs: int, method: BoundMethod, fixed: bool, confidence: float
) -> CanaryResult:
    """The result without errors, at a threshold that is fixed or chosen on some of the runs."""
    d, d_prime = (n if fixed else n - max(1, round(CHOOSING * n)) for n in (runs - runs // 2, runs // 2))
    steps = 1 if claim.mechanism is None else claim.mechanism.steps
    return CanaryResult(name, claim, method, confidence, (Errors(steps, 0.0, 0, d_prime, 0, d),), runs, 0.0)


def _plan(stages: Sequence[Stage], best: CanaryResult, began: float) -> Plan:
    limit, at = best.claim.substitute or 0.0, best.errors[-1]
    shortfall = (
        f"even without errors, so many runs prove at most epsilon {best.ceiling:.2f}, less than the claim of"
        f" {limit:.2f}: give more --runs"
    )
    return Plan(
        tuple(stages),
        memory_bytes=resident(),
        disk_bytes=1 << 20,
        best_certifiable=best.ceiling,
        limit=limit,
        claim="epsilon",
        members=at.positives,
        non_members=at.negatives,
        notes=(*((shortfall,) if best.ceiling < limit else ()), "With --resume, finished runs are counted again."),
        took=time.perf_counter() - began,
    )
