"""audit/suites/paper_d: the two artefacts come from the evaluation, both searches do what they say, and the fast
arithmetic is right."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, Saliency
from evidence import needs, twice

from audit.suites.paper_d import nothing_to_leak as paper_d
from audit.suites.paper_d import search, tables
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


def test_reshuffled_rates_are_those_that_the_library_reads():
    n, examples = 2000, 9000
    scores = np.random.default_rng(3).normal(size=(3, examples))
    fast = paper_d.reshuffled_rates(scores, n, 5, np.random.default_rng(4))
    rng = np.random.default_rng(4)
    for row in fast:
        chosen = rng.permutation(examples)[: 2 * n]
        slow = [tpr_at_fpr(s[chosen], np.arange(2 * n) < n, fpr=0.001).tpr for s in scores]
        assert row.tolist() == pytest.approx(slow)


@pytest.fixture(scope="module")
def data():
    """Forty groups of three images, whose brightness tells the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) // 3 % 2
    images = (rng.integers(0, 120, (120, 32, 32, 3)) + 120 * labels[:, None, None, None]).astype(np.uint8)
    return search.Data(images, labels, np.arange(120) // 3, 0.5, 0.25)


SMALL = replace(search.QUICK, sides=(24, 16, 12), pools=(40, 30, 20), trials=(3, 2, 1), sensitivity=8)


def test_the_published_rate_is_read_at_the_first_point_with_the_nearest_false_positive_rate():
    for non_members, expected in ((2000, 0.1), (700, 0.1), (400, 0.0)):
        top = non_members - 1.0
        members = np.repeat([top + 0.5, top - 0.5, 0.5], [100, 200, 700])
        scores = np.concatenate([np.arange(float(non_members)), members])
        assert search.tpr_nearest(scores, np.arange(len(scores)) >= non_members) == pytest.approx(expected)


@pytest.fixture(scope="module")
def honest(data):
    return search.Honest(data, SMALL)


@pytest.mark.parametrize("planted", [True, False])
def test_the_honest_protocol_finds_a_planted_leak_and_none_in_random_maps(planted):
    size, n = replace(SMALL, models=8, targets=2), 250
    rng = np.random.default_rng(0)
    blank = search.Data(np.zeros((n, 32, 32, 3), np.uint8), np.arange(n) % 2, np.arange(n), 0.5, 0.25)
    whole = search.Honest(blank, replace(size, pools=(n, n, n)))
    member = rng.random((8, n)) < 0.5
    whole.__dict__.update(labels=torch.zeros(8, n, dtype=torch.long), shadows=type("S", (), {"membership": member})())
    maps = [torch.from_numpy(rng.normal(size=(n, 3, 4, 4)) * (1 - 0.9 * planted * m[:, None, None, None])).float()
            for m in member]  # fmt: skip
    scores = whole.leak(maps)
    found = search.excesses(scores, member[:2], np.arange(n))
    assert max(found.values()) > 0.5 if planted else max(found.values()) < 0.05
    reported = whole.reported({"default": (scores, max(found, key=found.get), None)}, member[:2], np.arange(n))
    low, high = reported["default"]["leak"][1:]
    assert low > 0.4 if planted else low <= 0 <= high + 1e-9


@pytest.mark.slow
@needs("cifar10.npz")
def test_the_evaluation_runs_and_resumes(tmp_path):
    first, again = twice("audit.suites.paper_d", tmp_path, "--part", "evaluation")
    assert first["quick"]
    ran = first["results"]["evaluation"]
    assert ran["run"]["command"].startswith("python -m audit.suites.paper_d")
    assert again["results"]["evaluation"]["untrained_networks"] == ran["untrained_networks"]


@pytest.mark.slow
@needs("cifar10.npz")
def test_the_search_runs_resumes_and_keeps_the_other_parts(tmp_path):
    first, again = twice("audit.suites.paper_d", tmp_path, "--part", "search", "--task", "cifar10")
    assert again["results"]["search cifar10"]["cells"] == first["results"]["search cifar10"]["cells"]
    for cell in first["results"]["search cifar10"]["cells"].values():
        assert cell["published"]["trials"][0]["tpr"] == max(cell["published"]["trials"][0]["tpr of each seed"])
        assert cell["honest"]["which"]["published best"] == cell["published"]["best"]
    assert "| cifar10 | InputXGradient |" in tables.left_of_the_claim(first)
