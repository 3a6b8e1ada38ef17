"""What a certificate may carry besides its audit: read back, in the schema, and believed only where it follows."""

import json

import pytest
from certificates import SCHEMA, made, read_back, sealed

from safexplain.audit.question import SubjectData
from safexplain.dp import PrivacyStatement, Steps
from safexplain.errors import CertificateError
from safexplain.verdict.canaries.result import CanaryResult, Check, Claim, Errors, WhiteBoxResult
from safexplain.verdict.certificate.write import SUBJECT_DATA

jsonschema = pytest.importorskip("jsonschema")

CLAIM = Claim(Steps(22.3557, 1.0, 500, "full-batch"), 1e-5)
MANY = CanaryResult("gradient", CLAIM, "pld", 0.95, (Errors(500, 0.0, 185, 1000, 185, 1000),), 2000, 9.0, {"on": "x"})
SEEN = WhiteBoxResult(CLAIM, (Check("steps", 500, 500, "500 sums"), Check("batches", None, 0.0, "not told")), 40, 2.0)
STATED = PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(Steps(5.5728, 0.25, 500),), expected_batch_size=500)
SEARCH = {"trials": 1, "digest": "0f" * 32}
NOISY = {"clip": None, "mask": None, "noise": {"kind": "GaussianNoise", "std": 0.1}, "grid": None}
STREAM = {"hardening": NOISY, "noise_stream": "aes256ctr-normal2x16-v3"}

PARTS = {
    "many runs": ("canaries", MANY, {"canaries": MANY.to_dict()}),
    "white box": ("canaries", SEEN, {"canaries": SEEN.to_dict()}),
    "dp-sgd": ("privacy", STATED, {"privacy": STATED.to_dict()}),
    "search": ("search", SEARCH, {"search": SEARCH}),
    "fine-tuning": ("subject_data", "fine-tuning", {"subject_data": "fine-tuning"}),
    "noise stream": ("noise_stream", STREAM["noise_stream"], STREAM),
}
"""Field of a certificate, its value as it is read, and how it is written."""


@pytest.mark.parametrize("part", PARTS)
def test_it_is_read_back_and_fits_the_schema(part, tmp_path):
    name, value, written = PARTS[part]
    content = made(**written)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert getattr(read_back(content, tmp_path), name) == value


def test_without_it_a_certificate_is_as_before(tmp_path):
    names = {name for name, _, _ in PARTS.values()}
    assert not names & made()["predicate"].keys()
    assert {name: getattr(read_back(made(), tmp_path), name) for name in names} == dict.fromkeys(names)


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("many runs", None),
        ("many runs", {"errors": [], "claim": None}),
        ("dp-sgd", {"epsilon": 1}),
        ("search", None),
        ("search", SEARCH | {"trials": 0}),
        ("search", SEARCH | {"digest": "x"}),
        ("search", SEARCH | {"seed": 1}),
        ("fine-tuning", "training"),
        ("noise stream", None),
    ],
)
def test_anything_else_is_refused(part, other, tmp_path):
    name, _, written = PARTS[part]
    content = made(**written)
    content["predicate"][name] = other
    with pytest.raises(CertificateError, match="canar" if name == "canaries" else name):
        read_back(sealed(content), tmp_path)
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(sealed(content))


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("many runs", {"epsilon_lower": 0.1}, "canaries: .*epsilon_lower says 0.1"),
        (
            "dp-sgd",
            {"epsilon": STATED.to_dict()["epsilon"] | {"substitute": 1.0}},
            r"privacy: .*substitute says 1\.0, but 10\.0",
        ),
    ],
)
def test_what_does_not_follow_is_found_though_the_checksum_fits(part, change, says, tmp_path):
    name, _, written = PARTS[part]
    content = made(**written)
    content["predicate"][name] = content["predicate"][name] | change
    with pytest.raises(CertificateError, match=says):
        read_back(sealed(content), tmp_path)


def test_without_noise_there_is_no_stream_to_name(tmp_path):
    with pytest.raises(CertificateError, match="noise_stream"):
        read_back(made(noise_stream=STREAM["noise_stream"]), tmp_path)


def test_another_name_of_the_data_is_found_by_the_checksum_and_each_has_its_sentence(tmp_path):
    content = made(subject_data="pre-training")
    content["predicate"]["subject_data"] = "fine-tuning"
    with pytest.raises(CertificateError, match="changed after it was written"):
        read_back(content, tmp_path)
    assert {"training", *SUBJECT_DATA} == set(SubjectData.__args__)
    assert all(f"who was in the {named} data" in said for named, said in SUBJECT_DATA.items())
