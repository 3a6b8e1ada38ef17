"""Networks of which many stand side by side in one flat tensor, with the clipped gradient sums of all at once.

theta has the shape (runs, P). A run's parameters are its layers in order, each a matrix (out, in + 1) in row-major
order whose last column is the bias; a `LinearHead` without a bias is (out, in). The gradient of a linear layer for one
example is the outer product of delta, the gradient with respect to its outputs, and its inputs (a, 1), so the squared
norm of an example's gradient is the sum over layers of ||delta||^2 ||(a, 1)||^2 (Goodfellow 2015, 1510.01799, section
4), and no example's gradient has to be formed to clip it. `torch.func` forms them: on one core, vmap of grad takes 30
to 90 times as long for 446-128-30, 600-128-100 and 768-32-10 networks on 125 to 500 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from safexplain._validate import check_whole
from safexplain.dp.heads.closed_form import Rows, clipped_sum, logit_gradient
from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import ConfigurationError

__all__ = ["MLP", "Activation", "LinearHead", "Network"]


@dataclass(frozen=True)
class LinearHead:
    """One linear layer."""

    features: int
    classes: int
    bias: bool = True
    one_logit: bool = False  # for two classes, one vector of weights (logistic regression) instead of two

    def __post_init__(self) -> None:
        check_sizes(self.features, (), self.classes)
        if self.one_logit and self.classes != 2:
            raise ConfigurationError(f"one_logit is for 2 classes, got {self.classes}")

    @property
    def outputs(self) -> int:
        """Rows of the weight matrix."""
        return 1 if self.one_logit else self.classes

    @property
    def parameters(self) -> int:
        """P."""
        return self.outputs * (self.features + self.bias)

    @property
    def numbers_per_row(self) -> int:
        """Logits, residuals and what is scaled, norms and factors."""
        return 3 * self.outputs + 4

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P) zeros; the generator is not used."""
        return torch.zeros(runs, self.parameters, device=device, dtype=dtype)

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """(runs, P): for each run, sum over the batch of the clipped gradients of each example's cross-entropy.

        Rows are the same for all runs; weights (runs, b), or (1, b), are factors on the examples.
        """
        return clipped_sum(self._matrices(theta), rows, weight, clipping).flatten(1)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (runs, P) and x (n, d) -> (runs, n, outputs)."""
        return affine(self._matrices(theta), x, self.bias)

    def _matrices(self, theta: Tensor) -> Tensor:
        return theta.view(len(theta), self.outputs, self.features + self.bias)


Activation = Literal["tanh", "relu"]


@dataclass(frozen=True)
class MLP:
    """Linear layers with biases, and an activation between two."""

    features: int
    hidden: tuple[int, ...]  # units of each hidden layer
    classes: int
    activation: Activation = "tanh"
    bias: ClassVar[bool] = True
    one_logit: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ConfigurationError("hidden: expected at least one layer, got none; use LinearHead")
        object.__setattr__(self, "hidden", tuple(self.hidden))
        check_sizes(self.features, self.hidden, self.classes)
        if self.activation not in get_args(Activation):
            raise ConfigurationError(f"activation: expected one of {get_args(Activation)}, got {self.activation!r}")

    @property
    def outputs(self) -> int:
        """The classes."""
        return self.classes

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(out, in + 1) of each layer."""
        return tuple((o, i + 1) for i, o in pairwise((self.features, *self.hidden, self.classes)))

    @property
    def parameters(self) -> int:
        """P."""
        return sum(o * i for o, i in self.shapes)

    @property
    def numbers_per_row(self) -> int:
        """Activations and deltas of each layer, twice for the widest one, norms and factors."""
        widths = (*self.hidden, self.classes)
        return 2 * sum(widths) + 2 * max(widths) + 4

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P), each run drawn as by `torch.nn.Linear`: uniform within 1 / sqrt(in) for weights and biases."""
        theta = torch.empty(runs, self.parameters, device=device, dtype=dtype)
        for layer in self.layers(theta):
            bound = (layer.shape[2] - 1) ** -0.5
            layer.copy_(torch.empty_like(layer).uniform_(-bound, bound, generator=generator))
        return theta

    def layers(self, theta: Tensor) -> list[Tensor]:
        """(runs, P) -> views (runs, out, in + 1)."""
        parts = torch.split(theta, [o * i for o, i in self.shapes], dim=1)
        return [part.view(len(theta), *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """As `LinearHead.clipped_sum`, of rows with a bias.

        An example whose forward pass is not finite makes its run's sum NaN: that training has diverged.
        """
        outs, deltas = self._passes(self.layers(theta), rows)
        factors = _factors(outs, deltas, rows.norms, weight, clipping)
        total = torch.empty_like(theta)
        for i, (delta, into) in enumerate(zip(deltas, self.layers(total), strict=True)):
            if factors is not None:
                delta.mul_(factors.unsqueeze(1))
            if i:
                into[..., :-1] = delta @ outs[i - 1].mT
                into[..., -1] = delta.sum(2)
            else:
                into.copy_((delta.flatten(0, 1) @ rows.x).view_as(into))
        return total

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (runs, P) and x (n, d) -> (runs, n, outputs)."""
        first, *rest = self.layers(theta)
        z = affine(first, x, True)
        for layer in rest:
            z = (z.tanh() if self.activation == "tanh" else z.relu()) @ layer[..., :-1].mT + layer[:, None, :, -1]
        return z

    def _passes(self, layers: list[Tensor], rows: Rows) -> tuple[list[Tensor], list[Tensor]]:
        """Forward and back: outputs of the hidden layers, and the delta of every layer, each (runs, units, b)."""
        first, outs = layers[0], []
        z = (first.reshape(-1, first.shape[2]) @ rows.x.T).view(*first.shape[:2], len(rows.x))
        for layer in layers[1:]:
            outs.append(z.tanh_() if self.activation == "tanh" else z.relu_())
            z = torch.baddbmm(layer[..., -1:], layer[..., :-1], outs[-1])
        deltas = [logit_gradient(z, rows.labels)]
        for layer, out in zip(reversed(layers[1:]), reversed(outs), strict=True):
            deltas.insert(0, self._back(layer[..., :-1].mT @ deltas[0], out))
        return outs, deltas

    def _back(self, gradient: Tensor, out: Tensor) -> Tensor:
        """Gradient with respect to the inputs of an activation, from that with respect to its outputs `out`."""
        if self.activation == "tanh":
            found: Tensor = torch.ops.aten.tanh_backward(gradient, out)
        else:
            found = torch.ops.aten.threshold_backward(gradient, out, 0)
        return found


Network = LinearHead | MLP
"""Any number of networks of one shape as the rows of one tensor."""


def _factors(
    outs: list[Tensor], deltas: list[Tensor], norms: Tensor, weight: Tensor | None, clipping: Clipping | None
) -> Tensor | None:
    """(runs, b) factors on the examples: their weights and the clipping of their gradients; None: 1."""
    if clipping is None:
        return weight
    squares = _squares(deltas[0]) * norms.square()
    for delta, out in zip(deltas[1:], outs, strict=True):
        squares += _squares(delta) * (_squares(out) + 1)
    norms = squares.sqrt_()
    kept = clipping.factors(norms.flatten()).view_as(norms)
    return kept if weight is None else kept * weight


def _squares(t: Tensor) -> Tensor:
    """(runs, units, b) -> (runs, b) squared norms."""
    norms: Tensor = torch.linalg.vector_norm(t, dim=1)
    return norms.square_()


def affine(matrices: Tensor, x: Tensor, bias: bool) -> Tensor:
    """(runs, out, columns) and (n, d) -> (runs, n, out)."""
    weight = matrices[..., : x.shape[1]]
    flat = (x @ weight.reshape(-1, x.shape[1]).T).view(len(x), *matrices.shape[:2]).transpose(0, 1)
    return flat + matrices[:, None, :, -1] if bias else flat


def check_sizes(features: int, hidden: tuple[int, ...], classes: int) -> None:
    """Raise ConfigurationError unless these are sizes of a network."""
    for name, value, least in (("features", features, 1), *(("hidden", h, 1) for h in hidden), ("classes", classes, 2)):
        check_whole(name, value, least)
