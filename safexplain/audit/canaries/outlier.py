"""The outlier: a record far from all others, under another label, and what shows that it was trained on.

A gradient is clipped whatever record it is of, but what else a training computes from its records is not: running
statistics of batch normalisation, means and deviations that features are standardised by, an initialisation from class
means. One record far enough away moves all of these as far as one likes, and with them what the released model says
about ordinary records. So the adversary looks at those, too: some records that are in D and in D'.

How a leak shows depends on the leak, so each run has several scores, one of which is chosen on the runs that choose the
threshold (`choose_score` of `safexplain.verdict.stats.lower_bounds`). A model that diverges where the outlier is
trained on gives it away as well: outputs that are no numbers count as a score of minus infinity.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from safexplain.audit.canaries.canary import margins
from safexplain.errors import InputError

__all__ = ["FAR", "OUTLIER_SCORES", "far_record", "from_mean", "outlier_scores", "probe_rows"]

FAR = 200.0
"""Distance of the outlier from the mean of the data, in distances of the records from it (root mean square)."""

PROBES = 64
"""Records that the adversary looks at beside z and z'."""

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
"""What `outlier_scores` gives. Each may say D or D' where it is high; what it says is chosen as well."""


def far_record(x: Tensor, y: Tensor, target: int) -> tuple[Tensor, int]:
    """The outlier that stands in place of row `target`.

    Real inputs: from the mean of the data in the direction of z, `FAR` times as far as records are from it, under the
    rarest of the other labels. Whole numbers (tokens, bytes): everywhere the value that is rarest in the data, so that
    it is one which the training can take.
    """
    if y.dim() != 1 or not bool((y == y.long()).all()) or bool((y < 0).any()):
        raise InputError(f"an outlier has another class than z: expected class indices (n,), got {y.dtype} {y.shape}")
    counts = torch.bincount(y.long()).double()
    counts[int(y[target])] = 0
    if not bool(counts.any()):
        raise InputError("an outlier has another class than z, but all records have one class; give canary=(x', y')")
    counts[counts == 0] = torch.inf
    label = int(counts.argmin())
    if not x.is_floating_point():
        values, often = torch.unique(x, return_counts=True)
        return torch.full_like(x[target], values[often.argmin()]), label
    if not bool(x.isfinite().all()):
        raise InputError("data: x must be finite, got NaN or infinity; remove or impute such records")
    return from_mean(x, x[target].double() - x.double().mean(0), FAR), label


def from_mean(x: Tensor, direction: Tensor, distance: float) -> Tensor:
    """The real input so far from the mean of x (n, ...), in distances of these from it (root mean square); along all
    features where the direction is 0."""
    mean = x.double().mean(0)
    size = (x.double() - mean).flatten(1).norm(dim=1).square().mean().sqrt().clamp(min=1e-6)
    away = direction if float(direction.norm()) else torch.ones_like(mean)
    most = torch.finfo(x.dtype).max / 4
    far: Tensor = mean + distance * size / away.norm() * away
    return far.clamp(-most, most).to(x.dtype)


def probe_rows(records: int, target: int) -> list[int]:
    """Rows that the adversary looks at: at even distances, none that the canary replaces."""
    rows = np.linspace(0, records - 1, min(records, PROBES + 1)).astype(int).tolist()
    return [row for row in rows if row != target][:PROBES]


def outlier_scores(pair: Tensor, others: Tensor, y: int, y_canary: int, labels: Tensor) -> Tensor:
    """The scores (R, 8) of R models, float64, in the order of `OUTLIER_SCORES`.

    From logits (R, 2, outputs) at z and at z', and (R, p, outputs) at other records of these labels (p,). Minus
    infinity where there is no number.
    """
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
    """One logit for class 1 of two as two."""
    return torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits
