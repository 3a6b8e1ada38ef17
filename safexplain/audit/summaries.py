"""Summaries: numbers computed from one map, which an attack can compare between models.

`l1`, `l2` and `variance` tell how large a map is. The others do not change when the map is multiplied by a positive
number: they survive clipping to a norm and normalisation, and tell how a map is shaped. Each of these is 0 for a map of
zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def _l1(a: Tensor) -> Tensor:
    return a.abs().sum(1)


def _l2(a: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(a, dim=1)
    return norm


def _by_rms(numbers: Tensor, a: Tensor) -> Tensor:
    rms = _l2(a) / a.shape[1] ** 0.5
    return torch.where(rms > 0, numbers / rms, 0.0)


SUMMARIES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": _l1,
    "l2": _l2,
    "variance": lambda a: a.var(1, correction=0),
    "mean": lambda a: _by_rms(a.mean(1), a),
    "positive": lambda a: (a > 0).double().mean(1),
    "support": lambda a: (a != 0).double().mean(1),
    "sparsity": lambda a: _by_rms(a.abs().mean(1), a),
    "peak": lambda a: _by_rms(a.abs().amax(1), a),
}
"""Name -> function of maps (batch, d), giving (batch,). With RMS = sqrt(mean a_j^2):

    l1        sum |a_j|
    l2        sqrt(sum a_j^2)
    variance  mean (a_j - mean a)^2 over all entries (Huang et al., Algorithm 1)
    mean      (mean a_j) / RMS, from -1 to 1
    positive  share of entries above 0
    support   share of entries that are not 0
    sparsity  l1 / (l2 sqrt d) = (mean |a_j|) / RMS: 1 where all |a_j| are equal, 1 / sqrt(d) where one entry is not 0
              (the ratio in Hoyer's measure, JMLR 5 (2004), section 3.1)
    peak      (max |a_j|) / RMS, from 1 to sqrt(d)
"""


def summarise(maps: Tensor, names: Sequence[str] = tuple(SUMMARIES)) -> dict[str, Tensor]:
    """The summaries of each map.

    Args:
        maps: (batch, ...), flattened to (batch, d) and taken as float64.
        names: which summaries, of `SUMMARIES`.

    Returns:
        Name -> (batch,) float64, on the device of the maps.
    """
    rows = maps.reshape(len(maps), -1).double()
    return {name: SUMMARIES[name](rows) for name in names}
