"""One cell of the evidence on recourse: a task under one condition, attacked and judged for use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from safexplain._progress import Progress
from safexplain.audit.attacks import Threshold
from safexplain.audit.attacks.likelihood import PooledDensityRatio
from safexplain.audit.attacks.suite import MIN_FOR_NULL, Scorer, SuiteRow, fitting
from safexplain.audit.collect_recourse import collect_recourse, explain, unit
from safexplain.audit.report.root_cause import draw_targets
from safexplain.audit.signals import Signals
from safexplain.verdict.stats import RocCurve, auc_interval, clopper_pearson, roc, tpr_at_fpr

from .conditions import BASELINE, Condition, Native, ceiling
from .tasks import Floats, Plan, Task

FPRS = (0.001, 0.01)
GRID = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""False-positive rates of the curves."""
ONE_ANSWER = (
    SuiteRow("DirectionAttack", Threshold(member_when_low=False), "one_answer_margin", "explanation"),
    SuiteRow("DirectionDensity", PooledDensityRatio(), "one_answer_margin", "explanation"),
)
"""The direction of a single answer that tells one, and no offset: the epsilon of one answer bounds it.

Where answers have noise of their own, one fixed question is asked until it is told to change something. That is the
answer given that it tells: an epsilon-private one has odds within [exp(-epsilon), exp(epsilon)], hence given any event
within some [m, m exp(2 epsilon)], so that the best balanced accuracy stays exp(epsilon) / (1 + exp(epsilon)). (Asking
different questions until one tells would not: which of them did is worth an epsilon too.)
"""
OF_ONE_ANSWER = ("distance", "signed_distance", "score", "label", "one_answer_margin")
"""Signals that one answer about the scored example, or one answer at all, gives (a distance counts in units of the
score, a constant that the suite's mechanisms with noise of their own make public)."""
TRIES = 64
SHOWN = 500
"""Examples on which the use of recourse is measured."""


@dataclass(eq=False)
class Watched:
    """Trains the models of a condition and measures what their recourse is worth, before they are asked by attackers.

    Args:
        margins: filled, (n,) margins by the direction of the first answer to a public question, one a model.
    """

    task: Task  # the pool
    condition: Condition  # how answers are made
    use: list[dict[str, float]] = field(default_factory=list)  # filled, one dictionary a model
    margins: list[Floats] = field(default_factory=list)
    guarantee: dict[str, Any] = field(default_factory=dict)  # filled, what the mechanism promises

    def __call__(self, x: Floats, y: NDArray[Any], seed: int) -> Any:
        """Train one model of the condition, and the native one that it is compared with."""
        native = Native.fitted(x, y)
        mechanism = self.condition.mechanism(self.task, x, y, native, seed % 2**31)
        direction = first_direction(mechanism, self.task.questions(TRIES, same=self.condition.noisy))
        side = 2.0 * self.task.y - 1
        self.margins.append(side * (self.task.x @ direction))
        cosine = float(abs(direction @ native.weights) / np.linalg.norm(native.weights))
        asked = np.random.default_rng(seed).choice(len(self.task.x), min(SHOWN, len(self.task.x)), replace=False)
        self.use.append(use_of(mechanism, native, self.task.x[asked]) | {"cosine_of_one_answer": cosine})
        promised = getattr(mechanism, "claim", None)
        if hasattr(mechanism, "guarantee"):
            promised = {"is_private": True, **mechanism.guarantee.to_dict()}
        if promised is not None:
            names = ("mechanism", "is_private", "per", "epsilon", "delta", "adjacency", "released")
            self.guarantee = {name: promised[name] for name in names}
        return mechanism


def first_direction(mechanism: Any, questions: Floats) -> Floats:
    """(d,) direction of the first answer that tells one to change anything; zeros if none does."""
    for row in questions:
        change = np.asarray(explain(mechanism, row[None]).counterfactual[0]) - row
        if change.any():
            return unit(change)
    return np.zeros(questions.shape[1])


def use_of(mechanism: Any, native: Native, x: Floats) -> dict[str, float]:
    """What recourse is worth to those whom the native model refuses, measured by that model.

    Returns:
        told: share who are told to change something; valid: share who would then be accepted (of all of them);
        distance: median length of the change over that of the native recourse, among those told; error: median
        |length - native length| over the native one.
    """
    x = x[native.score(x) < 0]
    if not len(x):
        return {"told": 0.0, "valid": 0.0, "distance": float("nan"), "error": float("nan")}
    answer, best = explain(mechanism, x), native.explain(x)
    change = answer.counterfactual - x
    length = np.linalg.norm(change, axis=1)
    told = length > 0
    ratio = length[told] / best.distance[told]
    return {
        "told": float(told.mean()),
        "valid": float((native.score(answer.counterfactual) >= -1e-9).mean()),
        "distance": float(np.median(ratio)) if told.any() else float("nan"),
        "error": float(np.median(np.abs(ratio - 1))) if told.any() else float("nan"),
    }


def balanced_accuracy(
    scores: Floats, member: NDArray[np.bool_], model: NDArray[np.int64], seed: int = 0
) -> dict[str, float]:
    """(TPR + 1 - FPR) / 2 on one half of the examples, at the threshold that is best on the other half.

    The interval adds up 97.5 % Clopper-Pearson limits of both rates: guesses about the records of one private release
    are no surer together than coins of its odds. Where every answer is a release of its own, those about one model may
    stand and fall together; for that `low_by_model` takes each model as one observation (Student's t, 97.5 %).
    """
    chosen = np.random.default_rng([seed, 0xBA]).random(len(scores)) < 0.5
    curve = roc(scores[chosen], member[chosen])
    threshold = curve.thresholds[int((curve.tpr - curve.fpr).argmax())]
    rest, truth = scores[~chosen] >= threshold, member[~chosen]
    found, false_positives = int(rest[truth].sum()), int(rest[~truth].sum())
    members, others = int(truth.sum()), int((~truth).sum())
    low = clopper_pearson(found, members, 0.975)[0] - clopper_pearson(false_positives, others, 0.975)[1]
    high = clopper_pearson(found, members, 0.975)[1] - clopper_pearson(false_positives, others, 0.975)[0]
    value = (1 + found / members - false_positives / others) / 2
    by_model = lowest_mean([accuracy_of(rest[of], truth[of]) for of in model[~chosen] == np.unique(model)[:, None]])
    return {"value": value, "low": (1 + low) / 2, "high": (1 + high) / 2, "low_by_model": by_model}


def accuracy_of(called_members: NDArray[np.bool_], member: NDArray[np.bool_]) -> float:
    """(TPR + 1 - FPR) / 2; NaN without members, or without others."""
    if not member.any() or member.all():
        return float("nan")
    return float(1 + called_members[member].mean() - called_members[~member].mean()) / 2


def lowest_mean(values: Sequence[float]) -> float:
    """97.5 % lower limit of a mean (Student's t); 0 for fewer than two numbers."""
    known = np.array([v for v in values if np.isfinite(v)])
    if len(known) < 2:
        return 0.0
    error = known.std(ddof=1) / np.sqrt(len(known))
    return max(0.0, float(known.mean() - student.ppf(0.975, len(known) - 1) * error))


def attacked(signals: Signals, row: SuiteRow, seed: int = 0) -> dict[str, Any]:
    """Every example scored once, against one model drawn at random; beside it the same against a model that knows
    nothing of the target's members."""
    target, n = draw_targets(signals, seed), len(signals)
    member, nobody = signals.membership[target, np.arange(n)], np.zeros(n, dtype=bool)
    scores, of_null, models = np.zeros(n), np.zeros(n), signals.models
    for t in np.unique(target).tolist():
        mine, scorer = target == t, Scorer(signals, [row], target=t, training=nobody, seed=seed)
        scores[mine] = scorer.scores(t)[0][mine]
        if len(models) >= MIN_FOR_NULL:
            of_null[mine] = scorer.scores(models[(models.index(t) + 1) % len(models)])[0][mine]
    curve = roc(scores, member)
    about = {"null_auc": roc(of_null, member).auc} if len(models) >= MIN_FOR_NULL else {}
    low, high = auc_interval(curve)
    return {
        "attack": row.name,
        "signal": row.signal,
        "one_answer": row.signal in OF_ONE_ANSWER,
        "auc": curve.auc,
        "auc_low": low,
        "auc_high": high,
        "balanced_accuracy": balanced_accuracy(scores, member, target, seed),
        "tpr": [rate(curve, fpr) for fpr in FPRS],
        "curve": [tpr_at_fpr(curve, fpr=fpr).tpr for fpr in GRID],
        **about,
    }


def rate(curve: RocCurve, fpr: float) -> dict[str, float]:
    """Rate of members found, with its interval and the realised rate of non-members."""
    r = tpr_at_fpr(curve, fpr=fpr)
    return {"fpr": fpr, "realised_fpr": r.realised_fpr, "tpr": r.tpr, "low": r.low, "high": r.high}


def rows_of(signals: Signals) -> list[SuiteRow]:
    """Attacks on one-number signals; the views and classifiers of whole maps are for small data."""
    return [r for r in fitting(signals) if r.signal in signals.values]


def cell(task: Task, plan: Plan, condition: Condition, seed: int, progress: Progress) -> dict[str, Any]:
    """Train, ask, attack: everything that the suite writes about a task under a condition."""
    watched = Watched(task, condition)
    signals = collect_recourse(
        watched, task.x, task.y, models=plan.models, repeats=plan.repeats if condition.noisy else 1, size=plan.size,
        keep_changes=False, seed=seed, progress=progress,
    )  # fmt: skip
    rows = rows_of(signals)
    one = np.array(watched.margins)
    if one.any():
        signals, rows = replace(signals, values={**signals.values, "one_answer_margin": one}), [*rows, *ONE_ANSWER]
    right = signals.values["label"] == task.y
    member = signals.membership
    private = watched.guarantee.get("is_private", False)
    promised = (watched.guarantee["epsilon"], watched.guarantee["delta"]) if private else (condition.epsilon, 0.0)
    return {
        "epsilon": condition.epsilon,
        "guarantee": watched.guarantee or None,
        "ceiling": None if condition.name == BASELINE else ceiling(*promised),
        "members_a_model": float(member.sum(1).mean()),
        "examples": len(signals),
        "train_accuracy": float(right[member].mean()),
        "test_accuracy": float(right[~member].mean()),
        "use": mean_of(watched.use),
        "attacks": [attacked(signals, r, seed) for r in rows],
    }


def mean_of(each: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Means over models of what was measured of them; None where it could be measured of none."""
    found: dict[str, float | None] = {}
    for name in each[0]:
        values = np.array([one[name] for one in each])
        found[name] = float(np.nanmean(values)) if np.isfinite(values).any() else None
    return found


def strongest(found: dict[str, Any]) -> dict[str, Any]:
    """The attack of a cell with the highest AUC."""
    return max(found["attacks"], key=lambda a: float(a["auc"]))


def biased(title: str, found: dict[str, Any]) -> list[str]:
    """Attacks of a cell that find members where nothing was trained on them, in words."""
    return [
        f"{title}: {a['attack']} on {a['signal']} finds members in the null"
        for a in found["attacks"]
        if abs(a.get("null_auc", 0.5) - 0.5) > 0.05
    ]


def show(title: str, found: dict[str, Any]) -> None:
    """A cell in one line."""
    a, right = strongest(found), (found["train_accuracy"], found["test_accuracy"])
    best = f"{a['attack']} on {a['signal']}: AUC {a['auc']:.3f}"
    print(f"{title}: right on {right[0]:.3f}, {right[1]:.3f}; {best}", flush=True)
