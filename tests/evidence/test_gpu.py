"""audit/gpu.py: its commands exist."""

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
