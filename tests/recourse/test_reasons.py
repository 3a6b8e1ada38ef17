"""Sentences and letters: true when read, also after rounding, in the person's units and words."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from safexplain.dp import PrivacyStatement, Steps
from safexplain.errors import ConfigurationError
from safexplain.recourse import L1, Constraints, DPModelRecourse, Guarantee, LaplaceScore, Preprocessing, Recourse
from safexplain.recourse.result import Advice, Change, _rounded_up, is_money, number_text, round_outward, sentence

PUBLIC = Preprocessing(
    numeric={"balance": (0, 50_000), "age": (18, 100), "use": (0, 100)},
    categories={"job": ["clerk", "manager"], "owner": [False, True]},
    ordinal={"education": ["school", "college", "phd"]},
    units={"balance": "USD", "use": "%"},
    describe={"balance": "revolving balance"},
)
ALL_WORDS = replace(PUBLIC, describe={name: name for name in PUBLIC.features} | PUBLIC.describe)
GIVEN = Guarantee("m", "model", 1.0, 1.234e-5, "substitute", "answers", "they are made from a private model")


def answer(before, after, public=PUBLIC, **changes):
    """An answer to one person, from frames."""
    x, to = public.table(before), public.table(after)
    favourable = np.array([changes.pop("favourable", False)])
    valid = np.array([changes.pop("valid", True)])
    parts = L1().parts((to - x) / public.scale)
    return Recourse(
        x, to, valid, parts.sum(axis=1), np.zeros(1), favourable, np.zeros(1, dtype=bool), table=public,
        like=before, advice=Advice(to, np.zeros(x.shape, dtype=bool), parts), guarantee=GIVEN, **changes,
    )  # fmt: skip


PERSON = {"balance": 4000.0, "age": 30, "use": 80.0, "job": "clerk", "owner": False, "education": "school"}


def test_each_change_is_a_sentence_and_the_largest_share_of_the_cost_comes_first():
    found = answer(PERSON, PERSON | {"balance": 3000.0, "use": 20.0, "education": "college", "job": "manager"})
    assert found.reasons()[0] == (
        "Change job from clerk to manager.",
        "Lower use from 80% to 20%.",
        "Raise education from school to college.",
        "Lower your revolving balance from 4,000 USD to 3,000 USD.",
    )


def test_a_favourable_person_needs_nothing_and_one_without_recourse_is_told_so():
    assert answer(PERSON, PERSON, favourable=True).reasons() == ((),)
    lost = answer(PERSON, PERSON, valid=False)
    assert lost.reasons() == (("No change was found that would lead to a favourable decision.",),)
    proven = answer(PERSON, PERSON, valid=False, proven=np.array([True]))
    assert proven.reasons() == (("No change within the limits that apply would lead to a favourable decision.",),)


def test_numbers_are_written_as_people_write_them():
    assert [number_text(v) for v in (0.0, -1234567.5, 1e6, 0.25)] == ["0", "-1,234,567.5", "1,000,000", "0.25"]
    change = Change("x", "", "numeric", -0.5, 0.25, "$", 1.0, further=True, rises=True)
    assert sentence(change) == "Raise x from -0.50 $ to $0.25 or more."
    rows = [(0.0, 1.0, "0 to 1"), (0.0012345, 3.0, "0.00123 to 3"), (-0.98765, 2.5, "-0.988 to 2.5")]
    rows += [
        (1.0004, 4.0, "1 to 4"),
        (12.3456, 5.0, "12.35 to 5"),
        (2.0001, 2.0, "2.0001 to 2"),
        (9.5, 1e-7, "9.5 to 1e-07"),
    ]
    for before, after, text in rows:
        told = Change("x", "", "numeric", before, after, "", 1.0, further=False, rises=True)
        assert sentence(told) == f"Raise x from {text}."


def numbers_in(text):
    """The last number in a sentence: what has to be reached."""
    return float(re.findall(r"-?[\d,]*\.?\d+", text.rstrip("."))[-1].replace(",", ""))


def applicants(n=400, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"income": rng.lognormal(10, 0.5, n), "debt": rng.gamma(2, 2000, n), "use": rng.uniform(0, 1, n)}
    )
    score = 5e-5 * frame.income - 2e-4 * frame.debt - frame.use + rng.normal(0, 0.3, n)
    return frame, (score > score.median()).astype(int)


RULES = Constraints(("income", "debt", "use"), lower={"debt": 0, "use": 0}, largest_change={"income": 4_000})
COST = L1(scale=(10_000, 2_000, 0.2))
STATED = PrivacyStatement("a loop of our own", 400, 1e-5, phases=(Steps(4.0, 1.0, 10, "full-batch"),))


def linear_model(weights, bias):
    """A logistic regression with these weights (d,), that refuses below 0."""
    model = LogisticRegression()
    model.coef_, model.intercept_, model.classes_ = np.array([weights]), np.array([bias]), np.array([0, 1])
    return model


def trained(kind, frame, y):
    """A model of rows as they come, and the decision that it makes about a frame."""
    scaled = StandardScaler().fit(frame)
    if kind == "linear":
        fitted = LogisticRegression().fit(scaled.transform(frame), y)
        weights = fitted.coef_[0] / scaled.scale_
        model = linear_model(weights, fitted.intercept_[0] - weights @ scaled.mean_)
        return model, lambda asked: model.decision_function(asked.to_numpy()) >= 0
    fitted = MLPClassifier((8,), max_iter=200, random_state=0, tol=1.0).fit(scaled.transform(frame), y)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).double().requires_grad_(False)
    first = fitted.coefs_[0].T / scaled.scale_
    network[0].weight.copy_(torch.from_numpy(first))
    network[0].bias.copy_(torch.from_numpy(fitted.intercepts_[0] - first @ scaled.mean_))
    network[2].weight.copy_(torch.from_numpy(fitted.coefs_[1].T))
    network[2].bias.copy_(torch.from_numpy(fitted.intercepts_[1]))
    return network, lambda asked: network(torch.tensor(asked.to_numpy())).numpy()[:, 0] >= 0


def vouched(model, **options):
    return DPModelRecourse(model, privacy=STATED.bound_to(model), cost=COST, **options)


@pytest.mark.parametrize("kind", ["linear", "network"])
def test_who_does_what_the_sentences_say_is_approved(kind):
    frame, y = applicants()
    model, approves = trained(kind, frame, y)
    refused = frame[~approves(frame)].head(60)
    found = vouched(model, constraints=RULES).explain(refused, infeasible="mark")
    assert found.valid.mean() > 0.9
    done = refused.copy()
    for row, told in enumerate(found.reasons()):
        for text in told if found.valid[row] else ():
            name = re.match(r"\w+ (\w+) from", text)[1]
            done.iloc[row, done.columns.get_loc(name)] = numbers_in(text)
            assert len(text) < 80
    assert approves(done)[found.valid].all()
    assert (np.abs(done.income - refused.income) <= 4000 + 1e-6).all()
    asked, exact = np.abs(done - refused)[found.valid], np.abs(found.frame - refused)[found.valid]
    assert (asked - exact <= np.maximum(0.06 * exact, 1.2e-4 * refused[found.valid])).all(axis=None)


def test_or_less_is_said_where_going_further_keeps_the_decision_and_only_there():
    frame, y = applicants()
    (linear, approves), (curved, too) = (trained(kind, frame, y) for kind in ("linear", "network"))
    refused = frame[~approves(frame) & ~too(frame)].head(20)
    told = [text for texts in vouched(linear).explain(refused).reasons() for text in texts]
    assert all(re.search("or (more|less)\\.$", text) for text in told)
    told = [text for texts in vouched(curved).explain(refused).reasons() for text in texts]
    assert not any(re.search("or (more|less)\\.$", text) for text in told)


def test_numbers_are_rounded_away_from_where_they_came_by_at_most_a_share_of_the_change():
    x = np.array([[0.0, 5.0, 20_000.0, 0.0, 7.0, 0.0]])
    to = np.array([[1.234567, 3.3333, 20_000.1234, 0.001234, 7.0, -1.234567]])
    money = np.array([False, False, False, True, False, False])
    assert round_outward(x, to, 0.05, money).tolist() == [[1.24, 3.33, 20_001.0, 0.01, 7.0, -1.24]]
    assert round_outward(x, to, 0.005, ~money & money).tolist() == [[1.235, 3.333, 20_000.2, 0.001234, 7.0, -1.235]]
    assert [is_money(unit) for unit in ("USD", "EUR a month", "%", "")] == [True, True, False, False]


MONEY = Preprocessing(numeric={"income": (0, 120_000), "debt": (0, 30_000)}, units={"income": "USD", "debt": "EUR"})


def decided(weights, bias, person, **options):
    """What a person is told by a linear model of `weights`, by name, that refuses below 0."""
    line = np.array([weights[name] for name in MONEY.features])
    model = linear_model(line * MONEY.scale, bias + line @ MONEY.offset)  # of rows as training sees them
    mechanism = DPModelRecourse(model, privacy=STATED.bound_to(model), preprocessing=MONEY, cost=L1(), **options)
    found = mechanism.explain(pd.DataFrame([person]))
    again = pd.DataFrame([person])
    for change in found.changes.itertuples():
        again[change.feature] = change.to
    assert again[list(MONEY.features)].to_numpy()[0] @ line + bias >= 0
    return found.reasons()[0]


def test_nobody_is_asked_for_less_than_the_least_that_there_is():
    weights = {"income": 1e-3, "debt": -1e-2}
    told = decided(weights, -30.0, {"income": 20_000.0, "debt": 4_000.0})
    assert "Lower debt from 4,000 EUR to 0 EUR." in told
    (told,) = decided(weights, 0.0, {"income": 20_000.0, "debt": 4_000.0})
    assert re.match(r"Lower debt from 4,000 EUR to [12],\d00 EUR or less\.$", told)


def test_steps_are_told_without_the_dust_of_their_sum():
    rules = Constraints(MONEY.features, immutable=("income",), step={"debt": 0.01})
    person = {"income": 20_000.31, "debt": 6_026.32}
    (told,) = decided({"income": 1e-3, "debt": -2e-3}, -19.0, person, constraints=rules)
    assert told == "Lower debt from 6,026.32 EUR to 500.15 EUR or less."


def test_money_has_cents_or_none_and_a_small_change_of_a_large_number_is_rounded_to_it():
    (told,) = decided({"income": 1e-3, "debt": 0.0}, -20.000_123_4, {"income": 20_000.0, "debt": 0.0})
    assert told == "Raise income from 20,000 USD to 20,001 USD or more."
    (told,) = decided({"income": 1.0, "debt": 0.0}, -10.123_4, {"income": 10.0, "debt": 0.0})
    assert told == "Raise income from 10 USD to 10.13 USD or more."
    change = Change("x", "", "numeric", 4000.25, 5275.4, "USD a year", 1.0, further=False, rises=True)
    assert sentence(change) == "Raise x from 4,000.25 USD a year to 5,275.40 USD a year."
    share = Change("x", "", "numeric", 20.5, 10.5, "%", 1.0, further=True, rises=False)
    assert sentence(share) == "Lower x from 20.5% to 10.5% or less."


LETTERS = {
    "DPModelRecourse": ({}, r"\(epsilon 20, delta 1e-05\)"),
    "LaplaceScore": (
        {"public_weights": {"income": 5e-5, "debt": -2e-4, "use": -1.0}}, r"\(epsilon 20, delta 0, for each answer\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LETTERS)
def test_answers_of_every_mechanism_say_or_more_keep_to_the_rules_and_go_into_letters(name):
    frame, y = applicants()
    public = Preprocessing(
        numeric={"income": (0, 200_000), "debt": (0, 40_000), "use": (0, 1)},
        units={"income": "USD"},
        describe={"income": "income", "debt": "debt", "use": "share of the credit line in use"},
    )
    kind, (options, protected) = {"DPModelRecourse": DPModelRecourse, "LaplaceScore": LaplaceScore}[name], LETTERS[name]
    rules = Constraints(
        public.features, immutable="use", largest_change={"income": 5_000, "debt": 900}, step={"debt": 0.01}
    )
    mechanism = kind(
        epsilon=20.0, preprocessing=public, cost=L1(), constraints=rules, random_state=0, target=0.1, **options
    ).fit(frame, y)
    found = mechanism.explain(frame.head(80).assign(debt=frame.debt.round(2)), infeasible="mark")
    asked = found.valid & ~found.favourable
    told = [text for texts, wanted in zip(found.reasons(), asked, strict=True) if wanted for text in texts]
    assert len(told) > 10
    assert all(re.search("or (more|less)\\.$|to (0|1|0 USD|40,000|200,000 USD)\\.$", text) for text in told)
    done, x = found.advice.rounded[asked], found.x[asked]
    assert (np.abs(done - x)[:, 0] <= 5_000 + 1e-6).all()
    assert (done[:, 1] == done[:, 1].round(2)).all()
    if name == "LaplaceScore":
        reached = found.score[asked] + (done - x) @ [5e-5, -2e-4, -1.0]
    else:
        reached = mechanism.private.decision_function(public.scaled(done))
    assert (reached >= 0.1 - 1e-9).all()
    letters = found.letters()
    assert len(letters) == (~found.favourable).sum()
    assert all(re.search(protected, letter) for letter in letters)
    lost = [letter for letter in letters if "No change" in letter]
    assert lost
    assert all("principal reasons" in letter for letter in lost)


def test_a_letter_has_the_reasons_what_would_have_helped_and_no_internal_numbers():
    after = {"balance": 3000.0, "use": 20.0, "education": "college", "job": "manager", "owner": True}
    found = answer(PERSON, PERSON | after, ALL_WORDS)
    (letter,) = found.letters(names=["Ms Smith"])
    assert letter == (
        "Dear Ms Smith,\n\n"
        "We were unable to approve your application.\n\n"
        "The principal reasons for this decision are:\n"
        "1. Job: clerk.\n2. Owner: no.\n3. Use: 80% (too high).\n4. Education: school (too low).\n\n"
        "Your application would have been approved with all of these changes together:\n"
        "- Change your job from clerk to manager.\n"
        "- Change your owner from no to yes.\n"
        "- Lower your use from 80% to 20%.\n"
        "- Raise your education from school to college.\n"
        "- Lower your revolving balance from 4,000 USD to 3,000 USD.\n\n"
        "The records used to train the model behind this decision are protected by differential privacy (epsilon 1,"
        " delta 1.24e-05).\n"
    )


def test_a_number_at_an_end_of_its_public_range_is_not_called_too_low_or_high():
    public = Preprocessing(
        numeric={"use": (0, 100)}, ordinal={"children": [0, 1, 2]}, describe={"use": "use", "children": "children"}
    )
    (high,) = answer({"use": 100.0, "children": 0}, {"use": 20.0, "children": 1}, public).letters(most_reasons=1)
    (low,) = answer({"use": 0.0, "children": 0}, {"use": 80.0, "children": 1}, public).letters()
    assert "1. Use: 100.\n\nYour" in high
    assert "1. Use: 0.\n2. Children: 0 (too low).\n" in low


def test_letters_go_to_those_who_were_turned_down_only():
    assert answer(PERSON, PERSON, ALL_WORDS, favourable=True).letters() == []
    (letter,) = answer(PERSON, PERSON, ALL_WORDS, valid=False).letters()
    assert "principal reasons" not in letter
    assert "No change was found" in letter


def test_letters_refuse_wrong_names_features_without_words_and_rows_of_numbers():
    found = answer(PERSON, PERSON | {"age": 40}, ALL_WORDS)
    with pytest.raises(ConfigurationError, match="names: expected one name for each of 1 queries, got 2 names"):
        found.letters(names=["a", "b"])
    with pytest.raises(ConfigurationError, match="describe= of the preprocessing lacks age, use, job"):
        answer(PERSON, PERSON | {"age": 40}).letters()
    with pytest.raises(ConfigurationError, match="pass preprocessing="):
        replace(found, table=None).letters()


def test_a_letter_promises_no_more_than_the_guarantee():
    values = (0.0, 1.0, 1e-5, 1.23, 1.2301, 1.2341, 9.999, 123.4, 1.2341e-10)
    assert list(map(_rounded_up, values)) == ["0", "1", "1e-05", "1.23", "1.24", "1.24", "10", "124", "1.24e-10"]


def test_changes_are_a_frame_with_one_row_for_each_change():
    found = answer(PERSON, PERSON | {"balance": 3000.0, "job": "manager"}).changes
    assert found.to_dict("records") == [
        {"row": 0, "feature": "job", "from": "clerk", "to": "manager", "unit": "", "share": pytest.approx(2 / 2.04)},
        {"row": 0, "feature": "balance", "from": 4000.0, "to": 3000.0, "unit": "USD"}
        | {"share": pytest.approx(0.04 / 2.04)},
    ]


def test_changes_of_a_polars_frame_are_one():
    polars = pytest.importorskip("polars")
    before = polars.DataFrame({name: [value] for name, value in PERSON.items()})
    found = answer(before, PERSON | {"balance": 3000.0, "job": "manager"}).changes
    assert isinstance(found, polars.DataFrame)
    assert found["to"].to_list() == ["manager", "3000"]


def test_arrays_have_reasons_too_by_number_or_name():
    x = np.array([[0.0, 1.0]])
    to, no = x + np.array([[0.0, 2.5]]), np.array([False])
    advice = Advice(to, np.zeros(x.shape, dtype=bool), to - x)
    plain = Recourse(x, to, ~no, np.ones(1), np.zeros(1), no, no, guarantee=GIVEN, advice=advice)
    assert plain.reasons() == (("Raise feature 1 from 1 to 3.5.",),)
    assert not any(f"{hidden}=" in repr(plain) for hidden in ("advice", "table", "like"))
