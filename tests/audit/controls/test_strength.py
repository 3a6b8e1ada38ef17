"""Whether references repeat the target's recipe: found where they do not, and seldom claimed where they do."""

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.audit import Signals
from safexplain.audit.controls import checks
from safexplain.audit.controls.checks import (
    _columns,
    _compared,
    _map_ratio,
    _normal_scores,
    _test,
    _tests,
    recipe_fit,
    reference_coverage,
)
from safexplain.verdict.judgement import STRENGTH, Control


def world(
    seed=0, n=1000, references=16, effect=1.0, share=1.0, signals=3, tails=None, between=0.0, varied=0.5, **fields
):
    """Target 0 and its references, whose effect is `share` of its own; models differ by `between` as they are."""
    rng = np.random.default_rng(seed)
    m = references + 1
    member = rng.random((m, n)) < 0.5
    effects = effect * (1 + varied * rng.normal(size=n))
    strength, shift = 1 + between * rng.normal(size=m), between * rng.normal(size=m)
    strength[1:] *= share
    level = rng.normal(size=n)
    noise = rng.normal(size=(signals, m, n)) if tails is None else rng.standard_t(tails, size=(signals, m, n))
    numbers = level + shift[:, None] + noise - member * strength[:, None] * effects
    return Signals(member, {f"s{i}": a for i, a in enumerate(numbers)}, meta={"targets": [0]})


def looked_at(signals, names=None, scored=None) -> Control:
    scored = np.ones(len(signals), bool) if scored is None else scored
    return recipe_fit(signals, 0, signals.references(0), scored, names)


def failures(repeats, **changes):
    return sum(looked_at(world(seed, **changes)).failed for seed in range(repeats))


@pytest.mark.parametrize(
    "case",
    [
        {"effect": 1.5},
        {"n": 3000, "effect": 1.5, "between": 0.05, "tails": 2},
    ],
    ids=str,
)
def test_references_whose_effect_is_70_percent_of_the_targets_are_found_in_95_percent_of_audits(case):
    assert failures(20, share=0.7, **case) >= 19


@pytest.mark.parametrize(
    "case",
    [{"tails": 1.2, "n": 300, "effect": 2.0}, {"between": 0.2, "n": 300}],
    ids=str,
)
def test_references_of_the_same_recipe_are_seldom_refused(case):
    assert failures(40, **case) <= 3  # more than three at 1 % each: a probability of 0.07 %


def test_a_difference_that_hardly_matters_is_let_pass_however_sure_it_is():
    exact = world(effect=2.0, share=0.97, n=20_000, signals=1, varied=0.0)
    assert not looked_at(exact).failed
    assert looked_at(world(effect=2.0, share=0.8, n=20_000, signals=1, varied=0.0)).failed


def mapped(share, seed=0, n=1200, d=30, references=16):
    """Maps whose entries each tell a little."""
    rng = np.random.default_rng(seed)
    member = rng.random((references + 1, n)) < 0.5
    strength = np.where(np.arange(references + 1) == 0, 1.0, share)[:, None, None]
    pattern = 0.6 * rng.normal(size=(n, d))
    maps = rng.normal(size=(references + 1, n, d)) + strength * member[..., None] * pattern
    return Signals(member, {}, maps.astype(np.float32), meta={"targets": [0]})


def test_the_effect_on_whole_maps_is_compared():
    assert [looked_at(mapped(0.6, seed)).failed for seed in range(5)] == [True] * 5
    assert sum(looked_at(mapped(1.0, seed)).failed for seed in range(15)) <= 1
    assert looked_at(mapped(1.0)).numbers["signals"] == 3


def test_the_maps_likelihood_ratio_is_that_of_all_other_models():
    signals = mapped(1.0, n=12, d=4, references=6)
    maps, member = signals.attributions.astype(float), signals.membership
    fast = _map_ratio(signals.attributions, member)
    for m, i in ((0, 0), (3, 5), (6, 11)):
        others = np.arange(7) != m
        inside, outside = (maps[others & (member[:, i] == side), i] for side in (True, False))
        if not len(inside) or not len(outside):
            continue
        residuals = [maps[member[:, i] == side, i] for side in (True, False)]
        variance = sum(((r - r.mean(0)) ** 2).sum(0) for r in residuals if len(r)) / 5
        variance = variance + 1e-3 * variance.mean()
        slow = (((maps[m, i] - outside.mean(0)) ** 2 - (maps[m, i] - inside.mean(0)) ** 2) / (2 * variance)).sum()
        assert fast[m, i] == pytest.approx(slow, rel=1e-5)


def slow_comparison(a, member):
    """One model at a time: the regression of its centred numbers on what the other models expect, and what is left."""
    found = {"slope": [], ("level", "members"): [], ("spread", "members"): [], ("level", "non-members"): [],
             ("spread", "non-members"): []}  # fmt: skip
    m, n = a.shape
    gaps = np.full((m, n), np.nan)
    middles = np.full((m, n), np.nan)
    for j in range(m):
        for i in range(n):
            others = [k for k in range(m) if k != j]
            inside = [a[k, i] for k in others if member[k, i]]
            outside = [a[k, i] for k in others if not member[k, i]]
            if inside and outside:
                gaps[j, i] = np.mean(inside) - np.mean(outside)
                middles[j, i] = (np.mean(inside) + np.mean(outside)) / 2
    known = ~np.isnan(gaps)
    residual = a.copy()
    for i in range(n):
        for side in (True, False):
            at = member[:, i] == side
            if at.any():
                residual[at, i] -= a[at, i].mean()
    within = (residual**2).sum() / ((m - 2) * n)
    noise = []
    for j in range(m):
        for i in np.flatnonzero(known[j]):
            inside = member[np.arange(m) != j, i].sum()
            noise.append(within * (1 / inside + 1 / (m - 1 - inside)))
    mean, variance = gaps[known].mean(), gaps[known].var()
    trust = max(0.0, 1 - np.mean(noise) / variance)
    for j in range(m):
        at = known[j]
        expected = (member[j, at] - 0.5) * (mean + trust * (gaps[j, at] - mean))
        found["slope"].append(np.polyfit(expected, a[j, at] - middles[j, at], 1)[0])
        left = a[j, at] - middles[j, at] - expected
        for side, name in ((True, "members"), (False, "non-members")):
            mine = [value for value, inside in zip(left, member[j, at], strict=True) if inside == side]
            found["level", name].append(np.mean(mine))
            found["spread", name].append(np.log(np.mean(np.square(mine))))
    return found


def test_effects_levels_and_spreads_are_those_of_the_slow_comparison():
    rng = np.random.default_rng(0)
    member = rng.random((7, 40)) < 0.5
    a = _normal_scores(rng.normal(size=(7, 40)) + member * rng.normal(1, 2, 40))
    fast, slow = _compared(a, member), slow_comparison(a, member)
    assert np.allclose(fast["covariance", ""] / fast["variance", ""], slow.pop("slope"))
    for what, values in slow.items():
        assert np.allclose(fast[what], values), what
    small = {what: numbers * 1e-6 for what, numbers in fast.items()}
    tested = [test for test in _tests({"loss": small, "l1": small}) if "effect" in test.kind]
    slope = fast["covariance", ""] / fast["variance", ""]
    assert [test.by for test in tested] == pytest.approx([slope[0] - slope[1:].mean()] * 3)


@pytest.mark.parametrize(
    ("kind", "share", "matters"),
    [("effect of all signals", 0.45, 0.1), ("effect", 0.1, 0.1), ("level", 0.2, 0.1), ("spread", 0.15, 0.2)],
)
def test_each_comparison_is_a_t_test_with_its_share_of_one_percent(kind, share, matters):
    theirs = np.array([1.8, 2.0, 2.1, 2.3, 2.4])
    reach = distributions.t.isf(0.01 * share / 3 / 2, 4) * theirs.std(ddof=1) * np.sqrt(6 / 5)
    for by, failed in ((0.999, False), (1.001, True), (-1.001, True)):
        found = _test(kind, "what", np.array([theirs.mean() + by * reach, *theirs]), 3, "loss", "members")
        assert (found.failed, found.of_tolerated, found.by) == (
            failed,
            pytest.approx(abs(by)),
            pytest.approx(by * reach),
        )
    alike = np.full(5, 2.0)
    least = matters * (2.0 if "effect" in kind else 1.0)
    for by, failed in ((0.999, False), (1.001, True)):
        found = _test(kind, "what", np.array([2.0 + by * least, *alike]), 3)
        assert found.failed is failed
        assert found.ratio == pytest.approx(np.exp(by * least / 2) if kind == "spread" else 1 + by * least / 2)


def test_normal_scores_are_ranks_among_the_models():
    found = _normal_scores(np.array([[3.0, 1.0], [9.0, 1.0], [5.0, 1.0]]))
    assert np.allclose(found[:, 1], 0.0)  # ties share their ranks
    assert np.argsort(found[:, 0]).tolist() == [0, 2, 1]
    assert found[2, 0] == pytest.approx(0.0)
    assert found[1, 0] == pytest.approx(-found[0, 0])
    assert found[1, 0] == pytest.approx(distributions.norm.ppf(5 / 6))


def test_judged_signals_are_compared_and_always_what_is_predicted():
    base = world(n=2000)
    values = {name: base.values[f"s{i}"] for i, name in enumerate(("l1", "l2", "loss"))}
    several = Signals(base.membership, values, meta=base.meta)
    assert looked_at(several, ["l1", "l1:sign"]).numbers["signals"] == 2
    assert looked_at(several, ["l1+l2"]).numbers["signals"] == 3
    assert looked_at(several, ["nothing"]).numbers["signals"] == 1
    assert looked_at(base, ["nothing"]).failed is None
    loss = np.where(np.arange(17)[:, None] == 0, values["loss"] - 0.5, values["loss"])
    otherwise = Signals(base.membership, {**values, "loss": loss}, meta=base.meta)
    assert looked_at(otherwise, ["l1"]).failed
    assert "the loss of the target's" in looked_at(otherwise, ["l1"]).says


def test_explanations_of_patient_attackers_are_no_draw_of_the_references_and_left_out():
    base = world(n=2000)
    averaged = base.values["s0"].copy()
    averaged[0] = 0.1 * averaged[0]  # two hundred noisy answers averaged, beside a few without noise
    values = {"l1": base.values["s0"], "l1@200": averaged, "kept@200": 1 / (1 + np.exp(-base.values["s1"]))}
    patient = Signals(base.membership, values, meta=base.meta)
    assert not looked_at(patient).failed
    assert looked_at(patient).numbers["signals"] == 2
    values["kept@200"] = np.where(np.arange(17)[:, None] == 0, 0.5 * values["kept@200"], values["kept@200"])
    assert looked_at(Signals(base.membership, values, meta=base.meta)).failed


def test_labels_are_compared_by_agreement():
    rng = np.random.default_rng(0)
    member = rng.random((17, 3000)) < 0.5
    truth = rng.integers(0, 10, 3000)
    for wrong, failed in ((0.3, False), (0.1, True)):
        error = np.where(np.arange(17)[:, None] == 0, wrong, 0.3) * ~member
        label = np.where(rng.random(member.shape) < error, rng.integers(0, 10, member.shape), truth)
        assert looked_at(Signals(member, {"label": label}, meta={"targets": [0]})).failed is failed


@pytest.mark.parametrize(("most", "every", "stop"), [(1050, 4, 175), (2, 7, 1), (None, 1, 10**8 // 21)])
def test_what_is_compared_by_hand_and_of_huge_maps_every_few_features_of_some_examples(most, every, stop, monkeypatch):
    if most is not None:
        monkeypatch.setattr(checks, "MOST_NUMBERS", most)
    rng = np.random.default_rng(0)
    member, at, models = rng.random((4, 200)) < 0.5, rng.permutation(200), np.array([0, 2, 3])
    maps, l1 = 0.01 * rng.normal(size=(4, 200, 7)), rng.random((4, 200))
    maps[:, at[0]] = 0.0
    values = {"label": rng.integers(0, 3, (4, 200)), "l1": l1, "l1@2": l1, "kept@2": l1.round()}
    signals = Signals(member, values, maps.astype(np.float32))
    found = list(_columns(signals, None, models, at, member[models][:, at]))
    label = values["label"][models][:, at]
    usual = [np.bincount(label[:, i]).argmax() for i in range(200)]
    part = signals.attributions[models][:, at[:stop], ::every]
    length = np.linalg.norm(part, axis=2)
    mean = np.divide(part.mean(2), length, out=np.zeros_like(length), where=length > 0)
    expected = {
        "label": label == usual,
        "l1": l1[models][:, at],
        "kept@2": values["kept@2"][models][:, at],
        "length of attributions": length,
        "mean entry of attributions": mean,
        "likelihood ratio of attributions": _map_ratio(part, member[models][:, at[:stop]]),
    }
    assert [name for name, *_ in found] == list(expected)
    for (name, numbers, where), few in zip(found, (slice(None),) * 3 + (slice(0, stop),) * 3, strict=True):
        assert where == few
        np.testing.assert_allclose(numbers, expected[name], rtol=1e-5, atol=1e-6)


def test_a_single_complementary_pair_of_references_hides_no_difference():
    base = world(effect=0.0, references=6)
    base.membership[2] = ~base.membership[1]
    base.values["s0"][0] += 0.5
    assert "the s0 of the target's" in looked_at(base).says


def test_groups_count_once():
    """Copies of everyone, each group in or out together, tell no more than one of each."""
    base = world(n=300, share=0.85)
    copied = Signals(
        np.repeat(base.membership, 20, axis=1),
        {k: np.repeat(v, 20, axis=1) for k, v in base.values.items()},
        groups=np.repeat(np.arange(300), 20),
        meta=base.meta,
    )
    assert looked_at(copied) == looked_at(base)


def test_what_cannot_be_compared_is_said():
    assert looked_at(world(references=3)).failed is None
    assert "few reference models" in looked_at(world(references=3)).says
    assert looked_at(world(references=4)).failed is not None
    base = world(n=400)
    for members, compared in ((19, False), (20, True)):  # and as many non-members as there are
        scored = np.zeros(400, bool)
        scored[np.flatnonzero(base.membership[0])[:members]] = scored[np.flatnonzero(~base.membership[0])] = True
        assert (looked_at(base, scored=scored).failed is None) is not compared
    constant = Signals(world().membership, {"l1": np.ones((17, 1000))}, meta={"targets": [0]})
    assert looked_at(constant).failed is None
    assert looked_at(world(share=0.5, effect=2.0)).name in STRENGTH


def test_most_examples_need_references_on_both_sides():
    signals = world(n=2000, references=4)
    found = reference_coverage(signals, signals.references(0), np.ones(2000, bool))
    assert found.failed is False
    assert found.numbers["share"] == pytest.approx(7 / 8, abs=0.03)
    one_sided = signals.membership.copy()
    one_sided[1:, :1000] = True
    half = Signals(one_sided, signals.values, meta=signals.meta)
    assert reference_coverage(half, half.references(0), np.ones(2000, bool)).failed
    assert not reference_coverage(half, half.references(0), np.arange(2000) >= 1000).failed
    one_person = np.where(np.arange(2000) < 1000, 0, np.arange(2000))
    grouped = Signals(one_sided, signals.values, meta=signals.meta, groups=one_person)
    assert not reference_coverage(grouped, half.references(0), np.ones(2000, bool)).failed  # one of a thousand units
    assert reference_coverage(signals, [], np.ones(2000, bool)).failed is None


@pytest.mark.parametrize(
    ("target", "references", "share", "says"),
    [
        (True, False, 3.0, "was trained with differential privacy, as its statement says, but its references were not"),
        (None, False, 3.0, "as with differential privacy: if it was trained so"),
        (None, True, 0.3, "remove [dp] from the recipe"),
        (True, True, 0.3, ""),
        (None, False, 0.3, ""),
    ],
)
def test_it_names_differential_privacy_where_that_may_be_what_differs(target, references, share, says):
    signals = world(share=share)
    said = {"differential privacy": {"target": target, "references": references}}
    if (target, references) != (None, None):
        signals = Signals(signals.membership, dict(signals.values), meta={**signals.meta, **said})
    found = looked_at(signals)
    assert found.failed
    assert says in found.says
    assert bool(says) == ("differential privacy" in found.says)
