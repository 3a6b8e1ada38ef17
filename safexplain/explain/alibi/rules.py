"""Which fields of an Alibi explanation leave, and how: one row for each native class.

A field or parameter that no row names does not leave. A row holds facts only; `safexplain.explain.alibi.release`
applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from safexplain.errors import RefusedError

__all__ = ["META", "ROWS", "Leave", "Rules", "kind_of"]


class Leave(Enum):
    """How a field leaves."""

    AS_IS = "as it is"
    """Copied: a rule, names, or what is computed from the query alone."""
    FRACTION = "fraction"
    """Numbers in [0, 1], hardened together as one vector and kept in [0, 1]."""
    HARDENED = "hardened"
    """Arrays of numbers, however nested, hardened."""
    GRID = "caller's grid"
    """Only if the caller gave the grid points of every feature that is explained; absent otherwise."""
    EMPTY = "empty"
    """An empty array for each native one, because Alibi's plot functions ask for the field."""
    NONE = "None"
    """None, which is also the native value where the field was not asked for."""


@dataclass(frozen=True)
class Rules:
    """What leaves an explanation of one native class.

    Args:
        fields: name of a field of `Explanation.data` -> how it leaves.
        params: names in `Explanation.meta["params"]` that leave, if their values are plain numbers, strings or
            containers of such.
        inputs: arguments of `explain` that are what is explained.
        selects: arguments of `explain` that select what is explained about the inputs.
        parts: where a field holds dictionaries, the keys of those that are hardened and leave.
        anchors: an anchor explainer.
        per_row: `inputs` hold one example a row; otherwise all of them together are one example.
        on_grid: a curve that is given between the grid points of the caller and others, to be read at the caller's.
        predictor: attribute of the native explainer that holds what it explains.
        alone: one call at a time in a process, because calls share an object that cannot be copied.
    """

    fields: Mapping[str, Leave]
    params: frozenset[str] = frozenset()
    inputs: tuple[str, ...] = ("X",)
    selects: tuple[str, ...] = ()
    parts: frozenset[str] = frozenset()
    anchors: bool = False
    per_row: bool = False
    on_grid: str | None = None
    predictor: str = "predictor"
    alone: bool = False


META = ("name", "type", "explanations", "version", "task")
"""Keys of `Explanation.meta` that leave, beside `params`."""

_SEARCH = frozenset(
    {"threshold", "delta", "tau", "batch_size", "coverage_samples", "beam_size", "stop_on_first", "max_anchor_size"}
    | {"min_samples_start", "n_covered_ex", "binary_cache_size", "cache_margin", "verbose", "verbose_every"}
)
_SEGMENTS = frozenset({"p_sample", "image_shape", "segmentation_fn", "segmentation_kwargs", "custom_segmentation"})
_WORDS = frozenset(
    {"sample_proba", "top_n", "temperature", "use_proba", "filling", "frac_mask_templates", "batch_size_lm"}
    | {"sample_punctuation"}
)
_NAMES = frozenset({"feature_names", "categorical_names", "target_names"})
_CURVES = frozenset({"percentiles", "grid_resolution"}) | _NAMES
_SHAP = frozenset({"summarise_background", "summarise_result"})

_ANCHOR = {"anchor": Leave.AS_IS, "precision": Leave.FRACTION, "coverage": Leave.FRACTION}
_GRID = {"feature_names": Leave.AS_IS, "feature_values": Leave.GRID, "feature_deciles": Leave.EMPTY}
_PD = Rules(
    fields={"pd_values": Leave.HARDENED, "ice_values": Leave.NONE, **_GRID},
    params=_CURVES | {"kind"},
    selects=("features", "kind", "grid_points"),
)

ROWS: Mapping[str, Rules] = MappingProxyType(
    {
        "AnchorTabular": Rules(fields=_ANCHOR, params=_SEARCH | {"disc_perc"}, anchors=True),
        "AnchorImage": Rules(
            fields={**_ANCHOR, "segments": Leave.AS_IS}, params=_SEARCH | _SEGMENTS, inputs=("image",), anchors=True
        ),
        "AnchorText": Rules(fields=_ANCHOR, params=_SEARCH | _WORDS, inputs=("text",), anchors=True, alone=True),
        "ALE": Rules(
            fields={"ale_values": Leave.HARDENED, "target_names": Leave.AS_IS, **_GRID},
            params=frozenset({"min_bin_points", "check_feature_resolution", "low_resolution_threshold"})
            | {"extrapolate_constant", "extrapolate_constant_perc", "extrapolate_constant_min"},
            selects=("features", "grid_points"),
            on_grid="ale_values",
        ),
        "PartialDependence": _PD,
        "TreePartialDependence": _PD,
        "PartialDependenceVariance": Rules(
            fields={
                "pd_values": Leave.HARDENED,
                "feature_importance": Leave.HARDENED,
                "feature_interaction": Leave.HARDENED,
                "conditional_importance": Leave.HARDENED,
                "conditional_importance_values": Leave.HARDENED,
                **_GRID,
            },
            params=_CURVES | {"method"},
            selects=("features", "method", "grid_points"),
            predictor="pd_explainer.predictor",
        ),
        "PermutationImportance": Rules(
            fields={
                "feature_importance": Leave.HARDENED,
                "feature_names": Leave.AS_IS,
                "metric_names": Leave.AS_IS,
            },
            params=frozenset({"feature_names", "method", "kind", "n_repeats"}),
            inputs=("X", "y", "sample_weight"),
            selects=("features", "kind"),
            parts=frozenset({"mean"}),
        ),
        "KernelShap": Rules(
            fields={"shap_values": Leave.HARDENED, "feature_names": Leave.AS_IS, "categorical_names": Leave.AS_IS},
            params=_SHAP | {"link", "group_names", "grouped", "groups", "transpose"},
            per_row=True,
        ),
        "TreeShap": Rules(
            fields={
                "shap_values": Leave.HARDENED,
                "shap_interaction_values": Leave.HARDENED,
                "feature_names": Leave.AS_IS,
                "categorical_names": Leave.AS_IS,
            },
            params=_SHAP | {"model_output", "approximate", "interactions", "explain_loss", "algorithm"},
            inputs=("X", "y"),
            per_row=True,
        ),
    }
)
"""Every Alibi explainer that can be hardened, by the name of its class."""


def kind_of(native: Any) -> str:
    """The name of the row that an Alibi explainer, or an instance of a subclass of one, falls under.

    Raises:
        RefusedError: it falls under none.
    """
    names = [kind.__name__ for kind in type(native).__mro__ if (kind.__module__ or "").partition(".")[0] == "alibi"]
    if "DistributedAnchorTabular" not in names:  # an AnchorTabular with its rows and random numbers in Ray workers
        for name in names:
            if name in ROWS:
                return name
    raise RefusedError(
        f"{type(native).__name__} is refused: no rule says which of its fields may leave. There are rules for"
        f" {', '.join(ROWS)}. What returns rows of the training set, or instances made from them, has none, because no"
        " noise on numbers hides a row: use HardenedProtoDash over a set of public examples"
    )
