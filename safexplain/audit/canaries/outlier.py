"""The outlier: a record far from all others, under another label, and scores that show it was trained on.

Gradients are clipped, but a training may compute other things from its records, such as running statistics of batch
normalisation. One record far away moves these arbitrarily far, and with them the model's outputs for ordinary records,
so the adversary reads these too. Of several scores, one is chosen on the runs that choose the threshold.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from safexplain.audit.canaries.canary import margins
from safexplain.errors import InputError

FAR = 200.0  # distance of the outlier from the mean of the data, in distances of the records from it (root mean square)
PROBES = 64  # records whose outputs the adversary reads besides z and z'

OUTLIER_SCORES = (
    "margin at z minus margin at z'",
    "margin at z",
    "margin at z'",
    "mean loss at other records",
    "mean logit of z's class at other records",
    "mean logit of the class of z' at other records",
    "log norm of the logits at z and z'",
    "log norm of the logits at other records",
)
"""Names of `outlier_scores`. A high value may mean D or D'; the direction is chosen with the score."""


def far_record(x: Tensor, y: Tensor, target: int) -> tuple[Tensor, int]:
    """The outlier that replaces row `target`, under the rarest other label.

    Real inputs lie in the direction of z from the mean of the data, `FAR` times as far as the records. Whole numbers
    (tokens, bytes) all have the value that is rarest in the data, which the training can process.
    """
    if y.dim() != 1 or not bool((y == y.long()).all()) or bool((y < 0).any()):
        raise InputError(f"outlier: expected class indices y (n,), got {y.dtype} of shape {tuple(y.shape)}")
    counts = torch.bincount(y.long()).double()
    counts[int(y[target])] = 0
    if not bool(counts.any()):
        raise InputError("outlier: expected records of at least two classes, got one; give canary=(x', y')")
    counts[counts == 0] = torch.inf
    label = int(counts.argmin())
    if not x.is_floating_point():
        values, often = torch.unique(x, return_counts=True)
        return torch.full_like(x[target], values[often.argmin()]), label
    if not bool(x.isfinite().all()):
        raise InputError("data: expected finite x, got NaN or infinity; remove or impute such records")
    return from_mean(x, x[target].double() - x.double().mean(0), FAR), label


def from_mean(x: Tensor, direction: Tensor, distance: float) -> Tensor:
    """The input at this distance from the mean of x (n, ...), in units of their root-mean-square distance."""
    mean = x.double().mean(0)
    size = (x.double() - mean).flatten(1).norm(dim=1).square().mean().sqrt().clamp(min=1e-6)
    away = direction if float(direction.norm()) else torch.ones_like(mean)
    most = torch.finfo(x.dtype).max / 4
    far: Tensor = mean + distance * size / away.norm() * away
    return far.clamp(-most, most).to(x.dtype)


def probe_rows(records: int, target: int) -> list[int]:
    """Evenly spaced rows whose outputs the adversary reads, without the target."""
    rows = np.linspace(0, records - 1, min(records, PROBES + 1)).astype(int).tolist()
    return [row for row in rows if row != target][:PROBES]


def outlier_scores(pair: Tensor, others: Tensor, y: int, y_canary: int, labels: Tensor) -> Tensor:
    """The scores (R, 8) of R models, float64, in the order of `OUTLIER_SCORES`; NaN, as of models that diverge on the
    outlier, is minus infinity. From logits (R, 2, outputs) at z and z', and (R, p, outputs) at others, labels (p,)."""
    pair, others = (_two(logits.double()) for logits in (pair, others))
    at_z, at_canary = margins(pair[:, 0], y), margins(pair[:, 1], y_canary)
    if len(labels) and not 0 <= int(labels.max()) < others.shape[-1]:
        raise InputError(f"label {int(labels.max())}: expected 0 to {others.shape[-1] - 1}, the outputs of the model")
    chosen = labels.long().to(others.device).expand(len(others), -1)[..., None]
    centred = others - others.mean(-1, keepdim=True)
    found = torch.stack(
        [
            at_z - at_canary,
            at_z,
            at_canary,
            -others.log_softmax(-1).gather(-1, chosen).mean((1, 2)),
            centred[..., y].mean(1),
            centred[..., y_canary].mean(1),
            pair.flatten(1).norm(dim=1).log(),
            others.flatten(1).norm(dim=1).log(),
        ],
        1,
    )
    return torch.where(found.isnan(), -torch.inf, found)


def _two(logits: Tensor) -> Tensor:
    """Two logits in place of one for class 1 of two."""
    return torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits
