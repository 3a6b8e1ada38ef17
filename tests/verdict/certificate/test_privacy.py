"""A certificate carries the guarantee of the model's training, and believes only what follows from its parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import made, sealed

from safexplain.dp import PrivacyStatement, Steps
from safexplain.errors import CertificateError
from safexplain.verdict.certificate.read import load_certificate
from safexplain.verdict.certificate.write import as_json

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "explanation-audit-v2.json").read_text())
STATED = PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(Steps(5.5728, 0.25, 500),), expected_batch_size=500)
PURE = PrivacyStatement("objective perturbation", 500, 0.0, pure_epsilon=0.5)
NONE = PrivacyStatement("SGD", 10, 1e-5, phases=(Steps(0.0, 1.0, 5, "full-batch"),))


def load(content: dict[str, Any], tmp_path: Path) -> Any:
    path = tmp_path / "certificate.json"
    path.write_bytes(as_json(content))
    return load_certificate(path)


@pytest.mark.parametrize("stated", [STATED, PURE, NONE], ids=["dp-sgd", "pure", "without noise"])
def test_the_guarantee_is_read_back_and_fits_the_schema(stated: PrivacyStatement, tmp_path: Path) -> None:
    content = made(privacy=stated.to_dict())
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert load(content, tmp_path).privacy == stated


def test_without_a_guarantee_a_certificate_is_as_before(tmp_path: Path) -> None:
    assert "privacy" not in made()["predicate"]
    assert load(made(), tmp_path).privacy is None


def test_a_forged_epsilon_is_found_though_the_checksum_fits(tmp_path: Path) -> None:
    content = made(privacy=STATED.to_dict())
    content["predicate"]["privacy"]["epsilon"]["substitute"] = 1.0
    with pytest.raises(CertificateError, match=r"privacy: .*substitute is stated as 1\.0, but 10\.0"):
        load(sealed(content), tmp_path)


@pytest.mark.parametrize("other", [None, 3, {}, {"epsilon": 1}])
def test_anything_else_is_refused(other: Any, tmp_path: Path) -> None:
    content = made(privacy=STATED.to_dict())
    content["predicate"]["privacy"] = other
    with pytest.raises(CertificateError, match="privacy"):
        load(sealed(content), tmp_path)
