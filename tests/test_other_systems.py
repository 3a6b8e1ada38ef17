"""Nothing in the core needs Linux: without what other systems lack, imports and a ledger work.

What is simulated is the absence of modules, functions and constants, after torch and the like have been imported. It is
no test on the systems themselves.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MISSING = {
    "modules": ["fcntl", "resource", "pwd", "grp", "termios"],
    "os": [
        "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "fdatasync", "fchmod", "fchown", "chown", "fork", "getuid",
        "register_at_fork", "sched_getaffinity", "sysconf", "getloadavg", "uname", "killpg", "posix_fadvise",
    ],
    "time": ["clock_gettime", "clock_gettime_ns", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_REALTIME"],
}  # fmt: skip
"""What Windows lacks; macOS lacks a part of it."""

STRIP = """
import os, sys, time
import captum.attr, joblib, matplotlib.pyplot, numpy, opacus, rich, scipy.stats, sklearn, torch, typer
import cryptography.hazmat.primitives.ciphers, dp_accounting, jinja2, torch.export, torch.utils.data
missing = {missing!r}
for name in missing["modules"]:
    sys.modules[name] = None
for module in (os, time):
    for name in missing[module.__name__]:
        if hasattr(module, name):
            delattr(module, name)
"""

IMPORTS = """
import pkgutil, safexplain
OF_EXTRAS = ("aix360", "alibi", "bentoml", "http", "kserve", "lime", "mlflow", "mlserver", "postgres", "ray", "shap")
for module in pkgutil.walk_packages(safexplain.__path__, "safexplain."):
    parts = module.name.split(".")
    if not set(parts) & set(OF_EXTRAS):
        __import__(module.name)
"""

LEDGER = """
from safexplain.errors import BudgetExhausted
from safexplain.ledger import Ledger
url = f"sqlite:///{os.getcwd()}/ledger.db"
Ledger(url, epsilon=1.0, delta=1e-6).close()
for _ in range(2):
    with Ledger(url) as ledger:
        ledger.charge("ada", epsilon=0.4)
with Ledger(url) as ledger:
    try:
        ledger.charge("ada", epsilon=0.4)
    except BudgetExhausted:
        print("exhausted")
"""


@pytest.mark.slow
def test_imports_and_a_ledger_work_without_what_only_linux_has(tmp_path):
    script = STRIP.replace("{missing!r}", repr(MISSING)) + IMPORTS + LEDGER
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["exhausted"]
