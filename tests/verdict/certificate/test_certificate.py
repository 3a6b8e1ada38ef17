"""A certificate is believed only where it can be checked, and every other file is refused in a sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import CERTIFIED, CONTROLS, EXCESS, UNDECIDED, at, audited, changed, leaves, made, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from safexplain.errors import CertificateError, InputError, SafexplainError
from safexplain.verdict.certificate import strict_json
from safexplain.verdict.certificate.read import load_certificate, recount
from safexplain.verdict.certificate.write import (
    as_json,
    write_json,
)
from safexplain.verdict.evidence import Evidence
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.policy import Policy


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """Load what some JSON content, or bytes, would be as a file."""

    def call(content: Any, **options: Any) -> Any:
        path = tmp_path / "certificate.json"
        path.write_bytes(content if isinstance(content, bytes) else as_json(content))
        return load_certificate(path, **options)

    return call


# --- what was written is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("judgement", [CERTIFIED, EXCESS, UNDECIDED], ids=["certified", "excess", "undecided"])
def test_what_was_written_is_read_back(load: Callable[..., Any], judgement: Judgement) -> None:
    found = load(made(judgement))
    assert found.judgement == judgement
    assert found.verdict == judgement.verdict
    assert (found.method, found.output, found.softmax, found.options) == ("IG", "probability", True, {"n_steps": 25})
    assert found.digests("sha256") == {"ab" * 32}
    assert (found.signature, found.notes) == ("none", ("a note",))
    assert found.environment["captum"] == "0.9.0"


def test_the_cases_here_are_what_they_are_called() -> None:
    assert [j.verdict for j in (CERTIFIED, EXCESS, UNDECIDED)] == ["certified", "certified", "inconclusive"]


def test_options_come_back_as_the_command_line_parsed_them(load: Callable[..., Any]) -> None:
    explainer = {"method": "Occlusion", "output": "logit", "options": {"strides": [1, 2], "deep": [[1], 2]}}
    found = load(made(explainer=explainer))
    assert found.options == {"strides": (1, 2), "deep": ([1], 2)}
    assert found.softmax is False


def test_softmax_is_what_the_certificate_says(load: Callable[..., Any]) -> None:
    explainer = {"method": "IG", "output": "probability", "options": {}, "softmax": False}
    assert load(made(explainer=explainer)).softmax is False


def test_a_sentence_may_go_on_with_advice_only_where_nothing_was_decided(load: Callable[..., Any]) -> None:
    advice = " About 3,000 members would decide."
    load(made(audit=audited(UNDECIDED, sentence=UNDECIDED.sentence + advice)))
    with pytest.raises(CertificateError, match="sentence"):
        load(made(audit=audited(CERTIFIED, sentence=CERTIFIED.sentence + advice)))


def test_reformatted_json_is_the_same_certificate(load: Callable[..., Any]) -> None:
    content = made()
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).replace('"selection":0.0', '"selection":0')
    assert load(text.encode()).judgement == CERTIFIED


def test_an_audit_of_signals_writes_what_is_read(load: Callable[..., Any]) -> None:
    import numpy as np

    from safexplain.audit import Signals, certify

    rng = np.random.default_rng(0)
    membership = rng.random((9, 3000)) < 0.5
    for shift, policy in ((0.0, Policy(max_tpr=0.1)), (3.0, Policy()), (0.0, Policy())):
        signals = Signals(membership, {"l1": np.exp(rng.normal(size=membership.shape) - shift * membership)})
        result = certify(signals, policy)
        found = load(made(audit=json.loads(json.dumps(result.to_dict()))))
        assert found.judgement == Judgement.from_dict(result.to_dict())
        assert found.verdict == result.verdict


# --- what was changed is refused -----------------------------------------------------------------------------------


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10_000),
    st.integers(),
    st.floats(-2, 2),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "certified", "leak", "whole", "excess", "explanation", "label", "x", "\ud800", "\x1b[2J"]),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.sampled_from(["key", "kind", "a"]), st.integers(0, 3), max_size=2),
)
CASES = [made(CERTIFIED), made(EXCESS), made(UNDECIDED)]
FOLLOWS = {"verdict", "sentence", "reasons", "bound", "judged_confidence", "ranks", "could_certify", "loose", "tight"}
FOLLOWS |= {"tight_share", "low", "high", "proven", "judged", "loose_only", "loose_missed", "tight_only"}
FOLLOWS |= {"tight_missed"}
"""Numbers and words of an audit that follow from others, and counts from which others follow strictly."""


def follows(path: tuple[Any, ...]) -> bool:
    return path[:2] == ("predicate", "audit") and bool(FOLLOWS & set(path)) and "attacks" not in path


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


@settings(max_examples=300)
@given(st.data())
def test_whatever_is_changed_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(CASES))
    path, value = data.draw(st.sampled_from(list(leaves(content)))), data.draw(VALUES)
    file = tmp_path_factory.mktemp("c") / "certificate.json"
    file.write_bytes(as_json(changed(content, path, value)))
    if strict_json.canonical(value) == strict_json.canonical(at(content, path)):
        assert load_certificate(file).verdict == content["predicate"]["verdict"]
    else:
        with pytest.raises(CertificateError):
            load_certificate(file)


@settings(max_examples=600)
@given(st.data())
def test_a_forger_who_computes_the_checksum_cannot_make_the_verdict_another_than_the_counts_give(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = data.draw(st.sampled_from(CASES))
    path, value = data.draw(st.sampled_from(list(leaves(content)))), data.draw(VALUES)
    forged = changed(content, path, value)
    try:
        forged = sealed(forged)
    except (ValueError, AttributeError, TypeError):
        return
    file = tmp_path_factory.mktemp("c") / "certificate.json"
    file.write_bytes(as_json(forged))
    try:
        found = load_certificate(file)
    except CertificateError:
        return
    assert not follows(path) or equal(at(content, path), value), path
    audit = forged["predicate"]["audit"]
    assert found.judgement == Judgement.from_dict(audit)
    assert found.verdict == found.judgement.verdict == forged["predicate"]["verdict"] == audit["verdict"]


@pytest.mark.parametrize("case", CASES, ids=["certified", "excess", "undecided"])
def test_every_number_that_follows_from_others_is_compared(load: Callable[..., Any], case: dict[str, Any]) -> None:
    paths = [path for path in leaves(case) if follows(path)]
    assert len(paths) > 20
    for path in paths:
        value = at(case, path)
        other = (not value) if isinstance(value, bool) else value + 1e-6 if isinstance(value, float) else None
        other = value + 1 if isinstance(value, int) and not isinstance(value, bool) else other
        other = f"{value}!" if isinstance(value, str) else other
        with pytest.raises(CertificateError, match=r"audit|verdict"):
            load(sealed(changed(case, path, other)))


def test_a_verdict_that_does_not_follow_is_named(load: Callable[..., Any]) -> None:
    worse = changed(made(), ("predicate", "audit", "evidence", 1, "tight"), 60)
    with pytest.raises(CertificateError, match=r"certificate\.json: audit\.\S+ says .* follows from the counts"):
        load(sealed(worse))
    with pytest.raises(CertificateError, match="verdict says 'certified', but 'inconclusive'"):
        load(sealed(changed(made(UNDECIDED), ("predicate", "verdict"), "certified")))


def test_a_number_may_be_off_by_rounding_only() -> None:
    audit = audited(CERTIFIED)
    near = {**audit, "bound": audit["bound"] * (1 + 1e-12)}
    assert recount(near) == CERTIFIED
    with pytest.raises(CertificateError, match=r"audit\.bound"):
        recount({**audit, "bound": audit["bound"] * (1 + 1e-7)})


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("_type",), "https://in-toto.io/Statement/v0.1", "expected https://in-toto.io/Statement/v1"),
        (("predicateType",), "urn:safexplain:explanation-audit:v1", "audit again"),
        (("predicateType",), "https://slsa.dev/provenance/v1", "expected urn:safexplain:explanation-audit:v2"),
        (("predicate", "schema_version"), 3, "schema_version"),
        (("predicate", "schema_version"), 2.0, "schema_version"),
        (("predicate", "more"), 1, "unknown more"),
        (("predicate", "hardening", "noise"), {"kind": "GaussianNoise", "std": 1, "key": "abc"}, "'key'"),
        (("predicate", "environment", "Noise_Key"), "abc", "'noise_key'"),
        (("predicate", "explainer", "output"), "both", "probability or logit"),
        (("predicate", "explainer", "softmax"), 1, "softmax"),
        (("predicate", "explainer", "layer"), "conv1", "layer"),
        (("predicate", "environment", "captum"), 9, "environment"),
        (("predicate", "notes"), "a note", "notes"),
        (("predicate", "utility"), {"a": True}, "utility"),
        (("subject",), [], "subject"),
        (("subject", 0, "digest"), {"sha256": "ab" * 32}, "safexplainModelDigest"),
        (("subject", 0, "digest", "sha256"), "AB" * 32, "subject"),
        (("predicate", "audit", "members"), 10**12, "members"),
        (("predicate", "audit", "references"), -1, "references"),
        (("predicate", "audit", "split"), "training", "split"),
        (("predicate", "audit", "uses"), 0, "uses"),
        (("predicate", "audit", "attacks", 0, "role"), "label", r"audit\.attacks\[0\]\.role"),
        (("predicate", "audit", "splits", "certification"), 9000, r"audit\.splits"),
        (("predicate", "audit", "policy", "fpr"), 0.02, "audit"),
        (("predicate", "audit", "policy", "max_tpr"), 0.5, "sentence"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field(load: Callable[..., Any], path: tuple[Any, ...], value: Any, said: str) -> None:
    with pytest.raises(CertificateError, match=said) as error:
        load(sealed(changed(made(), path, value)))
    assert "\n" not in str(error.value)


def test_an_attack_named_twice_cannot_hide_the_worse_one(load: Callable[..., Any]) -> None:
    content = made()
    rows = content["predicate"]["audit"]["evidence"]
    rows.insert(0, {**rows[0], "loose": 900, "tight": 800})
    with pytest.raises(CertificateError, match="two attacks of one name"):
        load(sealed(content))


def test_no_judged_attack_is_left_out_of_a_comparison(load: Callable[..., Any]) -> None:
    more = (*EXCESS.evidence, Evidence("RMIA", "l1", "explanation", 5000, 5000))
    with pytest.raises(CertificateError, match="RMIA on l1"):
        load(made(Judgement(EXCESS.policy, more, 5000, 5000, 16, CONTROLS, EXCESS.pairs, EXCESS.baseline)))


def test_a_missing_field_is_named(load: Callable[..., Any]) -> None:
    for name in ("subject", "predicate", "predicateType", "_type"):
        content = made()
        del content[name]
        with pytest.raises(CertificateError, match=name):
            load(content)
    for name in made()["predicate"]:
        content = made()
        del content["predicate"][name]
        with pytest.raises(CertificateError, match=name):
            load(content)


def test_a_missing_field_of_the_audit_is_named(load: Callable[..., Any]) -> None:
    for name in CERTIFIED.to_dict().keys() - {"judged", "could_certify"}:  # which older files may lack
        content = made()
        del content["predicate"]["audit"][name]
        with pytest.raises(CertificateError, match=name):
            load(sealed(content))


# --- what is no certificate ----------------------------------------------------------------------------------------

DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
NOT_JSON = {
    "nothing": (b"", "JSON"),
    "a list": (b"[1]", "expected an object"),
    "not UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "infinity": (b'{"a": -Infinity}', "Infinity"),
    "infinity in digits": (b'{"a": 1e999}', "1e999"),
    "an integer without end": (b'{"a": ' + b"9" * 5000 + b"}", "integer"),
    "a large integer": (b'{"a": 99999999999999999999}', "2^53"),
    "a name twice": (b'{"a": {"verdict": "leak", "verdict": "certified"}}', "'verdict' is given twice"),
    "deep nesting": (DEEP, "nested too deep"),
    "rather deep nesting": (b'{"a":' * 60 + b"1" + b"}" * 60, "nested deeper"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "surrogate"),
    "half a surrogate pair in a name": (b'{"\\ud800": 1}', "surrogate"),
    "a huge file": (b" " * (strict_json.LARGEST + 1), "MiB"),
    "another JSON": (b"{}", "_type"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_certificate_is_refused_in_a_line(load: Callable[..., Any], name: str) -> None:
    raw, said = NOT_JSON[name]
    with pytest.raises(CertificateError, match=said.replace("^", r"\^")) as error:
        load(raw)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    for path in (tmp_path / "nope.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            load_certificate(path)


def test_a_certificate_cut_short_anywhere_is_refused(load: Callable[..., Any]) -> None:
    raw = as_json(made()).rstrip()
    for end in [*range(0, len(raw), 61), len(raw) - 1]:
        with pytest.raises(CertificateError):
            load(raw[:end])


@settings(max_examples=200)
@given(
    raw=st.one_of(st.binary(max_size=80), st.text("{}[]:,\"'0123456789.eE-+ntfalsru\\ ", max_size=60).map(str.encode))
)
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    file = tmp_path_factory.mktemp("c") / "certificate.json"
    file.write_bytes(raw)
    with pytest.raises(CertificateError):
        load_certificate(file)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(part=st.sampled_from(["audit", "policy", "evidence", "controls", "excess"]), value=JSON)
def test_any_json_in_place_of_an_audit_is_refused_not_crashed_on(part: str, value: Any) -> None:
    audit: Any = {**audited(CERTIFIED), part: value} if part != "audit" else value
    if part == "controls" and value == []:
        return
    if part == "excess" and value == []:
        return
    with pytest.raises(SafexplainError):
        recount(audit)


@given(value=JSON)
def test_the_canonical_text_is_one_for_what_json_makes_of_a_value(value: Any) -> None:
    text = strict_json.canonical(value)
    assert strict_json.canonical(json.loads(json.dumps(value))) == text
    assert strict_json.canonical(json.loads(text)) == text


def test_a_certificate_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        write_json(tmp_path / "no" / "certificate.json", made())
