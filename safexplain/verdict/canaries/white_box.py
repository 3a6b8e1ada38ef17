"""Checks of a training's steps, and the verdict about its claim. No torch.

Each check of noise and batches fails for a correct training with a probability of at most `RISK`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain._privacy_loss import VACUOUS, Steps, epsilon_of
from safexplain._validate import check_follows, from_table
from safexplain.errors import InputError
from safexplain.verdict.canaries.claim import TOLERANCE, Claim, Finding, ScenarioName, Verdict

SCALES = ("sensitivity", "size of the noise")
"""Checks that measure a factor by which a step is less private than claimed."""


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
        """Refuted if a check failed, as claimed if all passed; not refuted if one could not be made."""
        return "refuted" if self.failed else "not refuted" if self.open else "as claimed"

    @property
    def epsilon_seen(self) -> float | None:
        """Epsilon, under the claim's adjacency, of steps that are all like the worst seen, capped at 500.

        None: a failed check measures no factor, for example because the model depends on a record other than through
        the noisy sums, so no epsilon follows.
        """
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
        """Plain JSON types: results for scripts, with the checks behind them."""
        names = ("verdict", "epsilon_seen", "runs", "seconds_per_run", "sentence", "seconds", "scenario")
        return {
            **self._stated(),
            **{name: getattr(self, name) for name in names},
            "claim": self.claim.to_dict(),
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
            "setting": dict(self.setting),
        }

    def check(self, content: Mapping[str, Any]) -> None:
        """Raise `InputError` if a stated value does not follow from the checks."""
        computed = self.to_dict()
        for name in ("verdict", "epsilon_add_remove", "epsilon_substitute", "epsilon_seen"):
            check_follows(content[name], computed[name], name, "the checks", (TOLERANCE, TOLERANCE))
        for stated, check in zip(content["checks"], self.checks, strict=True):
            check_follows(stated["passed"], check.passed, f"check {check.name!r}", "its numbers", (0.0, 0.0))


def white_box_of(content: Mapping[str, Any]) -> WhiteBoxResult:
    """Read what `to_dict` wrote, without derived fields."""
    rows = [{k: row[k] for k in ("name", "found", "allowed", "says")} for row in content["checks"]]
    checks = tuple(from_table(Check, row, "check") for row in rows)
    claim = Claim.from_dict(content["claim"])
    return WhiteBoxResult(claim, checks, content["runs"], content["seconds"], dict(content["setting"]))


Array = NDArray[np.float64]

RISK = 1e-6
"""Largest probability that a test fails for a correct training."""

SLACK = 1.01
"""Factor by which a record's contribution may exceed C, or noise fall below the claim, that counts as rounding."""

PAIRS, LAGS = 400, 8
"""Number of pairs of coordinates, and largest lag in steps, whose correlation is tested."""


def noise_size(z: Array, squares: Array, numbers: Array, steps: Sequence[str], coordinates: Sequence[str]) -> Check:
    """Check the size of the noise in the step, tensor or coordinate where it is most clearly too small.

    Args:
        z: (runs, steps, k) noise at some coordinates, over the claimed standard deviation.
        squares: (runs, steps, tensors) sums of squares of all of it.
        numbers: (tensors,) how many there are in each.
        steps: names of the steps.
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
    """Sum of products of independent numbers of variance 1, in its standard deviations."""
    products = a * b
    return abs(float(products.sum())) / math.sqrt(max(products.size, 1))


def _normal_limit(tests: int) -> float:
    """Limit for this many normal tests together, times 1.5 because sums of products have heavier tails."""
    return 1.5 * float(distributions.norm.isf(RISK / tests / 2))


def batches_drawn(drawn: NDArray[np.bool_], mechanism: Steps) -> Iterator[Check]:
    """Check the sample rate of the batches (runs, steps, n), and whether records are drawn independently in each step.

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
