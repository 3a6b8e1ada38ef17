"""Time and accuracy of accounting, beside dp-accounting's own PLD accountant, on one core.

For each setting, epsilon under add/remove and under substitution, computed anew each round, ours and dp-accounting's
(grid of 1e-4, its default); and the calibration of a noise multiplier. Both give upper bounds, so the smaller one is
the sharper. Targets: 60 ms for a pair and 1 s for a calibration, at the settings of the table behind "Beyond
Membership" (500 steps) and of ordinary fine-tuning.

    python -m audit.benchmarks.dp.epsilons [--rounds 9] [--out FILE]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant

from safexplain._privacy_loss import _loss
from safexplain.dp import epsilons, noise_multiplier

from ...shared.run import finish
from ..harness import Benchmark, Turns, at_most

SETTINGS = {
    "q 1, 500 steps": (22.3557, 1.0, 500),
    "q .25, 500 steps": (5.5728, 0.25, 500),
    "q .0625, 500 steps": (1.4028, 0.0625, 500),
    "q .1, 300 steps": (2.4, 0.1, 300),
    "q .02, 1,500 steps": (1.0, 0.02, 1500),
    "q .01, 10,000 steps": (1.0, 0.01, 10_000),
}
"""Name -> noise multiplier, sample rate, steps. The last one is beyond the targets."""

DELTA, PAIR_MS, CALIBRATION_MS = 1e-5, 60.0, 1000.0
NEIGHBORS = (dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, dp_accounting.NeighboringRelation.REPLACE_ONE)


def ours(sigma: float, q: float, steps: int) -> tuple[float, float]:
    """Both epsilons, nothing remembered."""
    _loss.cache_clear()
    spent = epsilons(sigma, q, steps, DELTA)
    return spent.add_remove, spent.substitute


def theirs(sigma: float, q: float, steps: int) -> tuple[float, ...]:
    """The same by dp-accounting's accountant."""
    found = []
    for relation in NEIGHBORS:
        accountant = PLDAccountant(relation)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps)
        found.append(float(accountant.get_epsilon(DELTA)))
    return tuple(found)


def measure(sigma: float, q: float, steps: int, rounds: int) -> dict[str, Any]:
    """Medians over rounds, and the ratio round by round."""
    pair, its = ours(sigma, q, steps), theirs(sigma, q, steps)

    def calibrated() -> float:
        _loss.cache_clear()
        return noise_multiplier(pair[1], q, steps, DELTA)

    calls = {"ours": lambda: ours(sigma, q, steps), "theirs": lambda: theirs(sigma, q, steps), "calibrated": calibrated}
    turns = Turns(calls, rounds)
    return {
        "pair_ms": turns.ms("ours", 1),
        "dp_accounting_ms": turns.ms("theirs", 1),
        "times_as_fast": turns.ratio("theirs", "ours", 1),
        "calibration_ms": turns.ms("calibrated", 1),
        "epsilon": [round(e, 5) for e in pair],
        "dp_accounting_epsilon": [round(e, 5) for e in its],
        "noise_multiplier": sigma,
        "calibrated": round(calibrated(), 5),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when the targets are met at every setting but the last, 1 otherwise."""
    run = Benchmark("dp_epsilons", __doc__, argv, rounds=9)
    options = run.options
    results = {name: measure(*setting, options.rounds) for name, setting in SETTINGS.items()}
    held = list(results.values())[:-1]
    targets = {
        "a pair, ms": at_most(PAIR_MS, max(r["pair_ms"] for r in held)),
        "a calibration, ms": at_most(CALIBRATION_MS, max(r["calibration_ms"] for r in held)),
    }
    return run.conclude({"delta": DELTA, "results": results}, targets)


if __name__ == "__main__":
    finish(main)
