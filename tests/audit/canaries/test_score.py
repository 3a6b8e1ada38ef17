"""Scores of models: a higher score speaks for D, which holds the target record."""

from __future__ import annotations

import pytest
import torch

from safexplain.audit.canaries.canary import margins, record_scores
from safexplain.errors import InputError


def test_a_margin_is_the_log_odds_of_the_label():
    found = torch.randn(5, 4, dtype=torch.float64)
    p = found.softmax(1)[:, 2]
    torch.testing.assert_close(margins(found, 2), (p / (1 - p)).log())


def test_a_margin_of_a_sure_model_is_finite():
    assert margins(torch.tensor([[2000.0, 0.0, -10.0]]), 0).isfinite().all()


@pytest.mark.parametrize(("scenario", "y"), [("crafted", 0), ("natural", 1), ("mislabelled", 1)])
def test_one_logit_scores_as_two_of_which_one_is_0(scenario, y):
    z, c = torch.randn(2, 5, 1, dtype=torch.float64)
    both = [torch.cat([torch.zeros_like(t), t], 1) for t in (z, c)]
    other = y if scenario == "crafted" else 1 - y
    torch.testing.assert_close(record_scores(z, c, y, other, scenario), record_scores(*both, y, other, scenario))


def test_a_mislabelled_canary_is_scored_by_two_logits_at_one_input():
    z = torch.tensor([[1.0, 5.0, 2.0]])
    assert record_scores(z, torch.full_like(z, torch.nan), 1, 2, "mislabelled").tolist() == [3.0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda z: record_scores(z, z, 0, 3, "natural"), "0 to 2"),
        (lambda z: record_scores(z, z, 1, 1, "mislabelled"), "another label"),
    ],
)
def test_what_cannot_be_scored_is_named(call, says):
    with pytest.raises(InputError, match=says):
        call(torch.zeros(2, 3))
