"""HardenedCounterfactual answers in Alibi's shape, from a private mechanism, and with nothing beside."""

from __future__ import annotations

import json

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
from safexplain.recourse import counterfactual as module

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 400)
X = RNG.normal(size=(400, 3)) + 2 * Y[:, None]
LOW, HIGH = np.full((1, 3), -2.0), np.full((1, 3), 4.0)
MODEL = DPLogisticRegression(epsilon=5.0, delta=1e-4, norm_bound=5.0, classes=["no", "yes"], random_state=0)
MODEL.fit(X, np.array(["no", "yes"])[Y])
NATIVE_FIELDS = {"cf", "all", "orig_class", "orig_proba", "success"}
CF_FIELDS = {"X", "distance", "lambda", "index", "class", "proba", "loss"}


def test_an_answer_has_the_fields_of_the_native_one_and_holds_what_may_leave():
    explanation = HardenedCounterfactual(DPModelRecourse(MODEL)).fit(X, Y).explain(LOW)
    assert explanation.data.keys() == NATIVE_FIELDS
    assert explanation.cf.keys() == CF_FIELDS
    assert MODEL.predict(explanation.cf["X"])[0] == explanation.cf["class"] == "yes"
    assert explanation.orig_class == "no"
    assert explanation.orig_proba == pytest.approx(MODEL.predict_proba(LOW).max())
    assert explanation.cf["distance"] == pytest.approx(np.linalg.norm(explanation.cf["X"] - LOW))
    assert explanation.success
    assert explanation.all == {}
    assert [explanation.cf[name] for name in ("lambda", "index", "loss", "proba")] == [None] * 4
    assert explanation.meta["params"]["guarantee"]["is_private"]


def test_it_is_an_explanation_of_alibi_where_alibi_is_installed():
    interfaces = pytest.importorskip("alibi.api.interfaces")
    explanation = HardenedCounterfactual(DPModelRecourse(MODEL)).explain(LOW)
    assert isinstance(explanation, interfaces.Explanation)
    assert json.loads(explanation.to_json())["data"]["orig_class"] == "no"


def test_without_alibi_the_same_attributes_are_there(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    explanation = HardenedCounterfactual(DPModelRecourse(MODEL)).explain(LOW)
    assert isinstance(explanation, module.CounterfactualExplanation)
    assert explanation.cf is explanation.data["cf"]
    assert explanation.name == "HardenedCounterfactual"
    assert np.allclose(json.loads(explanation.to_json())["data"]["cf"]["X"], explanation.cf["X"])


@pytest.mark.parametrize("here", ["as installed", "without alibi"])
def test_labels_of_numpy_go_into_json(here, monkeypatch):
    if here == "without alibi":
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    mechanism = LaplaceScore(public_weights=[1, 1, 1], norm_bound=5.0, classes=np.array([False, True])).fit(X, Y == 1)
    assert [type(label) for label in mechanism.labels] == [bool, bool]
    data = json.loads(HardenedCounterfactual(mechanism).explain(LOW).to_json())["data"]
    assert data["orig_class"] in (False, True)


def test_a_favourable_row_and_one_without_recourse_have_no_counterfactual():
    favourable = HardenedCounterfactual(DPModelRecourse(MODEL)).explain(HIGH)
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
    assert served.explain(LOW - 2, principal="bob").orig_class == 0
    with pytest.raises(InputError, match="principal"):
        served.explain(LOW, principal="")
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
    with pytest.raises(ConfigurationTypeError, match="nothing is charged without a ledger"):
        served.explain(LOW, principal="ann")
    with pytest.raises(RefusedError, match="not private"):
        HardenedCounterfactual(NotPrivate())
