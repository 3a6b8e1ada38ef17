"""What a patient attacker learns from labels alone: how often one survives queries that are each a little different.

Label-only attacks read an example's distance from the decision boundary out of the labels of its neighbours
(Choquette-Choo et al., arXiv 2007.14321; Li & Zhang, arXiv 2007.15528). Here the neighbours are the dithered queries of
which an audit of explanations averages the answers anyway: `kept@L` is the share of L queries that kept the label of
the plain one, `shares@L` that of every label. Likelihood ratios are taken on their log odds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.audit.attacks.likelihood.ratio import LikelihoodRatio
from safexplain.errors import InputError


def log_odds(share: NDArray[np.floating[Any]], level: int) -> NDArray[np.float64]:
    """Log odds of a share of `level` queries, with half a query added to either side."""
    count = np.asarray(share, dtype=np.float64) * level
    out: NDArray[np.float64] = np.log((count + 0.5) / (level - count + 0.5))
    return out


@dataclass(frozen=True)
class OwnLabelRatio:
    """Likelihood ratio of the log odds that a query gets the label which the target gave to the plain one.

    References may give another label to the plain query, and then `kept` is about that one; here all models are asked
    about the target's.
    """

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n, 1 + classes) the label of the plain query, and the log odds of every class.
            shadows: (m, n, 1 + classes) the same of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) log likelihood ratios.

        Raises:
            InputError: shapes disagree, or a label is none of the classes.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        classes = target.shape[-1] - 1
        if target.ndim != 2 or classes < 1:
            raise InputError(f"expected a label and the log odds of the classes, (n, 1 + classes), got {target.shape}")
        own = target[:, 0].astype(np.int64)
        if own.min() < 0 or own.max() >= classes:
            raise InputError(f"labels lie in 0 .. {classes - 1}, as the shares say; got {own.min()} .. {own.max()}")
        place = np.arange(len(own)), 1 + own
        return LikelihoodRatio("identity")(target[place], shadows[(slice(None), *place)], membership)
