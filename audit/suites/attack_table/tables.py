"""The tables of the page, from attack_table.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown
from .literature import LEAKS, METHODS, TABLE
from .tasks import DRAWS

CONFIRM = DRAWS[1]


def _both(values: list[float]) -> str:
    """TPR at 1 % in percent, and AUC."""
    return f"{100 * values[0]:.1f}, {values[2]:.3f}"


def scores(found: dict[str, Any]) -> str:
    """What each attack finds alone, in one query of the second draw."""
    cells = {name: cell["figures"]["1"] for name, cell in found["results"][CONFIRM].items()}
    rows: dict[str, dict[str, str]] = {}
    for name, groups in cells.items():
        stacked = {"labels, stacked": groups["with labels"]["labels"], "**the stack**": groups["with labels"]["all"]}
        if predicted := groups["predictions"].get("all"):
            stacked["predictions, stacked"] = predicted
        for attack, values in {**groups["alone"], **stacked}.items():
            rows.setdefault(attack, {})[name] = _both(values)
    return markdown(("attack", *cells), [(attack, *(by.get(c, "") for c in cells)) for attack, by in rows.items()])


def changes(found: dict[str, Any]) -> str:
    """Each row's strongest case in the first draw, and what it gains there in the second."""
    rows = []
    for name, change in found["summary"].items():
        group, _, what = name.partition(": ")
        drawn = ["", ""]
        if change["drawn"]:
            one = (change["case"].endswith("AUC") and (1, ".3f", "")) or (100, ".1f", " points")
            drawn = [f"{one[0] * g:+{one[1]}} ± {one[0] * e:{one[1]}}{one[2]}" for g, e in change["drawn"]]
        mean = [f"{100 * m[0]:+.1f}, {m[2]:+.4f}" for m in change["mean"]]
        rows.append((
            group, what, change["case"] or "gains nowhere", *drawn, "**yes**" if change["confirmed"] else "no",
            mean[1], f"{change['both']} of {change['of']}", f"{change['loses'][1]}",
        ))  # fmt: skip
    header = ("stack", "row", "strongest case of the first draw", "gain there", "in the second draw", "confirmed",
              "mean gain, second draw: points at 1 %, AUC", "cases gained in both", "lost in the second")  # fmt: skip
    return markdown(header, rows, left=3)


def methods(found: dict[str, Any]) -> str:
    """TPR at 1 % and AUC of each attack on the loss, means over both draws, and what it costs."""
    tasks = found["literature"][CONFIRM]
    rows = []
    for name, method in METHODS.items():
        if ": " not in name:
            cells, seconds = [], []
            for task in tasks:
                both = [found["literature"][draw][task]["recipes"][TABLE] for draw in DRAWS]
                each = [b["methods"][name]["figures"] for b in both]
                mean = [sum(column) / 2 for column in zip(*each, strict=True)]
                error = [sum(e[3 + k] ** 2 for e in each) ** 0.5 / 2 for k in range(3)]
                cells.append(f"{100 * mean[0]:.1f} ± {100 * error[0]:.1f}, {mean[2]:.3f}")
                seconds += [method.references * b["seconds"] + b["methods"][name]["seconds"] for b in both]
            rows.append((name, *cells, f"{method.references}", f"{sum(seconds) / len(seconds):.2g}"))
    return markdown(("on the loss", *tasks, "models trained", "seconds (mean)"), rows)


def strata(found: dict[str, Any]) -> str:
    """The likelihood ratio with eight references on all examples and on fifths; mean over both draws."""
    tasks = found["literature"][CONFIRM]
    rows: dict[str, list[str]] = {}
    for task in tasks:
        both = [found["literature"][draw][task]["strata"] for draw in DRAWS]
        for name in ("all examples", "loss traces of 2 references", "loss without the example, 8 references",
                     "gap over spread, 8 references"):  # fmt: skip
            each = [b[name] for b in both if name in b]
            mean = [sum(column) / len(each) for column in zip(*each, strict=True)]
            missed = "" if name == "all examples" or not each else f"; {100 * mean[3]:.0f} % outside"
            rows.setdefault(name, []).append(f"{_both(mean)}{missed}" if each else "")
    return markdown(("examples scored", *tasks), [(name, *cells) for name, cells in rows.items()])


def one_run(found: dict[str, Any]) -> str:
    """TPR at 1 %, AUC and the bound on epsilon; mean over both draws."""
    tasks = found["literature"][CONFIRM]
    rows: dict[str, list[str]] = {}
    for task in tasks:
        for name in tasks[task]["one_run"]:
            each = [found["literature"][draw][task]["one_run"][name] for draw in DRAWS]
            mean = [sum(column) / 2 for column in zip(*each, strict=True)]
            rows.setdefault(name, []).append(f"{_both(mean)}; ε ≥ {mean[3]:.1f}")
    return markdown(("what is guessed, from what", *tasks), [(name, *cells) for name, cells in rows.items()])


def ranking(found: dict[str, Any]) -> str:
    """How well the AUC of each screen ranks models by three leaks: correlation, and pairs of a task in order."""
    rows = []
    for name, by in found["ranking"]["methods"].items():
        cells = [f"{(c[0] + c[1]) / 2:.2f}, {50 * (c[2] + c[3]):.0f} %" for c in (by[leak] for leak in LEAKS)]
        rows.append((name, f"{METHODS[name].references}", *cells))
    return markdown(("AUC of one model's screen", "models trained", *(f"the leak of the {k}" for k in LEAKS)), rows)
