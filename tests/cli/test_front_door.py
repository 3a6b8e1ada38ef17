"""The command line before anything runs: help without PyTorch, completion, and the same errors in every command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from cases import export
from torch import nn

import safexplain
from safexplain.audit.canaries.run import PRESETS
from safexplain.cli import options
from safexplain.verdict.canaries.result import SCENARIOS
from safexplain.verdict.stats.lower_bounds import BoundMethod

Cli = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "captum", "sklearn", "scipy", "matplotlib", "opacus", "numpy", "pandas", "jinja2", "cryptography")
COMMANDS = (
    ("audit",), ("attack",), ("tune",), ("demo",), ("canaries",), ("serve",), ("verify",), ("sign",), ("ledger",),
    *(("ledger", name) for name in ("show", "grant", "training", "export", "backup")),
)  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with one good model and data, and files that are no use."""
    folder, rng = tmp_path_factory.mktemp("case"), np.random.default_rng(0)
    data = {"x": rng.random((40, 4), dtype=np.float32), "y": rng.integers(0, 2, 40), "member": rng.random(40) < 0.5}
    np.savez(folder / "data.npz", **data)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    export(model, data["x"][:2], folder / "model.pt2")
    (folder / "folder").mkdir()
    for name, content in {
        "bad.pt2": b"PK\x03\x04 not a zip", "bad.npz": b"\x00\xff", "bad.toml": b"=== no", "bad.json": b"{no",
        "binary": b"\xff\xfe\x00", "notes.xyz": b"hello", "bad.db": b"no database " * 90,
    }.items():  # fmt: skip
        (folder / name).write_bytes(content)
    return folder


def run_python(*arguments: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """This Python in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100", **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=120, check=False)


def test_help_version_and_usage_errors_import_neither_torch_nor_what_commands_run():
    calls = [[*command, "--help"] for command in COMMANDS] + [["--version"], ["--help"], ["adit"], ["audit", "--dta"]]
    code = (
        f"import sys, contextlib, io, os\nfrom safexplain.cli import _run\nfor arguments in {calls!r}:\n    with"
        " contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n       "
        f" _run(arguments)\nprint(*[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = run_python("-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("\n", "", 0)


def test_importing_the_package_or_its_command_line_imports_no_torch_and_nothing_that_only_posix_has():
    posix = ("fcntl", "resource", "termios", "pty", "pwd", "grp")
    code = (
        f"import sys, os, signal\nfor name in {posix!r}: sys.modules[name] = None\nfor name in ('fork', 'getuid',"
        " 'geteuid', 'mkfifo'): delattr(os, name)\nfor name in ('SIGALRM', 'SIGHUP', 'SIGUSR1', 'alarm', 'setitimer'):"
        " delattr(signal, name)\nimport safexplain\nassert 'numpy' not in sys.modules\nimport safexplain.cli\n"
        "safexplain.cli.app()\nassert 'torch' not in sys.modules\n"
    )
    done = run_python("-c", code)
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_package_runs_as_a_module():
    done = run_python("-m", "safexplain", "--version")
    assert (done.stdout, done.returncode) == (f"safexplain {safexplain.__version__}\n", 0)
    done = run_python("-m", "safexplain", "audit", "--help")
    assert "--hardening" in done.stdout
    assert done.returncode == 0


def test_help_is_whole_sentences_and_fits_80_columns_and_no_command_takes_an_option_that_there_is_not(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    for command in COMMANDS:
        code, out, err = cli(*command, "--help")
        assert (code, err) == (0, ""), command
        assert [line for line in out.splitlines() if len(line) > 80 or "…" in line] == [], "nothing is cut off"
        code, out, err = cli(*command, "--frobnicate")
        assert (code, out, err.count("\n"), "--frobnicate" in err) == (2, "", 1, True), command


def test_safexplain_audit_is_safexplain_audit():
    for arguments, said in ((["--version"], safexplain.__version__), (["--help"], "Usage: safexplain audit")):
        done = run_python("-c", "from safexplain.cli import audit_main; audit_main()", *arguments)
        assert (said in done.stdout, done.returncode) == (True, 0)


def test_nothing_asked_is_help_and_no_success(cli):
    for command in ((), ("ledger",)):
        code, out, err = cli(*command)
        assert code == 2  # 0 would say: certified
        assert "Usage: safexplain" in out
        assert err.startswith("error: expected a command")


AUDIT = ("audit", "model.pt2", "--data", "data.npz")
BAD: list[tuple[tuple[str, ...], str]] = [
    (("audit",), "--data"),
    (("audit", "nope.pt2", "--data", "data.npz"), "nope.pt2"),
    ((*AUDIT, "--run-dir", "data.npz"), "data.npz"),
    (("attack", "data.npz"), "membership"),
    (("ledger", "show", "bad.db"), "bad.db"),
    ((*AUDIT, "--references", "many"), "as 8,16,32; got 'many'"),
    ((*AUDIT, "--references", "0", "--option", "steps=3"), "steps"),
    ((*AUDIT, "--device", "cuda:77"), "CUDA"),
    ((*AUDIT, "--run-dir", "."), "--resume"),
    (("adit",), "Did you mean 'audit'?"),
    ((*AUDIT, "--refrences", "4"), "--references"),
    (("attack", "data.npz", "--attacks", "Treshold"), "did you mean Threshold?"),
    (("demo", "--resume"), "--run-dir"),
    (("attack", "data.npz", "--split", "both"), "certification or selection"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=lambda part: " ".join(part) if isinstance(part, tuple) else "")
def test_bad_input_is_one_line_that_names_it_and_exit_code_2(cli, arguments, said):
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ")
    assert said in err
    assert not any(never in err for never in ("Traceback", "Errno", "SAFEXPLAIN_DEBUG"))


@pytest.mark.parametrize("path", ["bad.json", "binary"])
def test_a_certificate_that_is_damaged_is_a_refusal_and_no_wrong_usage(cli, path):
    code, out, err = cli("verify", path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"error: the certificate {path} cannot be read as JSON")


def test_with_json_an_error_is_an_object_on_standard_output_too(cli):
    for arguments in (("attack", "nope.npz"), (*AUDIT, "--refrences", "4"), ("demo", "--seed", "-1")):
        code, out, err = cli(*arguments, "--json")
        content = json.loads(out)
        assert (code, content["exit_code"]) == (2, 2)
        assert err == f"error: {content['error']}\n"


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX shells")
def test_a_reader_that_leaves_changes_neither_exit_code_nor_standard_error(case):
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "safexplain", "audit", "--help"]
    try:
        done = subprocess.run(
            arguments, cwd=case, env=env, stdout=write, stderr=subprocess.PIPE, timeout=120, check=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("how", "code"), [("pressed", 130), ("wrapped", 130), ("terminated", 143)])
def test_ctrl_c_is_one_line_and_exit_code_130_and_sigterm_143(cli, monkeypatch, how, code):
    def interrupted(*_: object, **__: object) -> None:
        if how == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        elif how == "wrapped":
            raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr("safexplain.audit.Signals.load", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    assert cli("attack", "data.npz") == (code, "", "interrupted\n")
    assert signal.getsignal(signal.SIGTERM) == before
    printed = json.loads(cli("attack", "data.npz", "--json")[1])
    assert printed == {"error": "interrupted", "exit_code": code}


def test_names_in_the_help_of_canaries_are_those_that_there_are():
    assert tuple(PRESETS) == options.PRESETS
    assert tuple(SCENARIOS) == options.SCENARIOS
    assert get_args(BoundMethod) == options.METHODS
