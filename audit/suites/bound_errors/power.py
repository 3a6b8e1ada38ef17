"""Canary verdicts: how often they are wrong, and whether the epsilon that they would find is found.

A right training is audited again and again by a canary of some strength, and then one with less noise, which spends
what the median audit says that it would have found (`detectable`). A score is the sum of the canary's gradients over
all steps (in units of C; strength 1 is the worst case) and of the noise. At most 5 % of the bounds may be above what
the right training spends under substitution ("bug"), and at least 95 % of the audits of the other must refute it
("found"); "silent" is the share of audits that would have found nothing, and say so.

    python -m audit.suites.bound_errors.power [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._privacy_loss import Adjacency, Steps, noise_multiplier
from safexplain.verdict.canaries.result import CanaryResult, Claim, Scores, judge
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.lower_bounds import OFTEN, BoundMethod

from ...shared.run import Progress, Run, finish

Array = NDArray[np.float64]

REPEATS, QUICK_REPEATS = 40, 8
DELTA, RISK = 1e-5, 0.05
SURE = 0.999
"""Confidence of the limits of a rate: of hundreds of cells, none fails by chance."""

TRAININGS = (
    (1.0, 500, 10.0),
    (1.0, 500, 2.0),
    (0.25, 500, 10.0),
    (0.25, 500, 3.0),
    (0.02, 1000, 3.0),
    (0.0625, 20, 8.0),
)
"""Sampling rate, steps, claimed epsilon."""
STRENGTHS = (1.0, 0.6)
RUNS = (200, 1000)
RULES = ("fixed", "split")


@dataclass(frozen=True)
class Audit:
    """What is audited, and how."""

    sample_rate: float  # q
    steps: int  # of the training
    epsilon: float  # claimed, under `adjacency`
    strength: float  # of the canary; 1 is the worst case
    runs: int  # on D and D' together
    rule: str  # "fixed" (threshold 0) or "split"
    method: BoundMethod = "pld"  # of the bound
    adjacency: Adjacency = "substitute"  # of the claim

    def noise(self, times: float) -> float:
        """The noise multiplier that spends so many times the claim."""
        found = noise_multiplier(
            times * self.epsilon, self.sample_rate, self.steps, DELTA, self.adjacency, sampling=self.sampling
        )
        return float(found)

    @property
    def sampling(self) -> Any:
        """How batches are drawn."""
        return "full-batch" if self.sample_rate == 1 else "poisson"

    @property
    def claim(self) -> Claim:
        """Of the right training, which it keeps exactly."""
        mechanism = Steps(self.noise(1.0), self.sample_rate, self.steps, self.sampling)
        return Claim(mechanism, DELTA, adjacency=self.adjacency)

    def find(self, claim: Claim, noise: float, number: int) -> CanaryResult:
        """One audit of a training with this noise."""
        rng = np.random.default_rng([0xF00D, self.runs, number])
        d, d_prime = self._sums(rng, noise, self.runs // 2), -self._sums(rng, noise, self.runs // 2)
        return judge(
            Scores((self.steps,), d[None], d_prime[None]), claim, scenario="gradient", method=self.method,
            threshold=0.0 if self.rule == "fixed" else None, confidence=1 - RISK, seed=number,
        )  # fmt: skip

    def _sums(self, rng: np.random.Generator, noise: float, runs: int) -> Array:
        joined = rng.binomial(self.steps, self.sample_rate, runs)
        return self.strength * joined + rng.normal(0.0, math.sqrt(self.steps) * noise, runs)


MAIN = [Audit(*of, s, n, rule) for of, n, rule, s in product(TRAININGS, RUNS, RULES, STRENGTHS)]
METHODS = [
    Audit(0.25, 500, 3.0, 1.0, n, rule, method)
    for method, n, rule in product(("gdp", "clopper-pearson"), (1000, 5000), RULES)
]
ADD_REMOVE = [
    Audit(0.25, 500, epsilon, s, n, "fixed", "pld", "add_remove")
    for epsilon, n, s in product((1.0, 4.0), (200, 1000), STRENGTHS)
]


def simulate(audit: Audit, repeats: int, tick: Callable[[int], None]) -> dict[str, Any]:
    """The rates of the module's docstring, from so many audits of either training."""
    claim, right = audit.claim, audit.noise(1.0)
    assert claim.substitute is not None  # its mechanism is known
    of_right = [audit.find(claim, right, number) for number in range(repeats)]
    said = sorted(math.inf if f.detectable is None else f.detectable for f in of_right)
    epsilon, found = said[repeats // 2], 0
    if math.isfinite(epsilon):
        less = audit.noise(epsilon / audit.epsilon)
        for number in range(repeats):
            found += audit.find(claim, less, repeats + number).verdict == "refuted"
            tick(number)
    return {
        "of": repeats, "bug": sum(f.epsilon_lower > claim.substitute for f in of_right), "silent": said.count(math.inf),
        "detectable": round(epsilon, 3) if math.isfinite(epsilon) else None, "found": found,
    }  # fmt: skip


def failures(cells: list[dict[str, Any]]) -> list[str]:
    """Cells that surely break a promise, in words."""
    missed = []
    for cell in cells:
        n = cell["of"]
        if clopper_pearson(cell["bug"], n, SURE)[0] > RISK:
            missed.append(f"bounds of a right training are above the truth in {cell['bug']} of {n}: {cell['audit']}")
        if cell["detectable"] is not None and clopper_pearson(cell["found"], n, SURE)[1] < OFTEN:
            missed.append(f"{cell['detectable']} was to be found, and is in {cell['found']} of {n}: {cell['audit']}")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 1 where a promise is surely broken, otherwise 0."""
    run = Run("canary_power", __doc__, argv)
    progress, parts = Progress(), run.parts(__package__)
    repeats = QUICK_REPEATS if run.quick else REPEATS
    audits = [MAIN[0], METHODS[0], ADD_REMOVE[0]] if run.quick else [*MAIN, *METHODS, *ADD_REMOVE]
    cells = []
    for audit in audits:
        of = {name: getattr(audit, name) for name in audit.__dataclass_fields__}
        make = partial(simulate, audit, repeats, lambda i: progress("audits", i + 1, repeats))
        cells.append({"audit": of, **parts.get(["audits", of, repeats], make)})
    missed = failures(cells)
    run.write(
        repeats=repeats, delta=DELTA, confidence=1 - RISK, often=OFTEN, audits=cells, targets_missed=missed,
        run=run.provenance(),
    )  # fmt: skip
    return run.end(missed)


if __name__ == "__main__":
    finish(main)
