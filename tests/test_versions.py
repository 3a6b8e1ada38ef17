"""Which other versions may serve what a certificate is about, and what is said where they may not."""

from pathlib import Path

import captum
import pytest
import torch

import safexplain
from safexplain import _versions
from safexplain._versions import RELEASE_FORMAT, VERSION, compatibility, installed, versions

MINOR = VERSION.rpartition(".")[0]
HERE = versions()


def made(**other: str) -> dict[str, str]:
    return {**HERE, **other}


def later(number: str) -> str:
    """The next patch release."""
    first, _, last = number.rpartition(".")
    return f"{first}.{int(last) + 1}"


def test_what_is_made_here_is_served_here_without_a_word():
    found = compatibility(HERE)
    assert (found.problems, found.notes) == ((), ())
    assert HERE["safexplain"] == safexplain.__version__ == VERSION
    assert HERE["captum"] == captum.__version__
    assert HERE["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert HERE["release_format"] == str(RELEASE_FORMAT)


@pytest.mark.parametrize("other", [f"{MINOR}.0", f"{MINOR}.77"])
def test_a_patch_release_of_the_same_release_format_is_served_and_noted(other, monkeypatch):
    monkeypatch.setattr(_versions, "VERSION", f"{MINOR}.5")
    found = compatibility(made(safexplain=other))
    assert found.problems == ()
    assert found.notes == (f"made with safexplain {other}, which releases the same as {MINOR}.5",)


@pytest.mark.parametrize(
    ("other", "install"),
    [
        ({"safexplain": later(VERSION), "release_format": str(RELEASE_FORMAT + 1)}, f"safexplain=={later(VERSION)}"),
        ({"safexplain": VERSION, "release_format": "99"}, f"safexplain=={VERSION}"),
        ({"safexplain": "9.1.3"}, "safexplain==9.1.*"),
        ({"safexplain": f"{VERSION}.dev1"}, f"safexplain=={VERSION}.dev1"),
        ({"safexplain": "0.1.0; rm -rf"}, "safexplain==0.1.0rm-rf"),
        ({"captum": "0.8.0"}, "captum==0.8.0"),
    ],
    ids=["format", "format, same version", "minor", "development", "hostile", "captum"],
)
def test_what_releases_other_numbers_is_not_served_and_told_what_to_install(other, install):
    (said,) = compatibility(made(**other)).problems
    assert f'pip install "{install}"' in said
    assert "or audit again" in said


def test_a_certificate_that_states_no_release_format_is_served_by_its_own_version_alone():
    """Those of 0.1.0, and those that somebody wrote by hand."""
    plain = {name: value for name, value in HERE.items() if name != "release_format"}
    assert not compatibility(plain).problems
    (said,) = compatibility({**plain, "safexplain": later(VERSION)}).problems
    assert "does not state its release format" in said
    (said,) = compatibility({**plain, "safexplain": "0.1.0"}).problems
    assert said == (
        f"it was made with safexplain 0.1.0, and this is {VERSION}: only patch releases of one minor version release"
        ' the same. Install that version (pip install "safexplain==0.1.0"), or audit again with the present one'
    )


def test_versions_of_captum_that_are_tested_to_release_the_same_serve_each_other(monkeypatch):
    monkeypatch.setattr(_versions, "CAPTUM", (captum.__version__, "0.9.7"))
    assert compatibility(made(captum="0.9.7")).problems == ()
    assert "releases the same" in compatibility(made(captum="0.9.7")).notes[0]
    assert compatibility(made(captum="0.9.8")).problems
    monkeypatch.setattr(_versions, "CAPTUM", ("0.9.7",))
    assert compatibility(made(captum="0.9.7")).problems, "this one is not tested"
    assert not compatibility(HERE).problems, "the very same version needs no test"


def test_libraries_of_other_explainers_are_the_very_same():
    numpy = installed("numpy")
    assert numpy is not None
    assert not compatibility(HERE, {"numpy": numpy}).problems
    (said,) = compatibility(HERE, {"numpy": "0.0.1"}).problems
    assert 'pip install "numpy==0.0.1"' in said
    (said,) = compatibility(HERE, {"no-such-library": "1.0"}).problems
    assert "none is installed" in said


def test_another_torch_is_noted_and_stops_nothing():
    found = compatibility(made(torch="2.5.1+cu124"))
    assert found.problems == ()
    assert found.notes[0].startswith("made with torch 2.5.1, but ")
    same = HERE["torch"].partition("+")[0]
    assert not compatibility(made(torch=f"{same}+cpu")).notes, "a build for another device is no other version"


def test_the_citation_names_this_version():
    stated = (Path(safexplain.__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {VERSION}\n" in stated
    assert "\nlicense: Apache-2.0\n" in stated
