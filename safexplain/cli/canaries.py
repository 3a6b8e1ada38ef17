"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from safexplain.cli import completion
from safexplain.cli.console import RUN, Device, Json, Plan_, Quiet, Resume, RunDir, Seed

__all__ = ["canaries_command"]

TRAINING, CANARY, BOUND = "Training", "Canary", "Bound"
"""Headings of the options."""

PRESETS = ("logit-768", "softmax-768", "logit-384", "mlp-446", "mlp-600")
SCENARIOS = ("worst-case", "gradient", "layers", "crafted", "mislabelled", "natural", "outlier", "poison")
METHODS = ("pld", "gdp", "clopper-pearson", "zanella-beguelin")
"""What `--preset`, `--scenario` and `--method` may be, for `--help` and completion alone; a test keeps them true."""


def canaries_command(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML file with the data, the training and the claim.", rich_help_panel=TRAINING
        ),
    ] = None,
    preset_: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help=f"Built-in training on synthetic data, instead of --config: {', '.join(PRESETS)}.",
            rich_help_panel=TRAINING,
            autocompletion=completion.one_of(*PRESETS),
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help=f"Kind of canary: {', '.join(SCENARIOS)}; several separated by commas, or all.",
            rich_help_panel=CANARY,
            autocompletion=completion.one_of(*SCENARIOS, "all"),
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Models to train, half on D and half on D'.  \\[default: 1000]", rich_help_panel=TRAINING
        ),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Also audit the model every N steps.  \\[default: steps / 10]", rich_help_panel=TRAINING
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Bound: {', '.join(METHODS)}; with --one-run f-dp, steinke.",
            rich_help_panel=BOUND,
            autocompletion=completion.one_of(*METHODS),
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Threshold of the scores: auto, split, or a number fixed in advance.",
            rich_help_panel=BOUND,
            autocompletion=completion.one_of("auto", "split"),
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Confidence of the verdict.  \\[default: 0.95]", rich_help_panel=BOUND),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Row of the data to replace, or classes: one of every class in turn.",
            rich_help_panel=CANARY,
        ),
    ] = None,
    canary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=".npz file with x and y of your own record to put in --target's place.",
            rich_help_panel=CANARY,
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="package.module:function that scores what your training function returns.",
            rich_help_panel=CANARY,
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Records that a poison replaces.  \\[default: 2]", rich_help_panel=CANARY
        ),
    ] = None,
    one_run: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Train a single model with N canaries instead of many models.",
            rich_help_panel=TRAINING,
        ),
    ] = 0,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that run your training function.", rich_help_panel=RUN)
    ] = 1,
    seed: Seed = 0,
    device: Device = "auto",
    run_dir: RunDir = None,
    resume: Resume = False,
    plan: Plan_ = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> int:
    """Audit training with DP by canaries: a lower bound on epsilon, beside the epsilons that are claimed."""
    from safexplain.cli.run.canaries import audit_by_canaries

    given = {
        "scenario": scenario,
        "runs": runs,
        "every": every,
        "method": method,
        "threshold": threshold,
        "confidence": confidence,
        "target": target,
        "canary": None if canary is None else str(canary),
        "score": score,
        "records": records,
    }
    return audit_by_canaries(
        config,
        preset_,
        {name: value for name, value in given.items() if value is not None},
        one_run=one_run,
        workers=workers,
        seed=seed,
        device=device,
        run_dir=run_dir,
        resume=resume,
        plan=plan,
        json_=json_,
        quiet=quiet,
    )
