"""What is recommended for which maps of which explainers, as one table with its evidence.

The rule, for each kind of map: what a release adds to the labels of the same queries has an upper 95 % bound of at most
one point of true-positive rate at 1 % false positives and .02 of AUC, at every level of patience; the explained
probability drops, when the released top 10 % of the features is taken away, by at most .02 less than for the native
map; and by more than for models of public data only. `audit/suites/releases` measures it, and
docs/evidence/releases.md has the figures.
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
"""Up to so many features, or groups of them, a map is read as a table rather than as a picture."""


@dataclass(frozen=True)
class Recommendation:
    """What a kind of map is released as.

    Args:
        maps: in words.
        few: whether they have at most `FEW` numbers.
        signed: whether these have both signs.
        kinds: of explainers, of `KINDS`.
        clip: what fills the clip's slot; the others stay empty.
        evidence: where it was measured: data, models, explainer.
    """

    maps: str
    few: bool
    signed: bool
    kinds: tuple[str, ...]
    clip: Clip
    evidence: tuple[str, ...]


TOP: Clip = TopKSet(k=4, fraction=0.1)
"""The four features that count most, or a tenth of them where that is more: the one format that met the rule wherever
it was measured, and so what is right where nothing is known of the maps. Graded ones met it in some cells only: three
balanced `Levels` for gradients of few signed features, for example, and neither for integrated gradients nor for maps
of one sign."""

TABLE = (
    Recommendation(
        "tables and other maps of few features",
        True,
        True,
        ("gradient", "path"),
        TOP,
        ("HELOC, MLP, InputXGradient", "HELOC, MLP, IG"),
    ),
    Recommendation(
        "weights of columns, or of groups of features",
        True,
        True,
        ("perturbation", "cam", "weights"),
        TOP,
        ("HELOC, gradient boosting, LIME", "digits, MLP, KernelShap of 16 groups"),
    ),
    Recommendation(
        "pictures with signs",
        False,
        True,
        KINDS,
        TOP,
        (
            "digits, MLP, InputXGradient",
            "digits, MLP, IG",
            "digits, MLP, FeatureAblation",
            "CIFAR-10, small CNN, InputXGradient",
            "GTSRB, small CNN, InputXGradient",
        ),
    ),
    Recommendation(
        "pictures of one sign",
        False,
        False,
        KINDS,
        TOP,
        ("digits, MLP, Saliency",),
    ),
)
"""What was measured, by kind of map and of explainer."""


def recommendation(features: int | None = None, signed: bool = True, kind: str | None = None) -> Clip:
    """What fills the clip's slot for a kind of map; see `Hardening.recommended`.

    Raises:
        ConfigurationError, ConfigurationTypeError: an unknown kind, or another argument out of range.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigurationError(f"kind: expected one of {', '.join(KINDS)} or None, got {kind!r}")
    if not isinstance(signed, bool):
        raise ConfigurationTypeError(f"signed must be True or False, got {signed!r}")
    if features is None:
        return TOP
    few = check_whole("features", features, 1) <= FEW
    for row in TABLE:
        if (row.few, row.signed) == (few, signed) and (kind is None or kind in row.kinds):
            return row.clip
    return TOP
