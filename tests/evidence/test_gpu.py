"""audit/gpu.py: its commands exist, and steps are run in order, once, and within the time given."""

import importlib
import re
from argparse import Namespace

import pytest
from evidence import ROOT

from audit import gpu


def test_every_command_exists_and_takes_its_options(tmp_path, capsys):
    for step in gpu.STEPS[1:]:
        full, small = (step.command(tmp_path / "out.json", Namespace(quick=quick, data=tmp_path, cache=tmp_path))[2:]
                       for quick in (False, True))  # fmt: skip
        path = ROOT.joinpath(*step.module.split("."))
        module = importlib.import_module(f"{step.module}.suite" if path.is_dir() else step.module)
        for name, *given in (full, small):
            assert name == step.module
            with pytest.raises(SystemExit) as stopped:
                module.main([*given, "--help"])
            assert stopped.value.code == 0
            known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            assert {option.partition("=")[0] for option in given if option.startswith("--")} <= known, name
    assert gpu.STEPS[0].command(tmp_path / "x.xml", Namespace(quick=False))[2:6] == ["pytest", "-q", "-m", "gpu"]


STEPS = (
    gpu.Step("first", "some.first", (), 1),
    gpu.Step("second", "some.second", (), 2, resumes=True),
    gpu.Step("last", "some.last", (), 30, resumes=True),
)


class Runs:
    """Stands for the commands: exit codes by name; None: interrupted."""

    def __init__(self, **codes):
        self.codes, self.started, self.seconds = codes, [], {}

    def __call__(self, command, seconds):
        name = command[2].partition(".")[2]
        code = self.codes.get(name, 0)
        self.started.append(name)
        self.seconds[name] = seconds
        if code in (0, 1):
            gpu.Path(command[-1]).write_text("{}")
        return code


def go(folder, runs, steps=STEPS, said=None, **changed):
    options = Namespace(
        **{"again": False, "quick": False, "minutes": None, "only": None, "data": None, "cache": None} | changed
    )
    return gpu.run(steps, folder, options, runs, [].append if said is None else said.append)


def test_steps_run_in_order_and_finished_ones_only_again_when_asked_for(tmp_path):
    for changed, expected in (
        ({}, ["first", "second", "last"]),
        ({}, []),
        ({"only": ["last"], "again": True}, ["last"]),
    ):
        runs = Runs()
        assert go(tmp_path, runs, **changed) == 0
        assert runs.started == expected
    (tmp_path / "first.json").unlink()  # nothing is finished without its result
    runs = Runs()
    go(tmp_path, runs)
    assert runs.started == ["first"]


def test_time_that_is_up_interrupts_what_resumes_and_starts_nothing_that_would_not_fit(tmp_path):
    runs, said = Runs(last=None), []
    assert go(tmp_path, runs, said=said, minutes=0.5) == 3
    assert runs.started == ["second", "last"]  # "first" is expected to take longer, and would be lost
    assert all(0 < seconds <= 30 for seconds in runs.seconds.values())
    assert said[-1] == "time was up before: first, last"
    runs = Runs()
    assert go(tmp_path, runs) == 0
    assert runs.started == ["first", "last"]
