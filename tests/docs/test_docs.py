"""Every Python block of README.md and docs/ runs, prints what stands below it, and the tables agree with the code."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import pytest
import typer

from audit.shared.run import module_at
from safexplain.audit import Recipe
from safexplain.cli import app
from safexplain.cli.run.canaries import Data, Promise, Training
from safexplain.explain import CATALOG
from safexplain.verdict.judgement import EXIT_CODES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "audit/README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("evidence/*.md"))]
INCLUDED = "--8<--"
HEAVY = {"canaries", "differential-privacy", "libraries", "own-model", "recourse", "scale", "text"}
"""Pages whose blocks train models, or import large libraries, for seconds."""
NEEDS = r"^<!-- needs: ([\w ]+) -->$"
"""A line of a page that names packages of extras which its code needs."""


@dataclass(frozen=True)
class Block:
    """A Python block, the line it starts at, and the output that stands below it."""

    code: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; examples are included as `{ .python }` and tested by themselves."""
    text = page.read_text()
    pattern = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    found = re.finditer(pattern, text, re.DOTALL | re.MULTILINE)
    return [Block(m[1], text[: m.start(1)].count("\n"), m[2]) for m in found]


def alike(printed: str, shown: str) -> bool:
    """The same words, and numbers that differ by no more than another machine may make them (10 %, or 0.02).

    What is shown with an interval may differ by three times that, as where a training draws its noise anew.
    """
    number = r"[-+]?\d+(?:\.\d+)?"
    if re.sub(number, "#", printed).split() != re.sub(number, "#", shown).split():
        return False
    own = [float(a) for a in re.findall(number, printed)]
    pairs = re.findall(rf"({number})(?: ± ({number}))?", shown)
    expected = [(float(part), 3 * float(half or 0)) for value, half in pairs for part in (value, half) if part]
    return all(abs(a - b) <= max(0.02, 0.1 * abs(b), most) for a, (b, most) in zip(own, expected, strict=True))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty working directory and a noise key; what a page puts into the environment is taken out again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "0" * 64)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in HEAVY)) for p in PAGES if blocks(p)]
)
def test_the_python_blocks_of_a_page_run_and_print_what_stands_below_them(page, elsewhere):
    for needed in re.findall(NEEDS, page.read_text(), re.MULTILINE):
        for package in needed.split():
            pytest.importorskip(package)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        code = compile("\n" * block.line + block.code, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        where = f"{page.name}, line {block.line}"
        assert bool(printed.getvalue()) == (block.output is not None), where
        assert block.output is None or alike(printed.getvalue(), block.output), f"{where} printed\n{printed.getvalue()}"


@pytest.mark.slow
def test_the_commands_of_your_own_model_end_in_a_verdict(elsewhere):
    """With two reference models and one attack, so that each takes seconds."""
    for package in ("skops", "xgboost", "transformers"):
        pytest.importorskip(package)
    page = DOCS / "own-model.md"
    exec("".join(block.code for block in blocks(page)), {"__name__": "page"})
    Path("policy.toml").write_text('suite = ["Threshold"]\nreferences = 2\npatience = [1]\n')
    commands = re.findall(r"^\$ safexplain-audit (.*)$", page.read_text(), re.MULTILINE)
    assert len(commands) == 3
    for k, command in enumerate(commands):
        small = ["--references", "2", "--scored", "200", "--policy", "policy.toml", "--run-dir", f"run-{k}", "--json"]
        line = [sys.executable, "-m", "safexplain", "audit", *command.split(), *small]
        ran = subprocess.run(line, capture_output=True, text=True, check=False)
        assert ran.returncode == 3, ran.stderr  # an incomplete suite decides nothing
        assert json.loads(ran.stdout)["verdict"] == "inconclusive"


def test_links_and_included_files_exist():
    missing = []
    for page in (*PAGES, *sorted(DOCS.glob("notebooks/*.md"))):
        text = page.read_text()
        links = re.findall(r"\]\(([^)\s]+)\)", text)
        local = [link.partition("#")[0] for link in links if not link.startswith(("http://", "https://", "#"))]
        local = [link for link in local if "reference/" not in link]  # made with the site: test_site follows these
        missing += [(page.name, link) for link in local if link and not (page.parent / link).exists()]
        included = re.findall(rf'{INCLUDED} "([^"]+)"', text)
        missing += [(page.name, path) for path in included if not (ROOT / path).is_file()]
    assert missing == []


def test_every_method_of_the_catalog_stands_in_the_table_with_its_family_and_notes():
    text = (DOCS / "explainers.md").read_text()
    rows = {m[1]: m[0] for m in re.finditer(r"^\| `(\w+)` \|.*$", text, re.MULTILINE)}
    assert list(rows) == [row.hardened_name for row in CATALOG.values()]
    for row in CATALOG.values():
        shown = rows[row.hardened_name]
        assert row.of != "input" or f"| {row.family} |" in shown
        assert row.family == "representation" or row.of != "input" or ("private copy" in shown) == row.hooks
        assert ("needs `nn.ReLU`" in shown) == row.needs_relu
        assert ("random" in shown) == row.stochastic


def test_every_option_of_a_command_is_documented():
    text = (DOCS / "cli.md").read_text()
    of_ledger = text.partition("## safexplain ledger\n")[2].partition("\n## ")[0]
    commands = typer.main.get_command(app()).commands  # type: ignore[attr-defined]
    missing = []
    for group, names, part in (
        (commands, ("audit", "attack", "tune", "canaries", "demo"), text),
        (commands["ledger"].commands, ("show", "grant", "export"), of_ledger),
    ):
        for name in names:
            flags = [flag for p in group[name].params for flag in p.opts if flag.startswith("--") and flag != "--help"]
            assert flags
            missing += [(name, flag) for flag in flags if f"`{flag}`" not in part]
    assert missing == []


def test_options_are_shown_with_their_defaults():
    text = (DOCS / "cli.md").read_text()
    commands = typer.main.get_command(app()).commands  # type: ignore[attr-defined]
    for parameter in (*commands["audit"].params, *commands["tune"].params):
        flag = parameter.opts[0]
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
            assert f"| `{flag}` | {parameter.default:g} |" in text, flag


def test_every_name_of_a_recipe_is_documented_with_its_default():
    text = (DOCS / "cli.md").read_text()
    for line in Recipe().to_toml().splitlines():
        name, _, value = line.partition(" = ")
        assert f"| `{name}` | {value} |" in text or f"| `{name}` | `{value}` |" in text, name


def test_every_name_of_a_configuration_of_canaries_is_documented():
    text = (DOCS / "cli.md").read_text()
    part = text[text.index("### dp.toml") : text.index("### signals.npz")]
    for table in (Data, Training, Promise):
        assert [f.name for f in fields(table) if f"`{f.name}`" not in part] == []


def test_exit_codes_are_documented():
    text = (DOCS / "cli.md").read_text()
    for verdict, code in {**EXIT_CODES, "wrong usage": 2}.items():
        assert re.search(rf"^\| {code} \|[^\n]*{verdict}", text, re.MULTILINE), verdict


def test_the_table_of_concepts_holds_the_measured_figures():
    text = (DOCS / "concepts.md").read_text()
    numbers = json.loads((DOCS / "figures" / "figures.json").read_text())
    rows = numbers["alternatives"]
    label = rows.pop("label")
    for name, row in rows.items():
        aucs = " | ".join(f"{row[signal][0]:.3f}" for signal in ("l1", "variance", "attributions"))
        shown = rf"^\| {re.escape(name)}[^|]*\| {re.escape(aucs)} \| {row['top_overlap']:.3f} \|"
        assert re.search(shown, text, re.M), name
    assert f"| the label alone, no explanation | | | {label:.3f} | |" in text
    for found in numbers["norms"].values():
        assert f"{found['auc']:.3f}" in text
        assert re.search(rf"{100 * found['tpr_at_5']:.1f} %", text)


def test_figures_are_small_and_come_for_both_schemes():
    images = [*(DOCS / "figures").glob("*.svg"), *(DOCS / "figures").glob("*.png")]
    assert images
    assert [image.name for image in images if image.stat().st_size > 190_000] == []
    kinds = {(image.stem.rpartition("-")[0], image.suffix) for image in images}
    for stem, suffix in kinds:
        for scheme in ("light", "dark"):
            assert f"figures/{stem}-{scheme}{suffix}#only-{scheme}" in "".join(page.read_text() for page in PAGES)
            assert (DOCS / "figures" / f"{stem}-{scheme}{suffix}").is_file()


def make_outputs() -> ModuleType:
    return module_at(DOCS / "outputs" / "make_outputs.py")


def test_the_readme_is_read_in_a_few_minutes_and_shows_the_audit_as_it_was_printed():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    made = make_outputs()
    printed = (DOCS / "outputs" / "audit.txt").read_text()
    shown = f"$ {made.AUDIT}\n{made.first_table(printed)}"
    assert shown in text, "run: python docs/outputs/make_outputs.py audit"


def test_what_is_said_about_the_demo_is_what_its_figure_shows():
    """README.md, the home page and the kept output of the demo have the numbers of docs/figures/front.json."""
    front = json.loads((DOCS / "figures" / "front.json").read_text())
    told = {name: front[name]["found"] for name in ("native", "recommended")}
    for page in (ROOT / "README.md", DOCS / "index.md"):
        text = " ".join(page.read_text().split())
        for rate in (*told.values(), front["labels"]["1"]):
            assert f"{rate:.0%}".replace("%", " %") in text, page.name
    demo = (DOCS / "outputs" / "demo.txt").read_text()
    for row in (front["native"], front["recommended"]):
        assert f"{100 * row['adds']:+.1f}" in demo
    for asked, rate in front["labels"].items():
        assert re.search(rf"^ {'once' if asked == '1' else f'{asked} times'} +{100 * rate:.1f}%", demo, re.MULTILINE)


def test_the_results_at_a_glance_are_those_of_audit_results():
    text = (DOCS / "evidence" / "index.md").read_text()
    assert make_outputs().measured() in text, "run: python docs/outputs/make_outputs.py measured"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "attack", "harden_captum", "audit"])
def test_a_command_prints_what_the_documentation_shows(name):
    printed, shown = make_outputs().output_of(name), (DOCS / "outputs" / f"{name}.txt").read_text()
    words = re.compile(r"LEAK PROVEN|CERTIFIED|INCONCLUSIVE|certified|inconclusive|leak")
    assert words.findall(printed) == words.findall(shown)
    assert len(printed.splitlines()) == len(shown.splitlines())
