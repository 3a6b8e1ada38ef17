"""An environment for each peer, made when it is first asked; what cannot be made says why.

PyTorch is large and most peers only need the one that is here: their environment holds what they need besides and sees
the packages of the environment that runs the benchmark behind its own (a .pth file, as the Makefile does for serving
platforms). Packages that are pinned to other releases lie in front and win.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...shared.run import ROOT

ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    **dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
}
"""What both sides are started with: one thread, no GPU."""

Runs = Callable[..., "subprocess.CompletedProcess[str]"]


class Skipped(Exception):
    """A peer cannot be asked; the message is the reason, as the table shows it."""


@dataclass(frozen=True)
class Environment:
    """What a peer needs.

    Args:
        name: of the folder.
        requirements: as pip takes them; none: the environment that runs the benchmark is enough.
        imports: a statement that has to run before the peer counts as installed.
        interpreter: another Python on the PATH, such as "python3.7"; its environment sees none of our packages.
    """

    name: str
    requirements: tuple[str, ...] = ()
    imports: str = "pass"
    interpreter: str = ""

    def python(self, folder: Path, run: Runs = subprocess.run) -> Path:
        """The interpreter, after what is missing has been installed.

        Args:
            folder: of all environments.
            run: `subprocess.run`, or something like it.

        Raises:
            Skipped: pip fails, or what it installed does not import; with the last line that says why.
        """
        if not self.requirements:
            return Path(sys.executable)
        if self.interpreter and not shutil.which(self.interpreter):
            raise Skipped(f"needs {self.interpreter}, which is not on the PATH")
        here = folder / self.name
        python, stamp = here / "bin" / "python", here / ".installed"
        wanted = json.dumps([list(self.requirements), self.imports, sys.version])
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(here, ignore_errors=True)
            here.parent.mkdir(parents=True, exist_ok=True)
            _checked(run, [self.interpreter or sys.executable, "-m", "venv", str(here)], "venv")
            if not self.interpreter:
                _behind(here, Path(sysconfig.get_path("purelib")))
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _checked(run, [*pip, *self.requirements], "pip install")
            _checked(run, [str(python), "-W", "ignore", "-c", self.imports], f"`{self.imports}`")
            stamp.write_text(wanted)
        return python


def _behind(environment: Path, packages: Path) -> None:
    """Lets an environment see `packages` and the repository behind its own packages."""
    for own in environment.glob("lib/python*/site-packages"):
        (own / "zz_base.pth").write_text(f"{packages}\n{ROOT}\n")


def _checked(run: Runs, command: list[str], what: str) -> None:
    done = run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **ONE_THREAD})
    if done.returncode:
        raise Skipped(f"{what}: {last_line(done.stderr or done.stdout)}")


def last_line(said: str) -> str:
    """The line that names the error: pip's last that starts with ERROR, otherwise the last one that is not empty."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    line = (errors or lines or ["it failed and said nothing"])[-1]
    return line.replace(str(ROOT), ".").replace(str(Path.home()), "~").replace("|", "/")[:300]
