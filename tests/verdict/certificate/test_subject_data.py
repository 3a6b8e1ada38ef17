"""A certificate of a model that was trained in two stages says which data its verdict is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import SCHEMA, made, read_back, sealed

from safexplain.audit.question import SubjectData
from safexplain.errors import CertificateError
from safexplain.verdict.certificate.write import SUBJECT_DATA

jsonschema = pytest.importorskip("jsonschema")


@pytest.mark.parametrize("named", SUBJECT_DATA)
def test_it_is_read_back_and_fits_the_schema(named: str, tmp_path: Path) -> None:
    content = made(subject_data=named)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert read_back(content, tmp_path).subject_data == named


def test_of_a_model_that_was_trained_once_a_certificate_is_as_before(tmp_path: Path) -> None:
    assert "subject_data" not in made()["predicate"]
    assert read_back(made(), tmp_path).subject_data is None


@pytest.mark.parametrize("other", [None, "training", "", 3, ["pre-training"], {"pre-training": 1}])
def test_anything_else_is_refused(other: Any, tmp_path: Path) -> None:
    content = made(subject_data="pre-training")
    content["predicate"]["subject_data"] = other
    with pytest.raises(CertificateError, match="subject_data"):
        read_back(sealed(content), tmp_path)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(sealed(content))


def test_a_changed_one_is_found(tmp_path: Path) -> None:
    content = made(subject_data="pre-training")
    content["predicate"]["subject_data"] = "fine-tuning"
    with pytest.raises(CertificateError, match="changed after it was written"):
        read_back(content, tmp_path)


def test_each_name_has_its_sentence_and_an_audit_knows_no_other() -> None:
    assert {"training", *SUBJECT_DATA} == set(SubjectData.__args__)
    assert all(f"who was in the {named} data" in said for named, said in SUBJECT_DATA.items())
