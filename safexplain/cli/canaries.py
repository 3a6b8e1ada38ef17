"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?

The command reads options and configuration, audits one scenario after another by `run_canaries`, `run_once` or a
`CanaryProbe`, and shows the findings: a table, canaries.json and a figure. `CanaryConfig` is dp.toml, a training with
DP, its data and its claim.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast, get_args

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from safexplain._privacy_loss import Adjacency, Sampling, Steps
from safexplain._progress import Progress, shown
from safexplain._validate import from_table, read_toml
from safexplain.audit.canaries.batched.networks import Activation
from safexplain.audit.canaries.plot import plot_canaries
from safexplain.audit.canaries.run import Threshold, run_canaries, run_once
from safexplain.audit.canaries.setting import PRESETS, Setting, preset
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.planning.canaries import plan_canaries, plan_once, plan_probe
from safexplain.audit.planning.plan import Plan
from safexplain.cli.console import Plan_, choose_folder, device_of, make_folder, result_table, resumable
from safexplain.cli.planned import show_plan
from safexplain.dp.accounting.calibration import noise_multiplier as calibrated
from safexplain.dp.heads.recipe import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.clipping import AutoSClipping, Clipping, FlatClipping
from safexplain.errors import ConfigurationError, InputError
from safexplain.loading.data.load import load_records
from safexplain.loading.models.architectures import importable_in_workers, imported
from safexplain.verdict.canaries.claim import SCENARIOS, Claim, ScenarioName, scenario_of
from safexplain.verdict.canaries.finding import Finding, Verdict
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.certificate.write import write_json
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["canaries_command", "load_canary_config", "show"]


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
    plan: Plan_ = False,
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
    with nullcontext() if plan else resumable(folder), shown(quiet or json_) as progress:
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
        once = cast(OneRunMethod, options.method)
        each = 1 - (1 - options.confidence) / max(1, len([name for name in names if name != "worst-case"]))
        if plan and one_run:
            cost = plan_once(setting, one_run, method=once, confidence=options.confidence, seed=seed, device=target)
        elif plan:
            cost = audit.plan(names, each, progress)
        if plan:
            return show_plan(cost, folder, json_, quiet)
        make_folder(folder)
        found: list[Finding]
        if one_run:
            found = [
                run_once(
                    setting, one_run, method=once, confidence=options.confidence, seed=seed, device=target,
                    cache=cache, progress=progress,
                )
            ]  # fmt: skip
        else:
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
    plan: Callable[[Sequence[ScenarioName], float, Progress], Plan]
    """What that will cost."""


def _of_setting(setting: Setting, options: Options, threshold: Threshold, **where: Any) -> _Audit:
    """Heads and MLPs, whose runs are computed side by side."""
    every = options.every or max(1, setting.recipe.steps // 10)
    method = cast(BoundMethod, options.method)

    def run(scenario: ScenarioName, confidence: float, progress: Progress) -> Finding:
        return run_canaries(
            setting, scenario, runs=options.runs, every=every, method=method, threshold=threshold,
            confidence=confidence, progress=progress, **where,
        )  # fmt: skip

    def plan(names: Sequence[ScenarioName], confidence: float, progress: Progress) -> Plan:
        return plan_canaries(
            setting, names, runs=options.runs, method=method, threshold=threshold, confidence=confidence,
            seed=where["seed"], device=where["device"], progress=progress,
        )  # fmt: skip

    natural: tuple[ScenarioName, ...] = () if setting.auxiliary is None else ("natural",)
    scenarios: tuple[ScenarioName, ...] = ("worst-case", "gradient", "crafted", "mislabelled", *natural)
    return _Audit("gradient", scenarios, run, plan)


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

    def plan(names: Sequence[ScenarioName], confidence: float, progress: Progress) -> Plan:
        return plan_probe(
            train, (config.x, config.y), claim=config.claim, scenarios=names, runs=options.runs, method=method,
            threshold=threshold, confidence=confidence, seed=where["seed"], workers=where["workers"],
        )  # fmt: skip

    natural: tuple[ScenarioName, ...] = () if config.auxiliary is None else ("natural",)
    return _Audit("mislabelled", ("crafted", "mislabelled", *natural), run, plan)


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
    "inconclusive: weak canary": "inconclusive",
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


@dataclass(frozen=True)
class Data:
    """Table [data]: the records that are trained on.

    Args:
        file: .npz with x (n, ...) and y (n,), CSV or Parquet; looked for beside the configuration.
        label: label column of a table.
        auxiliary: other records in the same form, from which the natural canary is chosen.
        classes: how many; 0: as many as the labels of `file` show.
    """

    file: str
    label: str = ""
    auxiliary: str = ""
    classes: int = 0


@dataclass(frozen=True)
class Training:
    """Table [training]: how it is trained.

    Args:
        steps: of the optimizer.
        batch_size: expected; over the records it is the sample rate, and what sums are divided by.
        clip: bound C on the norm of an example's gradient.
        clipping: "flat" or "auto-s".
        noise_multiplier: standard deviation of the noise over C; 0: calibrated to the claim's epsilon.
        optimizer: "sgd" or "adam".
        lr: learning rate.
        momentum: of SGD.
        l2: penalty on the parameters.
        hidden: widths of hidden layers; none: a linear head.
        activation: "tanh" or "relu".
        bias: of a linear head.
        one_logit: for two classes, one vector of weights.
        function: "package.module:function", a training of your own instead of all this but steps, batch size and noise.
    """

    steps: int
    batch_size: float
    clip: float = 1.0
    clipping: str = "flat"
    noise_multiplier: float = 0.0
    optimizer: HeadOptimizer = "sgd"
    lr: float = 0.001
    momentum: float = 0.0
    l2: float = 0.0
    hidden: tuple[int, ...] = ()
    activation: Activation = "tanh"
    bias: bool = True
    one_logit: bool = False
    function: str = ""


@dataclass(frozen=True)
class Promise:
    """Table [claim]: what the training is said to keep.

    Args:
        delta: of the claim.
        epsilon: as promised; 0: as accounted.
        adjacency: "substitute" or "add_remove".
        sampling: "poisson", or "full-batch" for batches of all records.
    """

    delta: float
    epsilon: float = 0.0
    adjacency: Adjacency = "substitute"
    sampling: Sampling = "poisson"


@dataclass(frozen=True)
class Options:
    """Table [canaries]: defaults of the command line's options.

    Args:
        scenario: names or numbers, separated by commas, or "all"; "": gradient, and mislabelled for a function.
        runs: on D and D' together.
        every: audit after each so many steps; 0: the released model only.
        method: of the bound.
        threshold: "auto", "split" or a number.
        confidence: of each bound.
    """

    scenario: str = ""
    runs: int = 1000
    every: int = 0
    method: str = "pld"
    threshold: str | float = "auto"
    confidence: float = 0.95


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
    options: Options

    def setting(self) -> Setting:
        """What can be trained side by side.

        Raises:
            ConfigurationError, InputError: options or data that do not fit.
        """
        t, m = self.training, self.claim.mechanism
        if m is None:
            raise ConfigurationError("the claim names no mechanism")
        recipe = HeadRecipe(
            classes=self.classes,
            steps=t.steps,
            sample_rate=m.sample_rate,
            expected_batch_size=t.batch_size,
            clipping=_clipping(t),
            lr=t.lr,
            optimizer=t.optimizer,
            momentum=t.momentum,
            l2=t.l2,
            bias=t.bias,
            one_logit=t.one_logit,
        )
        flat = None if self.auxiliary is None else (self.auxiliary[0].flatten(1), self.auxiliary[1])
        return Setting(self.name, self.x.flatten(1), self.y, recipe, self.claim, t.hidden, t.activation, flat)


def load_canary_config(path: Path) -> CanaryConfig:
    """Read a configuration and its data.

    Raises:
        InputError: a file cannot be read.
        ConfigurationError: a table or name is missing or unknown, or a value is out of range.
    """
    content = read_toml(path, "configuration")
    tables = ("canaries", "claim", "data", "training")
    if unknown := content.keys() - set(tables):
        raise ConfigurationError(f"{path}: unknown table {sorted(unknown)}; known are {list(tables)}")
    data = from_table(Data, content.get("data", {}), f"{path}: [data]")
    training = from_table(Training, content.get("training", {}), f"{path}: [training]")
    promise = from_table(Promise, content.get("claim", {}), f"{path}: [claim]")
    options = from_table(Options, content.get("canaries", {}), f"{path}: [canaries]")
    x, y, names = _records(path.parent / data.file, data.label)
    auxiliary = None
    if data.auxiliary:
        other, labels, theirs = _records(path.parent / data.auxiliary, data.label)
        auxiliary = other, _renumbered(labels, theirs, names, data.auxiliary)
    if data.classes and int(y.max()) >= data.classes:
        raise InputError(f"{path}: classes = {data.classes}, but {data.file} has labels up to {int(y.max())}")
    claim = Claim(
        _mechanism(training, promise, len(x)), promise.delta, promise.epsilon or None, adjacency=promise.adjacency
    )
    classes = data.classes or max(2, int(y.max()) + 1)
    return CanaryConfig(path.stem, x, y, auxiliary, classes, training, claim, options)


def _mechanism(training: Training, promise: Promise, records: int) -> Steps:
    """What is trained, its noise calibrated where it is not given; the sample rate is of the data trained on."""
    if not 0 < training.batch_size <= records:
        raise ConfigurationError(
            f"batch_size: expected more than 0 and at most the {records:,} records, got {training.batch_size:g}"
        )
    q = training.batch_size / records
    sampling: Sampling = "full-batch" if q == 1 else promise.sampling
    sigma = training.noise_multiplier
    if not sigma:
        if not promise.epsilon:
            raise ConfigurationError("give [training] noise_multiplier, or [claim] epsilon to have it calibrated")
        sigma = calibrated(promise.epsilon, q, training.steps, promise.delta, promise.adjacency, sampling=sampling)
    return Steps(sigma, q, training.steps, sampling)


def _clipping(training: Training) -> Clipping:
    if training.clipping not in ("flat", "auto-s"):
        raise ConfigurationError(f"clipping: expected flat or auto-s, got {training.clipping!r}")
    return FlatClipping(training.clip) if training.clipping == "flat" else AutoSClipping(training.clip)


def _records(path: Path, label: str) -> tuple[Tensor, Tensor, tuple[str, ...] | None]:
    x, y, names = load_records(path, label=label or "label")
    return torch.from_numpy(x), torch.from_numpy(y), names


def _renumbered(y: Tensor, theirs: tuple[str, ...] | None, ours: tuple[str, ...] | None, file: str) -> Tensor:
    """Labels of the auxiliary records, numbered as those of the data."""
    if theirs == ours:
        return y
    if theirs is None or ours is None or set(theirs) - set(ours):
        raise InputError(
            f"labels of {file}: expected those of the data, {ours or 'numbers'}; got {theirs or 'numbers'}"
        )
    return torch.tensor([ours.index(name) for name in theirs])[y]
