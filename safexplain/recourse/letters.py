"""Recourse in words: the changes that a person would have to make, and letters to declined applicants.

The principal reasons in a letter, required by Regulation B of the Equal Credit Opportunity Act (12 CFR 1002.9(b)(2);
its official commentary recommends no more than four), are the features with the largest shares of the cost. Sentences
stay true although their numbers are rounded: counterfactuals are rounded away from the person's own numbers, as far as
the model still accepts them. "Or less" and "or more" appear only where a larger change cannot lower the score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost, for_columns
from safexplain.recourse.features import Feature
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.solution import Floats, Solution

Mask = NDArray[np.bool_]

MOST_REASONS = 4
"""Largest number of principal reasons in a letter, recommended by the commentary on Regulation B."""

PREFIXED = ("$", "£", "€")
"""Units written before their number."""

NONE_PROVEN = "No change within the limits that apply would lead to a favourable decision."
NONE_FOUND = "No change was found that would lead to a favourable decision."
REFUSED = "We were unable to approve your application."
REASONS = "The principal reasons for this decision are:"
INSTEAD = "Your application would have been approved with this change:"
TOGETHER = "Your application would have been approved with all of these changes together:"


@dataclass(frozen=True)
class Change:
    """One feature that a person would have to change.

    `description` is its name in sentences ("": none was declared), `after` the required number, rounded, or label,
    `share` its share of the cost (0 to 1), and `further` whether a larger change keeps the decision.
    """

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
    advice = _unverified_advice(answer, _numeric(answer)) if answer.advice is None else answer.advice
    found: list[tuple[Change, ...]] = []
    for row, has_changes in enumerate((answer.valid & ~answer.favourable).tolist()):
        changes = _row_changes(answer, advice, row) if has_changes else []
        total = sum(change.share for change in changes) or 1.0
        changes = [replace(change, share=change.share / total) for change in changes]
        found.append(tuple(sorted(changes, key=lambda change: -change.share)))
    return found


def _unlimited_changes(answer: Any, row: int) -> list[Change]:
    """Reasons for a person without recourse, by decreasing share: the changes that would do if only public ranges and
    directions limited them; none where these are unknown."""
    advice = answer.advice
    if advice is None or advice.unlimited is None:
        return []
    instead = replace(answer, counterfactual=advice.unlimited)
    changes = _row_changes(instead, replace(advice, rounded=advice.unlimited), row)
    return sorted(changes, key=lambda change: -change.share)


def _features(answer: Any) -> Sequence[Any] | None:
    return None if answer.table is None else getattr(answer.table, "parts", None)


def _numeric(answer: Any) -> Mask:
    """(d,) bool, columns of numbers."""
    parts = _features(answer)
    if parts is None:
        return np.ones(answer.x.shape[1], dtype=bool)
    mask = np.zeros(answer.x.shape[1], dtype=bool)
    for part in parts:
        mask[part.first] |= part.kind == "numeric"
    return mask


def _unverified_advice(answer: Any, numeric: Mask) -> Advice:
    """Advice without the model: numbers change by at most 5e-4 of a change when rounded, within their ranges."""
    x, to = answer.x, answer.counterfactual
    low, high = np.full(x.shape[1], -np.inf), np.full(x.shape[1], np.inf)
    scale = np.ones(x.shape[1])
    for part in _features(answer) or ():
        if part.kind != "category":
            low[part.first], high[part.first] = part.low, part.high
        scale = np.asarray(answer.table.scale)
    fraction = (x != np.rint(x)) | (to != np.rint(to))
    rounded = np.where(numeric & fraction, np.clip(round_outward(x, to, 5e-4), low, high), to)
    return Advice(rounded, np.zeros(x.shape, dtype=bool), np.abs(to - x) / scale)


def _row_changes(answer: Any, advice: Advice, row: int) -> list[Change]:
    x, to, exact = answer.x[row], advice.rounded[row], answer.counterfactual[row]
    names = [str(name) for name in getattr(answer.like, "columns", ())]
    parts = _features(answer)
    found = []
    if parts is None:
        for k in np.flatnonzero(x != exact).tolist():
            name = names[k] if len(names) == len(x) else f"feature {k}"
            further = bool(advice.further[row, k])
            found.append(_number(name, "", "", x[k], to[k], float(advice.share[row, k]), further))
        return found
    units, descriptions = getattr(answer.table, "units", {}), answer.table.describe
    for part in parts:
        columns = part.columns
        if (x[columns] == exact[columns]).all():
            continue
        share, label = float(advice.share[row, columns].sum()), descriptions.get(part.name, "")
        further = bool(advice.further[row, part.first])
        if part.kind == "numeric":
            unit = units.get(part.name, "")
            found.append(_number(part.name, label, unit, x[part.first], to[part.first], share, further))
        elif part.kind == "ordinal":
            levels = [part.labels[int(value)] for value in (x[part.first], exact[part.first])]
            rises = bool(exact[part.first] > x[part.first])
            found.append(Change(part.name, label, "ordinal", levels[0], levels[1], "", share, further, rises))
        else:
            labels = [part.labels[int(values[columns].argmax())] for values in (x, exact)]
            found.append(Change(part.name, label, "category", labels[0], labels[1], "", share, False, False))
    return found


def _number(name: str, description: str, unit: str, before: float, after: float, share: float, further: bool) -> Change:
    return Change(name, description, "numeric", float(before), float(after), unit, share, further, bool(after > before))


def number_text(value: float, digits: int | None = None) -> str:
    """A number with thousands separators and all of its digits, or at most so many decimals.

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


def _value_texts(change: Change) -> tuple[str, str]:
    """Texts of the person's value and of the required one."""
    if change.kind != "numeric":
        return _label_text(change.before), _label_text(change.after)
    before, after = change.before, change.after
    size = 0 if before == 0 else max(0, 2 - math.floor(math.log10(abs(before))))
    digits = max(_decimals(after), 2 if abs(before) >= 1 else size)
    text = number_text(before, digits if round(before, digits) != after else None)
    return _with_unit(text, change.unit), _with_unit(number_text(after), change.unit)


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
    return tuple(_sentences(answer, row, changes) for row, changes in enumerate(changes_of(answer)))


def _sentences(answer: Any, row: int, changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Sentences for one query with these changes."""
    if answer.valid[row]:
        return tuple(map(sentence, changes))
    return (NONE_PROVEN if answer.proven[row] else NONE_FOUND,)


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
    protected = _privacy_sentence(answer.guarantee)
    parts = {part.name: part for part in answer.table.parts}
    letters = []
    for row, changes in enumerate(changes_of(answer)):
        if answer.favourable[row]:
            continue
        blocks = [] if names is None else [f"Dear {names[row]},"]
        blocks.append(REFUSED)
        sentences, principal = _sentences(answer, row, changes), changes or _unlimited_changes(answer, row)
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
    before, _ = _value_texts(change)
    what = change.description[:1].upper() + change.description[1:]
    end = change.kind == "numeric" and change.before in (part.low, part.high)
    if change.kind == "category" or end:
        return f"{what}: {before}."
    return f"{what}: {before} (too {'low' if change.rises else 'high'})."


def _privacy_sentence(guarantee: Any) -> str:
    """The sentence about privacy, with numbers rounded up."""
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
    """A number rounded up to three digits."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    near = float(f"{value:.3g}")
    return f"{near if near >= value else near + unit:.3g}"


def change_columns(answer: Any) -> dict[str, list[Any]]:
    """Columns of a table with one row for each change; see `safexplain.recourse.Recourse.changes`."""
    found: dict[str, list[Any]] = {name: [] for name in ("row", "feature", "from", "to", "unit", "share")}
    for row, changes in enumerate(changes_of(answer)):
        for c in changes:
            for name, value in zip(found, (row, c.feature, c.before, c.after, c.unit, c.share), strict=True):
                found[name].append(value)
    return found


# --- rounded counterfactuals that stay valid, and reasons for people without recourse -------------------------------
COARSEST = (0.05, 0.005, 5e-4, 5e-6)
"""Shares of a change by which rounding may enlarge it, in the order in which they are tried."""

SMALL = 2e-3
"""A change below this share of the number is rounded as if it had this share: 23,300.61 becomes 23,301."""

CURRENCIES = ("USD", "EUR", "GBP", "CHF", "$", "£", "€")
"""Units, or first words of units, whose numbers have two decimals or none."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What sentences need besides the answer.

    Args:
        rounded: (n, d) the counterfactual in numbers of few digits, never nearer to x, and equally valid.
        further: (n, d) bool, where a larger change in the same direction keeps the decision.
        share: (n, d) cost of each column.
        unlimited: (n, d) for queries without recourse, the cheapest accepted row if only public ranges and the
            directions of numbers limited it; x for all others. None: unknown.
    """

    rounded: Floats
    further: Mask
    share: Floats
    unlimited: Floats | None = None


def checked_advice(
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
    """Advice about answers, rounded as far as the model still accepts them.

    `weights` (D,) and `bias`, one number or (n,), are those of a linear score; None: the score is a network's.
    `accepts`: (k, D) rows and positions of their queries (k,) -> (k,) bool, whether the decision is favourable.
    """
    rows, change = found.x, found.change
    cost = for_columns(cost, None if constraints is None else constraints.features, rows.shape[1])
    free = np.ones(rows.shape[1], dtype=bool)
    stepped, money = np.zeros(len(free), dtype=bool), np.zeros(len(free), dtype=bool)
    if table is not None:
        free[:] = False
        for part in table.parts:
            free[part.first] = part.kind == "numeric"
            money[part.first] = is_money(table.units.get(part.name, ""))
    limits = np.full(rows.shape, -np.inf), np.full(rows.shape, np.inf)
    if constraints is not None:
        free &= ~constraints.grouped
        stepped = free & (constraints.grid != 0)
        free &= ~stepped
        limits = constraints.bounds(rows, frozen)

    def valid(candidate: Floats, index: NDArray[np.intp]) -> Mask:
        good = accepts(candidate, index)
        if constraints is not None:
            inside = np.where(stepped, found.counterfactual[index], candidate)
            inside = np.clip(inside, limits[0][index], limits[1][index])
            good = good & constraints.satisfied(rows[index], inside, None if frozen is None else frozen[index])
        return good

    advice = advise(
        rows,
        found.counterfactual,
        cost.parts(change),
        free=free,
        stepped=stepped,
        money=money,
        limits=limits,
        valid=valid,
        further=np.zeros(change.shape, dtype=bool) if weights is None else change * weights > 0,
    )
    ranges = constraints
    if table is not None:  # immutable features can be reasons too
        ranges = table.constraints(Constraints(table.features, reachable=table.categories))
    if ranges is not None:  # nobody can go beyond the range
        room = np.where(change > 0, advice.rounded < ranges.high, advice.rounded > ranges.low)
        advice = replace(advice, further=advice.further & room)
    lost = np.flatnonzero(~found.valid)
    if weights is None or table is None or ranges is None or not len(lost):
        return advice
    if constraints is not None:
        numbers = {part.name for part in table.parts if part.kind != "category"}
        rising, falling = (
            tuple(name for name in listed if name in numbers)
            for listed in (constraints.increasing, constraints.decreasing)
        )
        ranges = replace(ranges, increasing=rising, decreasing=falling)
    unlimited, share = rows.copy(), advice.share.copy()
    offset, held = np.broadcast_to(bias, len(rows))[lost], table.held(rows[lost])
    without = linear_recourse(weights, offset, rows[lost], target=target, cost=cost, constraints=ranges, frozen=held)
    unlimited[lost], share[lost] = without.counterfactual, cost.parts(without.change)
    return replace(advice, unlimited=unlimited, share=share)


def advise(
    x: Floats,
    counterfactual: Floats,
    share: Floats,
    *,
    free: Mask,
    stepped: Mask,
    money: Mask,
    limits: tuple[Floats, Floats],
    valid: Callable[[Floats, NDArray[np.intp]], Mask],
    further: Mask,
) -> Advice:
    """Round counterfactuals (n, d) of queries x outwards, as far as they stay `valid`: rows (k, d) and positions of
    their queries (k,) -> (k,) bool.

    Of `free` columns (d,), numbers are rounded, of `money` (d,) at least to cents; of `stepped` ones only the rounding
    errors of sums are removed. `limits` are lower and upper ones, (n, d) each; `share` and `further` as in `Advice`.
    """
    change = counterfactual - x
    moved, on_steps = (change != 0) & free, (change != 0) & stepped
    out = counterfactual.copy()
    left = np.flatnonzero((moved | on_steps).any(axis=1))
    for coarsest in (*COARSEST, 0.0):
        if not len(left):
            break
        exact = _to_twelve_digits(counterfactual[left])
        candidate = round_outward(x[left], counterfactual[left], coarsest, money) if coarsest else exact
        inside = np.clip(candidate, limits[0][left], limits[1][left])
        candidate = np.where(inside == candidate, candidate, _to_twelve_digits(inside))  # limits have rounding errors
        candidate = np.where(moved[left], candidate, np.where(on_steps[left], exact, counterfactual[left]))
        good = valid(candidate, left)
        out[left[good]] = candidate[good]
        left = left[~good]
    return Advice(out, further & (change != 0), share)


def round_outward(x: Floats, to: Floats, coarsest: float, money: Mask | None = None) -> Floats:
    """Numbers rounded away from x by at most this share of the change; money at least to cents."""
    change = to - x
    size = np.where(change == 0, 1.0, np.maximum(np.abs(change), SMALL * np.abs(x))) * coarsest
    digits = -np.floor(np.log10(np.clip(size, 1e-300, 1e300))).astype(int)
    digits = digits if money is None else np.where(money, np.minimum(digits, 2), digits)
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
    """Numbers rounded to twelve digits."""
    return np.array([[float(f"{value:.12g}") for value in row] for row in to.tolist()]).reshape(to.shape)


def is_money(unit: str) -> bool:
    """Whether a unit, such as "USD" or "EUR a month", is of money."""
    return unit.partition(" ")[0] in CURRENCIES
