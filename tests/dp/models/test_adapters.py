import copy

import pytest
import torch
from torch import nn

pytest.importorskip("timm")
pytest.importorskip("torchvision")

from dp_zoo import build, images

from safexplain.dp.models.prepare import prepare
from safexplain.dp.models.replacements import LoRALinear, add_lora, merge_lora
from safexplain.errors import InputError


def scramble(model):
    """Adapters far from zero."""
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, LoRALinear):
            module.lora_b.weight.data.normal_(generator=generator)
    return model


@pytest.mark.parametrize("name", ["vit_tiny", "beit"])
def test_adapters_change_nothing_at_first_and_something_once_trained(name):
    model, (x, _) = build(name).eval(), images()
    with torch.no_grad():
        before = model(x)
        add_lora(model)
        torch.testing.assert_close(model(x), before)
        moved = prepare(build(name), "lora").eval()
        assert not torch.allclose(scramble(moved)(x), before, atol=1e-2)


@pytest.mark.parametrize("name", ["vit_tiny", "torchvision_vit"])
def test_merging_keeps_the_output_and_gives_the_old_names_back(name):
    plain = prepare(build(name), ["*"] if name == "torchvision_vit" else None)
    model, (x, _) = copy.deepcopy(plain), images()
    add_lora(model, rank=4, alpha=2.0)
    scramble(model).eval()
    with torch.no_grad():
        before = model(x)
        merged = merge_lora(model)
        assert float((merged(x) - before).abs().max() / before.abs().max()) < 1e-6
    assert [type(m) for m in merged.modules()] == [type(m) for m in plain.modules()]
    assert {k: v.shape for k, v in merged.state_dict().items()} == {k: v.shape for k, v in plain.state_dict().items()}


def test_the_formula_is_that_of_the_paper():
    layer = LoRALinear(nn.Linear(5, 3), rank=2, alpha=6.0)
    layer.lora_b.weight.data.normal_()
    x = torch.randn(7, 4, 5)
    right = x @ layer.weight.T + layer.bias + 3.0 * x @ (layer.lora_b.weight @ layer.lora_a.weight).T
    torch.testing.assert_close(layer(x), right)


def test_names_are_the_adapters_and_the_base_is_frozen():
    model = build("vit_tiny")
    add_lora(model, targets=["qkv", "blocks.1.mlp.*"])
    layers = {"blocks.0.attn.qkv", "blocks.1.attn.qkv", "blocks.1.mlp.fc1", "blocks.1.mlp.fc2"}
    assert {name for name, m in model.named_modules() if isinstance(m, LoRALinear)} == layers
    assert {name for name, p in model.named_parameters() if p.requires_grad} > {f"{n}.lora_a.weight" for n in layers}
    assert not model.blocks[0].attn.qkv.weight.requires_grad
    assert model.blocks[0].attn.proj.weight.requires_grad


def test_adapters_are_drawn_as_a_linear_layer_starts():
    assert 0 < LoRALinear(nn.Linear(6, 6)).lora_a.weight.abs().max() <= 1 / 6**0.5


def test_adapters_follow_device_and_type():
    layer = LoRALinear(nn.Linear(3, 4, bias=False, dtype=torch.float64))
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert layer.bias is None
    assert layer.merged().bias is None
    torch.testing.assert_close(merge_lora(layer).weight, layer.weight)


def test_no_target_lists_the_linear_layers():
    with pytest.raises(InputError, match=r"the linear layers are 0, 1\."):
        add_lora(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))


def test_attention_that_would_pass_adapters_by_is_refused():
    with pytest.raises(InputError, match=r"encoder_layer_0\.self_attention.*prepare"):
        add_lora(build("torchvision_vit"))


def test_rank_is_at_least_one():
    with pytest.raises(InputError, match="rank"):
        add_lora(build("vit_tiny"), rank=0)
