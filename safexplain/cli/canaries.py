"""`safexplain canaries`: does a training with DP keep the epsilon that it claims, if one record is substituted?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from safexplain.cli.console import RUN, Device, Json, Plan_, Quiet, Resume, RunDir, Seed, option

__all__ = ["canaries_command"]

TRAINING, CANARY, BOUND = "Training", "Canary", "Bound"
"""Headings of the options."""

PRESETS = ("logit-768", "softmax-768", "logit-384", "mlp-446", "mlp-600")
SCENARIOS = ("worst-case", "gradient", "layers", "crafted", "mislabelled", "natural", "outlier", "poison")
METHODS = ("pld", "gdp", "clopper-pearson", "zanella-beguelin")
"""What `--preset`, `--scenario` and `--method` may be, for `--help` alone; a test keeps them true."""


def canaries_command(
    config: Annotated[
        Path | None, option("FILE", "TOML file with the data, the training and the claim.", TRAINING)
    ] = None,
    preset_: Annotated[
        str | None,
        option(
            "NAME",
            f"Built-in training on synthetic data, instead of --config: {', '.join(PRESETS)}.",
            TRAINING,
            "--preset",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        option("NAMES", f"Kind of canary: {', '.join(SCENARIOS)}; several separated by commas, or all.", CANARY),
    ] = None,
    runs: Annotated[
        int | None, option("N", "Models to train, half on D and half on D'.  \\[default: 1000]", TRAINING)
    ] = None,
    every: Annotated[
        int | None, option("N", "Also audit the model every N steps.  \\[default: steps / 10]", TRAINING)
    ] = None,
    method: Annotated[
        str | None,
        option("NAME", f"Bound: {', '.join(METHODS)}; with --one-run f-dp, steinke.", BOUND),
    ] = None,
    threshold: Annotated[
        str | None,
        option("T", "Threshold of the scores: auto, split, or a number fixed in advance.", BOUND),
    ] = None,
    confidence: Annotated[
        float | None, option("NUMBER", "Confidence of the verdict.  \\[default: 0.95]", BOUND)
    ] = None,
    target: Annotated[
        str | None, option("ROW", "Row of the data to replace, or classes: one of every class in turn.", CANARY)
    ] = None,
    canary: Annotated[
        Path | None, option("FILE", ".npz file with x and y of your own record to put in --target's place.", CANARY)
    ] = None,
    score: Annotated[
        str | None,
        option("FUNCTION", "package.module:function that scores what your training function returns.", CANARY),
    ] = None,
    records: Annotated[
        int | None, option("N", "Records that a poison replaces.  \\[default: 2]", CANARY, min=2)
    ] = None,
    one_run: Annotated[
        int, option("N", "Train a single model with N canaries instead of many models.", TRAINING, min=0)
    ] = 0,
    workers: Annotated[int, option("N", "Processes that run your training function.", RUN, min=1)] = 1,
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
