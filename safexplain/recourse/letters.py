"""Answers in words: what a person would have to change, and letters to those who were turned down.

The reasons of a letter are the features with the largest shares of the cost, as the principal reasons that the Equal
Credit Opportunity Act's Regulation B asks for (12 CFR 1002.9(b)(2); its official commentary: no more than four). That
they are the right ones for a given law is for the lender to judge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError
from safexplain.recourse.advice import Advice, is_money, outward
from safexplain.recourse.feature import Feature

Mask = NDArray[np.bool_]

MOST_REASONS = 4
"""Principal reasons in a letter, as the commentary on Regulation B recommends."""

PREFIXED = ("$", "£", "€")
"""Units that stand before their number."""

NONE_PROVEN = "No change within the limits that apply would lead to a favourable decision."
NONE_FOUND = "No change was found that would lead to a favourable decision."
REFUSED = "We were unable to approve your application."
REASONS = "The principal reasons for this decision are:"
INSTEAD = "Your application would have been approved with this change:"
TOGETHER = "Your application would have been approved with all of these changes together:"


@dataclass(frozen=True)
class Change:
    """One feature that a person would have to change.

    Args:
        feature: its name.
        called: how sentences call it; "" where it has no label but its name.
        kind: "numeric", "ordinal" or "category".
        before: the person's own number or label.
        after: the one that would have to be; a number is rounded.
        unit: of a number.
        share: of the cost of all changes, 0 to 1.
        further: whether going further keeps the decision.
        rises: whether the number or level rises.
    """

    feature: str
    called: str
    kind: str
    before: Any
    after: Any
    unit: str
    share: float
    further: bool
    rises: bool


def changes_of(answer: Any) -> list[tuple[Change, ...]]:
    """The changes of each query, the largest share of the cost first; none where it is favourable or has no answer.

    Args:
        answer: a `safexplain.recourse.Recourse`.
    """
    advice = _unchecked(answer, _numeric(answer)) if answer.advice is None else answer.advice
    found: list[tuple[Change, ...]] = []
    for row, asked in enumerate((answer.valid & ~answer.favourable).tolist()):
        changes = _of_row(answer, advice, row) if asked else []
        total = sum(change.share for change in changes) or 1.0
        changes = [replace(change, share=change.share / total) for change in changes]
        found.append(tuple(sorted(changes, key=lambda change: -change.share)))
    return found


def _turned_down_by(answer: Any, row: int) -> list[Change]:
    """What turned down a person without recourse, the largest share first; none where that is not known."""
    advice = answer.advice
    if advice is None or advice.unlimited is None:
        return []
    instead = replace(answer, counterfactual=advice.unlimited)
    changes = _of_row(instead, replace(advice, rounded=advice.unlimited), row)
    return sorted(changes, key=lambda change: -change.share)


def _parts(answer: Any) -> Sequence[Any] | None:
    return None if answer.table is None else getattr(answer.table, "parts", None)


def _numeric(answer: Any) -> Mask:
    """(d,) bool, columns that hold numbers."""
    parts = _parts(answer)
    if parts is None:
        return np.ones(answer.x.shape[1], dtype=bool)
    mask = np.zeros(answer.x.shape[1], dtype=bool)
    for part in parts:
        mask[part.first] |= part.kind == "numeric"
    return mask


def _unchecked(answer: Any, numeric: Mask) -> Advice:
    """Advice about an answer whose model is not at hand: numbers are rounded by next to nothing, in their ranges."""
    x, to = answer.x, answer.counterfactual
    low, high = np.full(x.shape[1], -np.inf), np.full(x.shape[1], np.inf)
    scale = np.ones(x.shape[1])
    for part in _parts(answer) or ():
        if part.kind != "category":
            low[part.first], high[part.first] = part.low, part.high
        scale = np.asarray(answer.table.scale)
    fraction = (x != np.rint(x)) | (to != np.rint(to))
    rounded = np.where(numeric & fraction, np.clip(outward(x, to, 5e-4), low, high), to)
    return Advice(rounded, np.zeros(x.shape, dtype=bool), np.abs(to - x) / scale)


def _of_row(answer: Any, advice: Advice, row: int) -> list[Change]:
    x, to, exact = answer.x[row], advice.rounded[row], answer.counterfactual[row]
    names = [str(name) for name in getattr(answer.like, "columns", ())]
    parts = _parts(answer)
    found = []
    if parts is None:
        for k in np.flatnonzero(x != exact).tolist():
            name = names[k] if len(names) == len(x) else f"feature {k}"
            further = bool(advice.further[row, k])
            found.append(_number(name, "", "", x[k], to[k], float(advice.share[row, k]), further))
        return found
    units, called = getattr(answer.table, "units", {}), answer.table.describe
    for part in parts:
        columns = part.columns
        if (x[columns] == exact[columns]).all():
            continue
        share, label = float(advice.share[row, columns].sum()), called.get(part.name, "")
        further = bool(advice.further[row, part.first])
        if part.kind == "numeric":
            unit = units.get(part.name, "")
            found.append(_number(part.name, label, unit, x[part.first], to[part.first], share, further))
        elif part.kind == "ordinal":
            levels = [part.labels[int(value)] for value in (x[part.first], exact[part.first])]
            rises = bool(exact[part.first] > x[part.first])
            found.append(Change(part.name, label, "ordinal", levels[0], levels[1], "", share, further, rises))
        else:
            own = [part.labels[int(values[columns].argmax())] for values in (x, exact)]
            found.append(Change(part.name, label, "category", own[0], own[1], "", share, False, False))
    return found


def _number(name: str, called: str, unit: str, before: float, after: float, share: float, further: bool) -> Change:
    return Change(name, called, "numeric", float(before), float(after), unit, share, further, bool(after > before))


def number_text(value: float, digits: int | None = None) -> str:
    """A number as people write it: all of its digits, or so many decimals at most.

    >>> number_text(4000.0), number_text(1234.567, 2)
    ('4,000', '1,234.57')
    """
    if digits is not None:
        value = round(value, digits)
    plain = repr(value + 0.0)
    if "e" in plain or not math.isfinite(value):
        return plain
    whole, _, decimals = plain.removesuffix(".0").partition(".")
    sign = "-" if whole.startswith("-") else ""
    return f"{sign}{abs(int(whole)):,}" + (f".{decimals}" if decimals else "")


def _decimals(value: float) -> int:
    plain = repr(value)
    return 0 if "e" in plain or plain.endswith(".0") else len(plain.partition(".")[2])


def _values(change: Change) -> tuple[str, str]:
    """How the person's own value and the one that would have to be are written."""
    if change.kind != "numeric":
        return _label_text(change.before), _label_text(change.after)
    before, after = change.before, change.after
    size = 0 if before == 0 else max(0, 2 - math.floor(math.log10(abs(before))))
    digits = max(_decimals(after), 2 if abs(before) >= 1 else size)
    own = number_text(before, digits if round(before, digits) != after else None)
    return _with_unit(own, change.unit), _with_unit(number_text(after), change.unit)


def _with_unit(number: str, unit: str) -> str:
    if is_money(unit) and number[-2:-1] == ".":  # one decimal
        number += "0"
    if not unit:
        return number
    if unit == "%":
        return f"{number}%"
    if unit in PREFIXED and not number.startswith("-"):
        return unit + number
    return f"{number} {unit}"


def _label_text(label: Any) -> str:
    if isinstance(label, bool):
        return "yes" if label else "no"
    return number_text(float(label)) if isinstance(label, (int, float)) else str(label)


def sentence(change: Change) -> str:
    """What to do about one feature."""
    before, after = _values(change)
    what = f"your {change.called}" if change.called else change.feature
    if change.kind == "category":
        return f"Change {what} from {before} to {after}."
    more, less = ("or above", "or below") if change.kind == "ordinal" else ("or more", "or less")
    further = f" {more if change.rises else less}" if change.further else ""
    return f"{'Raise' if change.rises else 'Lower'} {what} from {before} to {after}{further}."


def reasons_of(answer: Any) -> tuple[tuple[str, ...], ...]:
    """Sentences for each query; see `safexplain.recourse.Recourse.reasons`."""
    return tuple(_told(answer, row, changes) for row, changes in enumerate(changes_of(answer)))


def _told(answer: Any, row: int, changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Sentences for one query, of which these are the changes."""
    if answer.valid[row]:
        return tuple(map(sentence, changes))
    return (NONE_PROVEN if answer.proven[row] else NONE_FOUND,)


def letters_of(answer: Any, names: Sequence[str] | None, most_reasons: int) -> list[str]:
    """Letters to those who were turned down; see `safexplain.recourse.Recourse.letters`."""
    if answer.table is None:
        raise ConfigurationError("letters: they need the person's own columns; give preprocessing=Preprocessing(...)")
    if missing := [name for name in answer.table.features if name not in answer.table.describe]:
        raise ConfigurationError(
            f"letters: describe= of the preprocessing has no words for {', '.join(missing)}; say what a letter calls"
            ' them, such as describe={"balance": "revolving balance"}, and list what a person cannot change under'
            " immutable"
        )
    n = len(answer.x)
    if names is not None and (isinstance(names, str) or len(names) != n):
        got = repr(names) if isinstance(names, str) else f"{len(names)} names"
        raise ConfigurationError(f"names: expected one name for each of {n} queries, got {got}")
    protected = _protected(answer.guarantee)
    parts = {part.name: part for part in answer.table.parts}
    letters = []
    for row, changes in enumerate(changes_of(answer)):
        if answer.favourable[row]:
            continue
        blocks = [] if names is None else [f"Dear {names[row]},"]
        blocks.append(REFUSED)
        told, principal = _told(answer, row, changes), changes or _turned_down_by(answer, row)
        if principal:
            listed = [f"{k}. {_reason(c, parts[c.feature])}" for k, c in enumerate(principal[:most_reasons], 1)]
            blocks.append("\n".join([REASONS, *listed]))
        if changes:
            heading = INSTEAD if len(changes) == 1 else TOGETHER
            blocks.append("\n".join([heading, *(f"- {text}" for text in told)]))
        else:
            blocks.append(told[0])
        letters.append("\n\n".join([*blocks, protected]) + "\n")
    return letters


def _reason(change: Change, part: Feature) -> str:
    """One principal reason. A number that is the least or the greatest there is is not judged: "Capital gains: 0."."""
    before, _ = _values(change)
    what = change.called[:1].upper() + change.called[1:]
    end = change.kind == "numeric" and change.before in (part.low, part.high)
    if change.kind == "category" or end:
        return f"{what}: {before}."
    return f"{what}: {before} (too {'low' if change.rises else 'high'})."


def _protected(guarantee: Any) -> str:
    """The sentence about privacy; the numbers promise no more than the guarantee does."""
    told = f"epsilon {_rounded_up(guarantee.epsilon)}, delta {_rounded_up(guarantee.delta)}"
    if guarantee.per == "answer":
        told += ", for each answer"
        if (training := guarantee.statement) is not None:
            spent = _rounded_up(training.epsilons.of(guarantee.adjacency))
            told += f"; besides, epsilon {spent}, delta {_rounded_up(training.delta)}, once"
    if guarantee.vouched:
        told += "; stated by whoever trained the model"
    return f"The records that this decision was learnt from are protected by differential privacy ({told})."


def _rounded_up(value: float) -> str:
    """A number of three digits that promises no more than this one."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    near = float(f"{value:.3g}")
    return f"{near if near >= value else near + unit:.3g}"


def columns_of_changes(answer: Any) -> dict[str, list[Any]]:
    """The changes of all queries, one a row: see `safexplain.recourse.Recourse.changes`."""
    found: dict[str, list[Any]] = {name: [] for name in ("row", "feature", "from", "to", "unit", "share")}
    for row, changes in enumerate(changes_of(answer)):
        for c in changes:
            for name, value in zip(found, (row, c.feature, c.before, c.after, c.unit, c.share), strict=True):
                found[name].append(value)
    return found
