"""Epsilon of DP-SGD by several accountants, and lower bounds on epsilon from the scores of canaries.

Upper bounds: add/remove, Poisson batches, delta 1e-5; all are upper bounds, so that the smaller one is sharper. Lower
bounds: 40 audits of a Gaussian mechanism whose epsilon is 4.14, each with 2,000 scores of runs on each of two
neighbouring data sets; a bound above the truth is wrong, which may happen in one of twenty, and the larger of the right
ones is sharper.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Work = dict[str, np.ndarray]
Call = Callable[[], dict[str, Any]]

DELTA, CONFIDENCE = 1e-5, 0.95
AUDITS, SCORES, MU = 40, 2_000, 0.953
GRID = {
    "q .25, 500 steps": (5.5728, 0.25, 500),
    "q .0625, 500 steps": (1.4028, 0.0625, 500),
    "q .02, 1,500 steps": (1.0, 0.02, 1500),
    "q .01, 10,000 steps": (1.0, 0.01, 10_000),
}
"""Setting -> noise multiplier, sample rate, steps."""
RECORDS = 10_000
"""That TF Privacy is told, which counts epochs and batches."""


def prepare(data: Path, quick: bool) -> Work:
    """Scores (audits, runs) on D and on D'."""
    rng = np.random.default_rng(0)
    size = (2 if quick else AUDITS, SCORES)
    return {"d": rng.normal(MU, 1, size), "d_prime": rng.normal(0, 1, size)}


def truth() -> float:
    """Epsilon of the mechanism whose scores differ by MU standard deviations."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def above(epsilon: float) -> float:
        spent = norm.cdf(MU / 2 - epsilon / MU) - np.exp(epsilon) * norm.cdf(-MU / 2 - epsilon / MU)
        return float(spent - DELTA)

    return float(brentq(above, 0.0, 50.0))


def quality(call: str, work: Work, run: Any) -> dict[str, Any]:
    """The epsilons; of lower bounds their mean, and how many of them are above the truth."""
    if "bounds" not in run.arrays:
        return dict(run.values)
    found = run.arrays["bounds"]
    return {
        "mean bound": float(found.mean()),
        "truth": truth(),
        "above it": f"{int((found > truth()).sum())} of {len(found)}",
    }


def ours(setting: str) -> Callable[[Work], Call]:
    """Both epsilons, nothing remembered."""

    def ready(work: Work) -> Call:
        from safexplain._privacy_loss.steps import _loss
        from safexplain.dp import epsilons

        def run() -> dict[str, Any]:
            _loss.cache_clear()
            return {"epsilon": epsilons(*GRID[setting], DELTA).add_remove}

        return run

    return ready


def dp_accounting(setting: str) -> Callable[[Work], Call]:
    """Its PLD accountant, with its default grid."""

    def ready(work: Work) -> Call:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant

        sigma, q, steps = GRID[setting]

        def run() -> dict[str, Any]:
            accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
            accountant.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma)), steps)
            return {"epsilon": float(accountant.get_epsilon(DELTA))}

        return run

    return ready


def tf_privacy(setting: str) -> Callable[[Work], Call]:
    """The number of `compute_dp_sgd_privacy`, by Renyi DP."""

    def ready(work: Work) -> Call:
        from tensorflow_privacy.privacy.analysis.compute_dp_sgd_privacy_lib import compute_dp_sgd_privacy

        sigma, q, steps = GRID[setting]

        def run() -> dict[str, Any]:
            epsilon, _ = compute_dp_sgd_privacy(RECORDS, round(q * RECORDS), sigma, steps * q, DELTA)
            return {"epsilon": float(epsilon)}

        return run

    return ready


def lower(method: str) -> Callable[[Work], Call]:
    """Ours: a threshold chosen on some runs, counted on the others."""

    def ready(work: Work) -> Call:
        from safexplain.verdict.stats import epsilon_lower_bound

        def run() -> dict[str, Any]:
            found = [
                epsilon_lower_bound(d, e, DELTA, method, confidence=CONFIDENCE)
                for d, e in zip(work["d"], work["d_prime"], strict=True)
            ]
            return {"bounds": np.array(found), "units": len(found)}

        return run

    return ready


def jax_privacy(method: str) -> Callable[[Work], Call]:
    """`CanaryScoreAuditor`: Clopper-Pearson at all thresholds with Bonferroni's correction, its default, or its GDP."""

    def ready(work: Work) -> Call:
        from jax_privacy.auditing import CanaryScoreAuditor

        def one(d: np.ndarray, d_prime: np.ndarray) -> float:
            auditor = CanaryScoreAuditor(d, d_prime)
            bound = auditor.epsilon_from_gdp if method == "gdp" else auditor.epsilon_clopper_pearson
            return float(bound(significance=1 - CONFIDENCE, delta=DELTA))

        def run() -> dict[str, Any]:
            found = [one(d, e) for d, e in zip(work["d"], work["d_prime"], strict=True)]
            return {"bounds": np.array(found), "units": len(found)}

        return run

    return ready


CALLS: dict[str, Callable[[Work], Call]] = {
    **{f"epsilons, {s}": ours(s) for s in GRID},
    **{f"dp-accounting, {s}": dp_accounting(s) for s in GRID},
    **{f"TF Privacy, {s}": tf_privacy(s) for s in GRID},
    **{f"epsilon_lower_bound, {m}": lower(m) for m in ("clopper-pearson", "gdp")},
    **{f"jax_privacy, {m}": jax_privacy(m) for m in ("clopper-pearson", "gdp")},
}
