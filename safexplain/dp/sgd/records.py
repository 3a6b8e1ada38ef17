"""Training data as records that are drawn by number, and the persons they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from safexplain._digest import digest
from safexplain._secure_random import Randomness
from safexplain._validate import whole_number
from safexplain.errors import InputError

Inputs = Tensor | tuple[Tensor, ...]
"""Inputs of a model, each of shape (rows, ...); a tuple is passed as positional arguments."""

Loss = Callable[[Any, Tensor], Tensor]
"""Model outputs and targets -> the loss of each example, shape (batch,)."""

Piece = tuple[Inputs, Tensor]
"""Inputs, and targets of shape (rows, ...)."""


def records_of(data: Any, workers: int = 0) -> Records:
    """The records of a pair (x, y) of tensors or arrays, or of a map-style `torch.utils.data.Dataset` of (x, y).

    Raises:
        InputError: another type, no records, or x and y of different length.
    """
    if isinstance(data, TensorDataset):
        data = data.tensors if len(data.tensors) == 2 else (tuple(data.tensors[:-1]), data.tensors[-1])
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        inputs = tuple(_tensor("x", part) for part in x) if isinstance(x, tuple) else _tensor("x", x)
        return InMemory(inputs, _tensor("y", y))
    if isinstance(data, DataLoader):
        raise InputError(
            "data: expected a data set, got a DataLoader, whose batches are not Poisson samples; pass loader.dataset."
            " For a training loop of your own, use Opacus and safexplain.dp.statement_from"
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
            f"data: expected {name} as a tensor or an array of numbers, got {type(values).__name__}"
            f" ({str(error).splitlines()[0]}); encode texts and categories first"
        ) from None


class InMemory:
    """Tensors."""

    def __init__(self, x: Inputs, y: Tensor) -> None:
        parts = x if isinstance(x, tuple) else (x,)
        if y.dim() == 0 or len(y) == 0 or any(p.dim() == 0 or len(p) != len(y) for p in parts):
            raise InputError(
                f"data: expected as many inputs as targets, and at least one, got shapes"
                f" {[tuple(p.shape) for p in parts]} and {tuple(y.shape)}"
            )
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def pieces(self, wanted: Iterable[list[int]]) -> Iterator[Piece]:
        """The records with these numbers, piece by piece; `wanted` is read lazily."""
        for numbers in wanted:
            at = torch.as_tensor(np.asarray(numbers, dtype=np.int64))
            yield (tuple(p[at] for p in self.x) if isinstance(self.x, tuple) else self.x[at]), self.y[at]

    def digest(self) -> str:
        """SHA-256 of types, shapes and bytes, so that a checkpoint is not resumed on other data."""
        return digest(self.x, self.y)


class OnDemand:
    """A map-style data set, loaded record by record."""

    def __init__(self, dataset: Dataset[Any], workers: int) -> None:
        self.dataset, self.workers = dataset, workers

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def pieces(self, wanted: Iterable[list[int]]) -> Iterator[Piece]:
        """As for `InMemory.pieces`."""
        loader = DataLoader(self.dataset, batch_sampler=wanted, num_workers=self.workers, collate_fn=default_collate)
        for piece in loader:
            if not isinstance(piece, tuple | list) or len(piece) < 2:
                raise InputError(f"data: expected records (x, y), got {type(piece).__name__} from the data set")
            yield (tuple(piece[:-1]) if len(piece) > 2 else piece[0]), piece[-1]

    def digest(self) -> str:
        """Class and length, as reading all records would take an epoch."""
        return f"{type(self.dataset).__qualname__} of {len(self)} records"


Records = InMemory | OnDemand
"""The data that training draws batches from."""


# --- persons ---------------------------------------------------------------------------------------------------------

RowsPiece = tuple[list[int], list[int]]
"""Numbers of rows, and the person of each: 0 for the first person of the piece, and so on."""


class Persons:
    """The persons that the rows belong to, each of whom takes the place of a record in DP-SGD.

    A person is in a batch with probability `sample_rate`, independently of others, and the gradient of the mean loss of
    their rows is clipped once. One person, whatever their rows are, therefore changes the sum by at most C (2C if all
    their rows are replaced), and every formula for records holds with the number of persons instead: user-level
    differential privacy, McMahan et al. 2018, arXiv 1710.06963, by the "user-level sampling" of Charles et al. 2024,
    arXiv 2407.07737. If a person has more than `max_rows` rows, each step draws some at random.

    Raises:
        InputError: there is not one id per row, or ids are neither whole numbers nor texts.
    """

    def __init__(self, groups: Any, rows: int, max_rows: int) -> None:
        self.max_rows = whole_number("rows_per_group", max_rows, 1)
        numbers = np.unique(_ids(groups, rows), return_inverse=True)[1].reshape(-1)
        self._order = np.argsort(numbers, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
        self._numbers = numbers

    def __len__(self) -> int:
        """Number of persons."""
        return len(self._starts) - 1

    @property
    def over_limit(self) -> int:
        """Number of persons with more than `max_rows` rows."""
        return int((np.diff(self._starts) > self.max_rows).sum())

    def rows_of(self, person: int, rng: Randomness) -> NDArray[np.int64]:
        """Numbers of at most `max_rows` rows of a person, in order."""
        rows = self._order[self._starts[person] : self._starts[person + 1]]
        return rows if len(rows) <= self.max_rows else np.sort(rng.choice(rows, self.max_rows, replace=False))

    def pieces(self, persons: Sequence[int], size: int, rng: Randomness) -> list[RowsPiece]:
        """The rows of some persons in pieces of at most `size` rows, with all rows of a person in one piece."""
        pieces: list[RowsPiece] = []
        for person in persons:
            rows = self.rows_of(person, rng).tolist()
            if not pieces or len(pieces[-1][0]) + len(rows) > size:
                pieces.append(([], []))
            owners = pieces[-1][1]
            pieces[-1][0].extend(rows)
            owners.extend([owners[-1] + 1 if owners else 0] * len(rows))
        return pieces

    def digest(self) -> str:
        """SHA-256 of the assignment of rows to persons, independent of the ids themselves."""
        return digest(self._numbers, self.max_rows)


def mean_gradients(gradients: Tensor, owners: Tensor) -> Tensor:
    """Mean gradients (persons, ...) of single rows' (rows, ...), whose `owners` (rows,) count from 0 without gaps."""
    counts = torch.bincount(owners)
    sums = gradients.new_zeros((len(counts), *gradients.shape[1:])).index_add_(0, owners, gradients)
    return sums / counts.to(gradients).view(-1, *[1] * (gradients.dim() - 1))


def _ids(groups: Any, rows: int) -> NDArray[Any]:
    """The ids as an array of whole numbers or texts."""
    found = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if found.shape != (rows,):
        raise InputError(f"groups: expected one id for each of the {rows} records, got shape {found.shape}")
    if found.dtype == object:
        kinds = {type(i) for i in found.tolist()}
        if kinds <= {str}:
            return found.astype(str)
        if kinds <= {int}:
            return found.astype(np.int64) if max(map(abs, found.tolist())) < 2**63 else found.astype(str)
    elif found.dtype.kind in "iuU":
        return found
    kind = ", ".join(sorted({type(i).__name__ for i in found.ravel()[:100].tolist()}))
    raise InputError(
        f"groups: expected only whole numbers or only texts, got {found.dtype} ({kind}); give each row whose person is"
        " unknown a separate id"
    )
