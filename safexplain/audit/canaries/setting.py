"""A DP training whose runs can be computed side by side: a linear head on fixed features.

The presets have paper C's sizes on synthetic data, to try the audit without your own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from safexplain._privacy_loss import Steps
from safexplain.audit.canaries.batched import LinearHead
from safexplain.audit.canaries.canary import check_data, check_records
from safexplain.dp.accounting import noise_multiplier
from safexplain.dp.heads.closed_form import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import Claim


@dataclass(frozen=True, eq=False)
class Setting:
    """Data, network, training and the claim of the training.

    Args:
        name: for readers.
        x: (n, d) floating-point features, as the training sees them.
        y: (n,) class indices.
        recipe: of the training.
        claim: its mechanism has the sample rate and steps of `recipe`, and the noise multiplier of the training.
        auxiliary: (x, y) records outside the training data, from which the natural canary is chosen.
        initial: (P,) initial parameters of all runs, each row of weights followed by its bias; None: zeros.

    Raises:
        ConfigurationError: recipe and claim contradict each other.
        InputError: the data do not fit.
    """

    name: str
    x: Tensor
    y: Tensor
    recipe: HeadRecipe
    claim: Claim
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
        if self.initial is not None and self.initial.shape != (self.network.parameters,):
            raise InputError(f"initial: expected {self.network.parameters} numbers, got shape {self.initial.shape}")
        m = self.mechanism
        if (m.sample_rate, m.steps) != (self.recipe.sample_rate, self.recipe.steps) or m.sampling == "fixed-size":
            raise ConfigurationError(
                f"claim: expected the mechanism of the recipe, {self.recipe.steps} steps with Poisson batches at"
                f" sample rate {self.recipe.sample_rate:g}; got {m}"
            )
        if self.recipe.clipping is None:
            raise ConfigurationError("recipe: expected a clipping, without which there is no claim; got None")

    @property
    def mechanism(self) -> Steps:
        """The mechanism of the claim and of the training.

        Raises:
            ConfigurationError: the claim has none.
        """
        if self.claim.mechanism is None:
            raise ConfigurationError("claim: expected one with a mechanism, got none; give Claim(Steps(...), delta)")
        return self.claim.mechanism

    @cached_property
    def network(self) -> LinearHead:
        """The trained network."""
        return LinearHead(self.x.shape[1], self.recipe.classes, self.recipe.bias, self.recipe.one_logit)

    def to(self, device: torch.device | str) -> Setting:
        """The setting with its data on a device."""
        auxiliary = None if self.auxiliary is None else (self.auxiliary[0].to(device), self.auxiliary[1].to(device))
        initial = None if self.initial is None else self.initial.to(device)
        return replace(self, x=self.x.to(device), y=self.y.to(device), auxiliary=auxiliary, initial=initial)

    def describe(self) -> Mapping[str, Any]:
        """Description of the training and data as plain values by name."""
        r, m = self.recipe, self.mechanism
        return {
            "name": self.name,
            "records": len(self.x),
            "network": f"linear head {self.x.shape[1]} - {r.outputs}, {self.network.parameters:,} parameters",
            "optimizer": f"DP-{r.optimizer.upper() if r.optimizer == 'sgd' else 'Adam'}, learning rate {r.lr:g}",
            "clipping": repr(r.clipping),
            "noise_multiplier": m.noise_multiplier,
            "sample_rate": m.sample_rate,
            "expected_batch_size": r.expected_batch_size,
            "steps": m.steps,
        }


DELTA = 1e-5

AUXILIARY = 500  # records outside the data, for the natural canary


class Preset(NamedTuple):
    """A row of the table; other values are those of arXiv 2511.21804, table A1."""

    summary: str
    records: int
    features: int
    classes: int
    one_logit: bool = False  # one vector of weights for two classes, without a constant
    lr: float = 0.001


PRESETS = {
    "logit-768": Preset("one logit on 768 features, 500 records (image features)", 500, 768, 2, one_logit=True),
    "softmax-768": Preset("10 classes on 768 features, 500 records", 500, 768, 10),
    "logit-384": Preset(
        "one logit on 384 features (sentence embeddings); 2,000 records for the paper's 55,000",
        2000, 384, 2, one_logit=True, lr=0.01,
    ),
}  # fmt: skip

EPSILON, RATE, STEPS, CLIP = 10.0, 0.25, 500, 2.0
"""Of all presets: epsilon under substitution, to which the noise is calibrated; sample rate, steps, clipping bound."""


def preset(name: str) -> Setting:
    """A training by name.

    Raises:
        ConfigurationError: unknown.
    """
    if name not in PRESETS:
        known = "; ".join(f"{key}: {row.summary}" for key, row in PRESETS.items())
        raise ConfigurationError(f"preset: expected one of {known}; got {name!r}")
    row = PRESETS[name]
    recipe = HeadRecipe(
        classes=row.classes,
        steps=STEPS,
        sample_rate=RATE,
        expected_batch_size=RATE * row.records,
        clipping=FlatClipping(CLIP),
        lr=row.lr,
        bias=not row.one_logit,
        one_logit=row.one_logit,
    )
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(row.classes, (row.records + AUXILIARY,), generator=generator)
    means = torch.randn(row.classes, row.features, generator=generator) / 4
    x = means[y] + torch.randn(len(y), row.features, generator=generator)
    claim = Claim(Steps(noise_multiplier(EPSILON, RATE, STEPS, DELTA), RATE, STEPS), DELTA)
    own, others = (x[: row.records], y[: row.records]), (x[row.records :], y[row.records :])
    return Setting(name, *own, recipe, claim, auxiliary=others)
