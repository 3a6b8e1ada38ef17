"""The best adaptive asker, found exactly: what it gains against the ledger's filter, and against a wrong one."""

import math
from functools import partial

import numpy as np
import pytest

from safexplain.ledger import Approximate, Pure
from safexplain.ledger.composition import Budget, Composition, best_order, renyi, renyi_allowed
from safexplain.ledger.releases import TRAINING_ORDERS, Training

CASES = [(1.0, 0.05, 12), (2.0, 0.01, 24), (4.0, 0.01, 24)]
"""E, D, and how many of the small pure answers fill E."""


def gain(start, allowed, actions, epsilon, unit):
    """The largest P(S) - e^E Q(S) that any adaptive choice of answers reaches.

    An answer is (release, k, delta): it fails with probability delta, else it is randomised response with epsilon
    k * unit. The state of the game is that of the filter and the loss so far, in units; its value is
    E_P[max(0, 1 - e^(E - loss))], failures counting 1.
    """
    known = {}

    def value(state, loss):
        if (state, loss) not in known:
            best = max(0.0, 1 - math.exp(epsilon - loss * unit))
            for release, k, delta in actions:
                after = allowed(state, release)
                if after is not None:
                    p = 1 / (1 + math.exp(-k * unit))
                    going_on = (
                        p * value(after, loss + k) + (1 - p) * value(after, loss - k) if k else value(after, loss)
                    )
                    best = max(best, delta + (1 - delta) * going_on)
            known[state, loss] = best
        return known[state, loss]

    return value(start, 0)


def by_ledger(budget, state, release):
    after = state.add(release, budget)
    return after if after.within(budget) else None


def by_union_without_split(budget, order, state, release):
    """Basic composition within (E, D), or Renyi composition within (E, D less the deltas): each is right alone."""
    epsilon = round(state[0] + release.epsilon, 9)
    delta = round(state[1] + getattr(release, "delta", 0.0), 9)
    loss = round(state[2] + float(renyi(release, order)), 9)
    left = budget.delta - delta
    basic = epsilon <= budget.epsilon + 1e-9 and left >= -1e-9
    by_loss = left > 1e-9 and loss <= renyi_allowed(order, budget.epsilon, left)
    return (epsilon, delta, loss) if basic or by_loss else None


def answers(epsilon, delta, count):
    unit = epsilon / count
    return unit, [
        (Pure(unit), 1, 0.0),
        (Approximate(0.0, delta / 4), 0, delta / 4),
        (Approximate(2 * unit, delta / 8), 2, delta / 8),
    ]


@pytest.mark.parametrize(("epsilon", "delta", "count"), CASES)
def test_no_adaptive_asker_gains_more_than_delta(epsilon, delta, count):
    unit, actions = answers(epsilon, delta, count)
    reached = gain(Composition(), partial(by_ledger, Budget(epsilon, delta)), actions, epsilon, unit)
    assert reached <= delta
    assert reached >= 0.9 * delta, "the game is rich enough to come near"


@pytest.mark.parametrize(("worth", "epsilon", "delta", "count"), [(0, 1.0, 0.05, 6), (4, 3.0, 0.05, 9)])
def test_trainings_chosen_adaptively_gain_no_more_than_delta_either(monkeypatch, worth, epsilon, delta, count):
    """Whatever they count as, and whenever they make an account change its rule."""
    monkeypatch.setattr("safexplain.ledger.composition.SWITCH_FACTOR", worth)
    unit = epsilon / count
    known = tuple(float(d) for d in renyi(Pure(2 * unit), np.array(TRAINING_ORDERS)))
    actions = [
        (Pure(unit), 1, 0.0),
        (Approximate(0.0, delta / 4), 0, delta / 4),
        (Training(2 * unit, 0.0, None, TRAINING_ORDERS, known), 2, 0.0),
        (Training(2 * unit, delta / 4), 2, delta / 4),
    ]
    reached = gain(Composition(), partial(by_ledger, Budget(epsilon, delta)), actions, epsilon, unit)
    assert 0.9 * delta <= reached <= delta * (1 + 1e-12)


def test_two_rules_with_all_of_delta_each_are_no_filter():
    epsilon, delta, count = CASES[2]
    unit, actions = answers(epsilon, delta, count)
    order = best_order(Pure(unit), epsilon, delta)
    wrong = partial(by_union_without_split, Budget(epsilon, delta), order)
    assert gain((0.0, 0.0, 0.0), wrong, actions, epsilon, unit) > 1.02 * delta


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (1.5, 0.1)])
def test_the_basic_rule_holds_and_is_used_up(epsilon, delta):
    unit = epsilon / 3  # so large that the renyi rule does not help
    actions = [(Pure(unit), 1, 0.0)]
    if delta:
        actions = [(Approximate(unit, delta / 3), 1, delta / 3), *actions]
    reached = gain(Composition(), partial(by_ledger, Budget(epsilon, delta)), actions, epsilon, unit)
    assert reached <= delta + 1e-15
    below = gain(Composition(), partial(by_ledger, Budget(epsilon, delta)), actions, epsilon * 0.9, unit)
    assert below > delta, "a smaller epsilon does not hold"
