"""Gaussian noise on sums of clipped gradients, and the generators that it is drawn from."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

_WORDS = slice(3, 627)
"""Where a saved CPU generator keeps the 624 words of its Mersenne Twister, counted in 64-bit numbers."""


def fresh_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded from the operating system, with all the entropy that it can take.

    `torch.Generator().seed()` keeps only 32 bits of its seed on the CPU: whoever sees some of the noise can try them
    all, and subtract the rest. Here the whole state of the CPU's Mersenne Twister is drawn, and 64 bits on a GPU.

    Args:
        device: where noise is drawn.
    """
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(os.urandom(8), "little"))
    if generator.device.type == "cpu":
        state = generator.get_state()
        numbers = state.numpy().view(np.uint64)
        numbers[_WORDS] = np.frombuffer(os.urandom(4 * 624), dtype=np.uint32)
        generator.set_state(state)
    return generator


def gaussian(like: Tensor, std: float, generator: torch.Generator, *, float_safe: bool = True) -> Tensor:
    """Gaussian noise of the shape, type and device of `like`.

    Args:
        like: what the noise is to be added to.
        std: standard deviation.
        generator: drawn from in any case; on another device than `like`, the noise is drawn there and moved.
        float_safe: make each number from four, (a + b + c + d) / 2, so that the gaps between floating-point numbers do
            not tell the noise (Holohan and Braghin 2021, arXiv 2107.10138, section 5.1, with n = 2).
    """
    if std == 0:
        return torch.zeros_like(like)
    dtype = torch.promote_types(like.dtype, torch.float32)
    number = torch.empty(like.shape, dtype=dtype, device=generator.device)
    if not float_safe:
        return number.normal_(0.0, std, generator=generator).to(like)
    total = torch.zeros_like(number)
    for _ in range(4):
        total += number.normal_(0.0, std / 2, generator=generator)
    return total.to(like)
