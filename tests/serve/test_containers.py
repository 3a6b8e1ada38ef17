"""The container files of examples/serve: nothing in them that the command does not know, and the command line works."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from safexplain.cli import app as cli

FOLDER = Path(__file__).parents[2] / "examples" / "serve"


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def options_of(name="serve"):
    command = get_command(cli()).commands[name]
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def dockerfile():
    """Instruction -> arguments, in the order of the file."""
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
    return [line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")]


def test_every_option_of_the_files_is_one_of_the_command(services):
    given = dict(dockerfile())
    lines = [services["explain"]["command"], json.loads(given["CMD"])]
    for line in lines:
        for word in line:
            if word.startswith("--"):
                assert word.partition("=")[0] in options_of(), word
    assert json.loads(given["ENTRYPOINT"]) == ["safexplain", "serve"]
    assert given["USER"] not in ("root", "0")
