"""The table of "Explaining the Model, Protecting Your Data", why it says so, and what the same scores really say.

The authors (Huang et al.) released the L1 norm of InputXGradient and the loss of 33 CIFAR-10 ViT models on 20,000
examples. Their score is (t - mu_in)^2 - (t - mu_out)^2, low for members, mu_in and mu_out the means of the references
on each side, of examples with at least 2 on each. Two mistakes in how it is read make up the published rates:

1. the curve function returns (TPR, FPR) for a score that is low for members, and its caller swaps them: the published
   "TPR at FPR" is the share of NON-members found while that share of the MEMBERS is mistaken for non-members.
2. the rate is interpolated on 10,000 points and then read at a position found in the array before interpolation.

Both are applied here, outside of the library, and every attack is read in both ways, like with like. The targets share
their examples, so a last table gives each example one target, drawn at random, and an interval.

    python -m audit.suites.paper_a [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from safexplain.audit.attacks import RMIA, Attack, JointLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.attacks.learned import Boosted
from safexplain.verdict.stats import auc_interval, roc, tpr_at_fpr

from ...shared.run import Progress, Run, load
from .published import ReleasedRatio

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RATES = (0.001, 0.01)
GRID = 10_000
NOTEBOOK = {"l1": (0.0922, 0.1562, 0.6380), "loss": (0.0543, 0.0946, 0.5696)}
"""TPR at 0.1 %, at 1 % and AUC as the released code gives them, to four digits."""
PAPER = {"l1": (0.093, 0.156, 0.639), "loss": (0.054, 0.095, 0.570)}
"""The same in the paper's Table 3."""
CORRECTED = {"l1": (0.0118, 0.0622, 0.638)}
AT_LEAST = (0.0275, 0.080, 0.637)
"""What the library's default attack on L1 must reach."""
JOINT_AT_LEAST = (0.041, 0.0, 0.645)
"""The same for the joint attack on L1 and loss."""
BOOSTED = Boosted(trees=150, leaves=15, rate=0.06, models=16)
BOOSTED_TARGETS = range(16, 33)
"""Models that the boosted trees attack; each has its own trees, which never saw whom it was trained on."""
BOOSTED_AT_LEAST = {"loss": (0.044, 0.0975, 0.660), "l1 + loss": (0.046, 0.102, 0.665)}
"""What they must reach on average."""
DRAWS = 40
"""Further assignments of examples to targets."""
SECONDS = 10.0
"""All 33 targets for one signal."""

BOTH = "l1 + loss"
THRESHOLDS: dict[str, Attack] = {
    "Threshold()": Threshold(),
    "Threshold(member_when_low=False)": Threshold(member_when_low=False),
}
ATTACKS: dict[str, dict[str, Attack]] = {
    "l1": {**THRESHOLDS, "LikelihoodRatio()": LikelihoodRatio()},
    "loss": {
        **THRESHOLDS,
        "LikelihoodRatio()": LikelihoodRatio(),
        "JointLikelihoodRatio()": JointLikelihoodRatio(),
        "RMIA()": RMIA(),
    },
    BOTH: {"JointLikelihoodRatio()": JointLikelihoodRatio()},
}
"""Low signals say "member" in `Threshold()`, as in the baseline of the paper's Table 1."""
ABSENT = {
    "table 1": "variance, and everything but InputXGradient on CIFAR-10",
    "table 2": "everything but InputXGradient on CIFAR-10, which is L1 in table 3",
    "table 3": "L2 and variance",
}

FINDING = (
    "The published 9.3 % and 15.6 % for L1 are not members found at 0.1 % and 1 % false positives: they are non-members"
    " found while {0:.2%} and {1:.2%} of the members are lost, and read correctly the same scores find {2:.2%} and"
    " {3:.2%} of the members (AUC unchanged). A logarithm and one shrunk variance per example find {4:.2%} and {5:.2%}"
    " from the same numbers, and the loss, which the paper's table puts behind L1, then finds {6:.2%} and {7:.2%}; L1"
    " and loss together find {8:.2%} and {9:.2%}. Read the way the paper's rates are, the plain threshold on the loss"
    " beats them all: it finds {10:.1%} of the non-members while 0.1 % of the members are lost, the published attack on"
    " L1 {11:.1%}."
)


def released_score(target: Floats, shadows: Floats, membership: Bools) -> tuple[Floats, Bools]:
    """Their score, LOW for members, and which examples they keep: (n,), (m, n), (m, n) bool -> (n,), (n,) bool."""
    inside, outside = membership.sum(0), (~membership).sum(0)
    mean_in = (shadows * membership).sum(0) / np.maximum(inside, 1)
    mean_out = (shadows * ~membership).sum(0) / np.maximum(outside, 1)
    return (target - mean_in) ** 2 - (target - mean_out) ** 2, (inside >= 2) & (outside >= 2)


def swapped_curve(low_is_member: Floats, member: Bools) -> tuple[Floats, Floats]:
    """First mistake. (called "fpr", called "tpr"): the rates of members lost and of non-members found, falling scores.

    Taking the non-members as the positives and high scores as positive is what swapping the axes amounts to.
    """
    lost, found, _ = roc_curve(~member, low_is_member)
    return lost, found


def misread(called_fpr: Floats, called_tpr: Floats, rate: float) -> tuple[float, float]:
    """Second mistake. The interpolated value at a position of the array before interpolation, and the rate it is at."""
    grid = np.linspace(0, 1, GRID)
    interpolated = np.interp(grid, called_fpr, called_tpr)
    position = min(int(np.flatnonzero(called_fpr <= rate)[-1]), GRID - 1)
    return float(interpolated[position]), float(grid[position])


def one_target(signal: Floats, membership: Bools, t: int) -> tuple[dict[str, list[float]], Floats]:
    """The published attack on one target: each figure as (at 0.1 %, at 1 %, AUC); its scores, higher for members."""
    others = np.arange(len(signal)) != t
    low, keep = released_score(signal[t], signal[others], membership[others])
    member = membership[t]
    called_fpr, called_tpr = swapped_curve(low[keep], member[keep])
    wrong = [misread(called_fpr, called_tpr, r) for r in RATES]
    right = roc(-low[keep], member[keep])
    own = ReleasedRatio()(signal[t], signal[others], membership[others])
    return {
        "published": [w[0] for w in wrong] + [right.auc],
        "read_at": [w[1] for w in wrong],
        "swapped_axes_only": [float(called_tpr[called_fpr <= r][-1]) for r in RATES] + [right.auc],
        "corrected": _figures(-low[keep], member[keep]),
        "corrected_by_library": _figures(own, member),
    }, np.where(keep, -low, 0.0)


def _figures(scores: Floats, positive: Bools) -> list[float]:
    curve = roc(scores, positive)
    return [*(tpr_at_fpr(curve, fpr=r).tpr for r in RATES), curve.auc]


def once(scores: Floats, membership: Bools) -> dict[str, list[float]]:
    """Scores of shape (targets, examples), each example against one target drawn at random: (value, low, high) each.

    The intervals of the rates hold for the threshold as it is. At 0.1 % it rests on 10 non-members, so that the range
    of the middle 95 % of further draws stands beside them.
    """
    targets, examples = scores.shape
    rng = np.random.default_rng(0)
    draws = [(rng.integers(0, targets, examples), np.arange(examples)) for _ in range(1 + DRAWS)]
    curves = [roc(scores[d], membership[d]) for d in draws]
    first, *more = [[tpr_at_fpr(c, fpr=r) for r in RATES] for c in curves]
    found = {f"at {r.fpr:.1%}": [r.tpr, r.low, r.high] for r in first}
    found["AUC"] = [curves[0].auc, *auc_interval(curves[0])]
    return found | {"at 0.1%, other draws": np.quantile([r[0].tpr for r in more], (0.025, 0.975)).tolist()}


def default_attack_seconds(signal: Floats, membership: Bools) -> float:
    """Time of the default attack with every model as the target."""
    start = time.perf_counter()
    for t in range(len(signal)):
        others = np.arange(len(signal)) != t
        LikelihoodRatio()(signal[t], signal[others], membership[others])
    return time.perf_counter() - start


def boosted(signals: dict[str, Floats], membership: Bools, targets: range) -> dict[str, Any]:
    """Figures of boosted trees on reference features, by signal, one target after the other.

    Trees are fitted to other models in the target's place, with all but the target as references, and each half of the
    examples is scored by the trees of the other half.
    """
    progress, each = Progress(), {}
    for name in BOOSTED_AT_LEAST:
        figures = []
        for i, t in enumerate(targets):
            others = np.arange(len(membership)) != t
            scores = BOOSTED(signals[name][t], signals[name][others], membership[others])
            figures.append(_figures(scores, membership[t]))
            progress(f"boosting with {name}", i + 1, len(targets), f"{np.mean(figures, axis=0).round(4).tolist()}")
        each[name] = figures
    means = {name: np.mean(figures, axis=0).tolist() for name, figures in each.items()}
    return {"targets": list(targets), "means": means, "each_target": each}


def failures(means: dict[str, dict[str, list[float]]], by_trees: dict[str, list[float]], seconds: float) -> list[str]:
    """The targets that are missed, in words."""
    missed = [
        f"{name} Boosted(): expected at least {least}, got {by_trees[name]}"
        for name, least in BOOSTED_AT_LEAST.items()
        if any(got < low for got, low in zip(by_trees[name], least, strict=True))
    ]
    joint = means.get(BOTH, {}).get("JointLikelihoodRatio()")
    if joint and any(got < least for got, least in zip(joint, JOINT_AT_LEAST, strict=True)):
        missed.append(f"{BOTH} JointLikelihoodRatio(): expected at least {JOINT_AT_LEAST}, got {joint}")
    for name, expected in NOTEBOOK.items():
        if np.abs(np.subtract(means[name]["published"], expected)).max() > 5e-5:
            missed.append(f"{name} as published: expected {expected}, got {means[name]['published']}")
        if not np.allclose(means[name]["corrected"], means[name]["corrected_by_library"], rtol=0, atol=1e-6):
            missed.append(f"{name} corrected: the library's own variant gives {means[name]['corrected_by_library']}")
    for name, expected in CORRECTED.items():
        if np.abs(np.subtract(means[name]["corrected"], expected)).max() > 5e-4:
            missed.append(f"{name} corrected: expected {expected}, got {means[name]['corrected']}")
    if any(got < least for got, least in zip(means["l1"]["LikelihoodRatio()"], AT_LEAST, strict=True)):
        missed.append(f"l1 LikelihoodRatio(): expected at least {AT_LEAST}, got {means['l1']['LikelihoodRatio()']}")
    if seconds > SECONDS:
        missed.append(f"all targets of one signal took {seconds:.1f} s, expected at most {SECONDS:.0f} s")
    return missed


def measure(signals: dict[str, Floats], membership: Bools, targets: int) -> dict[str, Any]:
    """Figures of each signal as means over targets and standard deviations, both ways round, and for examples once."""
    progress = Progress()
    means, spreads, others_found, single = {}, {}, {}, {}
    for name, signal in signals.items():
        found: dict[str, list[list[float]]] = {}
        turned: dict[str, list[list[float]]] = {}
        scores: dict[str, list[Floats]] = {}
        for t in range(targets):
            member, others = membership[t], np.arange(len(signal)) != t
            if signal.ndim == 2:
                figures, published = one_target(signal, membership, t)
                scores.setdefault("corrected", []).append(published)
                for key, values in figures.items():
                    found.setdefault(key, []).append(values)
            for key, attack in ATTACKS[name].items():
                scores.setdefault(key, []).append(attack(signal[t], signal[others], membership[others]))
                found.setdefault(key, []).append(_figures(scores[key][-1], member))
            for key, each in scores.items():
                turned.setdefault(key, []).append(_figures(-each[-1], ~member))
            progress(f"attacking with {name}", t + 1, targets)
        means[name] = {k: np.mean(v, axis=0).tolist() for k, v in found.items()}
        spreads[name] = {k: np.std(v, axis=0, ddof=1).tolist() for k, v in found.items()}
        others_found[name] = {k: np.mean(v, axis=0).tolist() for k, v in turned.items()}
        single[name] = {k: once(np.stack(v), membership[:targets]) for k, v in scores.items()}
    return {
        "means": means,
        "sd_over_targets": spreads,
        "non_members_found_means": others_found,
        "each_example_once": single,
    }


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target is met, 1 otherwise."""
    run = Run("paper_a", __doc__, argv)
    arrays, source = load(run.options.data, "paper_a_ixg_signals", ("membership", "l1", "loss"))
    membership = arrays["membership"].astype(bool)
    signals = {name: arrays[name].astype(np.float64) for name in ("l1", "loss")}
    signals[BOTH] = np.stack([signals["l1"], signals["loss"]], axis=-1)
    found = measure(signals, membership, 3 if run.quick else len(membership))
    trees = boosted(signals, membership, BOOSTED_TARGETS[:1] if run.quick else BOOSTED_TARGETS)
    seconds = default_attack_seconds(signals["l1"], membership)
    means = found["means"]
    missed = [] if run.quick else failures(means, trees["means"], seconds)
    first, joint = means["l1"], means[BOTH]["JointLikelihoodRatio()"]
    said = [first["read_at"], first["corrected"], first["LikelihoodRatio()"], means["loss"]["LikelihoodRatio()"], joint]
    plain = found["non_members_found_means"]["loss"]["Threshold()"][0]
    sentence = FINDING.format(*(v for pair in said for v in pair[:2]), plain, first["swapped_axes_only"][0])
    print(f"{sentence}\nAll {len(membership)} targets of one signal: {seconds:.1f} s.")
    run.write(
        columns=["at 0.1 %", "at 1 %", "AUC"], figures=found, boosted=trees, table_3_of_the_paper=PAPER,
        finding=sentence, seconds_all_targets_one_signal=seconds, targets_missed=missed, not_in_the_file=ABSENT,
        data=source | {"models": len(membership), "examples": membership.shape[1]}, run=run.provenance(),
    )  # fmt: skip
    return run.end(missed)
