"""docs/explainers.md has every method, its tables and those of docs/gallery.md are made by the script, and complete."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
PAGES = (ROOT / "docs" / "explainers.md", ROOT / "docs" / "gallery.md")
TEXT = "".join(page.read_text() for page in PAGES)
AGAIN = "run: python docs/figures/make_gallery.py --write-table"


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.syspath_prepend(str(FIGURES))
    spec = importlib.util.spec_from_file_location("make_gallery", FIGURES / "make_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_gallery", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def records():
    found: dict[str, Any] = json.loads((FIGURES / "gallery.json").read_text())
    return found


def part(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert found is not None, f"no page has a place for {name}"
    return found[1]


def test_the_tables_of_the_page_are_made_from_the_catalog_and_the_committed_numbers(gallery, records):
    for name, table in gallery.tables(records).items():
        assert part(name) == table, AGAIN


def test_what_the_text_says_in_numbers_is_in_the_record(records):
    text = " ".join(TEXT.split())
    assert f"{records['image']['set'][:13]} image" in text
    assert f"(probability {records['model']['probability']})" in text
    assert f"by {len(records['methods'])} methods" in text
    assert "superpixel methods of the gallery were about 3 to 5 times as fast" in text
    by_superpixels = [r for r in records["methods"].values() if r["options"].get("feature_mask") == "superpixels"]
    assert len(by_superpixels) == 4
    assert all(2.5 < r["native_one_per_eval_ms"] / r["native_ms"] < 5.5 for r in by_superpixels)
