"""How often a lower bound on epsilon is above the truth, and how far below it is otherwise.

DP-SGD's worst case under substitution, simulated exactly: the sum over all steps of the gradient of a record that joins
each with probability q is k + N(0, T sigma^2) on D and -k + N(0, T sigma^2) on D', where k ~ Binomial(T, q). The sum is
the score. Thresholds are fixed at 0, chosen on 30 % of the runs ("split"), or the best of all ("max", which is often
reported and no bound). The truth is the accountant's epsilon. A promised bound may be above it with a probability of
5 %; the suite fails if one surely is more often. Then the same for one run with many canaries.

    python -m audit.suites.bound_errors [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions
from scipy.optimize import brentq

from safexplain._privacy_loss import epsilons, noise_multiplier
from safexplain.verdict.stats import bound_epsilon, clopper_pearson, one_run_lower_bound
from safexplain.verdict.stats.lower_bounds import ErrorCounts, gaussian_distance, gaussian_epsilon
from safexplain.verdict.stats.roc import upper_limits

from ...shared.run import Progress, Run
from .credible import NAME as CREDIBLE
from .credible import credible_bound

Array = NDArray[np.float64]

REPEATS, QUICK_REPEATS = 1000, 20
DELTA = 1e-5
RUNS = (500, 1000, 2500, 5000, 25_000)
METHODS = ("pld", "gdp", "clopper-pearson")
ONE_RUN = list(product((1.0, 0.25), (1.0, 4.0, 10.0), (1000, 5000), (0.1, 0.25)))
"""Sampling rate, epsilon, canaries, share of them guessed."""
RISK = 0.05


@dataclass(frozen=True)
class Mechanism:
    """The sampled Gaussian mechanism."""

    sample_rate: float
    steps: int
    noise_multiplier: float

    def sums(self, rng: np.random.Generator, runs: int) -> Array:
        """(runs,) the record's gradients and the noise of all steps, for a gradient of 1."""
        joined = rng.binomial(self.steps, self.sample_rate, runs)
        return joined + rng.normal(0.0, math.sqrt(self.steps) * self.noise_multiplier, runs)

    @property
    def epsilon(self) -> float:
        """The accountant's."""
        return epsilons(self.noise_multiplier, self.sample_rate, self.steps, DELTA).substitute

    @property
    def epsilon_of_sum(self) -> float:
        """That of the sum alone, by quadrature."""
        count = np.arange(self.steps + 1)
        weight = distributions.binom.pmf(count, self.steps, self.sample_rate)
        likely, spread = weight > 1e-20, math.sqrt(self.steps) * self.noise_multiplier
        end = count[likely].max() + 10 * spread
        x, width = np.linspace(-end, end, 20_001, retstep=True)
        parts = (w * distributions.norm.pdf(x, k, spread) for k, w in zip(count[likely], weight[likely], strict=True))
        density = sum(parts, np.zeros_like(x))

        def excess(epsilon: float) -> float:
            return float(np.maximum(density - math.exp(epsilon) * density[::-1], 0).sum() * width) - DELTA

        return float(brentq(excess, 0.0, 100.0)) if excess(0.0) > 0 else 0.0


MANY_STEPS = [(q, 500, epsilon) for q in (1.0, 0.25, 0.0625) for epsilon in (1.0, 4.0, 10.0)]
FEW_STEPS = [
    Mechanism(q, steps, noise)
    for q, steps, noise in ((0.25, 1, 0.5), (0.0625, 10, 0.5), (0.9, 1, 0.72), (0.9, 3, 0.68))
]


def best_of_all(a: Array, b: Array) -> float:
    """The highest GDP bound of all thresholds, each taken as if it had been fixed before."""
    a, b = np.sort(a), np.sort(b)
    thresholds = np.concatenate([a, b])
    fnr = upper_limits(a.size)[np.searchsorted(a, thresholds)]
    fpr = upper_limits(b.size)[b.size - np.searchsorted(b, thresholds)]
    return gaussian_epsilon(float(gaussian_distance(fpr, fnr).max()), DELTA)


def simulate(mechanism: Mechanism, runs: int, repeats: int, tick: Callable[[int], None]) -> dict[str, Any]:
    """Bounds of all methods from `repeats` experiments, summarised, and ceilings."""
    q, steps = mechanism.sample_rate, mechanism.steps
    found: dict[str, list[float]] = {}
    ceilings: dict[str, float] = {}
    for number in range(repeats):
        rng = np.random.default_rng([0xB0D, runs, number])
        a, b = mechanism.sums(rng, runs // 2), -mechanism.sums(rng, runs // 2)
        for method in METHODS:
            for rule, threshold in (("fixed", 0.0), ("split", None)):
                bound = bound_epsilon(
                    a, b, DELTA, method, threshold=threshold, sample_rate=q, steps=steps, seed=number
                )  # fmt: skip
                found.setdefault(f"{method} {rule}", []).append(bound.epsilon)
                ceilings[f"{method} {rule}"] = bound.ceiling
                if method == "clopper-pearson":  # thresholds are compared alike
                    counts = bound.false_positives, bound.negatives, bound.false_negatives, bound.positives
                    credible = credible_bound(ErrorCounts(*counts), DELTA)
                    found.setdefault(f"{CREDIBLE} {rule}", []).append(credible)
                    none = ErrorCounts(0, bound.negatives, 0, bound.positives)
                    ceilings[f"{CREDIBLE} {rule}"] = credible_bound(none, DELTA)
        found.setdefault("gdp max", []).append(best_of_all(a, b))
        tick(number)
    return {
        name: {**summary(bounds, mechanism.epsilon), "ceiling": finite(ceilings.get(name))}
        for name, bounds in found.items()
    }


def one_run(sample_rate: float, epsilon: float, canaries: int, share: float, repeats: int) -> dict[str, Any]:
    """Bounds from the canaries' sums of one run each, of which the largest `share` are guessed."""
    mechanism, guesses = calibrated(sample_rate, 500, epsilon), round(share * canaries)
    settings = {"sample_rate": sample_rate, "steps": 500}

    @cache
    def bound(correct: int, method: Any) -> float:
        return one_run_lower_bound(correct, guesses, canaries, DELTA, method, **settings)

    found: dict[str, list[float]] = {"steinke": [], "f-dp": []}
    for number in range(repeats):
        rng = np.random.default_rng([0x10E, canaries, number])
        sums = mechanism.sums(rng, canaries)  # of the gradient that was put in
        surest = np.argsort(-np.abs(sums))[:guesses]
        correct = int((sums[surest] > 0).sum())
        for method, bounds in found.items():
            bounds.append(bound(correct, method))
    return {
        method: {
            **summary(bounds, mechanism.epsilon),
            "ceiling": finite(one_run_lower_bound(guesses, guesses, canaries, DELTA, method, **settings)),
        }
        for method, bounds in found.items()
    }


def summary(bounds: list[float], truth: float) -> dict[str, Any]:
    """How often they are above the truth, with the Clopper-Pearson interval, and where they lie."""
    above, n = int((np.array(bounds) > truth).sum()), len(bounds)
    low, high = clopper_pearson(above, n)
    quantiles = np.quantile(bounds, [0.05, 0.5, 0.95])
    mean = float(np.mean(bounds))
    return {
        "above": above,
        "of": n,
        "rate": round(above / n, 5),
        "low": round(low, 5),
        "high": round(high, 5),
        "mean": finite(mean),
        "quantiles": [finite(float(v)) for v in quantiles],
    }


def finite(value: float | None) -> float | None:
    """Rounded; None where no noise at all explains so few errors, or there is no such number."""
    return None if value is None or math.isinf(value) else round(value, 4)


@cache
def calibrated(sample_rate: float, steps: int, epsilon: float) -> Mechanism:
    return Mechanism(sample_rate, steps, noise_multiplier(epsilon, sample_rate, steps, DELTA))


def is_promised(cell: dict[str, Any], name: str) -> bool:
    """Whether it must be above the truth in at most 5 %."""
    return name != "gdp max" and not (name.startswith("gdp") and cell["mechanism"]["steps"] < 500)


def failures(cells: list[dict[str, Any]]) -> list[str]:
    """Promised bounds that are surely above the truth too often, in words."""
    return [
        f"{name} is above the truth in {bound['rate']:.1%} of {bound['of']}: {cell['mechanism']}"
        for cell in cells
        for name, bound in cell["bounds"].items()
        if is_promised(cell, name) and bound["low"] > RISK
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when no promised bound is surely above the truth in more than 5 %, 1 otherwise."""
    run = Run("bound_errors", __doc__, argv)
    progress, parts = Progress(), run.parts(__package__)
    repeats, sizes = (QUICK_REPEATS, RUNS[:2]) if run.quick else (REPEATS, RUNS)
    many = [calibrated(*setting) for setting in (MANY_STEPS[2:6:3] if run.quick else MANY_STEPS)]
    both, single = [], []
    for mechanism in [*many, *(FEW_STEPS[2:3] if run.quick else FEW_STEPS)]:
        truths = {"epsilon": round(mechanism.epsilon, 4), "epsilon_of_sum": round(mechanism.epsilon_of_sum, 4)}
        for runs in sizes:
            title = f"q {mechanism.sample_rate:g}, T {mechanism.steps}, epsilon {mechanism.epsilon:.1f}, {runs:,} runs"
            bounds = parts.get(
                ["two worlds", asdict(mechanism), runs, repeats],
                lambda m=mechanism, r=runs, t=title: simulate(m, r, repeats, lambda i: progress(t, i + 1, repeats)),
            )
            both.append({"mechanism": asdict(mechanism), "runs": runs, **truths, "bounds": bounds})
    settings = ONE_RUN[-2:] if run.quick else ONE_RUN
    for q, epsilon, canaries, share in settings:
        key, mechanism = [q, epsilon, canaries, share], calibrated(q, 500, epsilon)
        bounds = parts.get(["one run", *key, repeats], lambda key=key: one_run(*key, repeats))
        of = {"mechanism": asdict(mechanism), "canaries": canaries, "guessed": share}
        single.append({**of, "epsilon": round(mechanism.epsilon, 4), "bounds": bounds})
        progress("one run", len(single), len(settings))
    missed = failures([*both, *single])
    run.write(
        repeats=repeats, delta=DELTA, confidence=1 - RISK, two_worlds=both, one_run=single, targets_missed=missed,
        run=run.provenance(),
    )  # fmt: skip
    return run.end(missed)
