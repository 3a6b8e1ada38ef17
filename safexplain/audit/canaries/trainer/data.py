"""The data set of a user's training function: the records of D or D'."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from safexplain._digest import digest
from safexplain.dp.sgd.records import InMemory, records_of
from safexplain.errors import InputError

Record = tuple[Tensor, Tensor]


class NeighbouringData(Dataset[Record]):
    """The records of D or of D', with replacements `instead` of some; `fetched` notes every record that is fetched."""

    def __init__(self, data: Any, instead: Mapping[int, Record] | None = None, fetched: Fetched | None = None) -> None:
        self.data, self.instead, self.fetched = data, dict(instead or {}), fetched

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Record:
        at = self._checked(number)
        if self.fetched:
            self.fetched.one(at)
        return self._record(at)

    def __getitems__(self, numbers: Sequence[int]) -> list[Record]:
        """A batch, as a DataLoader fetches it."""
        found = [self._checked(number) for number in numbers]
        if self.fetched:
            self.fetched.batch(found)
        return [self._record(number) for number in found]

    def _checked(self, number: int) -> int:
        if not -len(self) <= int(number) < len(self):
            raise IndexError(f"record {int(number)} of {len(self)}")
        return int(number) % len(self)

    def _record(self, number: int) -> Record:
        x, y = self.instead[number] if number in self.instead else self.data[number]
        return x.clone(), y.clone()  # training may change its batch in place


def records(data: Any) -> Any:
    """A sequence of records (x, y) of tensors, from a pair of tensors or arrays, or a map-style data set of (x, y).

    Raises:
        InputError: something else, no records, or several inputs a record.
    """
    found = records_of(data)
    if isinstance(found, InMemory):
        if not isinstance(found.x, Tensor):
            raise InputError("data: expected one input tensor per record, got several; concatenate them")
        return TensorDataset(found.x, found.y)
    return _OnDemand(data)


def stacked(data: Any) -> tuple[Tensor, Tensor]:
    """All records as x (n, ...) and y (n,)."""
    if isinstance(data, TensorDataset):
        return data.tensors[0], data.tensors[1]
    x, y = zip(*(data[i] for i in range(len(data))), strict=True)
    return torch.stack(x), torch.stack(y)


def digest_of(data: Any) -> str:
    """Digest of all records in order; a map-style data set is read once."""
    return digest(*(data.tensors if isinstance(data, TensorDataset) else (digest(*data[i]) for i in range(len(data)))))


class _OnDemand:
    """Records of a map-style data set as tensors; pickled once, so that each worker receives it once."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @cached_property
    def _pickled(self) -> NDArray[np.uint8]:
        return np.frombuffer(cloudpickle.dumps(self.dataset), np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._pickled,)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Record:
        found = self.dataset[number]
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"data: expected records (x, y), got {type(found).__name__} from the data set")
        return torch.as_tensor(found[0]), torch.as_tensor(found[1])


def _unpickled(pickled: NDArray[np.uint8]) -> _OnDemand:
    return _OnDemand(pickle.loads(pickled.tobytes()))


class Fetched:
    """Numbers of the records that were fetched for the next step, in order; those fetched without gradients, as for an
    evaluation, do not count, and single ones only if no batch of a `torch.utils.data.DataLoader` was fetched."""

    def __init__(self) -> None:
        self._batches: list[int] | None = None
        self._single: list[int] = []

    def batch(self, numbers: Sequence[int]) -> None:
        """Note a batch of a loader."""
        if torch.is_grad_enabled():
            self._batches = [*(self._batches or []), *numbers]

    def one(self, number: int) -> None:
        """Note a single record."""
        if torch.is_grad_enabled():
            self._single.append(number)

    def take(self) -> list[int]:
        """The records since the last call."""
        found = self._single if self._batches is None else self._batches
        self._batches, self._single = None, []
        return found
