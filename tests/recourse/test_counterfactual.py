"""HardenedCounterfactual answers in Alibi's shape, from a private mechanism, and with nothing beside."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from recourse_privacy_oracle import NotPrivate
from torch import nn

from safexplain import HardenedCounterfactual
from safexplain.dp import DPFineTuner, DPLogisticRegression
from safexplain.errors import BudgetExhausted, ConfigurationTypeError, InputError, RefusedError
from safexplain.ledger import Ledger
from safexplain.recourse import (
    Constraints,
    DPModelRecourse,
    LaplaceScore,
    MeteredRecourse,
    PublicDirection,
)

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 400)
X = RNG.normal(size=(400, 3)) + 2 * Y[:, None]
LOW, HIGH = np.full((1, 3), -2.0), np.full((1, 3), 4.0)
MODEL = DPLogisticRegression(epsilon=5.0, delta=1e-4, norm_bound=5.0, classes=["no", "yes"], random_state=0)
MODEL.fit(X, np.array(["no", "yes"])[Y])


def test_an_answer_has_the_names_of_the_native_one_and_holds_what_may_leave():
    explanation = HardenedCounterfactual(DPModelRecourse(MODEL)).fit(X, Y).explain(LOW)
    assert vars(explanation).keys() == {"cf", "orig_class", "orig_proba", "success", "guarantee"}
    assert explanation.cf.keys() == {"X", "distance", "class"}
    assert MODEL.predict(explanation.cf["X"])[0] == explanation.cf["class"] == "yes"
    assert explanation.orig_class == "no"
    assert explanation.orig_proba == pytest.approx(MODEL.predict_proba(LOW).max())
    assert explanation.cf["distance"] == pytest.approx(np.linalg.norm(explanation.cf["X"] - LOW))
    assert explanation.success
    assert explanation.guarantee.is_private


def test_an_answer_cannot_be_changed():
    explanation = HardenedCounterfactual(DPModelRecourse(MODEL)).explain(LOW)
    with pytest.raises(FrozenInstanceError):
        explanation.success = False
    with pytest.raises(TypeError):
        explanation.cf["class"] = "no"


def test_labels_of_numpy_go_into_json():
    mechanism = LaplaceScore(public_weights=[1, 1, 1], norm_bound=5.0, classes=np.array([False, True])).fit(X, Y == 1)
    assert [type(label) for label in mechanism.labels] == [bool, bool]
    explanation = HardenedCounterfactual(mechanism).explain(LOW)
    written = json.loads(explanation.to_json())
    assert written["orig_class"] in (False, True)
    assert written["guarantee"]["epsilon"] == 1.0
    if explanation.cf is not None:
        assert np.allclose(written["cf"]["X"], explanation.cf["X"])


def test_a_favourable_row_and_one_without_recourse_have_no_counterfactual():
    favourable = HardenedCounterfactual(DPModelRecourse(MODEL)).explain(HIGH)
    assert json.loads(favourable.to_json())["cf"] is None
    assert (favourable.cf, favourable.success, favourable.orig_class) == (None, False, "yes")
    narrow = DPModelRecourse(MODEL, constraints=Constraints(3, lower=-2.1, upper=-1.9))
    nothing = HardenedCounterfactual(narrow).explain(LOW)
    assert (nothing.cf, nothing.success, nothing.orig_class) == (None, False, "no")


def test_mechanisms_that_pay_by_answer_are_served_with_a_ledger(tmp_path):
    score = LaplaceScore(epsilon=0.5, public_weights=[1, 1, 1], norm_bound=5.0, random_state=0).fit(X, Y)
    ledger = Ledger(f"sqlite:///{tmp_path / 'b.db'}", epsilon=1.0)
    served = HardenedCounterfactual(MeteredRecourse(score, ledger), principal="ann")
    first, again = served.explain(LOW), served.explain(LOW)
    assert first.orig_proba == again.orig_proba
    served.explain(LOW - 1)
    with pytest.raises(BudgetExhausted):
        served.explain(LOW - 2)
    assert HardenedCounterfactual(served.mechanism, principal="bob").explain(LOW - 2).orig_class == 0
    with pytest.raises(InputError, match="principal"):
        HardenedCounterfactual(served.mechanism, principal="").explain(LOW)
    assert ledger.spent("ann") == pytest.approx(1.0)


def test_the_step_along_a_public_direction_is_not_passed_off_as_a_probability():
    mechanism = PublicDirection([1.0, 1.0, 1.0], epsilon=5.0, norm_bound=5.0, random_state=0).fit(X, Y)
    assert HardenedCounterfactual(mechanism).explain(LOW).orig_proba is None


def test_a_network_of_three_classes_names_the_class_that_is_wanted():
    torch.manual_seed(0)
    y = torch.from_numpy(RNG.integers(0, 3, 300))
    x = torch.randn(300, 3) + 3 * nn.functional.one_hot(y, 3)
    tuned = DPFineTuner(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)), (x, y), epsilon=20.0, delta=1e-4,
                        epochs=20, batch_size=100, lr=0.02, seed=0).fit()  # fmt: skip
    found = HardenedCounterfactual(DPModelRecourse(tuned, favourable=2)).explain([[4.0, 0.0, 0.0]])
    assert (found.cf["class"], found.orig_class, found.orig_proba) == (2, None, None)
    with torch.no_grad():
        assert int(tuned.model(torch.from_numpy(found.cf["X"]).float()).argmax()) == 2


def test_wrong_use_is_refused():
    served = HardenedCounterfactual(DPModelRecourse(MODEL))
    with pytest.raises(InputError, match="one instance"):
        served.explain(X[:2])
    with pytest.raises(ConfigurationTypeError, match="expected a mechanism"):
        HardenedCounterfactual(MODEL)
    with pytest.raises(ConfigurationTypeError, match="nothing is charged without a ledger"):
        HardenedCounterfactual(DPModelRecourse(MODEL), principal="ann")
    with pytest.raises(RefusedError, match="not private"):
        HardenedCounterfactual(NotPrivate())
