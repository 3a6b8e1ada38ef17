"""Every notebook runs in a fresh kernel without a warning, and finds what its page says."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from audit.shared.run import module_at

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
NUMBER = r"[-+]?\d+(?:\.\d+)?"


def render() -> ModuleType:
    return module_at(NOTEBOOKS / "render.py")


SOURCES = sorted(path for path in NOTEBOOKS.glob("*.py") if path.name != "render.py")


def cells(source: str) -> list[tuple[bool, str]]:
    """The cells of a percent-format file: whether each is code, and its text."""
    found = []
    for block in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        head, _, body = block.partition("\n")
        prose = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        found.append(("[markdown]" not in head, (body if "[markdown]" not in head else prose).strip()))
    return found


def outputs(page: str) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def agree(printed: str, shown: str) -> bool:
    """The same words and verdicts; numbers as trained networks repeat them, within a quarter or three units."""
    if re.sub(NUMBER, "#", printed).split() != re.sub(NUMBER, "#", shown).split():
        return False
    pairs = zip(re.findall(NUMBER, printed), re.findall(NUMBER, shown), strict=True)
    return all(_close(a, b) for a, b in pairs)


def _close(a: str, b: str) -> bool:
    if "." in b and abs(float(b)) < 1:  # a share or an AUC
        return abs(float(a) - float(b)) <= 0.1
    return abs(float(a) - float(b)) <= max(3.0, 0.25 * abs(float(b)))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_page_has_the_cells_of_its_notebook_in_their_order(source):
    page, at = source.with_suffix(".md").read_text(), 0
    told = cells(source.read_text())
    assert len(told) > 10
    for is_code, text in told:
        title, _, rest = text.partition("\n") if text.startswith("# ") and at == 0 else ("", "", text)
        for part in filter(None, (title, rest.strip())):
            shown = f"```python\n{part}\n```" if is_code else part
            place = page.find(shown, at)
            assert place >= 0, f"run: python docs/notebooks/render.py {source.stem}; not in the page: {part[:60]!r}"
            at = place + len(shown)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_cells_are_short_and_every_figure_comes_for_both_schemes(source):
    assert [text for is_code, text in cells(source.read_text()) if is_code and len(text.splitlines()) > 30] == []
    page = source.with_suffix(".md").read_text()
    drawn = re.findall(r"!\[[^\]]+\]\((figures/[\w-]+-(light|dark)\.svg)#only-(light|dark)\)", page)
    assert all(scheme == only for _, scheme, only in drawn)
    kept = {path.name for path in (NOTEBOOKS / "figures").glob(f"{source.stem}-*.svg")}
    assert {Path(path).name for path, _, _ in drawn} == kept
    assert all((NOTEBOOKS / "figures" / name).stat().st_size < 190_000 for name in kept)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs_without_a_warning_and_finds_what_its_page_says(source, tmp_path):
    run = render()
    notebook = run.execute(source, tmp_path)
    assert run.printed(notebook, "stderr") == ""
    text, figures = run.page(notebook, source.stem)
    shown = source.with_suffix(".md").read_text()
    assert set(figures) == {path.name for path in (NOTEBOOKS / "figures").glob(f"{source.stem}-*.svg")}
    assert len(outputs(text)) == len(outputs(shown)) > 0
    for printed, kept in zip(outputs(text), outputs(shown), strict=True):
        assert agree(printed, kept), f"printed\n{printed}\nthe page shows\n{kept}"
