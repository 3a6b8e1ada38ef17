"""Scores of trained models: the higher, the more likely the model comes from world a, that with the target record z.

arXiv 2511.21804, Algorithm 1, line 23. The margin is the logit-scaled confidence of Carlini et al. (2112.03570, VI-A).
"""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from safexplain.audit.canaries.canary import RecordScenario
from safexplain.errors import ConfigurationError, InputError

__all__ = ["gradient_scores", "margins", "record_scores"]


def margins(logits: Tensor, y: int) -> Tensor:
    """Log of p_y / (1 - p_y), where p is the softmax of the logits, or the sigmoid of one logit for class 1 of two.

    Args:
        logits: (R, outputs).
        y: the label.

    Returns:
        (R,).
    """
    outputs = logits.shape[-1]
    if not 0 <= y < max(2, outputs):
        raise InputError(f"label {y}: expected 0 to {max(2, outputs) - 1} for {outputs} outputs; classes count from 0")
    if outputs == 1:
        return logits[..., 0] if y == 1 else -logits[..., 0]
    others = [c for c in range(outputs) if c != y]
    return logits[..., y] - logits[..., others].logsumexp(-1)


def record_scores(logits_z: Tensor, logits_c: Tensor, y: int, y_canary: int, scenario: RecordScenario) -> Tensor:
    """Scores of R models for a record canary.

    | scenario | score |
    |---|---|
    | crafted, natural | margin at z minus margin at z' |
    | mislabelled | logit of y minus logit of y' at the input that z and z' share |

    Args:
        logits_z: (R, outputs) at the input of z.
        logits_c: (R, outputs) at the input of z'; not read where it is the same.
        y: label of z.
        y_canary: label of z'.
        scenario: the canary's.

    Returns:
        (R,), higher in world a.

    Raises:
        ConfigurationError: unknown scenario.
        InputError: logits of another shape, or labels out of range.
    """
    if scenario not in get_args(RecordScenario):
        raise ConfigurationError(
            f"scenario: record scores are for {', '.join(get_args(RecordScenario))}, got {scenario!r}; a gradient"
            " canary has gradient_scores"
        )
    if logits_z.dim() != 2 or logits_z.shape != logits_c.shape:
        raise InputError(
            f"logits: expected two of shape (R, outputs), got {tuple(logits_z.shape)} and {tuple(logits_c.shape)}"
        )
    if scenario == "mislabelled":
        if y == y_canary:
            raise InputError(f"a mislabelled canary has another label than its target, got {y} for both")
        if logits_z.shape[1] == 1:
            return margins(logits_z, y)
        if not (0 <= y < logits_z.shape[1] and 0 <= y_canary < logits_z.shape[1]):
            raise InputError(f"labels {y} and {y_canary}: expected 0 to {logits_z.shape[1] - 1}; classes count from 0")
        return logits_z[:, y] - logits_z[:, y_canary]
    return margins(logits_z, y) - margins(logits_c, y_canary)


def gradient_scores(theta: Tensor, theta0: Tensor, coordinate: int, drift: Tensor | float | None = None) -> Tensor:
    """Scores of R models for a gradient canary: how far its parameter has gone down, beyond the drift.

    World a's gradient +C moves the parameter down by lr C / B at each step that has it in the batch, world b's up.

    Args:
        theta: (R, P) parameters now.
        theta0: (R, P) or (P,) parameters at the start.
        coordinate: of the canary.
        drift: what the parameter has moved by now in a run without the target, a number or (R,); None: 0. It centres
            the scores of both worlds on 0.

    Returns:
        (R,), higher in world a.

    Raises:
        InputError: tensors of other shapes, or no such parameter.
    """
    if theta.dim() != 2 or theta0.shape not in (theta.shape, theta.shape[1:]):
        raise InputError(
            f"theta: expected (R, P), and theta0 (R, P) or (P,), got {tuple(theta.shape)} and {tuple(theta0.shape)}"
        )
    if not 0 <= coordinate < theta.shape[1]:
        raise InputError(f"coordinate: expected 0 to {theta.shape[1] - 1}, got {coordinate}")
    moved = theta[:, coordinate] - theta0[..., coordinate]
    return (0.0 if drift is None else torch.as_tensor(drift).to(moved)) - moved
