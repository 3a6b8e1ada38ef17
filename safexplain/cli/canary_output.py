"""What `safexplain canaries` writes and prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from safexplain.audit.canaries.plot import plot_canaries
from safexplain.cli.console import result_table
from safexplain.verdict.canaries.finding import Finding, Verdict
from safexplain.verdict.canaries.result import CanaryResult
from safexplain.verdict.certificate.write import write_json

__all__ = ["show"]

SHORT: dict[Verdict, str] = {
    "consistent with substitute": "consistent",
    "violates add/remove as a claim about records or attributes": "violates add/remove",
    "violates the claim: a bug": "A BUG",
    "inconclusive": "inconclusive",
}
"""Verdicts, for a column of the table."""

COLUMNS = ("at\nleast", "at most\nshown", "claimed,\nsubst.", "claimed,\nadd/rem.", "runs")


def show(found: Sequence[Finding], confidence: float, folder: Path, *, json_: bool, quiet: bool) -> int:
    """Write the files, print the strongest finding or all, and return its exit code.

    Args:
        found: of one claim, each at its own confidence.
        confidence: of all together.
        folder: the run directory.
        json_: one JSON object, of the strongest finding; `scenarios` has all where there are several.
        quiet: the verdict alone.
    """
    strongest = max(judged_of(found), key=lambda finding: finding.epsilon_lower)
    files = {"result": "canaries.json"}
    content: dict[str, Any] = strongest.to_dict()
    if len(found) > 1:
        content["scenarios"] = {finding.scenario: finding.to_dict() for finding in found}
    write_json(folder / files["result"], content)
    steps = [finding for finding in found if isinstance(finding, CanaryResult)]
    if steps and strongest.claim.mechanism is not None:
        files["plot"] = "canaries.png"
        plot_canaries(steps, path=folder / files["plot"])
    if json_:
        typer.echo(json.dumps({**content, "run_dir": str(folder), "files": files}, allow_nan=False))
    elif quiet:
        typer.echo(strongest.verdict)
    else:
        console = Console()
        console.print(_table(found, confidence))
        console.print(f"{strongest.scenario}: {strongest.sentence}", highlight=False)
        if len(judged_of(found)) < len(found):
            line = "The worst case is drawn, not trained: it shows what runs can tell, and decides nothing here."
            console.print(line, style="dim", highlight=False)
        if len(judged_of(found)) > 1:
            line = f"Each bound holds at {strongest.confidence:.1%}, so all of them together at {confidence:.0%}."
            console.print(line, style="dim", highlight=False)
        console.print(f"\nRun directory: {folder}", soft_wrap=True, highlight=False, markup=False)
        for file in files.values():
            console.print(f"  {folder / file}", soft_wrap=True, highlight=False, markup=False)
    return strongest.exit_code


def judged_of(found: Sequence[Finding]) -> list[Finding]:
    """Those that decide: where something was trained, the worst case, which is drawn, is only shown."""
    return [finding for finding in found if finding.scenario != "worst-case"] or list(found)


def _table(found: Sequence[Finding], confidence: float) -> Table:
    delta = found[0].claim.delta
    title = f"Epsilon of a substituted record ({confidence:.0%} confidence, delta {delta:g})"
    table = result_table(title, ("canary",), COLUMNS)
    table.columns[0].no_wrap = True
    table.add_column("verdict", overflow="fold")
    for finding in found:
        style = {0: "green", 1: "bold red", 3: "yellow"}[finding.exit_code]
        numbers = (finding.epsilon_lower, finding.ceiling, finding.epsilon_substitute, finding.epsilon_add_remove)
        shown = ["" if n is None else f"{n:.2f}" for n in numbers]
        table.add_row(finding.scenario, *shown, f"{finding.runs:,}", f"[{style}]{SHORT[finding.verdict]}[/]")
    return table
