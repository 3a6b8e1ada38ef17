"""The attack without reference models: compare the signal itself with a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats
from safexplain.errors import InputError


@dataclass(frozen=True)
class Threshold:
    """Training examples have small losses and small, calm explanations, so a low signal says "member".

    Shokri, Strobel & Zick, arXiv 1907.00164, section 3 (variance of the explanation); Yeom et al., arXiv 1709.01604
    (loss). The score is the negated signal; the threshold itself is chosen when the score is read (`tpr_at_fpr`).

    Args:
        member_when_low: False for signals that are high on members, such as confidence.
    """

    member_when_low: bool = True

    def __call__(
        self, target: Floats, shadows: Floats | None = None, membership: Bools | None = None
    ) -> NDArray[np.float64]:
        """Score every example by its signal alone; `shadows` and `membership` are not used.

        Args:
            target: (n,) signal of the target model.
            shadows: ignored.
            membership: ignored.

        Returns:
            (n,) scores, higher says "member".

        Raises:
            InputError: the signal is not one finite number per example.
        """
        signal = np.asarray(target, dtype=np.float64)
        if signal.ndim != 1 or not np.isfinite(signal).all():
            raise InputError(f"Threshold needs one finite number per example, got shape {signal.shape}")
        return -signal if self.member_when_low else signal
