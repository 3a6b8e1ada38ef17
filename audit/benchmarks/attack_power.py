"""How much of what can be found at all do the attacks find? Simulated signals of which the best possible test is known.

One number an example and model, x = mu + noise; a member's x is shifted (or less spread). The oracle knows every
example's parameters and tests with the exact likelihood ratio, the most powerful test at every false-positive rate
(Neyman & Pearson, 1933); for equal effects its rate is Phi(Phi^-1(.01) + d), against which the simulation is checked.
The attacks see the target and 32 reference models only. Reported is the share of the oracle's TPR at 1 % FPR. Then what
`LikelihoodRatio` finds with 4 to 30 references on 33 overfitted networks, and calibration: is the rate what an attacker
has who takes his threshold from his references (arXiv 2605.25819)?

    python -m audit.benchmarks.attack_power [--out FILE] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import nn

from safexplain.audit import Population, Recipe, train_shadows
from safexplain.audit.attacks import JointLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.attacks.learned import Boosted, Stacked
from safexplain.audit.attacks.likelihood import likelihood_ratios
from safexplain.audit.attacks.suite import Scorer, SuiteRow
from safexplain.audit.signals import Signals
from safexplain.verdict.stats import roc

from ..shared.run import Progress, finish
from .harness import Benchmark, at_least, at_most

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REFERENCES = 32
EXAMPLES = 10_000
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
        draw: a generator and a number of examples -> (shift, standard deviation of members), known to the oracle.
    """

    name: str  # as the table has it
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


def found_by(scores: Floats, member: Bools) -> float:
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
            rates.setdefault("oracle", []).append(found_by(exact, member))
            scorer = Scorer(signals, rows(), target=0, training=np.zeros(examples, dtype=bool), seed=seed)
            for row, scores in zip(rows(), scorer.scores(0), strict=True):
                rates.setdefault(row.name, []).append(found_by(scores, member))
            progress("attacking", i * seeds + seed + 1, seeds * len(PROBLEMS))
        means = {name: float(np.mean(each)) for name, each in rates.items()}
        out[problem.name] = {"tpr": means, "share": {n: m / means["oracle"] for n, m in means.items() if n != "oracle"}}
    return out


def trained(models: int, examples: int, epochs: int) -> tuple[Bools, dict[str, Floats]]:
    """Membership of networks on digits, a target and pairs, and their signals on the scale of the Gaussians."""
    from sklearn.datasets import load_digits

    data, rng = load_digits(), np.random.default_rng(0)
    rows = rng.permutation(len(data.data))[:examples]
    pool = Population.of((data.data[rows] / 16).astype(np.float32), data.target[rows])
    half = rng.random((models // 2, len(rows))) < 0.5
    pairs = np.stack([half, ~half], axis=1).reshape(-1, len(rows))
    member = np.concatenate([rng.random((1, len(rows))) < 0.5, pairs])
    networks = train_shadows(
        pool,
        Recipe(epochs=epochs, batch_size=100),
        build=lambda seed: nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10)),
        models=len(member),
        membership=member,
    ).models
    draws = torch.from_numpy(rng.normal(size=(32, *pool.x.shape)).astype(np.float32))
    found: dict[str, list[Any]] = {name: [] for name in ("L1 norm", "loss", "labels of 32 queries", "whole map")}
    for network in networks:
        x = pool.x.clone().requires_grad_(True)
        p = network(x).softmax(1)
        label = p.argmax(1)
        (slope,) = torch.autograd.grad(p.amax(1).sum(), x)
        maps = (slope * pool.x).double()
        with torch.no_grad():
            asked = (network(pool.x * torch.exp(0.3 * draws)).argmax(-1) == label).double().sum(0)
        found["L1 norm"].append(maps.abs().sum(1).clamp_min(1e-30).log().numpy())
        loss = nn.functional.cross_entropy(network(pool.x), pool.y, reduction="none").detach()
        found["loss"].append(loss.double().clamp_min(1e-30).log().numpy())
        found["labels of 32 queries"].append(torch.log((asked + 0.5) / (32.5 - asked)).numpy())
        found["whole map"].append(maps.numpy())
    return member, {name: np.array(values) for name, values in found.items()}


def by_references(quick: bool) -> dict[str, Any]:
    """Signal -> number of references -> TPR at 1 % and AUC, with plain averages and with the gap shrunk."""
    member, signals = trained(9 if quick else 33, 200 if quick else 1200, 2 if quick else 60)
    attack, out = LikelihoodRatio("identity"), {}
    for name, x in signals.items():
        vector = x if x.ndim == 3 else x[..., None]  # of a vector, means are plain averages
        for number in (4,) if quick else (4, 8, 16, 30):
            found: dict[str, list[tuple[float, float]]] = {"plain": [], "shrunk": []}
            for target in range(len(member))[: 8 if vector.shape[2] > 1 else 24]:
                others = np.arange(1, len(member)).reshape(-1, 2)
                others = others[~(others == target).any(1)]
                chosen = np.random.default_rng(target).permutation(others)[: number // 2].ravel()
                inside = member[chosen]
                each = (attack(c[target], c[chosen], inside) for c in np.moveaxis(vector, 2, 0))
                plain = attack(vector[target], vector[chosen], inside)
                for kind, scores in (("plain", plain), ("shrunk", sum(each, np.zeros(len(plain))))):
                    found[kind].append((found_by(scores, member[target]), roc(scores, member[target]).auc))
            out.setdefault(name, {})[str(number)] = {
                kind: {"tpr": float(np.mean([f[0] for f in each])), "auc": float(np.mean([f[1] for f in each]))}
                for kind, each in found.items()
            }
    return out


def calibration(quick: bool) -> dict[str, Any]:
    """Problem -> rates on fresh models at thresholds from the references, and how they differ between examples."""
    references, fresh, n = 8, 20 if quick else 400, 500 if quick else 2000
    out, attack = {}, LikelihoodRatio()
    for problem in PROBLEMS:
        rng = np.random.default_rng([7, PROBLEMS.index(problem)])
        half = rng.random((references // 2, n)) < 0.5
        pairs = np.stack([half, ~half], axis=1).reshape(references, n)
        member = np.concatenate([pairs, rng.random((fresh, n)) < 0.5])
        shift, spread = problem.draw(rng, n)
        away = rng.normal(size=member.shape)
        x = np.where(member, spread * away - shift, away) + rng.normal(0.0, SPREAD, n)
        everyone = np.arange(references)
        players = likelihood_ratios(attack, x, member, everyone, everyone.tolist())
        scores = likelihood_ratios(attack, x, member, everyone, range(references, references + fresh))
        threshold = np.quantile(players[~pairs], 1 - FPR)
        member = member[references:]
        own = np.quantile(scores[~member], 1 - FPR)
        out[problem.name] = {
            "fpr at the references' threshold": float((scores > threshold)[~member].mean()),
            "tpr at the references' threshold": float((scores > threshold)[member].mean()),
            "tpr at 1 %": float((scores > own)[member].mean()),
            "mean log ratio of non-members, references in the target's place": float(players[~pairs].mean()),
            "mean log ratio of non-members, fresh models": float(scores[~member].mean()),
            "mean of the ratio itself over non-members, 1 if calibrated": float(np.exp(scores[~member]).mean()),
        }
        each = np.where(~member, scores > own, False).sum(0) / np.maximum((~member).sum(0), 1)
        out[problem.name]["fpr of an example: median, 90th and 99th percentile"] = np.quantile(
            each, (0.5, 0.9, 0.99)
        ).tolist()
    return out


def targets(by_problem: dict[str, Any]) -> dict[str, Any]:
    """The oracle finds what the closed form says, and the best attack of each problem most of what can be found."""
    exact = float(norm.cdf(norm.ppf(FPR) + 1.5))
    error = abs(by_problem["equal effects"]["tpr"]["oracle"] - exact)
    best = {name: max(figures["share"].values()) for name, figures in by_problem.items()}
    return {"equal effects, error of the oracle's rate": at_most(0.02, error)} | {
        f"{name}, share that the best attack finds": at_least(AT_LEAST, share) for name, share in best.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every target is met, 1 otherwise."""
    run = Benchmark("attack_power", __doc__, argv, rounds=1)
    options = run.options
    by_problem = measure(1 if options.quick else SEEDS, 2_000 if options.quick else EXAMPLES)
    report = {
        "references": REFERENCES,
        "examples": EXAMPLES,
        "fpr": FPR,
        "problems": by_problem,
        "by_references": by_references(options.quick),
        "calibration": calibration(options.quick),
    }
    return run.conclude(report, targets(by_problem))


if __name__ == "__main__":
    finish(main)
