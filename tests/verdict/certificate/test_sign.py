"""A signature says who made a certificate; without the key to check it, it says nothing, and the reader is told."""

import base64
import json
import sys

import pytest
from certificates import CERTIFIED, key_pair, made, sealed

from safexplain._versions import VERSION
from safexplain.errors import CertificateError, InputError, MissingExtraError
from safexplain.verdict.certificate.read import load_any, load_certificate, load_guarantee
from safexplain.verdict.certificate.write import (
    PAYLOAD_TYPE,
    as_json,
    guarantee_statement,
    sign_certificate,
    verify_envelope,
    write_json,
)
from safexplain.verdict.guarantee import Guarantee

pytest.importorskip("securesystemslib")
pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return key_pair(tmp_path_factory.mktemp("keys"), "own")


@pytest.fixture(scope="module")
def envelope(keys):
    return sign_certificate(made(), keys[0])


@pytest.fixture
def signed(tmp_path, envelope):
    return write_json(tmp_path / "signed.json", envelope)


def test_a_signed_certificate_is_read_with_the_public_key(signed, keys):
    for key in (keys[1], str(keys[1]), keys[1].read_bytes()):
        found = load_certificate(signed, public_key=key)
        assert found.signature == "valid"
        assert found.judgement == CERTIFIED


def test_the_wrong_key_is_refused(signed, tmp_path):
    with pytest.raises(CertificateError, match="was not signed with the private key of"):
        load_certificate(signed, public_key=key_pair(tmp_path, "other")[1])


def test_an_unsigned_file_is_refused_where_a_key_is_given(tmp_path, keys):
    with pytest.raises(CertificateError, match="is not signed, but a public key was given"):
        load_certificate(write_json(tmp_path / "plain.json", made()), public_key=keys[1])


def test_a_guarantee_by_construction_is_signed_and_verified_as_an_audits_is(tmp_path, keys):
    guarantee = Guarantee("public models", "InputXGradient", ("ab" * 32,))
    subject = {"model.pt": {"safexplainModelDigest": "12" * 32}}
    content = guarantee_statement(
        subject=subject, guarantee=guarantee, measured=None, environment={"safexplain": VERSION, "torch": "2.15"}
    )
    path = write_json(tmp_path / "signed.json", sign_certificate(content, keys[0]))
    assert load_guarantee(path).signature == "unchecked"
    assert load_any(path, public_key=keys[1]).signature == "valid"
    with pytest.raises(CertificateError, match="was not signed with"):
        load_guarantee(path, public_key=key_pair(tmp_path, "other")[1])
    with pytest.raises(CertificateError, match="is not signed"):
        load_guarantee(write_json(tmp_path / "plain.json", content), public_key=keys[1])


def test_a_changed_payload_is_refused_even_with_its_checksum(tmp_path, envelope, keys):
    other = made()
    other["predicate"]["notes"] = ["all is well"]
    payload = base64.b64encode(as_json(sealed(other))).decode()
    path = write_json(tmp_path / "forged.json", {**envelope, "payload": payload})
    assert load_certificate(path).notes == ("all is well",)
    with pytest.raises(CertificateError, match="or changed since"):
        load_certificate(path, public_key=keys[1])


def test_a_signed_certificate_must_be_right_too(tmp_path, keys):
    wrong = made()
    wrong["predicate"]["verdict"] = "leak"
    path = write_json(tmp_path / "wrong.json", sign_certificate(sealed(wrong), keys[0]))
    with pytest.raises(CertificateError, match="verdict is 'leak'"):
        load_certificate(path, public_key=keys[1])


def test_the_envelope_is_dsse_with_one_ed25519_signature(envelope, keys):
    assert envelope["payloadType"] == PAYLOAD_TYPE == "application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"])
    assert json.loads(payload) == made()
    signature = base64.b64decode(envelope["signatures"][0]["sig"])
    signed = b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
    public = serialization.load_pem_public_key(keys[1].read_bytes())
    assert isinstance(public, ed25519.Ed25519PublicKey)
    public.verify(signature, signed)


def test_key_ids_are_hints_and_the_other_alphabet_of_base64_is_read(tmp_path, envelope, keys):
    sig = envelope["signatures"][0]["sig"].replace("+", "-").replace("/", "_")
    stranger = {"keyid": "somebody", "sig": base64.b64encode(bytes(64)).decode()}
    for signatures in ([{"sig": sig}], [stranger, {"keyid": "", "sig": sig}]):
        path = write_json(tmp_path / "other.json", {**envelope, "signatures": signatures})
        assert load_certificate(path, public_key=keys[1]).signature == "valid"


@pytest.mark.parametrize(
    "change",
    [
        {"payloadType": "text/plain"},
        {"payload": "not base64!"},
        {"payload": base64.b64encode(b"[1]").decode()},
        {"signatures": []},
        {"signatures": [{"sig": 1}]},
        {"signatures": [{"sig": "AA", "alg": "none"}]},
        {"more": 1},
    ],
)
def test_a_damaged_envelope_is_refused(tmp_path, envelope, keys, change):
    path = write_json(tmp_path / "damaged.json", {**envelope, **change})
    with pytest.raises(CertificateError):
        load_certificate(path, public_key=keys[1])


def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(tmp_path, keys, envelope):
    raw, file, refused = as_json(envelope), tmp_path / "c.json", 0
    for place in range(7, len(raw), len(raw) // 60):
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        try:
            found = load_certificate(file, public_key=keys[1])
        except CertificateError:
            refused += 1
        else:
            assert found.statement == made()  # white space, or a letter of the key id
    assert refused > 50


def test_keys_of_another_kind_are_bad_input(tmp_path, keys, signed):
    curve, curve_public = key_pair(tmp_path, "curve", ec.generate_private_key(ec.SECP256R1()))
    locked, _ = key_pair(tmp_path, "locked", password=b"secret")
    (tmp_path / "text").write_text("no key")
    for private in (curve, locked, tmp_path / "text", keys[1], tmp_path / "nope", b"no key"):
        with pytest.raises(InputError, match="private key"):
            sign_certificate(made(), private)
    for public in (curve_public, tmp_path / "text", keys[0], tmp_path / "nope", b"no key"):
        with pytest.raises(InputError, match="public key"):
            load_certificate(signed, public_key=public)


def test_no_error_shows_a_private_key(keys, signed):
    secret = keys[0].read_text().splitlines()[1]
    with pytest.raises(InputError) as error:
        load_certificate(signed, public_key=keys[0].read_bytes())
    assert secret not in str(error.value)


def test_without_the_extra_its_name_is_said(monkeypatch, keys, envelope, signed):
    monkeypatch.setitem(sys.modules, "securesystemslib.dsse", None)
    for call in (lambda: sign_certificate(made(), keys[0]), lambda: verify_envelope(envelope, keys[1], "x")):
        with pytest.raises(MissingExtraError, match=r"safexplain\[sign\]"):
            call()
    assert load_certificate(signed).signature == "unchecked"
