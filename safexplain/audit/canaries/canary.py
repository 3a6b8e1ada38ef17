"""Canaries, which replace the target record z in D', and the scores of trained models.

The two data sets differ in one record (substitute adjacency): D holds z, D' holds z' instead. Scenarios are S2 to S5 of
arXiv 2511.21804, table 1. Scores are those of its Algorithm 1, line 23; a higher score says "trained on D". The margin
is the logit-scaled confidence of Carlini et al. (2112.03570, VI-A).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from safexplain.errors import InputError

RecordScenario = Literal["crafted", "mislabelled", "natural", "outlier"]
"""Scenarios in which z' is a record: S3 to S5, and the outlier."""


@dataclass(frozen=True, eq=False)
class GradientCanary:
    """Gradients +C (D) and -C (D') at one parameter, in place of the gradient of row `target`.

    The drift is how far the parameter has moved after step t of a noiseless run without the target, (steps + 1,) with a
    leading 0; for a training function after the last step only, (1,). None: unknown.
    """

    target: int
    coordinate: int  # in the flat tensor of all parameters
    drift: Tensor | None = None


FOR_FUNCTIONS = (
    'scenario: expected gradient, crafted, mislabelled or natural for this training; "outlier" and "white-box" audit'
    " your own training function"
)


@dataclass(frozen=True, eq=False)
class RecordCanary:
    """A record z' = (x, y) that replaces z, row `target`, in D'."""

    scenario: RecordScenario
    target: int
    x: Tensor  # of the shape of one record; in scenario "mislabelled" that of z
    y: int  # in scenario "crafted" that of z
    cosine: float | None = None  # of the gradients of z and z' under the reference model; lower is better
    norms: tuple[float, float] | None = None  # of the gradients of z and z', before clipping


Canary = GradientCanary | RecordCanary


def margins(logits: Tensor, y: int) -> Tensor:
    """(R,) log of p_y / (1 - p_y), where p is the softmax of the logits (R, outputs), or the sigmoid of a single logit
    for class 1 of two."""
    outputs = logits.shape[-1]
    if not 0 <= y < max(2, outputs):
        raise InputError(f"label {y}: expected 0 to {max(2, outputs) - 1} for {outputs} outputs; classes count from 0")
    if outputs == 1:
        return logits[..., 0] if y == 1 else -logits[..., 0]
    others = [c for c in range(outputs) if c != y]
    return logits[..., y] - logits[..., others].logsumexp(-1)


def record_scores(logits_z: Tensor, logits_c: Tensor, y: int, y_canary: int, scenario: RecordScenario) -> Tensor:
    """Scores (R,) of R models for a record canary, higher on D, from logits (R, outputs) at z and at z'.

    In scenario "mislabelled" the logit of y minus that of y' at the shared input, otherwise the margin at z minus the
    margin at z'. InputError: labels out of range.
    """
    if scenario == "mislabelled":
        if y == y_canary:
            raise InputError(f"mislabelled canary: expected another label than that of its target, got {y} for both")
        if logits_z.shape[1] == 1:
            return margins(logits_z, y)
        if not (0 <= y < logits_z.shape[1] and 0 <= y_canary < logits_z.shape[1]):
            raise InputError(f"labels {y} and {y_canary}: expected 0 to {logits_z.shape[1] - 1}; classes count from 0")
        return logits_z[:, y] - logits_z[:, y_canary]
    return margins(logits_z, y) - margins(logits_c, y_canary)


class Model(Protocol):
    """A classifier whose parameters are one flat tensor: a `LinearHead` or a `ModuleNetwork`."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def parameters(self) -> int:
        """Number P of parameters."""

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (1, P) and x (n, ...) -> (1, n, outputs)."""


def at_least_single(x: Tensor) -> Tensor:
    """Half precision converted to float32; others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_data(network: Model, x: Tensor, y: Tensor) -> None:
    """Raise InputError unless a network can be trained on the records x (n, ...), y (n,)."""
    check_records("data", network, x, y)
    if len(x) < 2 or bool((y == y[0]).all()):
        raise InputError(f"data: expected records of at least two classes, got {len(x)} of class {int(y[0])} alone")


def check_records(name: str, network: Model, x: Tensor, y: Tensor) -> None:
    """Raise InputError unless a network accepts these records: finite x (n, ...) and class indices y (n,)."""
    if x.dim() < 2 or not x.numel():
        raise InputError(f"{name}: expected x of shape (n, ...) with at least one record, got {tuple(x.shape)}")
    features = getattr(network, "features", None)
    if features is not None and (x.shape[1:] != (features,) or not x.is_floating_point()):
        raise InputError(f"{name}: expected real x of shape (n, {features}), got {x.dtype} of {tuple(x.shape)}")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        rows = (~x.flatten(1).isfinite().all(1)).nonzero()
        raise InputError(
            f"{name}: expected finite x, got NaN or infinity in {len(rows)} of {len(x)} records, first in row"
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
    """Raise InputError unless `target` is a row."""
    if not 0 <= target < n:
        raise InputError(f"target: expected a row from 0 to {n - 1}, got {target}")
