"""Differential privacy: accounting under every adjacency, training within a budget, and statements of the guarantee.

Each training returns a model and a `PrivacyStatement`, whose epsilons are computed from its parameters, never stored.
For training loops with Opacus, `statement_from` reads the statement from the `PrivacyEngine`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safexplain._privacy_loss import Epsilons, Steps, composed, epsilons, noise_multiplier, steps_within
from safexplain.verdict.privacy_statement import PrivacyStatement

if TYPE_CHECKING:
    from safexplain.dp.linear.classifier import DPLogisticRegression
    from safexplain.dp.models.prepare import prepare
    from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping, PerLayerClipping
    from safexplain.dp.sgd.finetune import DPFineTuner
    from safexplain.dp.sgd.steps import statement_from

_LATER = {
    "AutoSClipping": "sgd.clipping",
    "DPFineTuner": "sgd.finetune",
    "DPLogisticRegression": "linear.classifier",
    "FlatClipping": "sgd.clipping",
    "PerLayerClipping": "sgd.clipping",
    "prepare": "models.prepare",
    "statement_from": "sgd.steps",
}
"""Names that are imported on first use, because accounting alone needs neither torch nor Opacus."""

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
