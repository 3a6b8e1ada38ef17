"""Wrong arguments end in an error that names them, not in one from deep inside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse import L1, L2, MAD
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.mechanism import plain_classes, wanted_label


@pytest.mark.parametrize(
    ("weights", "options", "error", "said"),
    [
        (["a", 1], {}, InputError, "weights: expected numbers"),
        ([1, 1], {"target": "a"}, InputError, "target: expected numbers, got 'a'"),
        ([1, 1], {"target": [1.0, 2.0]}, InputError, "target: expected one number"),
        ([1, 1], {"bias": "a"}, InputError, "bias: expected numbers"),
        ([1, 1], {"cost": "l1"}, ConfigurationError, r"cost: expected L2\(\), L1\(\)"),
        ([1, 1], {"cost": L1}, ConfigurationError, r"cost: expected L2\(\), L1\(\)"),
        ([1, 1], {"constraints": {}}, ConfigurationError, "constraints: expected Constraints"),
    ],
)
def test_linear_recourse_names_the_argument_that_is_wrong(weights, options, error, said):
    with pytest.raises(error, match=said):
        linear_recourse(weights, **{"bias": 0.0, "x": [[0.0, -1.0]], **options})


def test_weights_may_be_a_parameter_of_a_network():
    weights = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    found, same = (linear_recourse(w, 0.0, [[0.0, -1.0]]) for w in (weights, [1.0, 2.0]))
    assert (found.counterfactual == same.counterfactual).all()


@pytest.mark.parametrize("cost", [L1, L2, MAD])
@pytest.mark.parametrize("scale", ["a", ["1", "2"], [1, None], np.ma.array([1.0, 2.0], mask=[0, 1])], ids=str)
def test_scales_that_are_no_numbers_are_refused(cost, scale):
    with pytest.raises(ConfigurationError, match="scale: "):
        cost(scale)


@pytest.mark.parametrize("labels", [(0, 1), ["no", "yes"], np.array([False, True]), np.array(["a", "b", "c"])])
def test_labels_are_kept_in_their_order_as_plain_values(labels):
    plain = plain_classes(labels)
    assert plain == tuple(labels)
    assert not any(isinstance(label, np.generic) for label in plain)
    assert plain_classes(labels[::-1]) == plain[::-1]


def test_of_two_labels_the_second_is_wanted_and_of_more_none_is_guessed():
    assert wanted_label(["no", "yes"], None) == "yes"
    assert wanted_label(["a", "b", "c"], "a") == "a"
    for favourable in (None, "d"):
        with pytest.raises(ConfigurationError, match="favourable"):
            wanted_label(["a", "b", "c"], favourable)
