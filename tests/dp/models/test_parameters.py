import re
import warnings

import pytest
import torch
from torch import nn

pytest.importorskip("timm")
pytest.importorskip("torchvision")

import timm
import torchvision
from dp_zoo import NETS, TINY, awake, build, ghost_norms, images, largest_error, mlp, norms, single_gradients

from safexplain.dp.models.parameters import bare_parameters, freeze_others, head_modules, select
from safexplain.dp.models.prepare import prepare
from safexplain.dp.models.replacements import BatchNormReplacedWarning, LoRALinear
from safexplain.errors import InputError

TRIED = [
    *((name, "all") for name in NETS if name != "torchvision_resnet18"),
    ("torchvision_vit", "last-block"),
    ("timm_resnet18", "head"),
    ("torchvision_vit", "lora"),
    ("vit_small", "bias"),
]
"""Every network as a whole but the largest, and every choice on networks of different kinds."""


def prepared(name, choice, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchNormReplacedWarning)
        return awake(prepare(build(name).double(), choice, **options))


@pytest.mark.parametrize(("name", "choice"), TRIED)
def test_per_sample_gradients_and_ghost_norms_are_those_of_one_row_at_a_time(name, choice):
    model = prepared(name, choice, mode="ghost")
    x, y = images(dtype=torch.float64)
    rows = single_gradients(model, x, y)
    assert largest_error(model, x, y, rows) < 1e-5
    torch.testing.assert_close(ghost_norms(model, x, y), norms(rows), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("name", "choice"), [("timm_resnet18", "lora"), ("mlp", "last-block")])
def test_a_choice_that_finds_nothing_is_an_error(name, choice):
    with pytest.raises(InputError, match=r"no blocks found|no linear layer is named"):
        prepare(build(name), choice)


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("vit_tiny", {"cls_token", "pos_embed"}),
        ("torchvision_vit", {"class_token", "encoder.pos_embedding"}),
        ("torchvision_resnet18", set()),
    ],
)
def test_all_leaves_out_what_no_layer_holds(name, bare):
    model = build(name)
    assert set(bare_parameters(model)) == bare
    assert select(model, "all") == [n for n, _ in model.named_parameters() if n not in bare]


def test_recurrent_layers_and_attention_of_torch_are_not_bare_and_lists_of_parameters_are():
    net = nn.ModuleDict({"rnn": nn.LSTM(3, 4), "attention": nn.MultiheadAttention(4, 2), "prompts": nn.ParameterList()})
    net["prompts"].append(nn.Parameter(torch.zeros(4)))
    assert bare_parameters(net) == ["prompts.0"]


def test_a_bare_parameter_can_be_named():
    model = prepare(build("vit_tiny").double(), ["cls_token", "head"])
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["cls_token", "head.weight", "head.bias"]
    x, y = images(dtype=torch.float64)
    assert largest_error(model, x, y) < 1e-5


def test_the_head_is_found():
    assert head_modules(build("vit_tiny")) == ["head"]
    assert head_modules(build("torchvision_vit")) == ["heads.head"]
    assert head_modules(build("torchvision_resnet18")) == ["fc"]
    assert head_modules(mlp()) == ["3"]
    with torch.device("meta"):
        assert head_modules(torchvision.models.vgg11(num_classes=3)) == ["classifier.6"]
    assert head_modules(timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 4, 4, 4))) == ["head.fc"]
    deit = timm.create_model("deit_tiny_distilled_patch16_224", **TINY)
    assert select(deit, "head") == ["head.weight", "head.bias", "head_dist.weight", "head_dist.bias"]


def test_a_model_without_a_head_asks_for_names():
    with pytest.raises(InputError, match="no head found"):
        select(timm.create_model("vit_tiny_patch16_224", **{**TINY, "num_classes": 0}), "head")


def test_the_last_block_brings_what_comes_after_it():
    def modules(names):
        return {name.rpartition(".")[0] for name in names}

    vit = select(build("vit_tiny"), "last-block")
    assert {"norm", "head"} < modules(vit)
    assert all(name.startswith(("blocks.1.", "norm.", "head.")) for name in vit)
    with torch.device("meta"):
        resnet = torchvision.models.resnet34(num_classes=2)  # its longest stage is not its last
    assert {name.rpartition(".")[0] for name in select(resnet, "last-block")} == {
        *(f"layer4.2.{part}" for part in ("conv1", "bn1", "conv2", "bn2")),
        "fc",
    }


def test_bias_leaves_batch_normalisation_alone():
    names = select(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2)), "bias")
    assert names == ["0.bias", "3.weight", "3.bias"]


def test_lora_trains_adapters_and_the_head():
    model = prepare(build("vit_tiny"), "lora", lora={"rank": 2})
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert {n.rpartition(".")[0].rpartition(".")[2] for n in trained} == {"lora_a", "lora_b", "head"}
    assert model.blocks[0].attn.qkv.lora_a.weight.shape == (2, 48)
    with pytest.raises(InputError, match="no adapters"):
        select(build("vit_tiny"), "lora")


def test_all_keeps_the_base_of_an_adapter_frozen():
    net = nn.Sequential(LoRALinear(nn.Linear(3, 4)), nn.Linear(4, 2))
    assert select(net, "all") == ["0.lora_a.weight", "0.lora_b.weight", "1.weight", "1.bias"]


def test_patterns_are_globs_of_parameters_or_modules_or_regular_expressions():
    model = build("vit_tiny")
    assert select(model, ["head"]) == ["head.weight", "head.bias"]
    assert select(model, ["blocks.*.norm1.bias"]) == ["blocks.0.norm1.bias", "blocks.1.norm1.bias"]
    assert select(model, [re.compile(r"^blocks\.1\..*qkv\.weight$")]) == ["blocks.1.attn.qkv.weight"]
    assert select(model, ["head.bias", "norm.weight"]) == ["norm.weight", "head.bias"]  # the model's order
    assert "blocks.1.mlp.fc1.weight" in select(model, ["blocks.1"])


def test_patterns_that_fit_nothing_are_all_named_with_what_is_near():
    with pytest.raises(InputError, match=r"(?s)'haed'.*head.*'blocks\.7'.*blocks") as error:
        select(build("vit_tiny"), ["haed", "head", "blocks.7"])
    assert "'head' (" not in str(error.value)


def test_a_word_that_is_no_choice_and_an_empty_list_are_errors():
    with pytest.raises(InputError, match="selects none"):
        select(mlp(), [])
    with pytest.raises(InputError, match="expected one of all, head, last-block, bias, lora"):
        select(mlp(), "heads")


def test_freeze_others_thaws_what_is_named():
    model = mlp().requires_grad_(False)
    freeze_others(model, ["3.weight"])
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, False]
    with pytest.raises(InputError, match=r"expected parameters of the model, got 3\.wieght"):
        freeze_others(model, ["3.wieght"])
