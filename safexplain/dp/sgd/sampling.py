"""What is drawn in DP-SGD: Poisson batches, which nobody is told, and Gaussian noise on sums of clipped gradients.

Both come from the operating system's entropy unless a seed is given. Whoever knows the seed can take the noise off, and
knows every batch: the guarantee is void.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from safexplain.errors import ConfigurationError

_KEY_BYTES = 16
_WORDS = slice(3, 627)
"""Where a saved CPU generator keeps the 624 words of its Mersenne Twister, counted in 64-bit numbers."""


@dataclass(frozen=True)
class PoissonSampler:
    """The Poisson batches of a whole training, step by step: a keyed, counter-based generator (Philox, 128 bits).

    Step t's batch is a function of the key and t alone, so that an interrupted training goes on where it stopped, and
    all processes of a distributed one see the same batches. Who knows the key knows every batch, and the guarantee of
    sampling is void; it is never stored.

    Args:
        key: 16 bytes; from the operating system unless given.
    """

    key: bytes = field(default_factory=lambda: os.urandom(_KEY_BYTES), repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != _KEY_BYTES:
            raise ConfigurationError(f"key: expected {_KEY_BYTES} bytes, got {len(self.key)}")

    @classmethod
    def from_seed(cls, seed: int | None) -> PoissonSampler:
        """A reproducible sampler, for experiments and tests; a secret one for None."""
        return cls() if seed is None else cls(int(seed).to_bytes(_KEY_BYTES, "little", signed=True))

    def batch(self, step: int, records: int, sample_rate: float, largest: int | None = None) -> NDArray[np.int64]:
        """Indices of the records in the batch of one step: each of `records` with probability `sample_rate`.

        Of a batch of more than `largest` records so many are kept, a uniformly random choice.
        """
        if sample_rate >= 1:
            drawn = np.arange(records)
        else:
            drawn = np.flatnonzero(self.stream(step).random(records) < sample_rate)
        if largest is None or len(drawn) <= largest:
            return drawn
        return np.sort(self.stream(step, 2).choice(drawn, largest, replace=False))

    def stream(self, step: int, number: int = 0) -> np.random.Generator:
        """Random numbers of one step; streams of other steps or numbers have none in common."""
        key = np.frombuffer(self.key, dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, number, step]))


class PoissonBatchSampler(Sampler[list[int]]):
    """A batch sampler for `torch.utils.data.DataLoader`: an epoch is 1 / sample_rate Poisson batches, rounded up.

    Batches differ in size and may be empty; the loader's collate function must take an empty list. With several
    processes, each gets its part of every batch, also where that is empty.

    Args:
        records: size of the data set.
        sample_rate: q, in (0, 1].
        sampler: the randomness; secret by default.
        on_start: called before the first batch of each epoch.
        rank: of this process.
        processes: how many share each batch.
        largest: most records in a batch, over all processes; None: no limit.
    """

    def __init__(
        self,
        records: int,
        sample_rate: float,
        *,
        sampler: PoissonSampler | None = None,
        on_start: Callable[[], None] | None = None,
        rank: int = 0,
        processes: int = 1,
        largest: int | None = None,
    ) -> None:
        self.largest = largest
        self.records, self.sample_rate = records, sample_rate
        self.rank, self.processes = rank, processes
        self._sampler, self._on_start = sampler or PoissonSampler(), on_start
        self.step = 0

    def __len__(self) -> int:
        return math.ceil(1 / self.sample_rate - 1e-9)

    def __iter__(self) -> Iterator[list[int]]:
        if self._on_start:
            self._on_start()
        for _ in range(len(self)):
            batch = self._sampler.batch(self.step, self.records, self.sample_rate, self.largest)
            self.step += 1
            yield share_of(batch, self.rank, self.processes).tolist()


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
    return PoissonSampler(bytes(key.cpu().tolist()))


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
