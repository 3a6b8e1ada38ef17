"""Amounts as whole numbers, so that sums are exact: ten charges of 0.1 are 1.0, in whatever order they are added.

Epsilon and delta are counted in 1e-30 after being cut to 15 significant decimal digits, which is what a double is sure
to hold: 0.1 + 0.2 counts as 0.3, and three charges of a third fill a budget of 1. Nothing above 0 counts as 0. Budgets
are counted as they stand. What is promised thus holds up to a relative 1e-14 in epsilon and delta. Losses (of a Renyi
or Gaussian rule) come from floating-point formulas; they are counted in 1e-18 and rounded up by more than the formulas'
error.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache

AMOUNT = 10**30
LOSS = 10**18
NEVER = 10**60
"""An infinite loss."""

_CUT = Context(prec=15, rounding=ROUND_FLOOR)
_EXACT = Context(prec=60)
_MARGIN = 1e-9


@lru_cache(maxsize=4096)
def charged(value: float) -> int:
    """Epsilon or delta of a release, in units of 1e-30; at least one unit, but for 0."""
    units = int(_EXACT.multiply(_CUT.create_decimal(repr(value)), Decimal(AMOUNT)))
    return units or int(value > 0)


@lru_cache(maxsize=4096)
def budgeted(value: float) -> int:
    """Epsilon or delta of a budget, in units of 1e-30."""
    return int(_EXACT.multiply(Decimal(repr(value)), Decimal(AMOUNT)))


def amount(units: int) -> float:
    """Units of 1e-30 as a number."""
    return units / AMOUNT


def charged_loss(value: float) -> int:
    """Loss of a release, in units of 1e-18, rounded up."""
    units = value * (1 + _MARGIN) * LOSS
    return min(NEVER, math.ceil(units)) if math.isfinite(units) else NEVER


def budgeted_loss(value: float) -> int:
    """Loss that a rule allows, in units of 1e-18."""
    return max(0, math.floor(value * LOSS))


def loss(units: int) -> float:
    """Units of 1e-18 as a number."""
    return units / LOSS if units < NEVER else math.inf
