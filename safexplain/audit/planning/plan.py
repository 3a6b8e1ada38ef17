"""The plan of an audit: what it will do, how long that takes here, what it needs, and what it can decide at best.

    reference models   models x epochs x steps of the recipe, in the groups in which they train
    labels             models x examples x (1 + the highest patience)
    explanations       the target answers every query, reference models the plain one and four more without noise
    attacks            what they cost on made-up signals of few examples, as a straight line in the examples

Nothing is written, and nothing is looked at that a verdict would rest on: no attack sees the population.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain.audit.attacks.scoring import FEWEST_FOR_NULL
from safexplain.audit.collect import DITHERS_WITHOUT_NOISE
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.planning.attacking import MadeUp, attacking, root_causes, saving
from safexplain.audit.planning.measure import Asker, Clock, Training, rate, training
from safexplain.audit.population import Population
from safexplain.audit.queries import (
    Dither,
    Explain,
    levels_of,
)
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.fine_tuning import FineTune, fine_tune
from safexplain.audit.references.shadows import Build, Repeated, Shadows, train_shadows
from safexplain.audit.run import (
    FEWEST_REFERENCES,
    LOOKED_AT,
    SAMPLED,
    AuditOptions,
    HardeningLike,
    Output,
    Pool,
    Release,
    checked_member,
    gives_probabilities,
    methods_of,
    name_of,
)
from safexplain.audit.splits import Splits, copies_together
from safexplain.audit.storage.pieces import LARGEST_MAPS, bytes_on_disk
from safexplain.audit.utility import Sample, utility, utility_of
from safexplain.errors import ConfigurationError, InputError
from safexplain.outputs import as_module
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import best_certifiable

try:
    import resource
except ImportError:  # Windows does not tell
    resource = None  # type: ignore[assignment]

BUDGET = 40.0
"""Seconds that are measured, about."""

EXPLAINED = 32, 4
"""Examples that are explained to see what maps look like, at most and at least."""

HIGHER = (0.02, 0.05, 0.1)
"""False-positive rates that are tried where the policy's is out of reach."""

LARGEST_SAMPLE = 64.0
"""Samples more than this many times as large are not worth naming."""


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
        return {
            "stage": self.name,
            "seconds": round(self.seconds, 3),
            "count": self.count,
            "unit": self.unit,
            "says": self.says,
        }


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
        return {
            "seconds": round(self.seconds, 3),
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "best_certifiable": self.best_certifiable,
            "limit": self.limit,
            "claim": self.claim,
            "reachable": self.reachable,
            "members": self.members,
            "non_members": self.non_members,
            "stages": [stage.to_dict() for stage in self.stages],
            "obstacles": list(self.obstacles),
            "feasible": list(self.feasible),
            "notes": list(self.notes),
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
    references: int = 16,
    shadows: Shadows | None = None,
    policy: Policy | None = None,
    options: AuditOptions | None = None,
    seed: int = 0,
    cache: ModelCache | str | Path | None = None,
    device: str | torch.device | None = None,
    executor: Any = None,
    then: FineTune | None = None,
    trained_on: Population | None = None,
    budget: float = BUDGET,
    progress: Progress = silent,
) -> Plan:
    """What `audit` with the same arguments will cost, measured in less than a minute, and what it can decide at best.

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
        cache: likewise; models that are finished there are not counted. Nothing is made or written.
        device: likewise.
        executor: likewise; what several processes gain is not planned: a note says so.
        then: how reference models are fine-tuned after that, for an audit of pre-training data.
        trained_on: the pool of which they see one half each, where only a part of it is asked about.
        budget: seconds to be spent on measuring, about. One step, fit or explanation may take longer.
        progress: told what is measured.

    Raises:
        InputError, ConfigurationError: as `audit`.
    """
    policy, options = policy or Policy(), options or AuditOptions()
    member = checked_member(population, member, references if shadows is None else 0)
    if member.all() or not member.any():
        raise InputError(f"member marks {int(member.sum())} of {len(member)} examples; an audit needs both sides")
    if output not in ("probability", "logit"):
        raise ConfigurationError(f"output is probability or logit, got {output!r}")
    if isinstance(recipe, Recipe) and shadows is None and references and build is None:
        raise ConfigurationError("a Recipe trains what build(seed) makes: pass build=")
    if isinstance(model, Endpoint):
        policy = model.judged_by(policy)
    target = as_module(model, population.classes)
    if target.training:
        raise InputError("the model is in training mode, in which its answers vary; call model.eval() first")
    if device is not None:
        target = target.to(device)
    place = next((p.device for p in target.parameters()), torch.device(device or "cpu"))
    number = len(shadows.models) if shadows is not None else 0 if recipe is None else references
    planner = _Planner(
        target=target,
        population=population,
        member=member,
        methods=methods_of(explainer, arguments),
        hardening=hardening.none() if policy.release == "prediction" else hardening,
        output=output,
        references=number,
        policy=policy,
        options=options,
        seed=seed,
        clock=Clock(place, budget),
        progress=progress,
    )
    pool = trained_on or population
    repeated = Repeated.of(recipe, build, None if isinstance(target, Endpoint) else target, member)
    count = None if repeated.members is None else max(1, round(repeated.members * len(pool) / len(population)))
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        return planner.plan(_References(recipe, repeated.build, shadows, cache, then, pool, count), executor)


@dataclass(frozen=True, eq=False)
class _Planner:
    """Measures one audit, stage by stage."""

    target: nn.Module
    population: Population
    member: NDArray[np.bool_]
    methods: Sequence[Any]
    hardening: HardeningLike
    output: Output
    references: int
    policy: Policy
    options: AuditOptions
    seed: int
    clock: Clock
    progress: Progress

    def plan(self, models: _References, executor: Any) -> Plan:
        """Everything, in the order of the audit."""
        n, endpoint = len(self.population), isinstance(self.target, Endpoint)
        notes: list[str] = []
        if isinstance(models.cache, str | Path) and any((Path(models.cache) / "explained").glob("*")):
            notes.append("Models that were explained already, before an interruption, are counted again.")
        if executor is not None:
            notes.append("The times are those of one process: what the executor's processes gain is not planned.")
        self._tell("training", 0)
        trained = self._training(models)
        like = self._like(trained, models)
        null = int(1 + self.references < FEWEST_FOR_NULL and models.build is not None)
        before = "training" if models.then is None else "pre-training"
        stages = [Stage(f"{before} reference models", trained.seconds, self.references, "models", trained.says)]
        if models.then is not None and self.references and like is not None:
            self._tell("fine-tuning", 0)
            tuned, like = self._tuning(models.then, like)
            stages.append(Stage("fine-tuning reference models", tuned, self.references, "models"))
        if endpoint and like is None:
            notes.append("Without reference models nothing of the explanations or attacks can be measured beforehand.")
        alone = self.policy.release == "prediction"
        asked = _Asked.of(self, null)
        model = like if endpoint and like is not None else self.target
        attacks, disk, held = None, 0, 0
        if model is not self.target or not endpoint:
            asker = Asker(self.clock, self.population, self.options.batch_size, self.options.labels, Dither(seed=1))
            self._tell("asking", 1)
            draw, forward = asker.forward([model, like or model], self.clock.share(0.06))
            rates = None if alone else self._rates(asker, model, like or model, draw + forward)
            stages.append(self._labels(asked, draw, forward, endpoint))
            if rates is not None:
                stages += self._explaining(asked, rates, draw, endpoint)
            self._tell("attacking", 3)
            few = self._affordable(rates)
            made = self._made_up(asker, model, null, few)
            attacks = attacking(self.clock, made, n, self.clock.share(0.45), self._within("attacking", 3))
            names = ["attacking"] if endpoint else ["attacking (native)"]
            names += [f"attacking ({name_of(self.hardening)})"] if self._twice and not endpoint else []
            stages += [Stage(name, attacks.seconds(n), attacks.rows, "attacks") for name in names]
            self._tell("the rest", 4)
            if rates is not None and not endpoint:
                stages += self._causes(made)
                stages.append(self._looking(asker, rates, few))
            sized = saving(self.clock, made, n, len(names))
            stages.append(Stage("writing the files", sized.seconds, len(names) + 2, "files"))
            held, disk = sized.held, sized.bytes
            if asked.large:
                held, disk = sized.numbers, sized.bytes_of_numbers + asked.stored
                notes.append(
                    f"The maps of all models will lie on disk, {asked.stored / 2**30:.3g} GiB, as they do not fit in"
                    " memory: how long reading them takes is not planned."
                )
        if endpoint:
            assert isinstance(self.target, Endpoint)
            asks = self.target.plan(n, self.policy.patience)
            stages.append(Stage("asking the endpoint", asks.seconds, asks.questions, "questions", f"{asks}"))
        learns = attacks.learns if attacks is not None else self.references >= FEWEST_REFERENCES
        units = self._units(learns)
        best = best_certifiable(self.policy, *units)
        weights = _bytes_of(like) if like is not None else 0
        if models.kept:
            disk += weights * self.references
        self._tell("done", 5)
        return Plan(
            tuple(stage for stage in stages if stage.count),
            memory_bytes=resident() + weights * (self.references + 3) + held,
            disk_bytes=disk,
            best_certifiable=best,
            limit=self.policy.limit,
            claim=self.policy.claim,
            members=units[0],
            non_members=units[1],
            obstacles=self._obstacles(),
            feasible=_feasible(self.policy, units, best),
            notes=tuple(notes),
            took=self.clock.spent,
        )

    # ------------------------------------------------------------------------------------------------- who and what

    @property
    def _twice(self) -> bool:
        """Whether there is a released configuration beside the native one."""
        return not self.hardening.is_none

    def _like(self, trained: Training, models: _References) -> nn.Module | None:
        """A model like the references."""
        if models.shadows is not None and models.shadows.models:
            return models.shadows.models[0]
        if trained.sample is not None:
            return trained.sample
        if models.build is not None and (isinstance(self.target, Endpoint) or models.then is not None):
            torch.manual_seed(self.seed)
            return models.build(self.seed).to(self.clock.device).eval()
        return None if isinstance(self.target, Endpoint) or not self.references else self.target

    def _training(self, models: _References) -> Training:
        if models.shadows is not None or not self.references:
            return Training(0.0, 0, 0, None, "trained already" if models.shadows is not None else "none")
        pool, count = models.pool, models.members
        flipped = pool.flip(self.references, seed=self.seed)
        members = flipped if count is None else pool.draw(self.references, count, seed=self.seed)
        done = models.finished(members, self.seed, self.clock.device)
        found = training(
            self.clock,
            pool,
            models.recipe,
            members[~done],
            build=models.build,
            seed=self.seed,
            seconds=self.clock.share(0.2),
        )
        return replace(found, says=f"{found.says}; {int(done.sum())} are finished") if done.any() else found

    def _tuning(self, how: FineTune, like: nn.Module) -> tuple[float, nn.Module]:
        """Seconds of all fine-tunings, by those of a few models for a few epochs, and a model that was fine-tuned."""
        few = min(self.references, FEWEST_REFERENCES)
        start = Shadows((like,) * few, np.ones((few, 2), dtype=bool))
        found: list[nn.Module] = []

        def work(epochs: int) -> None:
            short = replace(how, recipe=replace(how.recipe, epochs=epochs))
            found[:] = fine_tune(start, short, seed=self.seed, device=self.clock.device).models

        epochs = how.recipe.epochs
        each = rate(self.clock, work, epochs, self.clock.share(0.1))
        return each * epochs * self.references / few, found[0]

    def _explain(self, model: nn.Module, hardening: HardeningLike, output: Output | None = None) -> Explain:
        x = self.population.x[:LOOKED_AT]
        softmax = (output or self.output) == "probability" and not gives_probabilities(model, x)
        return Release(tuple(self.methods), hardening, softmax, compares=True)

    def _rates(self, asker: Asker, target: nn.Module, like: nn.Module, beside: float) -> _Rates:
        """Seconds of one explanation of each kind."""
        self._tell("explaining", 2)
        keyed = self.hardening.with_key(b"a key that plans an audit, only so") if self._twice else self.hardening
        seconds, classes = self.clock.share(0.07), len(self.options.classes)

        def timed(model: nn.Module, hardening: HardeningLike) -> float:
            found = asker.explanation(model, self._explain(model, hardening), seconds, classes)
            return max(found - beside, found / 3)

        native = timed(target, self.hardening.none())
        other = native if type(like) is type(target) else timed(like, self.hardening.none())
        if not self._twice:
            return _Rates(native, other, native, other, other)
        released = timed(target, keyed)
        quiet = released if self.hardening.noise is None else timed(like, keyed.without_noise())
        return _Rates(native, other, released, max(released, quiet) if like is target else released, quiet)

    # ---------------------------------------------------------------------------------------------------- the stages

    def _labels(self, asked: _Asked, draw: float, forward: float, endpoint: bool) -> Stage:
        here = asked.labels - (asked.examples * (1 + asked.level) if endpoint else 0)
        seconds = here * forward + asked.examples * asked.level * draw
        return Stage("asking for labels", seconds, asked.labels, "queries")

    def _explaining(self, asked: _Asked, rates: _Rates, draw: float, endpoint: bool) -> list[Stage]:
        n, refs, few = asked.examples, self.references, asked.few
        answers, draws = n * (1 + asked.null) * (1 + asked.level), n * ((1 + asked.null) * asked.level + refs * few)
        native = answers * rates.native + n * refs * (1 + few) * rates.other
        released = answers * rates.released + n * refs * (rates.once + few * rates.quiet)
        count, unit = asked.explanations, "explanations"
        if endpoint:
            own = n * refs * (rates.once + few * rates.quiet) + n * refs * few * draw
            return [Stage("explaining (endpoint)", own, count, unit)]
        stages = [Stage("explaining (native)", native + draws * draw, count, unit)]
        if self._twice:
            stages.append(Stage(f"explaining ({name_of(self.hardening)})", released + draws * draw, count, unit))
        return stages

    def _made_up(self, asker: Asker, model: nn.Module, null: int, few: int) -> MadeUp:
        """Made-up signals like the native ones."""
        level = 1 if max(self.policy.patience) == 1 else 3
        explain = None if self.policy.release == "prediction" else self._explain(model, self.hardening.none())
        like = asker.signals(model, explain, asker.some(few), level, classes=len(self.options.classes))
        models = 1 + self.references + null
        groups = self.population.groups
        grouped = 1.0 if groups is None else len(groups) / len(np.unique(groups))
        untrained = (models - 1,) if null else ()
        return MadeUp(
            like,
            models,
            untrained,
            self.policy,
            self.population.x[: min(512, len(self.population))].cpu().numpy(),
            grouped,
            tuple(self.options.slices),
            self.seed,
        )

    def _affordable(self, rates: _Rates | None) -> int:
        """Examples that are explained to see what maps look like."""
        most, fewest = EXPLAINED
        if rates is None:
            return most
        return int(min(max(self.clock.share(0.03) / max(3 * rates.native, 1e-9), fewest), most))

    def _causes(self, made: MadeUp) -> list[Stage]:
        """The versions of the native maps, attacked."""
        n, models = len(self.population), 1 + self.references
        if models < FEWEST_FOR_NULL:
            return []
        seconds, versions = root_causes(self.clock, made, n)
        return [Stage("root cause", seconds, versions, "versions of the maps")]

    def _looking(self, asker: Asker, rates: _Rates, affordable: int) -> Stage:
        """A sample explained natively and as released, the model asked about both, and all maps compared."""
        n = min(SAMPLED, len(self.population))
        seconds = n * (rates.native + rates.released)
        few = asker.some(min(n, affordable))
        sample = Sample.of(self.target, few.x.to(self.clock.device), self.options.batch_size)
        explain = self._explain(self.target, self.hardening.none())

        def natively(x: Tensor, target: Tensor) -> Tensor:
            found = explain(self.target, x, target)
            return found if isinstance(found, Tensor) else next(iter(found))

        maps = sample.explained(natively)
        if self._twice:
            sample = sample.beside(maps, maps)
            seconds += self.clock(lambda: utility_of((sample,))) * n / len(few)
            flat = maps.flatten(1).cpu().numpy()
            if np.any(flat):
                seconds += self.clock(lambda: utility(flat, flat)) * len(self.population) / len(few)
        return Stage("looking at a sample", seconds, n, "examples")

    # ------------------------------------------------------------------------------------------- what can be decided

    def _pool(self) -> Pool:
        return Pool(self.population, Shadows((self.target,), self.member[None]))

    def _units(self, learns: bool) -> tuple[int, int]:
        """Independent members and non-members that will be scored."""
        signals, _ = copies_together(self._pool().signals())
        scored = Splits.of(signals, self.policy, trains=learns).certification
        groups = np.arange(len(scored)) if signals.groups is None else signals.groups
        sides = [len(np.unique(groups[scored & side])) for side in (self.member, ~self.member)]
        if not all(sides):
            raise InputError(
                f"the certification split has {sides[0]} members and {sides[1]} non-members; it needs both"
            )
        return sides[0], sides[1]

    def _obstacles(self) -> tuple[str, ...]:
        found = []
        if self.references < self.policy.references:
            many = f"{self.references or 'no'} reference model{'' if self.references == 1 else 's'}"
            found.append(f"{many} stand behind the attacks, and the policy asks for {self.policy.references}")
        if self.options.quick:
            found.append("a quick look certifies nothing")
        if self.policy.suite:
            found.append("the policy's suite may leave out attacks that fit, and then nothing is certified")
        return tuple(found)

    # --------------------------------------------------------------------------------------------------- progress

    def _tell(self, what: str, done: int) -> None:
        self.progress("planning", done, 5, what)

    def _within(self, what: str, before: int) -> Progress:
        def tell(stage: str, done: float, total: float, note: str = "") -> None:
            self.progress("planning", before + (0.9 * done / total if total else 0.0), 5, what)

        return tell


@dataclass(frozen=True)
class _Rates:
    """Seconds of one explanation: of the target natively, of a reference natively, of the target as released, and of a
    reference once and, without noise, again."""

    native: float
    other: float
    released: float
    once: float
    quiet: float


@dataclass(frozen=True)
class _Asked:
    """How much an audit asks.

    Args:
        examples: of the population.
        level: the highest patience above one; 0: there is none.
        few: dithered queries that reference models explain.
        null: untrained models.
        labels: queries for labels, of all models.
        explanations: of one configuration, of all models.
        large: whether whole maps do not fit in memory.
        stored: bytes of these on disk.
    """

    examples: int
    level: int
    few: int
    null: int
    labels: int
    explanations: int
    large: bool
    stored: int

    @classmethod
    def of(cls, planner: _Planner, null: int) -> _Asked:
        """Of this audit."""
        n, refs = len(planner.population), planner.references
        level = max(levels_of(planner.policy.patience), default=0)
        few = min(level, DITHERS_WITHOUT_NOISE)
        labels = n * (1 + refs + null) * (1 + level)
        classes = 1 + len(planner.options.classes)
        explained = n * classes * ((1 + null) * (1 + level) + refs * (1 + few))
        configurations = 1 if isinstance(planner.target, Endpoint) or planner.hardening.is_none else 2
        copies = len(planner.policy.patience) * configurations
        features = planner.population.x[0].numel() * len(planner.methods)
        large = 4 * copies * features * (1 + refs) * n > LARGEST_MAPS and planner.policy.release != "prediction"
        stored = bytes_on_disk(copies * (1 + refs + null) * n, features)
        return cls(n, level, few, null, labels, explained, large, stored)


@dataclass(frozen=True, eq=False)
class _References:
    """How reference models come about; see `plan_audit`."""

    recipe: Recipe | Train | Any
    build: Build | None
    shadows: Shadows | None
    cache: ModelCache | str | Path | None
    then: FineTune | None
    pool: Population
    members: int | None

    @property
    def kept(self) -> bool:
        """Whether finished ones are kept in files."""
        return self.cache is not None and self.build is not None and self.shadows is None

    def finished(self, members: NDArray[np.bool_], seed: int, device: torch.device) -> NDArray[np.bool_]:
        """(models,) bool: which are in the cache. Nothing is trained, made or written."""
        nothing = np.zeros(len(members), dtype=bool)
        if not self.kept or not isinstance(self.recipe, Recipe):
            return nothing
        if isinstance(self.cache, str | Path) and not Path(self.cache).is_dir():
            return nothing
        assert self.cache is not None
        peek = _Peek(self.cache)
        train_shadows(
            self.pool, self.recipe, build=self.build, membership=members, seed=seed, device=device, cache=peek
        )
        return np.array(peek.found, dtype=bool) if len(peek.found) == len(members) else nothing


class _Peek(ModelCache):
    """Says of each model that it is there, and remembers whether it is."""

    def __init__(self, of: ModelCache | str | Path) -> None:
        super().__init__(of.folder if isinstance(of, ModelCache) else of)
        self.found: list[bool] = []

    def load(self, key: str, model: nn.Module) -> bool:
        """Always true, so that nothing is trained."""
        self.found.append(super().load(key, model))
        return True

    def save(self, key: str, model: nn.Module) -> None:
        """Nothing is written."""


def _feasible(policy: Policy, units: tuple[int, int], best: float) -> tuple[str, ...]:
    """What could be certified where the policy's limit is out of reach."""
    if best <= policy.limit:
        return ()
    name = policy.limit_name
    found = [
        f"{name} = {np.ceil(1000 * best) / 1000:.3f} in the policy is the smallest limit within reach of this sample"
    ]
    for fpr in HIGHER:
        times = fpr / policy.fpr
        higher = None if policy.max_excess is None else policy.max_excess * times
        if times <= 1 or policy.max_tpr * times > 0.5 or (higher or 0) > 0.5:
            continue
        looser = replace(policy, fpr=fpr, max_tpr=policy.max_tpr * times, max_excess=higher)
        if best_certifiable(looser, *units) <= looser.limit:
            found.append(
                f"fpr = {fpr:g} with {name} = {looser.limit:.3g}, the same multiple of what guessing finds, is within"
                " reach of this sample; it says nothing of attackers who are surer than that"
            )
            break
    if policy.claim == "excess":
        area = replace(policy, claim="auc")
        if best_certifiable(area, *units) <= area.limit:
            found.append(f'the claim "auc" with {area.limit_name} = {area.limit:.3g} is within reach of this sample')
    for factor in np.geomspace(1.0, LARGEST_SAMPLE, 49)[1:]:
        more = [round(factor * n) for n in units]
        if best_certifiable(policy, *more) <= policy.limit:
            found.append(
                f"about {more[0]:,} members and {more[1]:,} non-members that are scored would be enough for"
                f" {name} = {policy.limit:.3g}"
            )
            break
    return tuple(found)


def _bytes_of(model: nn.Module) -> int:
    """Of parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def resident() -> int:
    """Bytes that this process has held at most so far: imports, data, what measuring took; 0 where nobody tells."""
    if resource is None:
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
