"""Many gradient canaries in a single training: a weaker bound than many runs give, for the price of one."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from safexplain._progress import Progress, silent
from safexplain.audit.canaries.batched.many_canaries import train_one_run
from safexplain.audit.canaries.reference import reference
from safexplain.audit.canaries.run import generator_of
from safexplain.audit.canaries.setting import Setting
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.one_run import OneRunResult
from safexplain.verdict.canaries.result import check_mechanism
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["run_once"]

GUESSED = 0.2
"""Share of the coins that are guessed: those of the largest movements. 10 to 25 % are best where epsilon is 10."""


def run_once(
    setting: Setting,
    canaries: int = 250,
    *,
    guesses: int | None = None,
    method: OneRunMethod = "f-dp",
    confidence: float = 0.95,
    seed: int = 0,
    device: torch.device | str = "cpu",
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> OneRunResult:
    """Audit one training (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, with substituted records).

    Each canary replaces a record, and a coin decides whether its gradient is +C or -C along a parameter of its own, one
    of those that move least. The adversary sees how far each has moved, and guesses the coins of the largest movements.

    Args:
        setting: what is trained, on what, and what it claims.
        canaries: how many, at most the records and the parameters. The other records are trained on too.
        guesses: how many coins are guessed; None: a fifth.
        method: "f-dp" (takes the mechanism to be the claimed one, but for its noise) or "steinke".
        confidence: of the bound.
        seed: of everything random.
        device: where to train.
        cache: folder for the finished training.
        progress: told how far it is.

    Raises:
        ConfigurationError: more canaries than records or parameters, or more guesses than canaries.
    """
    most = min(len(setting.x), setting.network.parameters)
    chosen = max(1, round(GUESSED * canaries)) if guesses is None else guesses
    if not 1 <= chosen <= canaries <= most:
        raise ConfigurationError(
            f"expected 1 <= guesses <= canaries <= {most} (the records, or the parameters), got {chosen} guesses of"
            f" {canaries} canaries"
        )
    check_mechanism("f-dp", method, setting.claim, instead="steinke")
    began = time.monotonic()
    placed = setting.to(device)
    draw = generator_of(seed, "one run", "cpu")
    crafting = generator_of(seed, "craft", placed.x.device)
    found = reference(
        placed.network, placed.x, placed.y, placed.recipe, generator=crafting, initial=placed.initial, movement=True,
        progress=progress,
    )  # fmt: skip
    assert found.movement is not None
    coordinates = found.movement.argsort()[:canaries]
    signs = 2 * torch.randint(2, (canaries,), generator=draw) - 1
    targets = torch.randperm(len(placed.x), generator=draw)[:canaries].tolist()
    moved = train_one_run(
        placed.network,
        placed.x,
        placed.y,
        coordinates,
        signs.to(placed.x.device),
        placed.recipe,
        noise_multiplier=placed.mechanism.noise_multiplier,
        targets=targets,
        generator=generator_of(seed, "train", placed.x.device),
        initial=placed.initial,
        cache=cache,
        progress=progress,
    )[0]
    largest = abs(moved).argsort()[::-1][:chosen]
    correct = int(((moved > 0) == (signs.numpy() > 0))[largest].sum())
    return OneRunResult(
        claim=setting.claim,
        method=method,
        confidence=confidence,
        canaries=canaries,
        guesses=chosen,
        correct=correct,
        seconds=time.monotonic() - began,
        setting=setting.describe(),
    )
