"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from safexplain.audit.canaries.presets import PRESETS, preset
from safexplain.audit.references.shadows import Progress
from safexplain.cli.canary_audits import Auditor, FunctionAuditor, SettingAuditor
from safexplain.cli.canary_config import CanaryConfig, Options, load_canary_config
from safexplain.cli.canary_output import show
from safexplain.cli.console import device_of, progress_bars, resumable
from safexplain.cli.folders import choose_folder, make_folder
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.scenario import SCENARIOS, ScenarioName, scenario_of
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["canaries_command"]


def canaries_command(
    config: Annotated[Path | None, typer.Option(help="TOML file: data, training, claim.")] = None,
    preset_: Annotated[
        str | None, typer.Option("--preset", help=f"Instead: a training on made-up data; {', '.join(PRESETS)}.")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help=f"{', '.join(SCENARIOS)}; several separated by commas, or all.")
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Models to train, half in each world.  [default: 1000]")] = None,
    every: Annotated[int | None, typer.Option(help="Also audit each so many steps.  [default: steps / 10]")] = None,
    method: Annotated[str | None, typer.Option(help=f"{', '.join(get_args(BoundMethod))}.")] = None,
    threshold: Annotated[str | None, typer.Option(help="auto, split, or a number fixed beforehand.")] = None,
    confidence: Annotated[float | None, typer.Option(help="Of the verdict.  [default: 0.95]")] = None,
    one_run: Annotated[int, typer.Option(min=0, help="Instead of many runs: so many canaries in a single one.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Processes that call a training function of yours.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    run_dir: Annotated[Path | None, typer.Option(help="Where files go; default safexplain-runs/TIME.")] = None,
    resume: Annotated[bool, typer.Option(help="Take up --run-dir: finished runs are not trained again.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the verdict.")] = False,
) -> int:
    """Audit a training with DP by canaries: a lower bound on epsilon beside the epsilons that it claims."""
    if (config is None) == (preset_ is None):
        rows = "; ".join(f"{name}: {row.summary}" for name, row in PRESETS.items())
        raise ConfigurationError(f"give either --config dp.toml or --preset NAME; presets are {rows}")
    read = None if config is None else load_canary_config(config)
    given: dict[str, Any] = {
        "scenario": scenario,
        "runs": runs,
        "every": every,
        "method": method,
        "threshold": threshold,
        "confidence": confidence,
    }
    if one_run and (scenario or runs or every or threshold):
        raise ConfigurationError(
            "--one-run trains a single model with gradient canaries: leave out --scenario, --runs, --every, --threshold"
        )
    options = replace(read.options if read else Options(), **{k: v for k, v in given.items() if v is not None})
    kind = get_args(OneRunMethod if one_run else BoundMethod)
    if one_run and method is None:
        options = replace(options, method="f-dp")
    if options.method not in kind:
        raise ConfigurationError(f"--method: expected one of {', '.join(kind)}, got {options.method!r}")
    target = device_of(device)
    folder = choose_folder(run_dir, resume)
    with resumable(folder), progress_bars(quiet or json_) as progress:
        auditor = _auditor(read, cast(str, preset_), options, one_run)
        names = _scenarios(options.scenario, auditor)
        make_folder(folder)
        where: dict[str, Any] = {"seed": seed, "cache": folder / "runs"}
        if isinstance(auditor, FunctionAuditor):
            where["workers"] = workers
        else:
            where["device"] = target
        each = 1 - (1 - options.confidence) / max(1, len([name for name in names if name != "worst-case"]))
        found: list[Finding]
        if one_run and isinstance(auditor, SettingAuditor):
            found = [auditor.once(one_run, **where, progress=progress)]
        else:
            found = [auditor.audit(name, each, **where, progress=_about(name, progress)) for name in names]
    return show(found, options.confidence, folder, json_=json_, quiet=quiet)


def _about(name: ScenarioName, progress: Progress) -> Progress:
    """Tells of which canary it is told."""
    return lambda stage, done, total: progress(f"{name}: {stage}", done, total)


def _auditor(config: CanaryConfig | None, preset_name: str, options: Options, one_run: int) -> Auditor:
    if config is None:
        return SettingAuditor(preset(preset_name), options)
    if not config.training.function:
        return SettingAuditor(config.setting(), options)
    if one_run:
        raise ConfigurationError("--one-run needs gradient canaries in a training of safexplain, not in a function")
    return FunctionAuditor(config, options)


def _scenarios(text: str, auditor: Auditor) -> tuple[ScenarioName, ...]:
    if text == "all":
        return auditor.scenarios
    parts = [part.strip() for part in (text or auditor.scenario).split(",") if part.strip()]
    if not parts:
        raise ConfigurationError("--scenario: expected a name, several separated by commas, or all; got nothing")
    return tuple(dict.fromkeys(map(scenario_of, parts)))
