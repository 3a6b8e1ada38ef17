"""What moving the tree must not change: every subject of `record.py`, computed again, is what was committed."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import captum
import numpy as np
import pytest
import record
import verdicts

from safexplain._versions import CAPTUM, RELEASE_FORMAT

GRID = 2.0**-8
"""The coarsest grid that an explanation of 64 features is rounded to here: rounding may fall on either side."""

EXACT = ("policy", "claim", "splits", "members", "non_members", "references", "omitted", "targets")
"""What an audit is asked and how it counts: no rounding moves it."""


@cache
def computed(subject: str) -> dict[str, Any]:
    return record.SUBJECTS[subject]()


def differences(
    found: Any, kept: Any, rtol: float = 0.0, atol: float = 0.0, count: int = 0, path: str = ""
) -> Iterator[str]:
    """Where two nested records differ: other keys or types, other words, numbers further apart than the tolerances."""
    near = (rtol, atol, count)
    if isinstance(kept, dict) and isinstance(found, dict):
        found = {str(name): value for name, value in found.items()}
        if list(found) != list(kept):
            yield f"{path}: keys {list(found)}, recorded {list(kept)}"
        for name in found.keys() & kept.keys():
            yield from differences(found[name], kept[name], *near, f"{path}/{name}")
    elif isinstance(kept, list) and isinstance(found, list | tuple):
        if len(found) != len(kept):
            yield f"{path}: {len(found)} entries, recorded {len(kept)}"
        for i, (one, other) in enumerate(zip(found, kept, strict=False)):
            yield from differences(one, other, *near, f"{path}/{i}")
    elif isinstance(kept, np.ndarray):
        found = np.asarray(found)
        if (found.dtype, found.shape) != (kept.dtype, kept.shape):
            yield f"{path}: {found.dtype} {found.shape}, recorded {kept.dtype} {kept.shape}"
        elif kept.dtype.kind != "f":
            if not np.array_equal(found, kept):
                yield f"{path}: {int((found != kept).sum())} of {kept.size} entries differ"
        elif (off := ~np.isclose(found, kept, rtol, atol, equal_nan=True)).any():
            worst = np.abs(found.astype(float) - kept.astype(float))[off].max()
            yield f"{path}: {int(off.sum())} of {kept.size} numbers differ, by up to {worst:.3g}"
    elif isinstance(kept, float) and isinstance(found, float | np.floating):
        if not (found == kept or math.isclose(found, kept, rel_tol=rtol, abs_tol=atol)):
            yield f"{path}: {found!r}, recorded {kept!r}"
    elif type(found) is int and type(kept) is int and abs(found - kept) <= count:
        return
    elif type(found) is not type(kept) or found != kept:
        yield f"{path}: {found!r}, recorded {kept!r}"


def same(found: Any, kept: Any, rtol: float = 0.0, atol: float = 0.0, count: int = 0) -> bool:
    """True, or a failure that names everything that differs by more than the tolerances; whole numbers by `count`."""
    __tracebackhide__ = True
    if listed := list(differences(found, kept, rtol, atol, count)):
        pytest.fail("\n".join([f"{len(listed)} differences", *listed[:30]]), pytrace=False)
    return True


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


def test_explainers_release_the_same_numbers_about_the_same_weights():
    found, kept = computed("explainers"), record.kept("explainers")
    assert same(found, kept, 1e-4, 1.01 * GRID)
    plain = [name for name in kept if "plain" in kept[name]]
    assert same(*({name: of[name]["plain"] for name in plain} for of in (found, kept)), 1e-4, 1e-5)


def test_the_release_format_changes_whenever_a_recorded_release_does():
    """Certificates name the format, so that one made by another version is served only where releases are the same."""
    known = record.release_formats()
    assert list(known) == [str(n) for n in range(1, RELEASE_FORMAT + 1)], "one entry for each format, this the last"
    present = record.release_digests()
    assert not record.moved(known[str(RELEASE_FORMAT)], present), (
        "releases moved: count RELEASE_FORMAT in safexplain/_versions/__init__.py up, and run tests/golden/record.py"
    )
    assert present.keys() == known[str(RELEASE_FORMAT)].keys(), "new in the record: run tests/golden/record.py"


def test_this_captum_is_one_under_which_the_record_is_the_same():
    """Those who add a version to CAPTUM run this file under it."""
    assert captum.__version__ in CAPTUM


def is_recorded_here():
    """Whether training rounds as where the record was made. MKL multiplies otherwise on other makers' processors."""
    return not [*differences(computed("training"), record.kept("training"), 1e-3, 1e-3)]


def test_the_same_recipe_trains_the_same_reference_models():
    assert same(computed("training"), record.kept("training"), 1e-3, 2e-2)


@pytest.mark.parametrize("release", ["native", "hardened"])
def test_the_same_models_give_the_same_signals(release):
    """Noise is keyed by the committed weights; what is left is rounding to its grid."""
    found, kept = computed("audits")[release], record.kept("audits")[release]
    near = (1e-4, 1e-5) if release == "native" else (1e-2, 1.01 * GRID)
    assert same(found["signals"], kept["signals"], *near)
    assert same(found["maps"], kept["maps"], *near)
    assert same(found["about"], kept["about"])


@pytest.mark.parametrize(("release", "verdict"), [("native", "leak"), ("hardened", "certified")])
def test_the_same_signals_give_the_same_counts_and_the_same_verdict(release, verdict):
    """Areas and bounds to 0.02; counts at one threshold, where rounding makes scores equal or not, to 8 of 100."""
    found, kept = computed("audits")[release]["judged"], record.kept("audits")[release]["judged"]
    assert found["verdict"] == kept["verdict"] == verdict
    assert same(found, kept, 0.0, 1.0, 8)
    assert same(found["areas"], kept["areas"], 0.0, 0.02)
    for name in EXACT:
        assert same(found[name], kept[name])


def exact(content: Any) -> Any:
    """What rounding does not move: outcomes without counts and bounds, but with the names of the attacks."""
    if not isinstance(content, dict):
        return [exact(value) for value in content] if isinstance(content, list) else content
    return {
        name: sorted(value if isinstance(value, dict) else []) if name in verdicts.ROUNDED else exact(value)
        for name, value in content.items()
    }


def same_outcomes(found: dict[str, Any], kept: dict[str, Any]) -> bool:
    """Counts of members to 2, bounds of rates to 0.01; verdicts, exit codes, sizes, controls and names exactly."""
    __tracebackhide__ = True
    return same(exact(found), exact(kept)) and same(found, kept, 0.0, 0.01, 2)


FEW = ("strong leak by default", "at two levels", "groups", "few attacks")
OTHERS = tuple(name for name in verdicts.FILES if name not in FEW)


@pytest.mark.parametrize("names", [FEW, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["few", "others"])
def test_files_of_signals_get_the_same_verdicts_by_the_same_counts(names):
    found, kept = {name: verdicts.signal_file(name) for name in names}, record.kept("signal files")
    assert same_outcomes(found, {name: kept[name] for name in names})


@pytest.mark.slow
def test_a_small_audit_gets_the_same_verdict_by_the_same_counts():
    """Where training rounds otherwise: the same verdicts, exit codes, sizes, controls and attacks."""
    found, kept = computed("whole audits"), record.kept("whole audits")
    assert same_outcomes(found, kept) if is_recorded_here() else same(exact(found), exact(kept))


def test_the_same_canaries_are_found_in_the_same_runs():
    assert same(computed("canary runs"), record.kept("canary runs"), 2e-3, 1e-5)


def test_every_subject_is_recorded():
    assert list(record.kept_values()) == list(record.SUBJECTS)
