"""Scores of the favourable outcome of a network, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.errors import InputError

NO_DERIVATIVE = (
    "model: expected an output that torch can differentiate with respect to x; compute it from x with torch, without"
    " detach(), numpy() or no_grad()"
)


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and restore its modes afterwards."""
    trained = [module for module in network.modules() if module.training]
    try:
        for module in trained:
            module.training = False
        yield
    finally:
        for module in trained:
            module.training = True


class NetworkScore:
    """Scores of rows by a network, in batches; network and `favourable` class as for `network_recourse`. Geometry uses
    float64; rows are rounded to the network's type before scoring, as in production."""

    def __init__(self, network: nn.Module, *, favourable: int = 1, batch_size: int = 8192) -> None:
        parameters = [p for p in network.parameters() if p.is_floating_point()]
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self.dtype = parameters[0].dtype if parameters else torch.get_default_dtype()
        self.home = torch.device("cpu") if self.device.type == "mps" else self.device  # mps lacks float64
        self.batch_size = batch_size
        self.precision = max((torch.finfo(p.dtype).eps for p in parameters), default=torch.finfo(self.dtype).eps)
        self._network, self._favourable = network, favourable

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
        try:
            out = self._network(rows)
        except RuntimeError as error:
            if "requires grad" in str(error):
                raise InputError(f"{NO_DERIVATIVE} ({error})") from error
            if "shape" not in str(error) and "size" not in str(error):
                raise
            raise InputError(f"x: the model fails on rows of {rows.shape[1]} features ({error})") from error
        n, wanted = len(rows), self._favourable
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        if shape in ((n,), (n, 1)) and wanted in (0, 1):
            logit: Tensor = out.reshape(n)
            return logit if wanted else -logit
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != n or wanted >= out.shape[1]:
            raise InputError(
                f"model: expected logits of shape ({n},), ({n}, 1) or ({n}, k) for {n} rows, with a column for class"
                f" {wanted}, got {shape}"
            )
        lead: Tensor = out[:, wanted] - out[:, torch.arange(out.shape[1]) != wanted].amax(dim=1)
        return lead


def scores_of(
    network: nn.Module, rows: NDArray[np.float64], *, favourable: int = 1, batch_size: int = 8192
) -> NDArray[np.float64]:
    """(n,) scores of (n, d) rows, in evaluation mode."""
    score = NetworkScore(network, favourable=favourable, batch_size=batch_size)
    with evaluation_mode(network):
        found = score.values(torch.from_numpy(rows).to(score.home))
    return np.asarray(found.cpu().numpy(), dtype=np.float64)


def _slope(outcome: Tensor, leaf: Tensor) -> Tensor:
    if not outcome.requires_grad:
        raise InputError(NO_DERIVATIVE)
    try:
        return torch.autograd.grad(outcome.sum(), leaf)[0]
    except RuntimeError as error:  # NotImplementedError is one
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"{NO_DERIVATIVE} ({error})") from error
