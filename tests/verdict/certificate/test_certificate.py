"""A certificate is believed only where it can be checked, and every other file is refused in a sentence."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import results
from certificates import (
    CERTIFIED,
    EXCESS,
    JUDGEMENTS,
    LEAKING,
    SCHEMA,
    UNDECIDED,
    at,
    audited,
    changed,
    leaves,
    made,
    read_back,
    sealed,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import peak_of

from safexplain.errors import CertificateError, InputError, SafexplainError
from safexplain.hardening.clips import Levels, NormClip, Relative, ThresholdMask
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.verdict import strict_json, words
from safexplain.verdict.certificate.read import LONGEST_TEXT, load_certificate, recount
from safexplain.verdict.certificate.write import PREDICATE_TYPE, as_json
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.result import AuditResult

jsonschema = pytest.importorskip("jsonschema")

VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
ALONE = ("predicate", "audit")
WHOLE = replace(results.WHOLE, patience=(1,))
AUDITS: dict[str, Callable[[], AuditResult]] = {
    "certified": lambda: results.audited(0.0, replace(results.POLICY, max_excess=0.4), parts=3, exposed=5),
    "leak": lambda: results.audited(4.0),
    "whole, with advice": lambda: results.audited(0.2, results.WHOLE, examples=600),
    "predictions alone": lambda: results.audited(0.0, replace(results.WHOLE, release="prediction")),
    "no labels": lambda: results.audited(0.0, WHOLE, labels=False),
    "groups": lambda: results.audited(0.0, results.POLICY, group=3),
    "several targets": lambda: results.of_targets(0.0, 4.0),
}
"""What `certify` gives, by made-up scores."""


@pytest.fixture
def load(tmp_path):
    """Load what some JSON content, or bytes, would be as a file."""

    def call(content: Any, **options: Any) -> Any:
        path = tmp_path / "certificate.json"
        path.write_bytes(content if isinstance(content, bytes) else as_json(content))
        return load_certificate(path, **options)

    return call


@pytest.mark.parametrize("judgement", JUDGEMENTS.values(), ids=JUDGEMENTS)
def test_what_was_written_is_read_back_and_fits_the_schema(load, judgement):
    found = load(made(judgement))
    VALIDATOR.validate(json.loads(json.dumps(made(judgement))))
    assert found.judgement == judgement
    assert found.verdict == judgement.verdict
    assert (found.method, found.output, found.softmax, found.options) == ("IG", "probability", True, {"n_steps": 25})
    assert found.digests("sha256") == {"ab" * 32}
    assert (found.signature, found.notes) == ("none", ("a note",))
    assert found.environment["captum"] == "0.9.0"
    assert found.native == {"verdict": "leak", "sentence": "Leak proven.", "levels": []}
    assert found.limits == (("One attack", "A stronger attack may find more."),)


def test_options_come_back_as_the_command_line_parsed_them(load):
    explainer = {"method": "Occlusion", "output": "logit", "options": {"strides": [1, 2], "deep": [[1], 2]}}
    found = load(made(explainer=explainer))
    assert found.options == {"strides": (1, 2), "deep": ([1], 2)}
    assert (found.softmax, found.shape) == (False, None)
    explainer = {"method": "IG", "output": "probability", "options": {}, "softmax": False, "shape": [3, 8, 8]}
    found = load(made(explainer=explainer, native=None))
    assert (found.softmax, found.shape, found.native) == (False, (3, 8, 8), None)


def test_reformatted_json_is_the_same_certificate(load):
    content = made()
    text = json.dumps(content, separators=(",", ":"), sort_keys=True).replace('"selection":0.0', '"selection":0')
    assert load(text.encode()).judgement == CERTIFIED


@pytest.mark.parametrize("case", AUDITS)
def test_an_audit_writes_what_is_read_and_fits_the_schema(load, case):
    result = AUDITS[case]()
    content = made(audit=json.loads(json.dumps(result.to_dict())), native=AUDITS["leak"]().summary())
    VALIDATOR.validate(json.loads(json.dumps(content)))
    described = set(SCHEMA["$defs"]["audit"]["properties"]) - {"basis", "implied"}
    assert set(content["predicate"]["audit"]) == described, "the schema describes every field of an audit, and no other"
    assert case != "whole, with advice" or content["predicate"]["audit"]["needed"]
    found = load(content)
    assert found.judgement == Judgement.from_dict(result.to_dict())
    assert found.verdict == result.verdict
    assert found.native["sentence"].startswith("Leak proven")


@pytest.mark.parametrize(
    "hardening",
    [
        Hardening.ranked(b"a secret of thirty-two bytes...."),
        Hardening(clip=NormClip(1.0), mask=ThresholdMask(Relative(0.1)), noise=GaussianNoise(0.1), grid=0.5),
        Hardening(clip=Levels(3)),
    ],
    ids=repr,
)
def test_the_schema_is_one_takes_every_hardening_and_names_the_predicate_of_the_code(hardening):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["predicateType"]["const"] == PREDICATE_TYPE
    VALIDATOR.validate(json.loads(json.dumps(made(hardening=hardening.to_dict()))))


def test_another_form_or_a_missing_field_does_not_fit_the_schema():
    assert not VALIDATOR.is_valid(changed(made(), ("subject", 0, "digest"), {"sha256": "ab" * 32}))
    for path, value in (("bound",), 2), (("evidence", 0, "pair"), {"only": 1}), (("policy", "patience"), [0]):
        assert not VALIDATOR.is_valid(changed(made(), (*ALONE, *path), value)), path
    for name in audited(CERTIFIED).keys() - {"attacks", "splits"}:
        content = made()
        del content["predicate"]["audit"][name]
        assert not VALIDATOR.is_valid(content), name


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
CASES = {name: made(j) for name, j in JUDGEMENTS.items()}
FOLLOWS = {
    "verdict", "sentence", "says", "details", "reasons", "claim", "limit", "bound", "levels", "could_certify", "judged",
    "proven", "confidence", "low", "high", "added", "upper_bound_count", "lower_bound_count",
}  # fmt: skip
"""Numbers and words of an audit that follow from others, and counts from which others follow strictly."""


LEAVES = {name: [p for p in leaves(c) if not isinstance(p[-1], int) or p[-1] % 7 == 0] for name, c in CASES.items()}
"""Places of single values; of a list every seventh, lest the long ones of pairs be all that is tried."""


def follows(path: tuple[Any, ...]) -> bool:
    return (
        path[:2] == ("predicate", "audit")
        and bool(FOLLOWS & set(path))
        and not {"attacks", "policy", "controls"} & set(path)
    )


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


@settings(max_examples=150)
@given(st.data())
def test_a_forger_who_computes_the_checksum_cannot_make_the_verdict_another_than_the_counts_give(
    tmp_path_factory, data
):
    name = data.draw(st.sampled_from(list(CASES)))
    content, path, value = CASES[name], data.draw(st.sampled_from(LEAVES[name])), data.draw(VALUES)
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


@pytest.mark.parametrize("name", CASES)
def test_every_number_that_follows_from_others_is_compared(load, name):
    case = CASES[name]
    paths = [path for path in leaves(case) if follows(path)]
    assert len(paths) > 20
    for path in paths:
        value = at(case, path)
        more = 1.0 if path[-1] in ("upper_bound_count", "lower_bound_count") else 1e-6
        other = (not value) if isinstance(value, bool) else value + more if isinstance(value, float) else None
        other = value + 1 if isinstance(value, int) and not isinstance(value, bool) else other
        other = f"{value}!" if isinstance(value, str) else other
        with pytest.raises(CertificateError, match=r"audit|verdict"):
            load(sealed(changed(case, path, 0.5 if value is None else other)))


def test_a_changed_value_is_found_wherever_it_stands(load):
    for path in [*leaves(case := made(LEAKING))][::10]:
        value = at(case, path)
        other = f"{value}!" if isinstance(value, str) else 1 + value if isinstance(value, int | float) else 1
        with pytest.raises(CertificateError):
            load(changed(case, path, other))
    for path, other in (
        (("predicate", "environment", "torch"), "9.0"),
        (("subject", 0, "digest", "sha256"), "ac" * 32),
    ):
        with pytest.raises(CertificateError, match="the checksum does not match"):
            load(changed(case, path, other))


def test_a_verdict_that_does_not_follow_is_named(load):
    worse = changed(made(), ("predicate", "audit", "evidence", 1, "lower_bound_count"), 60)
    with pytest.raises(CertificateError, match=r"certificate\.json: audit\.\S+ says .* follows from the counts"):
        load(sealed(worse))
    with pytest.raises(CertificateError, match="verdict is 'certified', but 'inconclusive'"):
        load(sealed(changed(made(UNDECIDED), ("predicate", "verdict"), "certified")))


def test_a_number_may_be_off_by_rounding_only():
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
        (("predicate", "schema_version"), 2, "schema_version"),
        (("predicate", "more"), 1, "unknown .'more'"),
        (("predicate", "hardening", "noise"), {"kind": "GaussianNoise", "std": 1, "key": "abc"}, "'key'"),
        (("predicate", "environment", "Noise_Key"), "abc", "'noise_key'"),
        (("predicate", "explainer", "output"), "both", "probability or logit"),
        (("predicate", "explainer", "shape"), [3, 0], "shape"),
        (("predicate", "native"), {"verdict": "leak"}, "native"),
        (("predicate", "limits"), [{"headline": "one"}], "limits"),
        (("subject", 0, "digest"), {"sha256": "ab" * 32}, "safexplainModelDigest"),
        (("subject", 0, "digest", "sha256"), "AB" * 32, "subject"),
        (("subject", 0, "digest", "safexplainAnswersDigest"), "ab" * 32, "with safexplainAnswersDigest alone"),
        (("predicate", "audit", "members"), 10**12, "members"),
        (("predicate", "audit", "split"), "training", "split"),
        (("predicate", "audit", "uses"), 0, "uses"),
        (("predicate", "audit", "omitted"), ["Stacked"], r"audit\.\S+ says"),
        (("predicate", "audit", "policy", "max_tpr"), 0.5, "says"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field(load, path, value, said):
    with pytest.raises(CertificateError, match=said) as error:
        load(sealed(changed(made(), path, value)))
    assert "\n" not in str(error.value)


def test_no_judged_attack_is_left_out_of_a_comparison(load):
    hidden = replace(EXCESS.evidence[1], attack="Boosted", pair=None)
    judgement = replace(EXCESS, evidence=(*EXCESS.evidence, hidden))
    assert judgement.verdict == "inconclusive"
    assert "was not compared with the predictions of the same queries: Boosted of " in words.details(judgement)[0]
    content = made(judgement)
    for name in ("verdict", "sentence", "reasons"):
        content["predicate"]["audit"][name] = audited(EXCESS)[name]
    with pytest.raises(CertificateError, match=r"audit\.verdict says 'certified'"):
        load(sealed(content))


@pytest.mark.parametrize("window", ["attack_window", "baseline_window"])
def test_pairs_that_no_examples_have_are_refused(load, window):
    row = ("predicate", "audit", "evidence", 1, "pair")
    content = made(EXCESS)
    counts = at(content, (*row, window))
    forged = {window: [counts[-1], *counts[1:]], "only": 0.0, "missed": 4000.0, "non_member_only": 3000.0}
    for name, value in forged.items():
        with pytest.raises(CertificateError, match="audit: "):
            load(sealed(changed(content, (*row, name), value)))
    with pytest.raises(CertificateError, match="audit: "):
        load(sealed(changed(content, (*row, window), counts[1:])))


def test_another_version_may_phrase_an_audit_differently_but_not_judge_otherwise(load):
    worded = changed(made(LEAKING), ("predicate", "environment", "safexplain"), "9.0.0")
    for path in (ALONE, (*ALONE, "others", 0)):
        for name, words_of_others in (("sentence", "In other words."), ("says", []), ("details", ["Less."])):
            worded = changed(worded, (*path, name), words_of_others)
    assert load(sealed(worded)).sentence == words.sentence(LEAKING)
    for name, value in (("verdict", "certified"), ("bound", 0.0)):
        with pytest.raises(CertificateError, match=rf"audit\.{name} says"):
            load(sealed(changed(worded, (*ALONE, name), value)))


def test_no_target_is_left_out_or_judged_twice(load):
    content = made(LEAKING)
    hidden = audited(replace(LEAKING.others[0], others=()))
    with pytest.raises(CertificateError, match=r"expected judgements of 2 targets|verdict is"):
        load(sealed(changed(content, ALONE, {**hidden, "others": []})) | {})
    twice = replace(LEAKING.others[0], others=LEAKING.others)
    with pytest.raises(CertificateError, match="about one target"):
        load(made(twice))
    other = changed(content, (*ALONE, "others", 0, "policy", "max_tpr"), 0.4)
    with pytest.raises(CertificateError, match="under the same policy"):
        load(sealed(other))


def test_a_missing_field_is_named(load):
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
    for name in CERTIFIED.to_dict():
        content = made()
        del content["predicate"]["audit"][name]
        with pytest.raises(CertificateError, match=name):
            load(sealed(content))


DEEP = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
NOT_JSON = {
    "a list": (b"[1]", "expected an object"),
    "not UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "infinity in digits": (b'{"a": 1e999}', "1e999"),
    "an integer without end": (b'{"a": ' + b"9" * 5000 + b"}", "integer"),
    "a large integer": (b'{"a": 99999999999999999999}', "2^53"),
    "a name twice": (b'{"a": {"verdict": "leak", "verdict": "certified"}}', "'verdict' is given twice"),
    "deep nesting": (DEEP, "nested too deep"),
    "rather deep nesting": (b'{"a":' * 60 + b"1" + b"}" * 60, "nested more than 32 levels"),
    "half a surrogate pair in a name": (b'{"\\ud800": 1}', "surrogate"),
    "many values": (b"[" + b"0," * strict_json.MOST_VALUES + b"0]", "values"),
    "a huge file": (b" " * (strict_json.LARGEST + 1), "MiB"),
    "another JSON": (b"{}", "_type"),
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_what_is_no_certificate_is_refused_in_a_line(load, name):
    raw, said = NOT_JSON[name]
    with pytest.raises(CertificateError, match=said.replace("^", r"\^")) as error:
        load(raw)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


def test_a_text_longer_than_any_sentence_is_refused(tmp_path):
    read_back(made(notes=["x" * LONGEST_TEXT]), tmp_path)
    with pytest.raises(CertificateError, match="got 65,537"):
        read_back(made(notes=["x" * (LONGEST_TEXT + 1)]), tmp_path)


def test_many_values_are_refused_before_anything_is_made_of_them():
    raw = b'{"a": [' + b"[]," * (2 << 20) + b"[]]}"

    def refused() -> None:
        with pytest.raises(CertificateError, match="values"):
            strict_json.parse(raw, "it")

    assert peak_of(refused) < 16 << 20  # two million lists take 128 MiB


def test_a_file_that_is_not_there_is_bad_input(tmp_path):
    for path in (tmp_path / "nope.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            load_certificate(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100)
@given(part=st.sampled_from(["audit", "policy", "evidence", "controls", "levels", "others"]), value=JSON)
def test_any_json_in_place_of_an_audit_is_refused_not_crashed_on(part, value):
    audit: Any = {**audited(CERTIFIED), part: value} if part != "audit" else value
    if part in ("controls", "others") and value == []:
        return
    with pytest.raises(SafexplainError):
        recount(audit)


@given(value=JSON)
def test_the_canonical_text_is_one_for_what_json_makes_of_a_value(value):
    text = strict_json.canonical(value)
    assert strict_json.canonical(json.loads(json.dumps(value))) == text
    assert strict_json.canonical(json.loads(text)) == text
