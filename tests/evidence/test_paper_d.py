"""audit/suites/paper_d: the two artefacts come from the evaluation, and the fast arithmetic is right."""

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, Saliency

from audit.suites.paper_d import suite as paper_d
from safexplain.verdict.stats import tpr_at_fpr


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(1, 256, (12, 32, 32, 3), dtype=np.uint8)


def test_maps_are_those_of_captum_on_the_true_label(images):
    model, labels = paper_d.untrained(3), np.arange(12) % 10
    got = paper_d.explain(model, images, labels)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (paper_d.MEAN, paper_d.STD))
    x = ((torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - mean) / std).requires_grad_()
    for name, method in (("InputXGradient", InputXGradient(model)), ("Saliency", Saliency(model))):
        expected = method.attribute(x, target=torch.from_numpy(labels))
        assert torch.allclose(got[name], expected, rtol=1e-4, atol=1e-6 * float(expected.detach().abs().max()))


@pytest.mark.parametrize("planted", [True, False])
def test_the_attack_finds_a_planted_difference_and_nothing_else(planted):
    generator, member = torch.Generator().manual_seed(0), np.arange(600) < 300
    maps = [torch.randn(600, 3, 32, 32, generator=generator) for _ in range(2)]
    if planted:
        for m in maps:
            m[:300, :, :4] *= 0.2
    attack = paper_d.Attack(paper_d.convolutional, maps[0], member, 0, 3)
    low, high = paper_d.figures(attack(maps[1]), member)["AUC"][1:]
    assert low > 0.9 if planted else low < 0.5 < high


def test_simulated_rates_are_distributed_as_those_of_independent_scores():
    """Four standard errors; the seed is fixed."""
    n, rng = 1000, np.random.default_rng(2)
    member = np.arange(2 * n) < n
    slow = np.array([tpr_at_fpr(rng.random(2 * n), member, fpr=0.001).tpr for _ in range(1000)])
    fast = paper_d.chance_rates(n, (50_000,), rng)
    assert fast.mean() == pytest.approx(slow.mean(), abs=4 * slow.std() / np.sqrt(len(slow)))
    assert fast.std() == pytest.approx(slow.std(), rel=0.15)
    assert paper_d.chance_rates(2 * n, (50_000,), rng).std() < 0.9 * slow.std(), "another number is another spread"


def test_reshuffled_rates_are_those_that_the_library_reads():
    n, examples = 2000, 9000
    scores = np.random.default_rng(3).normal(size=(3, examples))
    fast = paper_d.reshuffled_rates(scores, n, 5, np.random.default_rng(4))
    rng = np.random.default_rng(4)
    for row in fast:
        chosen = rng.permutation(examples)[: 2 * n]
        slow = [tpr_at_fpr(s[chosen], np.arange(2 * n) < n, fpr=0.001).tpr for s in scores]
        assert row.tolist() == pytest.approx(slow)
