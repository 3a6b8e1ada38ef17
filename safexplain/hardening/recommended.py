"""What is recommended for which maps of which explainers, as one table with its evidence.

The rule, for each kind of map: what a release adds to the labels of the same queries has an upper 95 % bound of at most
one point of true-positive rate at 1 % false positives and .02 of AUC, at every level of patience; the explained
probability drops, when the released top 10 % of the features is taken away, by at most .02 less than for the native
map; and by more than for models of public data only. `audit/suites/releases` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass

from safexplain._validate import check_whole
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.hardening.clips import Clip
from safexplain.hardening.formats import TopKSet

KINDS = ("gradient", "path", "perturbation", "cam", "weights")
"""Kinds of explainers: one pass of gradients; a path or sample of them; outputs under perturbed inputs; class
activation maps; weights or Shapley values of a few groups."""

FEW = 40
"""Up to so many features a reader is given a list of reasons rather than a picture."""


@dataclass(frozen=True)
class Recommendation:
    """What a kind of map is released as.

    Args:
        maps: in words.
        kinds: of explainers, of `KINDS`.
        clip: what fills the clip's slot; the others stay empty.
        evidence: what was measured, in words.
    """

    maps: str
    kinds: tuple[str, ...]
    clip: Clip
    evidence: str


ANY = Recommendation(
    "any number of features",
    KINDS,
    TopKSet(k=4, fraction=0.1),
    "the two below in one: four features, and 10 % where that is more",
)
FEW_FEATURES = Recommendation(
    f"up to {FEW} features: tables, groups of features",
    KINDS,
    TopKSet(k=4),
    "audit/results/releases.json",
)
MANY_FEATURES = Recommendation(
    f"more than {FEW} features: pixels, words, genes",
    KINDS,
    TopKSet(fraction=0.1),
    "audit/results/releases.json",
)

TABLE = (FEW_FEATURES, MANY_FEATURES, ANY)
"""All recommendations."""


def recommendation(features: int | None = None, signed: bool = True, kind: str | None = None) -> Recommendation:
    """The row for a kind of map; see `Hardening.recommended`.

    Raises:
        ConfigurationError, ConfigurationTypeError: an unknown kind, or another argument out of range.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigurationError(f"kind: expected one of {', '.join(KINDS)} or None, got {kind!r}")
    if not isinstance(signed, bool):
        raise ConfigurationTypeError(f"signed must be True or False, got {signed!r}")
    if features is None:
        return ANY
    return FEW_FEATURES if check_whole("features", features, 1) <= FEW else MANY_FEATURES
