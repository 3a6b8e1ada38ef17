"""Numbers as they are handed over, in arrays, lists, tables and tensors: read as float64, or refused.

NumPy reads more than numbers as float64: the text "1", dates, what lies behind a mask, the real part of a complex
number. None of that is what its owner meant.
"""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError, SafexplainError

_NO_NUMBERS = (str, bytes, complex, np.complexfloating, np.datetime64, np.timedelta64)


def real_numbers(
    given: Any, what: str, error: type[SafexplainError] = InputError, expected: str = ""
) -> NDArray[np.float64]:
    """Float64 copy of real numbers, in their shape; what is missing (None) is NaN.

    Args:
        given: numbers, in whatever holds them.
        what: how messages call them.
        error: what is raised.
        expected: what messages say instead of the value.

    Raises:
        SafexplainError: masked entries, text, dates, complex numbers, numbers beyond float64, a tensor without data; of
            the class `error`.
    """
    array = readable(given, what, error)
    try:
        array = np.asarray(array)
        if array.dtype.kind in "biuf" or (
            array.dtype.kind == "O" and not any(isinstance(value, _NO_NUMBERS) for value in array.flat)
        ):
            return np.array(array, dtype=np.float64)
    except OverflowError:
        raise error(f"{what}: a number is too large for float64") from None
    except (TypeError, ValueError, RuntimeError):
        pass
    raise error(f"{what}: {expected or f'expected numbers, got {reprlib.repr(given)}'}") from None


def readable(given: Any, what: str, error: type[SafexplainError] = InputError) -> Any:
    """The same, where tensors are NumPy arrays: what NumPy and scikit-learn can read.

    Args:
        given: anything; of a list the entries are looked at.
        what: how messages call it.
        error: what is raised.

    Raises:
        SafexplainError: masked entries, or a tensor without data; of the class `error`.
    """
    if isinstance(given, (list, tuple)):
        return [readable(part, what, error) if _is_array(part) else part for part in given]
    if isinstance(given, np.ma.MaskedArray) and (masked := np.count_nonzero(given.mask)):
        raise error(f"{what}: masked entries ({masked}); fill them or leave their rows out")
    if not hasattr(given, "detach"):
        return given
    try:
        tensor = given.detach().cpu()
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16
    except (TypeError, RuntimeError) as cause:
        raise error(f"{what}: expected a dense tensor with data, got one that cannot be read ({cause})") from cause


def _is_array(part: Any) -> bool:
    return hasattr(part, "detach") or isinstance(part, np.ma.MaskedArray)
