"""AsPublishedLaplace does what was published, and says that it is not private; and it is not."""

from __future__ import annotations

import numpy as np
import pytest
from recourse_privacy_oracle import two_gaussians
from sklearn.linear_model import LogisticRegression

from audit.suites.paper_b_recourse.as_published import AsPublishedLaplace
from safexplain.errors import ConfigurationError, InputError


def plain(n=400, d=6, seed=0, **options):
    X, y = two_gaussians(n, d, seed)
    return LogisticRegression(**options).fit(X, y), X


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize("published_formula", [True, False])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0])
def test_one_answer_tells_the_direction_of_the_weights_exactly(epsilon, published_formula):
    model, X = plain()
    answer = AsPublishedLaplace(model, epsilon=epsilon, published_formula=published_formula).explain(X)
    asked = ~answer.favourable
    assert asked.sum() > 50
    for change in answer.change[asked]:
        assert abs(cosine(change, model.coef_[0])) > 1 - 1e-12


def test_neighbouring_data_sets_answer_along_different_lines_so_that_no_epsilon_holds():
    X, y = two_gaussians(200, 4)
    other = y.copy()
    other[0] = 1 - y[0]
    first, second = (AsPublishedLaplace(LogisticRegression().fit(X, t), epsilon=0.1) for t in (y, other))
    weights = LogisticRegression().fit(X, y).coef_[0]
    along = [
        np.abs([cosine(c, weights) for c in one.explain(X).change if np.linalg.norm(c) > 0]) > 1 - 1e-12
        for one in (first, second)
    ]
    assert len(along[0]) > 50
    assert len(along[1]) > 50
    assert along[0].all()
    assert not along[1].any()


def test_it_carries_no_guarantee_and_says_why():
    mechanism = AsPublishedLaplace(plain()[0], epsilon=0.5)
    assert not hasattr(mechanism, "guarantee")
    assert not hasattr(mechanism.explain(np.zeros(6)), "guarantee")
    assert mechanism.claim["is_private"] is False
    assert (mechanism.claim["epsilon"], mechanism.claim["delta"]) == (None, None)
    assert "direction" in mechanism.claim["why"]


def test_the_length_follows_the_published_steps():
    model, X = plain()
    mechanism = AsPublishedLaplace(model, epsilon=2.0, random_state=5, score_bound=30.0)
    answer = mechanism.explain(X)
    noise = np.random.RandomState(5).randint(0, 2**32, size=4, dtype=np.uint32)
    noisy = model.predict_proba(X)[:, 1] + np.random.default_rng(noise).laplace(scale=0.5, size=len(X))
    clamped = np.clip(noisy, 0, 1)
    with np.errstate(divide="ignore"):
        score = np.log(clamped / (1 - clamped))
    finite = np.isfinite(score)
    np.testing.assert_allclose(answer.score[finite], score[finite], rtol=1e-9, atol=1e-9)
    assert (answer.score[~finite] == np.sign(score[~finite]) * 30).all()
    unit = model.coef_[0] / np.linalg.norm(model.coef_)
    asked = score < 0
    np.testing.assert_allclose(answer.change[asked], -answer.score[asked][:, None] * unit, rtol=1e-9, atol=1e-12)
    assert (answer.change[~asked] == 0).all()
    np.testing.assert_allclose(answer.distance[asked], np.abs(answer.score[asked]), rtol=1e-9)


@pytest.mark.parametrize(("epsilon", "share"), [(0.5, 0.7788), (1.0, 0.6065), (5.0, 0.0821)])
def test_clamping_makes_as_many_scores_infinite_as_the_formula_says(epsilon, share):
    model, _ = plain()
    middle = np.tile(-model.intercept_[0] * model.coef_[0] / (model.coef_[0] @ model.coef_[0]), (20_000, 1))
    answer = AsPublishedLaplace(model, epsilon=epsilon, score_bound=700.0, random_state=0).explain(middle)
    assert answer.censored.mean() == pytest.approx(share, abs=0.012)  # exp(-epsilon / 2) at probability 1/2


def test_answers_are_finite_all_the_same_and_flagged():
    model, X = plain()
    answer = AsPublishedLaplace(model, epsilon=0.01, score_bound=12.0).explain(X)
    for name in ("counterfactual", "distance", "score"):
        assert np.isfinite(getattr(answer, name)).all()
    assert (answer.censored == (np.abs(answer.score) == 12)).all()
    assert answer.censored.mean() > 0.9


def test_the_published_formula_misses_the_target_and_the_square_reaches_it():
    model, X = plain(C=1e-3)
    assert np.linalg.norm(model.coef_) < 0.9
    short, right = (
        AsPublishedLaplace(model, epsilon=1e6, published_formula=p, random_state=0).explain(X) for p in (True, False)
    )
    asked = ~right.favourable
    np.testing.assert_allclose(model.decision_function(right.counterfactual[asked]), 0, atol=1e-4)
    assert (model.decision_function(short.counterfactual[asked & (right.score < -0.05)]) < -1e-3).all()
    assert right.valid.all()
    assert not short.valid[asked & (right.score < -0.05)].any()


def test_the_favourable_class_may_be_the_first_of_the_model():
    model, X = plain()
    up, down = (AsPublishedLaplace(model, epsilon=1e6, classes=c, random_state=0).explain(X) for c in ((0, 1), (1, 0)))
    np.testing.assert_allclose(up.score, -down.score, atol=0.2)


def test_models_of_other_classes_are_refused():
    model, X = plain()
    with pytest.raises(ConfigurationError, match="classes"):
        AsPublishedLaplace(model, classes=("no", "yes"))
    with pytest.raises(InputError, match=r"expected shape \(n, 6\)"):
        AsPublishedLaplace(model).explain(X[:, :2])
