"""What explanations of a fine-tuned model tell about the pre-training data, beside its prediction and its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain import Hardening, Probability
from safexplain.audit import Population, Shadows, collect_signals
from safexplain.audit.attacks import JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio
from safexplain.verdict.judgement import WHOLE_MAP

from .evaluate import Against, judged

KEY = b"a key of the evidence, not secret"
RELEASES = {
    "native": Hardening.none(),
    "recommended": Hardening.recommended(),
    "ranks with noise": Hardening.ranked(key=KEY),
}
"""InputXGradient of the probability as it is, and released through `Hardening.recommended()` and `.ranked()`."""


@dataclass(eq=False)
class Releases:
    """InputXGradient of every class from one forward pass, through every release."""

    asked: tuple[nn.Module, Tensor] | None = None
    maps: Tensor | None = None

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
        """As `collect_signals` asks: one answer for each of `RELEASES`."""
        if self.asked is None or self.asked[0] is not model or self.asked[1] is not x:
            self.asked, self.maps = (model, x), every_class(model, x)
        assert self.maps is not None
        native = self.maps[torch.arange(len(x), device=x.device), target]
        return [h(native, inputs=x, target=target, method="InputXGradient") for h in RELEASES.values()]


def every_class(model: nn.Module, x: Tensor) -> Tensor:
    """(b, classes, ...) InputXGradient of the probability of each class, as Captum's."""
    inputs = x.detach().requires_grad_()
    p = Probability(model)(inputs)
    each = [torch.autograd.grad(p[:, c].sum(), inputs, retain_graph=True)[0] for c in range(p.shape[1])]
    return (x[:, None] * torch.stack(each, dim=1)).detach()


def measure(shadows: Shadows, pool: Population, classes: int, targets: int) -> dict[str, Any]:
    """Every release of the explanations, and the prediction and the label, each attacked by the same ratios."""
    before = [(p, p.requires_grad) for model in shadows.models for p in model.parameters()]
    for p, _ in before:
        p.requires_grad_(False)
    try:
        signals = collect_signals(
            shadows, pool, Releases(), patience=(1,), labels="foreign", classes=range(classes), batch_size=200
        )
    finally:
        for p, required in before:
            p.requires_grad_(required)
    member, kinds = signals.membership, len(RELEASES)
    values: dict[str, Any] = {name: signals.values[name] for name in ("label", "prediction")}
    joint = JointLikelihoodRatio("identity")
    against = {"label": Against("label", LabelLikelihoodRatio()), "prediction": Against("prediction", joint)}
    assert signals.attributions is not None
    whole = np.split(signals.attributions, kinds, axis=2)
    norms = signals.values["class_l1"].reshape(*member.shape, classes, kinds)
    for k, name in enumerate(RELEASES):
        values[f"{name}: l1"] = signals.values["l1"][..., k]
        values[f"{name}: {WHOLE_MAP}"] = whole[k]
        values[f"{name}: class_l1"] = norms[..., k]
        against[f"{name}, L1 of the predicted class"] = Against(f"{name}: l1", LikelihoodRatio())
        against[f"{name}, whole map of the predicted class"] = Against(f"{name}: {WHOLE_MAP}", LikelihoodRatio())
        against[f"{name}, L1 of all classes"] = Against(f"{name}: class_l1", JointLikelihoodRatio("auto"))
        both = np.concatenate([values["prediction"], np.log(np.maximum(values[f"{name}: l1"], 1e-30))[..., None]], 2)
        values[f"{name}: both"] = both
        against[f"{name}, L1 of the predicted class and prediction"] = Against(f"{name}: both", joint)
    return judged(against, values, member, targets)
