"""ROC curves of membership attacks, rates at a false-positive rate, and exact limits of such rates.

TPR(t) = P(score >= t | member), FPR(t) = P(score >= t | non-member): equal scores are accepted or rejected together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy import stats as distributions

from safexplain.errors import InputError


def clopper_pearson(successes: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial proportion (Clopper & Pearson, Biometrika 1934).

    Its coverage is at least `confidence` for every true proportion. Successes may be fractional (sums of shares).

    Raises:
        InputError: not 0 <= successes <= trials with trials >= 1, or confidence outside of (0, 1).
    """
    check_counts(successes, trials)
    check_confidence(confidence)
    tail = (1 - confidence) / 2
    low = special.betaincinv(successes, trials - successes + 1, tail) if successes > 0 else 0.0
    high = special.betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return float(low), float(high)


def check_counts(successes: float, trials: int) -> None:
    """Raise InputError unless 0 <= successes <= trials with trials >= 1."""
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")


def check_confidence(confidence: float) -> None:
    """Raise InputError unless it lies in (0, 1)."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence: expected a number in (0, 1), got {confidence!r}")


@lru_cache(maxsize=16)
def upper_limits(trials: int, confidence: float = 0.95) -> NDArray[np.float64]:
    """(trials + 1,) upper ends of `clopper_pearson`, read-only."""
    successes = np.arange(trials)
    check_counts(0, trials)
    check_confidence(confidence)
    limits = np.append(special.betaincinv(successes + 1, trials - successes, (1 + confidence) / 2), 1.0)
    limits.flags.writeable = False
    return limits


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Members and non-members at or above every distinct threshold, from none to all of them."""

    thresholds: NDArray[np.float64]  # (k,) decreasing, the first is +inf; (k,) counts
    true_positives: NDArray[np.int64]
    false_positives: NDArray[np.int64]
    members: int
    non_members: int

    @cached_property
    def tpr(self) -> NDArray[np.float64]:
        """(k,) share of members found."""
        return self.true_positives / self.members

    @cached_property
    def fpr(self) -> NDArray[np.float64]:
        """(k,) false positives as a share of the non-members."""
        return self.false_positives / self.non_members

    @property
    def auc(self) -> float:
        """Area under the curve = P(member scores higher) + P(equal) / 2 (Mann-Whitney)."""
        return float((np.diff(self.fpr) * (self.tpr[1:] + self.tpr[:-1]) / 2).sum())

    @property
    def balanced_accuracy(self) -> float:
        """Largest (TPR + 1 - FPR) / 2; optimistic, because chosen on the scored examples."""
        return float((1 + (self.tpr - self.fpr).max()) / 2)


@dataclass(frozen=True)
class RateAtFpr:
    """True-positive rate at the lowest threshold whose false-positive rate is at most `fpr`, and its interval."""

    fpr: float
    threshold: float
    true_positives: int
    members: int
    false_positives: int
    non_members: int
    confidence: float

    @property
    def tpr(self) -> float:
        """Share of members found."""
        return self.true_positives / self.members

    @property
    def realised_fpr(self) -> float:
        """False positives as a share of the non-members; never above `fpr`."""
        return self.false_positives / self.non_members

    @property
    def low(self) -> float:
        """Lower end of the two-sided Clopper-Pearson interval of the TPR."""
        return clopper_pearson(self.true_positives, self.members, self.confidence)[0]

    @property
    def high(self) -> float:
        """Upper end of it."""
        return clopper_pearson(self.true_positives, self.members, self.confidence)[1]


def roc(scores: ArrayLike, membership: ArrayLike) -> RocCurve:
    """The ROC curve of scores where higher says "member".

    Args:
        scores: (n,) finite or infinite numbers, not NaN.
        membership: (n,) bool, True for members.

    Raises:
        InputError: shapes differ, NaN scores, or one of the two groups is empty.
    """
    s, member = checked(scores, membership)
    order = np.argsort(-s, kind="stable")
    s, member = s[order], member[order]
    last_of_ties = np.append(s[1:] != s[:-1], True)
    found = np.cumsum(member)[last_of_ties]
    wrong = np.cumsum(~member)[last_of_ties]
    return RocCurve(
        thresholds=np.append(np.inf, s[last_of_ties]),
        true_positives=np.append(0, found),
        false_positives=np.append(0, wrong),
        members=int(member.sum()),
        non_members=int((~member).sum()),
    )


def tpr_at_fpr(
    scores: ArrayLike | RocCurve, membership: ArrayLike | None = None, fpr: float = 0.01, *, confidence: float = 0.95
) -> RateAtFpr:
    """True-positive rate at the lowest threshold whose false-positive rate is at most `fpr` (never interpolated).

    Args:
        scores: (n,) scores, or a `RocCurve` (then without `membership`).
        membership: (n,) bool.
        fpr: in [0, 1].
        confidence: of the interval.

    Raises:
        InputError: as `roc`, or `fpr` outside of [0, 1].
    """
    if not 0 <= fpr <= 1:
        raise InputError(f"fpr: expected a number in [0, 1], got {fpr!r}")
    if isinstance(scores, RocCurve):
        curve = scores
    elif membership is None:
        raise InputError("membership is missing: pass (n,) bool with the scores, or a RocCurve")
    else:
        curve = roc(scores, membership)
    at = int(np.searchsorted(curve.fpr, fpr, side="right")) - 1
    return RateAtFpr(
        fpr=float(fpr),
        threshold=float(curve.thresholds[at]),
        true_positives=int(curve.true_positives[at]),
        members=curve.members,
        false_positives=int(curve.false_positives[at]),
        non_members=curve.non_members,
        confidence=confidence,
    )


def auc_interval(curve: RocCurve, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the AUC of independent examples, by DeLong's variance (DeLong, DeLong & Clarke-Pearson, 1988).

    It is symmetric on the logit of the AUC. At an AUC of 0 or 1 the rule of three applies: 3 / the smaller group.
    """
    m, n, auc = curve.members, curve.non_members, curve.auc
    members, others = np.diff(curve.true_positives), np.diff(curve.false_positives)
    below = 1 - curve.fpr[1:] + others / n / 2  # share of non-members a member at this score beats
    above = curve.tpr[:-1] + members / m / 2  # share of members that beat a non-member at this score
    spread = _weighted_variance(below, members) / m + _weighted_variance(above, others) / n
    if spread <= 0 or auc in (0.0, 1.0):
        margin = min(1.0, 3 / min(m, n))
        return max(0.0, auc - margin), min(1.0, auc + margin)
    z = distributions.norm.ppf(0.5 + confidence / 2) * np.sqrt(spread) / (auc * (1 - auc))
    logit = np.log(auc / (1 - auc))
    return float(1 / (1 + np.exp(-(logit - z)))), float(1 / (1 + np.exp(-(logit + z))))


def _weighted_variance(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    total = int(counts.sum())
    if total < 2:
        return 0.0
    mean = float((values * counts).sum() / total)
    return float((counts * (values - mean) ** 2).sum() / (total - 1))


def checked(scores: ArrayLike, membership: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n,) scores and membership, or InputError."""
    s, member = np.asarray(scores, dtype=np.float64), np.asarray(membership)
    if s.ndim != 1 or s.shape != member.shape:
        raise InputError(f"expected scores and membership of one shape (n,), got {s.shape} and {member.shape}")
    if member.dtype != np.bool_:
        if not np.isin(member, (0, 1)).all():
            raise InputError(f"membership: expected bool or 0/1, got dtype {member.dtype}")
        member = member.astype(bool)
    if np.isnan(s).any():
        raise InputError(f"scores: expected no NaN, got {int(np.isnan(s).sum())} of {s.size}; score every example")
    if member.all() or not member.any():
        raise InputError(f"expected members and non-members, got {int(member.sum())} and {int((~member).sum())}")
    return s, member
