"""What a training claims, scores of runs on D and D', checks of its steps, and the findings. No torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain._privacy_loss import (
    VACUOUS,
    Adjacency,
    Epsilons,
    Steps,
    check_adjacency,
    check_delta,
    composed,
    epsilon_of,
)
from safexplain._validate import check_follows, check_number, from_table
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict import strict_json
from safexplain.verdict.privacy_statement import PrivacyStatement
from safexplain.verdict.stats import bound_epsilon, epsilon_from_errors
from safexplain.verdict.stats.lower_bounds import BoundMethod, ErrorCounts, choose_score, detectable, promise_of


@dataclass(frozen=True)
class Claim:
    """A claimed mechanism and its epsilon.

    Args:
        mechanism: claimed steps of the sampled Gaussian mechanism; None: unknown, which requires `epsilon`.
        delta: in [1e-12, 1).
        epsilon: claimed for one record; None: computed from the mechanism.
        adjacency: of the claimed epsilon, "substitute" or "add_remove".

    Raises:
        ConfigurationError: neither mechanism nor epsilon is given, or a value is out of range.
    """

    mechanism: Steps | None
    delta: float
    epsilon: float | None = None
    adjacency: Adjacency = "substitute"

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        check_delta(self.delta)
        if self.adjacency == "zero_out":
            raise ConfigurationError(
                'adjacency: expected "substitute" or "add_remove", because canaries substitute records; got "zero_out"'
            )
        if self.mechanism is None and self.epsilon is None:
            raise ConfigurationError("a claim needs a mechanism (noise multiplier, rate, steps) or an epsilon")
        if self.epsilon is not None and not 0 < self.epsilon < math.inf:
            raise ConfigurationError(f"epsilon: expected a finite number above 0, got {self.epsilon!r}")

    @classmethod
    def of(cls, statement: PrivacyStatement, adjacency: Adjacency = "substitute") -> Claim:
        """The claim of a privacy statement; raises `ConfigurationError` unless it has one phase."""
        if len(statement.phases) != 1:
            raise ConfigurationError(
                f"expected a statement with one phase of training, got {len(statement.phases)}; pass"
                " Claim(None, delta, epsilon) to audit the epsilon alone"
            )
        return cls(statement.phases[0], statement.delta, adjacency=adjacency)

    @cached_property
    def accounted(self) -> Epsilons | None:
        """The mechanism's epsilons; None: unknown."""
        return None if self.mechanism is None else composed([self.mechanism], self.delta)

    @property
    def add_remove(self) -> float | None:
        """Epsilon for one record added or removed: as claimed, else as accounted; None: unknown."""
        return self._of("add_remove")

    @property
    def substitute(self) -> float | None:
        """The same for one record substituted."""
        return self._of("substitute")

    def _of(self, adjacency: Adjacency) -> float | None:
        if self.epsilon is not None and self.adjacency == adjacency:
            return self.epsilon
        return None if self.accounted is None else self.accounted.of(adjacency)

    def after(self, steps: int) -> Claim:
        """The claim about a model released after this many steps."""
        if self.mechanism is None or steps == self.mechanism.steps:
            return self
        return replace(self, mechanism=replace(self.mechanism, steps=steps), epsilon=None)

    def sampled(self) -> dict[str, Any]:
        """The mechanism's arguments for bounds, without its noise."""
        of_steps = {} if self.mechanism is None else asdict(self.mechanism)
        return {k: v for k, v in of_steps.items() if k != "noise_multiplier"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Claim:
        """Read what `to_dict` wrote, or raise `InputError`."""
        try:
            return from_table(cls, content, "claim")
        except ConfigurationError as error:
            raise InputError(str(error)) from None


ScenarioName = Literal["worst-case", "gradient", "crafted", "mislabelled", "natural", "outlier", "white-box"]


SCENARIOS: dict[ScenarioName, str | None] = {
    "worst-case": "S1",
    "gradient": "S2",
    "crafted": "S3",
    "mislabelled": "S4",
    "natural": "S5",
    "outlier": None,
    "white-box": None,
}
"""Canary -> its number in the paper (docs/canaries.md)."""


def scenario_of(name: str) -> ScenarioName:
    """The canary of a name or number, or `ConfigurationError`."""
    numbers = {number.lower(): key for key, number in SCENARIOS.items() if number}
    found = numbers.get(name.lower(), name)
    if found not in get_args(ScenarioName):
        known = ", ".join(f"{key} ({number})" if number else key for key, number in SCENARIOS.items())
        raise ConfigurationError(f"scenario: expected one of {known}; got {name!r}")
    return cast(ScenarioName, found)


Verdict = Literal["refuted", "not refuted", "as claimed"]

EXIT_CODES: dict[Verdict, int] = {"refuted": 1, "not refuted": 3, "as claimed": 0}

TOLERANCE = 5e-3
"""Absolute and relative difference of a stated bound that is allowed between accountants' versions."""


class Finding(ABC):
    """The result of an audit about a training's claim."""

    scenario: ScenarioName
    claim: Claim
    runs: int
    seconds: float
    setting: Mapping[str, Any]

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """The verdict about the claim."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The verdict with its numbers."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""

    @abstractmethod
    def check(self, content: Mapping[str, Any]) -> None:
        """Raise `InputError` if a stated value does not follow from the counts."""

    @property
    def claimed(self) -> float:
        """The claimed epsilon."""
        found = self.claim.add_remove if self.claim.adjacency == "add_remove" else self.claim.substitute
        assert found is not None
        return found

    @property
    def exit_code(self) -> int:
        """0 as claimed, 1 refuted, 3 not refuted."""
        return EXIT_CODES[self.verdict]

    @property
    def seconds_per_run(self) -> float:
        """Time of training and scoring a run."""
        return self.seconds / self.runs

    def __str__(self) -> str:
        return self.sentence

    def _stated(self) -> dict[str, Any]:
        claimed = {"add_remove": self.claim.add_remove, "substitute": self.claim.substitute}
        return {f"epsilon_{name}": v if v is not None and math.isfinite(v) else None for name, v in claimed.items()}


LEAST_SURE, SUREST = 0.5, 1 - 1e-9  # allowed confidences
DETECTABLE_TOLERANCE = 0.05  # likewise, of a detectable epsilon
FREE = "clopper-pearson"  # the method that assumes nothing about the mechanism

Array = NDArray[np.float64]

Found = TypeVar("Found", bound=Finding)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of runs at audited steps; higher means that the run trained on the record (D), not on D'.

    Args:
        steps: (k,) increasing; the last is the released model.
        d: (k, runs on D), not NaN; or (k, runs on D, s), of which the best is chosen on some of the runs.
        d_prime: (k, runs on D') or (k, runs on D', s), where the canary replaced the record.
        names: (s,) of several scores, which may be high or low on D.

    Raises:
        InputError: shapes do not fit, a score is NaN, or steps do not increase.
    """

    steps: tuple[int, ...]
    d: Array
    d_prime: Array
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(int(t) for t in self.steps))
        for name in ("d", "d_prime"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            several = (len(self.names),) if self.names else ()
            if values.ndim < 2 or values.shape != (len(self.steps), values.shape[1], *several) or not values.size:
                expected = ", ".join((f"{len(self.steps)} steps", "runs", *(f"{n} scores" for n in several)))
                raise InputError(f"scores {name}: expected shape ({expected}), got {values.shape}")
            if np.isnan(values).any():
                raise InputError(f"scores {name}: {int(np.isnan(values).sum())} of {values.size} are NaN")
            object.__setattr__(self, name, values)
        if any(later <= earlier for earlier, later in zip((0, *self.steps), self.steps, strict=False)):
            raise InputError(f"steps: expected increasing numbers of at least 1, got {self.steps}")

    @property
    def runs(self) -> int:
        """Number of runs on D and D' together."""
        return int(self.d.shape[1]) + int(self.d_prime.shape[1])


@dataclass(frozen=True)
class Errors:
    """The adversary's errors after some steps; runs whose score reaches the threshold are classified as D."""

    step: int
    threshold: float
    false_positives: int  # runs on D' classified as D
    negatives: int  # counted runs on D'
    false_negatives: int  # runs on D classified as D'
    positives: int  # counted runs on D

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """All but the step and the threshold."""
        return self.false_positives, self.negatives, self.false_negatives, self.positives


@dataclass(frozen=True)
class CanaryResult(Finding):
    """Errors of the adversary at each audited step, and the verdict about the claim.

    Each bound holds separately at `confidence`; the verdict rests on the last step, the released model.

    Raises:
        ConfigurationError: the method needs a mechanism, but the claim has none.
        InputError: no errors, or errors of more runs than `runs`.
    """

    scenario: ScenarioName
    claim: Claim
    method: BoundMethod
    confidence: float
    errors: tuple[Errors, ...]  # at each audited step, in order
    runs: int  # on D and D' together
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)  # model and data, for readers

    def __post_init__(self) -> None:
        check_method(self.method, self.confidence, self.claim)
        if not self.errors or self.runs < max(at.negatives + at.positives for at in self.errors):
            raise InputError(f"expected errors at one step or more, of at most the {self.runs} runs; got {self.errors}")

    @cached_property
    def epsilon_lower(self) -> float:
        """Lower bound on the released model's epsilon under substitution, at most 500."""
        return self.lower(self.errors[-1])

    @cached_property
    def ceiling(self) -> float:
        """The bound without any error: the largest that these runs can show."""
        return self.lower(replace(self.errors[-1], false_positives=0, false_negatives=0))

    def lower(self, at: Errors) -> float:
        """The lower bound at one audited step, at most 500."""
        family = {"confidence": self.confidence, **self.claim.after(at.step).sampled()}
        return min(epsilon_from_errors(*at.counts, self.claim.delta, self.method, **family), VACUOUS)

    @cached_property
    def detectable(self) -> float | None:
        """The smallest epsilon that these canaries would have refuted in 95 of 100 audits; None: none.

        The canary is taken to be as strong as its errors in this training show.
        """
        c, at = self.claim, self.errors[-1]
        if (promise := promise_of(self.claimed, c.delta, c.mechanism, c.adjacency)) is None:
            return None
        return detectable(
            ErrorCounts(*at.counts, self.confidence),
            self.method,
            promise,
            fixed=at.negatives + at.positives == self.runs,
        )

    @property
    def verdict(self) -> Verdict:
        """Refuted if the bound is above the claim, for a correct one in at most 1 - confidence of audits.

        Canaries substitute a record, so they can refute a claim under add/remove although the training is correct.
        """
        return "refuted" if self.epsilon_lower > self.claimed else "not refuted"

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        add_remove, substitute = self.claim.add_remove, self.claim.substitute
        assumed = "" if self.method == FREE else ", assuming that everything but the noise is as claimed"
        found = (
            f"epsilon for a substituted record is at least {self.epsilon_lower:.2f}{assumed} ({self.confidence:.0%}"
            f" confidence, delta {self.claim.delta:g}); the claim is {self.claimed:.2f}"
        )
        if self.verdict == "refuted":
            if self.claim.adjacency == "add_remove" and (substitute is None or self.epsilon_lower <= substitute):
                found += " for an added or removed one, which does not protect what a record contains"
            return f"Refuted: {found}."
        beyond = ""
        if self.claim.adjacency == "substitute" and add_remove is not None and self.epsilon_lower > add_remove:
            beyond = f" The epsilon of an added or removed record, {add_remove:.2f}, does not protect its contents."
        if self.detectable is None:
            power = "These canaries are too weak: they would not have detected even a training without noise."
        else:
            power = f"A training that leaks {self.detectable:.2g} or more would have been detected in 95 of 100 audits."
        return f"Not refuted: {found}.{beyond} {power}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        names = ("verdict", "detectable", "runs", "seconds_per_run", "sentence", "seconds", "scenario", "method")
        return {
            "epsilon_lower": self.epsilon_lower,
            "confidence": self.confidence,
            **self._stated(),
            "ceiling": self.ceiling,
            **{name: getattr(self, name) for name in names},
            "claim": self.claim.to_dict(),
            "errors": [{**asdict(at), "threshold": _plain(at.threshold)} for at in self.errors],
            "setting": dict(self.setting),
        }

    def check(self, content: Mapping[str, Any]) -> None:
        """Raise `InputError` if a stated value does not follow from the counts."""
        computed, near = self.to_dict(), (TOLERANCE, TOLERANCE)
        for name in ("epsilon_lower", "ceiling", "epsilon_add_remove", "epsilon_substitute", "verdict"):
            check_follows(content[name], computed[name], name, "the counts", near)
        wide = (DETECTABLE_TOLERANCE, DETECTABLE_TOLERANCE)
        check_follows(content["detectable"], self.detectable, "detectable", "the counts", wide)


def _plain(threshold: float) -> float | str:
    return threshold if math.isfinite(threshold) else str(threshold)


def judge(
    scores: Scores,
    claim: Claim,
    *,
    scenario: str,
    method: BoundMethod = "pld",
    threshold: float | None = None,
    confidence: float = 0.95,
    seconds: float = 0.0,
    seed: int = 0,
    setting: Mapping[str, Any] | None = None,
) -> CanaryResult:
    """Count errors and compute bounds at every audited step.

    Args:
        scores: of the runs; of several scores, one is chosen and named in the setting.
        claim: to test.
        scenario: name or number of the canary.
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: fixed beforehand, for the first score; None: chosen on 30 % of the runs, which then do not count.
        confidence: of each bound.
        seconds: time of training and scoring.
        seed: of the split.
        setting: model and data, for readers.

    Raises:
        ConfigurationError: the method needs a mechanism, but the claim has none.
        InputError: too few runs.
    """
    check_method(method, confidence, claim)
    errors, about = [], dict(setting or {})
    for step, d, d_prime in zip(scores.steps, scores.d, scores.d_prime, strict=True):
        family: dict[str, Any] = {"confidence": confidence, **claim.after(step).sampled()}
        at = threshold
        if scores.names and threshold is not None:
            d, d_prime = d[:, 0], d_prime[:, 0]
        elif scores.names:
            chosen = choose_score(d, d_prime, claim.delta, method, seed=seed, **family)
            d, d_prime, at = chosen.d, chosen.d_prime, chosen.threshold
            about["score"] = f"{scores.names[chosen.score]}, {'low' if chosen.negative else 'high'} on D"
        bound = bound_epsilon(d, d_prime, claim.delta, method, threshold=at, seed=seed, **family)
        counts = (bound.false_positives, bound.negatives, bound.false_negatives, bound.positives)
        errors.append(Errors(step, bound.threshold, *counts))
    return CanaryResult(scenario_of(scenario), claim, method, confidence, tuple(errors), scores.runs, seconds, about)


def decisive(findings: Sequence[Found]) -> Found:
    """The refutation with the highest bound; else a white box that passed; else the smallest detectable epsilon."""
    if not findings:
        raise InputError("expected at least one finding, got none")

    def rank(found: Finding) -> tuple[int, float, float]:
        if not isinstance(found, CanaryResult):
            return {"refuted": 3, "as claimed": 2, "not refuted": 0}[found.verdict], 0.0, 0.0
        detectable = math.inf if found.detectable is None else found.detectable
        refuted = found.verdict == "refuted"
        return 4 if refuted else 1, found.epsilon_lower - found.claimed if refuted else -detectable, found.epsilon_lower

    return max(findings, key=rank)


def finding_of(content: Any) -> Finding:
    """Read what a finding's `to_dict` wrote; `InputError` if it does not follow from the counts."""
    if not isinstance(content, Mapping):
        raise InputError(f"canaries: expected an object from `safexplain canaries --json`, got {content!r:.60}")
    try:
        found = _from_counts(content)
        found.check(content)
    except InputError as error:
        raise InputError(f"canary result: {error}") from None
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"canary result: expected the output of `safexplain canaries --json`; {error!r}") from None
    return found


def _from_counts(content: Mapping[str, Any]) -> Finding:
    if "checks" in content:
        return _white_box_of(content)
    values = {f.name: content[f.name] for f in fields(CanaryResult)}
    values |= {"scenario": scenario_of(content["scenario"]), "claim": Claim.from_dict(content["claim"])}
    rows = [{**row, "threshold": float(row["threshold"])} for row in values["errors"]]
    return CanaryResult(**{**values, "errors": tuple(Errors(**row) for row in rows)})


def load_finding(path: str | Path) -> Finding:
    """Read canaries.json; errors as of `finding_of`."""
    return finding_of(strict_json.load(path, "canaries"))


def check_method(method: str, confidence: float, claim: Claim) -> None:
    """Raise `ConfigurationError` for an invalid method or confidence."""
    if not LEAST_SURE <= check_number("confidence", confidence) <= SUREST:
        raise ConfigurationError(f"confidence: expected a number in [0.5, 1 - 1e-9], got {confidence:.12g}")
    if method not in (names := get_args(BoundMethod)):
        raise ConfigurationError(f"method: expected one of {', '.join(names)}, got {method!r}")
    if method == "pld" and claim.mechanism is None:
        raise ConfigurationError(
            f'method="pld" needs a claim with a mechanism (sample rate and steps); add it, or use "{FREE}"'
        )


# --- the white box ---------------------------------------------------------------------------------------------------

SCALES = ("sensitivity", "size of the noise")
"""Checks that measure how much less private than claimed a step is."""


@dataclass(frozen=True)
class Check:
    """One property that the claimed mechanism guarantees for its steps."""

    name: str
    found: float | None  # measured value; None: it could not be checked
    allowed: float  # largest allowed value
    says: str  # the finding in words

    def __post_init__(self) -> None:
        if self.found is not None and not math.isfinite(self.found):
            raise InputError(f"check {self.name!r}: expected a finite number, got {self.found}")

    @property
    def passed(self) -> bool | None:
        """Whether the value is allowed; None: it could not be checked."""
        return None if self.found is None else bool(self.found <= self.allowed)


@dataclass(frozen=True)
class WhiteBoxResult(Finding):
    """The finding of `WhiteBox` about a training.

    Raises:
        InputError: no checks or runs, or a claim without a mechanism.
    """

    claim: Claim  # of the training, with its mechanism
    checks: tuple[Check, ...]  # in the order in which they were made
    runs: int  # number of watched trainings
    seconds: float  # time that they took
    setting: Mapping[str, Any] = field(default_factory=dict)  # model and data, for readers
    scenario: ScenarioName = "white-box"

    def __post_init__(self) -> None:
        if not self.checks or self.runs < 1 or self.claim.mechanism is None:
            raise InputError("white-box result: expected checks, runs, and a claim with its mechanism")

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def open(self) -> tuple[Check, ...]:
        """Checks that could not be made."""
        return tuple(check for check in self.checks if check.passed is None)

    @property
    def verdict(self) -> Verdict:
        """Refuted if a check failed, as claimed if all passed."""
        return "refuted" if self.failed else "not refuted" if self.open else "as claimed"

    @property
    def epsilon_seen(self) -> float | None:
        """Epsilon of steps like the worst seen, at most 500; None: a failed check measures no factor."""
        mechanism = self.claim.mechanism
        assert mechanism is not None
        if any(check.name not in SCALES for check in self.failed):
            return None
        factor = math.prod(max(1.0, check.found or 1.0) for check in self.checks if check.name in SCALES)
        weaker = replace(mechanism, noise_multiplier=mechanism.noise_multiplier / factor)
        return min(epsilon_of([weaker], self.claim.delta, self.claim.adjacency), VACUOUS)

    @property
    def sentence(self) -> str:
        """The verdict with its reasons."""
        if self.failed:
            seen = self.epsilon_seen
            epsilon = f". With steps like the worst seen, epsilon is {seen:.3g}, not {self.claimed:.3g}" if seen else ""
            return f"Refuted: {'; '.join(check.says for check in self.failed)}{epsilon}."
        if self.open:
            return f"Not refuted, and not confirmed: {'; '.join(check.says for check in self.open)}."
        return (
            f"As claimed: all {len(self.checks)} checks of the steps of {self.runs} trainings passed; epsilon is"
            f" {self.claimed:.3g} under {self.claim.adjacency} (delta {self.claim.delta:g})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        names = ("verdict", "epsilon_seen", "runs", "seconds_per_run", "sentence", "seconds", "scenario")
        return {
            **self._stated(),
            **{name: getattr(self, name) for name in names},
            "claim": self.claim.to_dict(),
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
            "setting": dict(self.setting),
        }

    def check(self, content: Mapping[str, Any]) -> None:
        """Raise `InputError` if a stated value does not follow from the counts."""
        computed = self.to_dict()
        for name in ("verdict", "epsilon_add_remove", "epsilon_substitute", "epsilon_seen"):
            check_follows(content[name], computed[name], name, "the checks", (TOLERANCE, TOLERANCE))
        for stated, check in zip(content["checks"], self.checks, strict=True):
            check_follows(stated["passed"], check.passed, f"check {check.name!r}", "its numbers", (0.0, 0.0))


def _white_box_of(content: Mapping[str, Any]) -> WhiteBoxResult:
    rows = [{k: row[k] for k in ("name", "found", "allowed", "says")} for row in content["checks"]]
    checks = tuple(from_table(Check, row, "check") for row in rows)
    claim = Claim.from_dict(content["claim"])
    return WhiteBoxResult(claim, checks, content["runs"], content["seconds"], dict(content["setting"]))


RISK = 1e-6  # probability that a test fails for a correct training
SLACK = 1.01  # factor by which contributions may exceed C, or noise fall below the claim, by rounding
PAIRS, LAGS = 400, 8  # number of pairs of coordinates, and largest lag in steps, whose correlation is tested


def noise_size(z: Array, squares: Array, numbers: Array, steps: Sequence[str], coordinates: Sequence[str]) -> Check:
    """Check the size of the noise where it is most clearly too small.

    Args:
        z: (runs, steps, k) noise at some coordinates, over the claimed standard deviation.
        squares: (runs, steps, tensors) sums of squares of all of it.
        numbers: (tensors,) how many there are in each.
        steps: their names.
        coordinates: names of the k.
    """
    runs, total = len(z), float(len(z) * numbers.sum())
    groups: list[tuple[Array, Array, Sequence[str]]] = [
        (squares.sum((0, 2)), np.full(len(steps), total), steps),
        (squares.sum((0, 1)), runs * len(steps) * numbers, [f"tensor {i}" for i in range(len(numbers))]),
        ((z**2).sum((0, 1)), np.full(z.shape[2], runs * z.shape[1]), coordinates),
    ]
    worst, where = np.inf, ""
    for found, of, names in groups:
        # the largest standard deviation with which squares as small as these are likely enough
        largest = np.sqrt(found / distributions.chi2.ppf(RISK / len(found), of))
        i = int(largest.argmin())
        if largest[i] < worst:
            worst, where = float(largest[i]), names[i]
    small = 1 / max(worst, 1e-6)
    says = f"the noise has {math.sqrt(squares.sum() / (total * len(steps))):.3g} of the claimed standard deviation"
    says += f", in {where} at most {worst:.3g} of it" if small > SLACK else ""
    return Check("size of the noise", small, SLACK, says)


def noise_distribution(z: Array, rng: np.random.Generator) -> Check:
    """Check whether noise (runs, steps, k), scaled to variance 1, is normally distributed."""
    values = z[z != 0]
    if len(values) < 100:
        return Check("distribution of the noise", None, 6.0, "too little noise was drawn to test its distribution")
    values = rng.permutation(values)[:50_000] / values.std()
    tests = (
        distributions.kstest(values, "norm").pvalue, distributions.skewtest(values).pvalue,
        distributions.kurtosistest(values).pvalue,
    )  # fmt: skip
    p = max(min(1.0, len(tests) * min(map(float, tests))), 1e-300)
    says = f"the noise is {'' if p > RISK else 'not '}normally distributed (p = {p:.2g})"
    return Check("distribution of the noise", -math.log10(p), -math.log10(RISK), says)


def noise_independence(z: Array, rng: np.random.Generator) -> Check:
    """Check whether noise (runs, steps, k) is drawn anew in each step, run and coordinate."""
    z = z / max(float(z.std()), 1e-12)
    found = {"two trainings": _correlation(z[1:], z[:-1])}
    for lag in range(1, min(z.shape[1], LAGS + 1)):
        found[f"steps {lag} apart"] = _correlation(z[:, lag:], z[:, :-lag])
    flat = z.reshape(-1, z.shape[2])
    k = flat.shape[1]
    pairs = [*pairwise(range(min(k, PAIRS))), *(tuple(rng.choice(k, 2, replace=False)) for _ in range(PAIRS * (k > 2)))]
    of_pairs = [_correlation(flat[:, a], flat[:, b]) for a, b in pairs]
    found["two coordinates"] = max(of_pairs, default=0.0)
    where = max(found, key=lambda name: found[name])
    limit = _normal_limit(len(found) + len(pairs))
    says = "noise is drawn anew in each step, training and coordinate"
    if found[where] > limit:
        says = f"the noise of {where} is correlated: it is not drawn anew"
    return Check("independence of the noise", found[where], limit, says)


def _correlation(a: Array, b: Array) -> float:
    products = a * b
    return abs(float(products.sum())) / math.sqrt(max(products.size, 1))


def _normal_limit(tests: int) -> float:
    """Limit for so many normal tests, times 1.5 because sums of products have heavier tails."""
    return 1.5 * float(distributions.norm.isf(RISK / tests / 2))


def batches_drawn(drawn: NDArray[np.bool_], mechanism: Steps) -> Iterator[Check]:
    """Check the sample rate of the batches (runs, steps, n), and whether records are drawn independently.

    For independent draws with probability q, counts of m draws have the variance m q (1 - q); their squared deviations
    over that have the mean 1 and the variance 2 + (1 - 6 q (1 - q)) / (m q (1 - q)).
    """
    q, trials = mechanism.sample_rate, drawn.shape[0] * drawn.shape[1]
    counts = drawn.sum((0, 1))
    p = min(
        float(distributions.binom.sf(counts.sum() - 1, trials * drawn.shape[2], q)),
        float(distributions.binom.sf(counts.max() - 1, trials, q)) * drawn.shape[2],
    )
    says = f"a record was in {drawn.mean():.3g} of the batches, the most frequent one in {counts.max() / trials:.3g}"
    yield Check("sample rate", -math.log10(max(p, 1e-300)), -math.log10(RISK), f"{says}; claimed is {q:.3g}")
    q = float(drawn.mean())
    v = max(q * (1 - q), 1e-12)

    def spread(counts: Array, m: int) -> float:
        squares = (counts - m * q) ** 2 / (m * v)
        return float((squares - 1).sum() / math.sqrt(squares.size * (2 + (1 - 6 * v) / (m * v))))

    centred = (drawn - q) / math.sqrt(v)
    found = {
        "two trainings have like batches": _correlation(centred[1:], centred[:-1]),
        "steps have like batches": _correlation(centred[:, 1:], centred[:, :-1]),
        "records are in more alike numbers of batches than if they were drawn": -spread(drawn.sum(1), drawn.shape[1]),
    }
    if mechanism.sampling == "poisson":
        alike = -spread(drawn.sum(2), drawn.shape[2])
        found["batches are more alike in size than Poisson batches"] = alike
    where = max(found, key=lambda name: found[name])
    limit = _normal_limit(8)
    says = "batches are drawn anew in each step" if found[where] <= limit else where
    yield Check("batches drawn anew", max(found[where], 0.0), limit, says)
