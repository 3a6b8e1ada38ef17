"""How much of what can be found at all do the attacks find? Simulated signals of which the best possible test is known.

One number an example and model, x = mu + noise, with mu normal over the examples and known to nobody but the oracle;
a member's x is shifted (or less spread). The oracle knows every example's parameters and tests with the exact
likelihood ratio, which is the most powerful test at every false-positive rate (Neyman & Pearson, 1933). The attacks see
the target and 32 reference models only.

    equal effects      x - mu ~ N(-d, 1) on members, N(0, 1) on others; the same d for all
    varied effects     d differs from example to example, log-normally
    few vulnerable     one example in twenty is shifted by 4, the others not at all
    members vary less  N(0, 1/2) on members (a standard deviation of a half), shifted by d, N(0, 1) on others

Reported is the share of the oracle's true-positive rate at 1 % false positives, over targets and seeds. The oracle's
rate has a closed form for equal effects, Phi(Phi^-1(.01) + d), against which the simulation is checked.

    python -m audit.benchmarks.attack_power [--out FILE] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from safexplain.audit.attacks import JointLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.attacks.boosted import Boosted
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.stacked import Stacked
from safexplain.audit.attacks.suite import SuiteRow
from safexplain.audit.signals import Signals
from safexplain.verdict.stats import roc

from ..shared.run import Progress, concluded, destination, parser, provenance, table, write_json

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REFERENCES = 32
EXAMPLES = 20_000
FPR = 0.01
SPREAD = 3.0
"""Standard deviation of mu over the examples, in those of the noise."""
AT_LEAST = 0.8
"""Share of the oracle's true-positive rate that the best attack of the suite must find in each problem."""
SEEDS = 2


@dataclass(frozen=True)
class Problem:
    """Shift and spread of members' signals, drawn for every example.

    Args:
        name: as the table has it.
        draw: a generator and a number of examples -> (shift, standard deviation of members), known to the oracle.
    """

    name: str
    draw: Callable[[np.random.Generator, int], tuple[Floats, Floats]]


PROBLEMS = (
    Problem("equal effects", lambda rng, n: (np.full(n, 1.5), np.ones(n))),
    Problem("varied effects", lambda rng, n: (np.exp(rng.normal(0.0, 0.75, n)), np.ones(n))),
    Problem("few vulnerable", lambda rng, n: (np.where(rng.random(n) < 0.05, 4.0, 0.0), np.ones(n))),
    Problem("members vary less", lambda rng, n: (np.full(n, 1.5), np.full(n, 0.5))),
)


def simulated(problem: Problem, seed: int, examples: int = EXAMPLES) -> tuple[Signals, Floats]:
    """Signals of a target and its references, and the (n,) exact log likelihood ratios of the target's."""
    rng = np.random.default_rng([seed, PROBLEMS.index(problem)])
    member = rng.random((REFERENCES + 1, examples)) < 0.5
    shift, spread = problem.draw(rng, examples)
    away = rng.normal(size=member.shape)
    away = np.where(member, spread * away - shift, away)
    x = away + rng.normal(0.0, SPREAD, examples)
    exact = norm.logpdf(away[0], -shift, spread) - norm.logpdf(away[0])
    return Signals(member, {"x": x}, None, {"targets": [0]}), exact


def rows() -> list[SuiteRow]:
    """The attacks on one number, each alone, and all stacked."""
    kind = "explanation"
    alone = [
        SuiteRow("Threshold", Threshold(), "x", kind),
        SuiteRow("LikelihoodRatio", LikelihoodRatio(), "x", kind),
        SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "x", kind),
        SuiteRow("Boosted", Boosted(), "x", kind),
    ]
    joined = (alone[2], alone[1], alone[3])
    return [*alone, SuiteRow("Stacked", Stacked(FPR), "x", kind, columns=joined)]


def found(scores: Floats, member: Bools) -> float:
    """Share of the members found at `FPR`, ties broken at random."""
    curve = roc(scores, member)
    return float(np.interp(FPR, curve.fpr, curve.tpr))


def measure(seeds: int, examples: int) -> dict[str, Any]:
    """True-positive rates of the oracle and of every attack, and the shares, by problem."""
    progress, out = Progress(), {}
    for i, problem in enumerate(PROBLEMS):
        rates: dict[str, list[float]] = {}
        for seed in range(seeds):
            signals, exact = simulated(problem, seed, examples)
            member = signals.membership[0]
            rates.setdefault("oracle", []).append(found(exact, member))
            scorer = Scorer(signals, rows(), target=0, training=np.zeros(examples, dtype=bool), seed=seed)
            for row, scores in zip(rows(), scorer.scores(0), strict=True):
                rates.setdefault(row.name, []).append(found(scores, member))
            progress("attacking", i * seeds + seed + 1, seeds * len(PROBLEMS))
        means = {name: float(np.mean(each)) for name, each in rates.items()}
        out[problem.name] = {"tpr": means, "share": {n: m / means["oracle"] for n, m in means.items() if n != "oracle"}}
    return out


def failures(by_problem: dict[str, Any]) -> list[str]:
    """The targets that are missed, in words."""
    missed = []
    exact = float(norm.cdf(norm.ppf(FPR) + 1.5))
    if abs(by_problem["equal effects"]["tpr"]["oracle"] - exact) > 0.02:
        missed.append(
            f"equal effects: the oracle finds {by_problem['equal effects']['tpr']['oracle']:.3f}, not {exact:.3f}"
        )
    for name, figures in by_problem.items():
        best = max(figures["share"], key=figures["share"].__getitem__)
        if figures["share"][best] < AT_LEAST:
            missed.append(
                f"{name}: {best} finds {figures['share'][best]:.2f} of what can be found, expected {AT_LEAST}"
            )
    return missed


def show(by_problem: dict[str, Any]) -> str:
    names = list(next(iter(by_problem.values()))["share"])
    lines = [
        (name, f"{figures['tpr']['oracle']:.1%}", *(f"{figures['share'][n]:.2f}" for n in names))
        for name, figures in by_problem.items()
    ]
    return table(("problem", "oracle's TPR", *names), lines)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every target is met, 1 otherwise."""
    options = parser("attack_power", __doc__).parse_args(argv)
    start = time.perf_counter()
    by_problem = measure(1 if options.quick else SEEDS, 2_000 if options.quick else EXAMPLES)
    missed = [] if options.quick else failures(by_problem)
    print(show(by_problem))
    report = {
        "suite": "attack_power",
        "quick": options.quick,
        "references": REFERENCES,
        "examples": EXAMPLES,
        "fpr": FPR,
        "problems": by_problem,
        "targets_missed": missed,
        **provenance(time.perf_counter() - start),
    }
    out = destination(options)
    write_json(out, report)
    verdict = "quick run, targets not checked" if options.quick else "all targets met" if not missed else "failed"
    return concluded(missed, out, verdict)


if __name__ == "__main__":
    raise SystemExit(main())
