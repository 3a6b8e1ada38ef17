"""Attacks on recourse: equal to slow versions, find what is there, and nothing where nothing is."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats as distributions
from sklearn.linear_model import LogisticRegression

from safexplain.audit import certify
from safexplain.audit.attacks import LikelihoodRatio, Threshold
from safexplain.audit.attacks.likelihood import PooledDensityRatio
from safexplain.audit.attacks.recourse import CounterfactualDistance, CounterfactualLRT
from safexplain.audit.attacks.suite import RECOURSE, fitting
from safexplain.audit.collect_recourse import Answers, coin_flips, collect_recourse, margins
from safexplain.audit.signals import Signals
from safexplain.errors import ConfigurationError, InfeasibleError, InputError
from safexplain.recourse.solution import Solution
from safexplain.verdict.stats import auc_interval, roc


def auc(scores, member):
    return roc(scores, member).auc


def data(n=450, d=450, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, (x @ rng.normal(size=d) + rng.normal(size=n) * 3 > 0).astype(int)


@dataclass
class Linear:
    """Logistic regression, hardly regularised, that answers with exact recourse, or with noise on the score."""

    w: np.ndarray
    b: float
    noise: float = 0.0
    rng: np.random.Generator | None = None
    refuses: bool = False
    target: float = 0.0

    @classmethod
    def fitted(cls, x, y, **more):
        model = LogisticRegression(C=1000.0, max_iter=1000).fit(x, y)
        return cls(model.coef_[0], float(model.intercept_[0]), **more)

    def explain(self, x):
        score = x @ self.w + self.b
        if self.noise:
            score = score + self.rng.laplace(scale=self.noise, size=len(x))
        favourable = score >= self.target
        step = np.where(favourable, 0.0, self.target - score)
        valid = favourable.copy() if self.refuses else np.ones(len(x), bool)
        change = np.where(valid, step, 0.0)[:, None] * self.w / (self.w @ self.w)
        answer = Solution(
            x, x + change, valid, np.linalg.norm(change, axis=1), score, favourable, np.zeros(len(x), bool)
        )
        if not valid.all():
            raise InfeasibleError("nothing is allowed to change", result=answer, rows=np.flatnonzero(~valid))
        return answer


def exact(x, y, seed):
    return Linear.fitted(x, y)


def noised(x, y, seed, noise=4.0):
    return Linear.fitted(x, y, noise=noise, rng=np.random.default_rng(seed))


def repeated_noise(x, y, seed):
    rng = np.random.default_rng(seed)
    return Linear(rng.normal(size=x.shape[1]), 0.1, noise=0.1, rng=rng)


def against_first(signals, attack, name):
    """Scores of every example against model 0, all others being references."""
    values = signals.values[name]
    return attack(values[0], values[1:], signals.membership[1:]), signals.membership[0]


def slow_lrt(target, shadows, membership, variance):
    logs, out = np.log(shadows), ~membership
    squares, freedom, scores = [], [], np.zeros(len(target))
    for i in range(len(target)):
        own = logs[out[:, i], i]
        squares.append(float(((own - own.mean()) ** 2).sum()) if len(own) else 0.0)
        freedom.append(max(len(own) - 1, 0))
    for i in range(len(target)):
        own = logs[out[:, i], i]
        if len(own) < (1 if variance == "global" else 2):
            continue
        spread = sum(squares) / sum(freedom) if variance == "global" else squares[i] / freedom[i]
        z = (math.log(target[i]) - own.mean()) / math.sqrt(spread * (1 + 1 / len(own)))
        scores[i] = z if variance == "global" else distributions.norm.isf(distributions.t.sf(z, len(own) - 1))
    return scores


@pytest.mark.parametrize("variance", ["global", "local"])
def test_the_likelihood_ratio_is_that_of_a_loop_over_examples(variance):
    rng = np.random.default_rng(1)
    shadows, target = np.exp(rng.normal(size=(7, 60))), np.exp(rng.normal(size=60))
    member = rng.random((7, 60)) < 0.5
    member[:, 0], member[:, 1] = True, [True] * 6 + [False]
    found = CounterfactualLRT(variance)(target, shadows, member)
    assert found == pytest.approx(slow_lrt(target, shadows, member, variance), rel=1e-9, abs=1e-9)
    assert found[0] == 0.0


def test_distances_of_zero_and_enormous_ones_get_finite_scores():
    target, shadows = np.array([0.0, 1e300, 1e-300]), np.ones((5, 3))
    for variance in ("global", "local"):
        assert np.isfinite(CounterfactualLRT(variance)(target, shadows, np.zeros((5, 3), dtype=bool))).all()


def test_wrong_input_is_refused():
    ones, nobody = np.ones((3, 4)), np.zeros((3, 4), dtype=bool)
    with pytest.raises(InputError, match="negative"):
        CounterfactualLRT()(-np.ones(4), ones, nobody)
    with pytest.raises(InputError, match="two reference models that were not trained on it"):
        CounterfactualLRT()(np.ones(4), ones, ~nobody)
    only = np.arange(3)[:, None] > [0, 0, 0, 0]
    with pytest.raises(InputError, match="two reference models that were not trained on it"):
        CounterfactualLRT()(np.ones(4), ones, only)
    assert CounterfactualLRT()(np.ones(4), ones[:2], nobody[:2]).tolist() == [0] * 4
    with pytest.raises(InputError, match="one number per example"):
        CounterfactualLRT()(np.ones((4, 2)), np.ones((3, 4, 2)), nobody)
    with pytest.raises(ConfigurationError, match="global or local"):
        CounterfactualLRT("none")


@pytest.mark.parametrize(("each", "n"), [(60, 2000), (50, 100), (30, 10)])
def test_a_pooled_ratio_is_that_of_counts_in_bins(each, n):
    """At most 200 bins, at least 50 values in each, and at least two bins."""
    rng = np.random.default_rng(0)
    shadows, member = rng.normal(size=(6, n)), rng.random((6, n)) < 0.4
    found = PooledDensityRatio()(shadows[0], shadows, member)
    pairs = sorted(zip(shadows.ravel().tolist(), member.ravel().tolist(), strict=True))
    middles, ratios = [], []
    for part in (pairs[i : i + each] for i in range(0, 6 * n, each)):
        inside = sum(m for _, m in part) + 1
        ratios.append(
            math.log(inside / (member.sum() + 6 * n // each))
            - math.log((each + 2 - inside) / ((~member).sum() + 6 * n // each))
        )
        middles.append(part[each // 2][0])
    assert found == pytest.approx(np.interp(shadows[0], middles, ratios))


def test_pooled_ratios_of_equal_values_are_equal_and_wrong_input_is_refused():
    member = np.arange(400).reshape(4, 100) % 2 == 0
    scores = PooledDensityRatio()(np.ones(100), np.ones((4, 100)), member)
    assert np.ptp(scores) == 0
    with pytest.raises(InputError, match="expected members and non-members of the reference models"):
        PooledDensityRatio()(np.ones(100), np.ones((4, 100)), np.ones((4, 100), dtype=bool))
    with pytest.raises(InputError, match="one number per example"):
        PooledDensityRatio()(np.ones((100, 2)), np.ones((4, 100, 2)), member)


def test_offsets_are_read_through_noise_by_averaging_over_questions():
    x, y = data(n=4000, d=20)
    model = Linear.fitted(x, y, noise=2.0, rng=np.random.default_rng(0))
    model.b = 0.7
    answers = Answers.collect(model, x)
    true = model.b / np.linalg.norm(model.w)
    spread = x.std() * 1.0
    assert abs(answers.boundary(x)[1] - true) < 0.2 * spread
    without = replace(answers, score=np.zeros(len(x)))
    assert abs(without.boundary(x)[1] - true) > 0.5 * spread  # one answer's length is noise


def test_margins_are_signed_by_the_true_label():
    found = margins(np.array([0.6, 0.8]), 1.0, np.ones((2, 2)), np.array([True, False]))
    assert found == pytest.approx([2.4, -2.4])


@pytest.fixture(scope="module")
def overfitted():
    return collect_recourse(exact, *data(), models=9)


def test_every_signal_is_what_the_answers_say(overfitted):
    x, y = data()
    seeds = np.random.SeedSequence([0, 0x5EED]).generate_state(9)
    for i in (0, 8):
        member = overfitted.membership[i]
        model = exact(x[member], y[member], int(seeds[i]))
        score = x @ model.w + model.b
        size = np.linalg.norm(model.w)
        assert overfitted.values["score"][i] == pytest.approx(score)
        assert overfitted.values["distance"][i] == pytest.approx(np.abs(score) / size)  # on both sides
        assert overfitted.values["signed_distance"][i] == pytest.approx((2 * y - 1) * score / size)
        assert overfitted.values["recovered_margin"][i] == pytest.approx((2 * y - 1) * score / size, abs=1e-9)
        assert overfitted.values["regressed_margin"][i] == pytest.approx((2 * y - 1) * score / size, abs=1e-4)
        assert np.array_equal(overfitted.values["label"][i], score >= 0)
        assert overfitted.attributions[i] == pytest.approx(model.explain(x).change, abs=1e-5)
    assert "averaged_distance" not in overfitted.values


def test_models_train_on_their_members_only():
    seen = []

    def spying(x, y, seed):
        seen.append((x, y, seed))
        return Linear.fitted(x, y)

    x, y = data(n=60, d=5)
    signals = collect_recourse(spying, x, y, models=3, size=20, seed=4)
    assert (signals.membership.sum(1) == 20).all()
    for (rows, labels, _), member in zip(seen, signals.membership, strict=True):
        assert np.array_equal(rows, x[member])
        assert np.array_equal(labels, y[member])
    assert len({seed for _, _, seed in seen}) == 3


def test_each_example_is_a_member_of_about_half_of_the_models():
    flips = coin_flips(400, 200, seed=1)
    assert abs(flips.mean(0) - 0.5).max() < 0.2
    assert flips.sum(1).std() > 2  # coins, not fixed sizes
    assert np.array_equal(flips, coin_flips(400, 200, seed=1))
    assert not np.array_equal(flips, coin_flips(400, 200, seed=2))


def test_repeated_answers_are_averaged_where_they_differ():
    x, y = data(n=120, d=10)
    signals = collect_recourse(noised, x, y, models=3, repeats=64)
    clean = collect_recourse(exact, x, y, models=3)
    once = np.corrcoef(signals.values["distance"].ravel(), clean.values["distance"].ravel())[0, 1]
    often = np.corrcoef(signals.values["averaged_distance"].ravel(), clean.values["distance"].ravel())[0, 1]
    assert once < 0.8 < often


def test_questions_without_an_answer_keep_their_score():
    x, y = data(n=60, d=6)
    refused = collect_recourse(lambda a, b, s: Linear.fitted(a, b, refuses=True), x, y, models=2)
    assert np.array_equal(refused.values["distance"], np.abs(refused.values["score"]))
    assert not refused.values["recovered_margin"].any()


def test_pools_that_cannot_be_used_are_refused():
    x, y = data(n=20, d=3)
    for wrong in ((x, y[:-1]), (x, np.zeros(20)), (x[0], y)):
        with pytest.raises(InputError, match="two labels"):
            collect_recourse(exact, *wrong, models=2)
    with pytest.raises(InputError, match="at least 2 models"):
        collect_recourse(exact, x, y, models=1)
    with pytest.raises(InputError, match="repeats: expected at least 1"):
        collect_recourse(exact, x, y, models=2, repeats=0)


def test_overfitted_models_are_found_and_the_signed_margin_finds_more(overfitted):
    found = {
        name: auc(*against_first(overfitted, attack, signal))
        for name, attack, signal in (
            ("distance", CounterfactualDistance(), "distance"),
            ("global", CounterfactualLRT("global"), "distance"),
            ("local", CounterfactualLRT("local"), "distance"),
            ("direction", Threshold(member_when_low=False), "recovered_margin"),
            ("direction LRT", LikelihoodRatio("identity"), "recovered_margin"),
            ("direction density", PooledDensityRatio(), "recovered_margin"),
        )
    }
    assert min(found.values()) > 0.55
    assert found["direction"] > found["distance"]
    assert min(found["direction LRT"], found["direction density"]) > found["global"] + 0.02


def test_models_that_were_never_trained_leak_nothing():
    x, y = data(n=1200, d=20)
    signals = collect_recourse(repeated_noise, x, y, models=7, repeats=2)
    result = certify(signals, suite=[line.row(1) for line in RECOURSE])
    for attack in result.attacks:
        low, high = auc_interval(attack.curve, confidence=0.9999)
        assert low <= 0.5 <= high, attack.title
    assert result.verdict != "leak"


def test_the_suite_runs_the_attacks_that_the_signals_allow(overfitted):
    names = {(r.name, r.signal) for r in fitting(overfitted)}
    assert {(line.name, line.signal) for line in RECOURSE} - {("AveragingAttack", "averaged_distance")} <= names
    assert {("LabelLikelihoodRatio", "label"), ("LikelihoodRatio", "attributions")} <= names
    assert "AveragingAttack" not in {name for name, _ in names}
    one = {k: v[:1] for k, v in overfitted.values.items()}
    alone = Signals(overfitted.membership[:1], one, None, {"recourse": {}})
    names = {r.name for r in fitting(alone)}
    assert names == {"CounterfactualDistance", "SignedDistance", "DirectionAttack", "Threshold"}
