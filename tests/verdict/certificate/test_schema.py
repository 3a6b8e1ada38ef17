"""The published JSON Schema takes what the code writes, and nothing of another form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import results
from certificates import CERTIFIED, JUDGEMENTS, SCHEMA, audited, changed, made

from safexplain.hardening.clips import NormClip, RankNorm, Relative
from safexplain.hardening.formats import Levels, TopKSet
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise
from safexplain.verdict.certificate.write import PREDICATE_TYPE
from safexplain.verdict.implied import Implied
from safexplain.verdict.judgement import Judgement

jsonschema = pytest.importorskip("jsonschema")

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one_and_names_the_predicate_type_of_the_code() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["properties"]["predicateType"]["const"] == PREDICATE_TYPE


@pytest.mark.parametrize("judgement", JUDGEMENTS.values(), ids=JUDGEMENTS)
def test_certificates_fit(judgement: Judgement) -> None:
    VALIDATOR.validate(json.loads(json.dumps(made(judgement))))


@pytest.mark.parametrize(
    "hardening",
    [
        Hardening.none(),
        Hardening.ranked(b"a secret of thirty-two bytes...."),
        Hardening(clip=NormClip(1.0), mask=ThresholdMask(Relative(0.1)), noise=GaussianNoise(0.1), grid=0.5),
        Hardening(clip=RankNorm(), mask=TopKMask(0.5)),
        Hardening.recommended(),
        Hardening(clip=TopKSet(k=4)),
        Hardening(clip=Levels(3)),
    ],
    ids=repr,
)
def test_every_hardening_fits(hardening: Hardening) -> None:
    VALIDATOR.validate(json.loads(json.dumps(made(hardening=hardening.to_dict()))))


IMPLIED = Implied(0.1, 1e-5, results.POLICY.fpr, 0.12, 0.11, 0.52)

AUDITS = {
    "certified": lambda: results.audited(0.0, replace(results.POLICY, max_excess=0.4), parts=3, exposed=5),
    "leak": lambda: results.audited(4.0),
    "whole, with advice": lambda: results.audited(0.2, results.WHOLE, examples=600),
    "no labels": lambda: results.audited(0.0, results.POLICY, labels=False),
    "groups": lambda: results.audited(0.0, group=3),
    "predictions alone": lambda: results.audited(0.0, replace(results.WHOLE, release="prediction")),
    "several targets": lambda: results.of_targets(0.0, 4.0),
    "by guarantee": lambda: replace(
        results.audited(0.0), implied=Implied(0.1, 1e-5, results.POLICY.fpr, 0.12, 0.11, 0.52)
    ),
}


@pytest.mark.parametrize("case", AUDITS)
def test_what_an_audit_writes_fits(case: str) -> None:
    result = AUDITS[case]()
    content = json.loads(json.dumps(made(audit=result.to_dict(), native=result.summary())))
    VALIDATOR.validate(content)
    named = set(SCHEMA["$defs"]["audit"]["properties"])
    named -= set() if case == "by guarantee" else {"basis", "implied"}
    assert set(content["predicate"]["audit"]) == named, "the schema describes every field of an audit, and no other"
    assert case != "whole, with advice" or content["predicate"]["audit"]["needed"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("_type",), "https://in-toto.io/Statement/v0.1"),
        (("predicateType",), "urn:safexplain:explanation-audit:v2"),
        (("subject",), []),
        (("subject", 0, "digest"), {"sha256": "ab" * 32}),
        (("subject", 0, "digest", "sha256"), "nonsense"),
        (("predicate", "schema_version"), 2),
        (("predicate", "verdict"), "fine"),
        (("predicate", "checksum"), "md5:0"),
        (("predicate", "extra"), 1),
        (("predicate", "explainer", "output"), "both"),
        (("predicate", "hardening", "noise"), {"kind": "GaussianNoise", "std": 1, "key": "abc"}),
        (("predicate", "environment"), {}),
        (("predicate", "materials"), {}),
        (("predicate", "notes"), "a note"),
        (("predicate", "audit", "members"), 0),
        (("predicate", "audit", "bound"), 2),
        (("predicate", "audit", "evidence", 0, "upper_bound_count"), -1),
        (("predicate", "audit", "evidence", 0, "role"), "guess"),
        (("predicate", "audit", "evidence", 0, "extra"), 1),
        (("predicate", "audit", "evidence", 0, "level"), 0),
        (("predicate", "audit", "evidence", 0, "pair"), {"only": 1}),
        (("predicate", "audit", "evidence", 0, "added"), [0, 1]),
        (("predicate", "audit", "levels", 0, "labels"), {"tpr": 2, "low": 0, "high": 1}),
        (("predicate", "audit", "levels", 0, "whole"), {}),
        (("predicate", "audit", "claim"), "some"),
        (("predicate", "audit", "limit"), 2),
        (("predicate", "audit", "grouped"), 0),
        (("predicate", "audit", "targets"), 0),
        (("predicate", "audit", "others"), [{"verdict": "certified"}]),
        (("predicate", "audit", "omitted"), "Stacked"),
        (("predicate", "audit", "policy", "patience"), [0]),
        (("predicate", "audit", "policy", "uncounted"), "no"),
        (("predicate", "native"), {"verdict": "leak"}),
        (("predicate", "limits"), ["none"]),
        (("predicate", "audit", "policy", "fpr"), 0),
        (("predicate", "audit", "policy", "claim"), "some"),
        (("predicate", "audit", "controls", 0, "failed"), "no"),
        (("predicate", "audit", "uses"), 0),
    ],
)  # fmt: skip
def test_another_form_does_not_fit(path: tuple[Any, ...], value: Any) -> None:
    assert not VALIDATOR.is_valid(changed(made(), path, value))


def test_no_field_of_a_judgement_may_be_missing() -> None:
    for name in audited(CERTIFIED).keys() - {"attacks", "splits"}:
        content = made()
        del content["predicate"]["audit"][name]
        assert not VALIDATOR.is_valid(content), name
