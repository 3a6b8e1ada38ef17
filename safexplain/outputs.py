"""Which number is explained: the probability of the class, or its logit."""

from __future__ import annotations

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
