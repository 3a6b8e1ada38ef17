"""A certificate carries the guarantee of the model's training, and believes only what follows from its parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import SCHEMA, made, read_back, sealed

from safexplain.dp import PrivacyStatement, Steps
from safexplain.errors import CertificateError

jsonschema = pytest.importorskip("jsonschema")

STATED = PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(Steps(5.5728, 0.25, 500),), expected_batch_size=500)
PURE = PrivacyStatement("objective perturbation", 500, 0.0, pure_epsilon=0.5)
NONE = PrivacyStatement("SGD", 10, 1e-5, phases=(Steps(0.0, 1.0, 5, "full-batch"),))


@pytest.mark.parametrize("stated", [STATED, PURE, NONE], ids=["dp-sgd", "pure", "without noise"])
def test_the_guarantee_is_read_back_and_fits_the_schema(stated: PrivacyStatement, tmp_path: Path) -> None:
    content = made(privacy=stated.to_dict())
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert read_back(content, tmp_path).privacy == stated


def test_without_a_guarantee_a_certificate_is_as_before(tmp_path: Path) -> None:
    assert "privacy" not in made()["predicate"]
    assert read_back(made(), tmp_path).privacy is None


def test_a_forged_epsilon_is_found_though_the_checksum_fits(tmp_path: Path) -> None:
    content = made(privacy=STATED.to_dict())
    content["predicate"]["privacy"]["epsilon"]["substitute"] = 1.0
    with pytest.raises(CertificateError, match=r"privacy: .*substitute says 1\.0, but 10\.0"):
        read_back(sealed(content), tmp_path)


@pytest.mark.parametrize("other", [None, 3, {}, {"epsilon": 1}])
def test_anything_else_is_refused(other: Any, tmp_path: Path) -> None:
    content = made(privacy=STATED.to_dict())
    content["predicate"]["privacy"] = other
    with pytest.raises(CertificateError, match="privacy"):
        read_back(sealed(content), tmp_path)
