"""An answer: the listed arrays with their guarantee, which is differential privacy, in numbers and words.

Sentences stay true although their numbers are rounded: away from the person's own numbers, as far as the model still
accepts them. "Or less" and "or more" appear only where a larger change cannot lower the score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._privacy_loss import PROTECTS, Adjacency, check_adjacency
from safexplain._secure_random import GENERATOR
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InfeasibleError
from safexplain.recourse.constraints import Constraints, Mask
from safexplain.recourse.cost import Cost, for_columns
from safexplain.recourse.features import Feature
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.preprocessing import PUBLIC_PREPROCESSING, Preprocessing
from safexplain.recourse.solution import Floats, Solution, rows_where
from safexplain.verdict.privacy_statement import PUBLIC, PrivacyStatement, randomness

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

Per = Literal["model", "answer"]
"""What spends epsilon: the training, once for any number of answers, or each answer."""

PUBLIC_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound, the clamp and public weights were not"
    " computed from the training data"
)
PRIVATE_GEOMETRY = (
    "the cost and its scales, the constraints, the target, the norm bound and the clamp were not computed from the"
    " training data; weights come from a training with differential privacy, whose epsilon counts once in addition"
)
NO_TIMING = (
    "attackers cannot time answers to within 50 microseconds (larger noise takes longer to draw); if they can, the"
    " service must answer at fixed intervals"
)
FAILURES_HIDDEN = "recipients of answers do not learn whether training failed, nor with which error or warning"
PUBLIC_QUERIES = "queries are not training data, or are asked by their owner: epsilon protects the training records"
VOUCHED = "the model was trained as its privacy statement says; this is its owner's word and was not checked"
NOT_CHARGED = "the provider counts the answers: these were charged to no ledger, and n of them spend n epsilon"


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of recourse.

    Args:
        mechanism: its name and source.
        per: what spends epsilon: "model" (training, once) or "answer" (each answer).
        epsilon: bound on the privacy loss.
        delta: probability with which the bound may fail.
        adjacency: how neighbouring training sets differ.
        released: what is released.
        why: the proof in a sentence.
        statement: of the trained model, or of the one that provides public weights and spends once in addition, if any.
        vouched: whether that statement is only its owner's word.
        assumptions: conditions of the guarantee.
        preprocessing: digest of the public preprocessing of frames; None: rows are plain numbers.
        ledger: identity of the ledger that was charged (`Ledger.identity`); "": none.
        charges: their numbers there: of the training, if any, then of each answer.

    Raises:
        ConfigurationError: numbers out of range.
    """

    mechanism: str
    per: Per
    epsilon: float
    delta: float
    adjacency: Adjacency
    released: str
    why: str
    statement: PrivacyStatement | None = None
    vouched: bool = False
    assumptions: tuple[str, ...] = ()
    preprocessing: str | None = None
    ledger: str = ""
    charges: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        check_number("epsilon", self.epsilon, above=0)
        check_number("delta", self.delta, minimum=0, below=1)
        if bool(self.ledger) != bool(self.charges):
            raise ConfigurationError("a guarantee needs both the ledger and its charges, or neither")

    @property
    def protects(self) -> str:
        """What an observer of the answers cannot infer, up to epsilon and delta."""
        return PROTECTS[self.adjacency]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        listed = {"assumptions": list(self.assumptions), "charges": list(self.charges), "protects": self.protects}
        return {**asdict(self), **listed, "statement": None if self.statement is None else self.statement.to_dict()}

    def __str__(self) -> str:
        once = "once, for any number of answers" if self.per == "model" else "for each answer"
        numbers = f"epsilon {self.epsilon:g}, delta {self.delta:g} ({self.adjacency})"
        text = f"{self.mechanism}: {numbers} {once}. {_sentence(self.why)}"
        return f"{text}. {_sentence(VOUCHED)}" if self.vouched else text


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def assumptions(*, seeded: bool | None, noised: bool = False, preprocessed: bool = False) -> tuple[str, ...]:
    """Assumptions of every mechanism. `seeded`: whether noise comes from a seed (None: a statement records its source);
    `noised`: whether each answer has its own noise."""
    timing = (NO_TIMING,) if noised else ()
    ranges = (PUBLIC_PREPROCESSING,) if preprocessed else ()
    drawn = () if seeded is None else (randomness("" if seeded else GENERATOR, seeded=seeded, whole=noised),)
    return (PUBLIC, PUBLIC_GEOMETRY, *ranges, PUBLIC_QUERIES, FAILURES_HIDDEN, *timing, *drawn)


@dataclass(frozen=True, eq=False)
class Recourse(Solution):
    """Answers to n queries: the listed arrays of `Solution`, with the released score, and nothing else.

    Args:
        guarantee: limit on what the answers reveal about training records.
        advice: what sentences need besides the numbers.
        table: the preprocessing, if x and counterfactual are rows of its table; None: they are plain numbers.
        like: the original queries, for `frame`.

    Raises:
        ConfigurationTypeError: no guarantee.
    """

    guarantee: Guarantee = field(kw_only=True)
    advice: Advice = field(kw_only=True, repr=False)
    table: Preprocessing | None = field(default=None, repr=False)
    like: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.guarantee, Guarantee):
            raise ConfigurationTypeError(f"guarantee: expected a Guarantee, got {self.guarantee!r:.60}")

    @property
    def frame(self) -> Any:
        """The counterfactuals as a frame like the queries, with their columns, types, labels and index.

        Without a preprocessing, a pandas or polars frame of numbers is returned as one, anything else as (n, d) array.
        """
        if self.table is not None:
            return self.table.frame(self.counterfactual, self.like)
        names = getattr(self.like, "columns", ())
        if type(self.like).__name__ != "DataFrame" or len(names) != self.counterfactual.shape[1]:
            return self.counterfactual
        index = {"index": self.like.index} if hasattr(self.like, "index") else {}
        return type(self.like)(dict(zip(names, self.counterfactual.T, strict=True)), **index)

    def reasons(self) -> tuple[tuple[str, ...], ...]:
        """The changes that each person would have to make, in sentences.

        Returns:
            For each query one sentence per feature to change, by decreasing share of the cost; none if the decision is
            favourable, and a single sentence if there is no recourse. Numbers are rounded so that sentences stay true.
        """
        return tuple(
            tuple(map(sentence, changes)) if valid else (NONE_PROVEN if proven else NONE_FOUND,)
            for changes, valid, proven in zip(changes_of(self), self.valid, self.proven, strict=True)
        )

    def letters(self, *, names: Sequence[str] | None = None, most_reasons: int = MOST_REASONS) -> list[str]:
        """Letters to declined applicants: the principal reasons, the changes that would have led to approval, and the
        protection of the training records.

        Without recourse, the reasons of a linear model are the changes that would do if only public ranges and
        directions limited them.

        Args:
            names: (n,) names of all applicants, for the salutation.
            most_reasons: largest number of principal reasons; all changes are listed in any case.

        Raises:
            ConfigurationError: no preprocessing, features missing in `describe`, or another number of names.
        """
        if self.table is None:
            raise ConfigurationError("letters: they need the features of people; pass preprocessing=Preprocessing(...)")
        if missing := [name for name in self.table.features if name not in self.table.describe]:
            raise ConfigurationError(
                f"letters: describe= of the preprocessing lacks {', '.join(missing)}; add them, such as"
                ' describe={"balance": "revolving balance"}; features that nobody can change are immutable='
            )
        n = len(self.x)
        if names is not None and (isinstance(names, str) or len(names) != n):
            got = repr(names) if isinstance(names, str) else f"{len(names)} names"
            raise ConfigurationError(f"names: expected one name for each of {n} queries, got {got}")
        protected, unlimited = _privacy_sentence(self.guarantee), self.advice.unlimited
        parts, letters = {part.name: part for part in self.table.parts}, []
        for row, (changes, sentences) in enumerate(zip(changes_of(self), self.reasons(), strict=True)):
            if self.favourable[row]:
                continue
            blocks = [REFUSED] if names is None else [f"Dear {names[row]},", REFUSED]
            principal = changes
            if not changes and unlimited is not None:
                principal = _row_changes(self, row, unlimited, unlimited)
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

    @property
    def changes(self) -> Any:
        """All changes, one per row, as a polars frame if the queries are one, else as a pandas frame, or without pandas
        as a dict of lists. `row` is the position of the query, `share` the share of its cost; `to` is rounded as in
        `reasons`."""
        rows = [
            (row, c.feature, c.before, c.after, c.unit, c.share)
            for row, changes in enumerate(changes_of(self))
            for c in changes
        ]
        names = ("row", "feature", "from", "to", "unit", "share")
        found = {name: [row[k] for row in rows] for k, name in enumerate(names)}
        if type(self.like).__module__.startswith("polars"):  # whose columns hold a single type
            texts = {k: [f"{v:.15g}" if isinstance(v, float) else str(v) for v in found[k]] for k in ("from", "to")}
            return type(self.like)(found | texts)
        try:
            import pandas
        except ImportError:
            return found
        return pandas.DataFrame(found)

    def required(self) -> Recourse:
        """This result, if every query has recourse.

        Raises:
            InfeasibleError: some have none; the error's `result` is this result.
        """
        if self.valid.all():
            return self
        rows = np.flatnonzero(~self.valid)
        certain = int(self.proven[rows].sum())
        known = f"proven for {'all' if certain == len(rows) else certain} of these" if certain else "not proven"
        raise InfeasibleError(
            f"{len(rows)} of {len(self)} queries have no recourse within the constraints ({rows_where(~self.valid)};"
            f' {known}); loosen the constraints, lower the target, or pass infeasible="mark" to get valid=False for'
            " these. The other answers are in .result",
            result=self,
            rows=rows,
        )


# --- sentences ------------------------------------------------------------------------------------------------------


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


def changes_of(answer: Recourse) -> list[tuple[Change, ...]]:
    """Changes of each query of a `Recourse`, by decreasing share of the cost; none if it is favourable or invalid."""
    rows = enumerate((answer.valid & ~answer.favourable).tolist())
    return [_row_changes(answer, row, answer.counterfactual, answer.advice.rounded) if has else () for row, has in rows]


def _row_changes(answer: Recourse, row: int, counterfactual: Floats, rounded: Floats) -> tuple[Change, ...]:
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


def _features(answer: Recourse) -> Sequence[Feature]:
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


def _reason(change: Change, part: Feature) -> str:
    """One principal reason; a number at an end of its public range is not called too low or high."""
    text = f"{change.description[:1].upper()}{change.description[1:]}: {_value_texts(change)[0]}"
    if change.kind == "category" or (change.kind == "numeric" and change.before in (part.low, part.high)):
        return f"{text}."
    return f"{text} (too {'low' if change.rises else 'high'})."


def _privacy_sentence(guarantee: Guarantee) -> str:
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
