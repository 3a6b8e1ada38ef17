"""This version, and which other versions release the very same numbers.

A certificate is about what was released when it was made. It may be served by another version that releases the same,
bit by bit, and by no other. What is the same is known by test: `tests/golden` records what this version releases, and
`RELEASE_FORMAT` names that record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.2.0"
"""Of this package; `pyproject.toml` reads it here."""

RELEASE_FORMAT = 2
"""Names what is released for the same model, configuration, key and input. It changes when any number of it does:
`tests/golden/release_formats.json` has the digests of the recorded releases under each number."""

CAPTUM = ("0.9.0",)
"""Versions of Captum under which the recorded releases are the same."""

FORMAT = "release_format"
"""Name of `RELEASE_FORMAT` in a certificate's `environment`."""


def versions() -> dict[str, str]:
    """What a certificate's `environment` says about versions: safexplain, its release format, Captum and torch."""
    stated = {"safexplain": VERSION, FORMAT: str(RELEASE_FORMAT)}
    return stated | {name: installed(name) or "not installed" for name in ("captum", "torch")}


def installed(name: str) -> str | None:
    """The version of an installed distribution; None: it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Compatibility:
    """Whether what was made with other versions is released the same here.

    Args:
        problems: why it is not, each with what to do; none: it is.
        notes: differences that do not stop it.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]


def compatibility(made_with: Mapping[str, str], libraries: Mapping[str, str] | None = None) -> Compatibility:
    """Whether this environment releases what a certificate is about.

    Versions of safexplain must be of the same minor version and state the same release format; versions of Captum must
    both be in `CAPTUM`; those of other explainers' libraries must be the very same. Equal versions always fit. The
    version of torch is noted: it computes the explanations in floating point, and may move their last digits as another
    processor may, but draws no noise.

    Args:
        made_with: `environment` of the certificate.
        libraries: distribution -> version of each other library that the explainer runs.
    """
    problems, notes = [], []
    audited = made_with["safexplain"]
    if (different := _own_problem(audited, made_with.get(FORMAT))) is not None:
        problems.append(different)
    elif audited != VERSION:
        notes.append(f"made with safexplain {audited:.40}, which releases the same as {VERSION}")
    captum, here = made_with.get("captum"), installed("captum")
    if captum is not None and captum != here:
        if {captum, here} <= set(CAPTUM):
            notes.append(f"made with captum {captum}, which releases the same as {here}")
        else:
            problems.append(
                f"it was made with captum {captum:.40}, and here is {here or 'none'}; known to release the same:"
                f" {', '.join(CAPTUM)}. {_do('captum', captum)}"
            )
    for name, number in (libraries or {}).items():
        if (found := installed(name)) != number:
            problems.append(f"it was made with {name} {number:.40}, and here is {found or 'none'}. {_do(name, number)}")
    torch, now = (_plain(found or "none") for found in (made_with.get("torch"), installed("torch")))
    if torch != now:
        notes.append(
            f"made with torch {torch:.40}, and here is {now}: the last digits of an explanation may differ before it is"
            " hardened, as between two processors; the noise of each query is the same"
        )
    return Compatibility(tuple(problems), tuple(notes))


def _own_problem(audited: str, stated: str | None) -> str | None:
    """Why a certificate of this version of safexplain, with this release format, is not served here."""
    if audited == VERSION and stated in (None, str(RELEASE_FORMAT)):
        return None
    said = f"it was made with safexplain {audited:.40}, and this is {VERSION}"
    made, here = (_RELEASE.fullmatch(number) for number in (audited, VERSION))
    if made is None or here is None or made["minor"] != here["minor"]:
        wanted = audited if made is None or stated is None else f"{made['minor']}.*"
        return f"{said}: only patch releases of one minor version release the same. {_do('safexplain', wanted)}"
    if stated is None:
        return f"{said}: it does not state the format of what it releases. {_do('safexplain', audited)}"
    if stated != str(RELEASE_FORMAT):
        return (
            f"{said}: its releases are other numbers (release format {stated:.40}, here {RELEASE_FORMAT})."
            f" {_do('safexplain', audited)}"
        )
    return None


_RELEASE = re.compile(r"(?P<minor>\d+\.\d+)\.\d+")
"""A version that was released; anything else fits itself alone."""


def _do(name: str, number: str) -> str:
    """What to do."""
    shown = re.sub(r"[^\w.+!*-]", "", number)[:40]
    return f'Install that version (pip install "{name}=={shown}"), or audit again with the present one'


def _plain(number: str) -> str:
    """Without the label of a build: 2.5.1+cu124 computes as 2.5.1."""
    return number.partition("+")[0]
