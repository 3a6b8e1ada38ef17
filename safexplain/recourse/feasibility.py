"""Who has recourse, at what cost, and whether groups of people are treated alike.

`feasibility` asks for everybody at once whether those who were turned down can change the decision within the
constraints (Ustun, Spangher and Liu 2019, Actionable recourse in linear classification, arXiv 1809.06514),
`flipset` lists several ways for one person (the same), and `fairness` compares groups: the share that has
recourse and what it costs (group fairness of recourse, von Kuegelgen, Karimi, Bhatt, Valera, Weller and Schoelkopf
2022, arXiv 2010.06529; Gupta, Nokhiz, Roy and Venkatasubramanian 2019, arXiv 1909.03166).

The numbers are about the people in the frame, and no noise hides them: whoever publishes the audit of a frame publishes
that about these people, whatever the model promises about those whom it was trained on.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from safexplain._validate import check_number, readable, whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.recourse.cost import EUCLIDEAN
from safexplain.recourse.feature_names import column_names, training_columns
from safexplain.recourse.frames import columns_of, is_missing, kind_of, names_of, only, values_of
from safexplain.recourse.mechanisms.mechanism import DiverseAnswers, RecourseMechanism, diverse
from safexplain.recourse.mechanisms.metered import MeteredRecourse
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Floats, Recourse
from safexplain.recourse.search import search_recourse
from safexplain.verdict.stats import clopper_pearson

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Quantiles of the cost that are told."""

SMALL = 20
"""Groups with fewer people than this among those turned down are called small: little can be said of them."""

COMPARED = 10
"""People that a group must have for its mean cost, or its share, to be compared with another's."""

_DRAWS, _AT_ONCE = 1999, 2**20
"""Bootstrap samples, and numbers of them that are held at once."""

MISSING = "(missing)"
"""The group of those whose group is not known."""


@dataclass(frozen=True)
class Feasibility:
    """How many of those turned down have recourse, and at what cost; one group's, or everybody's.

    Args:
        group: its label; None: everybody.
        people: number of people asked about.
        turned_down: those whose decision was not favourable.
        with_recourse: those of them for whom a change within the constraints turns the decision.
        proven_without: those of them for whom it is proven that there is none; of the others none was found.
        interval: of the share with recourse among those turned down (Clopper and Pearson), at `confidence`, if the
            people were drawn from a population.
        costs: (quantile, cost) among those with recourse; empty where there are none.
        mean: cost among those with recourse; None where there are none.
        confidence: of the interval.
        groups: the same for each group.
    """

    group: str | None
    people: int
    turned_down: int
    with_recourse: int
    proven_without: int
    interval: tuple[float, float]
    costs: tuple[tuple[float, float], ...]
    mean: float | None
    confidence: float
    groups: tuple[Feasibility, ...] = ()

    @property
    def share(self) -> float | None:
        """With recourse among those turned down; None where nobody was."""
        return self.with_recourse / self.turned_down if self.turned_down else None

    @property
    def small(self) -> bool:
        """Whether too few were turned down to say much."""
        return self.turned_down < SMALL

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "share": self.share, "small": self.small, "groups": [g.to_dict() for g in self.groups]}

    def __str__(self) -> str:
        rows = [
            ("group", "people", "turned down", "recourse", f"{self.confidence:.0%} interval", "median cost", "90 %")
        ]
        for part in (self, *self.groups):
            costs = dict(part.costs)
            rows.append(
                (
                    ("everybody" if part.group is None else part.group) + (" *" if part.small else ""),
                    str(part.people),
                    str(part.turned_down),
                    _percent(part.share),
                    f"{part.interval[0]:.1%} to {part.interval[1]:.1%}",
                    _number(costs.get(0.5)),
                    _number(costs.get(0.9)),
                )
            )
        note = _small_note([part.group for part in self.groups if part.small] or ([None] if self.small else []))
        return _table(rows) + note


@dataclass(frozen=True)
class FlipItem:
    """One way to a favourable decision.

    Args:
        cost: of all its changes.
        changes: (feature, value now, value needed), in the person's units.
        proven: whether no cheaper way exists that leaves alone what the item has to leave alone.
    """

    cost: float
    changes: tuple[tuple[str, Any, Any], ...]
    proven: bool


@dataclass(frozen=True)
class Flipset:
    """Several ways to a favourable decision for one person, the cheapest first.

    Args:
        items: the ways; none where there is no recourse, or nothing to change.
        favourable: whether the decision is favourable already.
        frame: the changes, a row each, in columns item, cost, feature, now, needed: a frame of the kind that came
            (pandas, polars), otherwise a dict of lists.
    """

    items: tuple[FlipItem, ...]
    favourable: bool
    frame: Any

    def __len__(self) -> int:
        return len(self.items)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        items = [{"cost": i.cost, "changes": [list(c) for c in i.changes], "proven": i.proven} for i in self.items]
        return {"favourable": self.favourable, "items": items}

    def __str__(self) -> str:
        if self.favourable:
            return "the decision is favourable already"
        if not self.items:
            return "no recourse within the constraints"
        rows = [("", "cost", "feature", "now", "needed")]
        for number, item in enumerate(self.items, 1):
            for k, (feature, now, needed) in enumerate(item.changes):
                first = (str(number), _number(item.cost)) if k == 0 else ("", "")
                rows.append((*first, feature, _plain(now), _outward(now, needed)))
        return _table(rows)


@dataclass(frozen=True)
class GroupCosts:
    """What recourse costs in one group.

    Args:
        feasibility: counts, share and quantiles.
        mean_interval: of the mean cost, bootstrap-t (Efron and Tibshirani 1993, An introduction to the bootstrap,
            section 12.5); None with fewer than 10 people, or where all costs are the same.
        median_interval: of the median, exact for any distribution, from order statistics (David and Nagaraja 2003,
            Order statistics, section 7.1); None where there are too few people for one.
    """

    feasibility: Feasibility
    mean_interval: tuple[float, float] | None
    median_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Comparison:
    """Two groups, by one measure.

    Args:
        measure: "share with recourse" or "mean cost".
        groups: their labels, the one with the larger value first.
        difference: how much larger it is.
        p_value: probability of a difference as clear as this one, in any of the comparisons, if groups were alike.
    """

    measure: str
    groups: tuple[str, str]
    difference: float
    p_value: float


@dataclass(frozen=True)
class Fairness:
    """Recourse by group, and whether groups differ.

    Args:
        groups: each group's recourse.
        comparisons: of all pairs of groups by both measures, the clearest difference first.
        confidence: of intervals; differences are called found at 1 - confidence.
        permutations: number of them.
    """

    groups: tuple[GroupCosts, ...]
    comparisons: tuple[Comparison, ...]
    confidence: float
    permutations: int

    @property
    def p_value(self) -> float | None:
        """Smallest corrected p-value; None where no two groups could be compared."""
        return min((c.p_value for c in self.comparisons), default=None)

    @property
    def differs(self) -> bool:
        """Whether a difference between groups was found. Not found is not the same as not there."""
        return self.p_value is not None and self.p_value <= 1 - self.confidence

    def largest(self, measure: str) -> Comparison | None:
        """The largest difference by "share with recourse" or "mean cost"; None where no two groups were compared.

        Raises:
            ConfigurationError: another measure.
        """
        if measure not in MEASURES:
            raise ConfigurationError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
        return max((c for c in self.comparisons if c.measure == measure), key=lambda c: c.difference, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        groups = [
            {**g.feasibility.to_dict(), "mean_interval": g.mean_interval, "median_interval": g.median_interval}
            for g in self.groups
        ]
        plain = {"groups": groups, "comparisons": [asdict(c) for c in self.comparisons], "p_value": self.p_value}
        return {**plain, "differs": self.differs, "confidence": self.confidence, "permutations": self.permutations}

    def __str__(self) -> str:
        rows = [("group", "people", "turned down", "recourse", "mean cost", "interval", "median", "interval")]
        for one in self.groups:
            part = one.feasibility
            rows.append(
                (
                    f"{part.group}{' *' if part.small else ''}",
                    str(part.people),
                    str(part.turned_down),
                    _percent(part.share),
                    _number(part.mean),
                    _interval(one.mean_interval),
                    _number(dict(part.costs).get(0.5)),
                    _interval(one.median_interval),
                )
            )
        lines = [_table(rows) + _small_note([g.feasibility.group for g in self.groups if g.feasibility.small])]
        for measure in MEASURES:
            found = self.largest(measure)
            if found is None:
                lines.append(f"{measure}: no two groups with {COMPARED} people to compare")
                continue
            size = f"{100 * found.difference:.1f} points" if measure == SHARE else _number(found.difference)
            lines.append(
                f"largest difference in {measure}: {size} ({' over '.join(found.groups)}), p = {found.p_value:.2g}"
            )
        return "\n".join(lines)


SHARE, COST = MEASURES = ("share with recourse", "mean cost")


def feasibility(
    source: Any,
    frame: Any = None,
    groups: Any = None,
    *,
    principal: str | None = None,
    confidence: float = 0.95,
    **options: Any,
) -> Feasibility:
    """How many of those whom a model turns down have recourse within the constraints, and at what cost.

    Args:
        source: a fitted mechanism; a `MeteredRecourse`, which charges each answer; any model that `search_recourse`
            takes; or an answer, a `Recourse`, and then no frame.
        frame: the people, as `source` takes them.
        groups: a label for each person, (n,), or the name of a column of the frame.
        principal: who is charged, for a `MeteredRecourse`.
        confidence: of the intervals.
        options: of `search_recourse`, such as `constraints` and `cost`, where the source is a model.

    Raises:
        RefusedError: a mechanism that pays by answer, without a ledger: what it would cost is said.
        InputError: rows that are not answered, or groups of another length.
        ConfigurationError: options that the source does not have, or a confidence out of range.
    """
    check_number("confidence", confidence, above=0, below=1)
    labels = None
    if groups is not None and not (isinstance(groups, str) and isinstance(source, Recourse)):
        frame, groups = _split_off(source, frame, groups)
    found = _answers(source, frame, principal, options)
    if groups is not None:
        labels = _labels(found, groups)
    overall = _feasibility(found, None, confidence, None)
    if labels is None:
        return overall
    parts = tuple(_feasibility(found, labels == label, confidence, label) for label in _distinct(labels))
    return Feasibility(**{**vars(overall), "groups": parts})


def flipset(source: Any, row: Any, items: int = 5, *, principal: str | None = None, **options: Any) -> Flipset:
    """Several ways to a favourable decision for one person, the cheapest first.

    Each item leaves alone what was the largest share of the cost of every earlier one, so that they differ in what they
    change (`diverse`); Ustun's flipsets list the best combinations of few features, which `most_changes` gives.

    Args:
        source: as in `feasibility`, but no answer.
        row: one person, as the source takes people.
        items: most ways to list.
        principal: who is charged, for a `MeteredRecourse`.
        options: as in `feasibility`.

    Raises:
        RefusedError: as `feasibility`.
        InputError: not exactly one person, or a row that is not answered.
        ConfigurationError: fewer than one item.
    """
    wanted = whole_number("items", items, 1)
    if isinstance(source, Recourse):
        raise ConfigurationTypeError("source: expected a mechanism or a model; an answer holds one way only")
    found = _several(source, row, wanted, principal, options)
    if len(found[0]) != 1:
        raise InputError(f"row: expected one person, got {len(found[0])}; call flipset for each")
    first = found[0]
    if first.favourable[0]:
        return Flipset((), True, _as_frame([], row))
    usable = [one for one in found if one.valid[0]]
    seen: dict[bytes, Recourse] = {one.counterfactual.tobytes(): one for one in reversed(usable)}
    ordered = sorted(seen.values(), key=lambda one: float(one.distance[0]))
    made = tuple(FlipItem(float(one.distance[0]), _changes(one, row), bool(one.proven[0])) for one in ordered)
    return Flipset(made, False, _as_frame(list(made), row))


def fairness(
    answer: Recourse,
    groups: Any,
    *,
    confidence: float = 0.95,
    permutations: int = 1999,
    seed: int = 0,
) -> Fairness:
    """Whether groups of those turned down have recourse equally often, and at the same cost.

    The test. If groups are treated alike, labels of groups may be exchanged among those turned down. For each pair of
    groups there are two differences: of the shares with recourse (in units of the standard error of the pooled share),
    and of the mean costs among those with recourse (in units of Welch's standard error, which keeps the test right for
    means also where groups differ in spread: Chung and Romano 2013, Annals of Statistics 41). The corrected
    p-value of a difference is the share of permutations in which the largest of *all* differences is at least as large
    (Westfall and Young 1993, Resampling-based multiple testing, max-T), so that groups that are alike are
    told apart, by anything, with probability at most 1 - confidence, however many there are.

    A difference says that groups are treated differently, not why: people who differ in what the model may look at
    differ in cost. Costs are compared among those with recourse, so read them beside the shares. Groups with fewer than
    10 people are described and not compared.

    Args:
        answer: of a mechanism or a search, with infeasible="mark".
        groups: a label for each person, (n,), which need not be a feature; or the name of a feature.
        confidence: of intervals, for each group by itself; differences are called found at 1 - confidence.
        permutations: how many; the smallest p-value is one over this and one more.
        seed: of permutations and bootstrap.

    Raises:
        ConfigurationTypeError: not an answer.
        InputError: groups of another length, fewer than two of them, or a name that is no feature.
        ConfigurationError: a number out of range.
    """
    if not isinstance(answer, Recourse):
        raise ConfigurationTypeError(
            'answer: expected a Recourse, such as mechanism.explain(frame, infeasible="mark") returns, got'
            f" {type(answer).__name__}"
        )
    check_number("confidence", confidence, above=0, below=1)
    count, start = whole_number("permutations", permutations, 99), whole_number("seed", seed, 0)
    labels = _labels(answer, groups)
    names = _distinct(labels)
    if len(names) < 2:
        raise InputError(f"groups: expected at least two groups, got {', '.join(names) or 'none'}")
    rng = np.random.default_rng(start)
    parts = []
    for name in names:
        part = _feasibility(answer, labels == name, confidence, name)
        costs = answer.distance[(labels == name) & ~answer.favourable & answer.valid]
        parts.append(GroupCosts(part, _mean_interval(costs, confidence, rng), _median_interval(costs, confidence)))
    down = ~answer.favourable
    code = np.array([names.index(label) for label in labels[down].tolist()], dtype=np.intp)
    compared = _compared(code, len(names), answer.valid[down], answer.distance[down], count, rng)
    comparisons = []
    for measure, one, other, difference, p_value in compared:
        larger = (one, other) if difference >= 0 else (other, one)
        comparisons.append(Comparison(measure, (names[larger[0]], names[larger[1]]), abs(difference), p_value))
    comparisons.sort(key=lambda c: c.p_value)
    return Fairness(tuple(parts), tuple(comparisons), float(confidence), count)


def _answers(source: Any, frame: Any, principal: str | None, options: dict[str, Any]) -> Recourse:
    """Answers to everybody, those without recourse marked."""
    if isinstance(source, Recourse):
        if frame is not None or options or principal is not None:
            raise ConfigurationError("source: an answer holds its people and options already; pass the answer alone")
        return source
    if frame is None:
        raise InputError("frame: expected the people to ask about, got None")
    _check_source(source, frame, principal, options)
    if isinstance(source, MeteredRecourse):
        return source.explain(frame, principal=principal, infeasible="mark")
    if isinstance(source, RecourseMechanism):
        return source.explain(frame, infeasible="mark")
    return search_recourse(source, frame, **options)


def _several(source: Any, row: Any, items: int, principal: str | None, options: dict[str, Any]) -> Sequence[Recourse]:
    """Answers that differ, to one person."""
    _check_source(source, row, principal, options)
    if isinstance(source, MeteredRecourse):
        if isinstance(source.mechanism, DiverseAnswers):
            return source.explain_diverse(row, items, principal=principal)
        return (source.explain(row, principal=principal, infeasible="mark"),)
    if isinstance(source, DiverseAnswers):
        return source.explain_diverse(row, items)
    if isinstance(source, RecourseMechanism):
        return (source.explain(row, infeasible="mark"),)
    first = search_recourse(source, row, **options)
    cost, rules = options.get("cost", EUCLIDEAN), options.get("constraints")
    if isinstance(first.table, Preprocessing):
        cost, rules = first.table.cost(cost), first.table.constraints(rules)
    own = options.pop("frozen", np.zeros(first.x.shape, dtype=bool))

    def solve(frozen: NDArray[np.bool_]) -> Recourse:
        return search_recourse(source, row, frozen=frozen | own, **options) if frozen.any() else first

    return diverse(solve, first.x, items, cost=cost, constraints=rules)


def _check_source(source: Any, frame: Any, principal: str | None, options: dict[str, Any]) -> None:
    """Refuse answers that would be paid for unseen, and options that nobody would read."""
    mechanism = isinstance(source, MeteredRecourse | RecourseMechanism)
    if mechanism and options:
        raise ConfigurationError(f"{', '.join(options)}: the mechanism has its own; only models take these here")
    if principal is not None and not isinstance(source, MeteredRecourse):
        raise ConfigurationError("principal: only a MeteredRecourse charges anybody")
    if isinstance(source, RecourseMechanism) and source.per == "answer":
        cost = source.release(frame)
        raise RefusedError(
            f"{type(source).__name__} pays by answer: {len(cost)} answers would cost an epsilon of {cost.sum():g}, seen"
            " by no ledger. Pass MeteredRecourse(mechanism, ledger) and principal=, or audit a mechanism with a private"
            " model, whose answers cost nothing more"
        )


def _split_off(source: Any, frame: Any, groups: Any) -> tuple[Any, Any]:
    """The frame without a column of groups that is no feature, and the groups."""
    if not isinstance(groups, str):
        return frame, groups
    kind, names = kind_of(frame), names_of(frame)
    if names is None or kind not in ("pandas", "polars", "lists", "records"):
        raise InputError(f"groups: {groups!r} names a column, and the people come without names; pass the labels, (n,)")
    if groups not in names:
        raise InputError(f"groups: no column {groups!r} in the frame; it has {', '.join(names)}")
    column = [row[groups] for row in frame] if kind == "records" else frame[groups]
    known = _features(source)
    if known is None or groups in known:
        return frame, column
    return only(frame, [name for name in names if name != groups]), column


def _features(source: Any) -> tuple[str, ...] | None:
    """Names of the features that a source asks for; None: not known."""
    source = source.mechanism if isinstance(source, MeteredRecourse) else source
    if getattr(source, "preprocessing", None) is not None:
        return tuple(source.preprocessing.features)
    if isinstance(source, RecourseMechanism):
        named = source._get("columns") or (source.constraints.features if source.constraints else None)
        return named if isinstance(named, tuple) else None
    return training_columns(source)


def _labels(answer: Recourse, groups: Any) -> NDArray[np.str_]:
    """(n,) the group of each person, as text."""
    if isinstance(groups, str):
        table = answer.table if isinstance(answer.table, Preprocessing) else None
        if table is None or groups not in table.features:
            known = "it has no names" if table is None else f"features: {', '.join(table.features)}"
            raise InputError(f"groups: no feature {groups!r} in the answer ({known}); pass the labels, (n,)")
        groups = table.frame(answer.x)[groups]
    values = values_of(readable(groups, "groups"))
    if any(isinstance(value, list | tuple) for value in values):
        raise InputError("groups: expected one label for each person, got several columns")
    if len(values) != len(answer):
        raise InputError(f"groups: expected a label for each of {len(answer)} people, got {len(values)}")
    return np.array([MISSING if is_missing(value) else str(value) for value in values], dtype=np.str_)


def _distinct(labels: NDArray[np.str_]) -> list[str]:
    """The groups, those whose label is missing last."""
    found = sorted(set(labels.tolist()))
    return [name for name in found if name != MISSING] + [name for name in found if name == MISSING]


def _feasibility(answer: Recourse, of: NDArray[np.bool_] | None, confidence: float, group: str | None) -> Feasibility:
    own = np.ones(len(answer), dtype=bool) if of is None else of
    down = own & ~answer.favourable
    found = down & answer.valid
    costs = answer.distance[found]
    interval = clopper_pearson(int(found.sum()), int(down.sum()), confidence) if down.any() else (0.0, 1.0)
    return Feasibility(
        group=group,
        people=int(own.sum()),
        turned_down=int(down.sum()),
        with_recourse=int(found.sum()),
        proven_without=int((down & ~answer.valid & answer.proven).sum()),
        interval=interval,
        costs=tuple(zip(QUANTILES, np.quantile(costs, QUANTILES).tolist(), strict=True)) if len(costs) else (),
        mean=float(costs.mean()) if len(costs) else None,
        confidence=float(confidence),
    )


def _mean_interval(costs: Floats, confidence: float, rng: np.random.Generator) -> tuple[float, float] | None:
    """Bootstrap-t interval of the mean: quantiles of (resampled mean - mean) / resampled standard error."""
    n, error = len(costs), float(costs.std(ddof=1)) / math.sqrt(max(len(costs), 1)) if len(costs) > 1 else 0.0
    if n < COMPARED or error == 0:
        return None
    mean, draws = float(costs.mean()), []
    for count in np.diff(np.append(np.arange(0, _DRAWS, max(1, _AT_ONCE // n)), _DRAWS)):
        again = costs[rng.integers(0, n, (count, n))]
        spread = again.std(axis=1, ddof=1) / math.sqrt(n)
        draws.append(((again.mean(axis=1) - mean) / np.where(spread > 0, spread, np.inf))[spread > 0])
    low, high = np.quantile(np.concatenate(draws), [(1 - confidence) / 2, (1 + confidence) / 2])
    return mean - float(high) * error, mean - float(low) * error


def _median_interval(costs: Floats, confidence: float) -> tuple[float, float] | None:
    """The k-th smallest and the k-th largest, k such that fewer than k of n fall below the median too rarely."""
    n, ordered = len(costs), np.sort(costs)
    k = int(stats.binom.ppf((1 - confidence) / 2, n, 0.5)) if n else 0
    return (float(ordered[k - 1]), float(ordered[n - k])) if k > 0 else None


def _compared(
    code: NDArray[np.intp],
    groups: int,
    valid: NDArray[np.bool_],
    distance: Floats,
    permutations: int,
    rng: np.random.Generator,
) -> list[tuple[str, int, int, float, float]]:
    """(measure, one, other, difference, corrected p-value) of each pair of groups among those turned down."""
    found, costs = valid.astype(np.float64), np.where(valid, distance, 0.0)
    if valid.any():
        costs = np.where(valid, distance - distance[valid].mean(), 0.0)  # keeps digits of the variances
    size, reached = np.bincount(code, minlength=groups), np.bincount(code, found, groups)
    of_share = [pair for pair in combinations(range(groups), 2) if min(size[list(pair)]) >= COMPARED]
    of_cost = [pair for pair in combinations(range(groups), 2) if min(reached[list(pair)]) >= COMPARED]
    if not of_share:
        return []
    first, second = np.array(of_share).T
    one, other = np.array(of_cost).T if of_cost else np.empty((2, 0), dtype=np.intp)
    share = float(found.mean())
    share_error = np.sqrt(share * (1 - share) * (1 / size[first] + 1 / size[second]))
    floor = 1e-12 * float((costs**2).mean())

    def differences(code: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Differences of each pair, shares first, and these in units of their standard errors."""
        reached = np.bincount(code, found, groups)
        total, squares = np.bincount(code, costs, groups), np.bincount(code, costs**2, groups)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares, means = reached / size, total / reached
            variance = np.maximum((squares - total * means) / (reached - 1), floor) / reached
            raw = np.concatenate([shares[first] - shares[second], means[one] - means[other]])
            units = raw / np.concatenate([share_error, np.sqrt(variance[one] + variance[other])])
        return raw, np.where(np.isfinite(units), np.abs(units), 0.0)

    raw, units = differences(code)
    reached_by = np.zeros(len(raw))
    for _ in range(permutations):
        largest = differences(rng.permutation(code))[1].max(initial=0.0)
        reached_by += largest >= units * (1 - 1e-9)
    p_values = (1 + reached_by) / (1 + permutations)
    pairs = [(SHARE, *pair) for pair in of_share] + [(COST, *pair) for pair in of_cost]
    return [(*pair, float(d), float(p)) for pair, d, p in zip(pairs, raw, p_values, strict=True)]


def _changes(one: Recourse, row: Any) -> tuple[tuple[str, Any, Any], ...]:
    """(feature, now, needed) of an answer to one person, in the person's units."""
    moved = np.flatnonzero(one.change[0])
    if not isinstance(one.table, Preprocessing):
        names = column_names(row)
        return tuple(
            (f"column {i}" if names is None else names[i], float(one.x[0, i]), float(one.counterfactual[0, i]))
            for i in moved
        )
    now, needed = (
        columns_of(one.table.frame(rows, like=row if kind_of(row) else None), one.table.features)[0]
        for rows in (one.x, one.counterfactual)
    )
    features = dict.fromkeys(one.table.features[k] for k in one.table.feature_of[moved])
    return tuple((name, values_of(now[name])[0], values_of(needed[name])[0]) for name in features)


def _as_frame(items: list[FlipItem], row: Any) -> Any:
    """The changes of all items, a row each, as a frame of the kind of `row`."""
    rows = [(k, item.cost, *change) for k, item in enumerate(items, 1) for change in item.changes]
    names = ("item", "cost", "feature", "now", "needed")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    kind = kind_of(row)
    if kind in ("pandas", "series"):
        return sys.modules["pandas"].DataFrame(columns)
    if kind == "polars":
        mixed = {name: [_plain(value) for value in columns[name]] for name in ("now", "needed")}  # one type a column
        return sys.modules["polars"].DataFrame({**columns, **mixed})
    return columns


def _plain(value: Any) -> str:
    return _number(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _outward(now: Any, needed: Any) -> str:
    """A value that is needed, in four digits, rounded so that it goes at least as far."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (now, needed)) or not needed:
        return _plain(needed)
    unit = 10.0 ** (math.floor(math.log10(abs(needed))) - 3)
    steps = needed / unit
    whole = round(steps) if abs(steps - round(steps)) < 1e-9 else (math.ceil if needed > now else math.floor)(steps)
    return _number(whole * unit)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _interval(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{_number(ends[0])} to {_number(ends[1])}"


def _small_note(groups: list[str | None]) -> str:
    if not groups:
        return ""
    return f"\n* fewer than {SMALL} turned down: little can be said"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text, the first one a heading, in columns; the first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(t.ljust(w) if i == 0 else t.rjust(w) for i, (t, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
