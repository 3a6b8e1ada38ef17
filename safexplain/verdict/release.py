"""A hardening and its utility in words, from the plain JSON of certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_SLOTS = ("clip", "mask", "noise")


def as_written(hardening: Mapping[str, Any]) -> str:
    """A hardening as Python code, without empty slots.

    >>> as_written({"clip": {"kind": "TopKSet", "k": 4, "fraction": None}, "mask": None, "noise": None, "grid": None})
    'Hardening(clip=TopKSet(k=4))'
    """
    names = [*_SLOTS, *(name for name in hardening if name not in _SLOTS)]
    parts = [f"{name}={_code(hardening[name])}" for name in names if hardening.get(name) is not None]
    return f"Hardening({', '.join(parts)})" if parts else "Hardening.none()"


def in_words(hardening: Mapping[str, Any]) -> str:
    """What is released, without a full stop; "" if the hardening has unknown slots.

    >>> in_words({"clip": {"kind": "TopKSet", "k": 4, "fraction": None, "positive": True}})
    'the 4 features that count most for the class, unranked'
    >>> in_words({})
    'the explanation as it is'
    """
    if hardening.keys() - {*_SLOTS, "grid", "features"}:
        return ""
    steps = [_step(hardening[slot]) for slot in _SLOTS if hardening.get(slot) is not None]
    if hardening.get("grid") is not None:
        steps.append(f"rounded to multiples of {hardening['grid']:g}")
    if not steps:
        return "the explanation as it is"
    if hardening.get("clip") is None:
        steps.insert(0, "the explanation")
    features = hardening.get("features") or {}
    if groups := features.get("groups"):
        steps.append(f"by column of the form ({', '.join(groups)} summed over several)")
    if prohibited := features.get("prohibited"):
        steps.append(f"and no answer if {' or '.join(prohibited)} is among them")
    return ", ".join(steps)


def utility_in_words(utility: Mapping[str, float]) -> list[str]:
    """The main figures of a utility that were measured, one sentence each."""
    found = []
    if "top_overlap" in utility:
        top = f"{100 * utility.get('top_fraction', 0.1):.3g}%"
        found.append(f"{utility['top_overlap']:.0%} of the {top} strongest features are kept")
    if "sign_errors" in utility:
        errors, of_top = utility["sign_errors"], utility.get("sign_errors_top", 0.0)
        found.append(
            f"{errors:.1%} of the released signs are wrong, and in {of_top:.1%} of the maps one of the strongest"
            if errors
            else "no released sign is wrong"
        )
    if "deletion" in utility:
        native = f" (native: {utility['native_deletion']:.2f})" if "native_deletion" in utility else ""
        falls = f"{utility['deletion']:.2f}{native}"
        found.append(f"deleting the named features lowers the probability of the class by {falls}")
    if "prohibited" in utility:
        found.append(f"{utility['prohibited']:.1%} of the explanations name a prohibited column, and are refused")
    return found


def _top_k_set(step: Mapping[str, Any]) -> str:
    k, fraction = step.get("k"), step.get("fraction")
    share = "" if fraction is None else f"{100 * fraction:.3g}%"
    if k is None:
        features = f"the {share} of features that count"
    elif k == 1 and not share:
        features = "the feature that counts"
    else:
        features = f"the {k} feature{'s' if k > 1 else ''}{f' (or top {share}, if more)' if share else ''} that count"
    order = "strongest first" if step.get("ordered") else "unranked"
    return f"{features} most {'for' if step.get('positive', True) else 'for or against'} the class, {order}"


def _levels(step: Mapping[str, Any]) -> str:
    n, balanced = step["n"], ", as many for the class as against it" if step.get("balanced", True) else ""
    return f"the importance of the features in {n} step{'s' if n > 1 else ''}{balanced}"


def _rank_norm(step: Mapping[str, Any]) -> str:
    least = step.get("balanced_from")
    balanced = "" if least is None else f" (from {least} features on, as many for the class as against it)"
    return f"the order of the features by magnitude, with their signs{balanced}"


_CLIPS_AND_MORE: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "TopKSet": _top_k_set,
    "Levels": _levels,
    "RankNorm": _rank_norm,
    "RangeClip": lambda s: f"the explanation with each number clipped to [{s['low']:g}, {s['high']:g}]",
    "NormClip": lambda s: f"the explanation scaled down to a length of at most {s['max_norm']:g}",
    "UnitNorm": lambda s: f"the explanation scaled to a length of {s.get('norm', 1.0):g}",
    "ThresholdMask": lambda s: f"without numbers below {_amount(s['threshold'])}",
    "TopKMask": lambda s: f"reduced to the {100 * s['fraction']:.3g}% largest numbers",
    "GaussianNoise": lambda s: f"with keyed Gaussian noise of standard deviation {_amount(s['std'])} on every number",
}


def _step(step: Mapping[str, Any]) -> str:
    try:
        return _CLIPS_AND_MORE[step["kind"]](step)
    except (KeyError, TypeError, ValueError):
        return _code(step)


def _amount(amount: Any) -> str:
    if isinstance(amount, Mapping):
        return f"{amount['relative']:g} times their usual size"
    return f"{amount:g}"


def _code(value: Any) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    if value.keys() == {"relative"}:
        return f"Relative({value['relative']!r})"
    inner = ", ".join(f"{name}={_code(v)}" for name, v in value.items() if name != "kind" and v is not None)
    return f"{value.get('kind', '')}({inner})"
