"""A certificate by construction says what it rests on, cannot be taken for an audit's, and keeps its words."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import made, sealed

from safexplain._versions import VERSION
from safexplain.errors import CertificateError, ConfigurationError, InputError
from safexplain.verdict.certificate.read import load_any, load_certificate, load_guarantee
from safexplain.verdict.certificate.write import GUARANTEE_TYPE, checksum, guarantee_statement, write_json
from safexplain.verdict.guarantee import Estimate, Guarantee, Measured

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "explanation-guarantee-v1.json").read_text())
PUBLIC = Guarantee("public models", "InputXGradient", ("ab" * 32, "cd" * 32))
STUDENT = Guarantee("student", "IntegratedGradients", ("ab" * 32,), "ef" * 32, 597)
MEASURED = Measured(
    200, 0.95, 0.1, Estimate.of_share(180, 200), *(Estimate(v, v - 0.1, v + 0.1) for v in (0.8, 0.5, 0.9, 0.6, -0.1))
)


def content(guarantee: Guarantee = PUBLIC, measured: Measured | None = MEASURED) -> dict[str, Any]:
    return guarantee_statement(
        subject={"model.pt": {"safexplainModelDigest": "12" * 32, "sha256": "34" * 32}},
        guarantee=guarantee,
        measured=measured,
        environment={"safexplain": VERSION, "torch": "2.15"},
        notes=["a note"],
    )


def changed(path: tuple[Any, ...], value: Any, *, sealed: bool = True) -> dict[str, Any]:
    """A statement with one value another, and the checksum computed again."""
    statement = copy.deepcopy(content())
    part: Any = statement
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    if sealed:
        statement["predicate"]["checksum"] = checksum(statement)
    return statement


@pytest.mark.parametrize("guarantee", [PUBLIC, STUDENT])
@pytest.mark.parametrize("measured", [None, MEASURED, Measured(3, 0.9, 0.2, Estimate(1, 0.4, 1))])
def test_what_is_written_is_read(guarantee, measured, tmp_path):
    path = write_json(tmp_path / "g.json", content(guarantee, measured))
    for found in (load_guarantee(path), load_any(path)):
        assert (found.guarantee, found.measured, found.signature) == (guarantee, measured, "none")
        assert found.kind == "by construction"
        assert found.notes == ("a note",)
        assert found.digests("sha256") == {"34" * 32}


def test_the_two_kinds_are_told_apart(tmp_path):
    ours, audits = write_json(tmp_path / "g.json", content()), write_json(tmp_path / "a.json", made())
    with pytest.raises(CertificateError, match=r"g\.json: .*by construction.*PublicExplainer\.from_certificate"):
        load_certificate(ours)
    with pytest.raises(CertificateError, match=r"a\.json: .*got the certificate of an audit"):
        load_guarantee(audits)
    assert load_any(audits) == load_certificate(audits)
    assert load_any(audits).kind == load_certificate(audits).kind == "by audit"


CHANGES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("predicate", "schema_version"), 2, "schema_version"),
    (("predicate", "verdict"), "certified", "unknown .'verdict'"),
    (("predicate", "guarantee", "assumes"), ["Nothing."], "assumes says"),
    (("predicate", "guarantee", "source"), "student", "a student is one model"),
    (("predicate", "guarantee", "source"), "private", "source: expected"),
    (("predicate", "guarantee", "models"), [], "models"),
    (("predicate", "guarantee", "labels_asked"), 7, "use no labels"),
    (("predicate", "guarantee", "extra"), 7, "guarantee.extra is unknown"),
    (("predicate", "measured", "agreement"), None, "agreement must be"),
    (("predicate", "measured", "agreement", "low"), 0.99, "low <= value"),
    (("predicate", "measured", "examples"), 0, "examples"),
]


@pytest.mark.parametrize(("path", "value", "said"), CHANGES)
def test_what_was_changed_is_refused_by_name(path, value, said, tmp_path):
    with pytest.raises(CertificateError, match=said):
        load_guarantee(write_json(tmp_path / "g.json", changed(path, value)))


def test_another_version_may_phrase_a_guarantee_differently_but_not_state_other_facts(tmp_path):
    worded, other = content(), {"safexplain": "9.0.0", "torch": "2.15"}
    worded["predicate"]["guarantee"] |= {"sentence": "In other words.", "says": [], "does_not_say": ["Less."]}
    worded["predicate"]["environment"] = other
    read = load_guarantee(write_json(tmp_path / "g.json", sealed(worded))).guarantee
    assert read == PUBLIC
    assert "nothing was audited" in read.sentence
    worded["predicate"]["guarantee"]["kind"] = "by audit"
    with pytest.raises(CertificateError, match=r"guarantee\.kind says"):
        load_guarantee(write_json(tmp_path / "g.json", sealed(worded)))


def test_careless_edits_and_two_models_are_refused(tmp_path):
    edited = changed(("predicate", "notes"), ["another"], sealed=False)
    with pytest.raises(CertificateError, match="the checksum does not match"):
        load_guarantee(write_json(tmp_path / "g.json", edited))
    two = changed(("subject",), [{"name": n, "digest": {"safexplainModelDigest": "12" * 32}} for n in "ab"])
    with pytest.raises(CertificateError, match="the one model"):
        load_guarantee(write_json(tmp_path / "g.json", two))


def test_the_published_schema_takes_what_is_written_and_nothing_of_another_form():
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert SCHEMA["properties"]["predicateType"]["const"] == GUARANTEE_TYPE
    for guarantee in (PUBLIC, STUDENT):
        for measured in (None, MEASURED):
            validator.validate(json.loads(json.dumps(content(guarantee, measured))))
    words = ("assumes says", "low <= value")
    for path, value, said in CHANGES:
        assert validator.is_valid(changed(path, value)) == (said in words), path


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guarantee("student", "IG", ("ab" * 32, "cd" * 32), "ef" * 32, 5),
        lambda: Guarantee("public models", "", ("ab" * 32,)),
        lambda: Estimate(float("nan"), 0, 1),
    ],
)
def test_facts_that_contradict_each_other_make_no_guarantee(make):
    with pytest.raises(ConfigurationError):
        make()


def test_the_words_name_what_holds_what_is_assumed_and_what_is_not_said():
    for one in (PUBLIC, STUDENT):
        assert "nothing was audited" in str(one)
        assert any("public" in line for line in one.assumes)
        assert any("labels themselves" in line for line in one.does_not_say)
    assert "2 models of public data" in str(PUBLIC)
    assert "597 public inputs" in str(STUDENT)
    assert not any("may be queried" in line for line in PUBLIC.assumes)
    assert any("may be queried" in line for line in STUDENT.assumes)
    with pytest.raises(ConfigurationError, match="guarantee lacks"):
        Guarantee.from_dict({})


def test_the_interval_of_a_mean_covers_it_and_a_narrower_one_does_not():
    rng = np.random.default_rng(0)
    draws = rng.beta(3, 1, size=(2000, 100)) * 2 - 1
    found = [Estimate.of_mean(row) for row in draws]
    covered = np.mean([e.low <= 0.5 <= e.high for e in found])
    half = np.mean([e.value - (e.value - e.low) / 2 <= 0.5 <= e.value + (e.high - e.value) / 2 for e in found])
    assert 0.93 < covered < 0.97
    assert half < 0.75
    assert Estimate.of_mean([0.3]) == Estimate(0.3, -1, 1)
    assert str(Estimate.of_mean(np.linspace(-0.5, 0.9, 15))) == "0.200 [-0.048, 0.448]"  # +- 2.145 * .4472 / 15^.5
    assert str(Estimate.of_share(180, 200)) == "0.900 [0.850, 0.938]"
    for bad in ([], [np.nan]):
        with pytest.raises(InputError):
            Estimate.of_mean(bad)
