"""A page's table from a result: its rows, and a list of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .run import markdown

Form = str | Callable[[Any], str]
Column = tuple[str, str | Callable[[Any], Any]] | tuple[str, str | Callable[[Any], Any], Form]
"""Title; what of a row is shown, a function of it or a path of keys ("means/l1/0"); how, as a format or a function."""


def table(rows: Iterable[Any], *columns: Column, left: int = 1) -> str:
    """The Markdown table of these rows (dictionaries, lists), its first `left` columns flush left.

    What is None, or not there, is an empty cell.
    """
    return markdown([title for title, *_ in columns], [[_cell(row, *c[1:]) for c in columns] for row in rows], left)


def at(row: Any, path: str) -> Any:
    """What stands in nested dictionaries and lists at the end of a path of keys; None where it is not there."""
    for key in path.split("/"):
        if isinstance(row, dict):
            row = row.get(key)
        elif row is not None:
            row = row[int(key)]
    return row


def _cell(row: Any, what: str | Callable[[Any], Any], form: Form = "") -> str:
    value = what(row) if callable(what) else at(row, what)
    if value is None:
        return ""
    return form(value) if callable(form) else format(value, form)


def percent(digits: int = 1, space: str = " ") -> Callable[[float], str]:
    """A share in per cent."""
    return lambda share: f"{100 * share:.{digits}f}{space}%"


def interval(form: str) -> Callable[[Any], str]:
    """A value with its ends, [value, low, high]."""
    return lambda found: f"{found[0]:{form}} [{found[1]:{form}}, {found[2]:{form}}]"
