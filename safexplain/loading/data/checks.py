"""The data of an audit, and checks of the data and of their fit to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.errors import InputError
from safexplain.loading.files import as_input_error

MINIMUM_ROWS = 10
"""Smallest number of members, and of non-members, of an audit."""


@dataclass(frozen=True)
class AuditData:
    """Examples, labels and membership.

    Attributes:
        x: float32 (n, ...), inputs of the model: images (n, channels, height, width) in [0, 1], tables (n, columns).
        y: int64 (n,), classes counted from 0.
        member: bool (n,), whether the model was trained on the row.
        class_names: Name of each class, if the labels were names.
        feature_names: Name of each column of a table.
        sha256: Hexadecimal SHA-256 of the file; for several files, of their digests in a fixed order.
        source: Path of the data.
        groups: (n,) numbers or names, equal for rows of one group, such as one person; None: no groups.
        slices: Name -> (n,) whole numbers or names; results are also reported for each value.
        scaled: Whether x are 8-bit images divided by 255 and not normalised further.
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

    def rows(self, selected: NDArray[np.bool_]) -> AuditData:
        """The rows marked in `selected`, (n,) bool."""
        groups = None if self.groups is None else self.groups[selected]
        slices = {name: values[selected] for name, values in self.slices.items()}
        x, y, member = self.x[selected], self.y[selected], self.member[selected]
        return replace(self, x=x, y=y, member=member, groups=groups, slices=slices)


def check_data(data: AuditData, *, num_classes: int | None, both_sides: bool = True) -> tuple[str, ...]:
    """Warnings, one sentence each, about classes that occur only among members or only among non-members; data on which
    an audit would fail or be meaningless are refused. `num_classes`: outputs of the model, if known.

    Raises:
        InputError: x is not (n, ...); lengths differ; fewer than 10 members or, if `both_sides`, non-members; NaN or
            infinite values; labels negative, of one class only, or beyond the model's outputs.
    """
    n = len(data.x)
    if data.x.ndim < 2 or data.x.size == 0:
        raise InputError(
            f"x: expected shape (n, ...), one row for each of at least {MINIMUM_ROWS} examples, got {data.x.shape}"
        )
    columns: dict[str, NDArray[Any]] = {"y": data.y, "member": data.member, **data.slices}
    if data.groups is not None:
        columns["groups"] = data.groups
    for name, column in columns.items():
        if column.ndim != 1 or len(column) != n:
            raise InputError(f"{name}: expected shape ({n},), one entry for each row of x, got {column.shape}")
    inside, source = int(data.member.sum()), data.source
    if both_sides and inside in (0, n):
        lack = "non-members; add rows that the model was" if not inside else "members; add rows that the model was not"
        raise InputError(f"all {n} rows are {lack} trained on")
    if both_sides and min(inside, n - inside) < MINIMUM_ROWS:
        raise InputError(
            f"expected at least {MINIMUM_ROWS} members and {MINIMUM_ROWS} non-members, got {inside} and {n - inside};"
            " add rows"
        )
    if not inside:
        raise InputError(f"{source} marks none of its {n} rows as a member; add rows that the model was trained on")
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
        f"x holds {count} NaN or infinite values, the first in row {row} (counted from 0), {column}; fill or remove"
        " them as for training"
    )


def _check_labels(data: AuditData, num_classes: int | None) -> None:
    low, high = int(data.y.min()), int(data.y.max())
    if low < 0:
        raise InputError(f"y: expected classes counted from 0, got the label {low}")
    if low == high:
        raise InputError(f"every row has the label {low}; an audit needs examples of at least two classes")
    if num_classes is not None and high >= num_classes:
        row = int((data.y >= num_classes).argmax())
        outputs = f"labels 0 to {num_classes - 1}, as the model has {num_classes} outputs"
        raise InputError(f"y: expected {outputs}; got {int(data.y[row])} in row {row}")


def _lopsided_classes(data: AuditData) -> tuple[str, ...]:
    inside, outside = set(data.y[data.member].tolist()), set(data.y[~data.member].tolist())
    names, warnings = data.class_names or (), list[str]()
    for side, classes in (("members", sorted(inside - outside)), ("non-members", sorted(outside - inside))):
        shown = ", ".join([names[c] if c < len(names) else str(c) for c in classes[:5]] + ["..."] * (len(classes) > 5))
        if classes:
            warnings.append(f"classes that occur only among {side}: {shown}; their labels alone reveal membership")
    return tuple(warnings)


def check_model_fits(model: nn.Module, data: AuditData) -> int:
    """The number of classes k, from outputs (2, k) of two rows, in evaluation mode, on the model's own device.
    InputError: the model fails on such rows, or does not return finite scores for two or more classes."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(np.ascontiguousarray(data.x[[0, -1]])).to(device)
    came = f"rows of shape {tuple(x.shape[1:])} from {data.source}"
    remedy = "; give the data the shape of the training data"
    with as_input_error(f"the model fails on {came}", remedy), torch.no_grad():
        scores = model(x)
    if not isinstance(scores, Tensor):
        raise InputError(
            f"the model: expected a tensor of scores (n, classes), got a {type(scores).__name__}; change its forward"
        )
    shape = tuple(scores.shape)
    if shape in ((2,), (2, 1)):
        raise InputError(
            f"the model: expected a column of scores for each class, got one score a row (shape {shape} for 2 rows);"
            " wrap a two-class model so that it returns torch.stack([-score, score], dim=1)"
        )
    if scores.ndim != 2 or shape[0] != 2:
        raise InputError(f"the model: expected scores of shape (2, classes) for 2 rows, got {shape}")
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"the model returns NaN or infinite scores for {came}; check its weights and the data")
    return shape[1]
