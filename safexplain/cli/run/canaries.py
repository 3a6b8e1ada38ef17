"""What `safexplain canaries` runs: a training is audited, and the findings are shown.

Options and configuration (`canary_config`) describe a training, or name a function that trains; one scenario after
another is planned or audited, and the findings are shown: a table, canaries.json and a figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from safexplain._files import ArrayFile
from safexplain._progress import Progress, show_progress
from safexplain.audit.canaries.run import run_canaries
from safexplain.audit.canaries.setting import PRESETS, Setting, preset
from safexplain.audit.canaries.trainer.halving import audit_within
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.canaries.white_box import WhiteBox
from safexplain.audit.planning.canaries import plan_canaries, plan_probes
from safexplain.audit.planning.plan import Plan
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import CanaryOptions
from safexplain.cli.run.canary_config import CanaryConfig, load_canary_config
from safexplain.cli.run.planned import show_plan
from safexplain.cli.run.tables import result_table, screen, show_files
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.loading.models.architectures import importable_in_workers, imported
from safexplain.verdict.canaries.claim import Finding, ScenarioName, scenario_of
from safexplain.verdict.canaries.result import CanaryResult, decisive
from safexplain.verdict.certificate.write import write_json

RUNS = 1000
"""Of each scenario, unless told otherwise."""

Found = tuple[list[Finding], dict[str, str]]
"""Findings, and why scenarios were skipped that "all" has."""


def audit_by_canaries(o: CanaryOptions) -> int:
    """Audit a training, show what was found and return the exit code."""
    if (o.config is None) == (o.preset_ is None):
        rows = "; ".join(f"{name}: {row.summary}" for name, row in PRESETS.items())
        raise ConfigurationError(f"give either --config dp.toml or --preset NAME; presets are {rows}")
    read = None if o.config is None else load_canary_config(o.config)
    where, folder = device_of(o.device), choose_folder(o.run_dir, o.resume)
    with nullcontext() if o.plan else resumable(folder), show_progress(o.quiet) as progress:
        if read is not None and read.training.function:
            found = _of_function(read, o, folder, progress)
        else:
            setting = preset(o.preset_ or "") if read is None else read.setting()
            found = _of_setting(setting, o, where, folder, progress)
    return show_plan(found, folder, o.json_, o.quiet) if isinstance(found, Plan) else show(*found, folder, o)


def _of_setting(
    setting: Setting, o: CanaryOptions, device: torch.device, folder: Path, progress: Progress
) -> Plan | Found:
    """A linear head, whose runs are computed side by side."""
    target = _target(o)
    if o.score or o.canary or target == "classes":
        raise ConfigurationError(
            "--score, --canary and --target classes are for a training function of your own: a description trains all"
            " records alike"
        )
    natural = () if setting.auxiliary is None else ("natural",)
    names = _scenarios(o, "gradient", ("worst-case", "gradient", "crafted", "mislabelled", *natural))
    how: dict[str, Any] = {"method": o.method or "pld", "threshold": o.threshold, "device": device}
    how["runs"] = RUNS if o.runs is None else o.runs
    how["confidence"] = _each(o, names)
    if o.plan:
        return plan_canaries(setting, names, **how)
    make_folder(folder)
    how |= {"every": o.every or max(1, setting.recipe.steps // 10), "cache": folder / "runs"}
    found: list[Finding] = []
    for name in names:
        told = _about(name, progress)
        found.append(run_canaries(setting, name, target=target, seed=o.seed, progress=told, **how))
    return found, {}


def _of_function(config: CanaryConfig, o: CanaryOptions, folder: Path, progress: Progress) -> Plan | Found:
    """A training function of the user's."""
    if o.every:
        raise ConfigurationError("--every: a training function returns its last model only; leave it out")
    what = imported(config.training.function, "[training] function"), (config.x, config.y)
    common: dict[str, Any] = {"claim": config.claim, "auxiliary": config.auxiliary, "seed": o.seed}
    natural = () if config.auxiliary is None else ("natural",)
    inside: tuple[ScenarioName, ...] = () if o.score else ("gradient",)
    names = _scenarios(o, "mislabelled", ("white-box", *inside, "mislabelled", "crafted", *natural, "outlier"))
    if o.canary and len(names) > 1:
        raise ConfigurationError("--canary is one record in the place of another: give one --scenario and --target N")
    everything, found, skipped = o.scenario == "all", list[Finding](), dict[str, str]()
    common |= {
        "runs": RUNS if o.runs is None else o.runs, "method": o.method or "pld", "threshold": o.threshold,
        "canary": _given(o), "score": imported(o.score, "--score") if o.score else None, "cache": folder / "runs",
        "workers": o.workers, "target": _target(o),
    }  # fmt: skip
    if not o.plan:
        make_folder(folder)
    elif names == ("white-box",):
        raise ConfigurationError("--plan: the white box trains some dozens of times; it has no plan")
    if "white-box" in names and not o.plan:
        try:
            white = WhiteBox(*what, config.claim, clip=config.training.clip or None, seed=o.seed).run(
                _about("white-box", progress)
            )
        except RefusedError as reason:  # no step was seen
            if not everything:
                raise
            skipped["white-box"] = str(reason)
        else:
            found.append(white)
            if white.verdict == "refuted":
                skipped |= dict.fromkeys(names[1:], "the white box refutes the claim, so that no canaries are needed")
                return found, skipped
    canaries = [name for name in names if name != "white-box"]
    if not canaries:
        return found, skipped
    common["confidence"] = o.confidence if everything and o.runs is None else _each(o, canaries)
    probes: dict[str, CanaryProbe] = {name: CanaryProbe(*what, scenario=name, **common) for name in canaries}
    if o.plan:
        return plan_probes(list(probes.values()), o.minutes if everything and o.runs is None else None)
    with importable_in_workers():
        if everything and o.runs is None:
            tried, others = audit_within(probes, o.minutes, progress)
            return [*found, *tried], skipped | others
        for name in probes:
            try:
                found += probes[name].each(_about(name, progress))
            except RefusedError as reason:  # the loop has no optimizer of Opacus
                if not everything:
                    raise
                skipped[name] = str(reason)
    return found, skipped


def _target(o: CanaryOptions) -> int | Literal["classes"] | None:
    if o.target in ("classes", ""):
        return "classes" if o.target else None
    try:
        return int(o.target)
    except ValueError:
        raise ConfigurationError(f"--target: expected a row of the data or classes, got {o.target!r}") from None


def _given(o: CanaryOptions) -> tuple[Any, Any] | None:
    """The canary of one's own, (x, y)."""
    if o.canary is None:
        return None
    with ArrayFile(o.canary) as file:
        if {"x", "y"} - {*file.names}:
            raise InputError(f"{file.where}: expected arrays x and y of one record, got {', '.join(file.names)}")
        x, y = file.read("x", "y").values()
    return (x[0] if y.ndim else x), y


def _each(o: CanaryOptions, names: Sequence[str]) -> float:
    """Confidence of each scenario, so that all that are trained hold together."""
    return 1 - (1 - o.confidence) / max(1, len({*names} - {"worst-case"}))


def _about(name: str, progress: Progress) -> Progress:
    """Tells of which canary it is told."""
    return lambda stage, done, total, note="": progress(f"{name}: {stage}", done, total, note)


def _scenarios(o: CanaryOptions, default: str, every: tuple[str, ...]) -> tuple[ScenarioName, ...]:
    parts = every if o.scenario == "all" else (o.scenario or default).split(",")
    return tuple(dict.fromkeys(scenario_of(part.strip()) for part in parts))


COLUMNS = ("at\nleast", "would be\nfound from", "claimed,\nsubst.", "claimed,\nadd/rem.", "runs")


def show(found: Sequence[Finding], skipped: Mapping[str, str], folder: Path, o: CanaryOptions) -> int:
    """Write the files, print the finding that decides or all, and return its exit code; findings are of one claim."""
    judged = [one for one in found if one.scenario != "worst-case"] or found
    strongest = decisive(judged)
    content: dict[str, Any] = strongest.to_dict()
    if len(found) > 1:
        content["scenarios"] = {_name(one): one.to_dict() for one in found}
    if skipped:
        content["skipped"] = dict(skipped)
    files = {"result": "canaries.json"}
    write_json(folder / files["result"], content)
    content |= {"run_dir": str(folder), "files": files}
    if console := screen(content, strongest.verdict, o.json_, o.quiet):
        console.print(_table(found, o.confidence))
        console.print(f"{_name(strongest)}: {strongest.sentence}", highlight=False)
        notes = [f"Skipped {', '.join(skipped)}: {reason}" for reason in set(skipped.values())]
        if len(judged) < len(found):
            notes.append("The worst case is drawn, not trained: it shows what runs can tell, and decides nothing here.")
        if len(bounds := [one for one in judged if isinstance(one, CanaryResult)]) > 1:
            notes.append(
                f"Each bound holds at {bounds[0].confidence:.1%}, so all of them together at {o.confidence:.0%}."
            )
        for note in notes:
            console.print(note, style="dim", highlight=False)
        show_files(console, (), folder, files.values())
    return strongest.exit_code


def _name(found: Finding) -> str:
    """The scenario, and the class of the record where there is one of each."""
    label = found.setting.get("class")
    return found.scenario if label is None else f"{found.scenario}, class {label}"


def _table(found: Sequence[Finding], confidence: float) -> Table:
    delta = found[0].claim.delta
    title = f"Epsilon of a substituted record ({confidence:.0%} confidence, delta {delta:g})"
    table = result_table(title, ("canary",), COLUMNS)
    table.columns[0].no_wrap = True
    table.add_column("verdict", overflow="fold")
    for finding in found:
        style = {0: "green", 1: "bold red", 3: "yellow"}[finding.exit_code]
        bounds = (finding.epsilon_lower, finding.detectable) if isinstance(finding, CanaryResult) else (None, None)
        numbers = (*bounds, finding.claim.substitute, finding.claim.add_remove)
        shown = ["" if n is None else f"{n:.2f}" for n in numbers]
        table.add_row(_name(finding), *shown, f"{finding.runs:,}", f"[{style}]{finding.verdict}[/]")
    return table
