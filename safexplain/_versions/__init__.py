"""This version, and the other versions that release the same numbers, bit by bit, and so may serve a certificate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.3.0"
"""Version of this package; `pyproject.toml` reads it here."""

RELEASE_FORMAT = 2
"""Number of the release format, which changes with any released number for the same model, configuration, key and
input: `tests/golden/release_formats.json` has the digests of the recorded releases under each format."""


CAPTUM = ("0.9.0",)
"""Versions of Captum with the same recorded releases."""

FORMAT = "release_format"


def versions() -> dict[str, str]:
    """The versions in a certificate's `environment`: safexplain, its release format, Captum and torch."""
    stated = {"safexplain": VERSION, FORMAT: str(RELEASE_FORMAT)}
    return stated | {name: installed(name) or "not installed" for name in ("captum", "torch")}


def installed(name: str) -> str | None:
    """Version of an installed distribution; None: not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Compatibility:
    """Whether this environment releases the same numbers as the one of a certificate."""

    problems: tuple[str, ...]  # why not, each with what to do; empty if it does
    notes: tuple[str, ...]  # harmless differences


def compatibility(made_with: Mapping[str, str], libraries: Mapping[str, str] | None = None) -> Compatibility:
    """Whether this environment may serve a certificate with this `environment`. Equal versions always may.

    Else safexplain must have the same minor version and release format, both versions of Captum must be in `CAPTUM`,
    and other explainers' `libraries` (distribution -> version) must be the same. Another torch is only noted, as it
    draws no noise.
    """
    problems, notes = [], []
    audited = made_with["safexplain"]
    if (different := _safexplain_problem(audited, made_with.get(FORMAT))) is not None:
        problems.append(different)
    elif audited != VERSION:
        notes.append(f"made with safexplain {audited:.40}, which releases the same as {VERSION}")
    captum, here = made_with.get("captum"), installed("captum")
    if captum is not None and captum != here:
        if {captum, here} <= set(CAPTUM):
            notes.append(f"made with captum {captum}, which releases the same as {here}")
        else:
            problems.append(_other_library("captum", captum, f"; known to release the same: {', '.join(CAPTUM)}"))
    for name, number in (libraries or {}).items():
        if installed(name) != number:
            problems.append(_other_library(name, number))
    torch, now = ((found or "none").partition("+")[0] for found in (made_with.get("torch"), installed("torch")))
    if torch != now:  # 2.5.1+cu124 computes as 2.5.1
        notes.append(
            f"made with torch {torch:.40}, but {now} is installed: the last digits of an explanation may differ before"
            " hardening, as between two processors; the noise of each query is the same"
        )
    return Compatibility(tuple(problems), tuple(notes))


def _safexplain_problem(audited: str, stated: str | None) -> str | None:
    if audited == VERSION and stated in (None, str(RELEASE_FORMAT)):
        return None
    reason = f"it was made with safexplain {audited:.40}, and this is {VERSION}"
    made, here = (_RELEASE.fullmatch(number) for number in (audited, VERSION))
    wanted = audited
    if made is None or here is None or made["minor"] != here["minor"]:
        wanted = audited if made is None or stated is None else f"{made['minor']}.*"
        why = "only patch releases of one minor version release the same"
    elif stated is None:
        why = "it does not state its release format"
    elif stated == str(RELEASE_FORMAT):
        return None
    else:
        why = f"it releases other numbers (release format {stated:.40}, here {RELEASE_FORMAT})"
    return f"{reason}: {why}. {_remedy('safexplain', wanted)}"


_RELEASE = re.compile(r"(?P<minor>\d+\.\d+)\.\d+")
"""A released version; any other fits only itself."""


def _other_library(name: str, number: str, known: str = "") -> str:
    return (
        f"it was made with {name} {number:.40}, but {installed(name) or 'none'} is installed{known}."
        f" {_remedy(name, number)}"
    )


def _remedy(name: str, number: str) -> str:
    shown = re.sub(r"[^\w.+!*-]", "", number)[:40]
    return f'Install that version (pip install "{name}=={shown}"), or audit again with the present one'
