"""How commands print a result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from safexplain.verdict import words
from safexplain.verdict.certificate.write import SUBJECT_DATA
from safexplain.verdict.judgement import Evidence, Verdict
from safexplain.verdict.result import AuditResult
from safexplain.verdict.words import Figure, percent, utility_in_words

if TYPE_CHECKING:
    from safexplain.audit.report.outcome import AuditRun
    from safexplain.audit.report.tables import Configuration

STYLES: dict[Verdict, str] = {"certified": "bold green", "leak": "bold red", "inconclusive": "bold yellow"}
WORDS: dict[Verdict, str] = {verdict: word.upper() for verdict, word in words.VERDICTS.items()}


def console_for(content: Mapping[str, Any], word: str, json_: bool, quiet: bool) -> Console | None:
    """A console for the result; None if it was printed, as JSON or one word."""
    if json_:
        typer.echo(json.dumps(content, allow_nan=False))
    elif quiet:
        typer.echo(word)
    return None if json_ or quiet else Console(highlight=False)


def show_audit(found: AuditRun, folder: Path, json_: bool, quiet: bool) -> int:
    """Print the result of an audit, and return its exit code."""
    content = {**found.to_dict(), "run_dir": str(folder), "files": found.files}
    if console := console_for(content, WORDS[found.verdict], json_, quiet):
        show_verdict(console, found.result, _verdict_table(found.configurations))
        if found.report.subject_data:
            console.print(SUBJECT_DATA[found.report.subject_data], markup=False)
        if found.judged.says:
            text = f"Released: {found.judged.says}.\nThat is {found.judged.description}."
            if found.utility is not None:
                text += f"\nUtility: {'; '.join(utility_in_words(found.utility.to_dict()))}."
            console.print(text, markup=False)
        notes = list(found.notes)
        if found.next_look is not None:
            references, scored, seconds = found.next_look
            notes.append(
                f"Another look, at {scored:,} examples with {references} references, may decide; it takes about"
                f" {seconds / 60:,.0f} min: repeat the command with --run-dir {folder} --resume --references 8,16,32"
            )
        show_files(console, notes, folder, found.files.values())
    return found.exit_code


def show_attacks(result: AuditResult, json_: bool, quiet: bool) -> int:
    """Print the result of attacks on signals, and return the exit code."""
    if console := console_for(result.to_dict(), WORDS[result.verdict], json_, quiet):
        show_verdict(console, result, _attack_table(result))
    return result.exit_code


def show_files(console: Console, notes: Iterable[str], folder: Path, files: Iterable[str]) -> None:
    """Print notes, and the paths of a run's files."""
    for note in notes:
        console.print(f"Note: {note}", style="dim", markup=False)
    console.print(f"\nRun directory: {folder}", soft_wrap=True, markup=False)
    for file in files:
        console.print(f"  {folder / file}", soft_wrap=True, markup=False)


def show_verdict(console: Console, result: AuditResult, *tables: Table) -> None:
    """Print the verdict, then tables, details and controls."""
    console.print(result.sentence, style=STYLES[result.verdict], markup=False)
    console.print(" ".join(words.says(result)), markup=False)
    for table in (*tables, *([_target_table(result)] if result.others else []), _level_table(result)):
        console.print()
        console.print(table)
    console.print()
    for text in words.details(result):
        console.print(text, markup=False)
    console.print(_controls_line(result), style="dim", markup=False)


def _verdict_table(configurations: tuple[Configuration, ...]) -> Table:
    excess = any(c.result.claim == "excess" for c in configurations)
    title = f"Members found at a false-positive rate of at most {percent(configurations[-1].result.policy.fpr, 3)}"
    numbers = ("adds, in\npoints",) if excess else ("AUC", "found")
    table = result_table(title, ("released", "verdict", "strongest judged attack"), (*numbers, "top 10%\nkept"))
    for c in configurations:
        kept = f"{c.utility.top_overlap:.0%}" if c.utility else ""
        name = "predictions" if c.result.policy.release == "prediction" else c.name
        found = words.headline(c.result)
        shown = _figure_cell(found) if found.signed == excess else ""
        auc = () if excess else (f"{c.result.strongest.auc:.3f}",)
        table.add_row(name, _badge(c.result.verdict), _attack_cell(c.result.strongest), *auc, shown, kept)
    return table


def _level_table(result: AuditResult) -> Table:
    alone = result.policy.release == "prediction"
    compared = () if alone else (f"{result.anyway} alone", "explanations add")
    title = f"What an attacker finds at {percent(result.policy.fpr, 3)} false positives"
    table = result_table(title, ("asked",), (*compared, result.anyway if alone else "both together"))
    for row in words.level_rows(result):
        labels = "" if row.labels is None else f"{row.labels.text} [dim]({row.labels.interval})[/]"
        cells = labels, "" if row.added is None else row.added.interval
        found = "nothing judged" if row.whole is None else row.whole.interval
        table.add_row(words.times(row.level), *(() if alone else cells), found)
    return table


def _target_table(result: AuditResult) -> Table:
    title = f"{result.targets} models, each judged on its own"
    number = "found" if result.claim == "whole" else "adds"
    table = result_table(title, ("model", "verdict", "strongest judged attack"), (number,))
    for row in words.target_rows(result):
        verdict = _badge(row.judgement.own_verdict)
        table.add_row(f"{row.judgement.target}", verdict, _attack_cell(row.best), _figure_cell(row.figure))
    return table


def _attack_table(result: AuditResult) -> Table:
    compares = any(a.pair is not None for a in result.attacks)
    more = (f"more than\n{result.anyway}",) if compares else ()
    numbers = ("AUC", f"TPR at\n{percent(result.policy.fpr, 3)}", "bounds", *more)
    table = result_table("What each attack finds", ("attack", "reads"), numbers)
    for level in sorted({a.level for a in result.attacks}):
        table.add_section()
        table.add_row(f"[bold]asked {words.times(level)}[/]")
        for a in words.in_order(result, [a for a in result.attacks if a.level == level]):
            found, added = words.rate(result, a), words.adds(result, a)
            name, reads = words.attack_name(a.attack, a.signal, level).split(" · ")
            mark = " [yellow]!![/]" if words.standing(result, a) == "beyond" else ""
            cells = [f"{a.auc:.3f}", found.text, found.interval]
            cells += ["" if added is None else added.interval] if compares else []
            table.add_row(name + mark, reads, *cells, style=None if result.is_judged(a) else "dim")
    beyond = " !!: not judged, but above the limit." if result.beyond else ""
    table.caption, table.caption_justify = f"Dim: shown but not judged.{beyond}", "left"
    return table


def _controls_line(result: AuditResult) -> str:
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


def _figure_cell(figure: Figure) -> str:
    return f"{figure.text}\n[dim]{figure.interval}[/]"


def _attack_cell(e: Evidence) -> str:
    name, reads = words.attack_name(e.attack, e.signal).split(" · ")
    return f"{name if name.isupper() else name.lower()}\n[dim]{reads}[/]"


def result_table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """A table with text columns flush left, then numbers flush right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (*texts, *numbers):
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold", no_wrap=name == "verdict")
    return table
