"""Is a loop's loss the mean of what each record gives by itself? Tried before training, and watched in its first steps.

Opacus multiplies the gradients of a batch's mean by the number of its rows to have each record's own. Where the loss is
something else, that number, or the other rows, stay in a record's gradient, and so does what is clipped:

| loss of the batch | gradient that is clipped for record i | bound on what one record changes in the sum |
|---|---|---|
| mean of l_i | that of l_i | C |
| mean of w(y_i) l_i | that of w(y_i) l_i | C: the weight is the record's own |
| sum of l_i | n times that of l_i | up to 2C: n is how many others are there, and moves with the record |
| sum of w(y_i) l_i / sum of w(y_j): torch's class weights | n w(y_i) / sum of w(y_j) times that of l_i | alike |

A penalty on parameters is in no record's gradient, and a weight that is applied after clipping multiplies C; neither
can be seen here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from safexplain.errors import ConfigurationError, ConfigurationTypeError

MEAN = (
    "it must be the plain mean over the batch of what each record gives by itself; a weight of each record's own label"
    " can be given as (weight[y] * cross_entropy(output, y, reduction='none')).mean(), a penalty as weight_decay"
)
SUMMED = (
    "the loss is a sum over the batch: each record's gradient is multiplied by the number of rows, which depends on who"
    " else is in the batch and is private, so that one record can change more than the clip bound; " + MEAN
)
COUPLED = (
    "the loss divides by something of the whole batch, as the class weights of torch's losses do: each record's"
    " gradient depends on the others', so that one record can change more than the clip bound; " + MEAN
)
MOST_CLASSES = 64
WATCHED = 20
"""Batches that are looked at."""
EXACT, FAR = 2e-3, 2e-2
"""Relative difference of numbers that are equal but for rounding, and of numbers that differ."""


def check_loop_loss(loss: Callable[[Any, Any], Tensor], outputs: Tensor, targets: Tensor) -> None:
    """Raise unless a loss of outputs and targets is the mean of the losses of each row alone; tried on these.

    Where targets are class indices, rows of every class (up to 64) are tried instead, so that class weights show.

    Args:
        loss: as the loop will call it, with outputs first.
        outputs: (rows, ...), at least 2.
        targets: (rows, ...).

    Raises:
        ConfigurationError: it is a sum, depends on more than each row, is no number, or cannot be computed.
    """
    if not callable(loss):
        raise ConfigurationTypeError(f"loss: expected a function of outputs and targets, got {loss!r:.60}")
    classes = outputs.shape[1] if outputs.dim() == 2 else 0
    if classes > 1 and targets.dim() == 1 and not targets.is_floating_point():
        tried = min(classes, MOST_CLASSES)
        outputs = outputs.repeat(-(-tried // len(outputs)), 1)[:tried]
        targets = torch.arange(tried, device=targets.device).to(targets.dtype)
    rows = len(targets)
    together = _gradient(loss, outputs, targets)
    alone = torch.cat([_gradient(loss, outputs[i : i + 1], targets[i : i + 1]) for i in range(rows)])
    scale = float(alone.abs().max())
    if torch.allclose(together * rows, alone, rtol=1e-3, atol=1e-5 * scale):
        return
    summed = torch.allclose(together, alone, rtol=1e-3, atol=1e-5 * scale)
    raise ConfigurationError(f"loss: {SUMMED if summed else COUPLED}")


def _gradient(loss: Callable[[Any, Any], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    given = outputs.detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            value = loss(given, targets)
    except Exception as error:
        told = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"loss: cannot be computed for {len(targets)} rows of outputs {tuple(outputs.shape)} and targets"
            f" {tuple(targets.shape)} ({told}); expected a function of outputs and targets, as the loop calls it"
        ) from error
    if not isinstance(value, Tensor) or value.dim() or not value.requires_grad:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigurationError(
            f"loss: expected one number that depends on the outputs, got {shape}; it is what the loop calls backward()"
            " on, the mean over the batch"
        )
    return torch.autograd.grad(value, given)[0]


@dataclass(frozen=True)
class _Seen:
    """The factors on the losses of the rows of a batch."""

    rows: int
    factors: dict[int, float]
    """By label."""
    total: float
    """Of all rows."""


class LossWatch:
    """Looks at the gradients that arrive at a model's outputs, and says what is wrong with the loss they come from.

    For cross-entropy (with smoothed labels too), negative log-likelihood and binary cross-entropy, the gradient tells
    label and factor of each row. The factor times the number of rows is 1, or the same for a label in every batch; for
    a sum the factor itself is the same, and where the batch's weights are divided by, the sum of all factors is. Other
    losses are not known, and nothing is said of them.

    Args:
        model: whose forward passes in training mode are watched; its output must be one tensor (rows, classes).

    Attributes:
        problem: what was found, or None.
    """

    def __init__(self, model: nn.Module) -> None:
        self.problem: str | None = None
        self._seen: list[_Seen] = []
        self._hook = model.register_forward_hook(self._forward)

    def _forward(self, module: nn.Module, _: Any, outputs: Any) -> None:
        if (
            module.training
            and isinstance(outputs, Tensor)
            and outputs.requires_grad
            and outputs.dim() == 2
            and len(outputs) > 1
            and outputs.dtype in (torch.float32, torch.float64)
        ):
            outputs.register_hook(partial(self._backward, outputs.detach()))  # type: ignore[no-untyped-call]

    def _backward(self, outputs: Tensor, gradient: Tensor) -> None:
        new = _factors(outputs.double(), gradient.detach().double())
        if new is None:
            return
        for old in self._seen:
            self.problem = self.problem or _compared(old, new)
        self._seen.append(new)
        if self.problem or len(self._seen) == WATCHED:
            self._hook.remove()


def _compared(a: _Seen, b: _Seen) -> str | None:
    """What two batches say about the loss."""
    shared = a.factors.keys() & b.factors.keys()
    if not shared:
        return None
    ratios = [a.factors[y] / b.factors[y] for y in shared]
    if not _near(a.rows / b.rows, FAR) and all(_near(r, EXACT) for r in ratios):
        return SUMMED
    if _near(a.total / b.total, EXACT) and any(not _near(r * a.rows / b.rows, FAR) for r in ratios):
        return COUPLED
    return None


def _near(ratio: float, within: float) -> bool:
    return abs(ratio - 1) <= within  # false for NaN: a total that is not known


def _factors(outputs: Tensor, gradient: Tensor) -> _Seen | None:
    """Of each row's loss, read from its gradient; None where the loss is not known or rows of a label differ."""
    for rule in (_cross_entropy, _smoothed, _likelihood, _binary):
        found = rule(outputs, gradient)
        if found is None:
            continue
        labels, factors, told = found
        by_label = {}
        for label in sorted(set(labels[told].tolist())):
            same = factors[told & (labels == label)]
            if not float(same.min()) > 0 or float(same.max() / same.min()) > 1 + EXACT:
                break
            by_label[int(label)] = float(same.mean())
        else:
            if by_label:
                known = [({_LEFT_OUT: 0.0} | by_label).get(int(y), torch.nan) for y in labels[~told]]
                return _Seen(len(outputs), by_label, float(factors[told].sum()) + sum(known))
    return None


_Found = tuple[Tensor, Tensor, Tensor]
"""Labels, factors, and whether the factor can be told, each of shape (rows,)."""


def _cross_entropy(outputs: Tensor, gradient: Tensor) -> _Found | None:
    """Factor times (softmax - one hot). Rows that the loss leaves out have no gradient, and the factor 0."""
    if outputs.shape[1] < 2:
        return None
    shares, labels = outputs.softmax(1), gradient.argmin(1)
    lowest = gradient.gather(1, labels[:, None])[:, 0]
    rest = 1 - shares.gather(1, labels[:, None])[:, 0]
    factors = -lowest / rest
    hot = torch.zeros_like(shares).scatter_(1, labels[:, None], 1.0)
    return _fitting(gradient, factors[:, None] * (shares - hot), labels, factors, rest, shares.amax(1) < 1 - EXACT)


def _smoothed(outputs: Tensor, gradient: Tensor) -> _Found | None:
    """The same with smoothed labels: linear in the softmax over all classes but the label."""
    if outputs.shape[1] < 4:
        return None
    shares, labels = outputs.softmax(1), gradient.argmin(1)
    others = torch.ones_like(shares).scatter_(1, labels[:, None], 0.0)
    count = others.sum(1, keepdim=True)
    x, y = (others * (t - (others * t).sum(1, keepdim=True) / count) for t in (shares, gradient))
    factors = (x * y).sum(1) / x.square().sum(1)
    return _fitting(y, factors[:, None] * x, labels, factors, x.abs().amax(1), shares.amax(1) < 1 - EXACT)


def _likelihood(outputs: Tensor, gradient: Tensor) -> _Found | None:
    """Minus the factor at the label alone."""
    if outputs.shape[1] < 2:
        return None
    labels = gradient.argmin(1)
    factors = -gradient.gather(1, labels[:, None])[:, 0]
    hot = torch.zeros_like(gradient).scatter_(1, labels[:, None], 1.0)
    always = torch.ones_like(factors)
    return _fitting(gradient, -factors[:, None] * hot, labels, factors, always, always.bool())


def _binary(outputs: Tensor, gradient: Tensor) -> _Found | None:
    """Factor times (sigmoid - target) in each output; any gradient is one, so that equal factors must confirm it."""
    positive = gradient < 0
    rest = torch.where(positive, 1 - outputs.sigmoid(), outputs.sigmoid())
    told = (rest > FAR).flatten()
    return positive.long().flatten(), (gradient.abs() / rest).flatten(), told


_LEFT_OUT, _UNKNOWN = -1, -2


def _fitting(
    gradient: Tensor, expected: Tensor, labels: Tensor, factors: Tensor, rest: Tensor, moves: Tensor
) -> _Found | None:
    """What was read, if the gradients are as expected; `moves`: whether a row with any factor would have a gradient."""
    none = gradient.abs().amax(1) == 0
    told = (rest > EXACT) & ~none
    wrong = (gradient - expected).abs().amax(1) > EXACT * gradient.abs().amax(1)
    if not told.any() or (wrong & told).any():
        return None
    labels = labels.clone()
    labels[none & moves], labels[none & ~moves] = _LEFT_OUT, _UNKNOWN
    return labels, factors, told
