"""The person's own columns, reasons in their order, and columns that may be no reason."""

import numpy as np
import pytest
import torch

from safexplain import Features, Hardening, TopKSet
from safexplain.errors import ConfigurationError, InputError, ProhibitedReasonError
from safexplain.hardening.features import Reason

NAMES = ["income", "home_owns", "home_rents", "age", "debt"]
FORM = Features(NAMES, groups={"home": ["home_owns", "home_rents"]})
VALUES = torch.tensor([[0.5, 0.4, 0.3, -1.0, 0.6], [-2.0, 0.1, -0.4, 3.0, 1.0]])
ROWS = np.array([[20.0, 0, 1, 33, 5], [80.0, 1, 0, 61, 0]])


def released(k=4, **options):
    return Hardening(clip=TopKSet(k=k, ordered=True), features=Features(NAMES, FORM.groups, **options))(VALUES)


def test_columns_of_one_group_are_added_up_and_named_once():
    assert released(k=2).tolist() == [[0, 2, 2, 0, 1], [0, 0, 0, 2, 1]]
    slow = [[0.5, 0.7, -1.0, 0.6], [-2.0, -0.3, 3.0, 1.0]]
    assert torch.allclose(FORM.summed(VALUES), torch.tensor(slow))
    assert FORM.columns == ("income", "home", "age", "debt")


def test_reasons_have_their_rank_the_persons_value_and_the_text_of_the_notice():
    reasons = FORM.reasons(released(), ROWS, describe={"home": "type of residence"})
    assert reasons == [
        [Reason("home", "rents", 1, "type of residence"), Reason("debt", 5.0, 2), Reason("income", 20.0, 3)],
        [Reason("age", 61.0, 1), Reason("debt", 0.0, 2)],
    ]
    assert [str(reason) for reason in reasons[0]] == ["type of residence", "debt", "income"]
    plain = Hardening(clip=TopKSet(k=2, ordered=True))(VALUES)
    assert TopKSet.reasons(plain, NAMES) == [["debt", "income"], ["age", "debt"]]


def test_a_reason_with_no_effect_is_no_reason():
    values = torch.tensor([[1.0, 0.0, 0.0, -1.0, 0.0]])
    names = Features(NAMES).reasons(Hardening(clip=TopKSet(k=4, ordered=True))(values))
    assert [reason.name for reason in names[0]] == ["income"]


def test_without_order_there_are_no_ranks_and_the_columns_come_as_in_the_form():
    plain = Hardening(clip=TopKSet(k=2), features=FORM)(VALUES)
    assert [[(r.name, r.rank) for r in each] for each in FORM.reasons(plain)] == [
        [("home", None), ("debt", None)], [("age", None), ("debt", None)]
    ]  # fmt: skip


def test_a_prohibited_reason_is_an_error_and_not_left_out():
    with pytest.raises(ProhibitedReasonError, match="age: prohibited, but among the reasons"):
        released(prohibited=["age"])
    assert released(k=1, prohibited=["debt"])[0].tolist() == [0, 1, 1, 0, 0]
    hardening = Hardening(clip=TopKSet(k=4), features=Features(NAMES, FORM.groups, ["home"]))
    with pytest.raises(ProhibitedReasonError, match="home"):
        hardening(VALUES)
    counted = hardening.features.refused(hardening.naming_all()(VALUES))
    assert counted.tolist() == [[True], [False]]


def test_a_configuration_says_it_all():
    hardening = Hardening(clip=TopKSet(k=4, ordered=True), features=Features(NAMES, FORM.groups, ["age"]))
    assert Hardening.from_json(hardening.to_json()) == hardening
    assert hash(hardening) == hash(Hardening.from_json(hardening.to_json()))
    assert "ordered" not in Hardening.recommended().to_json()
    assert "features" not in Hardening.recommended().to_json()


NONSENSE = [
    (lambda: Features(["a", "a"]), ConfigurationError, "once"),
    (lambda: Features(["a"], {"b": ["c"]}), ConfigurationError, "expected some of a; got 'c'"),
    (lambda: Features(["a", "b"], {"x": ["a"], "y": ["a"]}), ConfigurationError, "once"),
    (lambda: Features(NAMES, FORM.groups, ["home_owns"]), ConfigurationError, "'home_owns'"),
    (lambda: Hardening(features=Features(["a"], prohibited=["a"])), ConfigurationError, "reasons"),
    (lambda: Hardening(clip=TopKSet(k=1), features=FORM)(torch.ones(2, 4)), InputError, "5 named features"),
    (lambda: FORM.reasons(released(), ROWS[:1]), InputError, "rows"),
    (lambda: Hardening.from_json('{"features": {"names": 3}}'), ConfigurationError, "features"),
]


def test_what_makes_no_sense_is_refused():
    for make, error, said in NONSENSE:
        with pytest.raises(error, match=said):
            make()
