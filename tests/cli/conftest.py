"""The command line, called in this process from the folder of a module's `case`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from safexplain.cli import _run


@pytest.fixture
def cli(
    case: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in the case's folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(case)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = _run([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return call
