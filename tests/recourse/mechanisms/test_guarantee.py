"""Guarantees: complete, never more than the parameters give, and one for every way that an answer can take."""

import inspect
import json
import math
import pickle
import re
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from privacy_oracle import two_gaussians
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

from safexplain import recourse
from safexplain._digest import trained_digest
from safexplain._secure_random import GENERATOR
from safexplain.dp import DPFineTuner, DPLogisticRegression, PrivacyStatement, Steps
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InfeasibleError
from safexplain.ledger import Ledger
from safexplain.recourse import (
    Constraints,
    DPModelRecourse,
    Guarantee,
    LaplaceScore,
    MeteredRecourse,
    Preprocessing,
    Recourse,
)
from safexplain.recourse.result import NOT_CHARGED, VOUCHED
from safexplain.recourse.solution import Solution

SOUND = {"DPModelRecourse": DPModelRecourse, "LaplaceScore": LaplaceScore}


def made(name, **options):
    return SOUND[name](**{"norm_bound": 5.0, "epsilon": 0.7, "random_state": 0, **options})


@pytest.mark.parametrize("name", SOUND)
def test_the_guarantee_stands_before_training_and_holds_after_it(name):
    mechanism = made(name)
    before = mechanism.guarantee
    after = mechanism.fit(*two_gaussians(60, 3)).guarantee
    assert before.epsilon == 0.7
    assert 0.699 < after.epsilon <= before.epsilon
    assert after.delta == before.delta == (1e-5 if name == "DPModelRecourse" else 0.0)
    assert before.statement is None
    assert (after.statement is not None) == (name == "DPModelRecourse")
    assert before.per == after.per == ("model" if name == "DPModelRecourse" else "answer")
    assert "substitute" in str(after)


def test_epsilon_is_that_of_the_statement_under_the_adjacency():
    for adjacency in ("substitute", "add_remove", "zero_out"):
        given = made("DPModelRecourse", adjacency=adjacency).fit(*two_gaussians(60, 3)).guarantee
        assert given.epsilon == given.statement.epsilons.of(adjacency)
        assert given.adjacency == adjacency


@pytest.mark.parametrize("name", SOUND)
def test_a_seed_is_an_assumption_that_is_said(name):
    for trained in (False, True):
        seeded, secret = (made(name, random_state=r) for r in (0, None))
        if trained:
            seeded.fit(*two_gaussians(60, 3)), secret.fit(*two_gaussians(60, 3))
        assert any("seed set by the user" in line for line in seeded.guarantee.assumptions)
        assert not any("seed set by the user" in line for line in secret.guarantee.assumptions)
        assert any(GENERATOR in line for line in secret.guarantee.assumptions)
        assert not any(GENERATOR in line for line in seeded.guarantee.assumptions)


@pytest.mark.parametrize("numbers", [{"epsilon": 0.0}, {"delta": 1.0}, {"charges": (1,)}, {"adjacency": "row"}])
def test_numbers_that_guarantee_nothing_are_refused(numbers):
    sound = Guarantee("m", "model", 1.0, 0.0, "substitute", "r", "w")
    with pytest.raises(ConfigurationError):
        replace(sound, **numbers)


X, Y = two_gaussians(300, 3)
ASKED = X[Y == 0][:3]
PEOPLE = Preprocessing(numeric=dict.fromkeys("abc", (-9.0, 9.0)), describe={name: f"number {name}" for name in "abc"})
COMMON = {"epsilon": 0.5, "random_state": 0}
STATED = PrivacyStatement("a loop of our own", 300, 1e-5, phases=(Steps(8.0, 1.0, 10, "full-batch"),))


def frame(rows):
    return pd.DataFrame(np.clip(rows, -9, 9), columns=list("abc"))


@dataclass(frozen=True, eq=False)
class Way:
    """A mechanism, what its model's statement is about (None: there is none), and whether that is the owner's word."""

    mechanism: Any
    weights: Any = None
    vouched: bool = False

    @property
    def asked(self):
        return ASKED if self.mechanism.preprocessing is None else frame(ASKED)


def private(**options):
    return DPLogisticRegression(**{**COMMON, "norm_bound": 5.0, "classes": [0, 1], **options}).fit(X, Y)


def given(**options):
    model = private(**options)
    return Way(DPModelRecourse(model), model)


def fitted(**options):
    mechanism = DPModelRecourse(**COMMON, **options)
    mechanism.fit(*((X, Y) if "norm_bound" in options else (frame(X), Y)))
    return Way(mechanism, mechanism.private)


def fine_tuned():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    options = {"epsilon": 2.0, "delta": 1e-5, "steps": 5, "batch_size": 100, "lr": 0.1, "seed": 0}
    tuned = DPFineTuner(network, data, progress=lambda *_: None, **options).fit()
    return answering_network(DPModelRecourse(tuned))


def answering_network(mechanism, *, vouched=False):
    network = mechanism._get("model").network  # the copy that answers, whatever becomes of the one that was given
    return Way(mechanism, network, vouched)


def pipeline():
    classifier = DPLogisticRegression(**COMMON, norm_bound=PEOPLE.norm_bound, classes=[0, 1])
    fitted = make_pipeline(PEOPLE, classifier).fit(frame(X), Y)
    return Way(DPModelRecourse(fitted), fitted[-1])


def vouched_network():
    network = nn.Linear(3, 2)
    return answering_network(DPModelRecourse(network, privacy=STATED.bound_to(network)), vouched=True)


def plain():
    return LogisticRegression().fit(X / 9, Y)


def vouched_linear(*, carried=False, **options):
    model = plain()
    statement = STATED.bound_to(model)
    if carried:
        model.privacy_ = statement
    return Way(DPModelRecourse(model, privacy=None if carried else statement, **options), model, vouched=True)


def score(weights=(1.0, 1.0, 1.0), **options):
    bound = {} if "preprocessing" in options else {"norm_bound": 5.0}
    mechanism = LaplaceScore(**COMMON, **bound, public_weights=weights, **options)
    return mechanism.fit(X if bound else frame(X), Y)


def score_of_private():
    model = private(epsilon=0.7)
    return Way(score(model), model)


def score_of_vouched():
    way = vouched_linear(preprocessing=PEOPLE)
    return Way(score(way.mechanism, preprocessing=PEOPLE), way.weights, vouched=True)


WAYS = {
    "fitted here": lambda: fitted(norm_bound=5.0),
    "fitted here, to people": lambda: fitted(preprocessing=PEOPLE),
    "given, noisy gradient descent": given,
    "given, pure output perturbation": lambda: given(mechanism="output", delta=0.0),
    "fine-tuned": fine_tuned,
    "pipeline": pipeline,
    "vouched linear": vouched_linear,
    "vouched linear, carried": lambda: vouched_linear(carried=True),
    "vouched linear, to people": lambda: vouched_linear(preprocessing=PEOPLE),
    "vouched network": vouched_network,
    "score": lambda: Way(score()),
    "score, to people": lambda: Way(score({"a": 1.0, "b": 1.0}, preprocessing=PEOPLE)),
    "score, weights of a private model": score_of_private,
    "score, weights of a vouched model, to people": score_of_vouched,
}
each_way = pytest.mark.parametrize("name", WAYS)
way_of = cache(lambda name: WAYS[name]())


def check(way: Way, guarantee: Guarantee, rows: int, ledger: Ledger | None = None, principal: str = "") -> None:
    """The guarantee of an answer to so many rows is finite, of these weights, and of these charges or of none."""
    assert isinstance(guarantee, Guarantee)
    assert 0 < guarantee.epsilon < math.inf
    statement, by_answer = guarantee.statement, guarantee.per == "answer"
    assert (statement is None) == (way.weights is None)
    if statement is not None:
        assert statement.weights == trained_digest(way.weights)
        assert set(statement.assumptions) <= set(guarantee.assumptions)
    if not by_answer:
        assert guarantee.epsilon == statement.epsilons.of(guarantee.adjacency)
        assert guarantee.delta == statement.delta
    assert guarantee.vouched == way.vouched == (VOUCHED in guarantee.assumptions)
    assert way.vouched == (VOUCHED[1:] in str(guarantee))
    content = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    assert (content["vouched"], content["charges"]) == (way.vouched, list(guarantee.charges))
    assert content["protects"] == guarantee.protects != ""
    assert set(content) == {*Guarantee.__dataclass_fields__, "protects"}
    if statement is not None:
        assert PrivacyStatement.from_dict(content["statement"]) == statement
    if ledger is None:
        assert (guarantee.ledger, guarantee.charges) == ("", ())
        assert by_answer == (NOT_CHARGED in guarantee.assumptions)
        return
    assert NOT_CHARGED not in guarantee.assumptions
    assert guarantee.ledger == ledger.identity
    recorded = {charge.id: charge for charge in ledger.charges()}
    charges = [recorded[number] for number in guarantee.charges]
    if statement is not None:
        training, *charges = charges
        assert (training, statement) in ledger.trainings()
        assert training.principal == ""
        assert training.release.epsilon == statement.epsilons.of(guarantee.adjacency)
    assert len(charges) == (rows if by_answer else 0)
    for charge in charges:
        assert (charge.principal, charge.release.epsilon) == (principal, guarantee.epsilon)


@each_way
def test_without_a_ledger_an_answer_has_the_guarantee_of_the_weights_or_says_that_nobody_charged_it(name):
    way = way_of(name)
    one = way.mechanism.explain(way.asked, infeasible="mark")
    for answer in (one, *way.mechanism.explain_diverse(way.asked, 2)):
        check(way, answer.guarantee, 3)
        assert pickle.loads(pickle.dumps(answer)).guarantee == answer.guarantee
        assert replace(answer, score=-answer.score).guarantee is answer.guarantee
    if isinstance(way.mechanism, LaplaceScore):
        check(way, way.mechanism.score(way.asked).guarantee, 3)


@pytest.mark.parametrize("name", [name for name in WAYS if name != "fine-tuned"])  # as the vouched network
def test_with_a_ledger_an_answer_names_the_charges_that_paid_for_it_now_or_then(name, tmp_path):
    way = way_of(name)
    with Ledger(f"sqlite:///{tmp_path / 'budget.db'}", epsilon=9.0, delta=1e-4) as ledger:
        metered = MeteredRecourse(way.mechanism, ledger)
        charged = []
        for who, rows in (("ann", 2), ("ann", 2), ("bob", 2), ("ann", 3)):
            answer = metered.explain(way.asked[:rows], principal=who, infeasible="mark")
            check(way, answer.guarantee, rows, ledger, who)
            for answer in metered.explain_diverse(way.asked[:rows], 2, principal=who):
                check(way, answer.guarantee, rows, ledger, who)
            charged.append(len(list(ledger.charges())))
        training = int(way.weights is not None)
        assert charged == [training + (n if way.mechanism.per == "answer" else 0) for n in (2, 2, 4, 5)]
        twice = frame(ASKED[[0, 0]]) if isinstance(way.asked, pd.DataFrame) else ASKED[[0, 0]]
        answer = metered.explain(twice, principal="ann", infeasible="mark")
        check(way, answer.guarantee, 2, ledger, "ann")
        assert charged[-1] == len(list(ledger.charges()))


@pytest.mark.parametrize("name", [name for name in WAYS if "people" in name or name == "pipeline"])
def test_a_letter_promises_no_more_than_the_guarantee_and_says_whose_word_it_is(name):
    way = way_of(name)
    answer = way.mechanism.explain(frame(np.full((1, 3), -3.0)))
    (letter,), guarantee = answer.letters(), answer.guarantee
    epsilon, delta = re.search(r"\(epsilon ([\d.]+), delta ([^,;)]+)", letter).groups()
    assert guarantee.epsilon <= float(epsilon) < 1.01 * guarantee.epsilon
    assert float(delta) == guarantee.delta
    by_answer = guarantee.per == "answer"
    assert ("stated by the owner of the model" in letter) == way.vouched
    assert ("for each answer" in letter) == by_answer
    assert (", plus epsilon" in letter) == (by_answer and way.weights is not None)


@pytest.mark.parametrize("metered", [False, True])
@pytest.mark.parametrize("kind", ["model", "answer"])
def test_what_an_error_holds_of_queries_without_recourse_has_its_guarantee_too(kind, metered, tmp_path):
    rules, options = Constraints(3, lower=-9, upper=-0.5), {"target": 5.0, "norm_bound": 5.0}
    if kind == "model":
        way = fitted(constraints=rules, **options)
    else:
        mechanism = LaplaceScore(**COMMON, **options, public_weights=np.full(3, 0.01), constraints=rules)
        way = Way(mechanism.fit(X, Y))
    asked = np.full((2, 3), -1.0)
    with Ledger(f"sqlite:///{tmp_path / 'budget.db'}", epsilon=9.0, delta=1e-4) as ledger:
        explain = way.mechanism.explain
        if metered:
            explain = partial(MeteredRecourse(way.mechanism, ledger).explain, principal="ann")
        with pytest.raises(InfeasibleError) as caught:
            explain(asked)
        check(way, caught.value.result.guarantee, 2, ledger if metered else None, "ann")


def test_there_is_no_answer_without_a_guarantee():
    answer = way_of("fitted here").mechanism.explain(ASKED)
    arrays = {name: getattr(answer, name) for name in Solution.__dataclass_fields__}
    arrays["advice"] = answer.advice
    with pytest.raises(TypeError, match="guarantee"):
        Recourse(**arrays)
    for nothing in (None, "epsilon 1", Guarantee, answer.guarantee.statement):
        with pytest.raises(ConfigurationTypeError, match="guarantee: expected a Guarantee"):
            Recourse(**arrays, guarantee=nothing)
        with pytest.raises(ConfigurationTypeError, match="guarantee: expected a Guarantee"):
            replace(answer, guarantee=nothing)


def public_callables():
    """Name -> every public callable of `safexplain.recourse`, and every public method of its classes."""
    for name in recourse.__all__:
        found = getattr(recourse, name)
        yield name, found
        if inspect.isclass(found):
            for method, value in inspect.getmembers(found, callable):
                if not method.startswith("_"):
                    yield f"{name}.{method}", value


def test_nothing_public_gives_a_counterfactual_without_a_guarantee():
    answering = {
        f"{kind.__name__}.{method}"
        for kind in (DPModelRecourse, LaplaceScore, MeteredRecourse)
        for method in ("explain", "explain_diverse")
    }
    gives_answers = set()
    for name, found in public_callables():
        if inspect.isclass(found):
            assert found is Recourse or not issubclass(found, Solution), name
            continue
        annotation = str(inspect.signature(found).return_annotation)
        assert "Solution" not in annotation, name
        if "Recourse" in annotation:
            gives_answers.add(name)
    assert gives_answers == answering | {"Recourse.required"}
