"""What is released, in words: a hardening and its utility, from the plain JSON that certificates hold.

Report, terminal and `safexplain verify` say the same, and nothing is said of noise or keys where there are none. A kind
that is not known here is written as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["as_written", "in_words", "utility_in_words"]

_SLOTS = ("clip", "mask", "noise")


def as_written(hardening: Mapping[str, Any]) -> str:
    """As it would be written in Python, without what is not there.

    >>> as_written({"clip": {"kind": "TopKSet", "k": 4, "fraction": None}, "mask": None, "noise": None, "grid": None})
    'Hardening(clip=TopKSet(k=4))'
    """
    names = [*_SLOTS, *(name for name in hardening if name not in _SLOTS)]
    parts = [f"{name}={_code(hardening[name])}" for name in names if hardening.get(name) is not None]
    return f"Hardening({', '.join(parts)})" if parts else "Hardening.none()"


def in_words(hardening: Mapping[str, Any]) -> str:
    """What becomes of an explanation, without a full stop; "" where there are slots that are not known.

    >>> in_words({"clip": {"kind": "TopKSet", "k": 4, "fraction": None, "positive": True}})
    'which 4 features count most for the class, all with one value'
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
        steps.append(f"of the columns of the form ({', '.join(groups)} added up from several)")
    if prohibited := features.get("prohibited"):
        steps.append(f"and no answer where {' or '.join(prohibited)} is among them")
    return ", ".join(steps)


def utility_in_words(utility: Mapping[str, float]) -> list[str]:
    """Figures of a utility that people ask for first, one sentence each: whatever of them was measured."""
    said = []
    if "top_overlap" in utility:
        top = f"{100 * utility.get('top_fraction', 0.1):.3g}%"
        said.append(f"{utility['top_overlap']:.0%} of the {top} strongest features are still among them")
    if "sign_errors" in utility:
        errors, of_top = utility["sign_errors"], utility.get("sign_errors_top", 0.0)
        said.append(
            f"{errors:.1%} of the released signs are wrong, and in {of_top:.1%} of the maps one of the strongest"
            if errors
            else "no released sign is wrong"
        )
    if "deletion" in utility:
        native = f" (native: {utility['native_deletion']:.2f})" if "native_deletion" in utility else ""
        falls = f"{utility['deletion']:.2f}{native}"
        said.append(f"without the features that it names the probability of the class falls by {falls}")
    if "prohibited" in utility:
        said.append(f"{utility['prohibited']:.1%} of the explanations name a prohibited column, and are refused")
    return said


def _top_k_set(step: Mapping[str, Any]) -> str:
    k, fraction = step.get("k"), step.get("fraction")
    share = "" if fraction is None else f"{100 * fraction:.3g}% of "
    if k is None:
        which = f"which {share}the features count"
    elif fraction is None:
        which = "which feature counts" if k == 1 else f"which {k} features count"
    else:
        which = f"which {k} feature{'s' if k > 1 else ''}, or {share}all if these are more, count"
    how = "from the strongest on" if step.get("ordered") else "all with one value"
    return f"{which} most {'for' if step.get('positive', True) else 'for or against'} the class, {how}"


def _levels(step: Mapping[str, Any]) -> str:
    n, balanced = step["n"], ", as many for the class as against it" if step.get("balanced", True) else ""
    return f"how much features count in {n} step{'s' if n > 1 else ''}{balanced}"


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
    "TopKMask": lambda s: f"without all but the {100 * s['fraction']:.3g}% largest numbers",
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
