"""Checks of what mechanisms are given, before anything is trained, drawn or charged."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any, Literal, get_args

import numpy as np

from safexplain.dp.linear.inputs import check_classes
from safexplain.errors import ConfigurationError, ConfigurationTypeError

Infeasible = Literal["raise", "mark"]


def check_infeasible(infeasible: Any) -> None:
    """Raise ConfigurationError unless this is one of `Infeasible`."""
    if infeasible not in get_args(Infeasible):
        raise ConfigurationError(f'infeasible: expected "raise" or "mark", got {infeasible!r}')


def check_target(target: Any) -> None:
    """Raise ConfigurationError unless this is a finite number."""
    if isinstance(target, bool) or not isinstance(target, int | float | np.number):
        raise ConfigurationTypeError(f"target: expected a number, got {target!r}")
    try:
        finite = math.isfinite(target)
    except (OverflowError, TypeError):
        finite = False
    if not finite:
        raise ConfigurationError(f"target: expected a finite score, got {target!r}")


def plain_classes(classes: Any) -> tuple[Any, ...]:
    """The labels as plain Python values, which JSON takes, in their order.

    Raises:
        ConfigurationError: not a list of at least two different labels.
    """
    try:
        labels = () if isinstance(classes, (str, bytes, Set)) else tuple(classes)  # a set has no order
        check_classes(labels)
    except (TypeError, ConfigurationError):
        raise ConfigurationError(
            f"classes: expected a list of at least two different labels of one kind, got {classes!r}"
        ) from None
    return tuple(label.item() if hasattr(label, "item") else label for label in labels)


def wanted_label(labels: list[Any], favourable: Any) -> Any:
    """The favourable label; None: the second of two.

    Raises:
        ConfigurationError: none of the labels, or not said which of several.
    """
    if favourable is None and len(labels) == 2:
        return labels[1]
    if favourable is None:
        raise ConfigurationError(f"favourable: which of the labels {labels} is wanted? Pass favourable=, one of them")
    if favourable not in labels:
        raise ConfigurationError(f"favourable: expected one of the labels {labels}, got {favourable!r}")
    return favourable
