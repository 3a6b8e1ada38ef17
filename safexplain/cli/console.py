"""What commands share: options, the run directory, tables on standard output, errors as one line on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from safexplain.audit.outcome import AuditRun
from safexplain.audit.report.model import Configuration
from safexplain.errors import InputError, SafexplainError
from safexplain.verdict.certificate.write import SUBJECT_DATA
from safexplain.verdict.evidence import ATTACK_NAMES, Evidence, Verdict, code, signal_name
from safexplain.verdict.judgement import AuditResult, Judgement
from safexplain.verdict.release import utility_in_words

USAGE, INTERRUPTED = 2, 130

STYLES: dict[Verdict, str] = {"certified": "bold green", "leak": "bold red", "inconclusive": "bold yellow"}
WORDS: dict[Verdict, str] = {"certified": "CERTIFIED", "leak": "LEAK PROVEN", "inconclusive": "INCONCLUSIVE"}


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the verdict.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunDir = Annotated[Path | None, typer.Option(help="Where files go; default safexplain-runs/TIME.")]
Plan_ = Annotated[bool, typer.Option("--plan", help="Only say what it will cost, and what it can decide.")]
Resume = Annotated[bool, typer.Option(help="Take up --run-dir: finished models are not trained again.")]


class Interrupted(Exception):
    """Ctrl-C in the middle of a run that can be taken up."""

    @classmethod
    def of(cls, folder: Path, kept: str) -> Interrupted:
        """Says what is kept in the folder, and how the run is taken up."""
        how = f"the same command with --run-dir {folder} --resume goes on from there"
        return cls(f"interrupted; {kept} are kept: {how}")


@contextmanager
def resumable(folder: Path, kept: str = "finished models") -> Iterator[None]:
    """Let an interruption say what is kept and how the run is taken up."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted.of(folder, kept) from None


def choose_folder(run_dir: Path | None, resume: bool) -> Path:
    """The run directory, not yet made.

    Raises:
        InputError: it holds files and `resume` is False, or `resume` without a directory.
    """
    if run_dir is None:
        if resume:
            raise InputError("--resume needs --run-dir: the directory of the run to take up")
        return Path("safexplain-runs") / time.strftime("%Y%m%d-%H%M%S")
    if resume and not run_dir.is_dir():
        raise InputError(f"--resume: there is no run directory {run_dir}")
    if run_dir.exists() and not run_dir.is_dir():
        raise InputError(f"--run-dir: {run_dir} is a file; give a directory")
    if not resume and run_dir.is_dir() and any(run_dir.iterdir()):
        raise InputError(f"{run_dir} is not empty: pass --resume to take it up, or another --run-dir")
    return run_dir


def make_folder(folder: Path) -> None:
    """Make the run directory and see that it can be written, before anything long is begun.

    Raises:
        InputError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"0")
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None


def show_audit(found: AuditRun, folder: Path, json_: bool, quiet: bool) -> int:
    """Print what an audit found and where its files are, and return its exit code.

    Args:
        found: by the audit, whose files are written.
        folder: where they are.
        json_: as one JSON object.
        quiet: the verdict alone.
    """
    if json_:
        content = {**found.to_dict(), "run_dir": str(folder), "files": found.files}
        typer.echo(json.dumps(content, allow_nan=False))
    elif quiet:
        typer.echo(WORDS[found.verdict])
    else:
        console = Console()
        console.print(verdict_table(found.configurations))
        console.print()
        show_verdict(console, found.result)
        if found.report.subject_data:
            console.print(SUBJECT_DATA[found.report.subject_data], highlight=False, markup=False)
        if found.judged.says:
            said = f"Released: {found.judged.says}.\nThat is {found.judged.description}."
            if found.utility is not None:
                said += f"\nUtility: {'; '.join(utility_in_words(found.utility.to_dict()))}."
            console.print(said, highlight=False, markup=False)
        show_files(console, found.notes, folder, found.files.values())
    return found.exit_code


def show_files(console: Console, notes: Iterable[str], folder: Path, files: Iterable[str]) -> None:
    """Notes, and where the files of a run are."""
    for note in notes:
        console.print(f"Note: {note}", style="dim", highlight=False, markup=False)
    console.print(f"\nRun directory: {folder}", soft_wrap=True, highlight=False, markup=False)
    for file in files:
        console.print(f"  {folder / file}", soft_wrap=True, highlight=False, markup=False)


def show_verdict(console: Console, result: AuditResult) -> None:
    """The levels of patience, the targets where there are several, the sentence with its caveats, and the controls."""
    if result.others:
        console.print(target_table(result))
        console.print()
    console.print(level_table(result))
    console.print()
    console.print(result.sentence, highlight=False, markup=False)
    if result.feasible:
        console.print("\nWhat would decide:", highlight=False, markup=False)
        for option in result.feasible:
            console.print(f"  - {option.says}", highlight=False, markup=False)
        rules = dict.fromkeys(option.rule for option in result.feasible)
        console.print(" ".join(rules), style="dim", highlight=False, markup=False)
    console.print(controls_line(result), style="dim", highlight=False, markup=False)


def verdict_table(configurations: tuple[Configuration, ...]) -> Table:
    """A line for each released configuration: its verdict, its strongest attack, and what the verdict is asked of."""
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
    """Labels of the same queries, what the explanation adds, and both together, at each level of patience."""
    anyway, excess = result.anyway, result.claim == "excess"
    title = "What an attacker finds who asks about each example"
    if result.mixture > 1:
        title += f" (a mixture of {result.mixture} models)"
    alone = result.policy.release == "prediction"
    compared = () if alone else (f"{anyway} alone", "explanations add")
    table = result_table(title, ("asks",), (*compared, anyway if alone else "both together"))
    for line in result.levels:
        labels, added, whole = line["labels"], line["added"], line["whole"]
        cells = (
            "" if labels is None else f"{labels['tpr']:.1%} [dim]({labels['low']:.1%}-{labels['high']:.1%})[/]",
            "" if added is None else f"{_points(added['low'])} to {_points(added['high'])}",
        )
        found = "nothing judged" if whole is None else f"{whole['low']:.1%}-{whole['high']:.1%}"
        table.add_row(asks(line["patience"]), *(() if alone else cells), found)
    allowed = (
        f"Judged is the AUC, an average: the policy allows {result.limit:.3g} more than"
        f" {f'the {anyway} have' if result.compared else 'guessing'}."
        if result.claim == "auc"
        else f"The policy allows the explanations to add {_points(result.limit)} percentage points to the {anyway}."
        if excess
        else f"The policy allows {_percent(result.limit)} to be found{'' if alone else ' by all together'}."
    )
    table.caption, table.caption_justify = f"At {_percent(result.policy.fpr)} false positives. {allowed}", "left"
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
        mark = " (below)" if r is result else ""
        table.add_row(f"{r.target}{mark}", _badge(r.own_verdict), _lines(best), shown)
    return table


def attack_table(result: AuditResult) -> Table:
    """A line for each attack, by level of patience; dim where the verdict does not rest on it."""
    policy, anyway = result.policy, result.anyway
    title = f"{result.members:,} members, {result.non_members:,} non-members, {result.references} reference models"
    if result.grouped is not None:
        title = f"{title} ({result.grouped:,} examples in groups)"
    compares = any(a.pair is not None for a in result.attacks)
    numbers = ("AUC", f"TPR at\n{_percent(policy.fpr)}", "bounds", *((f"more than\n{anyway}",) if compares else ()))
    table = result_table(title, ("attack", "reads"), numbers)
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
        "Dim: shown beside, not judged." + (" !!: not judged, and above the limit." if beyond else ""),
        "left",
    )
    return table


def asks(level: int) -> str:
    """How often an attacker of a level of patience asks."""
    return "once" if level == 1 else f"{level:,} times"


def controls_line(result: AuditResult) -> str:
    """Which controls passed, which failed, and why others could not be run."""
    kinds = {
        "passed": [c.name for c in result.controls if c.failed is False],
        "FAILED": [c.name for c in result.controls if c.failed],
        "not run": [f"{c.name} ({c.says})" for c in result.controls if c.failed is None],
    }
    found = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
    used = "" if result.uses in (None, 1) else f" These examples have been used for {result.uses} verdicts."
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


def device_of(name: str) -> torch.device:
    """The torch device: "auto" is a GPU when there is one.

    Raises:
        InputError: unknown, or CUDA where there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"--device is auto, cpu, cuda or cuda:N; got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no usable CUDA device; use --device cpu or auto")
    if (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise InputError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run the command line and return its exit code; errors become one line, never a traceback.

    With SAFEXPLAIN_DEBUG set, unexpected errors keep theirs.
    """
    warnings.filterwarnings("ignore", module=r"captum\..*")
    try:
        command = typer.main.get_command(app)
        code = command.main(args=arguments, prog_name="safexplain", standalone_mode=False)
        if code == INTERRUPTED:
            _fail("interrupted", INTERRUPTED)
        return code if isinstance(code, int) else 0
    except SafexplainError as error:
        return _fail(str(error), USAGE)
    except Interrupted as error:
        return _fail(str(error), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except torch.cuda.OutOfMemoryError:
        return _fail("out of GPU memory; try --device cpu, or in Python a smaller AuditOptions(batch_size=...)", USAGE)
    except MemoryError:
        return _fail(
            "out of memory; try fewer --references, or in Python a smaller AuditOptions(batch_size=...)", USAGE
        )
    except OSError as error:
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", USAGE)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            message = error.format_message()
            return _fail(f"{message} (see --help)", USAGE) if message else USAGE
        if os.environ.get("SAFEXPLAIN_DEBUG"):
            raise
        return _fail(f"{type(error).__name__}: {error} (set SAFEXPLAIN_DEBUG=1 for the traceback)", USAGE)


def _fail(message: str, code: int) -> int:
    print(f"safexplain: {' '.join(message.split())}", file=sys.stderr)
    return code
