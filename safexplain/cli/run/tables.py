"""What commands print about a result: sentences and tables, one JSON object, or the verdict alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from safexplain.verdict.certificate.write import SUBJECT_DATA
from safexplain.verdict.evidence import ATTACK_NAMES, Evidence, Verdict, code, signal_name
from safexplain.verdict.judgement import AuditResult, Judgement
from safexplain.verdict.release import utility_in_words

if TYPE_CHECKING:
    from safexplain.audit.outcome import AuditRun
    from safexplain.audit.report.model import Configuration

STYLES: dict[Verdict, str] = {"certified": "bold green", "leak": "bold red", "inconclusive": "bold yellow"}
WORDS: dict[Verdict, str] = {"certified": "CERTIFIED", "leak": "LEAK PROVEN", "inconclusive": "INCONCLUSIVE"}


def show_audit(found: AuditRun, folder: Path, json_: bool, quiet: bool) -> int:
    """Print what an audit found and where its files are (`json_`: one JSON object; `quiet`: the verdict alone), and
    return its exit code."""
    if json_:
        content = {**found.to_dict(), "run_dir": str(folder), "files": found.files}
        typer.echo(json.dumps(content, allow_nan=False))
    elif quiet:
        typer.echo(WORDS[found.verdict])
    else:
        console = Console()
        show_verdict(console, found.result, verdict_table(found.configurations))
        if found.report.subject_data:
            console.print(SUBJECT_DATA[found.report.subject_data], highlight=False, markup=False)
        if found.judged.says:
            said = f"Released: {found.judged.says}.\nThat is {found.judged.description}."
            if found.utility is not None:
                said += f"\nUtility: {'; '.join(utility_in_words(found.utility.to_dict()))}."
            console.print(said, highlight=False, markup=False)
        notes = list(found.notes)
        if found.next_look is not None:
            references, scored, seconds = found.next_look
            notes.append(
                f"A look at {scored:,} examples with {references} references may decide, and takes about"
                f" {seconds / 60:,.0f} min: repeat the command with --run-dir {folder} --resume --references 8,16,32"
            )
        show_files(console, notes, folder, found.files.values())
    return found.exit_code


def show_attacks(result: AuditResult, json_: bool, quiet: bool) -> int:
    """Print what the attacks found in signals, likewise, and return the verdict's exit code."""
    if json_:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    elif quiet:
        typer.echo(WORDS[result.verdict])
    else:
        console = Console()
        show_verdict(console, result, attack_table(result))
    return result.exit_code


def show_files(console: Console, notes: Iterable[str], folder: Path, files: Iterable[str]) -> None:
    """Notes, and where the files of a run are."""
    for note in notes:
        console.print(f"Note: {note}", style="dim", highlight=False, markup=False)
    console.print(f"\nRun directory: {folder}", soft_wrap=True, highlight=False, markup=False)
    for file in files:
        console.print(f"  {folder / file}", soft_wrap=True, highlight=False, markup=False)


def show_verdict(console: Console, result: AuditResult, *tables: Table) -> None:
    """The verdict in one sentence, what it leaves open in three, then tables, details and controls."""
    console.print(result.sentence, style=STYLES[result.verdict], highlight=False, markup=False)
    console.print(" ".join(result.says), highlight=False, markup=False)
    for table in (*tables, *([target_table(result)] if result.others else []), level_table(result)):
        console.print()
        console.print(table)
    console.print()
    for text in result.details:
        console.print(text, highlight=False, markup=False)
    if result.feasible:
        console.print("\nWhat would decide:", highlight=False, markup=False)
        for option in result.feasible:
            console.print(f"  - {option.says}", highlight=False, markup=False)
        rules = dict.fromkeys(option.rule for option in result.feasible)
        console.print(" ".join(rules), style="dim", highlight=False, markup=False)
    console.print(controls_line(result), style="dim", highlight=False, markup=False)


def verdict_table(configurations: tuple[Configuration, ...]) -> Table:
    """A line for each released configuration: its verdict, its strongest attack, and what that finds."""
    policy, excess = configurations[-1].result.policy, any(c.result.claim == "excess" for c in configurations)
    area = any(c.result.claim == "auc" for c in configurations)
    numbers = ("AUC\nabove",) if area else ("adds, in\npoints",) if excess else ("AUC", "found")
    title = f"Members found at a false-positive rate of at most {_percent(policy.fpr)}"
    table = result_table(title, ("released", "verdict", "strongest judged attack"), (*numbers, "top 10%\nkept"))
    for c in configurations:
        r, best = c.result, c.result.strongest
        low, high = r.bounds(best)
        whole = (f"{best.auc:.3f}", f"{best.found / r.members:.1%}\n[dim]{low:.1%}-{high:.1%}[/]")
        kept = f"{c.utility.top_overlap:.0%}" if c.utility else ""
        name = "predictions" if r.policy.release == "prediction" else c.name
        table.add_row(name, _badge(r.verdict), _lines(best), *((_added(r, best),) if excess or area else whole), kept)
    return table


def level_table(result: AuditResult) -> Table:
    """What the labels of the same queries find, what the explanation adds, and both, by number of queries."""
    anyway = result.anyway
    title = f"What an attacker finds at {_percent(result.policy.fpr)} false positives"
    alone = result.policy.release == "prediction"
    compared = () if alone else (f"{anyway} alone", "explanations add")
    table = result_table(title, ("asked",), (*compared, anyway if alone else "both together"))
    for line in result.levels:
        labels, added, whole = line["labels"], line["added"], line["whole"]
        cells = (
            "" if labels is None else f"{labels['tpr']:.1%} [dim]({labels['low']:.1%}-{labels['high']:.1%})[/]",
            "" if added is None else f"{_points(added['low'])} to {_points(added['high'])}",
        )
        found = "nothing judged" if whole is None else f"{whole['low']:.1%}-{whole['high']:.1%}"
        table.add_row(asks(line["patience"]), *(() if alone else cells), found)
    return table


def target_table(result: AuditResult) -> Table:
    """A line for each target, judged on its own."""
    excess = result.claim != "whole"
    column = {"whole": "found", "excess": "adds", "auc": "AUC above"}[result.claim]
    title = f"{result.targets} models, each judged on its own"
    table = result_table(title, ("model", "verdict", "strongest judged attack"), (column,))
    for r in sorted((result, *result.others), key=lambda one: -1 if one.target is None else one.target):
        best = r.strongest
        low, high = r.bounds(best)
        shown = _added(r, best) if excess else f"{best.found / r.members:.1%}\n[dim]{low:.1%}-{high:.1%}[/]"
        table.add_row(f"{r.target}", _badge(r.own_verdict), _lines(best), shown)
    return table


def attack_table(result: AuditResult) -> Table:
    """A line for each attack, by number of queries; dim where the verdict does not rest on it."""
    policy, anyway = result.policy, result.anyway
    compares = any(a.pair is not None for a in result.attacks)
    numbers = ("AUC", f"TPR at\n{_percent(policy.fpr)}", "bounds", *((f"more than\n{anyway}",) if compares else ()))
    table = result_table("What each attack finds", ("attack", "reads"), numbers)
    beyond = {code(e) for e in result.beyond}
    for level in sorted({a.level for a in result.attacks}):
        table.add_section()
        table.add_row(f"[bold]asked {asks(level)}[/]")
        rows = [a for a in result.attacks if a.level == level]
        for a in sorted(rows, key=lambda a: not result.is_judged(a)):
            low, high = result.bounds(a)
            mark = " [yellow]!![/]" if a.code in beyond else ""
            cells = [f"{a.auc:.3f}", f"{a.found / result.members:.1%}", f"{low:.1%}-{high:.1%}"]
            if compares:
                added = result.added(a)
                cells.append("" if added is None else f"{_points(added[0])} to {_points(added[1])}")
            reads = re.sub(rf"@{level}(?!\d)", "", a.signal)
            table.add_row(
                ATTACK_NAMES.get(a.attack, a.attack) + mark,
                signal_name(reads),
                *cells,
                style=None if result.is_judged(a) else "dim",
            )
    table.caption, table.caption_justify = (
        "Dim: shown but not judged." + (" !!: not judged, but above the limit." if beyond else ""),
        "left",
    )
    return table


def asks(level: int) -> str:
    """How often an attacker asks."""
    return "once" if level == 1 else f"{level:,} times"


def controls_line(result: AuditResult) -> str:
    """Which controls passed, which failed, and why others were not run."""
    kinds = {
        "passed": [c.name for c in result.controls if c.failed is False],
        "FAILED": [c.name for c in result.controls if c.failed],
        "not run": [f"{c.name} ({c.says})" for c in result.controls if c.failed is None],
    }
    found = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
    used = "" if result.uses in (None, 1) else f" These examples were used for {result.uses} verdicts."
    return f"Controls: {found or 'none'}.{used}"


def _badge(verdict: Verdict) -> str:
    return f"[{STYLES[verdict]}]{WORDS[verdict]}[/]"


def _added(result: Judgement, e: Evidence) -> str:
    """How much more than the baseline an attack finds, or how far its AUC is above, and the bounds of that."""
    if result.claim == "auc":
        area = result.area(e)
        return "" if area is None else f"{result.estimate(e):+.3f}\n[dim]{area[0]:+.3f} to {area[1]:+.3f}[/]"
    bounds = result.added(e)
    if bounds is None or e.pair is None:
        return ""
    estimate = (e.pair.only - e.pair.missed) / result.members
    return f"{_points(estimate)}\n[dim]{_points(bounds[0])} to {_points(bounds[1])}[/]"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _lines(attack: Evidence) -> str:
    name = ATTACK_NAMES.get(attack.attack, attack.attack)
    return f"{name if name.isupper() else name.lower()}\n[dim]{signal_name(attack.signal)}[/]"


def result_table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """Text columns flush left, then numbers flush right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (*texts, *numbers):
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold", no_wrap=name == "verdict")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
