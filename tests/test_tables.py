"""One reader for every TOML table: named values become a dataclass, or the error says which is wrong."""

from dataclasses import dataclass
from typing import Literal

import pytest

from safexplain._validate import from_table, from_toml, read_toml
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError


@dataclass(frozen=True)
class Example:
    """A field of each kind that tables have."""

    steps: int
    rate: float = 0.5
    name: str = "a"
    fast: bool = False
    kind: Literal["one", "two"] = "one"
    sizes: tuple[int, ...] = ()
    limit: float | None = None


def test_values_are_read_and_the_others_have_their_defaults(tmp_path):
    file = tmp_path / "example.toml"
    file.write_text('steps = 3\nrate = 1\nfast = true\nkind = "two"\nsizes = [4, 5]\nlimit = 0.1\n')
    assert from_toml(Example, file, "example") == Example(3, 1, "a", True, "two", (4, 5), 0.1)
    assert from_table(Example, {"steps": 3, "limit": None}, "example") == Example(3)


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ("steps", ConfigurationTypeError, "example must be a table, got 'steps'"),
        ({}, ConfigurationError, "example lacks steps"),
        ({"steps": 1, "speed": 2}, ConfigurationError, r"unknown \['speed'\]; known are \['fast'"),
        ({"steps": 1.5}, ConfigurationTypeError, "steps must be a whole number, got 1.5"),
        ({"steps": 1, "fast": 1}, ConfigurationTypeError, "fast must be true or false"),
        ({"steps": 1, "kind": 2}, ConfigurationTypeError, "kind must be one of one, two"),
        ({"steps": 1, "sizes": [1, "two"]}, ConfigurationTypeError, "sizes must be a list, each entry a whole number"),
        ({"steps": 1, "limit": "none"}, ConfigurationTypeError, "limit must be a number or nothing"),
    ],
)
def test_what_does_not_fit_is_named(values, error, says):
    with pytest.raises(error, match=says):
        from_table(Example, values, "example")


def test_a_file_that_cannot_be_read_is_an_input_error(tmp_path):
    (tmp_path / "broken.toml").write_text("steps =")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name in ("missing.toml", "broken.toml", "binary.toml"):
        with pytest.raises(InputError, match=f"cannot read the example .*{name}"):
            read_toml(tmp_path / name, "example")
