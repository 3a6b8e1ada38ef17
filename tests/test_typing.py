"""mypy and editors see every parameter of the hardened classes, and refuse what is misspelt, missing or refused."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from captum import attr
from make_stubs import STUBS, write_stubs

import safexplain
import safexplain.captum
from safexplain.explain import CATALOG

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[1]
SNIPPETS = ROOT / "tests" / "typed_snippets.py"
PACKAGE = Path(safexplain.__file__).parent
CACHE = ROOT / ".mypy_cache" / "typing"
"""Torch takes its time, once."""
ERROR = re.compile(r"# error: (?P<code>[a-z-]+): (?P<says>.+)$")
OPTIONS = ("--strict", "--ignore-missing-imports", "--config-file=", "--no-color-output", "--no-error-summary")
FOUND = re.compile(r"^.*typed_snippets\.py:(?P<line>\d+): error: (?P<says>.*)  \[(?P<code>[a-z-]+)\]$")


@pytest.fixture(scope="module")
def installed():
    """The package where pip would put it, with the wheel's stubs; always in one place, for the sake of mypy's cache."""
    for library in ("alibi", "aix360", "lime", "shap"):
        pytest.importorskip(library)
    site = CACHE / "site-packages"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(PACKAGE, site / "safexplain", ignore=shutil.ignore_patterns("__pycache__", "*.pyi"))
    write_stubs(site / "safexplain")
    return site


def of_mypy(site: Path, script: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", *OPTIONS, f"--cache-dir={CACHE}", script.name]
    env = {**os.environ, "PYTHONPATH": str(site), "MYPYPATH": ""}
    done = subprocess.run(command, cwd=script.parent, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": note: " not in line]


@pytest.mark.slow
def test_users_scripts_have_the_errors_expected_of_them_and_no_others(installed, tmp_path):
    shutil.copy(SNIPPETS, tmp_path)
    expected = {}
    for number, line in enumerate(SNIPPETS.read_text().splitlines(), 1):
        if error := ERROR.search(line):
            expected[number] = error
    assert len(expected) >= 10
    said = of_mypy(installed, tmp_path / SNIPPETS.name)
    found = {int(m["line"]): m for line in said if (m := FOUND.match(line))}
    assert len(found) == len(said), "\n".join(said)
    assert found.keys() == expected.keys(), "\n".join(said)
    for number, error in expected.items():
        assert found[number]["code"] == error["code"], said
        assert error["says"].strip() in found[number]["says"], said


def test_a_wheel_has_the_stubs_although_git_does_not(tmp_path):
    pytest.importorskip("hatchling")
    for name in (".gitignore", "LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for part in ("__init__.py", "_versions/__init__.py", "py.typed"):
        (tmp_path / "safexplain" / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / part, tmp_path / "safexplain" / part)
    stubs = {f"safexplain/{name}.pyi" for name in STUBS}
    for name in stubs:
        (tmp_path / name).touch()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", "wheel"], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert {*stubs, "safexplain/py.typed"} <= set(zipfile.ZipFile(wheel).namelist())


def test_a_signature_is_the_native_one_while_the_program_runs():
    for row in CATALOG.values():
        if row.library != "captum" or row.nt_type:
            continue
        hardened = getattr(safexplain.captum, row.native.__name__)
        native = inspect.signature(row.native.attribute)
        assert inspect.signature(hardened.attribute) == native
        made = inspect.signature(hardened).parameters
        assert [name for name in made if name not in ("hardening", "model_digest")] == list(
            inspect.signature(row.native).parameters
        )
        assert made["hardening"].kind is made["hardening"].KEYWORD_ONLY
    assert list(inspect.signature(safexplain.HardenedIG.attribute).parameters)[:2] == ["self", "inputs"]
    assert issubclass(safexplain.HardenedIG, attr.IntegratedGradients)
