"""Paper C's networks that are trained from scratch: MLPs that stand side by side in one flat tensor, as heads do.

theta has the shape (runs, P). A run's parameters are its layers in order, each a matrix (out, in + 1) in row-major
order whose last column is the bias. The gradient of a linear layer for one
example is the outer product of delta, the gradient with respect to its outputs, and its inputs (a, 1), so the squared
norm of an example's gradient is the sum over layers of ||delta||^2 ||(a, 1)||^2 (Goodfellow 2015, 1510.01799, section
4), and no example's gradient has to be formed to clip it. `torch.func` forms them: on one core, vmap of grad takes 30
to 90 times as long for 446-128-30, 600-128-100 and 768-32-10 networks on 125 to 500 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from safexplain._validate import check_whole
from safexplain.audit.canaries.run import Setting, affine
from safexplain.dp.heads import Rows, logit_gradient
from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import ConfigurationError

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
        for name, value in (("features", self.features), *(("hidden", h) for h in self.hidden)):
            check_whole(name, value, 1)
        check_whole("classes", self.classes, 2)
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


@dataclass(frozen=True, eq=False)
class MLPSetting(Setting):
    """A setting whose network is an MLP; initial None: drawn anew for each run."""

    hidden: tuple[int, ...] = ()

    @cached_property
    def network(self) -> MLP:
        """What is trained."""
        return MLP(self.x.shape[1], self.hidden, self.recipe.classes)

    def describe(self) -> Mapping[str, Any]:
        """What was trained on what, plain values by name."""
        layers = " - ".join(map(str, (self.x.shape[1], *self.hidden, self.recipe.outputs)))
        return {**super().describe(), "network": f"MLP {layers}, {self.network.parameters:,} parameters"}
