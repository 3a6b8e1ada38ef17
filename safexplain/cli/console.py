"""Shared by all commands: the run directory, interruptions, and errors in one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

from safexplain.errors import InputError, SafexplainError

if TYPE_CHECKING:
    import torch

USAGE, INTERRUPTED, TERMINATED = 2, 130, 143


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during a run that can be resumed; its folder has what is `kept`."""

    def __init__(self, folder: Path, kept: str, found: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"interrupted; {kept} are kept in {folder}")
        self.content = {**(found or {}), "run_dir": str(folder), "kept": kept}

    def resume(self, arguments: list[str]) -> str:
        """The command that continues the run."""
        words = ["safexplain", *arguments]
        if not any(word.partition("=")[0] == "--run-dir" for word in words):
            words += ["--run-dir", self.content["run_dir"]]
        return shlex.join(words if "--resume" in words else [*words, "--resume"])


def _is_interruption(error: BaseException) -> bool:
    """Whether it is Ctrl-C or SIGTERM, also wrapped by `__set_name__` before Python 3.12."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)


@contextmanager
def resumable(folder: Path, kept: str = "finished models") -> Iterator[None]:
    """Raise `Interrupted` when the run is interrupted, once its directory exists."""
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as error:
        if folder.is_dir() and _is_interruption(error):
            raise Interrupted(folder, kept) from None
        raise


def choose_folder(run_dir: Path | None, resume: bool) -> Path:
    """The run directory, not yet created, or InputError."""
    if run_dir is None:
        if resume:
            raise InputError("--resume: give the directory of the run to continue with --run-dir")
        return Path("safexplain-runs") / time.strftime("%Y%m%d-%H%M%S")
    if resume and not run_dir.is_dir():
        raise InputError(f"--resume: {run_dir} does not exist; check --run-dir, or leave --resume out")
    if run_dir.exists() and not run_dir.is_dir():
        raise InputError(f"--run-dir: expected a directory, got the file {run_dir}")
    if not resume and run_dir.is_dir() and any(run_dir.iterdir()):
        raise InputError(f"--run-dir: {run_dir} is not empty; pass --resume to continue, or choose another directory")
    return run_dir


def make_folder(folder: Path) -> None:
    """Create the run directory, or raise InputError."""
    from safexplain._files import make_folder, write_atomically

    write_atomically(make_folder(folder) / ".writable", b"0").unlink()


def device_of(name: str) -> torch.device:
    """The torch device ("auto" is a GPU if there is one), or InputError."""
    import torch

    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if usable else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"--device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= usable:
        raise InputError(f"--device {name}: this machine has {usable} usable CUDA devices; use --device cpu or auto")
    return device


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run the command line (`arguments` without the program's name) and return its exit code.

    Errors become one line, and with --json an object {"error", "exit_code"}, for an interrupted run with "run_dir",
    "kept" and "resume", the command that continues. With SAFEXPLAIN_DEBUG, unexpected errors are raised.
    """
    warnings.filterwarnings("ignore", module=r"captum\..*")
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    content: dict[str, Any] = {}
    out, err = (cast(TextIO, _Pipe(stream)) for stream in (sys.stdout, sys.stderr))
    with _terminable() as terminated, redirect_stdout(out), redirect_stderr(err):
        try:
            code = typer.main.get_command(app).main(args=arguments, prog_name="safexplain", standalone_mode=False)
            message = "interrupted" if code == INTERRUPTED else ""
        except Interrupted as error:
            content = {**error.content, "resume": error.resume(arguments)}
            message, code = f"{error}. To continue: {content['resume']}", INTERRUPTED
        except (Exception, KeyboardInterrupt) as error:
            message, code = _message_and_code(error, arguments)
            if os.environ.get("SAFEXPLAIN_DEBUG") and message.endswith(DEBUG):
                raise
        if code == INTERRUPTED and terminated:
            code = TERMINATED
        if message:
            line = " ".join(message.split())
            if "--json" in arguments:
                print(json.dumps({**content, "error": line, "exit_code": code}))
            print(line if code in (INTERRUPTED, TERMINATED) else f"error: {line}", file=err)
        out.flush()
    return code if isinstance(code, int) else 0


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """SIGTERM raises KeyboardInterrupt and is added to the list; a second one ends the process."""
    received: list[int] = []
    before, process = signal.getsignal(signal.SIGTERM), os.getpid()
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def end(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != process:  # a forked worker
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


DEBUG = "(set SAFEXPLAIN_DEBUG=1 for the traceback)"


class _Pipe:
    """A stream that discards all output once its reader has gone, as in `safexplain ... | head`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, call: Callable[..., Any], *arguments: str) -> None:
        try:
            call(*arguments)
        except BrokenPipeError:
            with open(os.devnull, "w") as nowhere:  # what is still in the stream's buffer goes there at exit
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _message_and_code(error: BaseException, arguments: list[str]) -> tuple[str, int]:
    if _is_interruption(error) or isinstance(error, typer.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, SafexplainError):
        return str(error), USAGE
    if type(error).__name__ == "OutOfMemoryError":  # of torch.cuda
        return "out of GPU memory; use --device cpu, or in Python a smaller AuditOptions(batch_size=...)", USAGE
    if isinstance(error, MemoryError):
        return "out of memory; use fewer --references, or in Python a smaller AuditOptions(batch_size=...)", USAGE
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", USAGE
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # usage errors of the parser
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else " ".join(["safexplain", *arguments[:1]])
        return f"{error.format_message() or 'expected a command'} (see {path} --help)", USAGE
    return f"{type(error).__name__}: {error} {DEBUG}", USAGE
