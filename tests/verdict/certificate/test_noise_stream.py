"""A certificate of a hardening with noise says how that noise is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from certificates import SCHEMA, made, read_back, sealed

from safexplain.errors import CertificateError

jsonschema = pytest.importorskip("jsonschema")

NOISY = {"clip": None, "mask": None, "noise": {"kind": "GaussianNoise", "std": 0.1}, "grid": None}


def test_the_stream_is_read_back_and_fits_the_schema(tmp_path: Path) -> None:
    content = made(hardening=NOISY, noise_stream="aes256ctr-normal2x16-v3")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content)))
    assert read_back(content, tmp_path).noise_stream == "aes256ctr-normal2x16-v3"


def test_without_noise_there_is_no_stream_to_name(tmp_path: Path) -> None:
    assert "noise_stream" not in made()["predicate"]
    assert read_back(made(), tmp_path).noise_stream is None
    with pytest.raises(CertificateError, match="noise_stream"):
        read_back(made(noise_stream="aes256ctr-normal2x16-v3"), tmp_path)


@pytest.mark.parametrize("other", [None, 3, {}, ["v3"], True])
def test_anything_else_is_refused(other: Any, tmp_path: Path) -> None:
    content = made(hardening=NOISY, noise_stream="aes256ctr-normal2x16-v3")
    content["predicate"]["noise_stream"] = other
    with pytest.raises(CertificateError, match="noise_stream"):
        read_back(sealed(content), tmp_path)
