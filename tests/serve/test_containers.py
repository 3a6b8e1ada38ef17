"""The container files of examples/serve: nothing in them that the command does not know, and the command line works."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from safexplain.cli import app as cli
from safexplain.serve import Service
from safexplain.serve.http import app

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


def test_the_image_runs_as_nobody_in_particular_and_looks_after_itself(made, services):
    steps = dockerfile()
    names = [name for name, _ in steps]
    given = dict(steps)
    assert given["FROM"] == "python:3.11-slim"
    assert given["USER"] not in ("root", "0")
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "whl/cpu" in given["ARG"]
    assert given["EXPOSE"] in services["explain"]["ports"][0]
    build = services["explain"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
    root = FOLDER / build["context"]
    for name, arguments in steps:
        if name == "COPY":
            assert all((root / source).exists() for source in arguments.split()[:-1])
    extras = re.search(r"\[([a-z,]+)\]", " ".join(arguments for name, arguments in steps if name == "RUN"))
    known = (root / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", known, re.MULTILINE) for extra in extras[1].split(","))
    with Service.load(made.model, made.certificate) as service:
        path = re.search(r"127\.0\.0\.1:8000(/[a-z/]+)", given["HEALTHCHECK"])[1]
        assert path in app(service).openapi()["paths"]
