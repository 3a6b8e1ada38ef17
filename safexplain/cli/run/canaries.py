"""`safexplain canaries`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from safexplain._files import ArrayFile
from safexplain._privacy_loss import Adjacency, Sampling, Steps
from safexplain._privacy_loss import noise_multiplier as calibrated
from safexplain._progress import Progress, show_progress
from safexplain._validate import from_table, read_toml
from safexplain.audit.canaries.probe import CanaryProbe, audit_within
from safexplain.audit.canaries.run import PRESETS, Setting, preset, run_canaries
from safexplain.audit.canaries.trainer import WhiteBox
from safexplain.audit.planning import Plan, plan_canaries, plan_probes
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import CanaryOptions
from safexplain.cli.run.preview import show_plan
from safexplain.cli.run.tables import console_for, result_table, show_files
from safexplain.dp.heads import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.loading.data import load_records
from safexplain.loading.files import importable_in_workers, imported
from safexplain.verdict.canaries.result import CanaryResult, Claim, Finding, ScenarioName, decisive, scenario_of
from safexplain.verdict.certificate.write import write_json

RUNS = 1000  # default for each scenario

Found = tuple[list[Finding], dict[str, str]]
"""Findings, and why scenarios of "all" were skipped."""


def audit_by_canaries(o: CanaryOptions) -> int:
    """Audit a training, and return the exit code."""
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
    target = _target(o)
    if o.score or o.canary or target == "classes":
        raise ConfigurationError(
            "--score, --canary and --target classes only work with a training function of your own; leave them out"
        )
    natural = () if setting.auxiliary is None else ("natural",)
    names = _scenarios(o, "gradient", ("worst-case", "gradient", "crafted", "mislabelled", *natural))
    settings: dict[str, Any] = {"method": o.method or "pld", "threshold": o.threshold, "device": device}
    settings["runs"] = RUNS if o.runs is None else o.runs
    settings["confidence"] = _confidence_each(o, names)
    if o.plan:
        return plan_canaries(setting, names, **settings)
    make_folder(folder)
    settings |= {"every": o.every or max(1, setting.recipe.steps // 10), "cache": folder / "runs"}
    found: list[Finding] = []
    for name in names:
        shown_as = _named_progress(name, progress)
        found.append(run_canaries(setting, name, target=target, seed=o.seed, progress=shown_as, **settings))
    return found, {}


def _of_function(config: CanaryConfig, o: CanaryOptions, folder: Path, progress: Progress) -> Plan | Found:
    if o.every:
        raise ConfigurationError("--every: a training function only returns its last model; leave --every out")
    what = imported(config.training.function, "[training] function"), (config.x, config.y)
    common: dict[str, Any] = {"claim": config.claim, "auxiliary": config.auxiliary, "seed": o.seed}
    natural = () if config.auxiliary is None else ("natural",)
    inside: tuple[ScenarioName, ...] = () if o.score else ("gradient",)
    names = _scenarios(o, "mislabelled", ("white-box", *inside, "mislabelled", "crafted", *natural, "outlier"))
    if o.canary and len(names) > 1:
        raise ConfigurationError("--canary replaces one record: give one --scenario and --target N")
    everything, found, skipped = o.scenario == "all", list[Finding](), dict[str, str]()
    common |= {
        "runs": RUNS if o.runs is None else o.runs, "method": o.method or "pld", "threshold": o.threshold,
        "canary": _own_canary(o), "score": imported(o.score, "--score") if o.score else None, "cache": folder / "runs",
        "workers": o.workers, "target": _target(o),
    }  # fmt: skip
    if not o.plan:
        make_folder(folder)
    elif names == ("white-box",):
        raise ConfigurationError("--plan: the white box trains a few dozen models and has no plan; leave --plan out")
    if "white-box" in names and not o.plan:
        try:
            white = WhiteBox(*what, config.claim, clip=config.training.clip or None, seed=o.seed).run(
                _named_progress("white-box", progress)
            )
        except RefusedError as reason:  # no step was observed
            if not everything:
                raise
            skipped["white-box"] = str(reason)
        else:
            found.append(white)
            if white.verdict == "refuted":
                skipped |= dict.fromkeys(names[1:], "the white box refutes the claim, so no canaries are needed")
                return found, skipped
    canaries = [name for name in names if name != "white-box"]
    if not canaries:
        return found, skipped
    common["confidence"] = o.confidence if everything and o.runs is None else _confidence_each(o, canaries)
    probes: dict[str, CanaryProbe] = {name: CanaryProbe(*what, scenario=name, **common) for name in canaries}
    if o.plan:
        return plan_probes(list(probes.values()), o.minutes if everything and o.runs is None else None)
    with importable_in_workers():
        if everything and o.runs is None:
            tried, others = audit_within(probes, o.minutes, progress)
            return [*found, *tried], skipped | others
        for name in probes:
            try:
                found += probes[name].each(_named_progress(name, progress))
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
        raise ConfigurationError(f"--target: expected the number of a row, or classes, got {o.target!r}") from None


def _own_canary(o: CanaryOptions) -> tuple[Any, Any] | None:
    if o.canary is None:
        return None
    with ArrayFile(o.canary) as file:
        if {"x", "y"} - {*file.names}:
            raise InputError(f"{file.where}: expected arrays x and y of one record, got {', '.join(file.names)}")
        x, y = file.read("x", "y").values()
    return (x[0] if y.ndim else x), y


def _confidence_each(o: CanaryOptions, names: Sequence[str]) -> float:
    """Confidence of each scenario, so that all trained ones hold together."""
    return 1 - (1 - o.confidence) / max(1, len({*names} - {"worst-case"}))


def _named_progress(name: str, progress: Progress) -> Progress:
    return lambda stage, done, total, note="": progress(f"{name}: {stage}", done, total, note)


def _scenarios(o: CanaryOptions, default: str, every: tuple[str, ...]) -> tuple[ScenarioName, ...]:
    parts = every if o.scenario == "all" else (o.scenario or default).split(",")
    return tuple(dict.fromkeys(scenario_of(part.strip()) for part in parts))


COLUMNS = ("at\nleast", "would be\nfound from", "claimed,\nsubst.", "claimed,\nadd/rem.", "runs")


def show(found: Sequence[Finding], skipped: Mapping[str, str], folder: Path, o: CanaryOptions) -> int:
    """Write and print the findings, and return the exit code."""
    judged = [one for one in found if one.scenario != "worst-case"] or found
    strongest = decisive(judged)
    content: dict[str, Any] = strongest.to_dict()
    if len(found) > 1:
        content["scenarios"] = {_name(one): one.to_dict() for one in found}
    if skipped:
        content["skipped"] = dict(skipped)
    write_json(folder / "canaries.json", content)
    content |= {"run_dir": str(folder), "files": {"result": "canaries.json"}}
    if console := console_for(content, strongest.verdict, o.json_, o.quiet):
        console.print(_table(found, o.confidence))
        console.print(f"{_name(strongest)}: {strongest.sentence}")
        notes = [f"Skipped {', '.join(skipped)}: {reason}" for reason in set(skipped.values())]
        if len(judged) < len(found):
            notes.append("The worst case is simulated: it shows what so many runs can prove, and decides nothing.")
        if len(bounds := [one for one in judged if isinstance(one, CanaryResult)]) > 1:
            notes.append(f"Each bound holds at {bounds[0].confidence:.1%}, and all together at {o.confidence:.0%}.")
        for note in notes:
            console.print(note, style="dim")
        show_files(console, (), folder, ["canaries.json"])
    return strongest.exit_code


def _name(found: Finding) -> str:
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


# --- dp.toml ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Table [data]: the records that are trained on."""

    file: str  # .npz with x (n, ...) and y (n,), CSV or Parquet; relative to the configuration
    label: str = ""  # label column of a table
    auxiliary: str = ""  # other records in the same form, for the natural canary
    classes: int = 0  # 0: as many as `file` has labels


@dataclass(frozen=True)
class Training:
    """Table [training]: how the model is trained."""

    steps: int
    batch_size: float  # expected; its share of the records is the sample rate
    clip: float = 0.0  # bound on an example's gradient; 0: 1, or that of the function's optimizer
    clipping: str = "flat"  # or "auto-s"
    noise_multiplier: float = 0.0  # 0: calibrated to the claimed epsilon
    optimizer: HeadOptimizer = "sgd"
    lr: float = 0.001
    momentum: float = 0.0
    l2: float = 0.0
    bias: bool = True
    one_logit: bool = False  # for two classes, one vector of weights
    function: str = ""  # "package.module:function", which replaces all but steps, batch size and noise


@dataclass(frozen=True)
class Promise:
    """Table [claim]: the guarantee that the training claims."""

    delta: float
    epsilon: float = 0.0  # 0: as accounted
    adjacency: Adjacency = "substitute"
    sampling: Sampling = "poisson"  # or "full-batch"


@dataclass(frozen=True, eq=False)
class CanaryConfig:
    """A configuration with its data loaded."""

    name: str
    x: Tensor
    y: Tensor
    auxiliary: tuple[Tensor, Tensor] | None
    classes: int
    training: Training
    claim: Claim

    def setting(self) -> Setting:
        """The training of a linear head."""
        t, m = self.training, self.claim.mechanism
        assert m is not None
        if t.clipping not in ("flat", "auto-s"):
            raise ConfigurationError(f"clipping: expected flat or auto-s, got {t.clipping!r}")
        clipping = (FlatClipping if t.clipping == "flat" else AutoSClipping)(t.clip or 1.0)
        recipe = HeadRecipe(
            self.classes, t.steps, m.sample_rate, t.batch_size, clipping, lr=t.lr, optimizer=t.optimizer,
            momentum=t.momentum, l2=t.l2, bias=t.bias, one_logit=t.one_logit,
        )  # fmt: skip
        flat = None if self.auxiliary is None else (self.auxiliary[0].flatten(1), self.auxiliary[1])
        return Setting(self.name, self.x.flatten(1), self.y, recipe, self.claim, flat)


def load_canary_config(path: Path) -> CanaryConfig:
    """Read a configuration (dp.toml) and its data."""
    content = read_toml(path, "configuration")
    if unknown := content.keys() - {"claim", "data", "training"}:
        raise ConfigurationError(f"{path}: expected the tables claim, data and training, got {sorted(unknown)}")
    data = from_table(Data, content.get("data", {}), f"{path}: [data]")
    training = from_table(Training, content.get("training", {}), f"{path}: [training]")
    promise = from_table(Promise, content.get("claim", {}), f"{path}: [claim]")
    x, y, names = load_records(path.parent / data.file, label=data.label or "label")
    auxiliary = _auxiliary(path.parent / data.auxiliary, data.label, names) if data.auxiliary else None
    if data.classes and int(y.max()) >= data.classes:
        raise InputError(f"{path}: classes = {data.classes}, but {data.file} has labels up to {int(y.max())}")
    claim = Claim(
        _mechanism(training, promise, len(x)), promise.delta, promise.epsilon or None, adjacency=promise.adjacency
    )
    classes = data.classes or max(2, int(y.max()) + 1)
    return CanaryConfig(path.stem, torch.from_numpy(x), torch.from_numpy(y), auxiliary, classes, training, claim)


def _mechanism(training: Training, promise: Promise, records: int) -> Steps:
    if not 0 < training.batch_size <= records:
        raise ConfigurationError(
            f"batch_size: expected more than 0 and at most the {records:,} records, got {training.batch_size:g}"
        )
    q = training.batch_size / records
    sampling: Sampling = "full-batch" if q == 1 else promise.sampling
    sigma = training.noise_multiplier
    if not sigma:
        if not promise.epsilon:
            raise ConfigurationError(
                "give noise_multiplier in [training], or epsilon in [claim], to which the noise is calibrated"
            )
        sigma = calibrated(promise.epsilon, q, training.steps, promise.delta, promise.adjacency, sampling=sampling)
    return Steps(sigma, q, training.steps, sampling)


def _auxiliary(path: Path, label: str, names: tuple[str, ...] | None) -> tuple[Tensor, Tensor]:
    """Other records, with their labels numbered as in the data."""
    x, y, other_names = load_records(path, label=label or "label")
    if other_names != names:
        if other_names is None or names is None or set(other_names) - set(names):
            got = f"{names or 'numbers'}; got {other_names or 'numbers'}"
            raise InputError(f"labels of {path.name}: expected those of the data, {got}")
        y = np.array([names.index(name) for name in other_names])[y]
    return torch.from_numpy(x), torch.from_numpy(y)
