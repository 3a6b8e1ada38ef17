"""The data of an audit, and everything that can be wrong with it, by itself and for the model that is to take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.errors import InputError
from safexplain.loading.files import described

__all__ = ["MINIMUM_ROWS", "AuditData", "check_data", "check_model_fits"]

MINIMUM_ROWS = 10
"""Fewest members, and fewest non-members, that an audit takes."""


@dataclass(frozen=True)
class AuditData:
    """Examples, their labels, and which of them the audited model was trained on.

    Attributes:
        x: float32 (n, ...), as the model takes it: images (n, channels, height, width) in [0, 1], tables (n, columns).
        y: int64 (n,), classes counted from 0.
        member: bool (n,), true where the model was trained on the row.
        class_names: Name of each class, where the labels were names.
        feature_names: Name of each column of a table.
        sha256: Hexadecimal SHA-256 of the file; of several files, of their digests in a fixed order.
        source: Where the data came from.
        groups: (n,) numbers or names, equal for rows that belong together, as of one person; None: none do.
        slices: Name -> (n,) whole numbers or names, parts of the data that are looked at on their own.
        scaled: Whether x were images of 8 bits, which have been divided by 255 and nothing else.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    member: NDArray[np.bool_]
    class_names: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    sha256: str
    source: str
    groups: NDArray[Any] | None = None
    slices: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    scaled: bool = False

    def rows(self, kept: NDArray[np.bool_]) -> AuditData:
        """The rows that `kept`, (n,) bool, marks."""
        groups = None if self.groups is None else self.groups[kept]
        slices = {name: values[kept] for name, values in self.slices.items()}
        x, y, member = self.x[kept], self.y[kept], self.member[kept]
        return replace(self, x=x, y=y, member=member, groups=groups, slices=slices)


def check_data(data: AuditData, *, num_classes: int | None, both_sides: bool = True) -> tuple[str, ...]:
    """Refuse data on which an audit would fail or mean nothing.

    Args:
        data: The data.
        num_classes: Outputs of the model, where they are known (`check_model_fits`).
        both_sides: Whether members and non-members are to be told apart; else members are enough.

    Returns:
        Warnings, one sentence each: classes seen on one side only.

    Raises:
        InputError: x is not (n, ...); lengths differ; no members, no non-members or fewer than 10 of either;
            NaN or infinite values; labels negative, of one class only, or beyond the model's outputs.
    """
    n = len(data.x)
    if data.x.ndim < 2 or data.x.size == 0:
        raise InputError(f"x has shape {data.x.shape}; expected (n, ...): one row for each of {MINIMUM_ROWS} examples")
    columns: dict[str, NDArray[Any]] = {"y": data.y, "member": data.member, **data.slices}
    if data.groups is not None:
        columns["groups"] = data.groups
    for name, column in columns.items():
        if column.ndim != 1 or len(column) != n:
            raise InputError(f"x has {n} rows but {name} has shape {column.shape}; expected ({n},): one entry a row")
    inside, source = int(data.member.sum()), data.source
    if both_sides and inside in (0, n):
        lack = "non-members; add rows that the model was" if not inside else "members; add rows that the model was not"
        raise InputError(f"all {n} rows are {lack} trained on")
    if both_sides and min(inside, n - inside) < MINIMUM_ROWS:
        raise InputError(f"{inside} members and {n - inside} non-members; expected at least {MINIMUM_ROWS} of each")
    if not inside:
        raise InputError(f"none of the {n} rows of {source} is a member, a row that the model was trained on")
    _check_finite(data)
    _check_labels(data, num_classes)
    return _lopsided_classes(data) if both_sides else ()


def _check_finite(data: AuditData) -> None:
    wrong = ~np.isfinite(data.x)
    count = int(wrong.sum())
    if not count:
        return
    row, *place = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    column = f"position {tuple(place)}"
    if len(place) == 1:
        column = f"column {place[0] if data.feature_names is None else repr(data.feature_names[place[0]])}"
    raise InputError(
        f"x holds {count} values that are NaN or infinite, the first in row {row} (counted from 0), "
        f"{column}; fill or remove them as was done for the training"
    )


def _check_labels(data: AuditData, num_classes: int | None) -> None:
    low, high = int(data.y.min()), int(data.y.max())
    if low < 0:
        raise InputError(f"y holds the label {low}; classes are counted from 0")
    if low == high:
        raise InputError(f"every row has the label {low}; an audit needs examples of at least two classes")
    if num_classes is not None and high >= num_classes:
        row = int((data.y >= num_classes).argmax())
        outputs = f"the model has {num_classes} outputs: labels must be 0 to {num_classes - 1}"
        raise InputError(f"row {row} has the label {int(data.y[row])}, but {outputs}")


def _lopsided_classes(data: AuditData) -> tuple[str, ...]:
    inside, outside = set(data.y[data.member].tolist()), set(data.y[~data.member].tolist())
    names, warnings = data.class_names or (), list[str]()
    for side, classes in (("members", sorted(inside - outside)), ("non-members", sorted(outside - inside))):
        shown = ", ".join([names[c] if c < len(names) else str(c) for c in classes[:5]] + ["..."] * (len(classes) > 5))
        if classes:
            warnings.append(f"classes that occur among the {side} only: {shown}; the label alone then tells membership")
    return tuple(warnings)


def check_model_fits(model: nn.Module, data: AuditData) -> int:
    """Run two rows through a model in evaluation mode, on any device.

    Returns:
        The number of classes k, from outputs of shape (2, k).

    Raises:
        InputError: the model does not take such rows, or does not return finite scores for two classes or more.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(np.ascontiguousarray(data.x[[0, -1]])).to(device)
    came = f"rows of shape {tuple(x.shape[1:])} from {data.source}"
    remedy = "; bring the data into the shape that the model was trained on"
    with described(f"the model does not take {came}", remedy), torch.no_grad():
        scores = model(x)
    if not isinstance(scores, Tensor):
        raise InputError(
            f"the model returns a {type(scores).__name__}; let its forward return one tensor of scores (n, classes)"
        )
    shape = tuple(scores.shape)
    if shape in ((2,), (2, 1)):
        raise InputError(
            f"the model returns one score a row (shape {shape} for 2 rows); an audit needs a column for each "
            "class for now: wrap a two-class model so that it returns torch.stack([-score, score], dim=1)"
        )
    if scores.ndim != 2 or shape[0] != 2:
        raise InputError(f"the model returns shape {shape} for 2 rows; expected (2, classes)")
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"the model returns NaN or infinite scores for {came}; check its weights and the data")
    return shape[1]
