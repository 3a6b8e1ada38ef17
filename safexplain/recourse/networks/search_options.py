"""How hard a search tries."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError


@dataclass(frozen=True)
class SearchOptions:
    """How hard, and how much at once.

    Args:
        starts: searches of each query, the first from the query itself; the others find nearer points, or points where
            the first finds none (a flat score).
        steps: gradients of one search at most.
        batch_size: rows that the model sees at once, and queries that are searched together; memory grows with it.
        seed: of the directions in which further searches start, the same for every query.
        dtype: type that a callable score takes; None: torch's default, and that of a network's parameters.
        device: where a callable score takes its rows; None: the CPU, and that of a network's parameters.

    Raises:
        ConfigurationError: a number that is not positive, a seed below 0, or not a type or device of torch.
    """

    starts: int = 8
    steps: int = 60
    batch_size: int = 8192
    seed: int = 0
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        for name, least in (("starts", 1), ("steps", 1), ("batch_size", 1), ("seed", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise ConfigurationTypeError(f"dtype: expected a type of torch, such as torch.float32, got {self.dtype!r}")
        if self.dtype is not None and not self.dtype.is_floating_point:
            raise ConfigurationError(f"dtype: expected a floating-point type, got {self.dtype}")
        if self.device is not None:
            try:
                torch.device(self.device)
            except (RuntimeError, TypeError) as error:
                raise ConfigurationError(f"device: expected one of torch, got {self.device!r} ({error})") from error
