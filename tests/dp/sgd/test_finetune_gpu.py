"""On a GPU, training keeps the same promises."""

import pytest
import torch
from torch import nn

from safexplain.dp import DPFineTuner, FlatClipping

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def parts() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(80, 3, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    return model, x, (x.mean((1, 2, 3)) > 0).long()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_without_noise_the_gpu_trains_what_the_cpu_trains(mode):
    ends = []
    for device in ("cpu", "cuda"):
        model, x, y = parts()
        tuner = DPFineTuner(
            model, (x, y), epsilon=None, noise_multiplier=0.0, delta=1e-5, steps=20, batch_size=20, lr=0.1,
            optimizer="sgd", clipping=FlatClipping(0.1), seed=1, device=device, mode=mode,
        )  # fmt: skip
        done = tuner.fit()
        assert next(done.model.parameters()).device.type == device
        ends.append([p.detach().cpu() for p in done.model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_the_budget_is_kept_and_a_seed_repeats_the_noise(trainable):
    ends = []
    for seed in (1, 1, 2):
        model, x, y = parts()
        options = {"steps": 10, "batch_size": 20, "seed": seed, "device": "cuda", "trainable": trainable}
        done = DPFineTuner(model, (x, y), epsilon=4.0, delta=1e-5, **options).fit()
        assert done.statement.epsilons.substitute <= 4.0
        ends.append(torch.cat([p.detach().flatten() for p in done.model.parameters()]))
    assert torch.allclose(ends[0], ends[1], atol=1e-5)  # a GPU adds up gradients in any order
    assert not torch.allclose(ends[0], ends[2], atol=1e-3)
