"""What `safexplain canaries` runs: a training is audited, and the findings are shown.

It reads options and configuration (`canary_config`), audits one scenario after another by `run_canaries`,
`run_once` or a `CanaryProbe`, and shows the findings: a table, canaries.json and a figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
import typer
from rich.console import Console
from rich.table import Table

from safexplain._progress import Progress, shown
from safexplain.audit.canaries.plot import plot_canaries
from safexplain.audit.canaries.run import Threshold, run_canaries, run_classes, run_once
from safexplain.audit.canaries.setting import PRESETS, Setting, preset
from safexplain.audit.canaries.trainer.canary import given_canary
from safexplain.audit.canaries.trainer.data import records as records_of
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.planning.canaries import plan_canaries, plan_once, plan_probe
from safexplain.audit.planning.plan import Plan
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.run.canary_config import CanaryConfig, Options, load_canary_config
from safexplain.cli.run.planned import show_plan
from safexplain.cli.run.tables import result_table
from safexplain.errors import ConfigurationError, RefusedError
from safexplain.loading.models.architectures import importable_in_workers, imported
from safexplain.verdict.canaries.claim import ScenarioName, scenario_of
from safexplain.verdict.canaries.finding import Finding, Verdict
from safexplain.verdict.canaries.result import CanaryResult, decisive
from safexplain.verdict.certificate.write import write_json
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["audit_by_canaries", "show"]


def audit_by_canaries(
    config: Path | None,
    preset_: str | None,
    given: Mapping[str, Any],
    *,
    one_run: int,
    workers: int,
    seed: int,
    device: str,
    run_dir: Path | None,
    resume: bool,
    plan: bool,
    json_: bool,
    quiet: bool,
) -> int:
    """Audit a training, show what was found and return the exit code.

    Args:
        config: file that describes the training; None: there is a preset.
        preset_: name of a training on synthetic data; None: there is a file.
        given: those of the `Options` of canaries that the command line has, by name.
        one_run: canaries of a single run; 0: many runs.
        workers: processes that call a training function.
        seed: of everything random.
        device: by name.
        run_dir: where files go; None: a new directory.
        resume: take it up.
        plan: only say what it will cost.
        json_: print one JSON object.
        quiet: print the verdict alone.

    Raises:
        SafexplainError: an option or file that cannot be used, or options that do not fit each other.
    """
    if (config is None) == (preset_ is None):
        rows = "; ".join(f"{name}: {row.summary}" for name, row in PRESETS.items())
        raise ConfigurationError(f"give either --config dp.toml or --preset NAME; presets are {rows}")
    read = None if config is None else load_canary_config(config)
    own = read is not None and bool(read.training.function)
    kept = {"method", "confidence", "scenario"} if own else {"method", "confidence"}
    if one_run and given.keys() - kept:
        with_ = "" if own else " with gradient canaries"
        raise ConfigurationError(
            f"--one-run trains a single model{with_}: leave out {'' if own else '--scenario, '}--runs, --every,"
            " --threshold, --target, --canary, --score and --records"
        )
    options = replace(read.options if read else Options(), **given)
    kind = get_args(OneRunMethod if one_run else BoundMethod)
    if one_run and "method" not in given:
        options = replace(options, method="f-dp")
    if options.method not in kind:
        raise ConfigurationError(f"--method: expected one of {', '.join(kind)}, got {options.method!r}")
    where = device_of(device)
    folder = choose_folder(run_dir, resume)
    cache = folder / "runs"
    skipped: dict[str, str] = {}
    with nullcontext() if plan else resumable(folder), shown(quiet) as progress:
        if read is not None and own:
            if one_run:
                if plan:
                    raise ConfigurationError("--plan: --one-run calls a function once, and that is what it would cost")
                make_folder(folder)
                once_found = _function_once(read, options, one_run, seed)
                return show([once_found], options.confidence, folder, skipped={}, json_=json_, quiet=quiet)
            audit = _of_function(read, options, seed=seed, workers=workers, cache=cache)
        else:
            setting = preset(cast(str, preset_)) if read is None else read.setting()
            audit = _of_setting(setting, options, seed=seed, device=where, cache=cache)
        names = _scenarios(options, audit)
        once = cast(OneRunMethod, options.method)
        if options.scenario == "all" and not plan and not one_run:
            skipped = audit.impossible(names)
            names = tuple(name for name in names if name not in skipped)
        each = 1 - (1 - options.confidence) / max(1, len([name for name in names if name != "worst-case"]))
        if plan and one_run:
            cost = plan_once(setting, one_run, method=once, confidence=options.confidence, seed=seed, device=where)
        elif plan:
            cost = audit.plan(names, each, progress)
        if plan:
            return show_plan(cost, folder, json_, quiet)
        make_folder(folder)
        found: list[Finding]
        if one_run:
            found = [
                run_once(
                    setting, one_run, method=once, confidence=options.confidence, seed=seed, device=where,
                    cache=cache, progress=progress,
                )
            ]  # fmt: skip
        else:
            found = [one for name in names for one in audit.run(name, each, _about(name, progress))]
    return show(found, options.confidence, folder, skipped=skipped, json_=json_, quiet=quiet)


def _function_once(config: CanaryConfig, options: Options, canaries: int, seed: int) -> Finding:
    """A training function of the user's, called once."""
    probe = CanaryProbe(
        imported(config.training.function, "[training] function"), (config.x, config.y), claim=config.claim,
        scenario=options.scenario or "mislabelled", auxiliary=config.auxiliary, confidence=options.confidence,
        seed=seed,
    )  # fmt: skip
    return probe.run_once(canaries, method=cast(OneRunMethod, options.method))


class _Audit(NamedTuple):
    """Of one training, scenario after scenario."""

    scenario: ScenarioName
    """Where none is asked for."""
    scenarios: tuple[ScenarioName, ...]
    """All that can be."""
    run: Callable[[ScenarioName, float, Progress], Sequence[Finding]]
    """Trains and judges, at a confidence of all its findings together."""
    plan: Callable[[Sequence[ScenarioName], float, Progress], Plan]
    """What that will cost."""
    impossible: Callable[[Sequence[ScenarioName]], dict[str, str]]
    """Those of these scenarios that turn out not to be possible, and why."""


def _of_setting(setting: Setting, options: Options, **where: Any) -> _Audit:
    """Heads and MLPs, whose runs are computed side by side."""
    if options.score:
        raise ConfigurationError("--score is of what a training function of yours returns; a description has none")
    target = _target(options.target)
    common: dict[str, Any] = {
        "runs": options.runs,
        "method": cast(BoundMethod, options.method),
        "threshold": _threshold(options.threshold),
    }

    def run(scenario: ScenarioName, confidence: float, progress: Progress) -> Sequence[Finding]:
        how = {**common, **where, "confidence": confidence, "progress": progress}
        how["every"] = options.every or max(1, setting.recipe.steps // 10)
        how["records"] = options.records if scenario == "poison" else None
        if target == "classes" and scenario != "worst-case":
            return run_classes(setting, scenario, **how)
        row, own, given = None if target == "classes" else target, None, options.given()
        if given is not None:
            own = given_canary(given, records_of((setting.x, setting.y)), row, scenario, options.records)
        return [run_canaries(setting, own.scenario if own else scenario, canary=own, target=row, **how)]

    def plan(names: Sequence[ScenarioName], confidence: float, progress: Progress) -> Plan:
        return plan_canaries(
            setting, names, **common, confidence=confidence, records=options.records,
            targets=_targets(target, setting.y), seed=where["seed"], device=where["device"], progress=progress,
        )  # fmt: skip

    natural: tuple[ScenarioName, ...] = () if setting.auxiliary is None else ("natural",)
    scenarios: tuple[ScenarioName, ...] = ("worst-case", "gradient", "crafted", "mislabelled", *natural)
    return _Audit("mislabelled" if options.canary else "gradient", scenarios, run, plan, lambda names: {})


def _of_function(config: CanaryConfig, options: Options, **where: Any) -> _Audit:
    """A training function of the user's."""
    train = imported(config.training.function, "[training] function")
    if options.every:
        raise ConfigurationError("--every: a training function returns its last model only; leave it out")
    target, score = _target(options.target), options.scoring()
    common: dict[str, Any] = {
        "claim": config.claim,
        "runs": options.runs,
        "method": cast(BoundMethod, options.method),
        "threshold": _threshold(options.threshold),
    }

    def probe(scenario: ScenarioName, confidence: float) -> CanaryProbe:
        return CanaryProbe(
            train, (config.x, config.y), **common, scenario=scenario, auxiliary=config.auxiliary, score=score,
            target=target, canary=options.given(), records=options.records if scenario == "poison" else None,
            confidence=confidence, **where,
        )  # fmt: skip

    def run(scenario: ScenarioName, confidence: float, progress: Progress) -> Sequence[Finding]:
        with importable_in_workers():
            return probe(scenario, confidence).each(progress=progress)

    def plan(names: Sequence[ScenarioName], confidence: float, progress: Progress) -> Plan:
        return plan_probe(
            train, (config.x, config.y), **common, scenarios=names, confidence=confidence, records=options.records,
            targets=_targets(target, config.y), seed=where["seed"], workers=where["workers"],
        )  # fmt: skip

    def impossible(names: Sequence[ScenarioName]) -> dict[str, str]:
        gradients = [name for name in names if name in ("gradient", "layers")]
        try:
            for name in gradients:
                with importable_in_workers():
                    _ = probe(name, options.confidence).canary
        except RefusedError as reason:
            return dict.fromkeys(gradients, str(reason))
        return {}

    inside: tuple[ScenarioName, ...] = () if score else ("gradient", "layers")
    natural: tuple[ScenarioName, ...] = () if config.auxiliary is None else ("natural",)
    scenarios: tuple[ScenarioName, ...] = (*inside, "crafted", "mislabelled", *natural, "outlier")
    return _Audit("mislabelled", scenarios, run, plan, impossible)


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


def _target(value: str | int) -> int | Literal["classes"] | None:
    if value == "classes":
        return "classes"
    if value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"--target: expected a row of the data or classes, got {value!r}") from None


def _targets(target: int | Literal["classes"] | None, y: torch.Tensor) -> int:
    """How many are taken one after another."""
    return len(torch.unique(y)) if target == "classes" else 1


def _scenarios(options: Options, audit: _Audit) -> tuple[ScenarioName, ...]:
    if options.canary and (options.scenario == "all" or "," in options.scenario or options.target in ("", "classes")):
        raise ConfigurationError("--canary is one record in the place of another: give one --scenario and --target N")
    if options.scenario == "all":
        return audit.scenarios
    parts = [part.strip() for part in (options.scenario or audit.scenario).split(",") if part.strip()]
    if not parts:
        raise ConfigurationError("--scenario: expected a name, several separated by commas, or all; got nothing")
    names = tuple(dict.fromkeys(map(scenario_of, parts)))
    if "poison" in names and len(names) > 1:
        raise ConfigurationError("--scenario: poison is judged at the epsilon of several records: audit it by itself")
    return names


SHORT: dict[Verdict, str] = {
    "consistent with substitute": "consistent",
    "violates add/remove as a claim about records or attributes": "violates add/remove",
    "violates the claim: a bug": "A BUG",
    "inconclusive: weak canary": "inconclusive",
}
"""Verdicts, for a column of the table."""

COLUMNS = ("at\nleast", "at most\nshown", "claimed,\nsubst.", "claimed,\nadd/rem.", "runs")


def show(
    found: Sequence[Finding],
    confidence: float,
    folder: Path,
    *,
    skipped: Mapping[str, str] | None = None,
    json_: bool,
    quiet: bool,
) -> int:
    """Write the files, print the finding that decides or all, and return its exit code.

    Args:
        found: of one claim, each at its own confidence.
        confidence: of all together.
        folder: the run directory.
        skipped: scenarios that were asked for by "all" and are not possible, with the reason.
        json_: one JSON object, of the finding that decides; `scenarios` has all where there are several.
        quiet: the verdict alone.
    """
    strongest = decisive(judged_of(found))
    files = {"result": "canaries.json"}
    content: dict[str, Any] = strongest.to_dict()
    if len(found) > 1:
        content["scenarios"] = {name_of(finding): finding.to_dict() for finding in found}
    if skipped:
        content["skipped"] = dict(skipped)
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
        console.print(f"{name_of(strongest)}: {strongest.sentence}", highlight=False)
        for names, reason in _reasons(skipped or {}).items():
            console.print(f"Skipped {names}: {reason}", style="dim", highlight=False)
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


def name_of(found: Finding) -> str:
    """The scenario, and the class of the record where there is one of each."""
    label = found.setting.get("class")
    return found.scenario if label is None else f"{found.scenario}, class {label}"


def _reasons(skipped: Mapping[str, str]) -> dict[str, str]:
    """Names that were skipped for the same reason -> the reason."""
    return {", ".join(name for name in skipped if skipped[name] == reason): reason for reason in skipped.values()}


def _table(found: Sequence[Finding], confidence: float) -> Table:
    delta = found[0].claim.delta
    group = found[0].claim.group
    record = "a substituted record" if group == 1 else f"{group} substituted records"
    title = f"Epsilon of {record} ({confidence:.0%} confidence, delta {delta:g})"
    table = result_table(title, ("canary",), COLUMNS)
    table.columns[0].no_wrap = True
    table.add_column("verdict", overflow="fold")
    for finding in found:
        style = {0: "green", 1: "bold red", 3: "yellow"}[finding.exit_code]
        numbers = (finding.epsilon_lower, finding.ceiling, finding.epsilon_substitute, finding.epsilon_add_remove)
        shown = ["" if n is None else f"{n:.2f}" for n in numbers]
        table.add_row(name_of(finding), *shown, f"{finding.runs:,}", f"[{style}]{SHORT[finding.verdict]}[/]")
    return table
