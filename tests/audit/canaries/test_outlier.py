"""An outlier is far from the data and of another class; what the adversary sees of it is a number whatever happens."""

import numpy as np
import pytest
import torch

from safexplain._privacy_loss import Steps
from safexplain.audit.canaries.canary import FAR, OUTLIER_SCORES, far_record, outlier_scores, probe_rows, record_scores
from safexplain.errors import InputError
from safexplain.verdict.canaries.result import Claim, Scores, judge


def records(n=30, shape=(4,), seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor([0] * (n // 2) + [1] * (n // 3) + [2] * (n - n // 2 - n // 3))
    return torch.randn(n, *shape, generator=g) + y.view(-1, *[1] * len(shape)), y


@pytest.mark.parametrize(("shape", "unit"), [((4,), 1e-3), ((1, 3, 3), 255.0)])
def test_an_outlier_is_as_far_away_in_any_unit_and_of_the_rarest_other_class(shape, unit):
    x, y = records(shape=shape)
    far, label = far_record(unit * x, y, target=0)
    mean = (unit * x).mean(0)
    typical = (unit * x - mean).flatten(1).norm(dim=1).square().mean().sqrt()
    assert float((far - mean).norm() / typical) == pytest.approx(FAR, rel=1e-4)
    assert torch.cosine_similarity((far - mean).flatten(), (unit * x[0] - mean).flatten(), 0) == pytest.approx(1.0)
    assert label == 2
    assert far_record(x, y, target=len(x) - 1)[1] == 1, "the rarest but its own"


def test_where_all_records_are_equal_there_is_still_one_far_away():
    x, y = torch.ones(6, 3), torch.arange(6) % 2
    far, _ = far_record(x, y, 0)
    assert bool(far.isfinite().all())
    assert not torch.equal(far, x[0])


def test_tokens_and_bytes_get_a_record_that_the_training_can_take():
    tokens = torch.tensor([[1, 2, 2, 5], [1, 2, 2, 1], [2, 1, 1, 2]])
    far, label = far_record(tokens, torch.tensor([0, 1, 1]), 1)
    assert far.tolist() == [5, 5, 5, 5]
    assert label == 0
    image, _ = far_record(torch.randint(0, 255, (9, 2, 2), dtype=torch.uint8), torch.arange(9) % 2, 0)
    assert image.dtype == torch.uint8


@pytest.mark.parametrize(
    ("y", "says"),
    [(torch.zeros(6), "at least two classes, got one"), (torch.tensor([0, 1, -1, 0, 1, 0]), "class indices")],
)
def test_labels_without_another_class_are_an_error_that_says_so(y, says):
    with pytest.raises(InputError, match=says):
        far_record(torch.randn(6, 3), y, 0)


def test_the_adversary_never_looks_at_the_record_that_is_replaced():
    assert probe_rows(5, 2) == [0, 1, 3, 4]
    for n in (70, 1000):
        for target in (0, 5, n - 1):
            assert len(probe_rows(n, target)) == 64
            assert target not in probe_rows(n, target)


def test_the_first_score_is_the_papers_and_all_are_numbers_whatever_the_model_says():
    g = torch.Generator().manual_seed(0)
    pair, others, labels = torch.randn(3, 2, 4, generator=g), torch.randn(3, 5, 4, generator=g), torch.arange(5) % 4
    found = outlier_scores(pair, others, 1, 2, labels)
    assert found.shape == (3, len(OUTLIER_SCORES))
    assert torch.allclose(found[:, 0], record_scores(pair[:, 0], pair[:, 1], 1, 2, "crafted").double())
    expected = [torch.nn.functional.cross_entropy(logits, labels) for logits in others.double()]
    assert torch.allclose(found[:, 3], torch.stack(expected))
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not bool(outlier_scores(torch.full_like(pair, bad), others, 1, 2, labels).isnan().any())
        assert not bool(outlier_scores(pair, torch.full_like(others, bad), 1, 2, labels).isnan().any())


def test_one_logit_says_what_two_say():
    g = torch.Generator().manual_seed(0)
    pair, others, labels = torch.randn(3, 2, 1, generator=g), torch.randn(3, 5, 1, generator=g), torch.arange(5) % 2
    two = [torch.cat([torch.zeros_like(logits), logits], -1) for logits in (pair, others)]
    assert torch.equal(outlier_scores(pair, others, 1, 0, labels), outlier_scores(*two, 1, 0, labels))


def test_a_score_that_no_run_could_have_chosen_shows_nothing():
    """Of scores that say nothing, the best is no better than any; of one that says all, D may be high or low."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=(1, 100, 20)) for _ in range(2)]
    names = tuple(f"s{i}" for i in range(20))
    claim = Claim(Steps(4.0, 0.5, 20), 1e-5)
    bounds = [
        judge(Scores((20,), *noise, names), claim, scenario="outlier", seed=seed).epsilon_lower for seed in range(5)
    ]
    assert max(bounds) < 1
    noise[0][..., 7] -= 20
    found = judge(Scores((20,), *noise, names), claim, scenario="outlier")
    assert found.setting["score"] == "s7, low on D"
    assert found.epsilon_lower == found.ceiling
    assert found.runs == 200
    assert (found.errors[0].positives, found.errors[0].negatives) == (70, 70)


def test_models_that_diverge_on_one_data_set_alone_are_told_apart():
    rng = np.random.default_rng(0)
    d, d_prime = rng.normal(size=(1, 60, 2)), np.full((1, 60, 2), -np.inf)
    found = judge(Scores((20,), d, d_prime, ("a", "b")), Claim(Steps(4.0, 0.5, 20), 1e-5), scenario="outlier")
    assert found.epsilon_lower == found.ceiling
    assert np.isfinite(found.errors[0].threshold)
