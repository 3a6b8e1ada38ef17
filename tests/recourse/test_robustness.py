"""Answers withstand every shift of the weights up to the stated one."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from torch import nn

from safexplain.dp import DPLogisticRegression
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import L1, L2, Constraints, DPModelRecourse, Preprocessing
from safexplain.recourse.mechanisms.dp_model import measured_shift
from safexplain.recourse.solution import Solution


def people(n=2000, d=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, d)) + 0.8 * (2 * y - 1)[:, None] * np.linspace(0.2, 1, d), y


def fitted(seed=0, **options):
    x, y = people(seed=seed)
    return DPModelRecourse(epsilon=2.0, norm_bound=6.0, random_state=seed, **options).fit(x, y)


def weights_of(mechanism):
    return np.append(mechanism.private.coef_[0], mechanism.private.intercept_[0])


def lifted(rows):
    return np.c_[rows, np.ones(len(rows))]


@pytest.mark.parametrize(
    ("cost", "constraints"),
    [
        (L2(), None),
        (L1(), Constraints(6, lower=-5, upper=5, immutable=(0,))),
        (L2(), Constraints(6, lower=-9, upper=9, integer=(2, 5))),
    ],
)
def test_answers_stay_valid_under_every_shift_up_to_the_stated_one(cost, constraints):
    shift, queries = 0.2, people(seed=1)[0][:120]
    mechanism = fitted(shift=shift, cost=cost, constraints=constraints)
    if constraints is not None:
        queries = np.clip(np.where(constraints.whole, np.rint(queries), queries), constraints.low, constraints.high)
    answer = mechanism.explain(queries, infeasible="mark")
    changed = answer.valid & ~answer.favourable
    assert changed.sum() > 40
    z = lifted(answer.counterfactual[changed])
    worst = -shift * z / np.linalg.norm(z, axis=1, keepdims=True)
    assert ((weights_of(mechanism) + worst) * z).sum(axis=1).min() >= -1e-9
    for move in np.random.default_rng(0).normal(size=(50, 7)):
        assert (z @ (weights_of(mechanism) + shift * move / np.linalg.norm(move))).min() >= -1e-9
    if constraints is not None:
        assert constraints.satisfied(answer.x, answer.counterfactual).all()
    plain = fitted(cost=cost, constraints=constraints).explain(queries, infeasible="mark")
    assert (answer.distance[changed] >= plain.distance[changed] - 1e-12).all()
    np.testing.assert_array_equal(answer.favourable, plain.favourable)


def test_weights_are_those_of_the_scaled_columns():
    data = load_breast_cancer(as_frame=True)
    frame = data.data.iloc[:, :8]
    ranges = Preprocessing(numeric={name: (0.0, float(1.2 * frame[name].max())) for name in frame.columns})
    mechanism = DPModelRecourse(epsilon=4.0, preprocessing=ranges, shift=0.1, random_state=0).fit(frame, data.target)
    answer = mechanism.explain(frame, infeasible="mark")
    changed = answer.valid & ~answer.favourable
    z = lifted(ranges.scaled(answer.counterfactual[changed]))
    assert changed.any()
    assert z @ weights_of(mechanism) == pytest.approx(0.1 * np.linalg.norm(z, axis=1), rel=1e-6)


def test_a_shift_longer_than_the_weights_leaves_no_answer_and_no_error():
    mechanism = fitted(shift=50.0)
    answer = mechanism.explain(people(seed=1)[0][:50], infeasible="mark")
    assert not answer.valid[~answer.favourable].any()
    np.testing.assert_array_equal(answer.counterfactual, answer.x)
    assert not answer.proven[~answer.favourable].any()


def test_a_shift_is_measured_on_two_trainings():
    first, second = fitted(seed=2, cost=L1()), fitted(seed=3, cost=L1())
    queries = people(seed=4)[0]
    shift = first.measured_shift(second, queries, share=0.9)
    z = lifted(queries)
    gap = np.median(np.abs(z @ weights_of(first)) / np.linalg.norm(z, axis=1))
    doubled = 64 * shift / gap / 2 ** np.floor(np.log2(64 * shift / gap))
    assert 2**12 * doubled == pytest.approx(np.rint(2**12 * doubled), abs=1e-6)  # twelve halvings of doubled 64ths
    for asked, enough in ((shift, True), (shift / 4, False)):
        found = fitted(seed=2, cost=L1(), shift=asked).explain(queries)
        moved = found.counterfactual[~found.favourable]
        assert ((second.private.decision_function(moved) >= 0).mean() >= 0.9) == enough
    assert first.measured_shift(first, queries) == 0.0


def test_a_measured_shift_is_the_smallest_that_will_do():
    """Answers stand at the shift itself, and the other model accepts from .31 on: .1, .2, .4, and twelve halvings."""

    def answers(shift):
        no = np.zeros(4, dtype=bool)
        return Solution(np.zeros((4, 1)), np.full((4, 1), shift), ~no, no * 1.0, no * 1.0, no, no, proven=no)

    found = measured_shift(answers, lambda rows: rows[:, 0] >= 0.31, 0.1, 1.0)
    assert found == pytest.approx(0.2 + 0.2 * 2253 / 2**12, rel=1e-12)
    with pytest.raises(ConfigurationError, match=r"share: expected a number in \(0, 1\]"):
        measured_shift(answers, lambda rows: rows[:, 0] >= 0.3, 0.1, 0.0)


def test_what_is_not_linear_is_refused_by_name():
    x, y = people()
    several = DPLogisticRegression(2.0, norm_bound=6.0, classes=[0, 1, 2], random_state=0).fit(x, y)
    with pytest.raises(ConfigurationError, match=r"shift: .*linear model with two classes.*target="):
        DPModelRecourse(several, favourable=1, shift=0.1)
    with pytest.raises(ConfigurationError, match="measured_shift: expected a linear model"):
        DPModelRecourse(several, favourable=1).measured_shift(fitted(), x)
    with pytest.raises(ConfigurationError, match="shift must be at least 0"):
        DPModelRecourse(shift=-1.0)
    with pytest.raises(ConfigurationError, match="retrained"):
        fitted().measured_shift(nn.Linear(2, 2), x)
    with pytest.raises(ConfigurationError, match="retrained: expected 6 columns, got 2"):
        fitted().measured_shift(DPModelRecourse(norm_bound=1.0).fit(x[:, :2], y), x)
    with pytest.raises(InputError, match="expected some unfavourable queries"):
        fitted().measured_shift(fitted(1), 100 * weights_of(fitted())[None, :-1])
