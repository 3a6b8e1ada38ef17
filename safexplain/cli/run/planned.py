"""The first lines of an audit, what would make it shorter, and `--plan`: time, memory and the best verdict."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from safexplain.audit.planning import Plan
from safexplain.audit.question import ENOUGH_REFERENCES, HOUR
from safexplain.audit.store import free_space
from safexplain.cli.run.tables import result_table

CGROUP = Path("/sys/fs/cgroup/memory.max")
"""Where a container is told how much memory it may have."""


WHAT = {"excess": "an excess over labels", "whole": "a share of members found"}
"""What a limit is of, by claim."""


def announce(plan: Plan, says: Sequence[str], *, gradients: bool, gpu: bool) -> None:
    """Say on standard error what will be done and how long that takes; above an hour, first what would make it less,
    and, in a terminal, ask.

    Args:
        plan: of the audit.
        says: what else has to be known.
        gradients: whether the model has such, which other explainers follow faster.
        gpu: whether models run on one.

    Raises:
        typer.Abort: the answer is no.
    """
    long = plan.seconds > HOUR
    if long and (ways := faster(plan, gradients=gradients, gpu=gpu)):
        typer.echo(f"This takes {spoken(plan.seconds)} here. Faster: {'; '.join(ways)}.", err=True)
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
        again.append(f"with {references} and {scored:,} in {spoken(total)}")
    looks = f" (while undecided, again {', '.join(again)})" if again else ""
    return (
        f"{plan.scored:,} of {plan.examples:,} examples scored, {plan.references} references, {often}, about"
        f" {spoken(plan.seconds)}{looks}; {what}; --quick for a first look in 2 min"
    )


def faster(plan: Plan, *, gradients: bool, gpu: bool) -> list[str]:
    """What would make an audit shorter, with its time then, where that follows from the plan."""
    found, total = [], plan.seconds
    explaining = [stage for stage in plan.stages if stage.name.startswith("explaining")]
    if plan.references > ENOUGH_REFERENCES:
        asked = sum(s.seconds for s in plan.stages if s.name.startswith(("training", "asking for", "explaining")))
        less = total - asked * (1 - (ENOUGH_REFERENCES + 1) / (plan.references + 1))
        found.append(f"--references {ENOUGH_REFERENCES} ({spoken(less)})")
    kept = sum(stage.count for stage in explaining) * 4 * plan.rates.label  # a pass forward and one backward
    if gradients and kept < (spent := sum(stage.seconds for stage in explaining)) / 2 and spent > total / 4:
        found.append(f"--explainer InputXGradient, if that is what you serve ({spoken(total - spent + kept)})")
    if gradients and not gpu:
        found.append("a machine with a GPU")
    return [*found, "several processes or machines, from Python (docs/scale.md)"]


def show_plan(plan: Plan, folder: Path, json_: bool, quiet: bool) -> int:
    """Print a plan; the exit code is 0."""
    memory, disk = machine_memory(), free_space(folder)
    warned = warnings_of(plan, memory, disk)
    if json_:
        machine = {"memory_bytes": memory, "free_disk_bytes": disk}
        typer.echo(json.dumps({**plan.to_dict(), "machine": machine, "warnings": warned}, allow_nan=False))
    elif quiet:
        typer.echo(spoken(plan.seconds))
    else:
        console = Console()
        console.print(plan_table(plan))
        has = f" of {decimal(memory)}" if memory else ""
        console.print(f"Memory: about {decimal(plan.memory_bytes)}{has}", highlight=False)
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
        table.add_row(stage.name, what, spoken(stage.seconds), f"{stage.seconds / max(plan.seconds, 1e-9):.0%}")
    table.add_section()
    table.add_row("all", "", f"[bold]{spoken(plan.seconds)}[/]", "")
    table.caption = f"Measured in {spoken(plan.took)} on this machine, as busy as it is now. Nothing was written."
    table.caption_justify = "left"
    return table


def best_words(plan: Plan) -> str:
    """The best verdict in a sentence."""
    if plan.claim == "epsilon":
        return (
            f"Best verdict: {plan.members:,} runs on D and {plan.non_members:,} on D' that are told apart without an"
            f" error show an epsilon of at least {plan.best_certifiable:.2f}, beside a claim of {plan.limit:.2f}."
        )
    what = WHAT.get(plan.claim, plan.claim)
    best, limit = f"{plan.best_certifiable:.1%}", f"{plan.limit:.1%}"
    reach = "within reach" if plan.best_certifiable <= plan.limit else "out of reach"
    text = (
        f"Best verdict: if nothing leaks, {plan.members:,} members and {plan.non_members:,} non-members that are scored"
        f" probably certify {what} of {best}; the policy's {limit} is {reach}."
    )
    if plan.needed:
        text += f" {plan.needed:,} scored examples, half of them members, would be enough."
    return f"{text} But nothing would be certified:" if plan.obstacles else text


def warnings_of(plan: Plan, memory: int | None, disk: int) -> list[str]:
    """What does not fit."""
    found = []
    if memory is not None and plan.memory_bytes > memory:
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


def machine_memory() -> int | None:
    """Bytes of memory of this machine, or that this container may have; None: not known."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        return min(found, int(CGROUP.read_text()))
    except (ValueError, OSError):
        return found


def spoken(seconds: float) -> str:
    """In the unit that suits."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
