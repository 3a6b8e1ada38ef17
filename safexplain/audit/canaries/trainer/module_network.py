"""Any `torch.nn.Module` as a model whose parameters are one flat tensor, with the gradients of single records.

Gradients are of the cross-entropy, by `torch.func` (vmap of grad), or record by record for models that vmap refuses.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from safexplain.audit.canaries.reference import Reference, reference
from safexplain.dp.heads.closed_form import Rows
from safexplain.dp.heads.recipe import HeadOptimizer, HeadRecipe
from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import InputError

__all__ = ["ModuleNetwork", "module_gradients", "module_reference"]

_NUMBERS = 2**25
"""Numbers of gradients of single records that are held together."""
_ROWS = 2**10
"""Records whose summed gradient is taken together."""


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A module in evaluation mode (no dropout, batch normalisation by its running statistics); itself left as it is.

    Args:
        model: (n, ...) -> logits (n, classes), or (n, 1) or (n,) for class 1 of two, on the device of the data.
            Parameters that need no gradient stay as they are and are not part of theta.
        classes: how many there are.
    """

    model: nn.Module
    classes: int
    bias: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", copy.deepcopy(self.model).eval())
        if not self.trainable:
            raise InputError("model: no parameter needs a gradient; set requires_grad for those that are trained")

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Name -> parameter, in the order of the flat tensor."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parameters(self) -> int:
        """P."""
        return sum(p.numel() for p in self.trainable.values())

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P) the model's own parameters; neither the generator nor the type is used."""
        return torch.cat([p.detach().flatten() for p in self.trainable.values()]).to(device).repeat(runs, 1)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (1, P) and x (n, ...) -> (1, n, outputs)."""
        return self._outputs(theta[0], x)[None]

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Theta (P,), x (n, ...) and y (n,) -> (n, P) gradients of each record's cross-entropy, not clipped.

        They are differentiable in `x` where it needs a gradient.
        """
        one: Callable[[Tensor, Tensor, Tensor], Tensor] = grad(
            lambda theta, x, y: self._losses(theta, x[None], y[None]).sum()
        )
        try:
            return vmap(one, (None, 0, 0))(theta, x, y)
        except RuntimeError:
            return torch.stack([self._gradient(theta, x[i : i + 1], y[i : i + 1]) for i in range(len(y))])

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """Theta (1, P) -> (1, P) sum of clipped gradients over the batch."""
        weights = torch.ones_like(rows.labels) if weight is None else weight[0]
        at, total = theta[0], torch.zeros_like(theta)
        size = _ROWS if clipping is None else max(1, _NUMBERS // self.parameters)
        for x, y, w in zip(
            torch.split(rows.x, size), torch.split(rows.labels, size), torch.split(weights, size), strict=True
        ):
            if clipping is None:
                with torch.enable_grad():
                    leaf = at.detach().requires_grad_()
                    total += torch.autograd.grad((self._losses(leaf, x, y) * w).sum(), leaf)[0]
            else:
                gradients = self.gradients(at, x, y).detach()
                factors = clipping.factors(torch.linalg.vector_norm(gradients, dim=1)) * w
                total += factors @ gradients.nan_to_num(0.0, 0.0, 0.0)
        return total

    def _gradient(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradient (P,) of one record."""
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            return torch.autograd.grad(self._losses(leaf, x, y).sum(), leaf, create_graph=x.requires_grad)[0]

    def _losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        logits = self._outputs(theta, x)
        if logits.shape[1] == 1:
            return nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.to(logits), reduction="none")
        return nn.functional.cross_entropy(logits, y, reduction="none")

    def _outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """(n, outputs)."""
        trainable = self.trainable
        parts = torch.split(theta, [p.numel() for p in trainable.values()])
        state = {name: part.view_as(p) for (name, p), part in zip(trainable.items(), parts, strict=True)}
        found: Tensor = functional_call(self.model, state, (x,))
        found = found[:, None] if found.dim() == 1 else found
        if found.shape not in ((len(x), self.classes), (len(x), 1 if self.classes == 2 else self.classes)):
            raise InputError(
                f"model: expected logits of shape ({len(x)}, {self.classes}) for {self.classes} classes, got"
                f" {tuple(found.shape)}"
            )
        return found


def module_gradients(model: nn.Module, x: Tensor, y: Tensor, classes: int) -> Tensor:
    """Gradients of the cross-entropy of single records under a module's own parameters.

    Args:
        model: see `ModuleNetwork`.
        x: (n, ...) inputs.
        y: (n,) class indices.
        classes: how many there are.

    Returns:
        (n, P), differentiable in `x`.
    """
    network = ModuleNetwork(model, classes)
    return network.gradients(network.initial(1, torch.Generator(), x.device, x.dtype)[0], x, y)


def module_reference(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    classes: int,
    steps: int,
    lr: float,
    batch_size: int,
    generator: torch.Generator,
    optimizer: HeadOptimizer = "sgd",
    momentum: float = 0.0,
    clipping: Clipping | None = None,
    target: int | None = None,
    every: int | None = None,
) -> Reference:
    """The reference trainings of a module, from its own parameters on; see `reference`.

    Args:
        model: see `ModuleNetwork`.
        x: (n, ...) inputs.
        y: (n,) labels.
        classes: how many there are.
        steps: of the optimizer.
        lr: learning rate.
        batch_size: expected size of the Poisson batches; from n on, all records are in each.
        generator: of sampling, on the device of `x`.
        optimizer: "sgd" or "adam".
        momentum: of SGD.
        clipping: of the training that is audited; None: only the training without clipping is run.
        target: a row to take as the target; None: the one that the training is least sure of.
        every: read the confidence at every such step; None: about 100 times.
    """
    recipe = HeadRecipe(
        classes=classes,
        steps=steps,
        sample_rate=min(1.0, batch_size / len(x)),
        expected_batch_size=min(batch_size, len(x)),
        clipping=clipping,
        lr=lr,
        optimizer=optimizer,
        momentum=momentum,
    )
    return reference(ModuleNetwork(model, classes), x, y, recipe, generator=generator, target=target, every=every)
