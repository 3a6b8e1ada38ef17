"""A training with DP whose runs can be computed side by side: a linear head or an MLP on fixed features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from safexplain._privacy_loss import Steps
from safexplain.audit.canaries.batched.mlp import MLP, Activation
from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.canary import check_data, check_records
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import Claim

__all__ = ["Setting"]


@dataclass(frozen=True, eq=False)
class Setting:
    """Data, network, training and what the training is said to keep.

    Args:
        name: for readers.
        x: (n, d) floating-point features, as the training sees them.
        y: (n,) class indices.
        recipe: of the training.
        claim: its mechanism has the sample rate and the steps of `recipe`; its noise multiplier is trained with.
        hidden: widths of hidden layers; none: a linear head.
        activation: between layers.
        auxiliary: (x, y) of records that are not trained on, from which the natural canary is chosen.
        initial: (P,) where all runs start, in the order of `networks`; None: zeros for a linear head, for an MLP anew
            for each run.

    Raises:
        ConfigurationError: recipe and claim contradict each other.
        InputError: the data do not fit.
    """

    name: str
    x: Tensor
    y: Tensor
    recipe: HeadRecipe
    claim: Claim
    hidden: tuple[int, ...] = ()
    activation: Activation = "tanh"
    auxiliary: tuple[Tensor, Tensor] | None = None
    initial: Tensor | None = None

    def __post_init__(self) -> None:
        if self.x.dim() != 2 or not self.x.is_floating_point():
            raise InputError(
                f"x: expected floating-point features (n, d), got {self.x.dtype} of shape {tuple(self.x.shape)}"
            )
        check_data(self.network, self.x, self.y)
        if self.auxiliary is not None:
            check_records("auxiliary records", self.network, *self.auxiliary)
        m = self.mechanism
        if (m.sample_rate, m.steps) != (self.recipe.sample_rate, self.recipe.steps) or m.sampling == "fixed-size":
            raise ConfigurationError(
                f"claim: expected the mechanism that is trained, {self.recipe.steps} steps with Poisson batches at"
                f" sample rate {self.recipe.sample_rate:g}; got {m}"
            )
        if self.recipe.clipping is None:
            raise ConfigurationError("a training without clipping makes no claim: give the recipe a clipping")

    @property
    def mechanism(self) -> Steps:
        """The claim's, which is what is trained.

        Raises:
            ConfigurationError: the claim names none.
        """
        if self.claim.mechanism is None:
            raise ConfigurationError("claim: expected one with the mechanism, which is what is trained")
        return self.claim.mechanism

    @cached_property
    def network(self) -> LinearHead | MLP:
        """What is trained."""
        features, classes = self.x.shape[1], self.recipe.classes
        if self.hidden:
            return MLP(features, self.hidden, classes, self.activation)
        return LinearHead(features, classes, self.recipe.bias, self.recipe.one_logit)

    def to(self, device: torch.device | str) -> Setting:
        """The same with its data on a device."""
        auxiliary = None if self.auxiliary is None else (self.auxiliary[0].to(device), self.auxiliary[1].to(device))
        initial = None if self.initial is None else self.initial.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), auxiliary=auxiliary, initial=initial)

    def describe(self) -> Mapping[str, Any]:
        """What was trained on what, plain values by name."""
        r, m = self.recipe, self.mechanism
        layers = " - ".join(map(str, (self.x.shape[1], *self.hidden, r.outputs)))
        return {
            "name": self.name,
            "records": len(self.x),
            "network": f"{'MLP' if self.hidden else 'linear head'} {layers}, {self.network.parameters:,} parameters",
            "optimizer": f"DP-{r.optimizer.upper() if r.optimizer == 'sgd' else 'Adam'}, learning rate {r.lr:g}",
            "clipping": repr(r.clipping),
            "noise_multiplier": m.noise_multiplier,
            "sample_rate": m.sample_rate,
            "expected_batch_size": r.expected_batch_size,
            "steps": m.steps,
        }
