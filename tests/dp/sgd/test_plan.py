"""A plan keeps its budget before any record is looked at."""

import math

import pytest

from safexplain.dp.sgd.train_loop import TrainingBudget, plan_training
from safexplain.errors import ConfigurationError


def test_noise_is_calibrated_to_the_data_trained_on():
    made = plan_training(TrainingBudget(8.0, 1e-5), 10_000, 1000, epochs=30)
    assert (made.sample_rate, made.steps, made.requested_steps) == (0.1, 300, 300)
    assert 7.9 < made.spent(300) <= 8.0
    assert made.spent(150) < made.spent(300)


def test_a_fixed_noise_multiplier_ends_training_before_the_budget_would_be_passed():
    made = plan_training(TrainingBudget(2.0, 1e-5, "add_remove", noise_multiplier=1.0), 1000, 100, epochs=30)
    assert made.steps < made.requested_steps == 300
    assert made.spent(made.steps) <= 2.0 < made.spent(made.steps + 1)


def test_full_batches_are_accounted_as_such():
    made = plan_training(TrainingBudget(1.0, 1e-5), 100, 100, steps=10)
    assert made.phase().sampling == "full-batch"
    assert made.phase(3).steps == 3


def test_no_limit_needs_a_noise_multiplier():
    assert plan_training(TrainingBudget(None, 1e-5, noise_multiplier=0.0), 100, 10, epochs=1).spent(10) == math.inf
    with pytest.raises(ConfigurationError, match="expected epsilon"):
        TrainingBudget(None, 1e-5)


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        (TrainingBudget(1.0, 1e-5), {"batch_size": 101, "epochs": 1}, "at most the 100 records"),
        (TrainingBudget(1.0, 1e-5), {"batch_size": 10}, "either epochs or steps, got neither"),
        (TrainingBudget(1.0, 1e-5), {"batch_size": 10, "epochs": 1, "steps": 2}, "either epochs or steps, got both"),
        (TrainingBudget(1.0, 1e-5), {"batch_size": 10, "epochs": 0}, "at least one whole step"),
        (TrainingBudget(0.1, 1e-5, noise_multiplier=0.5), {"batch_size": 50, "steps": 10}, "spends more than 0.1"),
    ],
)
def test_impossible_plans_are_refused(budget, options, message):
    with pytest.raises(ConfigurationError, match=message):
        plan_training(budget, 100, **options)


@pytest.mark.parametrize("epsilon", [0, math.inf])
def test_impossible_epsilons_are_refused(epsilon):
    with pytest.raises(ConfigurationError, match="epsilon"):
        TrainingBudget(epsilon, 1e-5)
