"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from safexplain.cli.console import RUN, Device, Json, Plan_, Quiet, Resume, RunDir, Seed, option
from safexplain.cli.options import asks

TRAINING, CANARY, BOUND = "Training", "Canary", "Bound"
"""Headings of the options."""

PRESETS = ("logit-768", "softmax-768", "logit-384")
SCENARIOS = ("worst-case", "gradient", "layers", "crafted", "mislabelled", "natural", "outlier", "poison")
METHODS = ("pld", "gdp", "clopper-pearson", "zanella-beguelin")
"""What `--preset`, `--scenario` and `--method` may be, for `--help` alone; a test keeps them true."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `safexplain canaries`."""

    config: Annotated[Path | None, option("FILE", "TOML file with the data, the training and the claim.", TRAINING)] = (
        None
    )
    preset_: Annotated[
        str | None,
        option(
            "NAME",
            f"Built-in training on synthetic data, instead of --config: {', '.join(PRESETS)}.",
            TRAINING,
            "--preset",
        ),
    ] = None
    scenario: Annotated[
        str, option("NAMES", f"Kind of canary: {', '.join(SCENARIOS)}; several separated by commas, or all.", CANARY)
    ] = ""
    runs: Annotated[int, option("N", "Models to train, half on D and half on D'.", TRAINING)] = 1000
    every: Annotated[
        int,
        option(
            "N", "Also audit the model every N steps.  \\[default: steps / 10]", TRAINING, min=0, show_default=False
        ),
    ] = 0
    method: Annotated[str, option("NAME", f"Bound: {', '.join(METHODS)}; with --one-run f-dp, steinke.", BOUND)] = ""
    threshold: Annotated[
        str, option("T", "Threshold of the scores: auto, split, or a number fixed in advance.", BOUND)
    ] = "auto"
    confidence: Annotated[float, option("NUMBER", "Confidence of the verdict.", BOUND)] = 0.95
    target: Annotated[
        str, option("ROW", "Row of the data to replace, or classes: one of every class in turn.", CANARY)
    ] = ""
    canary: Annotated[
        Path | None, option("FILE", ".npz file with x and y of your own record to put in --target's place.", CANARY)
    ] = None
    score: Annotated[
        str, option("FUNCTION", "package.module:function that scores what your training function returns.", CANARY)
    ] = ""
    records: Annotated[int, option("N", "Records that a poison replaces.", CANARY, min=2)] = 2
    one_run: Annotated[
        int, option("N", "Train a single model with N canaries instead of many models.", TRAINING, min=0)
    ] = 0
    workers: Annotated[int, option("N", "Processes that run your training function.", RUN, min=1)] = 1
    seed: Seed = 0
    device: Device = "auto"
    run_dir: RunDir = None
    resume: Resume = False
    plan: Plan_ = False
    json_: Json = False
    quiet: Quiet = False


@asks
def canaries_command(given: Options) -> int:
    """Audit training with DP by canaries: a lower bound on epsilon, beside the epsilons that are claimed."""
    from safexplain.cli.run.canaries import audit_by_canaries

    return audit_by_canaries(given)
