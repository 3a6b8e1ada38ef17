"""Accuracy of models that were trained with a canary, as training goes on (paper C's Figure A1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.audit.canaries.batched.blocks import Block
from safexplain.audit.canaries.batched.train import Job
from safexplain.audit.canaries.canary import Canary
from safexplain.audit.canaries.setting import Setting

Array = NDArray[np.float64]


def accuracies(
    setting: Setting, canary: Canary, outside: tuple[Tensor, Tensor], *, models: int, steps: Sequence[int], seed: int
) -> tuple[Array, Array]:
    """Share of right labels after each of these steps.

    Args:
        setting: what is trained, with its noise.
        canary: in D': its record, or -C at its parameter; D has the target record, or +C.
        outside: records that are not trained on.
        models: on D, and as many on D'.
        steps: increasing.
        seed: of batches and noise.

    Returns:
        Of the models on D and on D', (models, steps) each.
    """
    s, runs = setting, 2 * models
    generator = torch.Generator(s.x.device).manual_seed(seed)
    job = Job(
        s.network, s.x, s.y, canary, s.recipe, s.mechanism.noise_multiplier, runs, generator, s.initial,
    )  # fmt: skip
    block = Block(0, 0, runs)
    theta = job.start(block, s.x.device)
    x, y = (part.to(s.x.device) for part in outside)
    found: list[Any] = []
    for step in job.train(block, theta, lambda _: None):
        if len(found) < len(steps) and step == steps[len(found)]:
            logits = s.network.logits(theta, x.to(theta))
            said = logits.argmax(-1) if logits.shape[-1] > 1 else (logits[..., 0] > 0).long()
            found.append((said == y).double().mean(1).cpu().numpy())
    together = np.stack(found, 1)
    return together[::2], together[1::2]
