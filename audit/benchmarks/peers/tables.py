"""The tables of the page, made from the result."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown
from .contests import PEERS, notes


def races(found: dict[str, Any]) -> str:
    """A race a line: times, the ratio with its quartiles, and how good both answers are; and who was skipped."""
    rows = []
    for peer in found["results"].values():
        for name, r in peer.get("races", {}).items():
            if peer["title"] != "Captum" and r["unit"] != "answer":
                rows.append(_row(peer["title"], name, r))
        for name, reason in peer.get("skipped_races", {}).items():
            rows.append((peer["title"], name, "", "", f"skipped: {reason}", "", ""))
        if "skipped" in peer:
            rows.append((peer["title"], peer.get("asked_for", ""), "", "", f"skipped: {peer['skipped']}", "", ""))
    header = ("peer", "work", "our ms", "its ms", "its time / ours (median, quartiles)", "our answer", "its answer")
    return markdown(header, rows, left=2)


def question(found: dict[str, Any]) -> str:
    """Who was in? Seconds of processor to an answer, and the answer; ours is the first of its runs."""
    rows: list[tuple[str, ...]] = []
    for title in ("a small CNN", "XGBoost"):
        for key in ("ml-privacy-meter", "privacy-guard", "sacro-ml"):
            peer = found["results"].get(key, {})
            for name, r in peer.get("races", {}).items():
                if r["unit"] != "answer" or title not in name:
                    continue
                sides = [("safexplain, an audit", "ours")] if not rows or title != rows[-1][0] else []
                for who, side in (*sides, (f"{peer['title']}, {name.partition('? ')[2]}", "theirs")):
                    q = r[side]["quality"]
                    told = f"{100 * q['TPR at 1 %']:.1f} %", f"{q['AUC']:.3f}", q["interval"]
                    rows.append((title, who, f"{r[side]['processor_seconds']:.3g} s", *told))
    header = ("who was in", "library, attack", "processor time", "TPR at 1 %", "AUC", "carries an interval")
    return markdown(header, rows, left=2)


def explanations(found: dict[str, Any]) -> str:
    """Captum's explainers."""
    rows = []
    for name, r in found["results"].get("captum", {}).get("races", {}).items():
        hardened, native = (f"{1e3 * r[side]['processor_seconds']:.0f}" for side in ("ours", "theirs"))
        rows.append((name, native, hardened, _ratio(r)))
    return markdown(("method", "native ms", "hardened ms", "native / hardened (median, quartiles)"), rows)


def peers(found: dict[str, Any]) -> str:
    """Who was asked, in which release, under which licence; and who was not asked yet."""
    rows = []
    for each in PEERS:
        peer = found["results"].get(each.key, {"skipped": "not asked yet"})
        versions = ", ".join(f"{name} {number[:12]}" for name, number in peer.get("releases", {}).items())
        sides = "one process" if peer.get("one_process") else "two processes"
        told = (f"skipped: {peer['skipped']}", "") if "skipped" in peer else (versions, sides)
        rows.append((each.title, each.asked_for, *told, each.licence))
    return markdown(("peer", "compared", "releases", "both sides in", "licence"), rows, left=5)


def work(found: dict[str, Any]) -> str:
    """What each race does, and in what both sides differ; races with one text together."""
    together: dict[str, list[tuple[str, str]]] = {}
    for peer in found["results"].values():
        for name, r in peer.get("races", {}).items():
            together.setdefault(r["what"], []).append((peer["title"], name))
    return "\n".join(f"* **{_listed(names)}**: {what}" for what, names in together.items())


def slower(found: dict[str, Any]) -> str:
    """Where a peer is faster, and why."""
    together: dict[str, list[tuple[str, str]]] = {}
    for key, peer in found["results"].items():
        for name, r in peer.get("races", {}).items():
            if r["ratio"]["median"] < 1:
                why = notes(key).get(name) or "no reason is known"
                together.setdefault(why, []).append((peer["title"], f"{name} ({r['ratio']['median']:.2f})"))
    return "\n".join(f"* **{_listed(names)}**: {why}" for why, names in together.items()) or "Nowhere."


def _listed(names: list[tuple[str, str]]) -> str:
    """Each peer once, with its races."""
    of_peer: dict[str, list[str]] = {}
    for title, name in names:
        of_peer.setdefault(title, []).append(name)
    return ". ".join(f"{title}: {'; '.join(each)}" for title, each in of_peer.items())


def _row(title: str, name: str, r: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{1e3 * r[side]['processor_seconds']:,.3g}" for side in ("ours", "theirs"))
    answers = (_told(r[side]["quality"]) for side in ("ours", "theirs"))
    return title, f"{name} (per {r['unit']})", *times, _ratio(r), *answers


def _ratio(r: dict[str, Any]) -> str:
    return " to ".join(f"{r['ratio'][k]:,.3g}" for k in ("low", "high")).join((f"{r['ratio']['median']:,.3g} (", ")"))


def _told(quality: dict[str, Any]) -> str:
    return "; ".join(f"{name} {f'{v:.3g}' if isinstance(v, float) else v}" for name, v in quality.items())


TABLES = {"peers: races": races, "peers: Captum": explanations, "peers: who": peers, "peers: work": work,
          "peers: slower": slower, "peers: question": question}  # fmt: skip
