"""Where blocks of runs are trained, how large they are, and how many rows of a batch they take at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from safexplain.audit.canaries.batched.networks import Network
from safexplain.errors import ConfigurationError

__all__ = ["Block", "Place", "blocks_of", "places_of", "rows_at_once"]

_PARAMETERS = {"cpu": 2**19, "cuda": 2**24}
"""Parameters of the runs of a block: what a processor's cache holds, or what keeps a GPU busy."""
_COPIES = 8
"""Tensors like theta that a step holds at once: itself, two of Adam's, sums, their parts, noise, the update."""
_CPU_MEMORY = 2**30
_CUDA_SHARE = 0.8


@dataclass(frozen=True)
class Block:
    """Runs [first, last), whose randomness is a function of the seed and `number`.

    Args:
        number: of the block.
        first: run.
        last: the run after the last.
    """

    number: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Place:
    """Where one block at a time is trained.

    Args:
        device: of the tensors.
        memory: bytes.
    """

    device: torch.device
    memory: int


def blocks_of(runs: int, parameters: int, device: torch.device) -> list[Block]:
    """Blocks whose size depends on the model and the kind of device alone: results do not depend on memory."""
    size = max(2, _PARAMETERS.get(device.type, _PARAMETERS["cpu"]) // parameters)
    return [Block(i, first, min(first + size, runs)) for i, first in enumerate(range(0, runs, size))]


def places_of(devices: Sequence[torch.device], memory: int | None) -> list[Place]:
    """A place for each device, and for each time that it is named.

    Args:
        devices: at least one.
        memory: bytes on each device; None: 1 GiB, or most of what a GPU has free.
    """
    return [Place(d, _bytes(d, memory) // devices.count(d)) for d in devices]


def rows_at_once(network: Network, runs: int, x: Tensor, own_batches: bool, memory: int) -> int:
    """How many rows of a batch are computed together so that a block of runs stays within its memory.

    Args:
        network: the shape of the models.
        runs: of the block.
        x: (n, d), the data.
        own_batches: whether each run gathers rows of its own.
        memory: bytes for the block.

    Raises:
        ConfigurationError: not even one row fits.
    """
    rows, columns = x.shape[0], x.shape[1] + 1
    numbers = runs * network.parameters * _COPIES + 3 * rows * columns
    sampling = rows * runs * (40 if own_batches else 2)
    a_row = x.element_size() * (runs * (network.numbers_per_row + (columns if own_batches else 0)) + columns)
    left = memory - x.element_size() * numbers - sampling
    if left < a_row:
        raise ConfigurationError(
            f"memory: {runs} runs of {network.parameters:,} parameters on {rows:,} rows need"
            f" {(memory - left + a_row) / 2**20:,.0f} MiB at once, there are {memory / 2**20:,.0f}; give more, or fewer"
            " devices at once"
        )
    return min(left // a_row, rows + 2)


def _bytes(device: torch.device, given: int | None) -> int:
    if given is not None:
        return given
    if device.type != "cuda":
        return _CPU_MEMORY
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for new tensors
    return int(_CUDA_SHARE * (torch.cuda.mem_get_info(device)[0] + kept))
