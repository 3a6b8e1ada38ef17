"""Score of the favourable outcome of a network, and its gradient, for rows that a search tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

Score = Callable[[Tensor], Tensor]

NO_DERIVATIVE = (
    "score: its output does not depend on x in a way that torch can differentiate; compute it from x with torch,"
    " without detach(), numpy() or no_grad()"
)


@contextmanager
def evaluation_mode(score: Score | nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode and back; whatever is not a network is left alone."""
    trained = [m for m in score.modules() if m.training] if isinstance(score, nn.Module) else []
    try:
        for module in trained:
            module.training = False
        yield
    finally:
        for module in trained:
            module.training = True


class NetworkScore:
    """What a search asks of a model: scores of rows, with or without gradients, a batch at a time.

    Geometry is in float64; rows are rounded to the model's type before the model sees them, so that what is scored is
    what its user will score. Parameters are not touched: gradients are taken with respect to the rows alone.

    Args:
        score: (n, d) rows -> (n,) scores, or a network whose output is (n,) or (n, 1), the logit of class 1, or (n, k)
            logits.
        favourable: of a network, the class that is wanted: its logit minus the largest other one is the score.
        batch_size: rows that the model sees at once.

    Raises:
        ConfigurationError: not a score, not a class, or `favourable` beside a callable, which says itself what it
            scores.
    """

    def __init__(self, score: Score | nn.Module, *, favourable: int = 1, batch_size: int = 8192) -> None:
        network = isinstance(score, nn.Module)
        if not callable(score) or isinstance(score, type):
            raise ConfigurationTypeError(
                f"score: expected a torch module, or a function of a tensor of rows, got {score!r}; for a linear model"
                " use linear_recourse(coef, intercept, x)"
            )
        favourable = whole_number("favourable", favourable, 0)
        if not network and favourable != 1:
            raise ConfigurationError(
                f"favourable: expected 1 beside a callable, got {favourable}; a callable returns the score itself,"
                " higher is better: negate it there, or pass the network"
            )
        parameters = [p for p in score.parameters() if p.is_floating_point()] if isinstance(score, nn.Module) else []
        first = parameters[0] if parameters else None
        self.device = torch.device("cpu") if first is None else first.device
        self.dtype = torch.get_default_dtype() if first is None else first.dtype
        self.home = torch.device("cpu") if self.device.type == "mps" else self.device  # has no float64
        self.batch_size = batch_size
        self.precision = max((torch.finfo(p.dtype).eps for p in parameters), default=torch.finfo(self.dtype).eps)
        self._score, self._network, self._favourable = score, network, favourable

    def values(self, rows: Tensor) -> Tensor:
        """(n,) float64 scores of (n, d) float64 rows; -inf where the model returns none."""
        with torch.no_grad():
            return self._joined([self._outcome(part.to(self.device, self.dtype)) for part in self._parts(rows)])

    def gradients(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) scores and their (n, d) gradients; 0 where a gradient is not finite."""
        values, slopes = [], []
        for part in self._parts(rows):
            with torch.enable_grad():
                leaf = part.detach().to(self.device, self.dtype, copy=True).requires_grad_()
                outcome = self._outcome(leaf)
                slopes.append(_slope(outcome, leaf))
            values.append(outcome.detach())
        slope = torch.cat(slopes).to(self.home, torch.float64)
        return self._joined(values), slope.nan_to_num(0.0, 0.0, 0.0)

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self.batch_size) if len(rows) else (rows,)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).to(self.home, torch.float64).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def _outcome(self, rows: Tensor) -> Tensor:
        """(n,) scores, as the model returns them."""
        try:
            out = self._score(rows)
        except RuntimeError as error:
            if "requires grad" in str(error):
                raise InputError(f"{NO_DERIVATIVE} ({error})") from error
            if "shape" not in str(error) and "size" not in str(error):
                raise
            raise InputError(f"x: the model does not take rows of {rows.shape[1]} features ({error})") from error
        n = len(rows)
        if not isinstance(out, Tensor):
            raise InputError(f"score: expected a tensor, got {type(out).__name__}; return the logits themselves")
        if not self._network:
            if out.shape != (n,):
                raise InputError(f"score: expected shape ({n},) for {n} rows, got {tuple(out.shape)}; one score a row")
            return out
        if out.shape in ((n,), (n, 1)) and self._favourable in (0, 1):
            logit = out.reshape(n)
            return logit if self._favourable else -logit
        if out.ndim != 2 or len(out) != n or not 0 <= self._favourable < out.shape[1]:
            raise InputError(
                f"model: expected logits of shape ({n},), ({n}, 1) or ({n}, k) for {n} rows, with a column for class"
                f" {self._favourable}, got {tuple(out.shape)}"
            )
        others = [k for k in range(out.shape[1]) if k != self._favourable]
        return out[:, self._favourable] - out[:, others].amax(dim=1)


def scores_of(
    score: Score | nn.Module, rows: NDArray[np.float64], *, favourable: int = 1, batch_size: int = 8192
) -> NDArray[np.float64]:
    """(n,) scores of (n, d) rows, in evaluation mode; arguments and errors as `NetworkScore`."""
    asked = NetworkScore(score, favourable=favourable, batch_size=batch_size)
    with evaluation_mode(score):
        found = asked.values(torch.from_numpy(rows).to(asked.home))
    return np.asarray(found.cpu().numpy(), dtype=np.float64)


def _slope(outcome: Tensor, leaf: Tensor) -> Tensor:
    """Gradient of scores with respect to their rows."""
    if not outcome.requires_grad:
        raise InputError(NO_DERIVATIVE)
    try:
        return torch.autograd.grad(outcome.sum(), leaf)[0]
    except RuntimeError as error:  # NotImplementedError is one
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"{NO_DERIVATIVE} ({error})") from error
