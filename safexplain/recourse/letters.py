"""Recourse in words: the changes that a person would have to make, and letters to declined applicants.

Sentences stay true although their numbers are rounded: away from the person's own numbers, as far as the model still
accepts them. "Or less" and "or more" appear only where a larger change cannot lower the score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError
from safexplain.recourse.constraints import Constraints, Mask
from safexplain.recourse.cost import Cost, for_columns
from safexplain.recourse.features import Feature
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.solution import Floats, Solution

MOST_REASONS = 4
"""Largest number of principal reasons in a letter (those with the largest shares of the cost), recommended by the
official commentary on Regulation B of the Equal Credit Opportunity Act (12 CFR 1002.9(b)(2)), which requires them."""

PREFIXED = ("$", "£", "€")
"""Units written before their number."""

CURRENCIES = ("USD", "EUR", "GBP", "CHF", *PREFIXED)
"""Units, or first words of units, whose numbers have two decimals or none."""

NONE_PROVEN = "No change within the limits that apply would lead to a favourable decision."
NONE_FOUND = "No change was found that would lead to a favourable decision."
REFUSED = "We were unable to approve your application."
REASONS = "The principal reasons for this decision are:"
INSTEAD = "Your application would have been approved with this change:"
TOGETHER = "Your application would have been approved with all of these changes together:"


@dataclass(frozen=True)
class Change:
    """One feature that a person would have to change: `description` is its name in sentences, if any, `after` a label
    or a rounded number, `share` its share of the cost, and `further` whether a larger change keeps the decision."""

    feature: str
    description: str
    kind: str
    before: Any
    after: Any
    unit: str
    share: float
    further: bool
    rises: bool


def changes_of(answer: Any) -> list[tuple[Change, ...]]:
    """Changes of each query of a `Recourse`, by decreasing share of the cost; none if it is favourable or invalid."""
    rows = enumerate((answer.valid & ~answer.favourable).tolist())
    return [_row_changes(answer, row, answer.counterfactual, answer.advice.rounded) if has else () for row, has in rows]


def _row_changes(answer: Any, row: int, counterfactual: Floats, rounded: Floats) -> tuple[Change, ...]:
    x, exact, to, share = answer.x[row], counterfactual[row], rounded[row], answer.advice.share[row]
    total, found = float(share.sum()) or 1.0, []
    before: Any
    after: Any
    for part in _features(answer):
        own, first, number = part.columns, part.first, part.kind != "category"
        if (x[own] == exact[own]).all():
            continue
        if part.kind == "numeric":
            before, after = float(x[first]), float(to[first])
        else:
            before, after = (part.labels[int(v[first] if number else v[own].argmax())] for v in (x, exact))
        described = "" if answer.table is None else answer.table.describe.get(part.name, "")
        further, rises = number and bool(answer.advice.further[row, first]), number and bool(exact[first] > x[first])
        of_cost = float(share[own].sum()) / total
        found.append(Change(part.name, described, part.kind, before, after, part.unit, of_cost, further, rises))
    return tuple(sorted(found, key=lambda change: -change.share))


def _features(answer: Any) -> Sequence[Feature]:
    if answer.table is not None:
        parts: Sequence[Feature] = answer.table.parts
        return parts
    names, d = getattr(answer.like, "columns", ()), answer.x.shape[1]
    names = map(str, names) if len(names) == d else (f"feature {k}" for k in range(d))
    return [Feature(name, "numeric", k, -math.inf, math.inf, (), ()) for k, name in enumerate(names)]


def number_text(value: float, digits: int | None = None) -> str:
    """A number with thousands separators and all digits, or at most so many decimals.

    >>> number_text(4000.0), number_text(1234.567, 2)
    ('4,000', '1,234.57')
    """
    plain = repr((value if digits is None else round(value, digits)) + 0.0)
    if "e" in plain or not math.isfinite(value):
        return plain
    whole, _, decimals = plain.removesuffix(".0").partition(".")
    sign = "-" if whole.startswith("-") else ""
    return f"{sign}{abs(int(whole)):,}" + (f".{decimals}" if decimals else "")


def _value_texts(change: Change) -> tuple[str, str]:
    before, after = change.before, change.after
    if change.kind != "numeric":
        return _label_text(before), _label_text(after)
    plain = repr(after)
    decimals = 0 if "e" in plain or plain.endswith(".0") else len(plain.partition(".")[2])
    three = 2 - math.floor(math.log10(abs(before))) if 0 < abs(before) < 1 else 2  # decimals of three digits
    digits = max(decimals, three)
    text = number_text(before, digits if round(before, digits) != after else None)
    return _with_unit(text, change.unit), _with_unit(number_text(after), change.unit)


def _with_unit(number: str, unit: str) -> str:
    if is_money(unit) and number[-2:-1] == ".":  # one decimal
        number += "0"
    if unit in ("", "%"):
        return number + unit
    return unit + number if unit in PREFIXED and not number.startswith("-") else f"{number} {unit}"


def _label_text(label: Any) -> str:
    if isinstance(label, bool):
        return "yes" if label else "no"
    return number_text(float(label)) if isinstance(label, (int, float)) else str(label)


def sentence(change: Change) -> str:
    """A sentence on the change of one feature."""
    before, after = _value_texts(change)
    what = f"your {change.description}" if change.description else change.feature
    if change.kind == "category":
        return f"Change {what} from {before} to {after}."
    more, less = ("or above", "or below") if change.kind == "ordinal" else ("or more", "or less")
    further = f" {more if change.rises else less}" if change.further else ""
    return f"{'Raise' if change.rises else 'Lower'} {what} from {before} to {after}{further}."


def reasons_of(answer: Any) -> tuple[tuple[str, ...], ...]:
    """Sentences for each query; see `safexplain.recourse.Recourse.reasons`."""
    return tuple(
        tuple(map(sentence, changes)) if valid else (NONE_PROVEN if proven else NONE_FOUND,)
        for changes, valid, proven in zip(changes_of(answer), answer.valid, answer.proven, strict=True)
    )


def letters_of(answer: Any, names: Sequence[str] | None, most_reasons: int) -> list[str]:
    """Letters to declined applicants; see `safexplain.recourse.Recourse.letters`."""
    if answer.table is None:
        raise ConfigurationError("letters: they need the features of people; pass preprocessing=Preprocessing(...)")
    if missing := [name for name in answer.table.features if name not in answer.table.describe]:
        raise ConfigurationError(
            f"letters: expected a description of each feature, but describe= of the preprocessing lacks"
            f' {", ".join(missing)}; add them, such as describe={{"balance": "revolving balance"}}, and list features'
            " that a person cannot change under immutable"
        )
    n = len(answer.x)
    if names is not None and (isinstance(names, str) or len(names) != n):
        got = repr(names) if isinstance(names, str) else f"{len(names)} names"
        raise ConfigurationError(f"names: expected one name for each of {n} queries, got {got}")
    protected, unlimited = _privacy_sentence(answer.guarantee), answer.advice.unlimited
    parts, letters = {part.name: part for part in answer.table.parts}, []
    for row, (changes, sentences) in enumerate(zip(changes_of(answer), reasons_of(answer), strict=True)):
        if answer.favourable[row]:
            continue
        blocks = [REFUSED] if names is None else [f"Dear {names[row]},", REFUSED]
        principal = changes
        if not changes and unlimited is not None:
            principal = _row_changes(answer, row, unlimited, unlimited)
        if principal:
            listed = [f"{k}. {_reason(c, parts[c.feature])}" for k, c in enumerate(principal[:most_reasons], 1)]
            blocks.append("\n".join([REASONS, *listed]))
        if changes:
            heading = INSTEAD if len(changes) == 1 else TOGETHER
            blocks.append("\n".join([heading, *(f"- {text}" for text in sentences)]))
        else:
            blocks.append(sentences[0])
        letters.append("\n\n".join([*blocks, protected]) + "\n")
    return letters


def _reason(change: Change, part: Feature) -> str:
    """One principal reason; a number at an end of its public range is not called too low or high."""
    text = f"{change.description[:1].upper()}{change.description[1:]}: {_value_texts(change)[0]}"
    if change.kind == "category" or (change.kind == "numeric" and change.before in (part.low, part.high)):
        return f"{text}."
    return f"{text} (too {'low' if change.rises else 'high'})."


def _privacy_sentence(guarantee: Any) -> str:
    terms = f"epsilon {_rounded_up(guarantee.epsilon)}, delta {_rounded_up(guarantee.delta)}"
    if guarantee.per == "answer":
        terms += ", for each answer"
        if (training := guarantee.statement) is not None:
            spent = _rounded_up(training.epsilons.of(guarantee.adjacency))
            terms += f", plus epsilon {spent}, delta {_rounded_up(training.delta)}, once"
    if guarantee.vouched:
        terms += "; stated by the owner of the model"
    return f"The records used to train the model behind this decision are protected by differential privacy ({terms})."


def _rounded_up(value: float) -> str:
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    near = float(f"{value:.3g}")
    return f"{near if near >= value else near + unit:.3g}"


def change_columns(answer: Any) -> dict[str, list[Any]]:
    """Columns of a table with one row for each change; see `safexplain.recourse.Recourse.changes`."""
    rows = [
        (row, c.feature, c.before, c.after, c.unit, c.share)
        for row, changes in enumerate(changes_of(answer))
        for c in changes
    ]
    return {name: [row[k] for row in rows] for k, name in enumerate(("row", "feature", "from", "to", "unit", "share"))}


# --- rounded counterfactuals that stay valid, and reasons for people without recourse -------------------------------

COARSEST = (0.05, 0.005, 5e-4, 5e-6)
"""Shares of a change by which rounding may enlarge it, in the order in which they are tried."""

SMALL = 2e-3
"""A change below this share of the number is rounded as if it had this share: 23,300.61 becomes 23,301."""


@dataclass
class Advice:
    """What sentences need besides the answer: (n, d) the counterfactual in numbers of few digits, never nearer to x and
    equally valid; where a larger change keeps the decision; the cost of each column; and (`unlimited`), for queries
    without recourse, the cheapest accepted row if only public ranges and the directions of numbers limited it."""

    rounded: Floats
    further: Mask
    share: Floats
    unlimited: Floats | None = None


def advise(
    found: Solution,
    table: Preprocessing | None,
    weights: Floats | None,
    bias: float | Floats,
    *,
    target: float,
    cost: Cost,
    constraints: Constraints | None,
    frozen: Mask | None,
    accepts: Callable[[Floats, NDArray[np.intp]], Mask],
) -> Advice:
    """Advice about answers, rounded outwards as far as the model still accepts them, by `accepts`: (k, D) rows and
    positions of their queries (k,) -> (k,) bool. `weights` (D,) and `bias`: of a linear score, if it is one."""
    rows, exact, change = found.x, found.counterfactual, found.change
    d = rows.shape[1]
    rules = constraints or Constraints(d)
    cost = for_columns(cost, rules.features, d)
    number, money = ~rules.grouped, np.zeros(d, dtype=bool)
    if table is not None:
        units = {part.first: part.unit for part in table.parts if part.kind == "numeric"}
        number &= np.isin(np.arange(d), list(units))
        money[[first for first, unit in units.items() if is_money(unit)]] = True
    stepped = number & (rules.grid != 0)  # of these, only the rounding errors of sums are removed
    moved, on_steps = (change != 0) & number & ~stepped, (change != 0) & stepped
    low, high = rules.bounds(rows, frozen)
    rounded, left = exact.copy(), np.flatnonzero((moved | on_steps).any(axis=1))
    for coarsest in (*COARSEST, 0.0):
        if not len(left):
            break
        digits = _to_twelve_digits(exact[left])
        candidate = round_outward(rows[left], exact[left], coarsest, money) if coarsest else digits
        inside = np.clip(candidate, low[left], high[left])
        candidate = np.where(inside == candidate, candidate, _to_twelve_digits(inside))  # limits have rounding errors
        candidate = np.where(moved[left], candidate, np.where(on_steps[left], digits, exact[left]))
        inside = np.clip(np.where(stepped, exact[left], candidate), low[left], high[left])
        good = accepts(candidate, left)
        good &= rules.satisfied(rows[left], inside, None if frozen is None else frozen[left])
        rounded[left[good]] = candidate[good]
        left = left[~good]
    ranges = rules if table is None else table.constraints(Constraints(table.features, reachable=table.categories))
    share, unlimited, further = cost.parts(change), None, np.zeros(change.shape, dtype=bool)
    if weights is not None:  # nobody can go beyond the range
        further = (change * weights > 0) & np.where(change > 0, rounded < ranges.high, rounded > ranges.low)
    lost = np.flatnonzero(~found.valid)
    if weights is not None and table is not None and len(lost):  # immutable features can be reasons too
        numbers = {part.name for part in table.parts if part.kind != "category"}
        rising, falling = (
            tuple(name for name in names if name in numbers) for names in (rules.increasing, rules.decreasing)
        )
        ranges = replace(ranges, increasing=rising, decreasing=falling)
        offset, held = np.broadcast_to(bias, len(rows))[lost], table.held(rows[lost])
        without = linear_recourse(
            weights, offset, rows[lost], target=target, cost=cost, constraints=ranges, frozen=held
        )
        unlimited = rows.copy()
        unlimited[lost], share[lost] = without.counterfactual, cost.parts(without.change)
    return Advice(rounded, further, share, unlimited)


def round_outward(x: Floats, to: Floats, coarsest: float, money: Mask) -> Floats:
    """Numbers (n, d) rounded away from x by at most this share of the change; `money` (d,) at least to cents."""
    change = to - x
    size = np.where(change == 0, 1.0, np.maximum(np.abs(change), SMALL * np.abs(x))) * coarsest
    digits = -np.floor(np.log10(np.clip(size, 1e-300, 1e300))).astype(int)
    digits = np.where(money, np.minimum(digits, 2), digits)
    out = to.copy()
    for k in np.unique(digits[change != 0]).tolist():
        if not -300 < k < 300:
            continue
        here = (digits == k) & (change != 0)
        sign = np.sign(change[here])
        near = np.round(to[here], k)
        short = sign * (near - to[here]) < 0
        out[here] = np.where(short, np.round(near + sign * 10.0**-k, k), near) + 0.0
    return out


def _to_twelve_digits(to: Floats) -> Floats:
    return np.array([[float(f"{value:.12g}") for value in row] for row in to.tolist()]).reshape(to.shape)


def is_money(unit: str) -> bool:
    """Whether a unit, such as "USD" or "EUR a month", is of money."""
    return unit.partition(" ")[0] in CURRENCIES
