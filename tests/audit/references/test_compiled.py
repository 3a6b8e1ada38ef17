"""Precision, memory format and compilation: what changes, what does not, and that one compilation serves all models."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from safexplain.audit import Recipe
from safexplain.audit.references.recipe import forget
from safexplain.audit.references.shadows import train_models, train_one
from safexplain.errors import ConfigurationError

RECIPE = Recipe(optimizer="sgd", lr=0.05, epochs=2, batch_size=16, augmentation="crop-flip")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


X, Y = torch.randn(48, 2, 8, 8, generator=seeded(1)), torch.randint(0, 3, (48,), generator=seeded(2))
MEMBERS = [torch.arange(0, 40), torch.arange(3, 46), torch.arange(8, 48)]  # last batches of 8, 11 and 8


class Scaled(nn.Module):
    """Not a parameter, and yet part of what a model is."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x * self.by


def network(seed=0, width=6, by=1.0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(2, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), Scaled(by)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(4 * width, 3)),
    )


def state(model):
    return torch.cat([t.detach().flatten().float().cpu() for t in model.state_dict().values()])


def trained(recipe, models, device="cpu"):
    models = [model.to(device) for model in models]
    train_models(recipe, models, X, Y, MEMBERS[: len(models)], [seeded(i) for i in range(len(models))])
    return models


@pytest.fixture
def traced(monkeypatch):
    """Compile by tracing only, which needs no compiler; gives the number of compilations so far."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    forget()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    forget()


def test_bfloat16_gives_nearly_the_same_float32_weights():
    exact, coarse = trained(RECIPE, [network()])[0], trained(replace(RECIPE, precision="bf16"), [network()])[0]
    assert {t.dtype for t in coarse.state_dict().values()} == {torch.float32, torch.int64}
    far = (state(exact) - state(network())).abs().max()
    assert 0 < (state(exact) - state(coarse)).abs().max() < 0.1 * far


def test_channels_last_trains_the_same_model_and_leaves_it_laid_out_as_it_was_built():
    one, other = network(), network()
    addresses = [p.data_ptr() for p in other.parameters()]
    trained(RECIPE, [one])
    seen = []
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: (
            seen.append((given[0], module.weight)) if isinstance(module, nn.Conv2d) and module.training else None
        )
    )
    try:
        trained(replace(RECIPE, channels_last=True, augmentation="crop-flip"), [other])
    finally:
        handle.remove()
    assert len(seen) == 6
    assert all(t.is_contiguous(memory_format=torch.channels_last) for pair in seen for t in pair)
    assert torch.allclose(state(one), state(other), atol=1e-5)
    assert all(p.is_contiguous() for p in other.parameters())
    assert [p.data_ptr() for p in other.parameters()] == addresses


def test_one_compilation_serves_all_models_and_all_sizes_of_the_last_batch(traced):
    plain, fast = trained(RECIPE, [network(s) for s in range(3)]), [network(s) for s in range(3)]
    trained(replace(RECIPE, compile=True), fast)
    assert traced() == 1
    for a, b in zip(plain, fast, strict=True):
        assert torch.allclose(state(a), state(b), atol=1e-5)
    again = trained(replace(RECIPE, compile=True), [network(3)])  # in another call, too
    assert traced() == 1
    assert torch.allclose(state(again[0]), state(trained(RECIPE, [network(3)])[0]), atol=1e-5)


def test_another_architecture_is_compiled_anew_even_where_only_a_setting_differs(traced):
    recipe = replace(RECIPE, compile=True)
    for count, options in enumerate(({}, {"by": 2.0}, {"by": 2.0}, {"width": 5}), 1):
        model = trained(recipe, [network(**options)])[0]
        assert traced() == count - (count > 2)
        assert torch.allclose(state(model), state(trained(RECIPE, [network(**options)])[0]), atol=1e-5)


def test_where_nothing_can_be_compiled_it_is_said_what_to_do(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler found")

    forget()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    model = network()
    before = copy.deepcopy(model)
    with pytest.raises(ConfigurationError, match=r"compile = true does not work here.*set compile = false"):
        train_one(replace(RECIPE, compile=True), model, X, Y, seeded())
    assert torch.equal(state(model), state(before))
    forget()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_all_of_it_at_once_gives_nearly_the_model_of_plain_float32():
    fast = replace(RECIPE, precision="bf16", channels_last=True, compile=True)
    counters.clear()
    models = trained(fast, [network(s) for s in range(3)], "cuda")
    assert counters["stats"]["unique_graphs"] == 1
    for seed, model in enumerate(models):
        exact = trained(RECIPE, [network(s) for s in range(3)], "cuda")[seed]
        far = (state(exact) - state(network(seed))).abs().max()
        assert bool(torch.isfinite(state(model)).all())
        assert (state(exact) - state(model)).abs().max() < 0.2 * far
        assert all(p.is_contiguous() and p.dtype == torch.float32 for p in model.parameters())
    forget()
