"""Random draws of DP-SGD from `safexplain._secure_random`: secret Poisson batches, and Gaussian noise on sums.

With a seed they are repeatable, and the guarantee is void for anyone who knows the seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._secure_random import KeyedGenerator, Randomness, SecureGenerator, fresh_key

Source = SecureGenerator | torch.Generator
"""Source of noise and batches; a generator of torch if a seed makes them repeatable."""

_CHUNK = {"cpu": 1 << 14, "cuda": 1 << 22}
"""Values drawn together, by type of device: in a processor's cache, or within 128 MiB of a GPU's memory."""


@dataclass(frozen=True)
class PoissonSampler:
    """The Poisson batches of a training; each is a function of a key and the number of its step.

    All processes of a distributed training can therefore draw the same batches. Copies and pickles get a new key, as it
    tells every batch. With a `seed`, for experiments and tests, batches come from NumPy's Philox instead.
    """

    seed: int | None = None
    key: bytes = field(default_factory=fresh_key, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seed,)

    def batch(self, step: int, records: int, sample_rate: float) -> NDArray[np.int64]:
        """Indices of the records in the batch of one step: each of 0 to records - 1 with probability `sample_rate`."""
        if sample_rate >= 1:
            return np.arange(records)
        return np.flatnonzero(self.stream(step).random(records) < sample_rate)

    def stream(self, step: int, number: int = 0) -> Randomness:
        """The random numbers of one step; different steps and numbers have independent streams."""
        if self.seed is None:
            return KeyedGenerator(self.key, step, number)
        key = np.frombuffer(int(self.seed).to_bytes(16, "little", signed=True), dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, number, step]))


def step_seed(seed: int, step: int) -> int:
    """A 64-bit seed for the noise of one step, so that no two steps of a seeded training share noise."""
    return int(np.random.SeedSequence([seed % 2**64, step]).generate_state(1, np.uint64)[0])


def shared_sampler(sampler: PoissonSampler, device: torch.device) -> PoissonSampler:
    """The sampler of the first process, sent to all."""
    key = torch.tensor(list(sampler.key), dtype=torch.uint8, device=device)
    torch.distributed.broadcast(key, 0)
    return PoissonSampler(sampler.seed, bytes(key.cpu().tolist()))


def random_source(seed: int | None, device: torch.device | str = "cpu") -> Source:
    """A cryptographic generator; with a seed, torch's on this device."""
    return SecureGenerator() if seed is None else torch.Generator(device).manual_seed(seed)


def uniform(shape: tuple[int, ...], source: Source, device: torch.device) -> Tensor:
    """Uniform float64 numbers in [0, 1), multiples of 2^-53."""
    if isinstance(source, torch.Generator):
        return torch.rand(shape, generator=source, device=device, dtype=torch.float64)
    return torch.from_numpy(source.random(shape)).to(device)


def gaussian(like: Tensor, std: float, source: Source, *, float_safe: bool = True) -> Tensor:
    """Gaussian noise of this standard deviation in the shape, type and device of `like`.

    A generator of torch draws on its own device; the random bits of a `SecureGenerator` are drawn on the CPU and become
    normal numbers on the device of `like`. With `float_safe`, each number is made of four, (a + b + c + d) / 2, so that
    gaps between floating-point numbers do not reveal the noise (Holohan and Braghin 2021, arXiv 2107.10138, section
    5.1, with n = 2).
    """
    if std == 0:
        return torch.zeros_like(like)
    if isinstance(source, SecureGenerator):
        return _secure_normal(like, std, source, 4 if float_safe else 1)
    dtype = torch.promote_types(like.dtype, torch.float32)
    number = torch.empty(like.shape, dtype=dtype, device=source.device)
    if not float_safe:
        return number.normal_(0.0, std, generator=source).to(like)
    total = torch.zeros_like(number)
    for _ in range(4):
        total += number.normal_(0.0, std / 2, generator=source)
    return total.to(like)


def _secure_normal(like: Tensor, std: float, source: SecureGenerator, terms: int) -> Tensor:
    """Noise like `like`, each number a sum of `terms`; computed in float64 for float64, else in float32."""
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    flat, chunk = out.view(-1), _CHUNK.get(like.device.type, _CHUNK["cuda"])
    wide = like.dtype == torch.float64
    for first in range(0, len(flat), chunk):
        part = flat[first : first + chunk]
        half = (len(part) + 1) // 2
        count = terms * half
        words = torch.from_numpy(source.words(2 * count if wide else count + (count + 1) // 2)).to(like.device)
        angles = words[count:] if wide else words[count:].view(torch.int32)[:count]
        sums = box_muller(words[:count].view(terms, half), angles.view(terms, half))
        part.copy_(sums.mul_(std / math.sqrt(terms)).view(-1)[: len(part)])
    return out


def box_muller(radii: Tensor, angles: Tensor) -> Tensor:
    """(2, half) sums of `terms` independent standard normal numbers each, from random bits.

    The two numbers of one radius and angle go into different sums, so the terms of each sum are independent. `radii`
    (terms, half) are int64, and overwritten; `angles` (terms, half) int64 for sums in float64, int32 for float32.
    """
    dtype, bits = (torch.float64, 63) if angles.dtype == torch.int64 else (torch.float32, 31)
    radius = radii.bitwise_and_(2**63 - 1).to(dtype).add_(0.5).mul_(2.0**-63).log_().mul_(-2).sqrt_()
    angle = angles.to(dtype).mul_(math.pi * 2.0**-bits)
    out = radius.new_empty(2, radius.shape[1])
    for into, part in zip(out, (angle.cos(), angle.sin_()), strict=True):
        torch.sum(part.mul_(radius), 0, out=into)
    return out
