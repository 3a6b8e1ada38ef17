import copy

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

pytest.importorskip("timm")
pytest.importorskip("torchvision")

import timm
from dp_zoo import (
    Attention,
    Weighed,
    awake,
    build,
    conv_net,
    ghost_norms,
    images,
    largest_error,
    mlp,
    norms,
    single_gradients,
    used,
    watched,
)

from safexplain.dp.models.prepare import hooked_modules, prepare, unsupported
from safexplain.dp.models.replacements import (
    BatchNormReplacedWarning,
    PerSampleAttention,
    convolution_gradients,
    group_count,
    restore,
    train_mode,
)
from safexplain.errors import InputError

replaced_quietly = pytest.mark.filterwarnings("ignore::safexplain.dp.models.replacements.BatchNormReplacedWarning")


def test_the_callers_model_is_not_changed():
    model = used(conv_net()).eval()
    types, state = [type(m) for m in model.modules()], copy.deepcopy(model.state_dict())
    with pytest.warns(BatchNormReplacedWarning):
        prepared = prepare(model, "all")
    prepared(images()[0])
    assert [type(m) for m in model.modules()] == types
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert not model.training
    assert model[2].inplace


def test_batch_norm_that_trains_becomes_group_norm_and_the_warning_says_what_is_lost():
    with pytest.warns(BatchNormReplacedWarning, match=r"^1 BatchNorm .*mix samples.*statistics are lost.*starts low"):
        model = prepare(model_before := conv_net(eps=0.01))
    norm = model[1]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels, norm.eps) == (4, 8, 0.01)
    assert torch.equal(norm.weight, model_before[1].weight)
    assert torch.equal(norm.bias, model_before[1].bias)
    assert list(dict(model.named_parameters())) == list(dict(model_before.named_parameters()))


def test_frozen_batch_norm_is_kept_and_keeps_its_statistics_whatever_is_called():
    plain = used(conv_net())
    model, (x, _) = prepare(plain, "head"), images()
    assert type(model[1]) is nn.BatchNorm2d
    before = model[1].running_mean.clone()
    for start in (model.train, lambda: train_mode(model), lambda: model.train(False)):
        start()
        torch.testing.assert_close(model(x), plain.eval()(x))
    assert torch.equal(model[1].running_mean, before)
    restored = copy.deepcopy(model).train()
    restored(x)
    assert torch.equal(restored[1].running_mean, before)


@replaced_quietly
def test_frozen_batch_norm_without_statistics_is_replaced_since_it_always_uses_the_batch():
    model = conv_net(track_running_stats=False)
    assert isinstance(prepare(model, "head")[1], nn.GroupNorm)
    assert isinstance(prepare(conv_net(affine=False), "head")[1], nn.GroupNorm)
    assert isinstance(prepare(used(conv_net(affine=False)), "head")[1], nn.BatchNorm2d)


def test_batch_norm_can_be_frozen_instead():
    plain = used(conv_net())
    model, (x, _) = prepare(plain, batch_norm="freeze"), images()
    assert [n for n, p in model.named_parameters() if not p.requires_grad] == ["1.weight", "1.bias"]
    torch.testing.assert_close(model(x), plain.eval()(x))


@replaced_quietly
def test_groups_of_a_single_number_are_never_made():
    model = prepare(nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)))
    x = torch.randn(4, 3)
    assert model[:2](x).std() > 0.5
    assert [group_count(n, 2) for n in (1, 2, 7, 8, 32, 48, 64, 512)] == [1, 1, 1, 4, 16, 16, 32, 32]
    assert group_count(512, 1) == 1


@replaced_quietly
def test_activations_inside_timms_batch_norm_are_kept():
    block = timm.layers.BatchNormAct2d(8)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), block, nn.Flatten(), nn.Linear(8 * 900, 10))
    model, (x, y) = prepare(net).double(), images(dtype=torch.float64)
    assert model[:2](x).min() == 0
    assert largest_error(awake(model), x, y) < 1e-5


class Sequences(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0].mean(1))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_recurrent_layers_give_the_same_output_and_right_gradients(kind, options):
    torch.manual_seed(0)
    hidden = 6 if options.get("bidirectional") else 12
    net = Sequences(kind(5, hidden, batch_first=True, **options)).double()
    model, x = prepare(net, "all"), torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(model(x), net(x))
    assert largest_error(model, x, torch.arange(3)) < 1e-5
    assert unsupported(model, "ghost") == []
    torch.testing.assert_close(restored_output(model, net, x), model.eval()(x))


def restored_output(model, original, x):
    """Of the original architecture, with the trained weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    restored, fresh = restore(copy.deepcopy(model)), copy.deepcopy(original).eval()
    assert [type(m) for m in restored.modules()] == [type(m) for m in fresh.modules()]
    fresh.load_state_dict(restored.state_dict())
    return fresh(x)


@pytest.mark.parametrize(
    ("batch_first", "bias", "training"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, True)],
)
def test_attention_is_that_of_torch(batch_first, bias, training):
    torch.manual_seed(0)
    layer = awake(nn.MultiheadAttention(12, 3, bias=bias, batch_first=batch_first)).train(training)
    mine = PerSampleAttention(layer)
    shape = (2, 4, 5)
    query, key, value = (torch.randn(2, n, 12) if batch_first else torch.randn(n, 2, 12) for n in (4, 5, 5))
    causal = torch.ones(4, 5, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    float_padding = torch.zeros(2, 5).masked_fill(padding, -torch.inf)
    for options in (
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": causal, "key_padding_mask": padding},
        {"attn_mask": torch.randn(6, 4, 5), "key_padding_mask": float_padding, "need_weights": False},
        {"attn_mask": causal, "is_causal": True, "need_weights": False},
    ):
        right, weights = layer(query, key, value, **options)
        out, mine_weights = mine(query, key, value, **options)
        torch.testing.assert_close(out, right)
        assert (weights is None) == (mine_weights is None)
        if weights is not None:
            torch.testing.assert_close(mine_weights, weights)
            assert weights.shape in (shape, (2, 3, 4, 5))
    torch.testing.assert_close(mine.to_torch()(query, key, value), layer(query, key, value))
    with pytest.raises(InputError, match="three axes"):
        mine(query[0], key[0], value[0])
    with pytest.raises(InputError, match="pass attn_mask"):
        mine(query, key, value, is_causal=True)


def test_dropout_of_attention_is_on_in_training_only():
    torch.manual_seed(0)
    mine, x = PerSampleAttention(nn.MultiheadAttention(12, 3, dropout=0.5, batch_first=True)), torch.randn(2, 4, 12)
    for options in ({}, {"need_weights": False}):
        assert not torch.equal(mine.train()(x, x, x, **options)[0], mine(x, x, x, **options)[0])
        assert torch.equal(mine.eval()(x, x, x, **options)[0], mine(x, x, x, **options)[0])


def test_transformers_of_torch_give_the_same_output_and_right_gradients():
    torch.manual_seed(0)
    net = awake(Attention()).double()
    model, x = prepare(net, "all"), torch.randn(3, 4, 12, dtype=torch.float64)
    assert isinstance(model.transformer.layers[1].self_attn, PerSampleAttention)
    torch.testing.assert_close(model(x), net(x))
    torch.testing.assert_close(model.eval()(x), net.eval()(x))
    assert largest_error(model.train(), x, torch.arange(3)) < 1e-5
    torch.testing.assert_close(restored_output(model, net, x), model.eval()(x))


@pytest.mark.parametrize("name", ["torchvision_vit", "beit"])
def test_a_trained_model_goes_back_into_its_architecture(name):
    for choice in ("all", "lora"):
        model, (x, _) = prepare(build(name), choice), images()
        fresh = build(name, seed=7).eval()
        with torch.no_grad():
            trained = awake(model).eval()(x)
            fresh.load_state_dict(restore(model).state_dict())
            torch.testing.assert_close(fresh(x), trained, rtol=1e-4, atol=1e-5)


@replaced_quietly
def test_group_normalisation_goes_back_to_torchs_type():
    model = restore(prepare(conv_net()))
    assert type(model[1]) is nn.GroupNorm


def test_frozen_attention_stays_as_it_was():
    net = build("torchvision_vit")
    model, (x, _) = prepare(net, "last-block"), images()
    kinds = [type(layer.self_attention) for layer in model.encoder.layers]
    assert kinds == [nn.MultiheadAttention, PerSampleAttention]
    torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-5)
    assert [type(m) for m in prepare(net, "head").modules()] == [type(m) for m in net.modules()]


def test_what_trained_before_trains_in_the_replacement():
    net = nn.MultiheadAttention(8, 2, batch_first=True)
    net.in_proj_weight.requires_grad_(False)
    trained = {n for n, p in prepare(net).named_parameters() if p.requires_grad}
    assert trained == {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.weight", "out_proj.bias"}


@replaced_quietly
def test_changes_in_place_fail_with_opacus_alone_and_not_after_prepare():
    x, y = images()
    plain = ModuleValidator.fix(build("timm_resnet18"))
    with pytest.raises(RuntimeError, match="modified inplace"):
        watched(plain, x, y)
    watched(prepare(plain), x, y)


def test_attention_is_unfused_only_where_vmap_runs_through_it():
    assert all(block.attn.fused_attn for block in prepare(build("vit_tiny"), "all").blocks)
    assert not any(block.attn.fused_attn for block in prepare(build("vit_tiny"), ["*"]).blocks)


def test_a_plain_type_takes_the_place_of_timms():
    model = prepare(build("vit_tiny"), "last-block")
    assert type(model.blocks[1].norm1) is nn.LayerNorm
    assert type(model.blocks[0].norm1) is timm.layers.LayerNorm  # frozen


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 2, stride=2, bias=False)])
def test_convolutions_are_right_in_any_memory_format(layer):
    x, y = images(dtype=torch.float64)
    net = nn.Sequential(layer, nn.Flatten(), nn.AdaptiveAvgPool1d(10)).double()
    last = x.to(memory_format=torch.channels_last)
    assert largest_error(net, x, y) < 1e-5
    assert largest_error(net, last, y) < 1e-5
    torch.testing.assert_close(ghost_norms(net, last, y), norms(single_gradients(net, x, y)))
    back = torch.randn(2, 4, *net[0](x).shape[2:], dtype=torch.float64)
    right = convolution_gradients(net[0], [x], back)[net[0].weight]
    torch.testing.assert_close(convolution_gradients(net[0], [last], back)[net[0].weight], right)


@pytest.mark.parametrize(
    ("kind", "padding_mode"),
    [(nn.Conv2d, "circular"), (nn.Conv1d, "reflect"), (nn.Conv3d, "replicate")],
)
def test_convolutions_are_right_for_any_padding(kind, padding_mode):
    torch.manual_seed(0)
    layer = kind(2, 4, 3, padding=1, padding_mode=padding_mode)
    axes = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[kind]
    net, x = nn.Sequential(layer, nn.Flatten(), nn.AdaptiveAvgPool1d(3)).double(), torch.randn(3, 2, *[4] * axes)
    assert largest_error(net, x.double(), torch.arange(3)) < 1e-5


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) * 2


class Buffered(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("seen", torch.zeros(1))


BAD = {
    "norm": (OwnNorm(4), "a subclass of BatchNorm computes statistics over the batch"),
    "instance": (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), "track_running_stats=False"),
    "normed": (weight_norm(nn.Linear(3, 3, bias=False)), "remove_parametrizations"),
    "old_normed": (nn.utils.spectral_norm(nn.Linear(3, 3)), "spectral_norm"),
    "embedding": (nn.Embedding(5, 3, max_norm=1.0), "max_norm"),
    "sparse": (nn.Embedding(5, 3, sparse=True), "sparse"),
    "counted": (nn.Embedding(5, 3, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "bilinear": (nn.Bilinear(3, 3, 3), "several inputs"),
    "cell": (nn.GRUCell(3, 3), "several inputs"),
    "projected": (nn.LSTM(3, 4, proj_size=2), "without proj_size"),
    "attention": (nn.MultiheadAttention(4, 2, kdim=3), "kdim"),
    "prompts": (nn.ParameterList([nn.Parameter(torch.zeros(3))]), "freeze them"),
    "weighed": (Weighed(), "dropout"),
    "buffered": (Buffered(), "buffers"),
}


def test_everything_that_cannot_be_used_is_listed_at_once_with_what_to_do():
    net = nn.ModuleDict({name: copy.deepcopy(layer) for name, (layer, _) in BAD.items()})
    with pytest.raises(InputError) as error:
        prepare(net)
    lines = str(error.value).splitlines()[1:]
    for name, (_, advice) in BAD.items():
        assert any(line.startswith((f"- {name} ", f"- {name}.")) and advice in line for line in lines), name


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_a_compiled_module_is_listed():
    assert "Python class" in unsupported(torch.jit.script(nn.Linear(3, 3)))[0]


def test_what_cannot_be_used_may_be_frozen():
    for name, (layer, _) in BAD.items():
        frozen = copy.deepcopy(layer).requires_grad_(False)
        assert unsupported(nn.Sequential(frozen, nn.Linear(3, 3))) == [], name


def test_shared_parameters_are_listed_in_mode_ghost_alone():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert unsupported(net, "hooks") == []
    with pytest.raises(InputError, match=r'0\.weight = 1\.weight: mode "ghost".*use mode="hooks"'):
        prepare(net, mode="ghost")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: mlp().requires_grad_(False), "no parameter is trainable"),
        (lambda: GradSampleModule(mlp()), r"wrapped by Opacus; pass model\.to_standard_module"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "run one forward pass first"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_model_that_cannot_be_prepared_says_why(model, reason):
    with pytest.raises(InputError, match=reason):
        prepare(model())


def test_hooked_modules_are_those_that_opacus_watches():
    for choice in ("all", "last-block", "bias", ["*"]):
        model = prepare(build("vit_tiny"), choice)
        ours = [module for _, module in hooked_modules(model)]
        assert ours == list(GradSampleModule(copy.deepcopy(model)).iterate_submodules(model))
