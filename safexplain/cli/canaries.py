"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?

The command reads options and configuration, audits one scenario after another by `run_canaries`, `run_once` or a
`CanaryProbe`, and shows the findings: a table, canaries.json and a figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from safexplain._progress import Progress, shown
from safexplain.audit.canaries.plot import plot_canaries
from safexplain.audit.canaries.run import Threshold, run_canaries, run_once
from safexplain.audit.canaries.setting import PRESETS, Setting, preset
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.cli.canary_config import CanaryConfig, Options, load_canary_config
from safexplain.cli.console import choose_folder, device_of, make_folder, result_table, resumable
from safexplain.errors import ConfigurationError
from safexplain.loading.models.architectures import importable_in_workers, imported
from safexplain.verdict.canaries.claim import SCENARIOS, ScenarioName, scenario_of
from safexplain.verdict.canaries.finding import Finding, Verdict
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.certificate.write import write_json
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["canaries_command", "show"]


def canaries_command(
    config: Annotated[Path | None, typer.Option(help="TOML file: data, training, claim.")] = None,
    preset_: Annotated[
        str | None, typer.Option("--preset", help=f"Instead: a training on made-up data; {', '.join(PRESETS)}.")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help=f"{', '.join(SCENARIOS)}; several separated by commas, or all.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Models to train, half on D and half on D'.  [default: 1000]")
    ] = None,
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
    threshold_ = _threshold(options.threshold)
    target = device_of(device)
    folder = choose_folder(run_dir, resume)
    cache = folder / "runs"
    with resumable(folder), shown(quiet or json_) as progress:
        if read is not None and read.training.function:
            if one_run:
                raise ConfigurationError(
                    "--one-run needs gradient canaries in a training of safexplain, not in a function"
                )
            audit = _of_function(read, options, threshold_, seed=seed, workers=workers, cache=cache)
        else:
            setting = preset(cast(str, preset_)) if read is None else read.setting()
            audit = _of_setting(setting, options, threshold_, seed=seed, device=target, cache=cache)
        names = _scenarios(options.scenario, audit)
        make_folder(folder)
        found: list[Finding]
        if one_run:
            once = cast(OneRunMethod, options.method)
            found = [
                run_once(
                    setting, one_run, method=once, confidence=options.confidence, seed=seed, device=target,
                    cache=cache, progress=progress,
                )
            ]  # fmt: skip
        else:
            each = 1 - (1 - options.confidence) / max(1, len([name for name in names if name != "worst-case"]))
            found = [audit.run(name, each, _about(name, progress)) for name in names]
    return show(found, options.confidence, folder, json_=json_, quiet=quiet)


class _Audit(NamedTuple):
    """Of one training, scenario after scenario."""

    scenario: ScenarioName
    """Where none is asked for."""
    scenarios: tuple[ScenarioName, ...]
    """All that can be."""
    run: Callable[[ScenarioName, float, Progress], Finding]
    """Trains and judges, at a confidence."""


def _of_setting(setting: Setting, options: Options, threshold: Threshold, **where: Any) -> _Audit:
    """Heads and MLPs, whose runs are computed side by side."""
    every = options.every or max(1, setting.recipe.steps // 10)
    method = cast(BoundMethod, options.method)

    def run(scenario: ScenarioName, confidence: float, progress: Progress) -> Finding:
        return run_canaries(
            setting, scenario, runs=options.runs, every=every, method=method, threshold=threshold,
            confidence=confidence, progress=progress, **where,
        )  # fmt: skip

    scenarios = tuple(name for name in SCENARIOS if name != "natural" or setting.auxiliary is not None)
    return _Audit("gradient", scenarios, run)


def _of_function(config: CanaryConfig, options: Options, threshold: Threshold, **where: Any) -> _Audit:
    """A training function of the user's."""
    train = imported(config.training.function, "[training] function")
    if options.every:
        raise ConfigurationError("--every: a training function returns its last model only; leave it out")
    method = cast(BoundMethod, options.method)

    def run(scenario: ScenarioName, confidence: float, progress: Progress) -> Finding:
        probe = CanaryProbe(
            train, (config.x, config.y), claim=config.claim, scenario=scenario, auxiliary=config.auxiliary,
            runs=options.runs, method=method, threshold=threshold, confidence=confidence, **where,
        )  # fmt: skip
        with importable_in_workers():
            return probe.run(progress=progress)

    natural: tuple[ScenarioName, ...] = () if config.auxiliary is None else ("natural",)
    return _Audit("mislabelled", ("crafted", "mislabelled", *natural), run)


def _about(name: ScenarioName, progress: Progress) -> Progress:
    """Tells of which canary it is told."""
    return lambda stage, done, total, note="": progress(f"{name}: {stage}", done, total, note)


def _threshold(value: str | float) -> Threshold:
    if value in ("auto", "split"):
        return cast(Threshold, value)
    try:
        return float(value)
    except ValueError:
        raise ConfigurationError(f"--threshold: expected auto, split or a number, got {value!r}") from None


def _scenarios(text: str, audit: _Audit) -> tuple[ScenarioName, ...]:
    if text == "all":
        return audit.scenarios
    parts = [part.strip() for part in (text or audit.scenario).split(",") if part.strip()]
    if not parts:
        raise ConfigurationError("--scenario: expected a name, several separated by commas, or all; got nothing")
    return tuple(dict.fromkeys(map(scenario_of, parts)))


SHORT: dict[Verdict, str] = {
    "consistent with substitute": "consistent",
    "violates add/remove as a claim about records or attributes": "violates add/remove",
    "violates the claim: a bug": "A BUG",
    "inconclusive": "inconclusive",
}
"""Verdicts, for a column of the table."""

COLUMNS = ("at\nleast", "at most\nshown", "claimed,\nsubst.", "claimed,\nadd/rem.", "runs")


def show(found: Sequence[Finding], confidence: float, folder: Path, *, json_: bool, quiet: bool) -> int:
    """Write the files, print the strongest finding or all, and return its exit code.

    Args:
        found: of one claim, each at its own confidence.
        confidence: of all together.
        folder: the run directory.
        json_: one JSON object, of the strongest finding; `scenarios` has all where there are several.
        quiet: the verdict alone.
    """
    strongest = max(judged_of(found), key=lambda finding: finding.epsilon_lower)
    files = {"result": "canaries.json"}
    content: dict[str, Any] = strongest.to_dict()
    if len(found) > 1:
        content["scenarios"] = {finding.scenario: finding.to_dict() for finding in found}
    write_json(folder / files["result"], content)
    steps = [finding for finding in found if isinstance(finding, CanaryResult)]
    if steps and strongest.claim.mechanism is not None:
        files["plot"] = "canaries.png"
        plot_canaries(steps, path=folder / files["plot"])
    if json_:
        typer.echo(json.dumps({**content, "run_dir": str(folder), "files": files}, allow_nan=False))
    elif quiet:
        typer.echo(strongest.verdict)
    else:
        console = Console()
        console.print(_table(found, confidence))
        console.print(f"{strongest.scenario}: {strongest.sentence}", highlight=False)
        if len(judged_of(found)) < len(found):
            line = "The worst case is drawn, not trained: it shows what runs can tell, and decides nothing here."
            console.print(line, style="dim", highlight=False)
        if len(judged_of(found)) > 1:
            line = f"Each bound holds at {strongest.confidence:.1%}, so all of them together at {confidence:.0%}."
            console.print(line, style="dim", highlight=False)
        console.print(f"\nRun directory: {folder}", soft_wrap=True, highlight=False, markup=False)
        for file in files.values():
            console.print(f"  {folder / file}", soft_wrap=True, highlight=False, markup=False)
    return strongest.exit_code


def judged_of(found: Sequence[Finding]) -> list[Finding]:
    """Those that decide: where something was trained, the worst case, which is drawn, is only shown."""
    return [finding for finding in found if finding.scenario != "worst-case"] or list(found)


def _table(found: Sequence[Finding], confidence: float) -> Table:
    delta = found[0].claim.delta
    title = f"Epsilon of a substituted record ({confidence:.0%} confidence, delta {delta:g})"
    table = result_table(title, ("canary",), COLUMNS)
    table.columns[0].no_wrap = True
    table.add_column("verdict", overflow="fold")
    for finding in found:
        style = {0: "green", 1: "bold red", 3: "yellow"}[finding.exit_code]
        numbers = (finding.epsilon_lower, finding.ceiling, finding.epsilon_substitute, finding.epsilon_add_remove)
        shown = ["" if n is None else f"{n:.2f}" for n in numbers]
        table.add_row(finding.scenario, *shown, f"{finding.runs:,}", f"[{style}]{SHORT[finding.verdict]}[/]")
    return table
