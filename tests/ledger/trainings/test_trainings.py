"""Trainings: each counts once, in the total and in every account, whoever asks when; or it is refused."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from dp_accounting import get_epsilon_gaussian

from safexplain._privacy_loss import Steps
from safexplain.errors import ConfigurationError, ConfigurationTypeError, LedgerError, RefusedError
from safexplain.ledger import Approximate, BudgetExhausted, Concentrated, Ledger, Pure, Renyi
from safexplain.ledger.accounts import training_of
from safexplain.ledger.composition import Budget, Composition
from safexplain.ledger.releases import Training
from safexplain.verdict.privacy_statement import PrivacyStatement
from tests.ledger.conftest import gaussian, in_each_database


def full(weights="a" * 64, noise=74.63, steps=100, **options):
    """Of full batches; epsilon .9997 under substitution."""
    phases = (Steps(noise, 1.0, steps, "full-batch"),)
    return PrivacyStatement("gradient descent", 2000, 1e-5, phases=phases, weights=weights, **options)


def sampled(weights="b" * 64, noise=4.0, **options):
    """Of Poisson batches; epsilon about .5."""
    phases = (Steps(noise, 0.02, 200),)
    return PrivacyStatement("DP-SGD", 2000, 1e-5, phases=phases, weights=weights, **options)


def pure(epsilon=0.5, weights="c" * 64, **options):
    return PrivacyStatement("output", 2000, 0.0, pure_epsilon=epsilon, weights=weights, **options)


def named(count):
    return [f"{i:064x}" for i in range(count)]


@in_each_database
def test_a_training_counts_in_the_total_and_in_every_account_also_of_who_asks_later(make):
    ledger = make(epsilon=2.0, delta=1e-5, total_epsilon=3.0, total_delta=1e-5, adjacency="substitute")
    ledger.charge("ann", epsilon=0.25)
    charge = ledger.charge_training(full())
    epsilon = full().epsilons.substitute
    assert (charge.principal, charge.release.epsilon, charge.parameters) == ("", epsilon, {"weights": "a" * 64})
    assert ledger.spent("ann") == pytest.approx(0.25 + epsilon)
    assert ledger.total().spent == pytest.approx(0.25 + epsilon)
    assert ledger.spent("bob") == pytest.approx(epsilon), "who never asked is told of it too"
    ledger.charge("bob", epsilon=0.5)
    assert ledger.spent("bob") == pytest.approx(0.5 + epsilon)
    assert ledger.total().spent == pytest.approx(0.75 + epsilon)
    for account in (*ledger.accounts(), ledger.total()):
        assert (account.trainings, account.training_epsilon) == (1, pytest.approx(epsilon))
    assert [a.charges for a in ledger.accounts()] == [2, 2]
    with pytest.raises(BudgetExhausted, match="'bob'"):
        ledger.charge("bob", epsilon=1.0 - 0.45)
    assert ledger.verify() == 3
    assert ledger.trainings() == [(charge, full())]


def test_the_same_weights_are_charged_once_and_others_again(make):
    ledger = make(epsilon=3.0, delta=1e-5)
    first = ledger.charge_training(full())
    assert ledger.charge_training(full()) == first
    assert make().charge_training(full()) == first, "also by another process, which takes the ledger's neighbours"
    assert ledger.total().trainings == 1
    ledger.charge_training(pure())
    assert ledger.total().trainings == 2
    assert ledger.spent("ann") == pytest.approx(1.5, abs=1e-3)
    assert ledger.verify() == 2


def test_weights_that_were_charged_by_another_statement_are_refused(make):
    ledger = make(epsilon=3.0, delta=1e-5, adjacency="substitute")
    ledger.charge_training(full())
    with pytest.raises(RefusedError, match=r"aaaa\.\.\. were charged with another statement"):
        ledger.charge_training(full(noise=150.0))
    assert ledger.total().trainings == 1


@pytest.mark.parametrize(
    ("options", "whose", "principal"),
    [
        ({"epsilon": 2.0, "delta": 1e-5, "total_epsilon": 1.2}, "all principals together: the training", None),
        ({"epsilon": 1.2, "delta": 1e-5}, "principal 'ann': the training", "ann"),
        ({"epsilon": 0.9, "delta": 1e-5}, "a new principal: the training", None),
        ({"epsilon": 2.0}, "the deltas of the trainings exceed this budget's 0", None),
    ],
)
def test_a_training_that_does_not_fit_somewhere_is_refused_and_leaves_no_trace(make, options, whose, principal):
    ledger = make(adjacency="substitute", **options)
    ledger.charge("ann", epsilon=0.25)
    ledger.charge("bob", epsilon=0.125)
    before = [*ledger.accounts(), ledger.total()]
    with pytest.raises(BudgetExhausted, match=whose) as refused:
        ledger.charge_training(full())
    assert refused.value.principal == principal
    assert refused.value.requested == pytest.approx(1.0, abs=1e-3)
    assert "counts in every account and in the total" in str(refused.value)
    assert [*ledger.accounts(), ledger.total()] == before
    assert ledger.trainings() == []
    assert ledger.verify() == 2


def test_a_training_counts_in_the_period_that_it_was_made_in_and_in_the_total_for_ever(make, clock):
    ledger = make(epsilon=1.5, delta=1e-5, period="month", total_epsilon=3.6, adjacency="substitute")
    ledger.charge("ann", epsilon=0.25)
    clock.at += timedelta(days=31)
    ledger.charge("bob", epsilon=0.25)
    ledger.charge_training(full())
    assert [round(ledger.spent(name), 3) for name in ("ann", "bob", "new")] == [1.0, 1.25, 1.0]
    ledger.charge("ann", epsilon=0.5)
    assert ledger.verify() == 4
    clock.at += timedelta(days=31)
    assert [ledger.spent(name) for name in ("ann", "bob", "new")] == [0.0, 0.0, 0.0]
    ledger.charge("ann", epsilon=1.5)
    assert (ledger.account("ann").trainings, ledger.total().trainings) == (0, 1)
    assert ledger.total().spent == pytest.approx(3.5, abs=1e-3)
    assert ledger.verify() == 5


def test_who_was_only_granted_something_in_another_period_must_have_room_too(make, clock):
    ledger = make(epsilon=2.0, delta=1e-5, period="day", adjacency="substitute")
    ledger.grant("ann", 0.5)
    clock.at += timedelta(days=2)
    with pytest.raises(BudgetExhausted, match="'ann'") as refused:
        ledger.charge_training(full())
    assert refused.value.renews is not None


@in_each_database
def test_accounts_agree_with_their_records_whatever_is_charged_granted_and_asked_when(make, clock):
    """Every sum is what replaying all records in their order gives; `verify` is the slow way."""
    rng, weights = random.Random(5), iter(named(40))
    ledger = make(epsilon=9.0, delta=1e-4, period="day", adjacency="substitute")
    for i in range(120):
        who = rng.choice("abcdef")
        match rng.randrange(8):
            case 0 | 1 | 2:
                releases = (Pure(0.05), Pure(0.02), Approximate(0.05, 1e-7), gaussian(0.05))
                ledger.charge(who, rng.choice(releases[: 4 if i % 50 > 25 else 3]))
            case 3:
                statement = rng.choice([full, sampled, pure])(weights=next(weights))
                ledger.charge_training(replace(statement, **({"pure_epsilon": 0.1} if statement.pure_epsilon else {})))
            case 4:
                ledger.grant(who, rng.choice([9.0, 12.0]))
            case 5 | 6:
                ledger.answer(who, str(rng.randrange(9)), lambda: 1, Pure(0.1))
            case 7:
                clock.at += timedelta(hours=8)
        if i % 10 == 0:
            ledger.verify()
    assert ledger.total().trainings > 8
    assert ledger.verify() == len(list(ledger.charges()))


def test_more_accounts_than_one_statement_holds(sqlite_url, monkeypatch):
    monkeypatch.setattr("safexplain.ledger.accounts.CHUNK", 3)
    with Ledger(sqlite_url, epsilon=2.0, delta=1e-5, adjacency="substitute") as ledger:
        for i in range(10):
            ledger.charge(f"p{i}", epsilon=0.25)
        ledger.charge_training(full())
        assert {round(a.spent, 3) for a in ledger.accounts()} == {1.25}
        assert ledger.verify() == 11


@in_each_database
def test_trainings_that_several_charge_at_once_are_charged_once(make):
    make(epsilon=1.3, delta=1e-5, total_epsilon=9.0, adjacency="substitute")

    def charge(i):
        ledger = make()
        for name in random.Random(i).sample(named(5), 5):
            ledger.charge_training(pure(0.25, name))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(charge, range(3)))
    ledger = make()
    assert (ledger.total().trainings, ledger.spent("nobody"), ledger.verify()) == (5, 1.25, 5)


def test_full_batches_are_known_by_their_mu_exactly():
    statement = full()
    for adjacency in ("substitute", "zero_out"):
        found = training_of(statement, adjacency)
        assert get_epsilon_gaussian(1 / found.mu, 1e-5) == pytest.approx(statement.epsilons.of(adjacency), rel=1e-6)
        assert (found.delta, found.adjacency) == (1e-5, adjacency)


@pytest.mark.parametrize("adjacency", ["substitute", "zero_out"])
def test_sampled_batches_are_known_by_their_curve(adjacency):
    found = training_of(sampled(), adjacency)
    assert found.curve.divergences == Renyi.of_steps(sampled().phases, adjacency).divergences
    assert found.epsilon == sampled().epsilons.of(adjacency) <= found.curve.epsilon_at(1e-5)


def test_a_pure_training_is_pure():
    present = pure(pure_add_remove=0.3)
    assert training_of(present, "substitute") == Training(0.5, adjacency="substitute")
    assert training_of(present, "zero_out") == Training(0.3, adjacency="zero_out")


@pytest.mark.parametrize(
    ("statement", "adjacency", "error", "says"),
    [
        (full(weights=""), "substitute", RefusedError, "no digest of weights"),
        (sampled(unit="person", rows_per_person=3), "substitute", RefusedError, "about single records, .*person"),
        (full(), "add_remove", RefusedError, "reveals the number of records"),
        (full(noise=0.0), "substitute", RefusedError, "a finite epsilon under substitute, got infinity"),
        ({"epsilon": 1.0}, "substitute", ConfigurationTypeError, "expected a PrivacyStatement"),
    ],
)
def test_what_says_nothing_about_one_model_is_refused(make, statement, adjacency, error, says):
    ledger = make(epsilon=9.0, delta=1e-5, adjacency=adjacency)
    with pytest.raises(error, match=says):
        ledger.charge_training(statement)
    assert ledger.total().charges == 0


def test_a_count_with_noise_hides_presence_and_may_be_charged_under_add_remove(make):
    ledger = make(epsilon=9.0, delta=1e-5, adjacency="add_remove")
    charge = ledger.charge_training(full(count_noised=True))
    assert charge.release.epsilon == full().epsilons.add_remove


ONE = training_of(full(), "substitute")


def test_in_a_small_budget_a_training_counts_as_its_statement_says():
    budget = Budget(2.0, 1e-5)
    sums = Composition().add(ONE, budget)
    assert (sums.rule, sums.spent(budget)) == ("basic", pytest.approx(ONE.epsilon))
    for _ in range(4):
        sums = sums.add(Pure(0.25), budget)
    assert sums.within(budget)
    assert sums.spent(budget) == pytest.approx(2.0, abs=1e-3)
    assert not sums.add(Pure(0.01), budget).within(budget)


@pytest.mark.parametrize("statement", [full(), sampled()])
def test_in_a_large_budget_many_trainings_fit_and_never_more_than_exact_accounting_allows(statement):
    one, budget, count = training_of(statement, "substitute"), Budget(8.0, 1e-5), 0
    sums = Composition()
    while (more := sums.add(one, budget)).within(budget):
        sums, count = more, count + 1
    exact = replace(statement, phases=(replace(statement.phases[0], steps=count * statement.phases[0].steps),))
    assert sums.rule == "renyi"
    assert count > 2.5 * 8.0 / one.epsilon
    assert exact.epsilons.substitute <= sums.spent(budget) <= 8.0


def test_a_training_of_epsilon_zero_is_told_too(make):
    ledger = make(epsilon=1.0, delta=1e-5, adjacency="substitute")
    ledger.charge_training(full(steps=0))
    assert (ledger.spent("ann"), ledger.total().trainings) == (0.0, 1)
    assert ledger.verify() == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE ledger_answers SET value = '{}'", "answer of charge 2 is altered"),
        ("DELETE FROM ledger_answers", "answer of charge 2 is missing"),
    ],
)
def test_a_training_that_was_tampered_with_is_found(make, damage, says):
    ledger = make(epsilon=9.0, delta=1e-5, adjacency="substitute")
    ledger.charge("ann", epsilon=0.1)
    ledger.charge_training(full())
    ledger.charge("bob", epsilon=0.1)
    with ledger._storage.transaction() as execute:
        execute(damage, ())
    with pytest.raises(LedgerError, match=says):
        ledger.verify()
    with pytest.raises(LedgerError, match="statement of charge 2 cannot be read"):
        ledger.charge_training(full())


def test_a_training_whose_statement_is_gone_is_damage(make):
    ledger = make(epsilon=9.0, delta=1e-5, adjacency="substitute")
    ledger.charge_training(full())
    with ledger._storage.transaction() as execute:
        execute("DELETE FROM ledger_answers", ())
    with pytest.raises(LedgerError, match="statement of charge 1 cannot be read"):
        ledger.charge_training(full())


def test_the_adjacency_is_stated_when_the_ledger_is_made(make):
    assert make(epsilon=5.0, adjacency="zero_out").adjacency == make().adjacency == "zero_out"
    with pytest.raises(ConfigurationError, match="created with 'zero_out', got 'substitute'"):
        make(adjacency="substitute")


@pytest.mark.parametrize(
    "release", [Renyi.of_steps(Steps(2.0, 0.02, 100), "add_remove"), Concentrated(0.1, adjacency="add_remove")]
)
def test_a_release_that_names_other_neighbours_is_refused(make, release):
    ledger = make(epsilon=5.0, delta=1e-6)
    for ask in (
        lambda: ledger.charge("ann", release),
        lambda: ledger.answer("ann", "why?", lambda: 1, release),
        lambda: ledger.answer_many("ann", ["a", "b"], lambda at: [1] * len(at), release),
    ):
        with pytest.raises(ConfigurationError, match=r"expected substitute, .* got a release under add_remove"):
            ask()
    assert ledger.total().charges == 0
