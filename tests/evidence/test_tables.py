"""The tables of audit/README.md say what the committed results say."""

from __future__ import annotations

import json

import pytest

from audit.pages import tables
from audit.shared.run import RESULTS, json_text


def test_the_readme_is_what_the_results_say():
    text = tables.README.read_text()
    assert tables.written(text) == text, "run: python -m audit.pages"


def test_every_figure_of_a_table_follows_its_result(tmp_path, monkeypatch):
    found = json.loads((tables.RESULTS / "third_party.json").read_text())
    cell = found["nets"]["resnet20_cifar10"]["cells"]["Saliency native"]
    next(a for a in cell["without_training"]["attacks"] if a["signal"] == "l1")["auc"] = 0.123
    (tmp_path / "third_party.json").write_text(json.dumps(found))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    text = tables.README.read_text()
    assert tables.written(text) != text
    assert "| resnet20 Saliency native | 0.123 [" in tables.written(text)


def test_an_empty_place_is_filled_and_nothing_behind_it_is_touched():
    text = tables.README.read_text()
    start = text.index("<!-- recourse: networks -->")
    after = text.index("<!-- end -->", start)
    empty = text[:start] + "<!-- recourse: networks -->\n\n" + text[after:]
    assert empty != text
    assert tables.written(empty) == text


def test_a_missing_place_is_an_error():
    with pytest.raises(ValueError, match="attack_table: scores"):
        tables.written("no place for anything")


def test_an_attack_that_was_not_run_is_said_so():
    cell = {"attacks": [{"attack": "A", "signal": "s", "auc": 0.5, "auc_low": 0.4, "auc_high": 0.6}]}
    assert tables.auc(tables.found_by(cell, "A on s")) == "0.500 [0.400, 0.600]"
    assert tables.auc(tables.found_by(cell, "B on s")) == "not run"


def test_the_highest_bound_is_of_a_judged_attack():
    attacks = [{"bounds": [0.0, 0.1], "judged": True}, {"bounds": [0.0, 0.9], "judged": False}, {"bounds": [0.0, 0.2]}]
    assert tables.highest_bound({"attacks": attacks})["bounds"][1] == 0.2


# ------------------------------------------------------------------------------------------------- how results are kept


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_result_has_a_cell_a_line(path):
    text = path.read_text()
    assert json_text(json.loads(text)) == text, "write it with audit.shared.run.write_json"


def test_results_are_plain_json_of_few_lines():
    content = {
        "suite": "some", "none": [], "size": {"n": 1, "of": [1, 2.5]},
        "cells": {"a": {"auc": 0.5, "attacks": [{"tpr": [{"fpr": 0.1}]}, {"tpr": []}]}, "b": {}},
        "rows": [[1, [2]], [3, []]],
    }  # fmt: skip
    lines = json_text(content).splitlines()
    assert json.loads("".join(lines)) == content
    assert '  "size": {"n": 1, "of": [1, 2.5]},' in lines
    assert '        {"tpr": [{"fpr": 0.1}]},' in lines
    assert lines[-4:] == ["    [1, [2]],", "    [3, []]", "  ]", "}"]
