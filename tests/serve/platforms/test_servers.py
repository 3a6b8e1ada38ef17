"""What the tests of platforms search for is found where it is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.serve.platforms.servers import found, marked, native


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("input", lambda values: json.dumps(values.tolist()).encode()),
        ("map", lambda values: json.dumps(values.astype(float).round(7).tolist()).encode()),
        ("score", lambda values: " ".join(map(repr, values.ravel())).encode()),
        ("probability", lambda values: " ".join(f"{v:e}" for v in values.ravel()).encode()),
        ("map", lambda values: values.tobytes()),
        ("score", lambda values: values.astype(np.float64).tobytes()),
    ],
)
def test_a_native_number_is_found_however_it_is_written(made: Any, kind: str, written: Any) -> None:
    numbers = native(made.model, marked(made.rows[:2], 1))
    assert any(line.startswith(kind) for line in found(numbers, b"..." + written(numbers[kind]) + b"..."))


def test_other_numbers_are_not_found(made: Any) -> None:
    numbers = native(made.model, marked(made.rows[:2], 1))
    others = native(made.model, marked(made.rows[10:12], 2))
    heard = b"\n".join(json.dumps(values.tolist()).encode() for values in others.values())
    assert found(numbers, heard) == []
