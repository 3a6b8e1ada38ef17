"""What `safexplain canaries` audits: a training that it computes itself, or a function that trains."""

from __future__ import annotations

from typing import Any, Protocol, cast

from safexplain.audit.canaries.one_run import run_once
from safexplain.audit.canaries.run import Threshold, run_canaries
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.cli.canary_config import CanaryConfig, Options
from safexplain.errors import ConfigurationError
from safexplain.loading.models.architectures import importable_in_workers, imported
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.one_run import OneRunResult
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.canaries.scenario import SCENARIOS, ScenarioName
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["Auditor", "FunctionAuditor", "SettingAuditor"]


class Auditor(Protocol):
    """Audits one scenario after another."""

    scenario: ScenarioName
    """Where none is asked for."""
    scenarios: tuple[ScenarioName, ...]
    """All that can be."""

    def audit(self, scenario: ScenarioName, confidence: float, **where: Any) -> Finding:
        """Train and judge; `where` are seed, cache, progress and what the auditor takes."""


class SettingAuditor:
    """Of heads and MLPs, whose runs are computed side by side."""

    scenario: ScenarioName = "gradient"

    def __init__(self, setting: Setting, options: Options) -> None:
        self.setting, self.options = setting, options
        self.scenarios = tuple(name for name in SCENARIOS if name != "natural" or setting.auxiliary is not None)

    def audit(self, scenario: ScenarioName, confidence: float, **where: Any) -> CanaryResult:
        """With `device`."""
        o = self.options
        return run_canaries(
            self.setting,
            scenario,
            runs=o.runs,
            every=o.every or max(1, self.setting.recipe.steps // 10),
            method=cast(BoundMethod, o.method),
            threshold=_threshold(o.threshold),
            confidence=confidence,
            **where,
        )

    def once(self, canaries: int, **where: Any) -> OneRunResult:
        """Many canaries in a single training."""
        method = cast(OneRunMethod, self.options.method)
        return run_once(self.setting, canaries, method=method, confidence=self.options.confidence, **where)


class FunctionAuditor:
    """Of a function of the user's."""

    scenario: ScenarioName = "mislabelled"

    def __init__(self, config: CanaryConfig, options: Options) -> None:
        self.config, self.options = config, options
        self.train = imported(config.training.function, "[training] function")
        natural: tuple[ScenarioName, ...] = () if config.auxiliary is None else ("natural",)
        self.scenarios: tuple[ScenarioName, ...] = ("crafted", "mislabelled", *natural)
        if options.every:
            raise ConfigurationError("--every: a training function returns its last model only; leave it out")

    def audit(self, scenario: ScenarioName, confidence: float, **where: Any) -> CanaryResult:
        """With `workers`."""
        progress = where.pop("progress")
        probe = CanaryProbe(
            self.train,
            (self.config.x, self.config.y),
            claim=self.config.claim,
            scenario=scenario,
            auxiliary=self.config.auxiliary,
            runs=self.options.runs,
            method=cast(BoundMethod, self.options.method),
            threshold=_threshold(self.options.threshold),
            confidence=confidence,
            **where,
        )
        with importable_in_workers():
            return probe.run(progress=progress)


def _threshold(value: str | float) -> Threshold:
    if value in ("auto", "split"):
        return cast(Threshold, value)
    try:
        return float(value)
    except ValueError:
        raise ConfigurationError(f"--threshold: expected auto, split or a number, got {value!r}") from None
