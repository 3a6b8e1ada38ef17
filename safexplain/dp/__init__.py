"""Differential privacy: accounting under every adjacency, training that keeps a budget, and what each covers.

A budget (epsilon, delta, adjacency) goes through `accounting` to noise and a number of steps. `models` makes a network
fit for gradients of single examples; `sgd` trains it (`DPFineTuner`), and `heads` does so in closed form where a linear
head alone trains. `linear` is logistic regression without a network. Each gives a model and a `PrivacyStatement`, whose
epsilons are computed from its parameters, never stored. Loops of one's own train with Opacus; `statement_from` reads
their statement from its `PrivacyEngine`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safexplain._privacy_loss import Epsilons, Steps, composed, epsilons
from safexplain.dp.accounting import noise_multiplier, steps_within
from safexplain.verdict.privacy_statement import PrivacyStatement

if TYPE_CHECKING:
    from safexplain.dp.linear.classifier import DPLogisticRegression
    from safexplain.dp.models.prepare import prepare
    from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping, PerLayerClipping
    from safexplain.dp.sgd.finetune import DPFineTuner
    from safexplain.dp.sgd.opacus_engine import statement_from

_LATER = {
    "AutoSClipping": "sgd.clipping",
    "DPFineTuner": "sgd.finetune",
    "DPLogisticRegression": "linear.classifier",
    "FlatClipping": "sgd.clipping",
    "PerLayerClipping": "sgd.clipping",
    "prepare": "models.prepare",
    "statement_from": "sgd.opacus_engine",
}
"""Names that are imported when they are asked for: accounting alone needs neither torch nor Opacus."""

__all__ = [
    "AutoSClipping",
    "DPFineTuner",
    "DPLogisticRegression",
    "Epsilons",
    "FlatClipping",
    "PerLayerClipping",
    "PrivacyStatement",
    "Steps",
    "composed",
    "epsilons",
    "noise_multiplier",
    "prepare",
    "statement_from",
    "steps_within",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"safexplain.dp.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
