"""The pool of members and non-members, and the queries of patient attackers about it: many per example, each a little
different (dithered), the same for all models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from safexplain._validate import check_whole, keep_number
from safexplain.audit.controls.splits import spread
from safexplain.audit.references.recipe import padding, shift_and_flip
from safexplain.audit.signals import hash_examples
from safexplain.errors import ConfigurationError, InputError

SAMPLING = np.uint64(0x5C02ED)  # makes the order of scored examples differ from that of `Splits`


@dataclass(frozen=True, eq=False)
class Population:
    """One pool of labelled examples, from which the members of every model come by independent coin flips.

    Args:
        x: (n, ...) float32 inputs of the model.
        y: (n,) int64 labels.
        groups: (n,) int64, equal for records of one person or near-copies of one image: one coin is flipped for each
            group. None: each example is its own group.

    Raises:
        InputError: sizes differ, fewer than 2 classes, a negative label, or NaN or infinity in x.
    """

    x: Tensor
    y: Tensor
    groups: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.x.dim() < 2 or self.y.shape != self.x.shape[:1]:
            raise InputError(f"expected x (n, ...) and y (n,), got {tuple(self.x.shape)} and {tuple(self.y.shape)}")
        if not bool(torch.isfinite(self.x).all()):
            raise InputError("expected finite x, got NaN or infinite values; clean or drop these rows")
        if bool((self.y < 0).any()):
            raise InputError(f"expected class indices from 0 as labels, got {int(self.y.min())}")
        if len(torch.unique(self.y)) < 2:
            raise InputError(f"expected at least 2 classes in y, got {self.y[:1].tolist()} only")
        if self.groups is not None and (self.groups.shape != (len(self.y),) or self.groups.dtype != np.int64):
            raise InputError(
                f"expected groups (int64) of shape ({len(self.y)},), one number per example, got {self.groups.dtype}"
                f" {self.groups.shape}"
            )

    @classmethod
    def of(cls, x: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Population:
        """From arrays of any numeric type: x becomes float32, y int64 (from integers); groups are numbers or texts."""
        labels = np.asarray(y)
        if labels.dtype.kind == "f" and not (np.isfinite(labels).all() and (labels == np.floor(labels)).all()):
            raise InputError("expected integers as labels, the indices of classes, got other numbers")
        together = None if groups is None else numbered(groups)
        return cls(torch.as_tensor(np.asarray(x, dtype=np.float32)), torch.as_tensor(labels.astype(np.int64)), together)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.y.max()) + 1

    def flip(self, models: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models, (models, n) bool: fair coin flips, one for each group, in complementary pairs.

        Models 0, 2, 4, ... are flipped independently; model 2k + 1 is trained on the examples that model 2k is not, so
        that an attack on one leaves the other out (`Signals.references`).
        """
        units, unit = self._units
        heads = np.random.default_rng([seed, 0xF11B]).random(((models + 1) // 2, units)) < 0.5
        paired: NDArray[np.bool_] = np.stack([heads, ~heads], axis=1).reshape(-1, units)[:models]
        return paired if self.groups is None else paired[:, unit]

    def part(self, rows: NDArray[np.int64]) -> Population:
        """Some of the examples, with their groups."""
        at = torch.from_numpy(rows)
        return Population(self.x[at], self.y[at], None if self.groups is None else self.groups[rows])

    def sample(self, member: NDArray[np.bool_], number: int) -> NDArray[np.int64]:
        """A random sample of the examples for scoring: (k,) indices in increasing order.

        Half of them are members, or as many as there are, and groups stay whole. The draw depends only on the contents
        of the examples, not on seed or order, and larger samples contain smaller ones.

        Args:
            member: (n,) bool, of the target.
            number: examples, to the nearest group.
        """
        hashes = spread(hash_examples(self.x.cpu().numpy()) ^ SAMPLING)
        units, unit = self._units
        smallest = np.full(units, np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(smallest, unit, hashes)
        place, inside = smallest[unit], int(member.sum())
        members = min(inside, max(number // 2, number - (len(self) - inside)))
        chosen = np.zeros(units, dtype=bool)
        for side, most in ((member, members), (~member, number - members)):
            candidates = np.flatnonzero(side)
            chosen[unit[candidates[np.argsort(place[candidates], kind="stable")[:most]]]] = True
        return np.flatnonzero(chosen[unit])

    def draw(self, models: int, members: int, *, seed: int) -> NDArray[np.bool_]:
        """Membership of `models` models with `members` members each, (models, n) bool: uniformly random subsets.

        Whole groups are drawn until the number is as close as possible. InputError if it is not one of 1 .. n.
        """
        if not 1 <= members <= len(self):
            raise InputError(f"expected 1 to {len(self)} members, got {members}")
        units, unit = self._units
        sizes, rng = np.bincount(unit), np.random.default_rng([seed, 0xD4A3])
        drawn = np.zeros((models, units), dtype=bool)
        for row in drawn:
            order = rng.permutation(units)
            row[order[: int(np.abs(np.cumsum(sizes[order]) - members).argmin()) + 1]] = True
        return drawn[:, unit]

    def digest(self) -> str:
        """SHA-256 of the arrays, as hex, whatever numbers name the groups."""
        h = hashlib.sha256()
        arrays = [self.x.cpu().numpy(), self.y.cpu().numpy()]
        if self.groups is not None:
            arrays.append(self._units[1])
        for a in map(np.ascontiguousarray, arrays):
            h.update(f"{a.dtype}{a.shape}".encode())
            h.update(a.data)
        return h.hexdigest()

    @property
    def _units(self) -> tuple[int, NDArray[np.int64]]:
        """Number of groups, and the group of each example, numbered in order of first appearance."""
        if self.groups is None:
            return len(self), np.arange(len(self))
        _, first, unit = np.unique(self.groups, return_index=True, return_inverse=True)
        return len(first), np.argsort(np.argsort(first))[unit]


def numbered(groups: ArrayLike) -> NDArray[np.int64]:
    """(n,) int64, equal where the groups' names (numbers or texts) are; InputError if one is missing (NaN)."""
    names = np.asarray(groups)
    if names.ndim != 1 or names.dtype.kind not in "biufUS":
        raise InputError(f"expected (n,) numbers or texts as groups, one per example, got {names.dtype} {names.shape}")
    if names.dtype.kind == "f" and np.isnan(names).any():
        raise InputError(f"{int(np.isnan(names).sum())} examples have no group (NaN); give each of them its own number")
    return names.astype(np.int64) if names.dtype.kind in "bi" else np.unique(names, return_inverse=True)[1]


Kind = Literal["multiplicative", "additive", "crop-flip"]
Labels = Literal["own", "foreign"]  # kind of the pool's labels: classes of the models' task, or of another

Answer = Tensor | Sequence[Tensor]
Explain = Callable[[nn.Module, Tensor, Tensor], Answer]
"""explain(model, x, target) -> attributions (batch, ...), native or hardened; or several, one for each explainer."""

BLOCK = 64  # number of examples that share a random generator


@dataclass(frozen=True)
class Dither:
    """How one query about an example differs from the next.

    Args:
        kind: "multiplicative": x exp(amplitude z), z standard normal; "additive": x + amplitude * scale * z, scale the
            population's standard deviation over all pixels of images (n, c, h, w), or of each feature; "crop-flip": a
            random crop of an image, as in `Recipe(augmentation="crop-flip")`.
        amplitude: 0 repeats the plain query; not used by "crop-flip".
        seed: of the draws, with the example's index and the number of the query, the same for every model.

    Raises:
        ConfigurationError, ConfigurationTypeError: an unknown kind, or a number out of range.
    """

    kind: Kind = "multiplicative"
    amplitude: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"dither: kind: expected one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        keep_number(self, "amplitude", minimum=0.0)
        check_whole("dither: seed", self.seed, 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Queries:
    """The dithered queries about the (n, ...) examples of a population."""

    x: Tensor
    dither: Dither
    scale: Tensor  # of additive dither, a number or one for each feature

    @classmethod
    def of(cls, population: Population, dither: Dither) -> Queries:
        """About this population; InputError if crops are asked of other data than images, or of too small ones."""
        x = population.x.cpu().float()
        if dither.kind == "crop-flip" and not can_crop(population):
            raise InputError(
                "crop-flip: expected images (examples, channels, height, width) that can be padded by max(height // 8,"
                f" 1) < height, width, got {tuple(x.shape)}"
            )
        image = x.dim() == 4 and min(x.shape[2:]) > 1
        return cls(x, dither, x.std(correction=0) if image else x.std(0, correction=0))

    def __call__(self, index: Sequence[int] | NDArray[np.int64] | range, number: int) -> Tensor:
        """The query of this number, counted from 0, about these examples: (len(index), ...) float32 on the CPU."""
        at = np.asarray(index, dtype=np.int64)
        x = self.x[torch.from_numpy(at)]
        if self.dither.kind == "crop-flip":
            return self._cropped(x, at, number)
        drawn = np.empty(x.shape, np.float32)
        for here, place, rng in self._blocks(at, number):
            drawn[here] = rng.standard_normal((int(place.max()) + 1, *x.shape[1:]), dtype=np.float32)[place]
        z = torch.from_numpy(drawn)
        if self.dither.kind == "multiplicative":
            return x * z.mul_(self.dither.amplitude).exp_()
        return x + z.mul_(self.dither.amplitude) * self.scale

    def _cropped(self, x: Tensor, at: NDArray[np.int64], number: int) -> Tensor:
        pad = padding(x)
        drawn = np.empty((3, len(at)), np.int64)
        for here, place, rng in self._blocks(at, number):
            drawn[:, here] = rng.integers(0, [[2 * pad + 1], [2 * pad + 1], [2]], (3, BLOCK))[:, place]
        rows, columns, mirrored = torch.from_numpy(drawn)
        return shift_and_flip(x, rows, columns, mirrored.bool())

    def _blocks(
        self, at: NDArray[np.int64], number: int
    ) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.int64], np.random.Generator]]:
        """For each block of examples: which of `at` are in it, their places there, and its generator."""
        blocks = at // BLOCK
        for block in np.unique(blocks):
            mask = blocks == block
            yield mask, at[mask] - block * BLOCK, np.random.default_rng([self.dither.seed, 0xD17E, number, int(block)])


def with_channels_last(model: nn.Module, x: Tensor) -> nn.Module:
    """The network with weights in channels-last format, twice as fast for convolutions on a CPU. Not changed if it has
    none, or if outputs or gradients for (n, ...) inputs change by more than rounding."""
    if x.dim() != 4 or not any(p.dim() == 4 and p.device.type == "cpu" for p in model.parameters()):
        return model

    def answers() -> tuple[Tensor, Tensor]:
        some = x[:2].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            out = model(some)
            return out.detach(), torch.autograd.grad(out.sum(), some)[0]

    try:
        before = answers()
        model.to(memory_format=torch.channels_last)
        near = [torch.allclose(a, b, 1e-3, 1e-4 * float(a.abs().max())) for a, b in zip(before, answers(), strict=True)]
    except Exception:  # a view that this layout does not allow; other errors are raised when the model is queried
        near = [False]
    return model if all(near) else model.to(memory_format=torch.contiguous_format)


def can_crop(population: Population) -> bool:
    """Whether these are images that can be reflect-padded for crops."""
    return population.x.dim() == 4 and padding(population.x) < min(population.x.shape[2:])


def levels_of(patience: Sequence[int]) -> tuple[int, ...]:
    """The levels above one query, in increasing order; ConfigurationError if one is not an integer of at least 1."""
    return tuple(sorted({check_whole("patience", level, 1) for level in patience} - {1}))


def batches(n: int, size: int) -> Iterator[range]:
    """0 .. n - 1 in parts of this size."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))


def device_of(model: nn.Module) -> torch.device:
    """Device of a model's parameters."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
