"""The container files of examples/serve: nothing in them that the command does not know, and the command line works."""

import json
import re
from pathlib import Path

import httpx
import pytest
import yaml
from servers import Command, ask, wait_until
from typer.main import get_command

from safexplain.cli import app as cli
from safexplain.hardening.noise import KEY_VARIABLE
from safexplain.serve import Service
from safexplain.serve.http import app
from safexplain.serve.questions import Questions

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


def test_every_variable_of_the_service_is_known(services):
    """The noise key is ours, the password that of PostgreSQL's own library, and neither stands in a file."""
    assert set(services["explain"]["environment"]) == {KEY_VARIABLE, "PGPASSWORD"}
    for service in services.values():
        for text in service.get("environment", {}).values():
            assert text.startswith("${") or text == "safexplain"
    assert "PGPASSWORD" not in " ".join(services["explain"]["command"])


def test_what_the_service_needs_is_healthy_before_it(services):
    for name, needed in services["explain"]["depends_on"].items():
        assert needed == {"condition": "service_healthy"}
        assert services[name]["healthcheck"]["test"]
        assert "ports" not in services[name]
    assert all(port.startswith("127.0.0.1:") for port in services["explain"]["ports"])


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


def test_commands_of_the_readme_have_these_options():
    text = (FOLDER / "README.md").read_text()
    for command in re.findall(r"\$ safexplain (.*)", text):
        name, *words = command.split()
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options_of(name)
    for path in re.findall(r"localhost:8000(/[a-z/]+)`", text):
        assert path in ("/health/ready", "/metrics")
    assert "has not been built" in text


@pytest.mark.slow
def test_the_same_command_line_serves_with_postgresql(made, services, tmp_path):
    """As in compose.yaml, but for the names of machines and folders; the ledger counts for both workers."""
    pytest.importorskip("psycopg", reason="PostgreSQL is not tested: psycopg is not installed")
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL is not tested: pgserver is not installed")
    database = pgserver.get_server(tmp_path / "pg", cleanup_mode="stop")
    made.copy(tmp_path)
    changes = {
        "/models/": f"{tmp_path}/",
        "0.0.0.0": "127.0.0.1",
        "postgresql://safexplain@postgres/safexplain": database.get_uri(),
    }
    line = [word for word in services["explain"]["command"] if not word.startswith("--port")]
    for old, new in changes.items():
        assert sum(old in word for word in line)
        line = [word.replace(old, new) for word in line]
    server = Command(tmp_path, line, **{KEY_VARIABLE: ""})
    try:
        server.ready()
        wait_until(lambda: server.started() == 2)
        first = [ask(server.url, made.rows[i : i + 2], "ann") for i in range(0, 40, 2)]
        again = [ask(server.url, made.rows[i : i + 2], "ann") for i in range(0, 40, 2)]
        assert {response.status_code for response in first} == {200}
        assert [response.json() for response in first] == [response.json() for response in again]
        with Questions(database.get_uri()) as asked:
            assert asked.counts() == {"ann": 40}
        ready = httpx.get(server.url + "/health/ready").json()
        assert (ready["status"], ready["verdict"]) == ("ready", "certified")
        metrics = httpx.get(server.url + "/metrics").text
        found = re.findall(r'safexplain_answers_total{source="\w+"} (\d+)', metrics)
        assert sum(map(int, found)) == 80
    finally:
        server.stop()
        database.cleanup()
