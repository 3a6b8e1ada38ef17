"""Answers in words: what a person would have to change, and letters to those who were turned down.

A sentence has to stay true when its numbers are rounded. `advise` rounds away from where the person is, and asks the
model whether the rounded row is still accepted; where it is not, finer, and in the end not at all. "Or less" and "or
more" are said only where going further in that direction cannot lower the score, as in a linear model.

The reasons of a letter are the features with the largest shares of the cost, as the principal reasons that the Equal
Credit Opportunity Act's Regulation B asks for (12 CFR 1002.9(b)(2); its official commentary: no more than four). That
they are the right ones for a given law is for the lender to judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, RefusedError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COARSEST = (0.05, 0.005, 5e-4, 5e-6)
"""Shares of a change by which it may grow when it is rounded, from the first that is tried to the last."""

SMALL = 2e-3
"""A change of less than this share of the number itself is rounded as one of that share: 23,300.61 becomes 23,301."""

CURRENCIES = ("USD", "EUR", "GBP", "CHF", "$", "£", "€")
"""Units, or first words of these, whose numbers have two decimals or none."""

MOST_REASONS = 4
"""Principal reasons in a letter, as the commentary on Regulation B recommends."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What an answer can be told by, besides its numbers.

    Args:
        rounded: (n, d) the counterfactual in numbers of few digits, never nearer to x, as valid as it.
        further: (n, d) bool, where going further in the direction of the change keeps the decision.
        share: (n, d) what each column adds to the cost.
        unlimited: (n, d) for queries without recourse the cheapest row that would be accepted if only ranges held: what
            turned them down; x for all others. None: not known.
    """

    rounded: Floats
    further: Mask
    share: Floats
    unlimited: Floats | None = None


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
    """Round counterfactuals outwards, as far as they stay valid.

    Args:
        x: (n, d) queries.
        counterfactual: (n, d).
        share: (n, d) what each column adds to the cost.
        free: (d,) bool, columns of numbers that may be rounded.
        stepped: (d,) bool, columns of numbers that change by steps: rounded by next to nothing, as sums of steps are
            not exact.
        money: (d,) bool, columns of amounts, which are rounded to cents at least.
        limits: lower and upper ones, (n, d) each.
        valid: rows (k, d) and the numbers of their queries (k,) -> (k,) bool, whether they would be accepted.
        further: (n, d) bool, as in `Advice`.
    """
    change = counterfactual - x
    moved, on_steps = (change != 0) & free, (change != 0) & stepped
    out = counterfactual.copy()
    left = np.flatnonzero((moved | on_steps).any(axis=1))
    for coarsest in (*COARSEST, 0.0):
        if not len(left):
            break
        exact = _nearest(counterfactual[left])
        candidate = _outward(x[left], counterfactual[left], coarsest, money) if coarsest else exact
        inside = np.clip(candidate, limits[0][left], limits[1][left])
        candidate = np.where(inside == candidate, candidate, _nearest(inside))  # a limit that was added up has dust
        candidate = np.where(moved[left], candidate, np.where(on_steps[left], exact, counterfactual[left]))
        good = valid(candidate, left)
        out[left[good]] = candidate[good]
        left = left[~good]
    return Advice(out, further & (change != 0), share)


def _outward(x: Floats, to: Floats, coarsest: float, money: Mask | None = None) -> Floats:
    """Numbers rounded away from x, by at most a share of the change, and money to cents at least."""
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


def _nearest(to: Floats) -> Floats:
    """Numbers to twelve digits: less than anybody would notice."""
    return np.array([[float(f"{value:.12g}") for value in row] for row in to.tolist()]).reshape(to.shape)


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


@dataclass(frozen=True)
class Language:
    """How sentences are written; `{what}`, `{before}` and `{after}` stand for the feature and its values."""

    lower: str
    lower_further: str
    raise_: str
    raise_further: str
    level_lower_further: str
    level_raise_further: str
    change: str
    own: str
    """How a feature with a label of its own is called."""
    none_proven: str
    none_found: str
    marks: tuple[str, str]
    """Between thousands, and before decimals."""
    percent: str
    yes: tuple[str, str]
    prefixed: tuple[str, ...]
    """Units that stand before their number."""
    too_high: str
    too_low: str
    is_now: str
    dear: str
    refused: str
    reasons: str
    instead: str
    together: str
    protected: str


LANGUAGES: Mapping[str, Language] = {
    "en": Language(
        lower="Lower {what} from {before} to {after}.",
        lower_further="Lower {what} from {before} to {after} or less.",
        raise_="Raise {what} from {before} to {after}.",
        raise_further="Raise {what} from {before} to {after} or more.",
        level_lower_further="Lower {what} from {before} to {after} or below.",
        level_raise_further="Raise {what} from {before} to {after} or above.",
        change="Change {what} from {before} to {after}.",
        own="your {what}",
        none_proven="No change within the limits that apply would lead to a favourable decision.",
        none_found="No change was found that would lead to a favourable decision.",
        marks=(",", "."),
        percent="{number}%",
        yes=("no", "yes"),
        prefixed=("$", "£", "€"),
        too_high="{What} is too high: {before}.",
        too_low="{What} is too low: {before}.",
        is_now="{What}: {before}.",
        dear="Dear {name},",
        refused="We were unable to approve your application.",
        reasons="The principal reasons for this decision are:",
        instead="Your application would have been approved with this change:",
        together="Your application would have been approved with all of these changes together:",
        protected="The records that this decision was learnt from are protected by differential privacy (epsilon"
        " {epsilon}, delta {delta}).",
    ),
    "de": Language(
        lower="{what} von {before} auf {after} senken.",
        lower_further="{what} von {before} auf {after} oder weniger senken.",
        raise_="{what} von {before} auf {after} erhöhen.",
        raise_further="{what} von {before} auf {after} oder mehr erhöhen.",
        level_lower_further="{what} von {before} auf {after} oder niedriger senken.",
        level_raise_further="{what} von {before} auf {after} oder höher erhöhen.",
        change="{what} von {before} auf {after} ändern.",
        own="{what}",
        none_proven="Keine Änderung innerhalb der geltenden Grenzen würde zu einer günstigen Entscheidung führen.",
        none_found="Es wurde keine Änderung gefunden, die zu einer günstigen Entscheidung führen würde.",
        marks=(".", ","),
        percent="{number} %",
        yes=("nein", "ja"),
        prefixed=(),
        too_high="{What} zu hoch: {before}.",
        too_low="{What} zu niedrig: {before}.",
        is_now="{What}: {before}.",
        dear="Guten Tag {name},",
        refused="Ihrem Antrag konnten wir leider nicht entsprechen.",
        reasons="Die Hauptgründe für diese Entscheidung sind:",
        instead="Mit dieser Änderung wäre Ihr Antrag bewilligt worden:",
        together="Mit allen diesen Änderungen zusammen wäre Ihr Antrag bewilligt worden:",
        protected="Die Daten, aus denen diese Entscheidung gelernt wurde, sind durch Differential Privacy geschützt"
        " (Epsilon {epsilon}, Delta {delta}).",
    ),
}
"""The languages of sentences and letters, by their codes."""


def language_of(code: Any) -> Language:
    """The language with this code.

    Raises:
        ConfigurationError: none; the message lists those there are.
    """
    if not isinstance(code, str) or code not in LANGUAGES:
        raise ConfigurationError(f"language: expected one of {', '.join(LANGUAGES)}, got {code!r}")
    return LANGUAGES[code]


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
    rounded = np.where(numeric & fraction, np.clip(_outward(x, to, 5e-4), low, high), to)
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
    units, called = getattr(answer.table, "units", {}), getattr(answer.table, "labels", {})
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


def number_text(value: float, language: Language, digits: int | None = None) -> str:
    """A number as people write it: all of its digits, or so many decimals at most.

    >>> number_text(4000.0, LANGUAGES["en"]), number_text(1234.5, LANGUAGES["de"])
    ('4,000', '1.234,5')
    """
    if digits is not None:
        value = round(value, digits)
    plain = repr(value + 0.0)
    if "e" in plain or not math.isfinite(value):
        return plain.replace(".", language.marks[1])
    whole, _, decimals = plain.partition(".")
    decimals = "" if decimals == "0" else decimals
    text = f"{int(whole):,}".replace(",", language.marks[0])
    text = "-" + text if whole.startswith("-") and not text.startswith("-") else text
    return text + (language.marks[1] + decimals if decimals else "")


def _decimals(value: float) -> int:
    plain = repr(value)
    return 0 if "e" in plain or plain.endswith(".0") else len(plain.partition(".")[2])


def _values(change: Change, language: Language) -> tuple[str, str]:
    """How the person's own value and the one that would have to be are written."""
    if change.kind != "numeric":
        return _label_text(change.before, language), _label_text(change.after, language)
    before, after = change.before, change.after
    size = 0 if before == 0 else max(0, 2 - math.floor(math.log10(abs(before))))
    digits = max(_decimals(after), 2 if abs(before) >= 1 else size)
    own = number_text(before, language, digits if round(before, digits) != after else None)
    return _with_unit(own, change.unit, language), _with_unit(number_text(after, language), change.unit, language)


def is_money(unit: str) -> bool:
    """Whether numbers with this unit are amounts of money: "USD", "EUR a month"."""
    return unit.partition(" ")[0] in CURRENCIES


def _with_unit(number: str, unit: str, language: Language) -> str:
    if is_money(unit) and number[-2:-1] == language.marks[1]:  # one decimal
        number += "0"
    if not unit:
        return number
    if unit == "%":
        return language.percent.format(number=number)
    if unit in language.prefixed and not number.startswith("-"):
        return unit + number
    return f"{number} {unit}"


def _label_text(label: Any, language: Language) -> str:
    if isinstance(label, bool):
        return language.yes[label]
    return number_text(float(label), language) if isinstance(label, (int, float)) else str(label)


def sentence(change: Change, language: Language) -> str:
    """What to do about one feature."""
    before, after = _values(change, language)
    what = language.own.format(what=change.called) if change.called else change.feature
    if change.kind == "category":
        form = language.change
    elif change.kind == "ordinal" and change.further:
        form = language.level_raise_further if change.rises else language.level_lower_further
    elif change.rises:
        form = language.raise_further if change.further else language.raise_
    else:
        form = language.lower_further if change.further else language.lower
    text = form.format(what=what, before=before, after=after)
    return text[:1].upper() + text[1:] if change.called else text


def reasons_of(answer: Any, code: Any) -> tuple[tuple[str, ...], ...]:
    """Sentences for each query; see `safexplain.recourse.Recourse.reasons`."""
    language = language_of(code)
    found = []
    for row, changes in enumerate(changes_of(answer)):
        if answer.valid[row]:
            found.append(tuple(sentence(change, language) for change in changes))
        else:
            found.append((language.none_proven if answer.proven[row] else language.none_found,))
    return tuple(found)


def letters_of(answer: Any, code: Any, names: Sequence[str] | None, guarantee: Any, most_reasons: int) -> list[str]:
    """Letters to those who were turned down; see `safexplain.recourse.Recourse.letters`."""
    language = language_of(code)
    n = len(answer.x)
    if names is not None and (isinstance(names, str) or len(names) != n):
        got = repr(names) if isinstance(names, str) else f"{len(names)} names"
        raise ConfigurationError(f"names: expected one name for each of {n} queries, got {got}")
    protected = "" if guarantee is None else _protected(guarantee, language)
    told = reasons_of(answer, code)
    letters = []
    for row, changes in enumerate(changes_of(answer)):
        if answer.favourable[row]:
            continue
        blocks = [] if names is None else [language.dear.format(name=names[row])]
        blocks.append(language.refused)
        principal = changes or _turned_down_by(answer, row)
        if principal:
            listed = [f"{k}. {_reason(c, language)}" for k, c in enumerate(principal[:most_reasons], 1)]
            blocks.append("\n".join([language.reasons, *listed]))
        if changes:
            heading = language.instead if len(changes) == 1 else language.together
            blocks.append("\n".join([heading, *(f"- {text}" for text in told[row])]))
        else:
            blocks.append(told[row][0])
        blocks += [protected] if protected else []
        letters.append("\n\n".join(blocks) + "\n")
    return letters


def _reason(change: Change, language: Language) -> str:
    before, _ = _values(change, language)
    what = change.called or change.feature
    what = what[:1].upper() + what[1:] if change.called or what.isalpha() else what
    form = language.is_now if change.kind == "category" else language.too_low if change.rises else language.too_high
    return form.format(What=what, before=before)


def _protected(guarantee: Any, language: Language) -> str:
    if not getattr(guarantee, "is_private", False):
        why = getattr(guarantee, "why", f"{guarantee!r:.60} is no guarantee; pass mechanism.guarantee")
        raise RefusedError(f"guarantee: a letter cannot promise privacy that there is not: {why}")
    numbers = (_rounded_up(value).replace(".", language.marks[1]) for value in (guarantee.epsilon, guarantee.delta))
    return language.protected.format(**dict(zip(("epsilon", "delta"), numbers, strict=True)))


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
