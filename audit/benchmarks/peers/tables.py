"""The tables of the page, made from the frozen result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...shared.run import markdown

ANSWER = "answer"
"""Unit of the races from a model and its data to who was in."""


def _races(found: dict[str, Any], *peers: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Key of the peer, name of the race, the race."""
    for key in peers or found["results"]:
        for name, race in found["results"][key]["races"].items():
            yield key, name, race


def who(found: dict[str, Any]) -> str:
    """Who was asked, in which release, under which licence."""
    rows = []
    for peer in found["results"].values():
        versions = ", ".join(f"{name} {number[:12]}" for name, number in peer["releases"].items())
        sides = "one process" if peer.get("one_process") else "two processes"
        rows.append((peer["title"], peer["asked_for"], versions, sides, peer["licence"]))
    return markdown(("peer", "compared", "releases", "both sides in", "licence"), rows, left=5)


def races(found: dict[str, Any]) -> str:
    """A race a line: times, the ratio with its quartiles, and how good both answers are."""
    rows = []
    for key, name, race in _races(found):
        if key != "captum" and race["unit"] != ANSWER:
            times = (f"{1e3 * race[side]['processor_seconds']:,.3g}" for side in ("ours", "theirs"))
            work = f"{name} (per {race['unit']})"
            rows.append((found["results"][key]["title"], work, *times, _ratio(race), *_answers(race)))
    header = ("peer", "work", "our ms", "its ms", "its time / ours (median, quartiles)", "our answer", "its answer")
    return markdown(header, rows, left=2)


def question(found: dict[str, Any]) -> str:
    """Who was in? Seconds of processor to an answer, and the answer; ours is the first of its runs."""
    rows: list[tuple[str, ...]] = []
    for model in ("a small CNN", "XGBoost"):
        sides = [("safexplain, an audit", "ours")]
        for key, name, race in _races(found, "ml-privacy-meter", "privacy-guard", "sacro-ml"):
            if race["unit"] != ANSWER or model not in name:
                continue
            sides.append((f"{found['results'][key]['title']}, {name.partition('? ')[2]}", "theirs"))
            for library, side in sides:
                told = race[side]["quality"]
                rates = f"{100 * told['TPR at 1 %']:.1f} %", f"{told['AUC']:.3f}"
                rows.append((model, library, f"{race[side]['processor_seconds']:.3g} s", *rates, told["interval"]))
            sides = []
    header = ("who was in", "library, attack", "processor time", "TPR at 1 %", "AUC", "carries an interval")
    return markdown(header, rows, left=2)


def explanations(found: dict[str, Any]) -> str:
    """Captum's explainers."""
    rows = []
    for _, name, race in _races(found, "captum"):
        hardened, native = (f"{1e3 * race[side]['processor_seconds']:.0f}" for side in ("ours", "theirs"))
        rows.append((name, native, hardened, _ratio(race)))
    return markdown(("method", "native ms", "hardened ms", "native / hardened (median, quartiles)"), rows)


def _ratio(race: dict[str, Any]) -> str:
    return "{median:,.3g} ({low:,.3g} to {high:,.3g})".format(**race["ratio"])


def _answers(race: dict[str, Any]) -> list[str]:
    """Ours and theirs."""
    return [
        "; ".join(f"{name} {f'{v:.3g}' if isinstance(v, float) else v}" for name, v in race[side]["quality"].items())
        for side in ("ours", "theirs")
    ]


TABLES = {"peers: races": races, "peers: Captum": explanations, "peers: who": who, "peers: question": question}
