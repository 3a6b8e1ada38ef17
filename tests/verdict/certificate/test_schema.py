"""The published JSON Schema takes what the code writes, and nothing of another form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from certificates import CERTIFIED, SCHEMA, audited, changed, made

from safexplain.hardening.clips import Levels, NormClip, Relative, ThresholdMask
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.verdict.certificate.write import PREDICATE_TYPE

jsonschema = pytest.importorskip("jsonschema")

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one_and_names_the_predicate_type_of_the_code() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["properties"]["predicateType"]["const"] == PREDICATE_TYPE


@pytest.mark.parametrize(
    "hardening",
    [
        Hardening.none(),
        Hardening.ranked(b"a secret of thirty-two bytes...."),
        Hardening(clip=NormClip(1.0), mask=ThresholdMask(Relative(0.1)), noise=GaussianNoise(0.1), grid=0.5),
        Hardening(clip=Levels(3)),
    ],
    ids=repr,
)
def test_every_hardening_fits(hardening: Hardening) -> None:
    VALIDATOR.validate(json.loads(json.dumps(made(hardening=hardening.to_dict()))))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("subject", 0, "digest"), {"sha256": "ab" * 32}),
        (("predicate", "verdict"), "fine"),
        (("predicate", "explainer", "output"), "both"),
        (("predicate", "hardening", "noise"), {"kind": "GaussianNoise", "std": 1, "key": "abc"}),
        (("predicate", "audit", "bound"), 2),
        (("predicate", "audit", "evidence", 0, "upper_bound_count"), -1),
        (("predicate", "audit", "evidence", 0, "pair"), {"only": 1}),
        (("predicate", "audit", "policy", "patience"), [0]),
    ],
)  # fmt: skip
def test_another_form_does_not_fit(path: tuple[Any, ...], value: Any) -> None:
    assert not VALIDATOR.is_valid(changed(made(), path, value))


def test_no_field_of_a_judgement_may_be_missing() -> None:
    for name in audited(CERTIFIED).keys() - {"attacks", "splits"}:
        content = made()
        del content["predicate"]["audit"][name]
        assert not VALIDATOR.is_valid(content), name
