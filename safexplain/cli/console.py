"""What commands share: options, the run directory, tables on standard output, errors as one line on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
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
from safexplain.verdict.evidence import ATTACK_NAMES, Verdict, is_judged, signal_name
from safexplain.verdict.judgement import AttackResult, AuditResult

USAGE, INTERRUPTED = 2, 130

STYLES: dict[Verdict, str] = {"certified": "bold green", "leak": "bold red", "inconclusive": "bold yellow"}
WORDS: dict[Verdict, str] = {"certified": "CERTIFIED", "leak": "LEAK PROVEN", "inconclusive": "INCONCLUSIVE"}


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the verdict.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunDir = Annotated[Path | None, typer.Option(help="Where files go; default safexplain-runs/TIME.")]
Resume = Annotated[bool, typer.Option(help="Take up --run-dir: finished models are not trained again.")]


class Interrupted(Exception):
    """Ctrl-C in the middle of a run that can be taken up."""


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Let an interruption say how the run is taken up."""
    try:
        yield
    except KeyboardInterrupt:
        how = f"the same command with --run-dir {folder} --resume goes on from there"
        raise Interrupted(f"interrupted; finished models are kept: {how}") from None


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
        console.print(found.result.sentence, highlight=False)
        console.print(controls_line(found.result), style="dim", highlight=False)
        for note in found.notes:
            console.print(f"Note: {note}", style="dim", highlight=False, markup=False)
        console.print(f"\nRun directory: {folder}", soft_wrap=True, highlight=False, markup=False)
        for file in found.files.values():
            console.print(f"  {folder / file}", soft_wrap=True, highlight=False, markup=False)
    return found.exit_code


def verdict_table(configurations: tuple[Configuration, ...]) -> Table:
    """A line for each released configuration: its verdict, its strongest attack, and what the label alone gives."""
    policy = configurations[-1].result.policy
    title = f"Members found at a false-positive rate of at most {_percent(policy.fpr)}"
    caption = f"The policy allows {_percent(policy.max_tpr)}; guessing finds {_percent(policy.fpr)}."
    table = result_table(
        title, ("released", "verdict", "strongest attack"), ("AUC", "found", "label\nalone", "top 10%\nkept")
    )
    table.caption, table.caption_justify = caption, "left"
    for c in configurations:
        r, best = c.result, c.result.strongest
        low, high = r.bounds(best)
        label = next((a for a in r.attacks if a.role == "label"), None)
        table.add_row(
            c.name,
            f"[{STYLES[r.verdict]}]{WORDS[r.verdict]}[/]",
            _lines(best),
            f"{best.auc:.3f}",
            f"{best.at(policy.fpr).tpr:.1%}\n[dim]{low:.1%}-{high:.1%}[/]",
            f"{label.at(policy.fpr).tpr:.1%}" if label else "",
            f"{c.utility.top_overlap:.0%}" if c.utility else "",
        )
    return table


def attack_table(result: AuditResult) -> Table:
    """A line for each attack."""
    policy = result.policy
    title = f"{result.members} members, {result.non_members} non-members, {result.references} reference models"
    table = result_table(
        title, ("attack", "signal"), ("AUC", f"TPR at {_percent(policy.fpr)}", "bounds", "realised FPR")
    )
    table.caption, table.caption_justify = "Dim: shown beside, not judged.", "left"
    for a in result.attacks:
        rate = a.at(policy.fpr)
        low, high = result.bounds(a)
        style = None if is_judged(a.role, policy) else "dim"
        cells = (f"{a.auc:.3f}", f"{rate.tpr:.1%}", f"{low:.1%}-{high:.1%}", f"{rate.realised_fpr:.2%}")
        table.add_row(ATTACK_NAMES.get(a.attack, a.attack), signal_name(a.signal), *cells, style=style)
    return table


def controls_line(result: AuditResult) -> str:
    """Which controls passed, which failed, which could not be run."""
    kinds = {
        "passed": [c.name for c in result.controls if c.failed is False],
        "FAILED": [c.name for c in result.controls if c.failed],
        "not run": [c.name for c in result.controls if c.failed is None],
    }
    found = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
    used = "" if result.uses in (None, 1) else f" These examples have been used for {result.uses} verdicts."
    return f"Controls: {found}.{used}"


def _lines(attack: AttackResult) -> str:
    name = ATTACK_NAMES.get(attack.attack, attack.attack)
    return f"{name if name.isupper() else name.lower()}\n[dim]{signal_name(attack.signal)}[/]"


def result_table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """Text columns flush left, then numbers flush right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (*texts, *numbers):
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold")
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
