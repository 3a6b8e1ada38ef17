import copy

import pytest
import torch
from torch import nn

pytest.importorskip("timm")
pytest.importorskip("torchvision")

import timm
from dp_zoo import Attention, build, conv_net, images, mlp, used
from opacus.grad_sample import GradSampleModule, register_grad_sampler

from safexplain.dp.models.prepare import check_rows, mixes_samples, prepare, wrong_gradients
from safexplain.errors import InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore::safexplain.dp.models.replacements.BatchNormReplacedWarning"),
]


class Whitened(nn.Module):
    """Statistics of the batch by hand."""

    def __init__(self, statistic, *, watched=True):
        super().__init__()
        self.statistic, self.watched, self.layer = statistic, watched, nn.Linear(6, 3)

    def forward(self, x):
        with torch.set_grad_enabled(self.watched):
            shift = self.statistic(x)
        return self.layer(x - shift)


@pytest.mark.parametrize(
    ("statistic", "watched"),
    [(lambda x: x.mean(0), False), (lambda x: x.amax(0), True), (lambda x: 1e-3 * x[1:].sum(0), False)],
)
def test_statistics_of_the_batch_by_hand_mix_samples(statistic, watched):
    net, x = Whitened(statistic, watched=watched), torch.randn(3, 6)
    assert mixes_samples(net, x)
    with pytest.raises(InputError, match="output for one sample depends on other samples"):
        check_rows(net, x)


def test_a_mixture_too_small_to_see_in_the_output_is_found_by_its_gradient():
    assert mixes_samples(Whitened(lambda x: 1e-9 * x[1:].sum(0)), torch.randn(3, 6))


def test_batch_norm_mixes_where_it_trains_and_not_where_it_is_frozen():
    x, _ = images(3)
    net = used(conv_net())
    assert mixes_samples(net, x)
    assert not mixes_samples(net.requires_grad_(False), x)
    assert mixes_samples(conv_net(track_running_stats=False).requires_grad_(False), x)


def test_tokens_and_dropout_can_be_checked():
    class Words(nn.Module):
        def __init__(self, mixing):
            super().__init__()
            self.table, self.drop, self.mixing = nn.Embedding(7, 4), nn.Dropout(0.5), mixing

        def forward(self, x, mask):
            out = self.drop(self.table(x)).mean(1) * mask[:, :1]
            return {"logits": out - out.detach().mean(0) if self.mixing else out}

    words, mask = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.ones(3, 2)
    assert not mixes_samples(Words(False), (words, mask))
    assert mixes_samples(Words(True), (words, mask))


@pytest.mark.parametrize(
    ("name", "mode"),
    [("vit_tiny", "hooks"), ("beit", "ghost")],
)
def test_prepared_models_pass_and_are_left_as_they_were(name, mode):
    model, (x, _) = prepare(build(name), "all", mode=mode), images(3)
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random = torch.get_rng_state()
    check_rows(model, x, mode=mode)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None and not hasattr(p, "grad_sample") for p in model.parameters())


def test_windows_that_pass_for_samples_are_found():
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(2, 2), embed_dim=24, num_heads=(3, 3)
    )
    x, _ = images(3)
    with pytest.raises(InputError, match=r"layers\.0\.blocks\.0\.attn\.qkv: the first axis of its input is not"):
        check_rows(prepare(swin, "bias"), x)
    check_rows(prepare(swin, "last-block"), x)  # one window: the whole map


def test_sequences_before_samples_are_found():
    model = prepare(Attention(batch_first=False), "all")
    with pytest.raises(InputError, match=r"norm1: the first axis") as error:
        check_rows(model, torch.randn(3, 3, 12))  # as many places as rows
    assert "self_attn" not in str(error.value)
    check_rows(prepare(Attention(), "all"), torch.randn(3, 3, 12))


def test_layers_that_are_never_called_are_found():
    model, (x, _) = prepare(build("beit"), "all"), images(3)
    model.blocks[1].attn.qkv_bias_separate = False
    with pytest.raises(InputError, match=r"problems found: 1\n- blocks\.1\.attn\.qkv: it is never called"):
        check_rows(model, x)


class Custom(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self.run, self.layer = forward, nn.Linear(6, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, by=1.0):
        return x * self.weight * by


def in_place(net, x):
    out = net.layer(x)
    out += 1
    return out


def counting(net, x):
    net.seen += x.detach().mean()
    return net.layer(x)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (lambda: Custom(in_place), r"changed in place at .*test_checks\.py:\d+: out \+= 1\n.*out = out \+ x"),
        (lambda: Custom(counting, seen=nn.Buffer(torch.zeros(()))), "seen: the forward pass updates this buffer"),
        (lambda: Custom(lambda n, x: n.scale(n.layer(x), by=2.0), scale=Scale()), "scale: it takes several inputs"),
        (lambda: Custom(lambda n, x: n.layer(x.reshape(-1, 6)).reshape(len(x), -1)), "layer: the first axis"),
    ],
)
def test_what_only_a_forward_pass_shows_is_found(net, reason):
    with pytest.raises(InputError, match=reason):
        check_rows(net(), torch.randn(3, 2, 6))


def test_layers_called_twice_are_found_in_mode_ghost_alone():
    net, x = Custom(lambda n, x: n.layer(x) + n.layer(2 * x)), torch.randn(3, 6)
    check_rows(net, x)
    with pytest.raises(InputError, match="layer: it is called several times"):
        check_rows(net, x, mode="ghost")


def test_a_wrong_rule_is_found():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    net, x = nn.Sequential(Doubled(6, 4), nn.Linear(4, 3)), torch.randn(3, 6)
    assert wrong_gradients(net, x) == {}
    register_grad_sampler(Doubled)(GradSampleModule.GRAD_SAMPLERS[nn.Linear])
    try:
        assert set(wrong_gradients(net, x)) == {"0.weight", "0.bias"}
        with pytest.raises(InputError, match=r"0\.weight: its per-sample gradients differ by \d+%"):
            check_rows(net, x)
        assert wrong_gradients(net, x, force_functorch=True) == {}
    finally:
        del GradSampleModule.GRAD_SAMPLERS[Doubled]


@pytest.mark.parametrize("x", [torch.randn(1, 3, 32, 32), (torch.randn(3, 2), torch.randn(2, 2))])
def test_rows_must_be_two_or_more(x):
    with pytest.raises(InputError, match="at least 2 rows on the first axis"):
        check_rows(mlp(), x)


def test_an_output_without_rows_is_an_error():
    with pytest.raises(InputError, match=r"3 rows on its first axis, got shapes \[\(\)\]"):
        check_rows(Custom(lambda n, x: n.layer(x).sum()), torch.randn(3, 6))
