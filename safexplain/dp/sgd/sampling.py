"""The records and persons that DP-SGD trains on, their secret Poisson batches, and Gaussian noise on sums.

Randomness is that of `safexplain._secure_random`, or of a seed; the guarantee is void for anyone who knows the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from safexplain._digest import digest
from safexplain._secure_random import KeyedGenerator, Randomness, SecureGenerator, fresh_key
from safexplain._validate import whole_number
from safexplain.errors import InputError

Inputs = Tensor | tuple[Tensor, ...]
"""Inputs of a model, each of shape (rows, ...); a tuple is passed as positional arguments."""

Loss = Callable[[Any, Tensor], Tensor]
"""Model outputs and targets -> the loss of each example, shape (batch,)."""

Piece = tuple[Inputs, Tensor]
"""Inputs, and targets of shape (rows, ...)."""


def records_of(data: Any, workers: int = 0) -> Records:
    """The records of a pair (x, y) of tensors or arrays, or of a map-style `torch.utils.data.Dataset` of (x, y);
    InputError: another type, no records, or x and y of different length."""
    if isinstance(data, TensorDataset):
        data = data.tensors if len(data.tensors) == 2 else (tuple(data.tensors[:-1]), data.tensors[-1])
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        inputs = tuple(_tensor("x", part) for part in x) if isinstance(x, tuple) else _tensor("x", x)
        return InMemory(inputs, _tensor("y", y))
    if isinstance(data, DataLoader):
        raise InputError(
            "data: expected a data set, got a DataLoader, whose batches are not Poisson samples; pass loader.dataset,"
            " or use a loop of your own with Opacus and safexplain.dp.statement_from"
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

    A person is in a batch with probability `sample_rate`, and the gradient of the mean loss of their rows is clipped
    once. One person therefore changes the sum by at most C (2C if all their rows are replaced), and every formula for
    records holds for persons: user-level differential privacy, McMahan et al. 2018, arXiv 1710.06963, by the
    "user-level sampling" of Charles et al. 2024, arXiv 2407.07737. Each step draws at most `max_rows` of their rows.
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
    found = np.asarray(groups.detach().cpu() if isinstance(groups, Tensor) else groups)
    if found.shape != (rows,):
        raise InputError(f"groups: expected one id for each of the {rows} records, got shape {found.shape}")
    kinds = {type(i) for i in found.tolist()}
    if found.dtype.kind in "iuU":
        return found
    if kinds in ({str}, {int}):
        return found.astype(str)
    raise InputError(
        f"groups: expected only whole numbers or only texts, got {', '.join(sorted(k.__name__ for k in kinds))}; give"
        " each row whose person is unknown a separate id"
    )


# --- records and persons ----------------------------------------------------------------------------------------------


Source = SecureGenerator | torch.Generator
"""Source of noise and batches; torch's with a seed."""

_CHUNK = {"cpu": 1 << 14, "cuda": 1 << 22}
"""Values drawn together, by type of device, to fit in a processor's cache or 128 MiB of a GPU's memory."""


@dataclass(frozen=True)
class PoissonSampler:
    """The Poisson batches of a training; each is a function of a key and its step, the same in all processes.

    Copies and pickles get a new key, as it tells every batch. With a `seed`, for experiments and tests, batches come
    from NumPy's Philox instead.
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

    With `float_safe`, each number is made of four, (a + b + c + d) / 2, so that gaps between floating-point numbers do
    not reveal the noise (Holohan and Braghin 2021, arXiv 2107.10138, section 5.1, with n = 2).
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
    """(2, half) sums of `terms` independent standard normal numbers each, from random bits: `radii` (terms, half)
    int64, overwritten, and `angles` (terms, half) int64 for sums in float64, int32 for float32."""
    dtype, bits = (torch.float64, 63) if angles.dtype == torch.int64 else (torch.float32, 31)
    radius = radii.bitwise_and_(2**63 - 1).to(dtype).add_(0.5).mul_(2.0**-63).log_().mul_(-2).sqrt_()
    angle = angles.to(dtype).mul_(math.pi * 2.0**-bits)
    out = radius.new_empty(2, radius.shape[1])
    for into, part in zip(out, (angle.cos(), angle.sin_()), strict=True):
        torch.sum(part.mul_(radius), 0, out=into)
    return out
