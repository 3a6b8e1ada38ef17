"""Audit of a user's own training function, by one scenario, or by several within a time limit; and of a tuner's."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

from safexplain._digest import Undigestable, digest
from safexplain._files import atomic_file, make_folder
from safexplain._progress import Progress, show_progress, silent
from safexplain._validate import whole_number
from safexplain.audit.canaries.canary import (
    OUTLIER_SCORES,
    Canary,
    GradientCanary,
    RecordCanary,
    Reference,
    check_target,
    far_record,
    make_canary,
)
from safexplain.audit.canaries.run import (
    FinishedRuns,
    Threshold,
    checked_threshold,
    fixed_threshold,
    least_confident,
    true_class_probability,
)
from safexplain.audit.canaries.trainer import (
    SEEDED,
    Array,
    GradientHook,
    NeighbouringData,
    Run,
    Train,
    WhiteBox,
    call_watched,
    digest_of,
    in_precision,
    logits_of,
    run_all,
    same_bits,
    seed_of_run,
    seeded,
    stacked,
    takes,
)
from safexplain.audit.canaries.trainer import records as records_of
from safexplain.dp.heads import features
from safexplain.dp.sgd.finetune import DPFineTuner, has_closed_form, head_problem, trainable_linear
from safexplain.dp.sgd.sampling import InMemory
from safexplain.dp.sgd.steps import without_hooks
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.canaries.result import (
    CanaryResult,
    Claim,
    ScenarioName,
    Scores,
    WhiteBoxResult,
    check_method,
    decisive,
    judge,
    scenario_of,
)
from safexplain.verdict.stats.lower_bounds import BoundMethod

SOME = 1024  # records that are read from a map-style data set for an outlier


def given_canary(given: Any, data: Any, target: int | None, scenario: ScenarioName) -> RecordCanary:
    """The user's record canary; InputError: not a record like those of the data."""
    if target is None:
        raise ConfigurationError("canary: expected target=, the number of the record that it replaces; got None")
    z, own = data[target]
    try:
        x, y = given
        instead, label = torch.as_tensor(x).to(z), int(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"canary: expected a record (x', y') of numbers, y' a class index ({error})") from None
    if instead.shape != z.shape:
        raise InputError(f"canary: expected x' of a record's shape {tuple(z.shape)}, got {tuple(instead.shape)}")
    same = torch.equal(instead, z)
    if same and label == int(own):
        raise InputError("canary: expected a record that differs from the target; else D and D' would be the same")
    kind: Any = scenario
    if scenario != "outlier":
        kind = "mislabelled" if same else "crafted" if scenario in ("mislabelled", "gradient") else scenario
    return RecordCanary(kind, target, instead, label)


def make_outlier(data: Any, target: int) -> RecordCanary:
    """A record far from the others, without a model; for a map-style data set, far from some of them."""
    n, at = len(data), target
    if not isinstance(data, TensorDataset) and n > SOME:
        rows = sorted({*range(0, n, n // SOME), target})
        data, at = [data[row] for row in rows], rows.index(target)
    x, y = stacked(data)
    return RecordCanary("outlier", target, *far_record(x, y.reshape(len(y), -1).squeeze(1), at))


def make_record(
    scenario: ScenarioName,
    model: nn.Module,
    data: Any,
    target: int | None,
    auxiliary: tuple[Tensor, Tensor] | None,
    seed: int,
) -> RecordCanary:
    """Craft z' for a module; the target defaults to the record with the least probable true class."""
    network, x, y, confidence = _with_confidence(model, data)
    if auxiliary is not None:
        auxiliary = torch.as_tensor(auxiliary[0]).to(x), torch.as_tensor(auxiliary[1]).to(y)
    generator = torch.Generator(x.device).manual_seed(seed)
    at = int(confidence.argmin()) if target is None else target
    found = make_canary(
        scenario, network, x, y, Reference(network.theta, at, confidence), auxiliary=auxiliary, generator=generator,
    )  # fmt: skip
    assert isinstance(found, RecordCanary)
    return found


def class_targets(model: nn.Module | None, data: Any) -> dict[int, int]:
    """Class -> its record with the least confidence (without a model the first one), the rarest class first;
    InputError: labels are not class indices."""
    if model is not None:
        _, _, y, confidence = _with_confidence(model, data)
        return least_confident(confidence, y)
    y = torch.stack([data[i][1] for i in range(len(data))])
    if y.dim() != 1 or not bool((y == y.long()).all()):
        raise InputError(f'target="classes": expected class indices (n,), got {y.dtype} of shape {tuple(y.shape)}')
    return least_confident(torch.zeros(len(y)), y.long())


def _with_confidence(model: nn.Module, data: Any) -> tuple[ModuleNetwork, Tensor, Tensor, Tensor]:
    model = without_hooks(copy.deepcopy(model))
    x, y = stacked(data)
    parameter = next(iter(model.parameters()), x)
    x, y = x.to(parameter.device), y.to(parameter.device).long()
    classes = max(2, logits_of(model, x[:1]).shape[1])
    if not any(p.requires_grad for p in model.parameters()):
        model.requires_grad_(True)
    network = ModuleNetwork(model, classes)
    return network, x, y, true_class_probability(network, network.theta[None], x, y)


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A copy of a module in evaluation mode (no dropout, batch normalisation by its running statistics)."""

    model: nn.Module  # (n, ...) -> logits (n, classes), or (n, 1) or (n,) for class 1 of two; on the data's device
    classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", copy.deepcopy(self.model).eval())
        if not self.trainable:
            raise InputError("model: expected trainable parameters, got none; set requires_grad for some")

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Name -> parameter, in the order of the flat tensor."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parameters(self) -> int:
        """Number P of parameters."""
        return sum(p.numel() for p in self.trainable.values())

    @property
    def theta(self) -> Tensor:
        """(P,) current parameters of the model."""
        return torch.cat([p.detach().flatten() for p in self.trainable.values()])

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (1, P) and x (n, ...) -> (1, n, outputs)."""
        trainable = self.trainable
        parts = torch.split(theta[0], [p.numel() for p in trainable.values()])
        state = {name: part.view_as(p) for (name, p), part in zip(trainable.items(), parts, strict=True)}
        found: Tensor = functional_call(self.model, state, (in_precision(x, theta),))
        found = found[:, None] if found.dim() == 1 else found
        if found.shape not in ((len(x), self.classes), (len(x), 1 if self.classes == 2 else self.classes)):
            raise InputError(
                f"model: expected logits of shape ({len(x)}, {self.classes}) for {self.classes} classes, got"
                f" {tuple(found.shape)}"
            )
        return found[None]


def load_canary(path: Path) -> Canary:
    """The stored canary; InputError: the file is damaged."""
    try:
        with torch.serialization.safe_globals([*get_args(Canary)]):
            found: Canary = torch.load(path, weights_only=True)
    except Exception as error:
        raise InputError(f"{path} is damaged ({error}); delete its folder to start again") from None
    return found


MANY = 100
"""Fewest runs with which biases and running statistics serve as scores too; with fewer, the choice would be random."""

FIRST = ("gradient", "outlier")  # scenarios in which any record can be the target; the default is the first one


class CanaryProbe:
    """Trains many models with a user's function, half of them with a canary in a record's place, and judges its claim.

    `train` is called once per run with a map-style data set of (x, y) tensors, D or D', and a `torch.Generator` seeded
    for the run, as are the global ones of torch, NumPy and Python. It must start from scratch and return the model. If
    two seeds give the same model, the function seeds its noise itself, and the audit stops.

    Args:
        train: (dataset, generator) -> model.
        data: a pair (x, y) of tensors or arrays, or a map-style data set of (x, y).
        claim: the claimed guarantee of the training.
        scenario: "mislabelled", "natural" and "crafted" replace a record by one whose gradient opposes its own, and
            "outlier" by one far away. "gradient" replaces a record's gradient by one along the parameter that moves
            least in a training without noise; it needs a loop with an optimizer of Opacus or `safexplain.dp` (not in
            mode ghost) that fetches each batch from the data set right before its step.
        model: for crafting a record canary; None: one trained by `train` on the data.
        canary: your own record (x', y'), instead of a crafted one.
        target: number of the record z that is replaced; None: the one with the least confident label (0 for "outlier"
            and "gradient"). "classes": such a record of every class in turn, which share the confidence.
        auxiliary: pair (x, y) of records outside the data, for "natural".
        runs: trainings on D and D' together; adding runs until a verdict appears invalidates it.
        seed: of everything random.
        workers: processes that train; 1: this process, or those of `joblib.parallel_config`.
        cache: folder for finished runs, from which a probe of the same training function, data, `model`, canary,
            `score` and seed resumes, also with more runs or another claim.
        version: identifies the training function in the cache, instead of its digest; and `score` if that has none.
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: a number fixed beforehand; "split": chosen on some of the runs, which then do not count; "auto": 0
            for a gradient canary under SGD, otherwise "split".
        confidence: of the bound.
        score: function of the result of `train`, which returns a number, higher on D, or several, of which the best is
            chosen with its threshold; None: from logits, or from the movement of the canary's parameter.

    Raises:
        ConfigurationError: options that contradict each other.
        InputError: unusable data or canary.
    """

    def __init__(
        self,
        train: Train,
        data: Any,
        *,
        claim: Claim,
        scenario: str = "mislabelled",
        model: nn.Module | None = None,
        canary: tuple[Any, Any] | None = None,
        target: int | Literal["classes"] | None = None,
        auxiliary: tuple[Any, Any] | None = None,
        runs: int = 200,
        seed: int = 0,
        workers: int = 1,
        cache: str | Path | None = None,
        version: str | None = None,
        method: BoundMethod = "pld",
        threshold: Threshold = "auto",
        confidence: float = 0.95,
        score: Callable[[Any], Any] | None = None,
    ) -> None:
        check_method(method, confidence, claim)
        self.train, self.claim, self.scenario = train, claim, scenario_of(scenario)
        if not takes(train, 2):
            raise ConfigurationError(f"train: expected train(dataset, generator) that returns a model, got {train!r}")
        self.data, self.seed = records_of(data), whole_number("seed", seed, 0)
        self.runs, self.workers = whole_number("runs", runs, 4), whole_number("workers", workers, 1)
        self.model, self.auxiliary, self.score = model, auxiliary, score
        self.method: BoundMethod = method
        self.threshold: Threshold = checked_threshold(threshold)
        self.confidence = confidence
        self._classes = isinstance(target, str)
        if isinstance(target, str):
            if target != "classes" or canary is not None:
                raise ConfigurationError(
                    f'target: expected the number of a record or, without canary=, "classes"; got {target!r}'
                )
            target = None
        if target is not None:
            check_target(target := whole_number("target", target, 0), len(self.data))
        if self.scenario in ("worst-case", "white-box"):
            where = "WhiteBox" if self.scenario == "white-box" else "run_canaries"
            raise ConfigurationError(f'scenario: expected one with canaries, got "{self.scenario}"; see {where}')
        if self.scenario == "gradient" and (canary is not None or score is not None):
            raise ConfigurationError(f'scenario "{self.scenario}" takes no canary and no score')
        if self.scenario == "natural" and auxiliary is None and canary is None:
            raise ConfigurationError('auxiliary: expected records (x, y) for scenario "natural", got None')
        self._target = 0 if self.scenario in FIRST and target is None else target
        self._given = None
        if canary is not None:
            self._given = given_canary(canary, self.data, target, self.scenario)
            self.scenario = self._given.scenario
        self._cache, self._version = cache, version
        self.folder = self._folder()

    @cached_property
    def canary(self) -> Canary:
        """The canary: given, read from the cache, or made, which may train one or two models."""
        if self._given is not None:
            return self._given
        path = self.folder and self.folder / "canary.pt"
        if path and path.is_file():
            return load_canary(path)
        made = self._made()
        if path:
            make_folder(path.parent)
            with atomic_file(path) as partial, partial.open("wb") as file:
                torch.save(made, file)
        return made

    @cached_property
    def targets(self) -> int:
        """Number of records that are replaced in turn."""
        return len(class_targets(None, self.data)) if self._classes else 1

    def each(self, progress: Progress | None = None) -> tuple[CanaryResult, ...]:
        """The result for every target, with "classes" the rarest first; all bounds together hold at `confidence`."""
        if not self._classes:
            return (self.run(progress),)
        model = None if self.scenario in FIRST else self._reference
        targets = class_targets(model, self.data)
        found = []
        for label, row in targets.items():
            one = copy.copy(self)
            one._classes, one._target = False, row
            one.confidence = 1 - (1 - self.confidence) / len(targets)
            one.folder = one._folder()
            one.__dict__.pop("_store", None)
            result = one.run(progress and (lambda stage, *rest, c=label: progress(f"class {c}: {stage}", *rest)))
            found.append(replace(result, setting={**result.setting, "class": label}))
        return tuple(found)

    def run(self, progress: Progress | None = None) -> CanaryResult:
        """Train the missing runs, on D and D' in turn, and judge; with "classes", returns the deciding result.

        Args:
            progress: called after each run; None shows a progress bar on a terminal.

        Raises:
            InputError: the function seeds its noise, a training failed, or the model cannot be scored.
            RefusedError: the target's row is unknown in the loop of a gradient canary.
        """
        if self._classes:
            return decisive(self.each(progress))
        with nullcontext(progress) if progress else show_progress() as report:
            store = self._store
            report("canary", 0, 1)
            if store.load(0) is None:
                _ = self._plain
            canary = self.canary
            report("canary", 1, 1)
            run = Run(self.train, self.data, canary, self.score, self.seed)
            d, d_prime = run_all(run, self.runs, store, workers=self.workers, progress=report)
        name = getattr(self.train, "__qualname__", type(self.train).__qualname__)
        return judge(
            self._scores(d[:, 1:], d_prime[:, 1:]), self.claim, scenario=self.scenario, method=self.method,
            threshold=fixed_threshold(self.threshold, canary), confidence=self.confidence,
            seconds=float(d[:, 0].sum() + d_prime[:, 0].sum()), seed=self.seed,
            setting={"trained": name, "records": len(self.data), "target": canary.target},
        )  # fmt: skip

    def _scores(self, d: Array, d_prime: Array) -> Scores:
        if not np.isfinite(np.concatenate([d, d_prime])).any():
            raise InputError("expected finite logits, got none in any run: training diverged; lower its learning rate")
        if self.score is None and self.runs < MANY:
            own = len(OUTLIER_SCORES) if self.scenario == "outlier" else 1
            d, d_prime = d[:, :own], d_prime[:, :own]
        steps = (1 if self.claim.mechanism is None else self.claim.mechanism.steps,)
        if d.shape[1] == 1:
            return Scores(steps, d.T, d_prime.T)
        return Scores(steps, d[None], d_prime[None], self._names(d.shape[1]))

    def _names(self, scores: int) -> tuple[str, ...]:
        if self.score is not None:
            return tuple(f"score {i}" for i in range(scores))
        own = OUTLIER_SCORES if self.scenario == "outlier" else ("logits at z and z'",)
        return (*own, *(f"bias or statistic {i}" for i in range(scores - len(own))))

    def _made(self) -> Canary:
        target = self._target or 0
        if self.scenario == "gradient":
            hook = GradientHook(target)  # without noise and without the target
            self.reference_model(hook)
            assert hook.movement is not None
            at = int(hook.movement.argmin())
            sgd = isinstance(hook.optimizer.original_optimizer, torch.optim.SGD)  # Adam's steps depend on the noise
            return GradientCanary(target, at, hook.moved[at : at + 1].cpu() if sgd else None)
        if self.scenario == "outlier":
            return make_outlier(self.data, target)
        seed = seed_of_run(self.seed, "reference", 0)
        return make_record(self.scenario, self._reference, self.data, self._target, self.auxiliary, seed)

    @cached_property
    def _reference(self) -> nn.Module:
        model = self._plain[0] if self.model is None else self.model
        if not isinstance(model, nn.Module):
            raise InputError(
                f"train: expected a torch.nn.Module to craft a canary, got {type(model).__name__}; give model="
            )
        return model

    @cached_property
    def _store(self) -> FinishedRuns:
        return FinishedRuns(self.folder, "run")

    @property
    def seconds_each(self) -> float:
        """Seconds of one training."""
        return self._plain[1]

    @cached_property
    def _plain(self) -> tuple[Any, float]:
        """The result of `train` on D, and its seconds; InputError if another seed gives the same."""
        first = self.reference_model()
        began = time.perf_counter()
        second = self.reference_model(number=1)
        seconds = time.perf_counter() - began
        if same_bits(first, second):
            raise InputError(SEEDED)
        return first, seconds

    def alike(self, other: CanaryProbe, confidence: float) -> CanaryProbe:
        """Another probe of the same function at this confidence, which reuses the first trainings."""
        one = copy.copy(other)
        one.__dict__["_plain"], one.confidence = self._plain, confidence
        return one

    def reference_model(self, hook: GradientHook | None = None, number: int = 0) -> Any:
        """The result of `train` on D, with a seed of this number."""
        seed = seed_of_run(self.seed, "reference", number)
        dataset = NeighbouringData(self.data, fetched=hook.fetched if hook else None)
        what = f"the reference training on the data (seed {seed}), before any run,"
        return call_watched(self.train, dataset, seed, hook, what)

    def _folder(self) -> Path | None:
        if self._cache is None:
            return None
        given, version = self._given, self._version
        with seeded(seed_of_run(self.seed, "records", 0)):  # records may be drawn at random
            data = digest_of(self.data)
        parts = (
            data,
            self.scenario,
            None if given is None else [given.target, given.x, given.y],
            None if self.auxiliary is None else [torch.as_tensor(part) for part in self.auxiliary],
            self._target,
            self.seed,
            name_of("train", self.train, None) if version is None else version,
            name_of("score", self.score, version),
        )
        try:
            return Path(self._cache) / digest(*parts, self.model)[:32]
        except Undigestable as reason:
            raise ConfigurationError(
                f"cache: model cannot be digested ({reason}), so it could be mistaken for another; leave cache out"
            ) from None


def name_of(what: str, function: Callable[..., Any] | None, version: str | None) -> str:
    """The digest of a function, or, with a `version`, its name if that fails; else ConfigurationError."""
    try:
        return digest(function)
    except Undigestable as reason:
        if version is None:
            raise ConfigurationError(
                f"cache: {what} cannot be digested ({reason}), so it could be mistaken for another; give version=, a"
                " name that changes whenever the function does"
            ) from None
    kind = type(function)
    return getattr(function, "__qualname__", f"{kind.__module__}.{kind.__qualname__}")


MIN_RUNS = 20  # fewest runs of a scenario at its first judgement
MAX_RUNS = 20_000  # most runs in total, beyond which more time shows little more


def stages_of(scenarios: int, runs: int) -> list[tuple[int, int]]:
    """Scenarios left at each judgement, and the runs that each has had by then; with too few, the last scenarios
    are not tried."""
    scenarios = max(1, min(scenarios, runs // MIN_RUNS))
    left = [scenarios]
    while left[-1] > 1:
        left.append(math.ceil(left[-1] / 2))
    found, had = [], 0
    for count in left:
        had += max(MIN_RUNS, runs // len(left) // count)
        found.append((count, had - had % 2))
    return found


def runs_within(probe: CanaryProbe, minutes: float) -> int:
    """Runs for each target that take about so many minutes, at most `MAX_RUNS` in all."""
    return min(MAX_RUNS, int(60 * minutes * probe.workers / max(probe.seconds_each, 1e-4))) // probe.targets


def audit_within(
    probes: Mapping[str, CanaryProbe], minutes: float, progress: Progress = silent
) -> tuple[list[CanaryResult], dict[str, str]]:
    """Audit a training function by several scenarios, in so many minutes, by successive halving (arXiv 1502.07943).

    Every scenario gets the same number of runs; the half with the stronger signs gets twice as many more, until one is
    left. Each judgement has the confidence 1 - risk / (scenarios * stages), so by the union bound, the probability that
    any refutes a correct training is at most the risk. Probes are by scenario, all of the same function, data and
    claim; the first one's `confidence` is that of the whole. Returns the last judgement of each scenario that was
    tried, and the reasons why others were not; raises ConfigurationError, and as `CanaryProbe.run`.
    """
    if not probes or not minutes > 0:
        raise ConfigurationError(f"expected scenarios, and minutes above 0; got {len(probes)} and {minutes!r}")
    first = next(iter(probes.values()))
    plan = stages_of(len(probes), runs_within(first, minutes))
    confidence = 1 - (1 - first.confidence) / (plan[0][0] * len(plan))
    tried = {name: first.alike(probes[name], confidence) for name in [*probes][: plan[0][0]]}
    found: dict[str, CanaryResult] = {}
    others = {name: f"no time for it in {minutes:g} minutes" for name in probes if name not in tried}
    for count, had in plan:
        for name in sorted(tried, key=lambda name: _signs(found[name]) if found else (0.0, 0.0), reverse=True)[:count]:
            tried[name].runs = had
            try:
                found[name] = tried[name].run(lambda stage, *rest, n=name: progress(f"{n}: {stage}", *rest))
            except RefusedError as reason:  # a gradient canary in a loop without an optimizer of Opacus
                others[name] = str(reason)
                continue
            if found[name].verdict == "refuted":
                others |= {name: "another canary refuted the claim" for name in tried if name not in found | others}
                return [*found.values()], others
        tried = {name: probe for name, probe in tried.items() if name in found and found[name].runs == had}
    return [*found.values()], others


def _signs(found: CanaryResult) -> tuple[float, float]:
    """Strength of a canary's signs: its bound at even odds, then the negative error rate."""
    at = found.errors[-1]
    errors = at.false_positives / max(at.negatives, 1) + at.false_negatives / max(at.positives, 1)
    return replace(found, confidence=0.5).epsilon_lower, -errors


def audit_training(
    tuner: DPFineTuner,
    scenario: str | None = None,
    *,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    runs: int = 1000,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: Progress = silent,
    **how: Any,
) -> CanaryResult | WhiteBoxResult:
    """Test a tuner's guarantee: watch its steps, or train many times, half of them with one record substituted.

    Args:
        tuner: its model, data, plan and options are used.
        scenario: "white-box" watches the tuner's steps and uses only `seed` and `progress`. "crafted", "mislabelled",
            "natural" and "outlier" replace a record (with `groups=`, one of a person), "gradient" a record's gradient,
            in mode "hooks" or "functorch". For a head on a frozen backbone, records are its features. None: crafted for
            a head, otherwise mislabelled.
        auxiliary: (x, y) records outside the training data, for "natural".
        runs: models, half for each data set; a thousand can show an epsilon of about 8 if 10 is true.
        seed: of everything random in the audit.
        cache: folder for features and finished runs, from which an interrupted audit resumes.
        progress: called with stage, done and total.
        how: `target`, `workers`, `method`, `threshold` and `confidence` of `CanaryProbe`.

    Raises:
        ConfigurationError, InputError: as `DPFineTuner.fit`, or the model does not allow the scenario.
    """
    budget, model, version = tuner.plan.budget, tuner.prepared(), _version(tuner)
    adjacency = "add_remove" if budget.adjacency == "zero_out" else budget.adjacency
    claim = Claim(tuner.plan.phase(), budget.delta, adjacency=adjacency)
    name = None if scenario is None else scenario_of(scenario)
    if name == "worst-case":
        raise ConfigurationError("scenario: expected one that uses this training, got worst-case; see run_canaries")
    head = has_closed_form(model, tuner.records, tuner.config)
    if name == "gradient" and (head or tuner.persons is not None):
        why = "it trains a head in closed form" if head else "it clips gradients of persons"
        raise ConfigurationError(
            f'gradient: this training has no gradients of single records, as {why}; take "white-box", which watches its'
            ' steps, or "mislabelled", which replaces a record'
        )
    if head:
        tuner, auxiliary = _on_features(tuner, model, auxiliary, cache)
        model = tuner.prepared()

    def train(dataset: Any, generator: torch.Generator) -> nn.Module:
        given = stacked(dataset) if head else dataset  # heads are trained in closed form on tensors
        return tuner.with_data(given, seed=generator.initial_seed()).fit().model

    records = tuner.records
    given = (records.x, records.y) if isinstance(records, InMemory) else records.dataset
    if name == "white-box":
        return WhiteBox(train, given, claim, tuner.config.clipping.bound, seed=seed).run(progress)
    probe = CanaryProbe(
        train, given, claim=claim, scenario=name or ("crafted" if head else "mislabelled"), model=model,
        auxiliary=auxiliary, cache=cache, version=version, runs=runs, seed=seed, **how,
    )  # fmt: skip
    return probe.run(progress=progress)


def _on_features(
    tuner: DPFineTuner, model: nn.Module, auxiliary: tuple[Tensor, Tensor] | None, cache: str | Path | None
) -> tuple[DPFineTuner, tuple[Tensor, Tensor] | None]:
    assert isinstance(tuner.records, InMemory)
    folder = None if cache is None else Path(cache) / "features"
    problem = head_problem(model, tuner.records, tuner.plan, tuner.config, cache=folder)
    alone = copy.copy(tuner)
    alone.records, alone._start = InMemory(problem.x.cpu(), tuner.records.y), nn.Sequential(problem.layer)
    if auxiliary is not None:
        x, y = (torch.as_tensor(part) for part in auxiliary)
        auxiliary = features(model, trainable_linear(model) or "", x, cache=folder).cpu(), y
    return alone, auxiliary


def _version(tuner: DPFineTuner) -> str:
    config = tuner.config
    try:
        functions = digest(config.optimizer, config.loss)
    except Undigestable as reason:
        raise ConfigurationError(f"cache: optimizer or loss cannot be digested ({reason}); leave cache out") from None
    whose = [] if tuner.persons is None else [tuner.persons.digest()]
    return repr([tuner.plan, sorted(config.purpose().items()), config.mode, tuner.statement.trained, functions, *whose])
