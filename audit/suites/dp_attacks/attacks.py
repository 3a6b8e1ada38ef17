"""The attacks on what the models release, beside what epsilon guarantees against all of them."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta

from safexplain._privacy_loss import Steps
from safexplain.audit import Signals
from safexplain.audit.attacks import JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.suite import Scorer, SuiteRow
from safexplain.verdict.guarantee import RocBound, tpr_bound
from safexplain.verdict.privacy_statement import PrivacyStatement

from ...shared.resampling import resampled_rates, weights_of
from ..paper_a.published import ReleasedRatio
from .plan import DELTA, Budget, Size

RATES = (0.001, 0.01)
HUANG = "LRT (Huang et al.)"
OF_FIVE = "l1+mean+positive+sparsity+peak"
SCALAR = (
    *(SuiteRow(HUANG, ReleasedRatio(), s, "explanation") for s in ("variance", "l1", "l2")),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "l1", "explanation"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), OF_FIVE, "explanation"),
    SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio(), "loss", "loss"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1+loss", "explanation+loss"),
)
"""Attacks against every target: the paper's three, the library's on numbers of the explanation, label and loss."""


def allowed(budget: Budget, size: Size) -> dict[str, Any]:
    """What the guarantee allows every attack to find, at each of `RATES`, and the largest AUC.

    "by epsilon" follows from (epsilon, delta) alone, "by the curve" from the mechanism's whole trade-off curve.
    """
    if math.isinf(budget.nominal):
        every = {str(rate): 1.0 for rate in RATES}
        return {"by epsilon": every, "by the curve": every, "auc": 1.0}
    steps = Steps(budget.sigma, size.sample_rate, size.steps)
    bound = RocBound.of(PrivacyStatement("DP-SGD", records=size.pool // 2, delta=DELTA, phases=(steps,)))
    by_epsilon = {str(rate): float(tpr_bound(rate, budget.add_remove, DELTA)) for rate in RATES}
    curve = {str(rate): min(float(bound(rate)), by_epsilon[str(rate)]) for rate in RATES}
    return {"by epsilon": by_epsilon, "by the curve": curve, "auc": bound.auc}


def scalar(signals: Signals, resamples: int) -> dict[str, Any]:
    """AUC and rates of `SCALAR`, averaged over all targets: "ATTACK on SIGNAL" -> "auc", "tpr at .01", ...

    Intervals (normal, 95 %) come from resampled examples; `sd_over_targets` stands beside them.
    """
    weights = weights_of(len(signals), resamples, 0xD9A)
    found: dict[str, dict[str, list[Any]]] = {}
    for target in range(len(signals.membership)):
        scorer = Scorer(signals, SCALAR, target=target, training=np.ones(len(signals), dtype=bool))
        for row, scores in zip(SCALAR, scorer.scores(target), strict=True):
            _add(found.setdefault(f"{row.name} on {row.signal}", {}), scores, signals.membership[target], weights)
    return _means(found)


def _add(each: dict[str, list[Any]], scores: Any, member: NDArray[np.bool_], weights: NDArray[np.float32]) -> None:
    for rate in RATES:
        area, tpr = resampled_rates(scores, member, weights, rate)
        each.setdefault(f"tpr at {rate}", []).append(tpr)
    each.setdefault("auc", []).append(area)


def _means(found: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    def mean(values: list[Any]) -> dict[str, float]:
        spread = {"sd_over_targets": float(np.std([v[0] for v in values], ddof=1))} if len(values) > 1 else {}
        return estimate(np.mean(values, axis=0)) | spread

    return {name: {k: mean(v) for k, v in each.items()} for name, each in found.items()}


def above_promise(cell: dict[str, Any], budget: dict[str, Any]) -> list[str]:
    """Attacks whose rate is surely above what epsilon promises, in words.

    The lower limit of a mean over targets is compared with what is promised at the upper limit of the false-positive
    rate of one target.
    """
    wrong, bound = [], budget["add_remove"]
    for name, each in cell["means"].items():
        for rate in RATES:
            found = each.get(f"tpr at {rate}")
            others = cell["non_members"]
            positives = math.floor(rate * others)
            fpr = float(beta.ppf(0.975, positives + 1, others - positives))
            most = float(tpr_bound(fpr, math.inf if bound is None else bound, DELTA))
            if found and found["low"] > most:
                wrong.append(f"{name} finds {found['low']:.1%} at {rate:.1%}, promised {most:.1%}")
    return wrong


def digest(signals: Signals) -> str:
    """Of everything that is attacked."""
    h = hashlib.sha256(np.packbits(signals.membership).tobytes())
    for name, values in sorted(signals.values.items()):
        h.update(name.encode() + np.ascontiguousarray(values).tobytes())
    return h.hexdigest()


def estimate(replicates: NDArray[np.float64]) -> dict[str, float]:
    """The value (the first one) and its interval from the others."""
    value, half = float(replicates[0]), float(ndtri(0.975)) * float(replicates[1:].std(ddof=1))
    return {"value": value, "low": value - half, "high": value + half}
