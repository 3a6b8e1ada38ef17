"""Attacks on prediction vectors whose classes are not those of the points' own labels: transfer membership inference.

A model is pre-trained on some data and fine-tuned to another task; its classes say nothing about the labels of the
pre-training data, but the log odds that it gives to all its classes still differ with what it was pre-trained on
(Abascal et al., "TMI! Finetuned models leak private information from their pretraining data", arXiv 2306.01181). Here
is what any attack needs to be run on them: a class to look at, and several queries. `Metaclassifier` and
`JointLikelihoodRatio` read the whole vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_whole
from safexplain.audit.attacks import Attack, Learned, LikelihoodRatio
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.errors import ConfigurationError, InputError


@dataclass(frozen=True)
class AtTargetLabel:
    """Reads the log odds of one class a point, the one that the target predicts, in all models: adapted LiRA.

    TMI, section 4.2 and Algorithm 2: the class with the target's largest log odds stands in for the true label, which
    the fine-tuned task does not have. The class is the target's for the reference models too, whatever they predict.

    Log odds that are positive in all models are still no lengths or losses, and no logarithm is to be taken of them: of
    an attack with transform="auto" the transform is "identity" here. `AtTargetLabel(LikelihoodRatio())` and
    `AtTargetLabel(LikelihoodRatio("identity"))` score alike.

    Args:
        attack: scores one number a point.

    Raises:
        ConfigurationError: not an attack, or one that reads vectors only.
    """

    attack: Attack = field(default_factory=lambda: LikelihoodRatio("identity"))

    def __post_init__(self) -> None:
        _check_attack("AtTargetLabel", self.attack)
        if isinstance(self.attack, AtTargetLabel | OverQueries | Learned):
            raise ConfigurationError(
                f"AtTargetLabel needs an attack that reads one number a point, such as LikelihoodRatio();"
                f" {type(self.attack).__name__} reads a vector (for several queries: OverQueries(AtTargetLabel(), ...))"
            )

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every point; higher says "member".

        Args:
            target: (n, k) log odds that the target gives to each of its k classes.
            shadows: (m, n, k) the same of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) scores of the attack.

        Raises:
            InputError: shapes disagree, values are not finite, there are no classes, or as the attack.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 2 or target.shape[1] < 1:
            raise InputError(f"AtTargetLabel needs the log odds of every class, (n, k), got shape {target.shape}")
        point, label = np.arange(len(target)), target.argmax(1)
        return _on_log_odds(self.attack)(target[point, label], shadows[:, point, label], membership)


@dataclass(frozen=True)
class OverQueries:
    """Adds up an attack's scores over several queries about each point, such as augmentations of it.

    For log ratios this treats the answers as independent given membership, which they are not: the order of the points
    is that of the mean, and the size of the sum is no evidence. TMI's adapted LiRA over augmentations, with a class for
    every query, is `OverQueries(AtTargetLabel(), queries)`.

    Args:
        attack: scores the answer to one query.
        queries: how many answers a point has, one after the other.

    Raises:
        ConfigurationError: not an attack, or not a whole number of at least 1.
    """

    attack: Attack
    queries: int

    def __post_init__(self) -> None:
        _check_attack("OverQueries", self.attack)
        check_whole("queries", self.queries, 1)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every point; higher says "member".

        Args:
            target: (n, queries * k), the k numbers of the first query, then those of the second, and so on.
            shadows: (m, n, queries * k) the same of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) sums of the attack's scores; for k = 1 it is given one number a point, (n,).

        Raises:
            InputError: shapes disagree, the width is not a multiple of `queries`, or as the attack.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        total = np.zeros(len(target))
        for one, many in zip(*(split_queries(a, self.queries) for a in (target, shadows)), strict=True):
            total += self.attack(one, many, membership)
        return total


def split_queries(values: Floats, queries: int) -> list[Floats]:
    """Views of (..., queries * k) numbers for each of the queries: (..., k), or (...) where k is 1.

    Raises:
        InputError: the width is not a multiple of `queries`.
    """
    k = numbers_a_query(values.shape[-1], queries)
    return [values[..., i * k] if k == 1 else values[..., i * k : (i + 1) * k] for i in range(queries)]


def numbers_a_query(width: int, queries: int) -> int:
    """k of (..., queries * k) numbers.

    Raises:
        InputError: the width is not a multiple of `queries`.
    """
    if width < queries or width % queries:
        raise InputError(
            f"expected the answers to {queries} queries one after the other, a multiple of {queries} numbers a point;"
            f" got {width}"
        )
    return width // queries


def _check_attack(owner: str, attack: Any) -> None:
    if isinstance(attack, type) or not isinstance(attack, Attack):
        raise ConfigurationError(f"{owner} needs an attack such as LikelihoodRatio(), got {attack!r:.60}")


def _on_log_odds(attack: Attack) -> Attack:
    """The attack without a choice of scale by the sign of the signal."""
    if is_dataclass(attack) and getattr(attack, "transform", None) == "auto":
        return replace(attack, transform="identity")
    return attack
