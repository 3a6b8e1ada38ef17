"""A file that calls itself a privacy statement is read quickly, or refused clearly, whatever is in it."""

from __future__ import annotations

import json
import math
import resource
import time

import pytest

from safexplain.dp import PrivacyStatement, Steps
from safexplain.errors import InputError

STATED = PrivacyStatement("DP-SGD", 2000, 1e-5, phases=(Steps(1.0, 0.01, 100),)).to_dict()
PHASE = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 100, "sampling": "poisson"}


def read(path, text):
    path.write_text(text)
    start = time.process_time()
    try:
        return PrivacyStatement.load(path)
    finally:
        assert time.process_time() - start < 10  # seconds; two on a quiet machine
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB


@pytest.mark.parametrize(
    "changed",
    [
        {"phases": [PHASE | {"steps": 10**300}]},
        {"phases": [PHASE | {"noise_multiplier": 1e-300}]},
        {"phases": [PHASE | {"noise_multiplier": 1e300, "steps": 10**11}], "delta": 1e-12},
        {"phases": [PHASE | {"noise_multiplier": 1 + i * 1e-3} for i in range(400)]},
        {"phases": [PHASE] * 100_000},
        {"phases": [PHASE | {"sampling": "truncated-poisson", "records": 10**30, "largest_batch": 10**29}]},
        {"phases": [PHASE | {"sampling": ["poisson"]}]},
        {"delta": 1e-300},
        {"records": 10**400, "expected_batch_size": 10**399},
        {"epsilon": {}},
    ],
    ids=lambda changed: json.dumps(changed)[:60],
)
def test_a_hostile_statement_is_refused_clearly(changed, tmp_path):
    with pytest.raises(InputError, match=r"privacy statement") as refused:
        read(tmp_path / "privacy.json", json.dumps(STATED | changed))
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(("text", "message"), [("NaN", "not a JSON number"), ("null", "expected an object")])
def test_a_file_that_is_no_json_object_is_refused(text, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read(tmp_path / "privacy.json", text)


def test_a_statement_that_promises_nothing_is_read(tmp_path):
    hopeless = PrivacyStatement("SGD", 2000, 1e-5, phases=(Steps(1e-300, 0.01, 10**12),))
    found = read(tmp_path / "privacy.json", json.dumps(hopeless.to_dict()))
    assert math.isinf(found.epsilons.substitute)
