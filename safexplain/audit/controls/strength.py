"""Whether the attacks were as strong as they can be. Where these fail, nothing is certified, but a leak that was found
stands.

    references           whether reference models with and without the scored examples are there
    recipe               whether what the target releases looks like what the reference models release
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy import stats as distributions

from safexplain.audit.controls.differences import RISK, one_of_each
from safexplain.audit.signals import Signals, partners
from safexplain.verdict.evidence import WHOLE_MAP, Control, split_level
from safexplain.verdict.thresholds import weights_of

FEWEST_BOTH_SIDES = 0.8
"""Share of the scored examples that must have reference models with and without them; four references give 7/8."""

FEWEST_TO_COMPARE = 4
"""Reference models below which their recipe is not compared with the target's."""

FEWEST_EXAMPLES = 20
"""Members and non-members of the target below which nothing is compared."""

SHARES = {"effect of all signals": 0.45, "effect": 0.1, "level": 0.2, "spread": 0.15}
"""How `RISK` is divided among the kinds of comparison, and within a kind among the signals (Bonferroni's correction). A
tenth is left, as numbers of models are only nearly normal."""

MATTERS = {"effect of all signals": 0.1, "effect": 0.1, "level": 0.1, "spread": 0.2}
"""Smallest difference that counts, however sure it is: of effects, a share of the references'; of levels, standard
deviations between models; of spreads, the logarithm of a ratio of variances. Attacks hardly lose by smaller ones."""

PREDICTED = ("label", "loss", "margin", "kept", "shares", "prediction")
"""Signals that all models are asked for alike at every level of patience. What reference models explain at levels above
1 they explain less often and without noise, so that it is no draw of what the target does."""

MOST_NUMBERS = 10**8
"""Numbers of whole maps that are looked at; of more, a part of the examples and of the features."""

PRIVACY = "differential privacy"
"""Entry of the signals' meta data: whether the target and its references were trained so, as far as anybody says."""

Floats = NDArray[np.float64]
Compared = dict[tuple[str, str], Floats]
"""Kind of number and side, members or non-members -> (models,) numbers."""


def reference_coverage(
    signals: Signals, references: Sequence[int] | NDArray[np.int64], scored: NDArray[np.bool_]
) -> Control:
    """Whether most (n,) scored examples have reference models (rows of the signals) on both sides; groups count once.

    Likelihood ratios say nothing about others.
    """
    if len(references) < 2:
        return Control("references", None, "there are no reference models", {})
    inside = signals.membership[np.asarray(references)][:, scored]
    groups = None if signals.groups is None else signals.groups[scored].astype(np.int64)
    weights = weights_of(np.ones(inside.shape[1], dtype=bool), groups)
    share = float(np.average(inside.any(0) & ~inside.all(0), weights=weights))
    says = f"{share:.0%} of the scored examples have reference models both with and without them"
    return Control("references", share < FEWEST_BOTH_SIDES, says, {"share": share})


def recipe_fit(
    signals: Signals,
    target: int,
    references: Sequence[int] | NDArray[np.int64],
    scored: NDArray[np.bool_],
    names: Sequence[str] | None = None,
) -> Control:
    """Whether the target's signals look like those of reference models, trained by the same recipe as they should be.

    Trained alike, the target is one more draw of what the references are. Of every model, the others (of pairs of
    references, one each) are asked what they expect of it, and it is compared with that, the target with the
    references' comparison among themselves:

        level     how far its numbers lie from those of the others with the same membership, of members and non-members
        spread    how much they scatter around them, of members and non-members
        effect    how much membership changes them, in units of what it changes in the others: the slope of a regression
                  on the others' difference between members and non-members, example by example; for each signal, and
                  once for all together

    Each is one number a model, and the target's fails where it lies further from the references' than a t-test allows,
    at a risk of `RISK` for all, and by more than `MATTERS`. A leak found is a leak; but a certificate would rest on
    attackers who know less than they may. Numbers enter by their ranks among the models, example by example (van der
    Waerden's normal scores), so that heavy tails and scales do not matter. Of whole maps and vectors, the length, the
    mean entry and the log likelihood ratio of membership are compared.

    `target` and `references` are rows of the signals, `scored` is (n,) bool, and `names` are of the signals that are
    judged, as the rows of a suite have them ("l1+mean", "attributions:sign"); None: all. Labels and losses are always
    compared, which tell recipes apart best; explanations of levels above 1 never, see `PREDICTED`.
    """
    name, models = "recipe", np.array([target, *references], dtype=np.int64)
    if len(models) <= FEWEST_TO_COMPARE:
        return Control(name, None, "with few reference models, recipes cannot be compared", {})
    at = np.flatnonzero(scored)
    groups = None if signals.groups is None else signals.groups[at]
    at = at[one_of_each(groups, signals.membership[target, at], seed=0)]
    member = signals.membership[np.ix_(models, at)]
    if min(member[0].sum(), (~member[0]).sum()) < FEWEST_EXAMPLES:
        return Control(name, None, "too few examples to compare recipes on", {})
    parted: dict[str, list[Compared]] = {}
    for rows in _independent(member):
        for signal, values, part in _columns(signals, names, models[rows], at, member[rows]):
            if (values != values[:1]).any():
                one = _compared(_normal_scores(values), member[np.ix_(rows, np.arange(len(at))[part])])
                parted.setdefault(signal, []).append(one)
    found = {signal: _together(parts) for signal, parts in parted.items()}
    if not found:
        return Control(name, None, "there is no judged signal to compare recipes by", {})
    tests = list(_tests(found))
    worst = max(tests, key=lambda t: (t.failed, t.of_tolerated))
    failed = bool(worst.failed)
    ratio = next(t.ratio for t in tests if t.kind == "effect of all signals")
    says = "the target releases what they release"
    if failed:
        why = _privacy_differs(signals.meta.get(PRIVACY), tests)
        says = f"{worst.says}: they do not repeat its recipe{f'. {why}' if why else ''}"
    return Control(
        name,
        failed,
        f"compared with the reference models, {says}",
        {"effect": ratio, "of_tolerated": worst.of_tolerated, "signals": float(len(found))},
    )


def _privacy_differs(said: Any, tests: Sequence[_Test]) -> str:
    """What to do where the target, and not its references, was trained with differential privacy, or the reverse.

    `said` tells of "target" and "references" whether they were, as far as anybody says. With differential privacy a
    model tells less of its members than without, and fits them worse.
    """
    target, references = (said.get(n) if isinstance(said, Mapping) else None for n in ("target", "references"))
    effect = next(t for t in tests if t.kind == "effect of all signals")
    losses = [t for t in tests if t.kind == "level" and t.signal == "loss" and t.side == "members" and t.failed]
    less = effect.ratio < 1 and (effect.failed or any(t.by > 0 for t in losses))
    more = effect.ratio > 1 and (effect.failed or any(t.by < 0 for t in losses))
    if target and references is False:
        return (
            "The target was trained with differential privacy, as its statement says, and its references were not: add"
            " [dp] to the recipe, or give --privacy"
        )
    if less and not references:
        return (
            "The target tells less of its members than they do, as after training with differential privacy: if it was"
            " trained so, and its references were not, add [dp] to the recipe, or give --privacy"
        )
    if more and references and not target:
        return (
            "The references were trained with differential privacy, and the target tells more of its members, as if it"
            " was not: leave [dp] out of the recipe, or correct it"
        )
    return ""


@dataclass(frozen=True)
class _Test:
    """The target against the references in one number a model."""

    kind: str
    says: str
    failed: bool
    of_tolerated: float  # how far it lies from them, in units of what is tolerated
    ratio: float  # to their mean
    by: float  # how much it lies above their mean
    signal: str
    side: str  # members or non-members


def _compared(a: Floats, member: NDArray[np.bool_]) -> Compared:
    """(models, examples) numbers of one signal on one scale, each model's compared with what all others expect.

    The ratio of "covariance" and "variance", sums over the examples of the expected effect with what is there, and of
    its square, is the slope of "effect". Of each side, "level" is the mean distance, and "spread" the logarithm of the
    mean squared one. All are (models,).
    """
    one = member.astype(np.float64)
    sides = []
    for side in (one, 1 - one):
        others, total = side.sum(0) - side, (a * side).sum(0) - a * side
        sides.append((others, total / np.maximum(others, 1)))
    (n1, mean1), (n0, mean0) = sides
    known = (n1 > 0) & (n0 > 0)
    gap = np.where(known, mean1 - mean0, 0.0)
    residual = a - np.where(member, (a * one).sum(0), (a * (1 - one)).sum(0)) / np.maximum(
        np.where(member, one.sum(0), (1 - one).sum(0)), 1
    )
    # what one example's gap says is shrunk towards the mean of all, as far as it is noise (empirical Bayes)
    within = (residual**2).sum() / max((len(a) - 2) * a.shape[1], 1)
    noise = float((within * (1 / np.maximum(n1, 1) + 1 / np.maximum(n0, 1)))[known].mean()) if known.any() else 0.0
    mean, variance = (float(gap[known].mean()), float(gap[known].var())) if known.any() else (0.0, 0.0)
    trust = max(0.0, 1 - noise / variance) if variance > 0 else 0.0
    expected = (one - 0.5) * np.where(known, mean + trust * (gap - mean), 0.0)
    distance = a - (mean1 + mean0) / 2
    centred, regressor = (
        np.where(known, v - (v * known).sum(1, keepdims=True) / np.maximum(known.sum(1), 1)[:, None], 0.0)
        for v in (distance, expected)
    )
    found = {("covariance", ""): (centred * regressor).sum(1), ("variance", ""): (regressor**2).sum(1)}
    for who, on in (("members", member & known), ("non-members", ~member & known)):
        many = np.maximum(on.sum(1), 1)
        found["level", who] = ((distance - expected) * on).sum(1) / many
        found["spread", who] = np.log(((distance - expected) ** 2 * on).sum(1) / many + 1e-12)
    return found


def _together(parts: Sequence[Compared]) -> Compared:
    """Of independent sets of references: the target's mean over the sets, and all references."""
    return {
        what: np.concatenate([[np.mean([part[what][0] for part in parts])], *(part[what][1:] for part in parts)])
        for what in parts[0]
    }


def _independent(member: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Rows of the target, the first, with one reference of each pair, and with the others (`partners`).

    Within a set all models are alike: no membership follows from the others', as it does within a pair.
    """
    partner, rows = partners(member), np.arange(len(member))
    second = (partner > 0) & (partner < rows)
    for chosen in (~second, second) if second.any() else (~second,):
        yield np.append(0, rows[1:][chosen[1:]])


def _tests(found: Mapping[str, Compared]) -> Iterator[_Test]:
    """Every comparison, with its share of the risk."""
    slopes = [(c["covariance", ""], c["variance", ""]) for c in found.values()]
    together = sum(c for c, _ in slopes) / np.maximum(sum(v for _, v in slopes), 1e-12)
    yield _test("effect of all signals", "membership changes what the target releases", together, 1)
    for (signal, compared), (covariance, variance) in zip(found.items(), slopes, strict=True):
        effect = covariance / np.maximum(variance, 1e-12)
        yield _test("effect", f"membership changes the target's {signal}", effect, len(found))
        for side in ("members", "non-members"):
            what, both = f"the {signal} of the target's {side}", 2 * len(found)
            yield _test("level", f"{what} lies", compared["level", side], both, signal, side)
            yield _test("spread", f"{what} scatters", compared["spread", side], both, signal, side)


def _test(kind: str, what: str, numbers: Floats, tests: int, signal: str = "", side: str = "") -> _Test:
    """The first number against the rest, by Student's t for one more draw of a normal distribution."""
    mine, theirs = float(numbers[0]), numbers[1:]
    centre, by = float(theirs.mean()), float(mine - theirs.mean())
    spread = float(theirs.std(ddof=1) * np.sqrt(1 + 1 / len(theirs)))
    reach = float(distributions.t.isf(RISK * SHARES[kind] / tests / 2, len(theirs) - 1)) * spread
    tolerated = max(reach, MATTERS[kind] * (abs(centre) if "effect" in kind else 1.0), 1e-9)
    ratio = mine / centre if abs(centre) > 1e-9 else 1.0
    if kind == "spread":
        ratio = float(np.exp(by / 2))
    says = f"{what} {ratio:.2g} times as much"
    if kind == "level":
        says = f"{what} {abs(by):.2g} standard deviations {'above' if by > 0 else 'below'} what they release"
    return _Test(kind, says, abs(by) > tolerated, abs(by) / tolerated, ratio, by, signal, side)


def _normal_scores(values: Floats) -> Floats:
    """(models, examples): each example's numbers by their rank among the models; ties share their ranks."""
    ranks = distributions.rankdata(values, axis=0)
    scores: Floats = special.ndtri((ranks - 0.5) / len(values))
    return scores


def _columns(
    signals: Signals,
    names: Sequence[str] | None,
    models: NDArray[np.int64],
    at: NDArray[np.int64],
    member: NDArray[np.bool_],
) -> Iterator[tuple[str, Floats, slice]]:
    """Name, numbers (models, examples) and which of the examples, of everything that is compared."""
    wanted = [*signals.values, WHOLE_MAP]
    if names is not None:
        wanted = [part.partition(":")[0] for signal in names for part in signal.split("+")]
        wanted += [name for name in signals.values if split_level(name)[0] in PREDICTED]
    for name in dict.fromkeys(wanted):
        plain, level = split_level(name)
        values: Any = signals.attributions if name == WHOLE_MAP else signals.values.get(name)
        if values is None or (level > 1 and plain not in PREDICTED):
            continue
        if values.ndim == 2:
            numbers = values[np.ix_(models, at)].astype(np.float64)
            if plain == "label":
                numbers = (numbers == distributions.mode(numbers, axis=0).mode).astype(np.float64)
            yield name, numbers, slice(None)
            continue
        d = values.shape[2]
        every = max(1, -(-d * FEWEST_EXAMPLES * 10 * len(models) // MOST_NUMBERS))  # features, where maps are huge
        part = slice(0, max(1, MOST_NUMBERS // (len(models) * -(-d // every))))
        maps = np.stack([values[model, at[part]][:, ::every].astype(np.float32) for model in models])
        length = np.sqrt(np.einsum("mnd,mnd->mn", maps, maps, dtype=np.float64))
        yield f"length of {name}", length, part
        yield f"mean entry of {name}", maps.mean(2, dtype=np.float64) / np.maximum(length, 1e-30), part
        yield f"likelihood ratio of {name}", _map_ratio(maps, member[:, part]), part


def _map_ratio(maps: NDArray[np.float32], member: NDArray[np.bool_]) -> Floats:
    """(models, examples) log likelihood ratio of membership by all other models, features taken as independent."""
    n1, n0 = member.sum(0), (~member).sum(0)
    sum1, sum0 = np.zeros(maps.shape[1:]), np.zeros(maps.shape[1:])
    for inside, a in zip(member[..., None], maps, strict=True):
        sum1 += np.where(inside, a, 0)
        sum0 += np.where(inside, 0, a)
    square = np.einsum("mnd,mnd->nd", maps, maps, dtype=np.float64)
    both = sum1**2 / np.maximum(n1, 1)[:, None] + sum0**2 / np.maximum(n0, 1)[:, None]
    variance = np.maximum((square - both) / max(len(maps) - 2, 1), 0)
    variance += 1e-3 * variance.mean(1, keepdims=True) + 1e-30
    ratios = np.zeros(member.shape)
    for m, one in enumerate(maps):
        a = one.astype(np.float64)
        inside = member[m][:, None]
        mean1 = (sum1 - np.where(inside, a, 0)) / np.maximum(n1[:, None] - inside, 1)
        mean0 = (sum0 - np.where(inside, 0, a)) / np.maximum(n0[:, None] - ~inside, 1)
        ratios[m] = (((a - mean0) ** 2 - (a - mean1) ** 2) / (2 * variance)).sum(1)
    return ratios
