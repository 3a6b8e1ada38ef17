"""The pair of distributions that dominates one step of the sampled Gaussian mechanism, for one record or for a group.

The sum of clipped gradients and its noise are measured along the worst direction, in units of the noise's standard
deviation. What neighbours differ in, `group` records, joins the batch in part: J of them, at random. With
d = 1 / noise_multiplier and b_j = P(J = j):

| sampling | J | add_remove, zero_out | substitute |
|---|---|---|---|
| Poisson, q | Binomial(group, q) | sum_j b_j N(j d) against N(0), and the reverse | the same at -j d and j d |
| fixed size, q = b/n | see `fixed_size_weights` | sum_j b_j N(2 j d) against N(0), and the reverse | see below |
| full batch | group | N(0) against N(group d) | N(-group d) against N(group d) |

Proof for Poisson. Given the other records' batch, subset S of the group joins with the same probability p_S under both
data sets, and the members' gradients sum to v_S under D and to w_S under D', both of norm at most |S|. An order a >= 0
and a set A of outputs give sum_S p_S (N(v_S)(A) - a N(w_S)(A)). Let N(0)(A) = Phi(z). By the Neyman-Pearson lemma
N(v)(A) <= Phi(z + |v| d) and N(w)(A) >= Phi(z - |w| d): level by level, the sum is at most
sum_j b_j (Phi(z + j d) - a Phi(z - j d)). All these inequalities are equations at once for a half-space A along e and
gradients e under D, -e under D', so the pair is attained, and no other gives more at any order. A pair that is the
largest at all orders a >= 0 dominates the composition of adaptive steps (Zhu, Dong and Wang 2022, arXiv 2106.08567,
Theorem 10). For add/remove w_S = 0 (or v_S = 0), and the same holds with the levels of one side all at 0. Groups with
fewer records than `group` are covered: their gradients may be 0. Under add/remove the group is there as a whole or not
at all; where some of `group` records go and others come, the epsilon of substitution holds.

Fixed size. Let R be the batch had no member of the group been drawn; a member stands where another record of R would,
so that the sums lie at most 2 j from that of R. Add/remove follows as above, with levels 2 j. Under substitution the
members' own sums lie at most 2 j from each other too, and for orders a >= 1, by advanced joint convexity (Balle, Barthe
and Gaboardi 2018, arXiv 1807.01647, Theorem 2) with eta = P(J >= 1),

    H_a <= sum_{j >= 1} b_j H_{1 + (a - 1) / eta}(N(2 j d), N(0)),

which for a single record is the pair of add/remove (arXiv 2106.08567, Theorem 11). Orders below one have another worst
case; both are joined into one symmetric pair. For zero_out with a fixed size the pair of substitution is used, an upper
bound. For a single record this is exact; for groups it is an upper bound, as the levels do not know n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, roots_legendre
from scipy.stats import binom

Array = NDArray[np.float64]

TAIL = 9.0
"""Losses of noise beyond so many standard deviations (probability 1e-19) count as infinite."""

NEGLIGIBLE = 1e-24
"""Probability at either end of the levels that is moved: from below to the lowest kept one, from above to infinity."""

FAR = 700.0
"""Exponents above are cut to this; what they belong to has long been given as infinite."""

NODES = roots_legendre(6)

MOST_LEVELS = 64
"""Levels that are kept; of more, neighbouring ones are moved up to the next that is kept."""


def poisson_weights(q: float, group: int) -> tuple[Array, Array]:
    """(levels, probabilities) of how many of `group` records join a batch, each with probability q."""
    if q >= 1:
        return np.array([float(group)]), np.array([1.0])
    levels = np.arange(group + 1.0)
    return _kept(levels, binom.pmf(levels, group, q))


def fixed_size_weights(q: float, group: int) -> tuple[Array, Array]:
    """The same for batches of fixed size, from above: q = size / records, whatever the number of records.

    How many join is hypergeometric; a larger number never tells less, so that each P(J >= j) may be replaced by an
    upper bound: by C(group, j) q^j (j given records are all in the batch with probability at most q^j), and by
    group q / j (Markov's inequality).
    """
    if q >= 1:
        return np.array([float(group)]), np.array([1.0])
    j = np.arange(1.0, group + 1)
    log_choose = np.cumsum(np.log(group - j + 1) - np.log(j))
    log_reached = np.minimum(np.minimum(log_choose + j * math.log(q), math.log(group * q) - np.log(j)), 0.0)
    reached = np.minimum.accumulate(np.exp(log_reached))
    ends = np.concatenate([[1.0], reached, [0.0]])
    return _kept(np.arange(group + 1.0), ends[:-1] - ends[1:])


def _kept(levels: Array, weights: Array) -> tuple[Array, Array]:
    """Without negligible levels, and with few enough of them; what is moved is moved up."""
    below = np.cumsum(weights) <= NEGLIGIBLE
    above = np.cumsum(weights[::-1])[::-1] <= NEGLIGIBLE
    first, last = int(below.sum()), len(levels) - int(above.sum())
    levels, kept = levels[first:last], weights[first:last].copy()
    kept[0] += weights[:first].sum()
    if len(levels) > MOST_LEVELS:
        inner = levels[0] == 0  # that nobody joins stays apart
        parts = np.array_split(np.arange(int(inner), len(levels)), MOST_LEVELS)
        ends = np.concatenate([[0] if inner else [], [p[-1] for p in parts]]).astype(int)
        starts = np.concatenate([[0] if inner else [], [p[0] for p in parts]]).astype(int)
        return levels[ends], np.add.reduceat(kept, starts)
    return levels, kept


@dataclass(frozen=True)
class Pair:
    """One step of the sampled Gaussian mechanism.

    Args:
        noise_multiplier: standard deviation of the noise on the sum over the clip bound; above 0.
        sample_rate: q in (0, 1]; 1 for a full batch.
        sampling: how the batch is drawn.
        group: how many records neighbours differ in.
    """

    noise_multiplier: float
    sample_rate: float
    sampling: str = "poisson"
    group: int = 1

    @property
    def fixed_size(self) -> bool:
        """Whether a record stands where another one would."""
        return self.sampling == "fixed-size" and self.sample_rate < 1

    @cached_property
    def distance(self) -> float:
        """Between neighbouring levels, in standard deviations of the noise."""
        return (2.0 if self.fixed_size else 1.0) / self.noise_multiplier

    @cached_property
    def levels(self) -> tuple[Array, Array]:
        """How many records of the group join, and with which probabilities."""
        return (fixed_size_weights if self.fixed_size else poisson_weights)(self.sample_rate, self.group)

    @cached_property
    def _terms(self) -> tuple[Array, Array, Array]:
        """Of log sum_j b_j N(j d) / N(0) at x: slopes j d, offsets -(j d)^2 / 2, and the logarithms of b_j."""
        j, b = self.levels
        return j * self.distance, -((j * self.distance) ** 2) / 2, np.log(b)

    def loss(self, x: Array) -> Array:
        """log(sum_j b_j N(j d) / N(0)) at x, increasing; with small relative errors where it is near 0."""
        slopes, offsets, logs = self._terms
        total, excess = np.full(np.shape(x), -np.inf), np.zeros(np.shape(x))
        for slope, offset, log_b in zip(slopes, offsets, logs, strict=True):
            term = slope * x + offset
            total = np.logaddexp(total, term + log_b)
            excess += math.exp(log_b) * np.expm1(np.minimum(term, 300.0))
        near = np.abs(excess) < 0.5
        return np.where(near, np.log1p(np.where(near, excess, 0.0)), total)

    @cached_property
    def least(self) -> float:
        """The infimum of the loss: the probability that nobody joins; -inf where somebody always does."""
        j, b = self.levels
        if j[0] > 0:
            return -math.inf
        return self.group * math.log1p(-self.sample_rate) if not self.fixed_size else float(np.log1p(-b[1:].sum()))

    @cached_property
    def reach(self) -> float:
        """x beyond which the numerator has no probability to speak of."""
        if self.group == 1:
            return TAIL + self.distance
        j, b = self.levels
        low, high = TAIL, TAIL + float(j[-1]) * self.distance
        tail = float(ndtr(-TAIL))
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if float(b @ ndtr(j * self.distance - middle)) <= tail else (middle, high)
        return high

    @cached_property
    def largest(self) -> tuple[float, float]:
        """Losses that are hardly ever passed, removing and substituting."""
        up, down = (float(self.loss(np.array(side * self.reach))) for side in (1, -1))
        return up, self._largest_fixed_size(up) if self.fixed_size else up - down

    @cached_property
    def smallest(self) -> float:
        """A loss that is hardly ever below, removing; adding, its opposite is hardly ever passed."""
        return float(self.loss(np.array(-TAIL)))

    def renyi(self, order: float, adjacency: str) -> float:
        """The Renyi divergence of the pair, of the larger direction, by quadrature.

        With a fixed size under substitution the pair is known by its privacy profile H of orders above one only, which
        holds both ways: of its moment E_Q (P / Q)^a = 1 + a (a - 1) int_0^inf (e^((a - 1) e) + e^(-a e)) H(e) de the
        pair of removal has all but the part of the reverse direction.

        Args:
            order: above 1.
            adjacency: what neighbours differ in.
        """
        j, b = self.levels
        top = float(j[-1]) * self.distance
        bound = order * (top * (1 if self.fixed_size or adjacency == "add_remove" else 2)) ** 2 / 2
        if 2 * order * top > 2000:  # too far out; more than any budget, whatever the sampling
            return bound
        if adjacency == "substitute" and not self.fixed_size:
            return min(self._log_moment(order, 1, -1) / (order - 1), bound)
        if adjacency == "substitute" or (adjacency == "zero_out" and self.fixed_size):
            eta, whole = float(b[j > 0].sum()), 0.0
            for level, weight in zip(j[j > 0], b[j > 0] / float(b[j > 0].sum()), strict=True):
                one = Pair(self.noise_multiplier / level, eta, "fixed-size")
                log_moment = one._log_moment(order, 1, 0)
                if log_moment > FAR:
                    return bound
                whole += weight * (math.expm1(log_moment) + one._other_way(order))
            return min(math.log1p(whole) / (order - 1), bound)
        return min(max(self._log_moment(order, 1, 0), self._log_moment(order, 0, 1)) / (order - 1), bound)

    def _log_moment(self, order: float, upper: int, lower: int) -> float:
        """log E_Q (P / Q)^order for P, Q = sum_j b_j N(side j d), by the trapezoidal rule."""
        top = float(self.levels[0][-1]) * self.distance
        reach = 2 * order * top + 12
        x = np.linspace(-reach, reach, 2 * math.ceil(reach / 0.15 * math.sqrt(1 + order * top * top)) + 1)
        with np.errstate(over="ignore"):
            under = self.loss(lower * x) if lower else np.zeros_like(x)
            ratio = (self.loss(upper * x) if upper else np.zeros_like(x)) - under
        log_weight = under - x * x / 2 + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
        exponents = order * ratio + log_weight
        highest = float(exponents.max())
        kept = np.maximum(exponents, log_weight) > -60
        if order * float(np.abs(ratio[kept]).max()) > 300:
            return max(highest + math.log(float(np.exp(exponents - highest).sum())), 0.0)
        # E_Q (P / Q) = 1 is taken off, so that small moments are not lost in rounding
        terms = np.exp(log_weight[kept]) * (np.expm1(order * ratio[kept]) - order * np.expm1(ratio[kept]))
        return math.log1p(max(float(terms.sum()), 0.0))

    def _other_way(self, order: float) -> float:
        """a (a - 1) int_0^inf e^(-a e) (H(e) - its reverse) de, at least 0, of the pair of removal."""
        e, width = np.linspace(0, 40 / order, 2001, retstep=True)
        gap = np.maximum(self.removal(e) - self.addition(e), 0.0) * np.exp(-order * e)
        return float(order * (order - 1) * width * (gap.sum() - gap[0] / 2))

    def _largest_fixed_size(self, up: float) -> float:
        if self.group == 1:
            return up
        low, high, tail = 0.0, up, float(ndtr(-TAIL))
        while self._tail_fixed_size(high) > tail:
            low, high = high, 2 * high
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if self._tail_fixed_size(middle) > tail else (low, middle)
        return high

    def _tail_fixed_size(self, epsilon: float) -> float:
        """Probability of a larger loss under substitution with a fixed size."""
        j, b = self.levels
        steps = j[j > 0] * self.distance
        order = _log_order(np.array(epsilon), float(b[j > 0].sum()))
        return float(b[j > 0] @ ndtr(steps / 2 - order / steps))

    @cached_property
    def moments(self) -> tuple[float, float, float]:
        """Mean, standard deviation and mean size of the loss under its numerator, by quadrature."""
        j, b = self.levels
        at = np.linspace(-TAIL, TAIL, 241)
        weights = np.exp(-at * at / 2)
        weights /= weights.sum()
        loss = self.loss(at + (j * self.distance)[:, None])
        mean = float(b @ (loss @ weights))
        sd = math.sqrt(float(b @ ((loss - mean) ** 2 @ weights)))
        return abs(mean), sd, float(b @ (np.abs(loss) @ weights))

    def total_variation(self, adjacency: str) -> float:
        """delta of one step at epsilon 0."""
        return float(
            (self.substitution if adjacency == "substitute" or self.fixed_size else self.removal)(np.zeros(1))[0]
        )

    def removal(self, epsilon: Array) -> Array:
        """Hockey-stick divergence of order e^epsilon from sum_j b_j N(j d) to N(0); any epsilon."""
        cut = self._cut(epsilon)
        above = self._more_above(cut) - _times_expm1(epsilon, -cut)
        return np.where(epsilon > self.least, above, -np.expm1(np.minimum(epsilon, 0)))

    def addition(self, epsilon: Array) -> Array:
        """The same from N(0) to sum_j b_j N(j d)."""
        cut = self._cut(-epsilon)
        grown = np.exp(np.minimum(epsilon, FAR)) * self._less_below(cut)
        return np.where(-epsilon > self.least, grown - _times_expm1(epsilon, cut), 0.0)

    def substitution(self, epsilon: Array) -> Array:
        """Of the pair of substitution, in both directions; any epsilon.

        It is computed at e^|epsilon|, and continued to a pair whose directions are alike: 1 - a + a H(1/a) at a < 1.
        """
        above = self._fixed_size_substitution if self.fixed_size else self._poisson_substitution
        values = above(np.abs(epsilon))
        low = np.minimum(epsilon, 0)
        return np.where(epsilon >= 0, values, -np.expm1(low) + np.exp(low) * values)

    def _poisson_substitution(self, epsilon: Array) -> Array:
        """From sum_j b_j N(j d) to sum_j b_j N(-j d), for epsilon >= 0."""
        if self.group == 1:  # asinh inverts the loss exactly
            q, d = self.sample_rate, self.distance
            with np.errstate(divide="ignore"):
                rest = math.log1p(-q) if q < 1 else -math.inf
                grown = rest - math.log(q) + (epsilon + d * d) / 2 + np.log(-np.expm1(-epsilon) / 2)
            sinh = np.where(grown > 300, grown + math.log(2), np.arcsinh(np.exp(np.minimum(grown, 300))))
            cut = (epsilon / 2 + sinh) / d
        else:
            cut = self._inverse(epsilon, lambda x: self.loss(x) - self.loss(-x), 0.0)
        total = np.zeros_like(cut)
        for level, weight in zip(*self.levels, strict=True):
            step = level * self.distance
            total += weight * (_between(-cut, step) - _times_expm1(epsilon, -step - cut))
        return np.asarray(total)

    def _fixed_size_substitution(self, epsilon: Array) -> Array:
        """sum_{j >= 1} b_j H_{1 + (e^epsilon - 1) / eta}(N(2 j d), N(0)), for epsilon >= 0."""
        if self.group == 1:
            return self.removal(epsilon)
        j, b = self.levels
        joins = j > 0
        order = _log_order(epsilon, float(b[joins].sum()))
        total = np.zeros_like(epsilon)
        for level, weight in zip(j[joins], b[joins], strict=True):
            step = level * self.distance
            cut = order / step + step / 2
            total += weight * (_between(step / 2 - cut, step / 2) - _times_expm1(order, -cut))
        return total

    def _more_above(self, cut: Array) -> Array:
        """Probability of more than `cut` under sum_j b_j N(j d), less that under N(0)."""
        total = np.zeros_like(cut)
        for level, weight in zip(*self.levels, strict=True):
            step = level * self.distance
            total += weight * _between(step / 2 - cut, step / 2)
        return total

    def _less_below(self, cut: Array) -> Array:
        """Probability of less than `cut` under N(0), less that under sum_j b_j N(j d)."""
        total = np.zeros_like(cut)
        for level, weight in zip(*self.levels, strict=True):
            step = level * self.distance
            total += weight * _between(cut - step / 2, step / 2)
        return total

    def _cut(self, epsilon: Array) -> Array:
        """Where the loss is epsilon; anything where it never is."""
        if self.group == 1:
            d = self.distance
            return np.asarray((_log_order(epsilon, self.sample_rate) + d * d / 2) / d)
        return self._inverse(epsilon, self.loss, -40.0)

    def _inverse(self, epsilon: Array, loss: Callable[[Array], Array], lowest: float) -> Array:
        """x at which an increasing loss is epsilon: from a table by secant steps, and by bisection where they fail.

        Divergences are largest at the exact x, so that an error in it counts in the second order only.
        """
        x, width = np.linspace(lowest, self.reach + 2, 4001, retstep=True)
        found = np.interp(epsilon, loss(x), x)
        off = np.arange(len(found))
        for _ in range(6):
            at, target = found[off], epsilon[off]
            slope = np.maximum((loss(at + 1e-6) - loss(at - 1e-6)) / 2e-6, 1e-300)
            found[off] = np.clip(at + np.clip((target - loss(at)) / slope, -width, width), lowest, x[-1])
            off = off[np.abs(loss(found[off]) - target) > 1e-8 * np.abs(target) + 1e-14]
            if not len(off):
                return np.asarray(found)
        target, low, high = epsilon[off], np.full(off.shape, lowest), np.full(off.shape, x[-1])
        for _ in range(50):
            middle = (low + high) / 2
            below = loss(middle) < target
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found[off] = (low + high) / 2
        return np.asarray(found)


def _log_order(epsilon: Array, eta: float) -> Array:
    """log(1 + (e^epsilon - 1) / eta): the order of the part of a mixture that differs, whose weight is eta."""
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / eta)
        far = epsilon + np.log1p(-(1 - eta) * np.exp(-np.maximum(epsilon, 0.5))) - math.log(eta)
    return np.asarray(np.where(epsilon < 1, near, far))


def _times_expm1(epsilon: Array, x: Array) -> Array:
    """(e^epsilon - 1) Phi(x), for any epsilon."""
    whole = np.expm1(np.minimum(epsilon, 1.0)) * ndtr(x)
    far = epsilon >= 1
    if far.any():
        whole[far] = np.exp(np.minimum(epsilon[far] + log_ndtr(x[far]), FAR)) - ndtr(x[far])
    return np.asarray(whole)


def _between(middle: Array, half: float) -> Array:
    """Phi(middle + half) - Phi(middle - half), of small relative error also where half is small."""
    if half >= 0.25:
        below = -np.abs(middle)  # by symmetry; of two numbers near 1 the difference would be lost
        return np.asarray(ndtr(below + half) - ndtr(below - half))
    near = np.zeros_like(middle)
    for node, weight in zip(*NODES, strict=True):
        near += weight * np.exp(-((middle + half * node) ** 2) / 2)
    return np.asarray(near * (half / math.sqrt(2 * math.pi)))
