"""What only looks like numbers is not read as numbers."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from safexplain.errors import InputError
from safexplain.recourse.solution import as_rows

NUMBERS = {
    "bool": (np.array([[True, False]]), [1, 0]),
    "objects": (np.array([[1, 2.5, True, np.float32(3), Fraction(1, 2)]], dtype=object), [1, 2.5, 1, 3, 0.5]),
    "mask without entries": (np.ma.array([[1.0, 2.0]], mask=[[False, False]]), [1, 2]),
    "tensor with a gradient": (torch.ones(1, 2, requires_grad=True), [1, 1]),
    "list of tensors": ([torch.ones(1, dtype=torch.bfloat16), torch.ones(1, requires_grad=True)], [1, 1]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_whatever_holds_them_and_copied(name):
    given, numbers = NUMBERS[name]
    rows = as_rows(given)
    assert rows.dtype == np.float64
    assert rows.ravel().tolist() == numbers
    rows[:] = 9.0
    assert as_rows(given).ravel().tolist() == numbers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ma.array([[1.0, 99.0]], mask=[[False, True]]), r"no masked entries, got 1"),
        (np.array([["2020-01-01"]], dtype="datetime64[ns]"), "dates"),
        (np.array([[1.0, "2"]], dtype=object), "expected numbers"),
        (np.array([[1j]]), "expected numbers"),
        ([[10**400]], "too large for float64"),
        ([torch.ones(2, device="meta")], "expected a dense tensor with data"),
        (torch.eye(2).to_sparse(), "expected a dense tensor with data"),
        (np.array([[1.0, np.nan]], dtype=object), "expected finite numbers, got NaN or infinity in row 0"),
    ],
)
def test_what_only_looks_like_numbers_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        as_rows(given)
