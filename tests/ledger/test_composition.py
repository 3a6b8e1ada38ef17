import itertools
import math

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from safexplain.ledger import Approximate, Concentrated, Pure
from safexplain.ledger.composition import Budget, Composition, best_order, renyi_allowed
from safexplain.ledger.releases import Training
from tests.ledger.conftest import gaussian


def composed(releases, budget):
    """Sums of as many of the releases as fit, and how many those are."""
    sums = Composition()
    for count, release in enumerate(releases):
        after = sums.add(release, budget)
        if not after.within(budget):
            return sums, count
        sums = after
    return sums, len(releases)


def fitting(sums, release, budget):
    """How many copies fit into an account."""
    count = 0
    while sums.add_under_rule(release, count + 1).within(budget):
        count += 1
    return count


def exact_epsilon(releases, delta):
    """Epsilon of a fixed sequence, numerically: no filter can promise less."""
    whole = None
    for release, group in itertools.groupby(releases):
        if isinstance(release, Concentrated):
            one = pld.from_gaussian_mechanism(1 / math.sqrt(2 * release.rho), value_discretization_interval=1e-4)
        else:
            parameters = DifferentialPrivacyParameters(release.epsilon, getattr(release, "delta", 0.0))
            one = pld.from_privacy_parameters(parameters, value_discretization_interval=1e-4)
        many = one.self_compose(len(list(group)))
        whole = many if whole is None else whole.compose(many)
    return whole.get_epsilon_for_delta(delta)


STREAMS = {
    "gaussian": [gaussian(0.03)] * 300,
    "pure": [Pure(0.02)] * 200,
    "few large": [Pure(0.2)] * 5,
    "approximate": [Approximate(0.1, 1e-8)] * 10,
    "approximate, then gaussian": [Approximate(0.1, 1e-8)] * 4 + [gaussian(0.05)] * 20,
    "pure, then gaussian": [Pure(0.02)] * 100 + [gaussian(0.03)] * 60,
    "gaussian, then pure": [gaussian(0.03)] * 100 + [Pure(0.02)] * 60,
    "large, then small": [Pure(0.2)] * 2 + [Pure(0.01)] * 200,
    "all": [Pure(0.01)] * 60 + [gaussian(0.02)] * 60 + [Pure(0.01)] * 60 + [Approximate(0.01, 1e-8)] * 5,
}
RECORDED = {
    "gaussian": ("renyi", 9.3704, 2.6181613052493455),
    "pure": ("renyi", 9.3704, 1.5103714006658602),
    "few large": ("basic", 0.0, 1.0),
    "approximate": ("basic", 0.0, 1.0),
    "approximate, then gaussian": ("renyi", 10.612, 1.626277120090052),
    "pure, then gaussian": ("renyi", 9.3704, 1.635374424780831),
    "gaussian, then pure": ("renyi", 9.3704, 1.8077756345492193),
    "large, then small": ("renyi", 10.393, 1.1243492772284722),
    "all": ("renyi", 9.3704, 0.9987188356399053),
}
"""Rule, order and spent epsilon of each stream."""


@pytest.mark.parametrize("name", STREAMS)
def test_spent_is_never_below_what_the_releases_reveal(name):
    budget, stream = Budget(3.0, 1e-6), STREAMS[name]
    sums, count = composed(stream, budget)
    assert count == len(stream)
    assert exact_epsilon(stream, budget.delta) * (1 - 1e-3) - 1e-3 <= sums.spent(budget)
    assert (sums.rule, sums.order, sums.spent(budget)) == (*RECORDED[name][:2], pytest.approx(RECORDED[name][2]))


@pytest.mark.parametrize(
    ("release", "epsilon"),
    [(gaussian(0.05), 0.3), (gaussian(0.05), 4.0), (Pure(0.03), 0.3), (Pure(0.03), 4.0)],
    ids=repr,
)
def test_a_full_account_reveals_no_more_than_its_budget(release, epsilon):
    budget = Budget(epsilon, 1e-6)
    sums, count = composed([release] * 20_000, budget)
    assert 0 < count < 20_000
    assert exact_epsilon([release] * count, budget.delta) <= epsilon * (1 + 1e-3) + 1e-3
    assert sums.spent(budget) <= epsilon < sums.add(release, budget).spent(budget)
    assert sums.spent(budget) <= 1.15 * exact_epsilon([release] * count, budget.delta) + 0.03


@pytest.mark.parametrize("name", ["gaussian", "pure", "gaussian, then pure"])
def test_under_the_renyi_rule_spent_is_the_least_that_any_condition_implies(name):
    """Divergences by dp-accounting, of pure releases by their formula; half of delta for one order, 1/32 for others."""
    budget, stream = Budget(3.0, 1e-6), STREAMS[name]
    sums, implied = composed(stream, budget)[0], []
    for order, share in ((sums.order, 1 / 2), *((o, 1 / 32) for o in (1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0))):
        accountant, loss = RdpAccountant([order]), 0.0
        for release in stream:
            if isinstance(release, Concentrated):
                accountant.compose(GaussianDpEvent(1 / math.sqrt(2 * release.rho)))
            else:
                p = math.exp(release.epsilon) / (1 + math.exp(release.epsilon))
                loss += math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        implied.append(compute_epsilon([order], [float(accountant._rdp[0]) + loss], 1e-6 * share)[0])
    assert sums.spent(budget) == pytest.approx(min(implied), rel=2e-3)


def test_approximate_releases_may_use_all_of_delta():
    sums, count = composed([Approximate(0.05, 1e-7)] * 20, Budget(1.0, 1e-6))
    assert count == 10
    assert (sums.rule, sums.spent(Budget(1.0, 1e-6))) == ("basic", 0.5)


def test_the_sums_of_one_release_are_its_amounts_and_nothing_else():
    assert Composition().add(Pure(0.1), Budget(1.0)) == Composition("basic", 0.0, epsilon=10**29, charges=1)
    after = Composition().add(Approximate(0.2, 1e-7), Budget(1.0, 1e-6))
    assert after == Composition("basic", 0.0, epsilon=2 * 10**29, delta=10**23, charges=1)
    order = best_order(gaussian(0.1), 1.0, 0.5e-6)
    after = Composition().add(gaussian(0.1), Budget(1.0, 1e-6))
    assert (after.rule, after.order, after.epsilon, after.unbounded, after.charges) == ("renyi", order, 0, 1, 1)
    at = (order, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0)
    assert [units / 10**30 for units in after.loss] == pytest.approx([a * 0.005 for a in at])


def test_small_releases_compose_better_than_by_addition():
    _, count = composed([Pure(0.01)] * 2000, Budget(1.0, 1e-6))
    assert 400 < count < 600
    assert composed([Pure(0.01)] * 2000, Budget(1.0, 0.0))[1] == 100


def test_a_change_of_rule_keeps_what_was_spent():
    budget = Budget(1.0, 1e-6)
    before, _ = composed([Approximate(0.25, 5e-7)] * 2, budget)
    assert not before.add(gaussian(0.01), budget).within(budget), "no delta is left for another rule"
    before, _ = composed([Approximate(0.25, 1e-7)] * 2, budget)
    after = before.add(gaussian(0.01), budget)
    assert (after.rule, after.prefix_epsilon, after.prefix_delta) == ("renyi", before.epsilon, before.delta)
    assert after.within(budget)
    assert 0.5 < after.spent(budget) < 0.7
    after = composed([Pure(0.2)] * 2, budget)[0].add(Pure(0.001), budget)
    assert (after.rule, after.spent(budget)) == ("renyi", pytest.approx(0.401))


def test_failures_are_limited_beside_another_rule():
    budget = Budget(1.0, 1e-6)
    sums, _ = composed([Pure(0.01)], budget)
    assert sums.rule == "renyi"
    assert sums.add(Approximate(0.01, 2.5e-7), budget).within(budget)
    assert not sums.add(Approximate(0.01, 2.6e-7), budget).within(budget)


def test_the_order_is_the_best_one_and_does_not_change():
    budget = Budget(1.0, 1e-6)
    first = Composition().add(Pure(0.01), budget)
    assert first.order == best_order(Pure(0.01), 1.0, 0.5e-6)
    assert first.add(Pure(0.3), budget).order == first.order
    assert first.add(Pure(0.01), Budget(5.0, 1e-6)).order == first.order, "nor with a budget that was raised"
    counts = {order: fitting(Composition("renyi", order), Pure(0.01), budget) for order in (4.0, first.order, 100.0)}
    assert max(counts, key=counts.get) == first.order


def test_a_training_changes_the_rule_if_four_times_as_many_fit_by_its_curve():
    budget, order = Budget(3.0, 1e-6), best_order(gaussian(0.05), 3.0, 0.5e-6)
    fitting_by_curve = renyi_allowed(order, 3.0, 0.5e-6) / (order * 0.05**2 / 2)
    for factor, rule in ((3.99, "basic"), (4.01, "renyi")):
        training = Training(factor * 3.0 / fitting_by_curve, 1e-7, mu=0.05)
        assert Composition().add(training, budget).rule == rule


@pytest.mark.parametrize("name", ["few large", "approximate, then gaussian", "large, then small", "all"])
def test_spent_grows_and_fits_if_and_only_if_it_is_allowed_and_a_larger_budget_allows_no_less(name):
    budget, sums, last = Budget(1.0, 1e-6), Composition(), 0.0
    for i, release in enumerate(STREAMS[name] * 4):
        changed, sums = sums.rule, sums.add(release, budget)
        if i % 7 and sums.rule == changed:
            continue
        spent = sums.spent(budget)
        assert sums.rule != changed or spent >= last
        assert (spent <= budget.epsilon) == sums.within(budget)
        last = spent
        for larger in (Budget(1.5, 1e-6), Budget(1.0, 1e-5), Budget(50.0, 1e-3)) if sums.within(budget) else ():
            assert sums.within(larger)
            assert sums.spent(larger) <= spent + 1e-9


def test_a_million_releases_are_answered_from_the_sums():
    budget = Budget(1.0, 1e-6)
    order = best_order(gaussian(2e-4), 1.0, 0.5e-6)
    many = Composition("renyi", order).add_under_rule(gaussian(2e-4), 10**6)
    exact = exact_epsilon([gaussian(0.2)], 1e-6)
    assert exact < many.spent(budget) < 1.3 * exact
    one_by_one = Composition("renyi", 60.0)
    for _ in range(1000):
        one_by_one = one_by_one.add_under_rule(Pure(1e-4))
    assert one_by_one == Composition("renyi", 60.0).add_under_rule(Pure(1e-4), 1000)


def test_releases_of_any_size_are_counted():
    budget = Budget(1.0, 1e-6)
    for huge in (Pure(1e5), gaussian(1e4), gaussian(1e150), Pure(1e300)):
        sums = Composition().add(huge, budget)
        assert not sums.within(budget)
        assert sums.spent(budget) > 1e4
    vast = Budget(1e9, 1e-6)
    assert composed([Pure(0.1), gaussian(100.0), Pure(50.0)], vast)[1] == 3
    for tiny in (Pure(1e-9), gaussian(1e-9), Approximate(0.0, 1e-15)):
        sums, count = composed([tiny] * 3, budget)
        assert count == 3
        assert math.isfinite(sums.spent(budget))
