"""AsPublishedLaplace does what was published, and says that it is not private; and it is not."""

import numpy as np
import pytest
from privacy_oracle import two_gaussians
from sklearn.linear_model import LogisticRegression

from audit.suites.paper_b_recourse.as_published import AsPublishedLaplace


def plain(n=400, d=6, seed=0, **options):
    X, y = two_gaussians(n, d, seed)
    return LogisticRegression(**options).fit(X, y), X


def cosine(a, b):
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize(("epsilon", "published_formula"), [(0.01, True), (1.0, False)])
def test_one_answer_tells_the_direction_of_the_weights_exactly(epsilon, published_formula):
    model, X = plain()
    answer = AsPublishedLaplace(model, epsilon=epsilon, published_formula=published_formula).explain(X)
    asked = ~answer.favourable
    assert asked.sum() > 50
    for change in answer.change[asked]:
        assert abs(cosine(change, model.coef_[0])) > 1 - 1e-12


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
