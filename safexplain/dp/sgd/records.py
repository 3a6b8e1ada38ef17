"""The training data as records that can be drawn by number: tensors, arrays, or a map-style data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from safexplain._digest import digest
from safexplain.errors import InputError

Inputs = Tensor | tuple[Tensor, ...]
"""Inputs of a model, each of shape (rows, ...); a tuple is passed as positional arguments."""

Loss = Callable[[Any, Tensor], Tensor]
"""Model outputs and targets -> the loss of each example, shape (batch,)."""

Piece = tuple[Inputs, Tensor]
"""Inputs, and targets of shape (rows, ...)."""


def records_of(data: Any, workers: int = 0) -> Records:
    """Records of a pair (x, y) of tensors or arrays with equal first dimension, or of a map-style data set of (x, y).

    Args:
        data: a pair, or a `torch.utils.data.Dataset` with a length.
        workers: processes that load a data set's records.

    Raises:
        InputError: something else, no records, or x and y of different length.
    """
    if isinstance(data, TensorDataset):
        data = data.tensors if len(data.tensors) == 2 else (tuple(data.tensors[:-1]), data.tensors[-1])
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        inputs = tuple(_tensor("x", part) for part in x) if isinstance(x, tuple) else _tensor("x", x)
        return InMemory(inputs, _tensor("y", y))
    if isinstance(data, DataLoader):
        raise InputError(
            "data: expected the data set, got a DataLoader, whose batches are not Poisson samples; pass loader.dataset,"
            " or keep your own loop with Opacus and state it by safexplain.dp.statement_from"
        )
    if isinstance(data, Dataset) and hasattr(data, "__len__") and len(data):
        return OnDemand(data, workers)
    raise InputError(
        f"data: expected a pair (x, y) of tensors or a map-style torch Dataset with records, got {type(data).__name__}"
    )


def _tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        return torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"data: {name} must be numbers, a tensor or an array of one type, got {type(values).__name__}"
            f" ({str(error).splitlines()[0]}); encode texts and categories first"
        ) from None


class InMemory:
    """Tensors."""

    def __init__(self, x: Inputs, y: Tensor) -> None:
        parts = x if isinstance(x, tuple) else (x,)
        if y.dim() == 0 or len(y) == 0 or any(p.dim() == 0 or len(p) != len(y) for p in parts):
            raise InputError(
                f"data: expected as many inputs as targets, and at least one; got {[tuple(p.shape) for p in parts]} and"
                f" {tuple(y.shape)}"
            )
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def pieces(self, wanted: Iterable[list[int]]) -> Iterator[Piece]:
        """The records with these numbers, piece by piece, asked for as late as can be."""
        for numbers in wanted:
            at = torch.as_tensor(np.asarray(numbers, dtype=np.int64))
            yield (tuple(p[at] for p in self.x) if isinstance(self.x, tuple) else self.x[at]), self.y[at]

    def digest(self) -> str:
        """SHA-256 of types, shapes and bytes, so that a checkpoint is not continued on other data."""
        return digest(self.x, self.y)


class OnDemand:
    """A map-style data set, loaded record by record."""

    def __init__(self, dataset: Dataset[Any], workers: int) -> None:
        self.dataset, self.workers = dataset, workers

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def pieces(self, wanted: Iterable[list[int]]) -> Iterator[Piece]:
        """As `InMemory.pieces`."""
        loader = DataLoader(self.dataset, batch_sampler=wanted, num_workers=self.workers, collate_fn=default_collate)
        for piece in loader:
            if not isinstance(piece, tuple | list) or len(piece) < 2:
                raise InputError(f"data: expected records (x, y), got {type(piece).__name__} from the data set")
            yield (tuple(piece[:-1]) if len(piece) > 2 else piece[0]), piece[-1]

    def digest(self) -> str:
        """Class and length: reading all records would take an epoch."""
        return f"{type(self.dataset).__qualname__} of {len(self)} records"


Records = InMemory | OnDemand
"""What training draws batches from."""
