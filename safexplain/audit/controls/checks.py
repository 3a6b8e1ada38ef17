"""Controls of one target. Unless members and non-members are alike and the data are the training's, there is no
verdict. If the attacks were weak, nothing is certified, but a proven leak counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy import stats as distributions

from safexplain.audit.signals import Signals, partners
from safexplain.verdict.judgement import WHOLE_MAP, Control, split_level
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import auc_interval, clopper_pearson, roc
from safexplain.verdict.thresholds import found_above, lower_bound, lower_bound_rank, ranked, weights_of

if TYPE_CHECKING:
    from torch import Tensor, nn

RISK = 0.01  # probability with which each control fails by mistake
SHUFFLES = 200
FEWEST_TO_TRAIN = 40
MOST_FEATURES = 256  # larger inputs are reduced to principal components for the blind baseline


def blind_baseline(
    inputs: NDArray[np.floating[Any]] | None,
    member: NDArray[np.bool_],
    training: NDArray[np.bool_],
    scored: NDArray[np.bool_],
    policy: Policy,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Control:
    """A classifier of members and non-members that sees the (n, ...) inputs of models, but no answers.

    It averages the ranks of gradient-boosted trees and a logistic regression on the inputs (or their principal
    components), fitted to the training split and tested on the scored examples, or else fitted to each half of these
    and tested on the other. No group is in both. (Das, Zhang & Tramer, arXiv 2406.16201: membership attacks must beat
    blind ones.)
    """
    name = "blind baseline"
    if inputs is None:
        says = "the inputs are not in the signals, so a distribution shift cannot be looked for"
        return Control(name, None, says, {})
    folds = [(training, scored)]
    if training.sum() < FEWEST_TO_TRAIN:
        group = _numbered(groups, len(scored))
        half = (np.random.default_rng([seed, 0xB11D]).random(int(group.max()) + 1) < 0.5)[group]
        folds = [(scored & half, scored & ~half), (scored & ~half, scored & half)]
    if any(
        fit.sum() < FEWEST_TO_TRAIN or len(np.unique(member[part])) < 2 for fit, test in folds for part in (fit, test)
    ):
        return Control(name, None, "too few examples to train a classifier on", {})
    tests, alone = [], one_of_each(groups, member, seed)
    for fit, whole in folds:
        test = whole & alone
        scores = _classified(inputs, member, fit, test, seed)
        tests.append(_tested(scores, member[test], policy, RISK / len(folds)))
    worst = max(tests, key=lambda t: t.excess)
    verb = "distinguishes" if worst.excess > 0 else "does not distinguish"
    says = f"a classifier that sees only inputs {verb} members from non-members (AUC {worst.auc:.3f})"
    return Control(name, worst.excess > 0, says, worst.numbers)


def null_model(
    scores: Mapping[str, NDArray[np.float64]],
    member: NDArray[np.bool_],
    policy: Policy,
    kind: str,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Control:
    """The (s,) scores of attacks on a model, described by `kind`, that was not trained on the (s,) target's members."""
    alone = one_of_each(groups, member, seed)
    found = {name: _tested(s[alone], member[alone], policy, RISK / max(len(scores), 1)) for name, s in scores.items()}
    if not found:
        return Control("null model", None, "there is no model that was not trained on the target's members", {})
    name, worst = max(found.items(), key=lambda item: (item[1].excess, item[1].auc))
    verb = "finds the target's members in" if worst.excess > 0 else "finds nothing in"
    says = f"{name} {verb} the releases of {kind} (AUC {worst.auc:.3f})"
    return Control("null model", worst.excess > 0, says, worst.numbers)


def shuffled_membership(
    alarm: Callable[[NDArray[np.bool_]], bool] | None,
    member: NDArray[np.bool_],
    policy: Policy,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Control:
    """How often the judged attacks find more than chance with members drawn at random.

    This is the false-alarm rate of the audit on its own scores; its expectation is at most 1 - confidence. `alarm`
    tells for (s,) members whether the audit would prove more than chance; None: no attack is judged. As many members
    are drawn as there are, or as many groups as have mostly members.
    """
    name = "shuffled membership"
    if alarm is None:
        return Control(name, None, "no attack was judged", {})
    group = _numbered(groups, len(member))
    drawn = np.bincount(group, np.where(member, 1.0, -1.0)) > 0
    if drawn.all() or not drawn.any():
        return Control(name, None, "too few groups of examples to draw members from", {})
    rng = np.random.default_rng([seed, 0x5AFF])
    alarms = sum(alarm(rng.permutation(drawn)[group]) for _ in range(SHUFFLES))
    share, low = alarms / SHUFFLES, clopper_pearson(alarms, SHUFFLES, 1 - 2 * RISK)[0]
    says = f"with members drawn at random, {alarms} of {SHUFFLES} audits find more than chance"
    return Control(name, bool(low > policy.risk), says, {"share": share, "expected_at_most": policy.risk})


def one_of_each(groups: NDArray[np.integer[Any]] | None, member: NDArray[np.bool_], seed: int) -> NDArray[np.bool_]:
    """(n,) bool: one random member and one random non-member of each group; all examples without groups."""
    if groups is None:
        return np.ones(len(member), dtype=bool)
    order = np.random.default_rng([seed, 0x0E5]).permutation(len(member))
    unit = 2 * _numbered(groups, len(member)) + member
    alone = np.zeros(len(member), dtype=bool)
    alone[order[np.unique(unit[order], return_index=True)[1]]] = True
    return alone


def _numbered(groups: NDArray[np.integer[Any]] | None, n: int) -> NDArray[np.int64]:
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]


class _Tested(NamedTuple):
    excess: float  # of a lower bound over chance
    auc: float
    numbers: dict[str, float]


def _tested(scores: NDArray[np.float64], member: NDArray[np.bool_], policy: Policy, risk: float) -> _Tested:
    """AUC, and lower bounds of the AUC and of the true-positive rate, each at half of the risk."""
    curve = roc(scores, member)
    rank, share = lower_bound_rank(curve.non_members, policy.fpr, risk / 4)
    found = found_above(ranked(scores, member), rank)
    low, rate = auc_interval(curve, 1 - risk)[0], lower_bound(found, curve.members, risk / 4) * share
    numbers = {"auc": curve.auc, "auc_low": low, "tpr_low": rate}
    return _Tested(float(max(low - 0.5, rate - policy.fpr)), curve.auc, numbers)


def _classified(
    inputs: NDArray[np.floating[Any]],
    member: NDArray[np.bool_],
    training: NDArray[np.bool_],
    scored: NDArray[np.bool_],
    seed: int,
) -> NDArray[np.float64]:
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = np.nan_to_num(np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1))
    if x.shape[1] > MOST_FEATURES:
        parts = min(64, int(training.sum()) - 1)
        moments = np.stack([x.mean(1), x.std(1), x.min(1), x.max(1)], axis=1)
        reduced = PCA(parts, svd_solver="randomized", random_state=seed).fit(x[training]).transform(x)
        x = np.concatenate([moments, reduced], axis=1)
    scores = np.zeros(int(scored.sum()))
    for model in (
        HistGradientBoostingClassifier(max_iter=100, random_state=seed),
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, C=0.1)),
    ):
        p = model.fit(x[training], member[training]).predict_proba(x[scored])[:, 1]
        scores += np.argsort(np.argsort(p, kind="stable"))
    return scores


FEWEST_BOTH_SIDES = 0.8
"""Smallest share of the scored examples with reference models on both sides; four references give 7/8."""

FEWEST_TO_COMPARE = 4  # fewest reference models for comparing their recipe with the target's
FEWEST_EXAMPLES = 20  # fewest members, and non-members, of the target for a comparison

SHARES = {"effect of all signals": 0.45, "effect": 0.1, "level": 0.2, "spread": 0.15}
"""Shares of `RISK` of the kinds of comparison, and within a kind of the signals (Bonferroni's correction). A tenth is
unused, as the compared numbers are only nearly normal."""

MATTERS = {"effect of all signals": 0.1, "effect": 0.1, "level": 0.1, "spread": 0.2}
"""Smallest difference that counts, as smaller ones hardly weaken attacks: of effects, a share of the references'; of
levels, standard deviations between models; of spreads, the logarithm of a ratio of variances."""

PREDICTED = ("label", "loss", "margin", "kept", "shares", "prediction")
"""Signals that all models answer alike at every level. Explanations of reference models at levels above 1 use fewer
queries and no noise, so they are not comparable."""

MOST_NUMBERS = 10**8  # most numbers of whole maps that are compared, else a part of the examples and features

PRIVACY = "differential privacy"
"""Entry of the signals' meta data: whether the target and its references are stated to be trained so."""

Floats = NDArray[np.float64]
Compared = dict[tuple[str, str], Floats]  # kind of number and side, members or non-members -> (models,) numbers


def reference_coverage(
    signals: Signals, references: Sequence[int] | NDArray[np.int64], scored: NDArray[np.bool_]
) -> Control:
    """Whether most (n,) scored examples have references (rows of the signals) on both sides; groups count once."""
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
    the prediction of all others (one of each pair of references), by one number per model:

        level     mean distance from the others with the same membership, for members and for non-members
        spread    mean squared distance from them, likewise
        effect    of membership relative to that in the others: the slope of a regression on the others' difference
                  between members and non-members, example by example; per signal, and for all together

    The control fails if the target's differs from the references' by more than a t-test allows, at a risk of `RISK`
    for all, and by more than `MATTERS`. Numbers enter by their ranks among the models, example by example (van der
    Waerden's normal scores). For whole maps and vectors, the length, the mean entry and the log likelihood ratio of
    membership are compared.

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
    numbers = {"effect": ratio, "of_tolerated": worst.of_tolerated, "signals": float(len(found))}
    return Control(name, failed, f"compared with the reference models, {says}", numbers)


def _privacy_differs(stated: Any, tests: Sequence[_Test]) -> str:
    """Advice if the target, but not its references, was trained with differential privacy, or the reverse, as models
    with it fit their members worse. `stated` maps "target" and "references" to whether they are stated to be."""
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
            "The references were trained with differential privacy, but the target reveals more about its members, as"
            " if it was not: remove [dp] from the recipe, or correct it"
        )
    return ""


class _Test(NamedTuple):
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
    """Compares each model's (models, examples) numbers of one signal with the prediction of all others: (models,)
    slopes "covariance" / "variance", mean distances "level", and logs of mean squared ones "spread"."""
    one = member.astype(np.float64)
    sides = []
    for side in (one, 1 - one):
        others, total = side.sum(0) - side, (a * side).sum(0) - a * side
        sides.append((others, total / np.maximum(others, 1)))
    (n1, mean1), (n0, mean0) = sides
    known = (n1 > 0) & (n0 > 0)
    gap = mean1 - mean0
    residual = a - np.where(member, (a * one).sum(0), (a * (1 - one)).sum(0)) / np.where(
        member, one.sum(0), (1 - one).sum(0)
    )
    # gaps of single examples are shrunk towards the mean of all, by their share of noise (empirical Bayes)
    within = (residual**2).sum() / ((len(a) - 2) * a.shape[1])
    share = known / np.maximum(known.sum(), 1)
    noise = float((within * (1 / np.maximum(n1, 1) + 1 / np.maximum(n0, 1)) * share).sum())
    mean = float((gap * share).sum())
    variance = float(((gap - mean) ** 2 * share).sum())
    trust = max(0.0, 1 - noise / max(variance, 1e-300))
    expected = (one - 0.5) * (mean + trust * (gap - mean))
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
    """Rows of the target, which is first, with one reference of each pair, and then with the others (`partners`), if
    there are several."""
    partner, rows = partners(member), np.arange(len(member))
    second = (partner > 0) & (partner < rows)
    for chosen in (~second, second) if second.sum() > 1 else (~second,):
        yield np.append(0, rows[1:][chosen[1:]])


def _tests(found: Mapping[str, Compared]) -> Iterator[_Test]:
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
    """(models, examples) by their rank among the models; ties share their ranks."""
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


META = "accuracy"  # entry of the signals' meta data with the inputs of the control
ROUNDED = 0.02  # tolerance below a stated accuracy, which is itself measured and rounded
SHORTFALL = 0.05  # smallest shortfall from the references that counts, even if significant
FEWEST = 4  # fewest reference models for comparing the target's accuracy with theirs

UNUSUAL, IMPOSSIBLE = 0.25, 16.0
"""Divergence from which batch statistics are reported, and ratio of variances, or its inverse, from which they fail. In
nats per channel: CIFAR-10 ResNets on right data .04, on data in [-1, 1] .53, in [0, 1] 1.0, in [0, 255] over 3,000."""

SETTLED = 50  # batches after which running statistics no longer depend on their initial values
LOOKED_AT = 512  # most members for measuring batch statistics


class Statistics(NamedTuple):
    """Inputs of the first batch normalisation against its statistics from training."""

    divergence: float  # Kullback-Leibler, of normals with these means and variances: nats, mean over channels
    ratio: float  # of the variances, geometric mean over channels

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, batch_size: int = 256) -> Self | None:
        """Statistics of a model in evaluation mode on (n, ...) examples like its training's; None: it kept none."""
        import torch
        from torch import nn

        kept = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if not kept or any(m.running_mean is None or m.running_var is None for m in kept):
            return None
        reached: list[nn.modules.batchnorm._BatchNorm] = []  # as often as they were
        sums: list[Tensor] = []

        def record(module: Any, given: tuple[Tensor, ...]) -> None:
            reached.append(module)
            if module is reached[0]:
                a = given[0].detach().double()
                axes = [0, *range(2, a.dim())]
                sums.append(torch.stack([torch.ones_like(a).sum(axes), a.sum(axes), (a * a).sum(axes)]).cpu())

        handles = [m.register_forward_pre_hook(record) for m in kept]
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        try:
            with torch.no_grad():
                for start in range(0, len(x), batch_size):
                    model(x[start : start + batch_size].to(device))
        finally:
            for handle in handles:
                handle.remove()
        if not reached:
            return None
        first, number = reached[0], reached[0].num_batches_tracked
        assert first.running_mean is not None
        assert first.running_var is not None
        known_mean, known_var = first.running_mean.double().cpu(), first.running_var.double().cpu()
        if number is not None and 0 < int(number) < SETTLED and first.momentum is not None:
            return None
        if not number and not known_mean.any() and bool((known_var == 1).all()):
            return None  # initial values; files of old versions do not count batches
        n, total, squares = torch.stack(sums).sum(0)
        mean, known_var = total / n, known_var + first.eps
        var = (squares / n - mean * mean).clamp_min(0) + first.eps
        nats = 0.5 * (torch.log(known_var / var) + (var + (mean - known_mean) ** 2) / known_var - 1)
        return cls(float(nats.mean()), float((var / known_var).log().mean().exp()))

    @property
    def impossible(self) -> bool:
        """Whether no training on such data could have produced them."""
        return abs(math.log(max(self.ratio, 1e-300))) > math.log(IMPOSSIBLE)

    def __str__(self) -> str:
        return (
            f"the inputs of the model's first batch normalisation have {self.ratio:.3g} times the variance of those in"
            f" its training (divergence: {self.divergence:.2g} nats per channel)"
        )


class Hits(NamedTuple):
    """The correct predictions of a model on its non-members."""

    right: int
    examples: int
    units: int  # independent units: examples, or groups of them

    @classmethod
    def of(cls, right: NDArray[np.bool_], member: NDArray[np.bool_], groups: NDArray[Any] | None) -> Self:
        """From (n,) whether a model is right, its (n,) members, and the (n,) groups of examples, if any."""
        outside = ~member
        units = int(outside.sum()) if groups is None else len(np.unique(groups[outside]))
        return cls(int(right[outside].sum()), int(outside.sum()), units)

    @property
    def share(self) -> float:
        """Accuracy."""
        return self.right / max(self.examples, 1)

    def highest(self, risk: float) -> float:
        """Upper confidence bound of the accuracy."""
        return clopper_pearson(math.ceil(self.share * self.units), max(self.units, 1), 1 - 2 * risk)[1]


def below_stated(target: Hits, stated: float | None, risk: float = RISK / 2) -> str:
    """The finding if a model's accuracy is significantly below the stated one, else ""."""
    if stated is None or target.highest(risk) >= stated - ROUNDED:
        return ""
    return f"the model is right on {target.share:.1%} of its non-members, where {stated:.1%} is stated"


def below_references(target: Hits, references: Sequence[Hits], risk: float = RISK / 2) -> str:
    """The finding if a model's accuracy is significantly below that of reference models, else "", by a t-test for one
    more draw, with at least the sampling variance over the target's non-members."""
    if len(references) < FEWEST or not target.units:
        return ""
    shares = np.array([r.share for r in references])
    mean, variance = float(shares.mean()), float(shares.var(ddof=1))
    pooled = min(max((mean + target.share) / 2, 1e-9), 1 - 1e-9)
    error = math.sqrt(max(variance, pooled * (1 - pooled) / target.units) + variance / len(shares))
    needed = max(SHORTFALL, float(distributions.t.ppf(1 - risk, len(shares) - 1)) * error)
    if mean - target.share <= needed:
        return ""
    return (
        f"the model is right on {target.share:.1%} of its non-members, but reference models trained on these data are"
        f" right on {mean:.1%} of theirs"
    )


ADVICE = (
    "the data do not look like what the model was trained on. Prepare them as for the training: images scaled and"
    " normalised, tables standardised, classes in the same order"
)


def accuracy(meta: Mapping[str, Any]) -> tuple[Control, ...]:
    """The control, from the signals' meta data under `META` (see `measured`); none without them."""
    known = meta.get(META)
    if not isinstance(known, Mapping) or not known.get("hits"):
        return ()
    target, *references = (Hits(*map(int, row)) for row in known["hits"])
    stated, found = known.get("stated"), known.get("statistics")
    statistics = None if found is None else Statistics(float(found[0]), float(found[1]))
    against = [below_stated(target, stated), below_references(target, references)]
    if statistics is not None and statistics.impossible:
        against.append(str(statistics))
    numbers = {"accuracy": target.share}
    if references:
        numbers["references"] = float(np.mean([r.share for r in references]))
    if stated is not None:
        numbers["stated"] = float(stated)
    if statistics is not None:
        numbers["divergence"] = statistics.divergence
    if wrong := [reason for reason in against if reason]:
        more = ", or the references were trained better than the model" if against[1] and len(wrong) == 1 else ""
        return (Control(META, True, f"{'; '.join(wrong)}: {ADVICE}{more}", numbers),)
    if stated is None and len(references) < FEWEST and statistics is None:
        says = "no accuracy is stated, and there are too few reference models to compare with"
        return (Control(META, None, says, numbers),)
    others = [*([] if stated is None else ["what is stated"]), *(["reference models"] if references else [])]
    compared = f", compared with {' and '.join(others)}" if others else ""
    return (Control(META, False, f"the model is right on {target.share:.1%} of its non-members{compared}", numbers),)


def measured(
    labels: NDArray[Any],
    y: NDArray[Any],
    membership: NDArray[np.bool_],
    groups: NDArray[Any] | None,
    stated: float | None,
    statistics: Statistics | None,
) -> dict[str, Any]:
    """The meta data under `META`, from (m, n) predicted classes of the target and its references, and (n,) y."""
    hits = [list(Hits.of(row == y, member, groups)) for row, member in zip(labels, membership, strict=True)]
    return {"hits": hits, "stated": stated, "statistics": None if statistics is None else list(statistics)}
