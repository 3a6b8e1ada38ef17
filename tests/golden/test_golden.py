"""What moving the tree must not change: every subject of `record.py`, computed again, is what was committed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import record

GRID = 2.0**-8
"""The coarsest grid that an explanation of 64 features is rounded to here: rounding may fall on either side."""


@cache
def computed(subject: str) -> dict[str, Any]:
    return record.SUBJECTS[subject]()


def differences(found: Any, kept: Any, rtol: float = 0.0, atol: float = 0.0, path: str = "") -> Iterator[str]:
    """Where two nested records differ: other keys or types, other words, numbers further apart than the tolerances."""
    if isinstance(kept, dict) and isinstance(found, dict):
        found = {str(name): value for name, value in found.items()}
        if list(found) != list(kept):
            yield f"{path}: keys {list(found)}, recorded {list(kept)}"
        for name in found.keys() & kept.keys():
            yield from differences(found[name], kept[name], rtol, atol, f"{path}/{name}")
    elif isinstance(kept, list) and isinstance(found, list | tuple):
        if len(found) != len(kept):
            yield f"{path}: {len(found)} entries, recorded {len(kept)}"
        for i, (one, other) in enumerate(zip(found, kept, strict=False)):
            yield from differences(one, other, rtol, atol, f"{path}/{i}")
    elif isinstance(kept, np.ndarray):
        found = np.asarray(found)
        if (found.dtype, found.shape) != (kept.dtype, kept.shape):
            yield f"{path}: {found.dtype} {found.shape}, recorded {kept.dtype} {kept.shape}"
        elif kept.dtype.kind != "f":
            if not np.array_equal(found, kept):
                yield f"{path}: {int((found != kept).sum())} of {kept.size} entries differ"
        elif (off := ~np.isclose(found, kept, rtol, atol, equal_nan=True)).any():
            worst = np.nanmax(np.abs(found.astype(float) - kept.astype(float))[off])
            yield f"{path}: {int(off.sum())} of {kept.size} numbers differ, by up to {worst:.3g}"
    elif isinstance(kept, float) and isinstance(found, float | np.floating):
        if not (found == kept or math.isclose(found, kept, rel_tol=rtol, abs_tol=atol)):
            yield f"{path}: {found!r}, recorded {kept!r}"
    elif type(found) is not type(kept) or found != kept:
        yield f"{path}: {found!r}, recorded {kept!r}"


def same(found: Any, kept: Any, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """True, or a failure that names everything that differs."""
    __tracebackhide__ = True
    if listed := list(differences(found, kept, rtol, atol)):
        pytest.fail("\n".join([f"{len(listed)} differences", *listed[:30]]), pytrace=False)
    return True


# --- hardening --------------------------------------------------------------------------------------------------------


def test_the_same_arrays_are_hardened_to_the_same_bits():
    """On a processor with other vector instructions the last bits of logarithms may differ: there, to 1e-6."""
    found, kept = computed("hardening"), record.kept("hardening")
    alike = found.pop("machine") == kept.pop("machine")
    if alike:
        assert same(found["digests"], kept["digests"])
    assert same(found["samples"], kept["samples"], *(() if alike else (1e-6, 1e-7)))
    assert same(found["noise and grid"], kept["noise and grid"])


def test_a_hardening_has_the_same_text_and_is_read_back_from_it():
    assert same(computed("hardening as JSON"), record.kept("hardening as JSON"))
    assert all(texts["json"] == texts["read back"] for texts in computed("hardening as JSON").values())


# --- explainers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(record.kept("explainers")))
def test_an_explainer_releases_the_same_numbers_about_the_same_weights(name):
    found, kept = computed("explainers")[name], record.kept("explainers")[name]
    for form in kept:
        noised = form in ("noised", "recommended")
        assert same(found[form], kept[form], 1e-4, 1.01 * GRID if noised else 1e-5)
    assert list(found) == list(kept)


# --- accounting -------------------------------------------------------------------------------------------------------


def test_the_same_steps_spend_the_same_epsilon():
    """Full batches are float64 formulas; other losses pass through Fourier transforms, and a root to 1e-6."""
    assert same(computed("accounting"), record.kept("accounting"), 1e-7)
