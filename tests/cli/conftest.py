"""The command line, called in this process from the folder of a module's `case`."""

from functools import partial

import pytest

from safexplain.cli import _run


@pytest.fixture(autouse=True)
def brief_plans(monkeypatch):
    """Plans measure their rates in half a second."""
    from safexplain.audit import planning

    monkeypatch.setattr(planning, "planned", partial(planning.planned, budget=0.5))


@pytest.fixture
def cli(case, monkeypatch, capfd):
    """Run a command in the case's folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(case)

    def call(*arguments: object) -> tuple[int, str, str]:
        code = _run([str(a) for a in arguments])
        return (code, *capfd.readouterr())

    return call
