"""Columns are matched by name: a table in another order is refused by whatever takes one, before it costs anything."""

import numpy as np
import pytest

from safexplain.dp import DPLogisticRegression
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import Constraints, DPModelRecourse, LaplaceScore

pd = pytest.importorskip("pandas")

NAMES = ("income", "debt", "age")
RULES = Constraints(NAMES, lower=-20, upper=20)
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 60)
RIGHT = pd.DataFrame(RNG.normal(size=(60, 3)) + Y[:, None], columns=NAMES)
WRONG = RIGHT[["debt", "income", "age"]]
MODEL = DPLogisticRegression(8.0, 1e-3, norm_bound=5.0, classes=[0, 1], random_state=0).fit(RIGHT.to_numpy(), Y)
MECHANISM = DPModelRecourse(MODEL, constraints=RULES)

ANSWERS = {
    "explain": MECHANISM.explain,
    "explain_diverse": lambda x: MECHANISM.explain_diverse(x, 2),
    "a list of rows": lambda x: MECHANISM.explain([x.iloc[0], x.iloc[1]]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_table_in_another_order_is_refused_and_the_right_one_answered(name):
    ANSWERS[name](RIGHT)
    with pytest.raises(InputError, match="expected the columns income, debt, age, in this order, got debt, income"):
        ANSWERS[name](WRONG)


FITS = {
    "dp": lambda **o: DPModelRecourse(delta=1e-3, **o),
    "score": lambda **o: LaplaceScore(public_weights=[1, 1, 1], **o),
}


@pytest.mark.parametrize("name", FITS)
def test_training_refuses_a_table_in_another_order_before_it_spends(name):
    mechanism = FITS[name](norm_bound=5.0, constraints=RULES)
    with pytest.raises(InputError, match="in this order"):
        mechanism.fit(WRONG, Y)
    with pytest.raises(ConfigurationError, match="call fit"):
        _ = mechanism.identity
    assert mechanism.fit(RIGHT, Y).features == 3


@pytest.mark.parametrize("name", FITS)
def test_without_constraints_the_columns_are_those_of_the_training_table(name):
    mechanism = FITS[name](norm_bound=5.0).fit(RIGHT, Y)
    mechanism.explain(RIGHT[:2], infeasible="mark")
    mechanism.explain(RIGHT[:2].to_numpy(), infeasible="mark")
    with pytest.raises(InputError, match="as the training table has them"):
        mechanism.explain(WRONG[:2])


def test_a_model_that_was_trained_on_other_columns_than_the_constraints_have_is_refused():
    other = DPLogisticRegression(8.0, 1e-3, norm_bound=5.0, classes=[0, 1], random_state=0).fit(WRONG, Y)
    with pytest.raises(ConfigurationError, match="expected the columns of the model in their order, debt, income, age"):
        DPModelRecourse(other, constraints=RULES)
    with pytest.raises(InputError, match="as the training table has them"):
        DPModelRecourse(other).explain(RIGHT)


@pytest.mark.parametrize(
    ("limit", "low"),
    [
        (pd.Series({"debt": 1.0, "income": 0.0}), [0.0, 1.0, -np.inf]),
        (pd.Series({2: 1.0, 0: 0.0}), [0.0, -np.inf, 1.0]),
    ],
)
def test_a_series_of_limits_is_read_by_name_and_without_names_by_position(limit, low):
    rules = Constraints(NAMES, lower=limit)
    assert rules.low.tolist() == low
    assert rules == Constraints(NAMES, lower=low)
    with pytest.raises(ConfigurationError, match="upper: unknown feature 'rent'"):
        Constraints(NAMES, upper=pd.Series({"rent": 1.0}))
