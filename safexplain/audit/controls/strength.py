"""Whether the attacks had full strength. If a control fails, nothing is certified, but a proven leak still counts."""

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
"""Smallest share of the scored examples with reference models on both sides; four references give 7/8."""

FEWEST_TO_COMPARE = 4  # fewest reference models for comparing their recipe with the target's
FEWEST_EXAMPLES = 20  # fewest members, and non-members, of the target for a comparison

SHARES = {"effect of all signals": 0.45, "effect": 0.1, "level": 0.2, "spread": 0.15}
"""How `RISK` is divided among the kinds of comparison, and within a kind among the signals (Bonferroni's correction). A
tenth is unused, as the compared numbers are only nearly normal."""

MATTERS = {"effect of all signals": 0.1, "effect": 0.1, "level": 0.1, "spread": 0.2}
"""Smallest difference that counts: of effects, a share of the references'; of levels, standard deviations between
models; of spreads, the logarithm of a ratio of variances. Smaller ones hardly weaken attacks."""

PREDICTED = ("label", "loss", "margin", "kept", "shares", "prediction")
"""Signals that all models answer alike for every number of queries. Explanations of reference models at levels above 1
use fewer queries and no noise, so they are not comparable with the target's."""

MOST_NUMBERS = 10**8
"""Most numbers of whole maps that are compared; larger ones use a part of the examples and features."""

PRIVACY = "differential privacy"
"""Entry of the signals' meta data: whether the target and its references are stated to be trained so."""

Floats = NDArray[np.float64]
Compared = dict[tuple[str, str], Floats]  # kind of number and side, members or non-members -> (models,) numbers


def reference_coverage(
    signals: Signals, references: Sequence[int] | NDArray[np.int64], scored: NDArray[np.bool_]
) -> Control:
    """Whether most (n,) scored examples have reference models (rows of the signals) on both sides; groups count once.

    Likelihood ratios are undefined for others.
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
    """Whether the target's signals look like those of the reference models, which should have the same recipe.

    If trained alike, the target is one more draw from the distribution of the references. Each model is compared with
    the prediction of all others (one of each pair of references), and the target with the references:

        level     mean distance from the others with the same membership, for members and for non-members
        spread    mean squared distance from them, for members and for non-members
        effect    effect of membership relative to that in the others: the slope of a regression on the others'
                  difference between members and non-members, example by example; per signal, and for all together

    Each is one number per model. The control fails if the target's differs from the references' by more than a t-test
    allows, at a risk of `RISK` for all, and by more than `MATTERS`. Numbers enter by their ranks among the models,
    example by example (van der Waerden's normal scores), so that heavy tails and scales do not matter. For whole maps
    and vectors, the length, the mean entry and the log likelihood ratio of membership are compared.

    `target` and `references` are rows of the signals, `scored` is (n,) bool, and `names` are of the signals that are
    judged, as in the rows of a suite (None: all); labels and losses are always compared.
    """
    name, models = "recipe", np.array([target, *references], dtype=np.int64)
    if len(models) <= FEWEST_TO_COMPARE:
        return Control(name, None, "there are too few reference models to compare recipes", {})
    at = np.flatnonzero(scored)
    groups = None if signals.groups is None else signals.groups[at]
    at = at[one_of_each(groups, signals.membership[target, at], seed=0)]
    member = signals.membership[np.ix_(models, at)]
    if min(member[0].sum(), (~member[0]).sum()) < FEWEST_EXAMPLES:
        return Control(name, None, "there are too few examples to compare recipes", {})
    by_set: dict[str, list[Compared]] = {}
    for rows in _independent(member):
        for signal, values, part in _columns(signals, names, models[rows], at, member[rows]):
            if (values != values[:1]).any():
                one = _compared(_normal_scores(values), member[np.ix_(rows, np.arange(len(at))[part])])
                by_set.setdefault(signal, []).append(one)
    found = {signal: _together(parts) for signal, parts in by_set.items()}
    if not found:
        return Control(name, None, "there is no judged signal by which to compare recipes", {})
    tests = list(_tests(found))
    worst = max(tests, key=lambda t: (t.failed, t.of_tolerated))
    failed = bool(worst.failed)
    ratio = next(t.ratio for t in tests if t.kind == "effect of all signals")
    says = "the target's releases do not stand out"
    if failed:
        why = _privacy_differs(signals.meta.get(PRIVACY), tests)
        says = f"{worst.says}: they do not repeat its recipe{f'. {why}' if why else ''}"
    return Control(
        name,
        failed,
        f"compared with the reference models, {says}",
        {"effect": ratio, "of_tolerated": worst.of_tolerated, "signals": float(len(found))},
    )


def _privacy_differs(stated: Any, tests: Sequence[_Test]) -> str:
    """Advice if the target, but not its references, was trained with differential privacy, or the reverse.

    `stated` maps "target" and "references" to whether they are stated to be. A model with differential privacy reveals
    less about its members, and fits them worse.
    """
    target, references = (stated.get(n) if isinstance(stated, Mapping) else None for n in ("target", "references"))
    effect = next(t for t in tests if t.kind == "effect of all signals")
    losses = [t for t in tests if t.kind == "level" and t.signal == "loss" and t.side == "members" and t.failed]
    less = effect.ratio < 1 and (effect.failed or any(t.by > 0 for t in losses))
    more = effect.ratio > 1 and (effect.failed or any(t.by < 0 for t in losses))
    if target and references is False:
        return (
            "The target was trained with differential privacy, as its statement says, but its references were not: add"
            " [dp] to the recipe, or give --privacy"
        )
    if less and not references:
        return (
            "The target reveals less about its members than they do, as with differential privacy: if it was trained"
            " so and they were not, add [dp] to the recipe, or give --privacy"
        )
    if more and references and not target:
        return (
            "The references were trained with differential privacy, but the target reveals more about its members,"
            " as if"
            " it was not: remove [dp] from the recipe, or correct it"
        )
    return ""


@dataclass(frozen=True)
class _Test:
    """The target against the references in one number a model."""

    kind: str
    says: str
    failed: bool
    of_tolerated: float  # distance from them, in units of the tolerance
    ratio: float  # relative to their mean
    by: float  # difference from their mean
    signal: str
    side: str  # members or non-members


def _compared(a: Floats, member: NDArray[np.bool_]) -> Compared:
    """Compares each model's (models, examples) numbers of one signal with the prediction of all others.

    The slope "effect" is "covariance" (the sum over examples of expected effect times distance) over "variance" (that
    of its square). "level" is the mean distance of a side, and "spread" the logarithm of the mean squared one. All are
    (models,).
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
    # gaps of single examples are shrunk towards the mean of all, by their share of noise (empirical Bayes)
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
    """Joins independent sets of references: the target's mean over the sets, then all references."""
    return {
        what: np.concatenate([[np.mean([part[what][0] for part in parts])], *(part[what][1:] for part in parts)])
        for what in parts[0]
    }


def _independent(member: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Rows of the target, which is first, with one reference of each pair, and then with the others (`partners`).

    Within a set no model's membership follows from another's, as it does within a pair.
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
    """Name, numbers (models, examples) and the slice of examples of every compared quantity."""
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
    """(models, examples) log likelihood ratio of membership by all other models, with independent features."""
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
