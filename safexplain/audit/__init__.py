"""Membership attacks on explanations, from a model to a verdict. `run` does all steps:

    question -> references (train, fine-tune) -> answers (query) -> signals -> attacks, controls -> certify -> report

An explainer is any callable: nothing here imports the package's own or its hardening.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safexplain.audit.certify import certify
from safexplain.audit.signals import Signals
from safexplain.verdict.policy import Policy

if TYPE_CHECKING:
    from safexplain.audit.answers import collect_signals
    from safexplain.audit.queries import Dither, Population
    from safexplain.audit.question import AuditOptions, Question
    from safexplain.audit.references.fine_tuning import FineTune, fine_tune
    from safexplain.audit.references.recipe import Recipe
    from safexplain.audit.references.shadows import ModelCache, Shadows, train_shadows
    from safexplain.audit.report.outcome import AuditRun
    from safexplain.audit.run import audit
    from safexplain.audit.usefulness import utility

_LATER = {
    "AuditOptions": "question",
    "AuditRun": "report.outcome",
    "Dither": "queries",
    "FineTune": "references.fine_tuning",
    "ModelCache": "references.shadows",
    "Population": "queries",
    "Question": "question",
    "Recipe": "references.recipe",
    "Shadows": "references.shadows",
    "audit": "run",
    "collect_signals": "answers",
    "fine_tune": "references.fine_tuning",
    "train_shadows": "references.shadows",
    "utility": "usefulness",
}
"""Names that are imported on first use: signals alone are attacked and judged without PyTorch."""

__all__ = [
    "AuditOptions",
    "AuditRun",
    "Dither",
    "FineTune",
    "ModelCache",
    "Policy",
    "Population",
    "Question",
    "Recipe",
    "Shadows",
    "Signals",
    "audit",
    "certify",
    "collect_signals",
    "fine_tune",
    "train_shadows",
    "utility",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"safexplain.audit.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
