"""The published JSON Schema takes what the code writes, and nothing of another form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from certificates import CERTIFIED, EXCESS, SCHEMA, UNDECIDED, audited, changed, made

from safexplain.audit import Policy, Signals, certify
from safexplain.hardening.amounts import Relative
from safexplain.hardening.clips import NormClip, RankNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise
from safexplain.verdict.certificate.write import PREDICATE_TYPE
from safexplain.verdict.judgement import Judgement

jsonschema = pytest.importorskip("jsonschema")

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one_and_names_the_predicate_type_of_the_code() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["properties"]["predicateType"]["const"] == PREDICATE_TYPE


@pytest.mark.parametrize("judgement", [CERTIFIED, EXCESS, UNDECIDED], ids=["certified", "excess", "undecided"])
def test_certificates_fit(judgement: Judgement) -> None:
    VALIDATOR.validate(json.loads(json.dumps(made(judgement))))


@pytest.mark.parametrize(
    "hardening",
    [
        Hardening.none(),
        Hardening.recommended(b"a secret of thirty-two bytes...."),
        Hardening(clip=NormClip(1.0), mask=ThresholdMask(Relative(0.1)), noise=GaussianNoise(0.1), grid=0.5),
        Hardening(clip=RankNorm(), mask=TopKMask(0.5)),
    ],
    ids=repr,
)
def test_every_hardening_fits(hardening: Hardening) -> None:
    VALIDATOR.validate(json.loads(json.dumps(made(hardening=hardening.to_dict()))))


@pytest.mark.parametrize("shift", [0.0, 0.4, 3.0])
def test_what_an_audit_writes_fits(shift: float) -> None:
    rng = np.random.default_rng(0)
    membership = rng.random((9, 800)) < 0.5
    l1 = np.exp(rng.normal(size=membership.shape) - shift * membership)
    label = rng.integers(0, 3, membership.shape).astype(float)
    loss = rng.random(membership.shape)
    signals = Signals(membership, {"l1": l1, "l2": l1**2, "label": label, "loss": loss})
    for policy in (Policy(), Policy(fpr=0.1, max_tpr=0.3, claim="excess", release="explanation+prediction")):
        result = certify(signals, policy).to_dict()
        content = json.loads(json.dumps(made(audit=result)))
        VALIDATOR.validate(content)
        named = set(SCHEMA["$defs"]["audit"]["properties"])
        assert set(content["predicate"]["audit"]) == named, "the schema describes every field of an audit, and no other"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("_type",), "https://in-toto.io/Statement/v0.1"),
        (("predicateType",), "urn:safexplain:explanation-audit:v1"),
        (("subject",), []),
        (("subject", 0, "digest"), {"sha256": "ab" * 32}),
        (("subject", 0, "digest", "sha256"), "nonsense"),
        (("predicate", "schema_version"), 1),
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
        (("predicate", "audit", "evidence", 0, "loose"), -1),
        (("predicate", "audit", "evidence", 0, "role"), "guess"),
        (("predicate", "audit", "evidence", 0, "extra"), 1),
        (("predicate", "audit", "policy", "fpr"), 0),
        (("predicate", "audit", "policy", "claim"), "some"),
        (("predicate", "audit", "controls", 0, "fired"), "no"),
        (("predicate", "audit", "uses"), 0),
    ],
)  # fmt: skip
def test_another_form_does_not_fit(path: tuple[Any, ...], value: Any) -> None:
    assert not VALIDATOR.is_valid(changed(made(), path, value))


def test_no_field_of_a_judgement_may_be_missing() -> None:
    for name in audited(CERTIFIED).keys() - {"judged", "could_certify", "attacks", "splits", "uses"}:
        content = made()
        del content["predicate"]["audit"][name]
        assert not VALIDATOR.is_valid(content), name
