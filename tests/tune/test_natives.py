"""What a search hardens is what the hardened classes release: at the resolution of groups, before maps are enlarged."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain import GaussianNoise, Hardening, RankNorm, Relative, TopKMask, TopKSet
from safexplain.audit import Dither, Population
from safexplain.audit.answers import ExplainModel, Predictions
from safexplain.audit.question import AuditOptions, Question
from safexplain.audit.signals import Store
from safexplain.explain.hardened import HARDENED
from safexplain.tune.study import Natives

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 2, 1, 1, 0, 0]])


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)
        ).eval()


MODELS = [net(1), net(2)]


def natives(method: str, arguments: dict | None = None, store: Store | None = None, seed: int = 0) -> Natives:
    pool = Population(X, torch.arange(6) % 3)
    asked = Predictions({1: {"label": LABELS.double().numpy()}}, Dither(), 3)
    question = Question(
        MODELS[0], pool, member=np.arange(6) < 3, explainer=HARDENED[method], arguments=arguments, output="logit",
        hardening=Hardening.none(), options=AuditOptions(batch_size=4), seed=seed,
    )  # fmt: skip
    return Natives(question, MODELS, pool, asked, store or Store())


SET, RANKS = Hardening(TopKSet(fraction=0.2)), Hardening(RankNorm(), TopKMask(0.3))


@pytest.mark.parametrize(
    ("method", "arguments", "hardening"),
    [
        ("InputXGradient", {}, RANKS),
        ("Occlusion", {"sliding_window_shapes": (3, 3, 3), "strides": (3, 2, 2)}, SET),
        ("FeatureAblation", {}, RANKS),
        ("FeatureAblation", {"n_segments": 4, "compactness": 1.0}, SET),
        ("GradCAM", {}, RANKS),
    ],
)
def test_hardened_native_maps_are_what_the_hardened_class_releases(method, arguments, hardening):
    if "n_segments" in arguments:
        pytest.importorskip("skimage")
    asked = natives(method, arguments)
    (released,) = asked.release(asked.maps({}), hardening)
    for model, label, maps in zip(MODELS, LABELS, released, strict=True):
        assert torch.allclose(maps, asked.methods[0](model, hardening, X, label), atol=1e-6)


def test_maps_are_hardened_before_they_are_enlarged():
    asked = natives("GradCAM", {"interpolate_mode": "nearest"})
    assert asked.maps({})[0].values.shape == (2, 6, 1, 8, 8)  # the layer's own size, here that of the input
    assert torch.equal(asked.maps({})[0].values, natives("GradCAM").maps({})[0].values)


def test_noise_is_the_same_each_time_and_another_one_for_each_model_and_example():
    asked, noisy = natives("Saliency"), Hardening(RankNorm(), noise=GaussianNoise(Relative(0.5)))
    one, two = (asked.release(asked.maps({}), noisy)[0] for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(asked.release(asked.maps({}), noisy, [1])[0][0], one[1])
    quiet = asked.release(asked.maps({}), noisy.without_noise())[0]
    drawn = (one - quiet).flatten(0, 1).flatten(1)
    assert (torch.corrcoef(drawn) - torch.eye(12)).abs().max() < 0.4
    assert not torch.equal(natives("Saliency", seed=1).release(asked.maps({}), noisy)[0], one)


def test_explainers_that_draw_at_random_draw_the_same_again_and_leave_the_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, two = (natives("SmoothGrad", {"nt_samples": 3, "stdevs": 0.5}).maps({})[0].values for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


def test_maps_are_read_again_from_the_folder(tmp_path, monkeypatch):
    one = natives("InputXGradient", store=Store(tmp_path)).maps({})[0].values
    monkeypatch.setattr(ExplainModel, "__call__", lambda *asked, **_: pytest.fail("asked again"))
    assert torch.equal(natives("InputXGradient", store=Store(tmp_path)).maps({})[0].values, one)
    with pytest.raises(pytest.fail.Exception):
        natives("InputXGradient", {"multiply_by_inputs": False}, store=Store(tmp_path)).maps({})
