"""Scores of runs on D and D', errors counted in them, and the finding about a claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from safexplain._privacy_loss import VACUOUS
from safexplain._validate import check_follows, check_number
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict import strict_json
from safexplain.verdict.canaries.claim import TOLERANCE, Claim, Finding, ScenarioName, Verdict, scenario_of
from safexplain.verdict.canaries.white_box import white_box_of
from safexplain.verdict.stats import bound_epsilon, epsilon_from_errors
from safexplain.verdict.stats.detectable import detectable, promise_of
from safexplain.verdict.stats.lower_bounds import BoundMethod, ErrorCounts, choose_score

__all__ = ["CanaryResult", "Errors", "Scores", "finding_of", "judge", "load_finding"]

LEAST_SURE, SUREST = 0.5, 1 - 1e-9
"""Allowed confidences."""

DETECTABLE_TOLERANCE = 0.05
"""Relative and absolute difference of a detectable epsilon that is allowed between versions."""

FREE = ("clopper-pearson",)
"""Methods that assume nothing about the mechanism."""

Array = NDArray[np.float64]

Found = TypeVar("Found", bound=Finding)


@dataclass(frozen=True, eq=False)
class Scores:
    """One score for each run and audited step; higher means that the run trained on the record (D), not on D'.

    Args:
        steps: (k,) increasing; the last is the released model.
        d: (k, runs on D), not NaN; or (k, runs on D, s) with `names` for s scores of each run, high or low on D, of
            which the best is chosen on some of the runs.
        d_prime: (k, runs on D'), where the canary replaced the record; or (k, runs on D', s).
        names: (s,) if there are several scores.

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
    """The adversary's errors after one number of steps, at a threshold that was not chosen on the counted runs.

    Runs whose score reaches the threshold are classified as D.
    """

    step: int
    threshold: float
    false_positives: int  # runs on D' classified as D
    negatives: int  # counted runs on D'
    false_negatives: int  # runs on D classified as D'
    positives: int  # counted runs on D


@dataclass(frozen=True)
class CanaryResult(Finding):
    """Errors of the adversary at each audited step, and the verdict about the claim.

    Bounds are always computed from the counts. Each holds separately at `confidence`; the verdict rests on the last
    step alone, the released model.

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
        """Lower bound on epsilon under substitution for the released model, capped at 500."""
        return self.lower(self.errors[-1])

    @cached_property
    def ceiling(self) -> float:
        """The bound if the adversary had made no error: the largest that these runs can show."""
        return self.lower(replace(self.errors[-1], false_positives=0, false_negatives=0))

    def lower(self, at: Errors) -> float:
        """The lower bound at one audited step, capped at 500."""
        counts = (at.false_positives, at.negatives, at.false_negatives, at.positives)
        family = {"confidence": self.confidence, **self.claim.after(at.step).sampled()}
        return min(epsilon_from_errors(*counts, self.claim.delta, self.method, **family), VACUOUS)

    @cached_property
    def detectable(self) -> float | None:
        """The smallest epsilon of a training that these canaries would have refuted in 95 of 100 audits.

        None: not even a vacuous one. The canary is taken to be as strong as its errors in this training show.
        """
        c, at = self.claim, self.errors[-1]
        if (promise := promise_of(self.claimed, c.delta, c.mechanism, c.adjacency)) is None:
            return None
        errors = ErrorCounts(at.false_positives, at.negatives, at.false_negatives, at.positives, self.confidence)
        return detectable(errors, self.method, promise, fixed=at.negatives + at.positives == self.runs)

    @property
    def verdict(self) -> Verdict:
        """Refuted if the bound is above the claim; a correct claim is refuted in at most 1 - confidence of audits.

        Canaries substitute a record, so a claim under add/remove can be refuted although the training is correct: its
        smaller epsilon does not cover the content of a record.
        """
        return "refuted" if self.epsilon_lower > self.claimed else "not refuted"

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        add_remove, substitute = self.claim.add_remove, self.claim.substitute
        assumed = "" if self.method in FREE else ", assuming that everything but the noise is as claimed"
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
        """Plain JSON types: results for scripts, with the counts behind them."""
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
        scores: of the runs on D and on D'; of several scores, one is chosen and named in the setting.
        claim: the claim to test.
        scenario: name or number of the canary.
        method: of `safexplain.verdict.stats.epsilon_lower_bound`.
        threshold: fixed before the scores were seen, for the first score if there are several; None: chosen on 30 % of
            the runs, which then do not count.
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
    """The refutation with the highest bound; else a white box that passed; else the smallest detectable epsilon.

    Each bound must hold at a confidence that allows for their number.
    """
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
    """Read what a finding's `to_dict` wrote; raises `InputError` if it does not follow from the counts."""
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
    """The finding from the counts that `to_dict` wrote, without comparing the stated results."""
    if "checks" in content:
        return white_box_of(content)
    values = {f.name: content[f.name] for f in fields(CanaryResult)}
    values |= {"scenario": scenario_of(content["scenario"]), "claim": Claim.from_dict(content["claim"])}
    rows = [{**row, "threshold": float(row["threshold"])} for row in values["errors"]]
    return CanaryResult(**{**values, "errors": tuple(Errors(**row) for row in rows)})


def load_finding(path: str | Path) -> Finding:
    """Read canaries.json; raises `InputError` if it cannot be read, or as `finding_of`."""
    return finding_of(strict_json.load(path, "canaries"))


def check_method(method: str, confidence: float, claim: Claim) -> None:
    """Raise `ConfigurationError` unless method and confidence are valid, and "pld" has a claim with a mechanism."""
    if not LEAST_SURE <= check_number("confidence", confidence) <= SUREST:
        raise ConfigurationError(f"confidence: expected a number in [0.5, 1 - 1e-9], got {confidence:.12g}")
    curved, *others = names = get_args(BoundMethod)
    if method not in names:
        raise ConfigurationError(f"method: expected one of {', '.join(names)}, got {method!r}")
    if method == curved and claim.mechanism is None:
        free = next(name for name in others if name in FREE)
        raise ConfigurationError(
            f'method="{curved}" needs a claim with a mechanism (sample rate and steps); add it, or use "{free}"'
        )
