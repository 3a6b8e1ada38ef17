"""The first lines of an audit, what would make it shorter, and `--plan`: time, memory and the best verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.filesize import decimal
from rich.table import Table

from safexplain._files import machine_memory
from safexplain._progress import duration_text
from safexplain.audit.planning import Plan
from safexplain.audit.question import ENOUGH_REFERENCES, HOUR
from safexplain.audit.store import free_space
from safexplain.cli.run.tables import result_table, screen


def announce(plan: Plan, says: Sequence[str], *, gradients: bool, gpu: bool) -> None:
    """Say on standard error what will be done and how long that takes; above an hour, first what would make it less,
    and, in a terminal, ask, or raise `typer.Abort`; `says` is what else has to be known, `gradients` whether the model
    has such, which other explainers follow faster, `gpu` whether models run on one."""
    long = plan.seconds > HOUR
    if long and (ways := faster(plan, gradients=gradients, gpu=gpu)):
        typer.echo(f"This takes {duration_text(plan.seconds)} here. Faster: {'; '.join(ways)}.", err=True)
    for line in (in_words(plan), *says):
        typer.echo(line, err=True)
    if long and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Continue?", default=True, abort=True, err=True)


def in_words(plan: Plan) -> str:
    """What an audit does, and how long that takes, in a line."""
    often = " and ".join(map(str, plan.patience)) + (" query" if plan.patience == (1,) else " queries")
    best = f"{100 * plan.best_certifiable:.1f}"
    limit = f"+{best} points" if plan.claim == "excess" else f"{best} % found"
    what = "nothing certifiable" if plan.obstacles else f"certifiable from {limit}"
    again, total = [], plan.seconds
    for references, scored, seconds in plan.later:
        total += seconds
        if total > HOUR:
            break
        again.append(f"with {references} and {scored:,} in {duration_text(total)}")
    looks = f" (while undecided, again {', '.join(again)})" if again else ""
    return (
        f"{plan.scored:,} of {plan.examples:,} examples scored, {plan.references} references, {often}, about"
        f" {duration_text(plan.seconds)}{looks}; {what}; --quick for a first look in 2 min"
    )


def faster(plan: Plan, *, gradients: bool, gpu: bool) -> list[str]:
    """What would make an audit shorter, with its time then, where that follows from the plan."""
    found, total = [], plan.seconds
    explaining = [stage for stage in plan.stages if stage.name.startswith("explaining")]
    if plan.references > ENOUGH_REFERENCES:
        asked = sum(s.seconds for s in plan.stages if s.name.startswith(("training", "asking for", "explaining")))
        less = total - asked * (1 - (ENOUGH_REFERENCES + 1) / (plan.references + 1))
        found.append(f"--references {ENOUGH_REFERENCES} ({duration_text(less)})")
    kept = sum(stage.count for stage in explaining) * 4 * plan.rates.label  # a pass forward and one backward
    if gradients and kept < (spent := sum(stage.seconds for stage in explaining)) / 2 and spent > total / 4:
        found.append(f"--explainer InputXGradient, if that is what you serve ({duration_text(total - spent + kept)})")
    if gradients and not gpu:
        found.append("a machine with a GPU")
    return [*found, "several processes or machines, from Python (docs/scale.md)"]


def show_plan(plan: Plan, folder: Path, json_: bool, quiet: bool) -> int:
    """Print a plan; the exit code is 0."""
    memory, disk = machine_memory(), free_space(folder)
    warned = warnings_of(plan, memory, disk)
    machine = {"memory_bytes": memory, "free_disk_bytes": disk}
    content = {**plan.to_dict(), "machine": machine, "warnings": warned}
    if console := screen(content, duration_text(plan.seconds), json_, quiet):
        console.print(plan_table(plan))
        console.print(f"Memory: about {decimal(plan.memory_bytes)} of {decimal(memory)}", highlight=False)
        console.print(f"Disk: about {decimal(plan.disk_bytes)} of {decimal(disk)} that are free", highlight=False)
        console.print(best_words(plan), highlight=False, markup=False)
        for sentence in plan.obstacles:
            console.print(f"  - {sentence}", highlight=False, markup=False)
        for note in plan.notes:
            console.print(f"Note: {note}", style="dim", highlight=False, markup=False)
        for warning in warned:
            console.print(f"Warning: {warning}", style="bold yellow", highlight=False, markup=False)
    return 0


def plan_table(plan: Plan) -> Table:
    """A line for each stage, and one for all."""
    table = result_table("What this will take", ("stage", "what"), ("time", "share"))
    for stage in plan.stages:
        what = f"{stage.count:,} {stage.unit}" + (f" ({stage.says})" if stage.says else "")
        table.add_row(stage.name, what, duration_text(stage.seconds), f"{stage.seconds / max(plan.seconds, 1e-9):.0%}")
    table.add_section()
    table.add_row("all", "", f"[bold]{duration_text(plan.seconds)}[/]", "")
    table.caption = (
        f"Measured in {duration_text(plan.took)} on this machine, as busy as it is now. Nothing was written."
    )
    table.caption_justify = "left"
    return table


def best_words(plan: Plan) -> str:
    """The best verdict in a sentence."""
    if plan.claim == "epsilon":
        return (
            f"Best verdict: {plan.members:,} runs on D and {plan.non_members:,} on D' that are told apart without an"
            f" error show an epsilon of at least {plan.best_certifiable:.2f}, beside a claim of {plan.limit:.2f}."
        )
    what = "an excess over labels" if plan.claim == "excess" else "a share of members found"
    best, limit = f"{plan.best_certifiable:.1%}", f"{plan.limit:.1%}"
    reach = "within reach" if plan.best_certifiable <= plan.limit else "out of reach"
    text = (
        f"Best verdict: if nothing leaks, {plan.members:,} members and {plan.non_members:,} non-members that are scored"
        f" probably certify {what} of {best}; the policy's {limit} is {reach}."
    )
    if plan.needed:
        text += f" {plan.needed:,} scored examples, half of them members, would be enough."
    return f"{text} But nothing would be certified:" if plan.obstacles else text


def warnings_of(plan: Plan, memory: int, disk: int) -> list[str]:
    """What does not fit."""
    found = []
    if plan.memory_bytes > memory:
        found.append(
            f"this machine has {decimal(memory)} of memory, and about {decimal(plan.memory_bytes)} are needed: give"
            " fewer --references or fewer examples"
        )
    if plan.disk_bytes > disk:
        found.append(
            f"about {decimal(plan.disk_bytes)} will be written, and {decimal(disk)} are free: give a --run-dir"
            " elsewhere"
        )
    return found
