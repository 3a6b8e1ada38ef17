"""What a classifier returns: logits or probabilities, their log odds, and which number is explained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from safexplain.errors import InputError


class Probability(nn.Module):
    """A classifier with softmax on its logits: explanations of it are of the predicted probability.

    Gradients of the probability carry the factor p (1 - p), so their size tells how sure the model is, and on its
    members it is surer. Gradients of the logit leak far less (`docs/concepts.md`).

    Args:
        model: (batch, ...) -> logits (batch, classes).
    """

    _network, _explains = "model", b"probability"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def training(self) -> bool:
        """The mode of the classifier, which is all that a softmax has; `train` and `eval` set it there."""
        return bool(getattr(self.model, "training", False))

    @training.setter
    def training(self, mode: bool) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities (batch, classes)."""
        logits: Tensor = self.model(x)
        if logits.dim() != 2:
            raise InputError(f"expected logits of shape (batch, classes), got {tuple(logits.shape)}")
        return logits.softmax(1)


def are_probabilities(out: Tensor) -> bool:
    """Whether every row of (batch, classes) outputs is non-negative and sums to 1 already."""
    return bool((out >= 0).all()) and bool(((out.sum(1) - 1).abs() < 1e-4).all())


def log_probabilities(p: Tensor) -> Tensor:
    """Logarithms of probabilities, which are taken as at least 1e-30."""
    return p.clamp_min(1e-30).log()


def class_log_odds(scores: Tensor) -> Tensor:
    """log p_c - log(1 - p_c) of every class c, where p = softmax(scores); finite for finite scores.

    It is s_c - logsumexp of all other scores. Where c is not the largest, p_c is at most 1/2, and log(1 - p_c) loses
    nothing; of the largest, the others are added up without it, for 1 - p_c may round to 0.

    Args:
        scores: (batch, classes) float64 logits or log probabilities.

    Returns:
        (batch, classes) float64.
    """
    log_p = scores.log_softmax(1)
    top = scores.argmax(1, keepdim=True)
    odds = log_p - torch.log1p(-log_p.exp().scatter(1, top, 0.0))
    others = scores.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return odds.scatter(1, top, scores.gather(1, top) - others).clamp(-1e300, 1e300)
