"""The run directory: where an audit writes, and how it is taken up."""

from __future__ import annotations

import time
from pathlib import Path

from safexplain.errors import InputError


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
