"""What is drawn in DP-SGD: Poisson batches, which nobody is told, and Gaussian noise on sums of clipped gradients.

Both come from `safexplain._secure_random` unless a seed is given. Whoever knows the seed can take the noise off, and
knows every batch: the guarantee is void.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain._secure_random import KEY_BYTES, KeyedGenerator, Randomness, SecureGenerator, fresh_key
from safexplain.errors import ConfigurationError

Source = SecureGenerator | torch.Generator
"""What noise and samples of tensors are drawn from: torch's generators where a seed makes them repeatable."""

_PIECE = {"cpu": 1 << 14, "cuda": 1 << 22}
"""Noise that is made at once, by type of device: in a processor's cache, and within 128 MiB of a GPU."""


@dataclass(frozen=True)
class PoissonSampler:
    """The Poisson batches of a whole training, step by step, each a function of a key and of the step's number.

    So an interrupted training goes on where it stopped, and all processes of a distributed one see the same batches.
    The key is secret, and batches come from a `KeyedGenerator`; who knows the key knows every batch, and the guarantee
    of sampling is void. It is neither stored nor copied: copies and pickles get a key of their own.

    Args:
        key: 32 bytes; from the operating system unless given.
        seed: for repeatable batches instead, from NumPy's Philox; see `from_seed`.
    """

    key: bytes = field(default_factory=fresh_key, repr=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ConfigurationError(f"key: expected {KEY_BYTES} bytes, got {len(self.key)}")

    @classmethod
    def from_seed(cls, seed: int | None) -> PoissonSampler:
        """A reproducible sampler, for experiments and tests; a secret one for None."""
        return cls(seed=seed)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_seed, (self.seed,)

    def batch(self, step: int, records: int, sample_rate: float) -> NDArray[np.int64]:
        """Indices of the records in the batch of one step: each of `records` with probability `sample_rate`."""
        if sample_rate >= 1:
            return np.arange(records)
        return np.flatnonzero(self.stream(step).random(records) < sample_rate)

    def stream(self, step: int, number: int = 0) -> Randomness:
        """Random numbers of one step; streams of other steps or numbers have none in common."""
        if self.seed is None:
            return KeyedGenerator(self.key, step, number)
        key = np.frombuffer(int(self.seed).to_bytes(16, "little", signed=True), dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, number, step]))


def seed_of(seed: int, step: int) -> int:
    """A seed of 64 bits for the noise from one step on, so that no two steps of a seeded training share noise."""
    return int(np.random.SeedSequence([seed % 2**64, step]).generate_state(1, np.uint64)[0])


def share_of(batch: NDArray[np.int64], rank: int, processes: int) -> NDArray[np.int64]:
    """The records of a batch that one of several processes computes: always the same one for a record."""
    return np.asarray(batch[batch % processes == rank])


def shared_sampler(sampler: PoissonSampler, device: torch.device) -> PoissonSampler:
    """The sampler of the first process, in all of them."""
    key = torch.tensor(list(sampler.key), dtype=torch.uint8, device=device)
    torch.distributed.broadcast(key, 0)
    return PoissonSampler(bytes(key.cpu().tolist()), sampler.seed)


def source_of(seed: int | None, device: torch.device | str = "cpu") -> Source:
    """Where noise and samples come from: a cryptographic generator, or torch's with a seed on a device."""
    return SecureGenerator() if seed is None else torch.Generator(device).manual_seed(seed)


def uniform(shape: tuple[int, ...], source: Source, device: torch.device) -> Tensor:
    """Uniform numbers in [0, 1) of float64, multiples of 2^-53."""
    if isinstance(source, torch.Generator):
        return torch.rand(shape, generator=source, device=device, dtype=torch.float64)
    return torch.from_numpy(source.random(shape)).to(device)


def gaussian(like: Tensor, std: float, source: Source, *, float_safe: bool = True) -> Tensor:
    """Gaussian noise of the shape, type and device of `like`.

    Args:
        like: what the noise is to be added to.
        std: standard deviation.
        source: drawn from in any case. A generator of torch on another device than `like` draws there; random bits of a
            `SecureGenerator` are made on the CPU, and become normal numbers on the device.
        float_safe: make each number from four, (a + b + c + d) / 2, so that the gaps between floating-point numbers do
            not tell the noise (Holohan and Braghin 2021, arXiv 2107.10138, section 5.1, with n = 2).
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


def _secure_normal(like: Tensor, std: float, source: SecureGenerator, of: int) -> Tensor:
    """Noise, each number the sum of `of` normal ones; in float64 for float64, else in float32."""
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    flat, piece = out.view(-1), _PIECE.get(like.device.type, _PIECE["cuda"])
    wide = like.dtype == torch.float64
    for first in range(0, len(flat), piece):
        part = flat[first : first + piece]
        half = (len(part) + 1) // 2
        count = of * half
        words = torch.from_numpy(source.words(2 * count if wide else count + (count + 1) // 2)).to(like.device)
        angles = words[count:] if wide else words[count:].view(torch.int32)[:count]
        sums = box_muller(words[:count].view(of, half), angles.view(of, half))
        part.copy_(sums.mul_(std / math.sqrt(of)).view(-1)[: len(part)])
    return out


def box_muller(radii: Tensor, angles: Tensor) -> Tensor:
    """(2, half) sums of `of` independent standard normal numbers each, from random bits.

    The two numbers that a radius and an angle give go into different sums: every sum is of `of` radii and angles.

    Args:
        radii: (of, half) int64, of which 63 bits count; overwritten.
        angles: (of, half) int64 for sums in float64, int32 for sums in float32.
    """
    dtype, bits = (torch.float64, 63) if angles.dtype == torch.int64 else (torch.float32, 31)
    radius = radii.bitwise_and_(2**63 - 1).to(dtype).add_(0.5).mul_(2.0**-63).log_().mul_(-2).sqrt_()
    angle = angles.to(dtype).mul_(math.pi * 2.0**-bits)
    out = radius.new_empty(2, radius.shape[1])
    for into, part in zip(out, (angle.cos(), angle.sin_()), strict=True):
        torch.sum(part.mul_(radius), 0, out=into)
    return out
