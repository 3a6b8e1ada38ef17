"""LaplaceScore and its noise: no record is told beyond epsilon, and weights cannot be read from answers."""

import pickle
from dataclasses import fields

import numpy as np
import pytest
from privacy_oracle import SIDES, largest_loss, leaning, log_probabilities, two_gaussians
from scipy.stats import kstest, laplace

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.recourse import Constraints, LaplaceScore
from safexplain.recourse.mechanisms import laplace_score as module
from safexplain.recourse.mechanisms.laplace_score import SLACK, StableScore, laplace_grid, laplace_release

UP = np.array([1.0, 0.0])


def mechanism(**options):
    return LaplaceScore(**{"epsilon": 1.0, "norm_bound": 5.0, "random_state": 0, **options})


def trained(X, y, **options):
    return mechanism(**options).fit(X, y)


def exact_score(fitted, x):
    """(n,) what no answer may tell: the logit without noise."""
    model = fitted._get("model")
    return model.lifted(np.atleast_2d(x)) @ model.weights


def worst_pair(**options):
    """Mechanisms fitted on two neighbouring data sets that differ nearly as much as any."""
    given = {"norm_bound": 1.0, "intercept_scaling": 0.0, "regularization": 5.0, **options}
    return [trained(*leaning(side), **given) for side in SIDES]


def exact_loss(pair, x):
    """Largest privacy loss of one answer, from the exact probabilities of everything that may be released."""
    logs = []
    for one in pair:
        model, bound = one._get("model"), one.score_bound
        sensitivity = float(model.sensitivity(model.lifted(x[None]))[0])
        logs.append(log_probabilities(exact_score(one, x)[0], sensitivity, one.epsilon, -bound, bound))
    return largest_loss(*logs)


@pytest.mark.parametrize(("epsilon", "score_bound"), [(0.1, 10.0), (1.0, 0.5), (4.0, 10.0)])
def test_the_exact_loss_of_an_answer_is_within_epsilon_and_nearly_reaches_it(epsilon, score_bound):
    pair = worst_pair(epsilon=epsilon, score_bound=score_bound)
    losses = [exact_loss(pair, x) for x in (UP, -3 * UP, np.array([0.3, 2.0]), np.array([0.0, 0.05]))]
    assert 0.8 * epsilon < max(losses) <= epsilon * (1 + 1e-9)


def test_add_remove_accounting_does_not_cover_a_substitution():
    pair = worst_pair(adjacency="add_remove", regularization=5.0)
    assert exact_loss(pair, UP) > 1.6
    X, y = leaning(SIDES[0])
    assert 0.8 < exact_loss([pair[0], trained(X[:-1], y[:-1], **changed(pair[0]))], UP) <= 1.0


def changed(fitted):
    names = ("adjacency", "norm_bound", "intercept_scaling", "regularization")
    return {name: getattr(fitted, name) for name in names}


@pytest.mark.parametrize("seed", range(3))
def test_thirty_adversarial_substitutions_each_keep_epsilon(seed):
    rng = np.random.default_rng(seed)
    X, y = two_gaussians(40, 3, seed)
    fitted = trained(X, y, norm_bound=2.0, regularization=rng.choice([0.3, 3.0, 30.0]))
    options = {"norm_bound": 2.0, "regularization": fitted.regularization}
    largest = 0.0
    for _ in range(10):
        other_X, other_y = X.copy(), y.copy()
        at = rng.integers(40)
        other_X[at] = 2.0 * np.sign(rng.normal(size=3)) * rng.choice([1.0, 1e6])  # shortened, whatever it is
        other_y[at] = 1 - y[at]
        other = trained(other_X, other_y, **options)
        move = other._get("model").weights - fitted._get("model").weights
        assert np.linalg.norm(move) <= fitted._get("model").stability
        scale = fitted._get("model").norm_bound * np.hypot(1, 0.3)
        largest = max(
            largest, *(exact_loss([fitted, other], q) for q in (move[:3] * scale, -7 * move[:3] * scale, X[0]))
        )
    assert 0.1 < largest <= 1.0 + 1e-9


def test_a_query_counts_in_units_of_the_norm_bound_with_the_constant_beside_it():
    """(3, 4) at norm bound 5 and constant .75 is (.6, .8, .75) / 1.25, of length 1."""
    model = StableScore(np.array([1.0, 2.0, 3.0]), 5.0, 0.75, 0.1)
    lifted = model.lifted(np.array([[3.0, 4.0], [6.0, 8.0]]))
    np.testing.assert_allclose(lifted, [[0.48, 0.64, 0.6], [0.96, 1.28, 0.6]], rtol=1e-15)
    np.testing.assert_allclose(model.sensitivity(lifted), [0.1, 0.1 * np.hypot(1.6, 0.6)], rtol=1e-15)
    assert model.sensitivity(np.zeros((1, 3))) == pytest.approx(1e-13)


def test_noise_is_scaled_to_the_query_as_it_comes():
    fitted = trained(*two_gaussians(500, 2), regularization=20.0, score_bound=50.0)
    for x in (np.array([0.5, -0.2]), np.array([40.0, 9.0])):  # the second is longer than norm_bound
        noise = fitted.score(np.tile(x, (20_000, 1))).score - exact_score(fitted, x)
        length = np.linalg.norm([*(x / 5.0), 0.3]) / np.hypot(1, 0.3)
        assert kstest(noise, laplace(scale=length * 2 / 20.0).cdf).pvalue > 1e-3
        assert kstest(noise, laplace(scale=length * 2.2 / 20.0).cdf).pvalue < 1e-3


def test_training_rows_are_shortened_and_queries_are_not():
    X, y = two_gaussians(300, 2)
    X *= (5.0 / np.linalg.norm(X, axis=1))[:, None]
    near, far = (trained(X * s, y) for s in (1.0, 1000.0))
    np.testing.assert_allclose(near._get("model").weights, far._get("model").weights, atol=1e-5)
    assert exact_score(near, X[0] * 3)[0] != pytest.approx(exact_score(near, X[0])[0])


def test_directions_are_those_of_the_public_weights_whatever_the_data():
    public, (X, y) = np.array([1.0, -0.5, 0.2]), two_gaussians(400, 3)
    for data in ((X, y), (X[:, ::-1] * [1, -1, 3], 1 - y)):
        change = trained(*data, public_weights=public, score_bound=3.0).explain(2 * X[:50]).change
        moved = change[np.linalg.norm(change, axis=1) > 0]
        assert len(moved) > 5
        np.testing.assert_allclose(moved @ public, np.linalg.norm(moved, axis=1) * np.linalg.norm(public))


def test_neither_the_answers_nor_the_printed_mechanism_hold_weights():
    fitted = trained(*two_gaussians(400, 3), public_weights=[1.0, 1.0, 1.0])
    answer = fitted.explain(np.zeros(3))
    assert answer.table is None
    arrays = [v for v in (*vars(answer).values(), *vars(fitted.score(np.zeros(3))).values()) if np.ndim(v)]
    numbers = np.concatenate([np.ravel(v) for v in arrays])
    private = np.append(fitted._get("model").weights, np.linalg.norm(fitted._get("model").weights))
    assert not np.isclose(numbers[:, None], private).any()
    for text in (repr(fitted), repr(fitted._get("model")), str(fitted.guarantee), str(fitted.guarantee.to_dict())):
        assert not any(f"{w:.5f}"[:7] in text for w in private)
    assert {name for name in vars(fitted) if not name.startswith("_")} == {f.name for f in fields(fitted)}


def test_the_decision_is_that_of_the_noised_score():
    X, y = two_gaussians(500, 2)
    fitted = trained(X, y, epsilon=0.05, regularization=30.0, public_weights=[1.0, 1.0])
    answer = fitted.explain(np.tile(X[:1] * 0, (400, 1)))
    assert (answer.favourable == (answer.score >= 0)).all()
    assert 0.2 < answer.favourable.mean() < 0.8  # the private decision would be the same for all
    assert (answer.change[answer.favourable] == 0).all()
    assert (answer.distance[answer.favourable] == 0).all()
    assert answer.valid.all()


def test_the_counterfactual_reaches_the_target_by_the_released_score():
    public = np.array([0.5, 2.0])
    answer = trained(*two_gaussians(500, 2), public_weights=public, target=0.3).explain(two_gaussians(50, 2, 1)[0])
    asked = ~answer.favourable
    np.testing.assert_allclose((answer.score + answer.change @ public)[asked], 0.3, atol=1e-9)


def test_constraints_and_diverse_answers_cost_one_draw_of_noise():
    rules = Constraints(3, immutable=(0,), lower=-8, upper=8)
    fitted = trained(*two_gaussians(500, 3), public_weights=[3.0, 1.0, 1.0], constraints=rules)
    queries = -np.ones((20, 3))
    first, second = fitted.explain_diverse(queries, 2)
    assert (first.score == second.score).all()
    assert (first.change[:, 0] == 0).all()
    asked = ~first.favourable
    assert asked.sum() > 5
    assert (first.distance[asked] <= second.distance[asked] + 1e-12).all()
    assert (first.change[asked] != second.change[asked]).any()


def test_without_public_weights_explain_points_to_score():
    with pytest.raises(ConfigurationError, match=r"call score\(x\)"):
        trained(*two_gaussians(50, 2)).explain(np.zeros(2))


def test_weights_of_public_data_are_on_the_scale_of_the_private_score():
    X, y = two_gaussians(6000, 5)
    given = mechanism(regularization=50.0, target=0.2)
    public = given.public_fit(X[5000:], y[5000:], records=5000)
    fitted = trained(X[:5000], y[:5000], regularization=50.0, target=0.2, public_weights=public)
    private = exact_score(fitted, np.eye(5)) - exact_score(fitted, np.zeros(5))
    assert np.linalg.norm(public) == pytest.approx(np.linalg.norm(private), rel=0.1)
    assert public @ private > 0.98 * np.linalg.norm(public) * np.linalg.norm(private)
    answer = fitted.explain(X[5000:])
    reached = exact_score(fitted, answer.counterfactual[~answer.favourable])
    assert (reached > 0).mean() > 0.9
    unlike = given.public_fit(X[5000:], y[5000:], records=50_000)  # regularised far less
    assert np.linalg.norm(unlike) > 1.5 * np.linalg.norm(public)


def test_the_favourable_class_is_the_second_of_the_pair():
    X, y = two_gaussians(500, 2)
    one, other = (trained(X, y, classes=c).score(X[:40] * 3) for c in ((0, 1), (1, 0)))
    assert (one.favourable != other.favourable).mean() > 0.9
    named = trained(X, np.array(["no", "yes"])[y], classes=("no", "yes")).score(X[:40] * 3)
    assert (named.favourable == one.favourable).all()


def test_seeds_repeat_the_answers_and_without_one_noise_is_fresh_after_copying():
    X, y = two_gaussians(200, 2)
    queries = X[:5]
    one, two = (trained(X, y, random_state=3) for _ in range(2))
    assert (one.score(queries).score == two.score(queries).score).all()
    assert not (one.score(queries).score == one.score(queries).score).any()  # a seed goes on
    fresh = trained(X, y, random_state=None)
    twin = pickle.loads(pickle.dumps(fresh))
    assert not np.isclose(fresh.score(queries).score, twin.score(queries).score, atol=1e-12).all()


def test_the_regularization_keeps_the_noise_small_by_default():
    fitted = trained(*two_gaussians(50, 2), epsilon=0.5)
    assert fitted.release(np.zeros((3, 2))).tolist() == [0.5] * 3
    assert fitted._get("model").stability / 0.5 == pytest.approx(0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"score_bound": -1.0},
        {"target": 11.0},
        {"regularization": 0.0},
        {"classes": (0, 1, 2)},
        {"public_weights": [0.0, 0.0]},
        {"public_weights": [np.nan, 1.0]},
        {"public_weights": "up"},
    ],
)
def test_parameters_that_make_no_sense_are_refused_at_once(wrong):
    with pytest.raises(ConfigurationError):
        mechanism(**wrong)


def test_public_weights_of_other_data_are_refused_before_training():
    with pytest.raises(ConfigurationError, match="public_weights: expected 2 numbers, one for each feature, got 1"):
        mechanism(public_weights=[1.0]).fit(*two_gaussians(50, 2))


def test_questions_that_cannot_be_answered_draw_no_noise():
    fitted = trained(*two_gaussians(50, 2), random_state=np.random.default_rng(5), public_weights=[1.0, 1.0])
    for bad in ([np.nan, 0.0], [1e300, 1e300], [1.0, 2.0, 3.0]):
        with pytest.raises(InputError):
            fitted.explain(bad)
    with pytest.raises(ConfigurationError, match="infeasible"):
        fitted.explain([0.0, 0.0], infeasible="ignore")
    assert fitted.random_state.random() == np.random.default_rng(5).random()


def test_public_data_need_a_label_a_row():
    with pytest.raises(InputError, match=r"y: expected \(m,\) labels, got shape \(\)"):
        mechanism().public_fit(np.zeros((3, 2)), 1, records=5)


def test_scores_that_float64_cannot_compute_closely_enough_are_refused(monkeypatch):
    monkeypatch.setattr(module, "EVALUATION_ERROR", 1e-16)
    with pytest.raises(RefusedError, match="scores in float64"):
        mechanism().fit(*two_gaussians(50, 2))


CASES = [
    (0.3, 0.01, -10.0, 10.0),
    (1.0, 0.5, 0.0, 3.3),
    (300.0, 1.0, -10.0, 10.0),
    (1.0, 6.0, -10.0, 10.0),
    (0.3, 1.0, 0.0, 3.3),
]
"""Sensitivities, epsilons, and public ranges."""


@pytest.mark.parametrize(("s", "epsilon", "low", "high"), CASES)
def test_values_within_the_sensitivity_are_never_told_apart_beyond_epsilon(s, epsilon, low, high):
    rng, options, worst = np.random.default_rng(0), (s, epsilon, low, high), 0.0
    for value in [*rng.uniform(low, high, 6), low, high, low - 5]:
        for other in (value + s, value - s, value + s * rng.uniform(), value + s + (high - low) * SLACK / 2):
            worst = max(worst, largest_loss(log_probabilities(value, *options), log_probabilities(other, *options)))
    assert worst <= epsilon * (1 + 1e-9)
    assert worst > 0.95 * epsilon


@pytest.mark.parametrize(
    ("given", "grid", "steps", "scale"),
    [
        ((1.0, 1.0, -10.0, 10.0), 2**-10, 1025, 1025),  # 1024 points a sensitivity, and one for the slack
        ((1.0, 0.5, -10.0, 10.0), 2**-10, 1025, 2050),
        ((1.0, 4.0, -10.0, 10.0), 2**-12, 4097, 1025),  # as many in the scale where that is smaller; 4097 / 4 upwards
        ((300.0, 1.0, -10.0, 10.0), 2**-6, 1281, 1281),  # never more than the interval, 20 = 1280 / 64
        ((1e-3, 1.0, 0.0, 2.0**45), 32.0, 2, 2),  # never finer than 2^-40 of the ends
    ],
)
def test_a_grid_has_the_steps_and_the_scale_worked_out_by_hand(given, grid, steps, scale):
    assert laplace_grid(*given) == (grid, steps, scale)


def test_half_of_the_noise_would_be_told_apart_beyond_epsilon():
    for s, epsilon, low, high in CASES:
        options = (s, epsilon, low, high, 0.5)
        assert largest_loss(log_probabilities(low, *options), log_probabilities(low + s, *options)) > 1.9 * epsilon


def releases(value, runs, *, seed=0, sensitivity=0.5):
    rng = np.random.default_rng(seed)
    return laplace_release(np.full(runs, value), np.full(runs, sensitivity), 1.0, -8.0, 8.0, rng)[0]


def test_releases_follow_the_probabilities_that_were_checked():
    draws = releases(0.3, 40_000)
    grid, _, scale = laplace_grid(0.5, 1.0, -8.0, 8.0)
    assert set(np.unique(draws / grid) % 1) == {0.0}
    assert kstest(draws, laplace(0.3, scale * grid).cdf).pvalue > 1e-3  # the grid is too fine to be seen here
    assert kstest(draws, laplace(0.3, scale * grid / 1.1).cdf).pvalue < 1e-3


def test_neighbours_release_the_same_numbers():
    """Noise in floating-point numbers has gaps that depend on the value; the grid has none."""
    near = [set(releases(v, 4000, seed=s, sensitivity=0.003).tolist()) for s, v in enumerate((0.3, 0.3 + 1e-9))]
    naive = [set((v + np.random.default_rng(s).laplace(size=4000)).tolist()) for s, v in enumerate((0.3, 0.3 + 1e-9))]
    assert len(near[0] & near[1]) > 1000
    assert not naive[0] & naive[1]


def test_releases_stay_within_the_public_range_and_say_so():
    rng = np.random.default_rng(0)
    values = np.array([-np.inf, -50.0, 0.0, 50.0, np.inf])
    noised, censored = laplace_release(values, np.full(5, 1e-3), 1.0, -8.0, 8.0, rng)
    assert (np.abs(noised) <= 8.0).all()
    assert (censored == (np.abs(noised) == 8.0)).all()
    assert not censored[2]


@pytest.mark.parametrize("sensitivity", [1e-300, 1e300])
def test_extreme_sensitivities_keep_to_integers_that_fit(sensitivity):
    noised, _ = laplace_release(np.array([0.7]), np.array([sensitivity]), 1.0, -1.0, 1.0, np.random.default_rng(0))
    assert abs(noised[0]) <= 1
    if sensitivity < 1e-9:
        assert noised[0] == pytest.approx(0.7, abs=1e-8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": 1e-12}, "epsilon: expected at least 9e-10"),  # 1025 / 2^40
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"low": 1.0}, "low < high"),
        ({"high": np.inf}, "low < high"),
    ],
)
def test_parameters_without_a_guarantee_are_refused(wrong, said):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=said):
        laplace_grid(**{"sensitivity": 1.0, "epsilon": 1.0, "low": 0.0, "high": 1.0, **wrong})
