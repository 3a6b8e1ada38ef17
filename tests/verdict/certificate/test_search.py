"""A certificate of a configuration that a search chose says how many trials it was the best of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import SCHEMA, made, read_back, sealed

from safexplain.errors import CertificateError

jsonschema = pytest.importorskip("jsonschema")

SEARCH = {"trials": 100, "digest": "0f" * 32}


def test_the_search_is_read_back_and_fits_the_schema(tmp_path: Path) -> None:
    content = made(search=SEARCH)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert read_back(content, tmp_path).search == SEARCH


def test_without_a_search_a_certificate_is_as_before(tmp_path: Path) -> None:
    assert "search" not in made()["predicate"]
    assert read_back(made(), tmp_path).search is None


@pytest.mark.parametrize(
    "other", [None, 3, {}, {"trials": 0}, {"digest": "x"}, {"trials": True}, {"trials": 1.5}, {"seed": 1}]
)
def test_anything_else_is_refused(other: Any, tmp_path: Path) -> None:
    content = made(search=SEARCH)
    content["predicate"]["search"] = {**SEARCH, **other} if isinstance(other, dict) and other else other
    with pytest.raises(CertificateError, match="search"):
        read_back(sealed(content), tmp_path)
