"""Mechanisms with a public preprocessing: people's frames go in and come out, training sees scaled rows."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import nn

from safexplain.dp import DPFineTuner, DPLogisticRegression
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import L1, Constraints, DPModelRecourse, LaplaceScore, Preprocessing

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

PEOPLE = Preprocessing(
    numeric={"age": (18, 100), "income": (0, 300_000), "debt": (0, 50_000)},
    categories={"job": ["none", "clerk", "manager"]},
    ordinal={"degree": ["none", "school", "college"]},
    special={"debt": [-9, -7]},
    missing=("job",),
    units={"income": "USD", "debt": "USD"},
)
CLASSES = ("bad", "good")
ALLOWED = Constraints(PEOPLE.features, immutable=("age",), integer=("income", "debt"), increasing=("degree",))
WEIGHTS = {"income": 1e-5, "debt": -5e-5, "job=manager": 0.5, "degree": 0.5}


def population(n=1500, seed=0):
    """Applicants with special and missing values, and who repaid."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": rng.integers(0, 300_000, n),
            "job": pd.Categorical(rng.choice(["none", "clerk", "manager"], n)),
            "age": rng.integers(18, 90, n),
            "degree": rng.choice(["none", "school", "college"], n),
            "debt": rng.integers(0, 50_000, n),
        },
        index=rng.permutation(n) + 7,
    )
    logit = 3 * (frame["income"] / 150_000 - 1) - frame["debt"] / 25_000 + 1 + (frame["job"] == "manager")
    y = pd.Series(np.where(rng.random(n) < expit(2 * logit), "good", "bad"), index=frame.index)
    frame.loc[rng.random(n) < 0.1, "debt"] = rng.choice([-9, -7])
    frame.loc[rng.random(n) < 0.1, "job"] = None
    return frame, y


EVERY = {
    "dp": DPModelRecourse,
    "score": lambda **options: LaplaceScore(public_weights=WEIGHTS, **options),
}
every = pytest.mark.parametrize("name", EVERY)


def made(name="dp", **options):
    given = {"epsilon": 4.0, "preprocessing": PEOPLE, "constraints": ALLOWED, "cost": L1(), "classes": CLASSES}
    return EVERY[name](**{**given, "random_state": 0, **options})


@pytest.fixture(scope="module")
def fitted():
    return {name: made(name).fit(*population()) for name in EVERY}


@every
def test_answers_stay_in_the_public_ranges_and_leave_special_and_missing_values_alone(name, fitted):
    asks, _ = population(400, seed=1)
    answer = fitted[name].explain(asks, infeasible="mark")
    found = answer.frame
    assert found.dtypes.equals(asks.dtypes)
    assert found["age"].equals(asks["age"])
    special = (asks["debt"] < 0) | asks["job"].isna()
    assert special.sum() > 50
    assert (found.loc[asks["debt"] < 0, "debt"] == asks.loc[asks["debt"] < 0, "debt"]).all()
    assert found["job"].isna().equals(asks["job"].isna())
    assert found.loc[asks["debt"] >= 0, "debt"].between(0, 50_000).all()
    assert found["income"].between(0, 300_000).all()
    moved = (answer.change != 0).any(axis=1)
    assert moved.sum() > 20
    assert (found.astype(str) != asks.astype(str)).any(axis=1).to_numpy()[moved].all()
    again = fitted[name].rows(found)  # what came out is what was answered
    assert (again == answer.counterfactual).all()


def test_training_is_that_of_the_centred_regression_on_scaled_rows():
    frame, y = population()
    scaled = PEOPLE.transform(frame)
    same = DPLogisticRegression(
        4.0, norm_bound=PEOPLE.norm_bound, classes=CLASSES, centre=True, random_state=0
    ).fit(scaled, y)  # fmt: skip
    mechanism = made().fit(frame, y)
    assert (mechanism.private.coef_ == same.coef_).all()
    assert mechanism.statement == same.privacy_
    answer = mechanism.explain(frame)
    np.testing.assert_allclose(answer.score, same.decision_function(scaled), atol=1e-9)
    assert (same.predict(PEOPLE.transform(answer.frame)) == "good").all()


def test_a_noised_score_is_that_of_the_scaled_rows():
    frame, y = population()
    scaled = PEOPLE.transform(frame)
    plain = LaplaceScore(epsilon=4.0, norm_bound=PEOPLE.norm_bound, classes=CLASSES, random_state=0).fit(scaled, y)
    assert (made("score").fit(frame, y).score(frame).score == plain.score(scaled).score).all()


def test_public_weights_of_a_public_frame_are_about_the_table():
    frame, y = population()
    mechanism = LaplaceScore(epsilon=4.0, preprocessing=PEOPLE, classes=CLASSES, random_state=0)
    weights = mechanism.public_fit(frame, y, records=1500)
    plain = LaplaceScore(epsilon=4.0, norm_bound=PEOPLE.norm_bound, classes=CLASSES, random_state=0)
    np.testing.assert_allclose(weights * PEOPLE.scale, plain.public_fit(PEOPLE.transform(frame), y, records=1500))
    answer = replace(mechanism, public_weights=weights).fit(frame, y).explain(frame[:50], infeasible="mark")
    assert answer.valid.all()


def test_training_numbers_outside_of_the_public_range_count_as_its_ends():
    frame, y = population()
    rich = frame.assign(income=frame["income"].mask(frame["income"] > 250_000, 10**9))
    ends = frame.assign(income=frame["income"].mask(frame["income"] > 250_000, 300_000))
    assert (made().fit(rich, y).private.coef_ == made().fit(ends, y).private.coef_).all()
    with pytest.raises(InputError, match="got 1000000000 in rows"):
        made().fit(ends, y).explain(rich)


def test_a_model_trained_elsewhere_on_scaled_rows_is_folded_back():
    frame, y = population()
    model = DPLogisticRegression(4.0, norm_bound=PEOPLE.norm_bound, classes=["good", "bad"], random_state=0)
    model.fit(PEOPLE.transform(frame), y)
    answer = DPModelRecourse(
        model, preprocessing=PEOPLE, constraints=ALLOWED, favourable="good"
    ).explain(frame[:200], infeasible="mark")  # fmt: skip
    assert (answer.favourable == (model.predict(PEOPLE.transform(frame[:200])) == "good")).all()
    assert (model.predict(PEOPLE.transform(answer.frame))[answer.valid] == "good").all()
    assert answer.valid.mean() > 0.9


def test_a_private_network_on_scaled_rows_answers_in_units():
    frame, y = population(600)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(len(PEOPLE.columns), 8), nn.ReLU(), nn.Linear(8, 2))
    rows = torch.tensor(PEOPLE.transform(frame), dtype=torch.float32)
    data = torch.utils.data.TensorDataset(rows, torch.tensor((y == "good").to_numpy().astype(int)))
    tuned = DPFineTuner(
        network, data, epsilon=8.0, delta=1e-5, steps=30, batch_size=100, lr=0.1, seed=0, progress=lambda *_: None
    ).fit()
    answer = DPModelRecourse(tuned, preprocessing=PEOPLE, constraints=ALLOWED, cost=L1()).explain(
        frame[:40], infeasible="mark"
    )
    with torch.no_grad():
        after = tuned.model(torch.tensor(PEOPLE.transform(answer.frame), dtype=torch.float32)).diff(dim=1)[:, 0]
    assert (after.numpy()[answer.valid] >= 0).all()
    assert (answer.valid & ~answer.favourable).sum() > 5
    assert answer.frame.dtypes.equals(frame.dtypes)


@every
def test_the_guarantee_names_the_preprocessing(name, fitted):
    for guarantee in (made(name).guarantee, fitted[name].guarantee):
        assert guarantee.preprocessing == PEOPLE.digest
        assert any("categories, levels, special values" in line for line in guarantee.assumptions)
    assert not any("special values" in line for line in DPModelRecourse(norm_bound=1.0).guarantee.assumptions)


def test_limits_are_about_who_may_change_not_about_special_values(fitted):
    """The value column of a special row holds the middle of the range, whatever the limits."""
    asks, _ = population(200, seed=3)
    asks = asks[(asks["debt"] <= 10_000)]
    assert (asks["debt"] < 0).any()
    allowed = Constraints(("debt", "income"), upper={"debt": 10_000})
    answer = DPModelRecourse(fitted["dp"].private, preprocessing=PEOPLE, constraints=allowed).explain(asks)
    assert answer.frame["debt"].max() <= 10_000
    limited = DPModelRecourse(fitted["dp"].private, preprocessing=PEOPLE, constraints=allowed)
    with pytest.raises(InputError, match="expected debt from 0 to 10000"):
        limited.explain(population()[0])


def test_no_answer_is_a_number_that_reads_as_a_special_value():
    people = Preprocessing(numeric={"months": (0, 10)}, special={"months": [0, 5]})
    frame = pd.DataFrame({"months": np.arange(1, 11).repeat(40)})
    frame = frame[frame["months"] != 5]
    y = (frame["months"] < 5).astype(int)
    allowed = Constraints(("months",), integer=("months",))
    recourse = DPModelRecourse(
        epsilon=20.0, preprocessing=people, constraints=allowed, random_state=0
    ).fit(frame, y)  # fmt: skip
    months = [6, 7, 8]
    for target in (-2.0, -1.0, 0.0, 1.0, 2.0):
        answer = DPModelRecourse(recourse.private, preprocessing=people, constraints=allowed, target=target)
        found = answer.explain(pd.DataFrame({"months": months}), infeasible="mark")
        assert not np.isin(found.frame["months"], [0, 5]).any()


def test_public_weights_are_given_by_feature_or_column():
    for given, message in (
        ({"wage": 1}, "unknown feature 'wage'"),
        ({"job": 1}, "public_weights: expected a number, but job is a category"),
        ({"age": 0}, "not all 0"),
        ([1.0, 2.0], "one number for each of the 10 columns"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            LaplaceScore(preprocessing=PEOPLE, public_weights=given)


def test_a_model_of_other_columns_is_refused():
    model = DPLogisticRegression(1.0, norm_bound=1.0, classes=CLASSES, random_state=0)
    model.fit(np.random.default_rng(0).normal(size=(300, 4)), np.array(CLASSES)[np.arange(300) % 2])
    with pytest.raises(ConfigurationError, match=r"expected 10 columns, .* it was trained on 4.*transform"):
        DPModelRecourse(model, preprocessing=PEOPLE)
    named = Preprocessing(numeric=dict.fromkeys("abcd", (0, 1)))
    other = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 4)), columns=list("abce"))
    model.fit(other, np.array(CLASSES)[np.arange(300) % 2])
    with pytest.raises(
        ConfigurationError,
        match=r"expected the columns of the preprocessing, a, b, c, d, but it was trained on a, b, c, e",
    ):
        DPModelRecourse(model, preprocessing=named)


@every
def test_a_frame_of_labels_without_a_preprocessing_is_told_of_it(name):
    kind = {"score": LaplaceScore, "dp": DPModelRecourse}[name]
    frame, y = population(50)
    for asks in (frame, pl.from_pandas(frame)):
        with pytest.raises(InputError, match=r"X: expected numbers.*preprocessing=Preprocessing"):
            kind(norm_bound=1.0, classes=CLASSES).fit(asks, y)


def test_without_an_intercept_rows_are_not_centred():
    frame, y = population(400)
    same = DPLogisticRegression(
        4.0, norm_bound=PEOPLE.norm_bound, classes=CLASSES, intercept_scaling=0.0, random_state=0
    ).fit(PEOPLE.transform(frame), y)  # fmt: skip
    assert (made(intercept_scaling=0.0).fit(frame, y).private.coef_ == same.coef_).all()


def asked(**rules):
    frame, y = population(600)
    rules = Constraints(PEOPLE.features, immutable=("income", "debt"), **rules)
    model = DPModelRecourse(epsilon=50.0, classes=CLASSES, preprocessing=PEOPLE, constraints=rules, random_state=0)
    frame = frame[frame["job"].notna()]
    return frame, model.fit(frame, y.loc[frame.index]).explain(frame, infeasible="mark")


def test_nobody_is_told_to_become_what_the_lender_does_not_call_reachable():
    for labels in (["manager"], ["manager", "clerk"]):
        frame, answer = asked(reachable={"job": labels})
        changed = np.asarray(answer.frame["job"] != frame["job"])
        assert changed.any()
        assert set(answer.frame["job"][changed]) <= set(labels)


def test_without_a_word_no_category_changes():
    frame, answer = asked()
    assert (answer.frame["job"] == frame["job"]).all()


@pytest.mark.parametrize(
    ("reachable", "message"),
    [
        ({"job": ["king"]}, "labels of job among ['none', 'clerk', 'manager'], got 'king'"),
        ({"income": [1]}, "'income' is not a category of the preprocessing"),
        (7, "expected labels by feature"),
    ],
)
def test_what_cannot_be_reached_is_told(reachable, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        asked(reachable=reachable)


def test_labels_need_a_preprocessing():
    with pytest.raises(ConfigurationError, match="pass preprocessing=Preprocessing"):
        DPModelRecourse(constraints=Constraints(("job",), reachable={"job": ["manager"]}))
