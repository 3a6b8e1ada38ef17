"""Exact zeros, which a clip to a fixed size cannot hide: they get keyed random values below all others."""

from __future__ import annotations

import torch
from torch import Tensor

from safexplain.errors import InputError
from safexplain.hardening.noise import keyed_normal


def vanishes(tensor: Tensor) -> Tensor:
    """Where a value is zero, or NaN or infinite and so about to be."""
    return (tensor == 0) | ~tensor.isfinite()


def fill_zeros(rows: Tensor, seeds: list[bytes] | None, *, whole_rows_only: bool) -> Tensor:
    """Put keyed random numbers, smaller than all others, where a clip could not hide that a coordinate is zero."""
    zero = rows == 0
    concerned = zero.all(1) if whole_rows_only else zero.any(1)
    for i in concerned.nonzero().flatten().tolist():
        if seeds is None:
            raise InputError("zeros in an explanation get keyed random values before they are scaled: pass inputs=")
        drawn = keyed_normal([seeds[i]], rows.shape[1], b"direction", rows)[0]
        if (negative := bool((rows[i] < 0).any())) != bool((rows[i] > 0).any()):  # a single sign, which they must share
            drawn = -drawn.abs() if negative else drawn.abs()
        smallest = rows[i][~zero[i]].abs().amin() if not bool(zero[i].all()) else drawn.new_tensor(1.0)
        if smallest < torch.finfo(rows.dtype).tiny * 2.0**40:  # smaller ones would vanish; only ranks matter here
            rows[i] *= 2.0**80
            smallest = smallest * 2.0**80
        rows[i] = torch.where(zero[i], drawn * (smallest / 16), rows[i])
    return rows
