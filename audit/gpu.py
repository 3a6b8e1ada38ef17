"""Everything that only a GPU shows, in a stated order: the GPU tests, then what the most depends on, then the rest.

    python -m audit.gpu                  # all steps that are not finished; the same command goes on where it stopped
    python -m audit.gpu --list           # the steps, what they are expected to take, and what became of them
    python -m audit.gpu --minutes 60     # stop cleanly after an hour
    python -m audit.gpu --only dp_head   # one step (repeat for more)
    python -m audit.gpu --quick          # every step, small: shows that everything works; proves nothing

Results go to audit/results/gpu, with hardware, versions and revision; `steps.json` there says what is finished. With
`--minutes`, a step that cannot be interrupted is only started if it is expected to fit, and one that resumes is
interrupted when time is up. Nothing is installed: a step that lacks a package or a file of data says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .shared.run import RESULTS, ROOT, provenance, table, write_json

GRACE = 30.0
"""Seconds in which an interrupted step may put down what it has."""


@dataclass(frozen=True)
class Step:
    """One command."""

    name: str  # of the step, and of its result
    module: str  # what `python -m` runs
    options: tuple[str, ...]  # of the full run
    minutes: float  # expected, on a current data-centre GPU
    quick: tuple[str, ...] | None = None  # options of a small run, with `--quick`; default: those of the full one
    resumes: bool = False  # it keeps finished parts, so that it may be interrupted and started again

    @property
    def fine(self) -> tuple[int, ...]:
        """Exit codes of a run that went through; 1 is a missed target of a suite or benchmark."""
        return (0,) if self.module == "pytest" else (0, 1)

    def command(self, out: Path, options: argparse.Namespace) -> list[str]:
        """What is run, with its result at `out`."""
        chosen = [*(self.quick if options.quick and self.quick is not None else self.options)]
        if self.module == "pytest":
            return [sys.executable, "-m", self.module, *chosen, f"--junit-xml={out}"]
        chosen += ["--quick"] if options.quick else []
        folders = {"data": options.data, "cache": options.cache}
        chosen += [f"--{name}={folder.absolute()}" for name, folder in folders.items() if folder]
        return [sys.executable, "-m", self.module, *chosen, "--out", str(out)]

    def out(self, folder: Path) -> Path:
        """File of its result."""
        return folder / f"{self.name}.{'xml' if self.module == 'pytest' else 'json'}"


CUDA = ("--device", "cuda")
GPU_TESTS = ("-q", "-m", "gpu", "-p", "no:cacheprovider")


def _benchmark(name: str, minutes: float, *options: str, module: str = "") -> Step:
    return Step(name, f"audit.benchmarks.{module or name}", (*CUDA, *options), minutes)


def _suite(name: str, minutes: float, module: str = "", quick: tuple[str, ...] = ()) -> Step:
    return Step(name, f"audit.suites.{module or name}", ("--full", *CUDA), minutes, (*quick, *CUDA), resumes=True)


STEPS = (
    Step("tests", "pytest", (*GPU_TESTS, "tests"), 5,
         (*GPU_TESTS, "tests/explain", "tests/dp/heads", "tests/audit/references")),
    _benchmark("explainer_overhead_224", 5, "--large", module="explainer_overhead"),
    _benchmark("explainer_overhead", 5, "--all"),
    _benchmark("hardening_speed", 3),
    _benchmark("dp_finetuning", 3, "--batch", "256", module="dp.finetuning"),
    _benchmark("dp_head", 3, module="dp.head"),
    _suite("canary_figure3", 20, "paper_c_canaries.figure3"),
    _benchmark("reference_training", 12, "--minutes", "8"),
    _benchmark("canary_training", 30),
    _suite("releases", 120, quick=("--task", "digits")),
    _suite("canary_scratch", 270, "paper_c_canaries.scratch"),
    _suite("paper_e_tmi", 480),
)  # fmt: skip
"""In the order in which they are run: tests, then what the most depends on, then what takes longest."""


def run(
    steps: Sequence[Step],
    folder: Path,
    options: argparse.Namespace,
    call: Callable[[list[str], float], int | None],
    say: Callable[[str], None] = print,
) -> int:
    """Run what is not finished; 0 when everything was, 1 if a step failed, 3 if time was up before."""
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    failed, waiting = [], []
    for step in steps:
        known, out = recorded(folder).get(step.name, {}), step.out(folder)
        command = step.command(out, options)
        if options.only and step.name not in options.only:
            continue
        if known.get("finished") and out.is_file() and not options.again:
            say(f"{step.name}: finished before, in {known['seconds'] / 60:.0f} min")
            continue
        left = end - time.monotonic()
        if left <= 0 or (60 * step.minutes > left and not step.resumes and not options.quick):
            say(f"{step.name}: not started, expected to take {step.minutes:g} min")
            waiting.append(step.name)
            continue
        say(f"{step.name}: expected to take {step.minutes:g} min")
        began = time.monotonic()
        before = out.stat().st_mtime_ns if out.is_file() else None
        code = call(command, left)
        wrote = out.is_file() and out.stat().st_mtime_ns != before
        finished = code in step.fine and wrote
        keep(folder, step, command, code, finished, time.monotonic() - began)
        if code is None:
            say(f"{step.name}: interrupted, finished parts are kept; the same command goes on")
            waiting.append(step.name)
        elif not finished:
            failed.append(step.name)
        say(f"{step.name}: {'finished' if finished else 'not finished'}, exit code {code}")
    if failed:
        say(f"not finished: {', '.join(failed)}")
    if waiting:
        say(f"time was up before: {', '.join(waiting)}")
    return 1 if failed else 3 if waiting else 0


def recorded(folder: Path) -> dict[str, Any]:
    """What became of each step, by its name."""
    path = folder / "steps.json"
    return dict(json.loads(path.read_text())["steps"]) if path.is_file() else {}


def keep(folder: Path, step: Step, command: list[str], code: int | None, finished: bool, seconds: float) -> None:
    """Record a step, and on what it ran."""
    ran = {
        "finished": finished,
        "exit_code": code,
        "expected_minutes": step.minutes,
        **provenance(seconds, on()),
        "command": " ".join(["python", *(re.sub(r"(^|=)/.*/", r"\1", a) for a in command[1:])]),
    }
    write_json(folder / "steps.json", {"steps": recorded(folder) | {step.name: ran}})


def on() -> str:
    """The device whose name is recorded."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def called(command: list[str], seconds: float) -> int | None:
    """Exit code of a command; None where it was interrupted because time was up."""
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait(None if seconds == float("inf") else seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    except KeyboardInterrupt:  # the step has been told, too
        process.wait()
        raise
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def shown(steps: Sequence[Step], folder: Path) -> str:
    """The steps as a table."""
    known, rows = recorded(folder), []
    for step in steps:
        then = known.get(step.name)
        outcome = "finished" if then and then["finished"] else "not finished"
        last = f"{outcome}, {then['seconds'] / 60:.1f}" if then else ""
        resumes = "yes" if step.resumes else "no"
        typed = " ".join(["python", "-m", step.module, *step.options])
        rows.append((step.name, f"{step.minutes:g}", resumes, last, typed))
    return table(("step", "minutes expected", "resumes", "last run, minutes", "command"), rows)


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m audit.gpu", description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--list", action="store_true", help="show the steps and run nothing")
    p.add_argument("--only", action="append", choices=[s.name for s in STEPS], help="this step (repeat for more)")
    p.add_argument("--again", action="store_true", help="run finished steps again")
    p.add_argument("--minutes", type=float, help="stop cleanly after so many")
    p.add_argument("--quick", action="store_true", help="every step, small; proves nothing")
    p.add_argument("--data", type=Path, help="folder of the .npz files (default: $SAFEXPLAIN_DATA)")
    p.add_argument("--cache", type=Path, help="where suites keep finished parts")
    p.add_argument("--out", type=Path, help="default: audit/results/gpu; with --quick, a folder beside the cache")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; 0 when all are finished, 1 if one failed, 2 without a GPU, 3 if time was up before."""
    options = parsed(argv)
    quick = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "safexplain" / "gpu-quick"
    folder = (options.out or (quick if options.quick else RESULTS / "gpu")).absolute()
    if options.list:
        print(shown(STEPS, folder))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("error: torch finds no CUDA device, and these steps show what only a GPU shows; `--list` lists them",
              file=sys.stderr)  # fmt: skip
        return 2
    print(f"{torch.cuda.get_device_name()}; results go to {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return run(STEPS, folder, options, called, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
