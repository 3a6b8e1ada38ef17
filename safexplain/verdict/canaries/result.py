"""What the runs on D and D' say about the claim: scores, errors, findings, and how they are read back.

Scores are what the adversary computes from each run after each audited step; `judge` counts its errors in them.
Findings state their bounds and are computed again from the counts when they are read, as they are in a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._files import ArrayFile, write_arrays
from safexplain._privacy_loss import VACUOUS
from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict import strict_json
from safexplain.verdict.canaries.claim import Claim, ScenarioName, scenario_of
from safexplain.verdict.canaries.finding import FREE, BoundFinding, Finding
from safexplain.verdict.canaries.white_box import white_box_of
from safexplain.verdict.stats import (
    bound_epsilon,
    epsilon_from_errors,
    one_run_lower_bound,
)
from safexplain.verdict.stats.bound_methods import BoundMethod, ErrorCounts
from safexplain.verdict.stats.detectable import Promise, detectable, detectable_once
from safexplain.verdict.stats.lower_bounds import choose_score
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["CanaryResult", "Errors", "OneRunResult", "Scores", "finding_of", "judge", "judge_once", "load_finding"]

GUESSED = 0.2
"""Share of the coins of one run that are guessed: 10 to 25 % are best where epsilon is 10."""

Array = NDArray[np.float64]

Found = TypeVar("Found", bound=Finding)


@dataclass(frozen=True, eq=False)
class Scores:
    """A number a run and audited step; higher says that the run trained on the record itself (D), not on D'.

    Args:
        steps: (k,) increasing; the last is the released model.
        d: (k, runs on D), not NaN; or (k, runs on D, s) with names for s scores of each run, which say D where they
            are high or where they are low: the best one is chosen on some of the runs.
        d_prime: (k, runs on D'), in which the canary stood in the record's place; or (k, runs on D', s).
        names: (s,) of several scores.

    Raises:
        InputError: the shapes do not fit, a score is NaN, or steps do not increase.
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
            raise InputError(f"steps: expected increasing numbers from 1 on, got {self.steps}")

    @property
    def runs(self) -> int:
        """On D and D' together."""
        return int(self.d.shape[1]) + int(self.d_prime.shape[1])

    def save(self, path: str | Path) -> Path:
        """Write an npz file, all or nothing."""
        write_arrays(path, {"steps": np.array(self.steps), "d": self.d, "d_prime": self.d_prime})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read what `save`, or anyone, wrote: arrays `steps`, `d` and `d_prime`.

        Raises:
            InputError: not such a file.
        """
        with ArrayFile(path) as file:
            if missing := {"steps", "d", "d_prime"} - {*file.names}:
                raise InputError(f"{path}: expected arrays steps, d and d_prime; {', '.join(sorted(missing))} missing")
            for name, kinds, expected in (("steps", "iu", "k"), ("d", "fiu", "k runs"), ("d_prime", "fiu", "k runs")):
                dtype, shape = file.header(name)
                if dtype.kind not in kinds or len(shape) != len(expected.split()):
                    raise InputError(f"{path}: expected {name} of shape ({expected}), got {dtype} {shape}")
            found = file.read("steps", "d", "d_prime")
        return cls(tuple(found["steps"].tolist()), found["d"], found["d_prime"])


@dataclass(frozen=True)
class Errors:
    """How often the adversary was wrong about the models after so many steps, at one threshold.

    A run was said to be on D at and above the threshold, which was fixed without looking at the runs counted.
    """

    step: int
    threshold: float
    false_positives: int  # runs on D' that were said to be on D
    negatives: int  # runs on D' that were counted
    false_negatives: int  # runs on D that were said to be on D'
    positives: int  # runs on D that were counted


@dataclass(frozen=True)
class CanaryResult(BoundFinding):
    """Errors of the adversary at each audited step, and what follows from them for the claim.

    Bounds are computed from the counts, never stored beside them. Each holds at `confidence` by itself; the verdict
    rests on the last step alone, the released model.

    Raises:
        ConfigurationError: a method that needs the mechanism, which the claim does not name.
        InputError: no errors, or of more runs than there were.
    """

    scenario: ScenarioName
    claim: Claim
    method: BoundMethod
    confidence: float
    errors: tuple[Errors, ...]  # at each audited step, in order
    runs: int  # on D and D' together
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)  # what was trained on what, for readers

    def __post_init__(self) -> None:
        check_method(self.method, self.claim)
        if not self.errors or self.runs < max(at.negatives + at.positives for at in self.errors):
            raise InputError(f"expected errors at one step or more, of at most the {self.runs} runs; got {self.errors}")

    def _bound(self, *, without_errors: bool) -> float:
        at = self.errors[-1]
        return self.lower(replace(at, false_positives=0, false_negatives=0) if without_errors else at)

    def lower(self, at: Errors) -> float:
        """The lower bound at one audited step; at most 500, which promises nothing."""
        counts = (at.false_positives, at.negatives, at.false_negatives, at.positives)
        family = {"confidence": self.confidence, **self.claim.after(at.step).sampled()}
        return min(epsilon_from_errors(*counts, self.claim.delta, self.method, **family), VACUOUS)

    def _detectable(self, promise: Promise) -> float | None:
        at = self.errors[-1]
        errors = ErrorCounts(at.false_positives, at.negatives, at.false_negatives, at.positives, self.confidence)
        return detectable(errors, self.method, promise, fixed=at.negatives + at.positives == self.runs)

    def _counts(self) -> dict[str, Any]:
        rows = [asdict(at) for at in self.errors]
        for row in rows:
            row["threshold"] = row["threshold"] if math.isfinite(row["threshold"]) else str(row["threshold"])
        return {"errors": rows}


@dataclass(frozen=True)
class OneRunResult(BoundFinding):
    """Guesses of the coins of many canaries in one training.

    Raises:
        ConfigurationError: method "f-dp", and the claim names no mechanism.
        InputError: not 0 <= correct <= guesses <= canaries.
    """

    claim: Claim
    method: OneRunMethod
    confidence: float
    canaries: int  # coins, each of which chose one of two records, or of two opposite gradients
    guesses: int  # a number fixed beforehand, of those whose score was the largest
    correct: int
    seconds: float
    setting: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 1
    scenario: ScenarioName = "gradient"

    def __post_init__(self) -> None:
        check_method(self.method, self.claim, OneRunMethod)
        if not 0 <= self.correct <= self.guesses <= self.canaries or not self.guesses or self.runs != 1:
            raise InputError(
                "expected 0 <= correct <= guesses <= canaries, at least one guess and one run; got"
                f" {self.correct} of {self.guesses} of {self.canaries}, {self.runs} runs"
            )

    def _bound(self, *, without_errors: bool) -> float:
        correct = self.guesses if without_errors else self.correct
        family = {"confidence": self.confidence, **self.claim.sampled()}
        counts = (correct, self.guesses, self.canaries)
        return min(one_run_lower_bound(*counts, self.claim.delta, self.method, **family), VACUOUS)

    def _detectable(self, promise: Promise) -> float | None:
        return detectable_once(self.correct, self.guesses, self.canaries, self.method, promise, self.confidence)

    def _counts(self) -> dict[str, Any]:
        return {"canaries": self.canaries, "guesses": self.guesses, "correct": self.correct}


def judge_once(
    scores: ArrayLike,
    coins: ArrayLike,
    claim: Claim,
    *,
    guesses: int | None = None,
    centre: float | None = None,
    method: OneRunMethod = "f-dp",
    confidence: float = 0.95,
    scenario: str = "gradient",
    seconds: float = 0.0,
    setting: Mapping[str, Any] | None = None,
) -> OneRunResult:
    """The finding of one training with many canaries, from any scores (arXiv 2305.08846, with substituted records).

    For each canary a fair coin of its own chose which of two records, or gradients, the training got. The adversary
    scores each by what was released, without knowing the coins, and guesses those of which the scores are surest.

    Args:
        scores: (m,) a number a canary, higher says that its coin was True; may be infinite, not NaN.
        coins: (m,) of bool, or 0 and 1.
        claim: what they are measured against.
        guesses: how many coins are guessed, fixed before the scores were seen; None: a fifth.
        centre: the score of a canary of which nothing is known: the scores farthest from it are guessed, above it True
            and below it False. None: not known; the highest half of the guesses is True, the lowest half False.
        method: "f-dp" (takes the mechanism to be the claimed one, but for its noise) or "steinke".
        confidence: of the bound.
        scenario: name or number of the canaries.
        seconds: that training and scoring took.
        setting: what was trained on what, for readers.

    Raises:
        ConfigurationError: method "f-dp", and the claim names no mechanism.
        InputError: scores that are NaN or of another shape than the coins, coins that are no fair coins, more guesses
            than canaries, or so few that all of them could be right by chance.
    """
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(coins)
    if values.ndim != 1 or not values.size or truth.shape != values.shape:
        raise InputError(f"expected scores (m,) and a coin for each, got shapes {values.shape} and {truth.shape}")
    if np.isnan(values).any():
        raise InputError(f"scores: {int(np.isnan(values).sum())} of {values.size} are NaN; every canary needs one")
    if truth.dtype != bool and not np.isin(truth, (0, 1)).all():
        raise InputError(f"coins: expected True and False, or 1 and 0, got {np.unique(truth)[:5]}")
    truth = truth.astype(bool)
    if 2.0 ** (1 - truth.size) < 1e-6 and truth.all() | ~truth.any():
        raise InputError(
            f"coins: all {truth.size} are {bool(truth[0])}; each must be drawn by itself, with even chances"
        )
    count = max(1, round(GUESSED * values.size)) if guesses is None else whole_number("guesses", guesses, 1)
    if count > values.size:
        raise InputError(f"guesses: expected at most the {values.size} canaries, got {count}")
    check_guesses(count, confidence)
    if centre is None:
        order = values.argsort(kind="stable")
        low, high = order[: count // 2], order[len(order) - (count - count // 2) :]
        correct = int((~truth[low]).sum() + truth[high].sum())
    else:
        from_centre = values - centre
        surest = np.abs(from_centre).argsort(kind="stable")[len(values) - count :]
        correct = int(((from_centre > 0) == truth)[surest].sum())
    return OneRunResult(
        claim, method, confidence, values.size, count, correct, seconds, dict(setting or {}),
        scenario=scenario_of(scenario),
    )  # fmt: skip


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
    """Bounds at every audited step.

    Args:
        scores: of the runs on D and on D'; of several, one is chosen with its threshold, and named in the setting.
        claim: what they are measured against.
        scenario: name or number of the canary.
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: fixed before the scores were seen, of the first score where there are several; None: chosen on 30 %
            of the runs, which then do not count.
        confidence: of each bound.
        seconds: that training and scoring took.
        seed: of the split.
        setting: what was trained on what, for readers.

    Raises:
        ConfigurationError: a method that needs the mechanism, which the claim does not name.
        InputError: too few runs.
    """
    check_method(method, claim)
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
    """Of several findings about one claim, the one that decides.

    One that refutes the claim, that with the highest bound; otherwise the white box, if every check passed; otherwise
    the canaries that would have found the smallest epsilon. Each bound must hold at a confidence that allows for their
    number.
    """
    if not findings:
        raise InputError("expected one finding or more, got none")

    def rank(found: Finding) -> tuple[int, float, float]:
        if not isinstance(found, BoundFinding):
            return {"refuted": 3, "as claimed": 2, "not refuted": 0}[found.verdict], 0.0, 0.0
        would = math.inf if found.detectable is None else found.detectable
        refuted = found.verdict == "refuted"
        return 4 if refuted else 1, found.epsilon_lower - found.claimed if refuted else -would, found.epsilon_lower

    return max(findings, key=rank)


def finding_of(content: Any) -> Finding:
    """The finding that its `to_dict` gave, its bound computed again; other fields are ignored.

    Raises:
        InputError: fields are missing, or a stated bound, epsilon or verdict does not follow from the counts.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"canaries: expected an object as `safexplain canaries --json` prints, got {content!r:.60}")
    try:
        found = counted(content)
        found.check(content)
    except InputError as error:
        raise InputError(f"canary result: {error}") from None
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"canary result: expected what `safexplain canaries --json` prints; {error!r}") from None
    return found


def counted(content: Mapping[str, Any]) -> Finding:
    """What follows from the counts that `to_dict` gave; nothing is compared with what is stated beside them."""
    if "checks" in content:
        return white_box_of(content)
    kind = OneRunResult if "guesses" in content else CanaryResult
    values = {f.name: content[f.name] for f in fields(kind)}
    values |= {"scenario": scenario_of(content["scenario"]), "claim": Claim.from_dict(content["claim"])}
    if "errors" in values:
        rows = [{**row, "threshold": float(row["threshold"])} for row in values["errors"]]
        values["errors"] = tuple(Errors(**row) for row in rows)
    return kind(**values)


def load_finding(path: str | Path) -> Finding:
    """Read canaries.json; InputError: it cannot be read, or as `finding_of`."""
    return finding_of(strict_json.load(path, "canaries"))


def check_guesses(guesses: int, confidence: float) -> None:
    """Raise InputError if so few guesses can all be right by chance."""
    if 0.5**guesses > 1 - confidence:
        least = math.ceil(-math.log2(1 - confidence) - 1e-9)
        raise InputError(
            f"{guesses} guesses can all be right by chance: expected at least {least} at a confidence of"
            f" {confidence:g}. Give guesses=, or {math.ceil(least / GUESSED)} canaries, of which a fifth are guessed"
        )


def check_method(method: str, claim: Claim, kind: Any = BoundMethod) -> None:
    """Raise ConfigurationError unless it is one of this kind; the first inverts the curve of the claim's mechanism."""
    curved, *others = names = get_args(kind)
    if method not in names:
        raise ConfigurationError(f"method: expected one of {', '.join(names)}, got {method!r}")
    if method == curved and claim.mechanism is None:
        free = next(name for name in others if name in FREE)
        raise ConfigurationError(
            f'method="{curved}" needs the mechanism (sample rate and steps); give the claim one, or use "{free}"'
        )
