"""The pages of docs/evidence and the index in audit/README.md say what the committed results say."""

import json
import re
from pathlib import Path

from evidence import ROOT

from audit.pages import pages, tables
from audit.shared.run import RESULTS, json_text


def test_every_page_is_what_the_results_say():
    stale = [path.name for path, text in pages.written().items() if path.read_text() != text]
    assert stale == [], "run: python -m audit.pages"


def test_the_index_is_short_and_names_every_suite_and_benchmark_that_can_be_run():
    assert pages.README.read_text().count("\n") <= 115
    listed = {s.module for p in pages.PAGES for s in p.suites if not s.frozen}
    starts = re.compile(r"^(if __name__ == .*|finish\(main\))$", re.MULTILINE)
    run = [path for path in (ROOT / "audit").glob("*/**/*.py") if starts.search(path.read_text())]
    found = {path.parent if path.stem == "__main__" else path.with_suffix("") for path in run}
    assert listed == {".".join(path.relative_to(ROOT).parts) for path in found}


def test_every_table_and_every_result_stands_on_a_page():
    elsewhere = Path(pages.__file__).read_text()  # names the tables of other pages
    text = "".join(p.source.read_text() for p in pages.PAGES) + elsewhere
    assert all(f"{{{{ {name} }}}}" in text for name in tables.TABLES)
    shown = {s.result for p in pages.PAGES for s in p.suites}
    assert {path.stem for path in RESULTS.glob("*.json")} <= shown


def test_every_figure_of_a_table_follows_its_result(tmp_path):
    found = json.loads((RESULTS / "dp_attacks.json").read_text())
    attacks = found["results"]["heads cifar10"]["cells"]["Saliency inf"]["means"]
    attacks["LikelihoodRatio on loss"]["auc"]["value"] = 0.123
    (tmp_path / "dp_attacks.json").write_text(json.dumps(found))
    page = next(p for p in pages.PAGES if p.name == "dp_attacks")
    assert "| 0.123 |" in pages.page(page, tmp_path)
    assert "There is no result yet" in pages.page(page, tmp_path / "empty")


def test_every_committed_result_has_a_cell_a_line():
    texts = {path.name: path.read_text() for path in RESULTS.rglob("*.json")}
    other = [name for name, text in texts.items() if json_text(json.loads(text)) != text]
    assert other == [], "write them with audit.shared.run.write_json"
