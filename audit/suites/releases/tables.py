"""The tables of docs/evidence/releases.md, from audit/results/releases.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...shared.run import markdown
from .formats import ORDERED, SET
from .suite import PUBLIC, STUDENT, TWO_SIDED, complete, judge

Cell = tuple[str, str, dict[str, Any]]


def cells(found: dict[str, Any]) -> Iterator[Cell]:
    """Task, explainer and cell, in the order of the result."""
    for task, part in found["results"].items():
        for explainer, cell in part["cells"].items():
            yield task, explainer, cell


def points(share: float) -> str:
    """In points, with a sign that a zero has not."""
    text = f"{100 * share:+.1f}"
    return "0" if text in ("+0.0", "-0.0") else text


def _row(name: str, r: dict[str, Any]) -> tuple[str, ...]:
    tpr, auc = r["judged"]["tpr"], r["judged"]["auc"]
    always = complete(r, "tpr", "Stacked, always")
    wrong = r["sign_errors"]
    return (
        f"**{name}**" if r["judged"]["passes"] else name,
        f"{points(tpr['value'])} ± {100 * TWO_SIDED * tpr['se']:.1f}",
        points(tpr["upper"]),
        f"{auc['value']:+.3f}".replace("+0.000", "0").replace("-0.000", "0"),
        f"{auc['upper']:.3f}",
        points(always["value"]),
        f"{r['overlap']:.2f}",
        f"{r['utility']:.2f}",
        f"{r['deletion']:.3f}",
        f"{r['insertion']:.3f}",
        "" if wrong != wrong else f"{wrong:.0%}, {r['sign_errors_top']:.0%}",
        "yes" if r["front"] else "",
    )


def of_task(task: str) -> Callable[[dict[str, Any]], str]:
    """What makes the tables of a task, one for each explainer."""

    def make(found: dict[str, Any]) -> str:
        part = found["results"].get(task)
        if part is None:
            return "*There is no result yet.*"
        right = part["accuracy"]
        text = [
            f"{part['examples']:,} examples, {part['models']} models right on {right['members']:.1%} of their members"
            f" and {right['non_members']:.1%} of the others, {part['targets']} of them targets."
        ]
        header = ("release", "adds, points", "at most", "AUC adds", "at most", "always", "overlap", "U", "deletion",
                  "insertion", "wrong sign: numbers, maps", "front")  # fmt: skip
        for explainer, cell in part["cells"].items():
            first = cell["releases"]["native"]["levels"]
            labels = ", ".join(
                f"{at['labels']['tpr']:.1%} of the members (AUC {at['labels']['auc']:.3f}) at {level}"
                for level, at in first.items()
            )
            text.append(
                f"**{explainer}** ({cell['kind']}, {cell['features']:,} numbers), asked"
                f" {' and '.join(map(str, cell['levels']))} times. Labels alone: {labels}."
            )
            text.append(markdown(header, [_row(name, r) for name, r in cell["releases"].items()]))
        return "\n\n".join(text)

    return make


def passes(found: dict[str, Any]) -> str:
    """In which cells each release passes: both, only safe, only faithful, or neither."""
    named = list(cells(found))
    names = list(dict.fromkeys(n for *_, cell in named for n in cell["releases"]))
    rows = []
    for name in names:
        marks = []
        for *_, cell in named:
            r = cell["releases"].get(name)
            j = r and r["judged"]
            marks.append("" if not j else "passes" if j["passes"] else "safe" if j["safe"] else "faithful"
                         if j["faithful"] else "neither")  # fmt: skip
        rows.append((name, *marks))
    return markdown(("release", *(f"{t} {x}" for t, x, _ in named)), rows)


def conclusion(found: dict[str, Any]) -> list[str]:
    """What the acceptance rule says, in sentences."""
    named = list(cells(found))
    out = []
    for name in dict.fromkeys(n for *_, cell in named for n in cell["releases"]):
        if name in (PUBLIC, STUDENT, "random map", "native"):
            continue
        where = [(t, x, c["releases"][name]["judged"]) for t, x, c in named if name in c["releases"]]
        good = sum(j["passes"] for *_, j in where)
        safe = sum(j["safe"] for *_, j in where)
        out.append(f"{name}: passes in {good} of {len(where)} cells, safe in {safe}")
    return out


def judged_again(found: dict[str, Any]) -> dict[str, Any]:
    """The judgement of every cell, made anew from its figures."""
    return {f"{t} {x}": judge(cell["releases"]) for t, x, cell in cells(found)}


def order(found: dict[str, Any]) -> str:
    """What a set adds with and without its order, beside a map at random."""
    rows = []
    for task, _, cell in cells(found):
        for name in ("random map", SET, ORDERED):
            tpr, auc = (cell["releases"][name]["judged"][what] for what in ("tpr", "auc"))
            rows.append((task, name, f"{points(tpr['value'])} ± {100 * TWO_SIDED * tpr['se']:.1f}",
                         points(tpr["upper"]), f"{auc['value']:+.3f}", f"{auc['upper']:.3f}"))  # fmt: skip
    header = ("task, InputXGradient at 1 and 32 queries", "release", "adds, points", "at most", "AUC adds", "at most")
    return markdown(header, rows, left=2)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "releases: passes": passes,
    **{f"releases: {task}": of_task(task) for task in ("digits", "heloc", "heloc_trees", "cifar10", "gtsrb")},
    "releases: conclusion": lambda found: "\n".join(f"* {line}" for line in conclusion(found)),
}
"""Name in the page's prose -> what makes the table."""
