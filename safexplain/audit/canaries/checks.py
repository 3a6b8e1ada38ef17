"""Checks of the data that canaries are made for."""

from __future__ import annotations

import torch
from torch import Tensor

from safexplain.audit.canaries.model import Model
from safexplain.errors import InputError

__all__ = ["at_least_single", "check_data", "check_records", "check_target"]


def at_least_single(x: Tensor) -> Tensor:
    """Half precision raised to float32, anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_data(network: Model, x: Tensor, y: Tensor) -> None:
    """Raise InputError unless a network can be trained on the records x (n, ...), y (n,)."""
    check_records("data", network, x, y)
    if len(x) < 2 or bool((y == y[0]).all()):
        raise InputError(f"data: expected records of at least two classes, got {len(x)} of class {int(y[0])} alone")


def check_records(name: str, network: Model, x: Tensor, y: Tensor) -> None:
    """Raise InputError unless these are records that a network takes: finite x (n, ...) and class indices y (n,)."""
    if x.dim() < 2 or not x.numel():
        raise InputError(f"{name}: expected x of shape (n, ...) with at least one record, got {tuple(x.shape)}")
    features = getattr(network, "features", None)
    if features is not None and (x.shape[1:] != (features,) or not x.is_floating_point()):
        raise InputError(f"{name}: expected real x of shape (n, {features}), got {x.dtype} of {tuple(x.shape)}")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        rows = (~x.flatten(1).isfinite().all(1)).nonzero()
        raise InputError(
            f"{name}: x must be finite, got NaN or infinity in {len(rows)} of {len(x)} records, the first is row"
            f" {int(rows[0])}; remove or impute them"
        )
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(
            f"{name}: expected a class index for each of {len(x)} records, got {y.dtype} of shape {tuple(y.shape)}"
        )
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= network.classes:
        raise InputError(f"{name}: expected labels 0 to {network.classes - 1}, got {low} to {high}")


def check_target(target: int, n: int) -> None:
    """Raise InputError unless it is a row."""
    if not 0 <= target < n:
        raise InputError(f"target: expected a row from 0 to {n - 1}, got {target}")
