"""The columns of a table as numbers, and back: a text is its index in a list, a missing number one below all others.

The model decodes before it predicts: a code is rounded and clipped to the list, and a number nearer to the missing
number than to the smallest real one is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from safexplain._files import write_atomically
from safexplain._validate import from_table
from safexplain.errors import InputError

MOST_CATEGORIES = 256
"""A column with more texts identifies rows."""

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: of the column.
        categories: values of a text column, in the order of their codes; None among them: no value. None for numbers.
        missing: the code of a missing number; None: no number is missing.
        least: the smallest number that is not missing, if some are.
    """

    name: str
    categories: tuple[str | None, ...] | None = None
    missing: float | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        if self.categories is not None and not 0 < len(self.categories) == len(set(self.categories)):
            raise InputError(f"the categories of {self.name}: expected texts, each once, got {self.categories!r:.60}")

    @property
    def plain(self) -> bool:
        """Whether the column's numbers are not coded."""
        return self.categories is None and self.missing is None

    @classmethod
    def of(cls, values: Any, name: str) -> Self:
        """The coding of a column of a pandas frame; InputError: neither numbers nor texts, or too many texts."""
        if _numeric(values):
            numbers = _numbers(values)
            there = numbers[~np.isnan(numbers)]
            if len(there) == len(numbers):
                return cls(name)
            if not len(there):
                raise InputError(f"column {name!r}: expected values, got only missing ones; remove it")
            low, high = float(there.min()), float(there.max())
            if not math.isfinite(low) or not math.isfinite(high):
                raise InputError(f"column {name!r}: expected finite or missing numbers, got infinite ones")
            code = np.float32(low - max(1.0, high - low))
            return cls(name, None, float(code), low)
        texts = _texts(values, name)
        known = sorted({text for text in texts if text is not None})
        if len(known) > MOST_CATEGORIES:
            raise InputError(
                f"text column {name!r}: expected at most {MOST_CATEGORIES} distinct values, got {len(known)}; remove it"
                " if it identifies rows, or group its values before training"
            )
        return cls(name, (*known, *((None,) if None in texts else ())))

    def encode(self, values: Any) -> Rows:
        """Codes (n,) of the values of a column; InputError: an unknown text, or texts for numbers or the reverse."""
        if self.categories is None:
            if not _numeric(values):
                text = next((value for value in values.tolist() if isinstance(value, str)), None)
                raise InputError(f"column {self.name!r}: expected numbers, got {text!r:.40}")
            numbers = _numbers(values)
            if self.missing is not None:
                numbers = np.where(np.isnan(numbers), self.missing, numbers)
            with np.errstate(over="ignore"):
                return np.asarray(numbers.astype(np.float32))
        places = {value: i for i, value in enumerate(self.categories)}
        texts = _texts(values, self.name)
        if unknown := [text for text in texts if text is not None and text not in places]:
            known = ", ".join(repr(value) for value in self.categories[:5])
            raise InputError(f"column {self.name!r}: expected one of {known}, ..., got {unknown[0]!r:.40}")
        if None in texts and None not in places:
            raise InputError(
                f"column {self.name!r}: expected no empty values, as when it was coded, got some; fill them"
            )
        return np.array([places[text] for text in texts], dtype=np.float32)

    def decode(self, codes: NDArray[Any]) -> Any:
        """(n,) texts, None if missing, of a text column; else numbers, NaN if missing."""
        if self.categories is not None:
            places = np.clip(np.rint(np.nan_to_num(codes)), 0, len(self.categories) - 1).astype(np.int64)
            return np.array(self.categories, dtype=object)[places]
        numbers = np.asarray(codes, dtype=np.float64)  # as read from a table: encoders round as in training
        if self.missing is None or self.least is None:
            return numbers
        return np.where(numbers < (self.missing + self.least) / 2, np.nan, numbers)


@dataclass(frozen=True)
class Columns:
    """The columns of a table, in the order in which a model takes them; `as_category`: it gets text columns as pandas
    categories, which LightGBM and XGBoost need, else as the texts of `read_csv`."""

    columns: tuple[Column, ...]
    as_category: bool = False

    @classmethod
    def of(cls, frame: Any, names: Sequence[str] | None = None) -> Self:
        """The coding of the columns of a pandas frame of all rows, so that codes do not depend on membership; `names`
        are in the order of the model."""
        wanted = list(frame.columns) if names is None else list(names)
        return cls(tuple(Column.of(frame[name], str(name)) for name in wanted))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def plain(self) -> bool:
        """Whether nothing is coded: all columns are numbers, none missing."""
        return all(column.plain for column in self.columns)

    @property
    def categorical_names(self) -> dict[int, list[str]]:
        """Index of each text column -> the names of its codes."""
        return {
            i: ["(missing)" if value is None else value for value in column.categories]
            for i, column in enumerate(self.columns)
            if column.categories is not None
        }

    def encode(self, frame: Any) -> Rows:
        """(n, d) float32 codes of a pandas frame; InputError: a column is missing, or a value has no code."""
        if absent := [name for name in self.names if name not in frame.columns]:
            raise InputError(f"expected the columns {', '.join(self.names[:8])}; missing: {', '.join(absent[:8])}")
        return np.stack([column.encode(frame[column.name]) for column in self.columns], axis=1)

    def decode(self, rows: NDArray[Any]) -> Any:
        """The pandas frame of (n, d) codes; InputError: another number of columns."""
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise InputError(f"expected rows of {len(self.columns)} columns, got {rows.shape}")
        pandas = import_module("pandas")
        return pandas.DataFrame({c.name: self._decoded(pandas, c, rows[:, i]) for i, c in enumerate(self.columns)})

    def _decoded(self, pandas: Any, column: Column, codes: NDArray[Any]) -> Any:
        values = column.decode(codes)
        if column.categories is None:
            return values
        if self.as_category:
            return pandas.Categorical(values, categories=[value for value in column.categories if value is not None])
        return pandas.Series([math.nan if value is None else value for value in values], dtype=_text_type(pandas))

    def to_json(self) -> str:
        """JSON for `from_json`."""
        columns = [{k: v for k, v in asdict(column).items() if v is not None} for column in self.columns]
        return json.dumps({"columns": columns, "as_category": self.as_category}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`; InputError for other texts."""
        try:
            read = json.loads(text)
            columns = tuple(from_table(Column, entry, "column") for entry in read["columns"])
            return cls(columns, bool(read.get("as_category", False)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"expected the columns of a table as JSON, as an audit writes them: {error!s:.80}"
            ) from None

    def save(self, path: str | Path) -> Path:
        """Write the columns to a file, all or nothing."""
        return write_atomically(path, f"{self.to_json()}\n".encode())

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """From the file columns.json that an audit wrote; InputError: it cannot be read, or holds something else."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the columns in {path} cannot be read: {error!s:.80}") from None
        return cls.from_json(text)


def _numeric(values: Any) -> bool:
    types = import_module("pandas").api.types
    return bool(types.is_numeric_dtype(values)) and not types.is_complex_dtype(values)  # true/false counts as numeric


def _numbers(values: Any) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers


def _texts(values: Any, name: str) -> list[str | None]:
    empty = values.isna().to_numpy()
    found = [None if gone else value for gone, value in zip(empty, values.tolist(), strict=True)]
    other = next((value for value in found if value is not None and not isinstance(value, str | bool)), None)
    if other is not None:
        raise InputError(
            f"column {name!r}: expected numbers or texts, got {other!s:.40} ({type(other).__name__}); convert it or"
            " remove it"
        )
    return [None if value is None else str(value) for value in found]


def _text_type(pandas: Any) -> Any:
    return object if int(pandas.__version__.partition(".")[0]) < 3 else "str"
