"""From what all models of a task say to the `Released` that `suite.py` attacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safexplain.audit import Signals
from safexplain.audit.collect import SUMMARIES

if TYPE_CHECKING:
    from .heads import Arrays, Budget, Pool

EXPLAINERS = ("InputXGradient", "Saliency")
PREDICTED = ("label", "loss", "margin")


@dataclass(frozen=True, eq=False)
class Released:
    """What all models of a task release.

    Args:
        budgets: in order.
        signals: (explainer, name of the budget) -> signals of its models.
        accuracy: name of the budget -> "members" and "non_members", one number a model.
        about: what is recorded of the task.
    """

    budgets: tuple[Budget, ...]
    signals: dict[tuple[str, str], Signals]
    accuracy: dict[str, dict[str, list[float]]]
    about: dict[str, Any]


def released(budgets: Sequence[Budget], scalars: Arrays, pool: Pool, about: dict[str, Any]) -> Released:
    """Signals of each explainer and budget, and accuracy of each model on its members and on the others.

    Args:
        budgets: in order.
        scalars: "EXPLAINER SUMMARY", "label", "loss" and "margin" -> (budgets * models, n), those of a budget together.
        pool: of n examples.
        about: what is recorded of the task.
    """
    right = scalars["label"] == pool.y.numpy()
    signals, accuracy, models = {}, {}, len(pool.membership)
    for i, budget in enumerate(budgets):
        own = slice(i * models, (i + 1) * models)
        each = list(zip(right[own], pool.membership, strict=True))
        accuracy[budget.name] = {
            "members": [float(r[m].mean()) for r, m in each],
            "non_members": [float(r[~m].mean()) for r, m in each],
        }
        for explainer in EXPLAINERS:
            values = {s: scalars[f"{explainer} {s}"][own] for s in SUMMARIES}
            values |= {s: scalars[s][own] for s in PREDICTED}
            meta = {"explainer": explainer, "population": pool.digest(), "subject": budget.name}
            signals[explainer, budget.name] = Signals(pool.membership, values, meta=meta, inputs=pool.x.numpy())
    return Released(tuple(budgets), signals, accuracy, about)
