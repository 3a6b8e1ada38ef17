"""The tables of docs/evidence/releases.md, from audit/results/releases.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...shared.tables import Column, table
from .formats import ORDERED, SET
from .suite import PUBLIC, STUDENT, TWO_SIDED, complete


def cells(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Task, explainer and cell, in the order of the result."""
    for task, part in found["results"].items():
        for explainer, cell in part["cells"].items():
            yield task, explainer, cell


def points(share: float) -> str:
    """In points, with a sign that a zero has not."""
    text = f"{100 * share:+.1f}"
    return "0" if text in ("+0.0", "-0.0") else text


def area(added: float) -> str:
    """The same of an AUC."""
    return f"{added:+.3f}".replace("+0.000", "0").replace("-0.000", "0")


def adds(form: Callable[[float], str] | str) -> tuple[Column, ...]:
    """What a release adds to the labels."""
    return (
        ("adds, points", "judged/tpr", lambda r: f"{points(r['value'])} ± {100 * TWO_SIDED * r['se']:.1f}"),
        ("at most", "judged/tpr/upper", points), ("AUC adds", "judged/auc/value", form),
        ("at most", "judged/auc/upper", ".3f"),
    )  # fmt: skip


def of_task(task: str) -> Callable[[dict[str, Any]], str]:
    """What makes the tables of a task, one for each explainer."""

    def wrong(r: dict[str, Any]) -> str:
        return "" if r["sign_errors"] != r["sign_errors"] else f"{r['sign_errors']:.0%}, {r['sign_errors_top']:.0%}"

    def make(found: dict[str, Any]) -> str:
        part = found["results"].get(task)
        if part is None:
            return "*There is no result yet.*"
        right = part["accuracy"]
        text = [
            f"{part['examples']:,} examples, {part['models']} models right on {right['members']:.1%} of their members"
            f" and {right['non_members']:.1%} of the others, {part['targets']} of them targets."
        ]
        for explainer, cell in part["cells"].items():
            labels = ", ".join(
                f"{at['labels']['tpr']:.1%} of the members (AUC {at['labels']['auc']:.3f}) at {level}"
                for level, at in cell["releases"]["native"]["levels"].items()
            )
            text.append(
                f"**{explainer}** ({cell['kind']}, {cell['features']:,} numbers), asked"
                f" {' and '.join(map(str, cell['levels']))} times. Labels alone: {labels}."
            )
            text.append(table(
                [{**r, "name": name} for name, r in cell["releases"].items()],
                ("release", lambda r: f"**{r['name']}**" if r["judged"]["passes"] else r["name"]), *adds(area),
                ("always", lambda r: points(complete(r, "tpr", "Stacked, always")["value"])),
                ("overlap", "overlap", ".2f"), ("U", "utility", ".2f"), ("deletion", "deletion", ".3f"),
                ("insertion", "insertion", ".3f"), ("wrong sign: numbers, maps", wrong),
                ("front", lambda r: "yes" if r["front"] else None),
            ))  # fmt: skip
        return "\n\n".join(text)

    return make


def passes(found: dict[str, Any]) -> str:
    """In which cells each release passes: both, only safe, only faithful, or neither."""
    named = {f"{t} {x}": cell["releases"] for t, x, cell in cells(found)}

    def mark(releases: dict[str, Any]) -> Callable[[str], str | None]:
        def of(name: str) -> str | None:
            if (r := releases.get(name)) is None:
                return None
            return next((word for word in ("passes", "safe", "faithful") if r["judged"][word]), "neither")

        return of

    names = dict.fromkeys(name for releases in named.values() for name in releases)
    return table(names, ("release", str), *((title, mark(releases)) for title, releases in named.items()))


def conclusion(found: dict[str, Any]) -> str:
    """What the acceptance rule says, as a list of sentences."""
    named, lines = [cell["releases"] for *_, cell in cells(found)], []
    for name in dict.fromkeys(n for releases in named for n in releases):
        if name not in (PUBLIC, STUDENT, "random map", "native"):
            where = [releases[name]["judged"] for releases in named if name in releases]
            good, safe = (sum(j[what] for j in where) for what in ("passes", "safe"))
            lines.append(f"* {name}: passes in {good} of {len(where)} cells, safe in {safe}")
    return "\n".join(lines)


def order(found: dict[str, Any]) -> str:
    """What a set adds with and without its order, beside a map at random."""
    rows = [{**cell["releases"][name], "task": task, "name": name} for task, _, cell in cells(found)
            for name in ("random map", SET, ORDERED)]  # fmt: skip
    first: Column = ("task, InputXGradient at 1 and 32 queries", "task")
    return table(rows, first, ("release", "name"), *adds("+.3f"), left=2)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "releases: passes": passes,
    **{f"releases: {task}": of_task(task) for task in ("digits", "heloc", "heloc_trees", "cifar10", "gtsrb")},
    "releases: conclusion": conclusion,
}
"""Name in the page's prose -> what makes the table."""
