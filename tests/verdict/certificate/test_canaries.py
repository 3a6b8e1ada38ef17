"""A certificate carries what canaries found, and believes only what follows from the counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import SCHEMA, made, read_back, sealed

from safexplain.dp import Steps
from safexplain.errors import CertificateError
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.result import CanaryResult, Errors
from safexplain.verdict.canaries.white_box import Check, WhiteBoxResult

jsonschema = pytest.importorskip("jsonschema")

CLAIM = Claim(Steps(22.3557, 1.0, 500, "full-batch"), 1e-5)
MANY = CanaryResult("gradient", CLAIM, "pld", 0.95, (Errors(500, 0.0, 185, 1000, 185, 1000),), 2000, 9.0, {"on": "x"})
ALONE = CanaryResult(
    "natural", Claim(None, 1e-5, epsilon=2.0), "clopper-pearson", 0.95, (Errors(1, 0.5, 0, 50, 0, 50),), 100, 1.0
)
SEEN = WhiteBoxResult(CLAIM, (Check("steps", 500, 500, "500 sums"), Check("batches", None, 0.0, "not told")), 40, 2.0)


@pytest.mark.parametrize("found", [MANY, ALONE, SEEN], ids=["many runs", "epsilon alone", "white box"])
def test_the_finding_is_read_back_and_fits_the_schema(found: Finding, tmp_path: Path) -> None:
    content = made(canaries=found.to_dict())
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert read_back(content, tmp_path).canaries == found


def test_canaries_that_found_nothing_stand_in_a_certificate_as_what_they_are(tmp_path: Path) -> None:
    """Else it would be better to leave them out, and a certificate must gain nothing by that."""
    weak = CanaryResult("gradient", CLAIM, "pld", 0.95, (Errors(500, 0.0, 330, 1000, 330, 1000),), 2000, 9.0)
    found = read_back(made(canaries=weak.to_dict()), tmp_path).canaries
    assert found is not None
    assert found.verdict == "not refuted"


def test_without_canaries_a_certificate_is_as_before(tmp_path: Path) -> None:
    assert "canaries" not in made()["predicate"]
    assert read_back(made(), tmp_path).canaries is None


@pytest.mark.parametrize(
    ("found", "change", "says"),
    [
        (MANY, {"epsilon_lower": 0.1}, "epsilon_lower says 0.1"),
        (MANY, {"verdict": "as claimed"}, "verdict says"),
        (MANY, {"epsilon_add_remove": 30.0}, "epsilon_add_remove says"),
        (MANY, {"detectable": 9.0}, "detectable says 9.0"),
    ],
)
def test_a_forged_finding_is_found_though_the_checksum_fits(
    found: Finding, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    content = made(canaries=found.to_dict())
    content["predicate"]["canaries"] |= change
    with pytest.raises(CertificateError, match=f"canaries: .*{says}"):
        read_back(sealed(content), tmp_path)


@pytest.mark.parametrize("other", [None, 3, {}, {"epsilon_lower": 1}, {"errors": [], "claim": None}])
def test_anything_else_is_refused(other: Any, tmp_path: Path) -> None:
    content = made(canaries=MANY.to_dict())
    content["predicate"]["canaries"] = other
    with pytest.raises(CertificateError, match="canar"):
        read_back(sealed(content), tmp_path)
