"""Lower bounds on the epsilon of a mechanism, from an attack's errors on runs with D and D', or from guessed coins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from dp_accounting import get_epsilon_gaussian
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from safexplain._privacy_loss import (
    ERROR,
    ROUNDING,
    SMALLEST_DELTA,
    VACUOUS,
    Adjacency,
    Sampling,
    Steps,
    epsilon_of,
    privacy_loss,
    typical_loss,
)
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats.roc import check_confidence, check_counts, clopper_pearson, upper_limits

Array = NDArray[np.float64]

COARSER = 3.0  # width of the privacy losses' grid over the accountant's, for nine times its error
ORDERS = 400  # at which the privacy profile is evaluated
NEGLIGIBLE = 1e-11  # smaller deltas are left out

UNITS = 4096  # points of the grid of noise multipliers while they grow by a factor of e
LOWEST, HIGHEST = -4 * UNITS, 28 * UNITS  # their distance is a power of two, so every bisection visits the same points
RESOLUTION = 0.005  # relative distance in epsilon at which the bisection stops
COARSE = 0.03  # the same when thresholds are compared
SMALLEST_NOISE = 1 / 16  # below this (twice this for a fixed size) the exponentials of a curve overflow
UNNOTICEABLE = 1e-7  # mean privacy loss that counts as epsilon 0


@dataclass(frozen=True)
class GaussianTradeOff:
    """The trade-off between N(0, 1) and N(mu, 1) (Dong, Roth and Su 2019, arXiv 1905.02383, equation 6)."""

    mu: float
    epsilon: float  # `gaussian_epsilon`

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """(n,) or () least false-negative rates."""
        return np.asarray(ndtr(-ndtri(fpr) - self.mu))


@dataclass(frozen=True)
class PiecewiseLinear:
    """The largest of straight lines intercept - slope * fpr, each below the curve."""

    epsilon: float  # lower bound on that of the mechanism
    slopes: Array  # (k,) decreasing
    intercepts: Array  # (k,)
    crossings: Array  # (k - 1,) false-positive rates, not decreasing, above which the next line holds

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """(n,) or () lower bounds on the least false-negative rates."""
        given = np.asarray(fpr, dtype=np.float64)
        at = self.crossings.searchsorted(given)
        return np.asarray(np.maximum(0.0, self.intercepts[at] - self.slopes[at] * given))


TradeOff = GaussianTradeOff | PiecewiseLinear


@lru_cache(maxsize=4096)
def trade_off(mechanism: Steps, delta: float) -> TradeOff:
    """Least false-negative rates of any attack on the sampled Gaussian mechanism, from below.

    For full batches the curve is that of one Gaussian. Otherwise it follows from the privacy profile delta(e) under
    substitution (arXiv 1905.02383, Proposition 2.12):

        f(alpha) = sup over e >= 0 of max{0, 1 - delta(e) - exp(e) alpha, exp(-e) (1 - delta(e) - alpha)}.

    A delta that is too large makes f too small. The error by which the accountant may raise epsilon is subtracted.
    """
    q, steps, noise = mechanism.sample_rate, mechanism.steps, mechanism.noise_multiplier
    if q == 1:
        mu = 2 * math.sqrt(steps) / noise
        return GaussianTradeOff(mu, gaussian_epsilon(mu, delta))
    slack = ROUNDING * steps
    loss = privacy_loss([mechanism], "substitute", error=COARSER**2 * ERROR)
    epsilon = min(loss.epsilon(delta + slack), VACUOUS)
    top = loss.epsilon(max(NEGLIGIBLE, 10 * slack))
    orders = np.linspace(0.0, min(max(top, 1e-6), VACUOUS), ORDERS)
    profile = np.minimum(loss.delta(orders) + slack, 1.0)
    # approximate largest increase of epsilon by discretisation, which grows with the square of the grid's width
    raised = COARSER**2 * ERROR * max(min(epsilon, 1.0), epsilon / 10)
    return PiecewiseLinear(max(epsilon - raised, 0.0), *_envelope(orders, profile))


def gaussian_distance(fpr: ArrayLike, fnr: ArrayLike) -> Array:
    """The mu whose Gaussian trade-off passes through these error rates."""
    return np.asarray(-ndtri(fpr) - ndtri(fnr))


@lru_cache(maxsize=65536)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at delta, exact (arXiv 1905.02383, Corollary 2.13); 0 for mu <= 0."""
    if mu <= 0:
        return 0.0
    with np.errstate(divide="ignore"):  # a log delta of -inf while an upper end is searched
        return float(get_epsilon_gaussian(1 / mu, delta))


def _envelope(orders: Array, profile: Array) -> tuple[Array, Array, Array]:
    shrink = np.exp(-orders[1:])
    slopes = np.concatenate([np.exp(orders[::-1]), shrink])
    intercepts = np.concatenate([1 - profile[::-1], shrink * (1 - profile[1:])])
    crossings = np.maximum.accumulate(np.diff(intercepts) / np.diff(slopes))
    return slopes, intercepts, crossings


@dataclass(frozen=True)
class Family:
    """The sampled Gaussian mechanism with any noise, described as in `Steps`.

    Raises:
        ConfigurationError: a value out of range, or shuffled batches.
    """

    sample_rate: float = 1.0
    steps: int = 1
    sampling: Sampling | None = None  # None: "poisson", or a full batch where the sample rate is 1

    def __post_init__(self) -> None:
        if self.sampling is None:
            object.__setattr__(self, "sampling", "full-batch" if self.sample_rate == 1 else "poisson")
        if self._of(1.0).steps == 0:
            raise ConfigurationError("steps: expected at least 1, got 0")

    @property
    def is_gaussian(self) -> bool:
        """Whether all steps together are one Gaussian mechanism."""
        return self.sample_rate == 1

    def at(self, point: int) -> Steps:
        """The member at a point of the grid."""
        return self._of(math.exp(point / UNITS))

    def _of(self, noise: float) -> Steps:
        return Steps(noise, self.sample_rate, self.steps, self.sampling or "poisson")


class Claimed(TypedDict, total=False):
    """Keyword arguments of a bound."""

    confidence: float
    sample_rate: float
    steps: int
    sampling: Sampling | None


def confidence_and_family(claimed: Claimed) -> tuple[float, Family]:
    """The confidence and the mechanism in keyword arguments."""
    mechanism: dict[str, Any] = {**claimed}
    confidence = mechanism.pop("confidence", 0.95)
    return confidence, Family(**mechanism)


def smallest_refuted(
    family: Family, delta: float, refutes: Callable[[TradeOff], bool], resolution: float = RESOLUTION
) -> tuple[float, TradeOff | None]:
    """Epsilon and trade-off curve of the smallest noise multiplier that is refuted, a lower bound.

    `refutes` tests whether the errors are too few for a curve, and so for every higher one, which more noise has.
    Epsilon is infinite if no noise explains so few errors; if every noise does, it is 0 and the curve None.
    """
    low, high = LOWEST, HIGHEST  # not refuted, and refuted; the ends of the grid count as such
    below: TradeOff | None = None
    above: TradeOff | None = None
    while high - low > 1 and not (below and above and below.epsilon - above.epsilon <= resolution * above.epsilon):
        middle = (low + high) // 2
        side = _side(family, middle)
        if side < 0:
            low = middle
        elif side > 0:
            high = middle
        elif refutes(curve := trade_off(family.at(middle), delta)):
            high, above = middle, curve
        else:
            low, below = middle, curve
    if above is None:
        return 0.0, None
    return math.inf if below is None and _overflows(family.at(low)) else above.epsilon, above


@lru_cache(maxsize=65536)
def _side(family: Family, point: int) -> int:
    """-1: too little noise for a curve; 1: too much to learn anything; else 0."""
    member = family.at(point)
    if _overflows(member):
        return -1
    loss = typical_loss(member)
    return int(loss < UNNOTICEABLE) - int(loss > VACUOUS)


def _overflows(member: Steps) -> bool:
    wide = 2 if member.sampling == "fixed-size" else 1
    return member.sample_rate < 1 and member.noise_multiplier < wide * SMALLEST_NOISE


BoundMethod = Literal["pld", "gdp", "clopper-pearson"]


@dataclass(frozen=True)
class ErrorCounts:
    """Errors of an attack at a threshold that was not chosen on these runs."""

    false_positives: int  # runs on D' classified as D
    negatives: int
    false_negatives: int  # runs on D classified as D'
    positives: int
    confidence: float = 0.95  # of the bound; each rate's limit has half of the risk

    def __post_init__(self) -> None:
        check_counts(self.false_positives, self.negatives)
        check_counts(self.false_negatives, self.positives)

    @property
    def fpr(self) -> float:
        """Upper Clopper-Pearson limit of the false-positive rate."""
        return clopper_pearson(self.false_positives, self.negatives, self.confidence)[1]

    @property
    def fnr(self) -> float:
        """Upper Clopper-Pearson limit of the false-negative rate."""
        return clopper_pearson(self.false_negatives, self.positives, self.confidence)[1]


@dataclass(frozen=True)
class Method:
    """A row of `METHODS`."""

    bound: Callable[[ErrorCounts, float, Family], float]  # on epsilon, at least 0, from errors at a delta
    merit: Callable[[Array, Array, float, Family], Array]  # (k,) larger for limits of both rates with a higher bound
    needs_delta: bool = False  # delta must be above 0


def _pld_bound(errors: ErrorCounts, delta: float, family: Family) -> float:
    if family.is_gaussian:
        return _gdp_bound(errors, delta, family)
    fpr, fnr = errors.fpr, errors.fnr
    if fpr + fnr >= 1:
        return 0.0
    return smallest_refuted(family, delta, lambda curve: bool(curve(fpr) > fnr))[0]


def _pld_merit(fpr: Array, fnr: Array, delta: float, family: Family) -> Array:
    """Distance below the highest curve that is refuted."""
    distance = gaussian_distance(fpr, fnr)
    if family.is_gaussian:
        return distance

    _, curve = smallest_refuted(family, delta, lambda curve: bool((curve(fpr) > fnr).any()), COARSE)
    return distance if curve is None else curve(fpr) - fnr


def _gdp_bound(errors: ErrorCounts, delta: float, family: Family) -> float:
    return gaussian_epsilon(float(gaussian_distance(errors.fpr, errors.fnr)), delta)


def _direct_bound(errors: ErrorCounts, delta: float, family: Family) -> float:
    """From FPR + e^eps FNR >= 1 - delta and its mirror image."""
    merit = _direct_merit(np.array([errors.fpr]), np.array([errors.fnr]), delta, family)
    return max(0.0, math.log(max(float(merit[0]), 1.0)))


def _direct_merit(fpr: Array, fnr: Array, delta: float, family: Family) -> Array:
    return np.maximum((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)


METHODS: dict[str, Method] = {
    "pld": Method(_pld_bound, _pld_merit, needs_delta=True),
    "gdp": Method(_gdp_bound, lambda fpr, fnr, *_: gaussian_distance(fpr, fnr), needs_delta=True),
    "clopper-pearson": Method(_direct_bound, _direct_merit),
}


CHOOSING = 0.3  # share of the runs that choose a threshold
STRICTER = 0.02  # thresholds are compared at this share of the risk: at all of it, the best is often an extreme one


def epsilon_from_errors(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    delta: float,
    method: BoundMethod = "clopper-pearson",
    **claimed: Unpack[Claimed],
) -> float:
    """Lower bound on epsilon from errors of an attack whose threshold must not be chosen on the counted runs.

    Each error rate is taken at its Clopper-Pearson upper limit with half of 1 - confidence, so that both hold jointly.

    - "pld": the sampled Gaussian mechanism of this sampling rate, steps and sampling, with some noise; its trade-off
      curve under substitution is inverted. For a full batch it equals "gdp".
    - "gdp": assumes one Gaussian mechanism (Nasr et al. 2023, arXiv 2302.07956), and is too high for few steps with a
      sampling rate below 1.
    - "clopper-pearson": assumes nothing about the mechanism (Kairouz, Oh and Viswanath, arXiv 1311.0776, Theorem 2.1),
      and finds less than half of the epsilon of a Gaussian one.

    Args:
        false_positives: runs on D' classified as D.
        negatives: runs on D'.
        false_negatives: runs on D classified as D'.
        positives: runs on D.
        delta: in (0, 1); 0 is allowed for "clopper-pearson".
        method: one of these.
        claimed: `confidence` of the bound (.95), and, for "pld", `sample_rate` (1), `steps` (1), and `sampling`
            ("poisson", or a full batch where the sample rate is 1) of the mechanism.

    Raises:
        InputError: counts, delta, confidence or method out of range.
        ConfigurationError: sample_rate, steps or sampling out of range.
    """
    confidence, family = confidence_and_family(claimed)
    errors = ErrorCounts(false_positives, negatives, false_negatives, positives, confidence)
    return checked_method(method, delta, confidence).bound(errors, delta, family)


def checked_method(name: str, delta: float, confidence: float) -> Method:
    """The method of this name, or `InputError`."""
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")
    check_confidence(confidence)
    if not 0 <= delta < 1:
        raise InputError(f"delta: expected a number in [0, 1), got {delta!r}")
    if METHODS[name].needs_delta and delta < SMALLEST_DELTA:
        raise InputError(
            f"delta: method {name!r} needs at least {SMALLEST_DELTA:g}, because Gaussian noise has no epsilon at delta"
            f' 0; got {delta!r}. Increase delta, or use method "clopper-pearson"'
        )
    return METHODS[name]


@dataclass(frozen=True, kw_only=True)
class LowerBound(ErrorCounts):
    """A lower bound on epsilon, with the errors behind it."""

    method: BoundMethod
    delta: float  # of the epsilon
    threshold: float  # runs whose scores reach it are classified as D
    family: Family  # the claimed mechanism without its noise

    @cached_property
    def epsilon(self) -> float:
        """The bound, at least 0; infinite if no noise explains so few errors (method "pld")."""
        return METHODS[self.method].bound(self, self.delta, self.family)

    @cached_property
    def ceiling(self) -> float:
        """The bound without any error, the largest that so many runs can show."""
        return replace(self, false_positives=0, false_negatives=0).epsilon

    def __str__(self) -> str:
        return (
            f"epsilon at least {self.epsilon:.2f} with {self.confidence:.0%} confidence at delta {self.delta:g}"
            f" ({self.method}; at most {self.ceiling:.2f} could be shown with {self.positives:,} +"
            f" {self.negatives:,} runs)"
        )


def bound_epsilon(
    scores_d: ArrayLike,
    scores_d_prime: ArrayLike,
    delta: float,
    method: BoundMethod = "pld",
    *,
    threshold: float | None = None,
    seed: int = 0,
    **claimed: Unpack[Claimed],
) -> LowerBound:
    """Lower bound on epsilon from scores of independent runs on D and on D'; higher scores say D.

    Args:
        scores_d: (n,) scores of runs on D; may be infinite, not NaN.
        scores_d_prime: (m,) scores of runs on D', which differs from D in one record.
        delta: in (0, 1); 0 is allowed for "clopper-pearson".
        method: "pld", "gdp" or "clopper-pearson", see `epsilon_from_errors`.
        threshold: fixed beforehand, so that all runs count. None: the one with the highest bound on a random 30 % of
            the runs on each data set; the others count.
        seed: of this random choice.
        claimed: as in `epsilon_from_errors`.

    Raises:
        InputError: scores that are NaN, of another shape or too few; delta, confidence or method out of range.
        ConfigurationError: sample_rate, steps or sampling out of range.
    """
    d, d_prime = _scores("scores_d", scores_d), _scores("scores_d_prime", scores_d_prime)
    confidence, family = confidence_and_family(claimed)
    row = checked_method(method, delta, confidence)
    if threshold is None:
        (d_first, d), (d_prime_first, d_prime) = _parts(d, d_prime, seed)
        at, best, _ = _best_threshold(d_first, d_prime_first, row, delta, confidence, family)
        threshold = at[best]
    elif math.isnan(threshold):
        raise InputError("threshold: expected a number or None, got NaN")
    return LowerBound(
        method=method,
        delta=float(delta),
        confidence=float(confidence),
        threshold=float(threshold),
        false_positives=int((d_prime >= threshold).sum()),
        negatives=d_prime.size,
        false_negatives=int((d < threshold).sum()),
        positives=d.size,
        family=family,
    )


def epsilon_lower_bound(
    scores_d: ArrayLike,
    scores_d_prime: ArrayLike,
    delta: float,
    method: BoundMethod = "pld",
    *,
    threshold: float | None = None,
    seed: int = 0,
    **claimed: Unpack[Claimed],
) -> float:
    """The number of `bound_epsilon`, with the same arguments and errors."""
    return bound_epsilon(scores_d, scores_d_prime, delta, method, threshold=threshold, seed=seed, **claimed).epsilon


def _scores(name: str, scores: ArrayLike) -> Array:
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or not found.size:
        raise InputError(f"{name}: expected scores of shape (runs,) with at least one run, got shape {found.shape}")
    if np.isnan(found).any():
        raise InputError(f"{name}: {int(np.isnan(found).sum())} of {found.size} scores are NaN; every run needs one")
    return found


def _parts(d: Array, d_prime: Array, seed: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """For D and D': the runs that choose the threshold, and those that count."""
    if min(len(d), len(d_prime)) < 2:
        raise InputError(
            f"expected at least 2 runs on each of D and D', got {len(d)} and {len(d_prime)}, because some of them"
            " choose the threshold; pass more runs, or a threshold that was fixed before"
        )
    rng = np.random.default_rng(seed)
    d, d_prime = rng.permutation(d), rng.permutation(d_prime)
    n, m = (max(1, round(CHOOSING * len(x))) for x in (d, d_prime))
    return (d[:n], d[n:]), (d_prime[:m], d_prime[m:])


def _best_threshold(
    d: Array, d_prime: Array, method: Method, delta: float, confidence: float, family: Family
) -> tuple[Array, int, float]:
    """(k,) sorted scores, the index of the one with the highest bound, and its merit."""
    high, low = np.sort(d), np.sort(d_prime)
    at = np.unique(np.concatenate([high, low]))
    strict = 1 - STRICTER * (1 - confidence)
    fnr = upper_limits(high.size, strict)[np.searchsorted(high, at)]
    fpr = upper_limits(low.size, strict)[low.size - np.searchsorted(low, at)]
    merit = method.merit(fpr, fnr, delta, family)
    equal = np.flatnonzero(merit == merit.max())
    return at, int(equal[equal.size // 2]), float(merit.max())


@dataclass(frozen=True)
class ScoreChoice:
    """A chosen score and threshold, and the runs that count."""

    score: int  # index
    negative: bool  # low scores mean D
    threshold: float  # runs at or above it are classified as D
    d: Array  # (n,) scores of the counted runs on D, higher on D
    d_prime: Array  # (m,) scores of the counted runs on D'


def choose_score(
    d: Array, d_prime: Array, delta: float, method: BoundMethod = "pld", *, seed: int = 0, **claimed: Unpack[Claimed]
) -> ScoreChoice:
    """The score, of s in (n, s) on D and (m, s) on D', with the highest bound on a random 30 % of the runs.

    Among equals, the one with the widest gap over its range is chosen. Arguments and errors are as of `bound_epsilon`.
    """
    if d.ndim != 2 or d_prime.ndim != 2 or d.shape[1] != d_prime.shape[1]:
        raise InputError(f"expected scores (runs, s) on each of D and D', got {d.shape} and {d_prime.shape}")
    confidence, family = confidence_and_family(claimed)
    row = checked_method(method, delta, confidence)
    (d_first, d), (d_prime_first, d_prime) = _parts(d, d_prime, seed)
    best, found = (-np.inf, -np.inf), (0, 1.0, 0.0)
    for score in range(d.shape[1]):
        for sign in (1.0, -1.0):
            high, low = sign * d_first[:, score], sign * d_prime_first[:, score]
            at, here, merit = _best_threshold(high, low, row, delta, confidence, family)
            if (merits := (merit, _gap(high, low))) > best:
                best, found = merits, (score, sign, _between(at, here))
    score, sign, threshold = found
    return ScoreChoice(score, sign < 0, threshold, sign * d[:, score], sign * d_prime[:, score])


def _gap(high: Array, low: Array) -> float:
    """Gap between the lowest score on D and the highest on D', over their range."""
    if high.min() <= low.max():
        return 0.0
    if np.isinf(high.min()) or np.isinf(low.max()):
        return 1.0
    return float((high.min() - low.max()) / (high.max() - low.min()))


def _between(at: Array, here: int) -> float:
    """Threshold halfway to the next lower score; next to an infinite one, beyond all finite ones."""
    below, above = (at[here - 1], at[here]) if here else (at[0], at[0])
    if np.isfinite(below) and np.isfinite(above):
        return float((below + above) / 2)
    finite = at[np.isfinite(at)]
    if not here or not finite.size:
        return float(above) if not here else 0.0
    margin = 1.0 + float(finite[-1] - finite[0])
    return float(above - margin if np.isinf(below) else below + margin)


OneRunMethod = Literal["f-dp", "steinke"]


def one_run_lower_bound(
    correct: int, guesses: int, canaries: int, delta: float, method: OneRunMethod = "f-dp", **claimed: Unpack[Claimed]
) -> float:
    """Lower bound on epsilon under substitution from guessed coins of canaries in one run.

    Each canary is a pair of opposite gradients, of which a fair coin puts one into the training set.

    - "steinke": assumes nothing about the mechanism (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Theorem 5.2).
    - "f-dp": assumes the sampled Gaussian mechanism of this sampling rate, steps and sampling, with some noise
      (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235, Algorithm 3), and finds more.

    Args:
        correct: number of correct guesses.
        guesses: number of guessed coins, fixed beforehand.
        canaries: number of coins.
        delta: in (0, 1); 0 is allowed for "steinke".
        method: one of these.
        claimed: as in `epsilon_from_errors`, the mechanism for "f-dp".

    Raises:
        InputError: not 0 <= correct <= guesses <= canaries, no guesses, or delta, confidence or method out of range.
        ConfigurationError: sample_rate, steps or sampling out of range.
    """
    confidence, family = confidence_and_family(claimed)
    risk = 1 - confidence
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise InputError(
            "expected 0 <= correct <= guesses <= canaries and at least one guess, got"
            f" {correct} correct of {guesses} guesses of {canaries} canaries"
        )
    if method not in ("f-dp", "steinke"):
        raise InputError(f"method: expected one of f-dp, steinke, got {method!r}")
    check_confidence(confidence)
    if not 0 <= delta < 1 or (method == "f-dp" and delta < SMALLEST_DELTA):
        raise InputError(f"delta: expected a number in [0, 1), at least {SMALLEST_DELTA:g} for f-dp; got {delta!r}")
    if 2 * correct <= guesses:
        return 0.0
    if method == "steinke":
        return smallest_root(lambda epsilon: _probability(correct, guesses, canaries, epsilon, delta) - risk)
    return smallest_refuted(family, delta, lambda curve: _is_too_good(curve, correct, guesses, canaries, risk))[0]


def smallest_root(excess: Callable[[float], float]) -> float:
    """The root of a rising function of epsilon, at least 0, within 1e-6."""
    if excess(0.0) >= 0:
        return 0.0
    top = 1.0
    while excess(top) < 0:
        top *= 2
    return float(brentq(excess, 0.0, top, xtol=1e-6))


def _probability(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of at least this many correct guesses under (epsilon, delta)-DP.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i with B ~ Binomial(guesses, e^eps / (1 + e^eps)).
    """
    right = 1 / (1 + np.exp(-epsilon))
    just_below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    excess = float((just_below / np.arange(1, correct + 1)).max(initial=0.0))
    return float(binom.sf(correct - 1, guesses, right)) + 2 * canaries * delta * excess


def _is_too_good(curve: TradeOff, correct: int, guesses: int, canaries: int, risk: float) -> bool:
    """Whether a mechanism of this trade-off curve has this many correct guesses with a probability below the risk.

    If their probability equalled the risk, correct and wrong guesses would add up to more than there are. For a curve f
    that is its own mirror image, 1 - f turns an event's probability under D into the largest under D'.
    """
    share = guesses / canaries
    right, wrong = risk * share * correct / guesses, risk * share * (guesses - correct) / guesses
    for i in range(correct - 1, -1, -1):
        more = max(wrong, float(curve(1 - right)))
        right += i / (guesses - i) * (more - wrong)
        wrong = more
        if right + wrong > share:
            return True
    return False


# --- the power of an audit by canaries --------------------------------------------------------------------------------

OFTEN = 0.95  # required share of audits that detect it
CAUTION = 0.8  # quantile of each error rate's posterior that is used
LEAST, MOST = math.log(1e-3), math.log(1e3)  # logarithm of a score's noise over the mean effect
ACCURACY = 2e-3  # relative, of noise multipliers and epsilons
QUANTILES = (np.arange(200) + 0.5) / 200  # of the number of false positives
PLACES = ndtri(np.array([1e-4, 1e-3, 5e-3, 0.02, 0.05, 0.1, 0.16, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9]))
"""Normal scores of candidate false-negative rates, if the threshold is chosen."""


@dataclass(frozen=True)
class Promise:
    """A claimed epsilon and mechanism; None: unknown, modelled as Gaussian."""

    epsilon: float
    delta: float
    mechanism: Steps | None
    adjacency: Adjacency

    @cached_property
    def family(self) -> Family:
        """The mechanism without its noise."""
        m = self.mechanism
        return Family() if m is None else Family(m.sample_rate, m.steps, m.sampling)

    @cached_property
    def mu(self) -> float:
        """mu of the Gaussian trade-off with the claimed epsilon."""
        return float(brentq(lambda mu: gaussian_epsilon(mu, self.delta) - self.epsilon, 1e-9, 1e3))

    def spent(self, shrink: float, adjacency: Adjacency | None = None) -> float:
        """Epsilon of the training if the noise is multiplied by `shrink`."""
        if self.mechanism is None:
            return gaussian_epsilon(self.mu / shrink, self.delta)
        less = replace(self.mechanism, noise_multiplier=shrink * self.mechanism.noise_multiplier)
        return epsilon_of([less], self.delta, adjacency or self.adjacency)

    def curve(self, fpr: Array, method: BoundMethod) -> Array:
        """False-negative rates below which the method refutes the claim."""
        e, delta = self.epsilon, self.delta
        if method == "clopper-pearson":
            return np.maximum(1 - delta - math.exp(e) * fpr, (1 - delta - fpr) * math.exp(-e))
        if method == "gdp" or self.family.is_gaussian:
            return np.asarray(ndtr(-ndtri(fpr) - self.mu))
        return np.asarray(trade_off(self.limit, delta)(fpr))

    @cached_property
    def limit(self) -> Steps:
        """The mechanism with the claimed epsilon under substitution."""
        assert self.mechanism is not None
        if self.adjacency == "substitute" and abs(self.spent(1.0) / self.epsilon - 1) < ACCURACY:
            return self.mechanism
        log_shrink = _root(lambda s: self.spent(math.exp(s), "substitute") - self.epsilon, -8.0, 8.0)
        return replace(self.mechanism, noise_multiplier=math.exp(log_shrink) * self.mechanism.noise_multiplier)

    def smallest_found(self, found: Callable[[float], bool]) -> float | None:
        """Epsilon of the training with the most noise that is `found`."""
        lowest = 1e-6 if self.mechanism is None else SMALLEST_NOISE / 2 / self.mechanism.noise_multiplier
        low, high = math.log(min(lowest, 0.5)), 0.0
        while high - low > ACCURACY:
            middle = (low + high) / 2
            low, high = (middle, high) if found(math.exp(middle)) else (low, middle)
        if not found(math.exp(low)):
            return None
        spent = self.spent(math.exp(low))
        return spent if spent < VACUOUS else None


def promise_of(epsilon: float, delta: float, mechanism: Steps | None, adjacency: Adjacency) -> Promise | None:
    """The claim; None: it is vacuous."""
    if not 0 < epsilon < VACUOUS or delta < SMALLEST_DELTA:
        return None
    if mechanism is not None and not (mechanism.steps and mechanism.noise_multiplier):
        return None
    return Promise(epsilon, delta, mechanism, adjacency)


@lru_cache(maxsize=256)
def detectable(errors: ErrorCounts, method: BoundMethod, promise: Promise, *, fixed: bool) -> float | None:
    """The smallest epsilon that as many runs would show to be above the claim in 95 of 100 audits; None: none.

    `errors` are the canary's in the training at hand; their `CAUTION` quantiles under Jeffreys' prior determine the
    noise of its scores. The same canary is then put into trainings with less noise. `fixed`: the threshold was fixed
    beforehand.
    """
    fpr, fnr = (
        float(betaincinv(k + 0.5, n - k + 0.5, CAUTION))
        for k, n in ((errors.false_positives, errors.negatives), (errors.false_negatives, errors.positives))
    )
    if fpr + fnr >= 1:
        return None
    sums = _CanarySums(promise.family)
    noise, threshold = sums.fit(fpr, fnr)

    def found(shrink: float) -> bool:
        at = np.array([threshold]) if fixed else sums.quantiles(ndtr(PLACES), noise * shrink)
        rates = zip(sums.below(-at, noise * shrink), sums.below(at, noise * shrink), strict=True)
        return max(_refuted(a, b, errors, method, promise) for a, b in rates) >= OFTEN

    return promise.smallest_found(found)


def _refuted(fpr: float, fnr: float, errors: ErrorCounts, method: BoundMethod, promise: Promise) -> float:
    """Probability that runs with these error rates give a bound above the claim.

    The upper limit of a rate with k errors is below r if P(X <= k) at r is below the limit's tail.
    """
    tail, n, m = (1 - errors.confidence) / 2, errors.negatives, errors.positives
    wrong = binom.ppf(QUANTILES, n, fpr)
    limits = np.where(wrong < n, betaincinv(wrong + 1, np.maximum(n - wrong, 1), 1 - tail), 1.0)
    allowed = np.clip(promise.curve(limits, method), 0.0, 1.0)
    most = binom.ppf(tail, m, allowed) - 1
    return float(np.where(most >= 0, binom.cdf(most, m, fnr), 0.0).mean())


class _CanarySums:
    """Scores: number of batches with the record, over its mean, up on D and down on D', plus Gaussian noise."""

    def __init__(self, family: Family) -> None:
        draws, q = family.steps, family.sample_rate
        low, high = (int(binom.ppf(p, draws, q)) for p in (1e-9, 1 - 1e-9))
        counts = np.unique(np.linspace(low, high, 200).round())
        edges = np.concatenate([[-1.0], np.floor((counts[1:] + counts[:-1]) / 2), [float(draws)]])
        self.counts = counts / (q * draws)
        self.weights = np.diff(binom.cdf(edges, draws, q))

    def below(self, threshold: Array, noise: float) -> Array:
        """(k,) probabilities of a score on D below the threshold, or on D' above its negative."""
        return np.asarray(ndtr((threshold[:, None] - self.counts) / noise) @ self.weights)

    def quantiles(self, rates: Array, noise: float) -> Array:
        """(k,) quantiles of scores on D."""
        ends = self.counts[0] - 9 * noise, self.counts[-1] + 9 * noise
        at = np.unique(np.concatenate([np.linspace(*ends, 400), self.counts, self.counts + 1e-6]))
        return np.interp(rates, self.below(at, noise), at)

    def fit(self, fpr: float, fnr: float) -> tuple[float, float]:
        """Noise and threshold at which a canary has these error rates."""

        def gap(log_noise: float) -> float:
            near, far = self.quantiles(np.array([fnr, fpr]), math.exp(log_noise))
            return float(near + far)  # both thresholds, from either side; above 0: fewer errors would be made

        grid = np.linspace(LEAST, MOST, 60)  # with less noise than a record's own chance makes, gaps are 0 for long
        last = max((i for i, at in enumerate(grid[:-1]) if gap(at) > 0), default=0)
        noise = math.exp(_root(gap, grid[last], grid[last + 1]))
        near, far = self.quantiles(np.array([fnr, fpr]), noise)
        return noise, float(near - far) / 2


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling function, or the nearer end."""
    if falling(low) <= 0:
        return low
    if falling(high) >= 0:
        return high
    return float(brentq(falling, low, high, xtol=ACCURACY))
