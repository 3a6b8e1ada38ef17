"""What `reinitialise` promises: the default distribution of every layer, nothing of the trained weights."""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.export import Dim

from safexplain.dp.models.parameters import head_modules
from safexplain.errors import InputError
from safexplain.loading.exported import ExportedModel, load_exported, with_layers, without_layer
from safexplain.loading.files import seeded
from safexplain.loading.models import reinitialise


def exported(model, x):
    dynamic = ({0: Dim("batch")},)
    return torch.export.export(model.eval(), (x,), dynamic_shapes=dynamic).module()


def trained(model):
    """Stands for training: weights far from any initialisation."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3).add_(0.7)
    return model


@pytest.fixture(scope="module")
def mlp_graph():
    torch.manual_seed(0)
    model = trained(nn.Sequential(nn.Linear(60, 80), nn.ReLU(), nn.LayerNorm(80), nn.Linear(80, 5)))
    return exported(model, torch.randn(4, 60))


def ks(sample, other):
    return stats.ks_2samp(sample.detach().flatten().numpy(), other.detach().flatten().numpy()).pvalue


def test_an_exported_linear_layer_gets_the_distribution_of_nn_linear(mlp_graph):
    ours = [reinitialise(mlp_graph, seed) for seed in range(20)]
    with seeded(99):
        default = [nn.Linear(60, 80) for _ in range(20)]
    for name in ("weight", "bias"):
        drawn = torch.cat([getattr(m.get_submodule("0"), name).flatten() for m in ours])
        expected = torch.cat([getattr(m, name).flatten() for m in default])
        assert ks(drawn, expected) > 1e-3
        assert ks(drawn * 1.3, expected) < 1e-3  # the wrong scale is seen
        assert float(drawn.detach().abs().max()) <= 1 / math.sqrt(60)
    assert torch.equal(ours[0].get_parameter("2.weight"), torch.ones(80))
    assert torch.equal(ours[0].get_parameter("2.bias"), torch.zeros(80))


def test_an_exported_embedding_is_standard_normal():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(300, 20), nn.Linear(20, 3)

        def forward(self, x):
            return self.head(self.table(x).mean(1))

    graph = exported(trained(Words()), torch.zeros(4, 5, dtype=torch.long))
    table = reinitialise(graph, 0).get_parameter("table.weight")
    assert stats.kstest(table.detach().flatten().numpy(), "norm").pvalue > 1e-3


def test_no_trained_tensor_survives(mlp_graph):
    fresh = dict(reinitialise(mlp_graph, 3).named_parameters())
    for name, old in mlp_graph.named_parameters():
        assert not torch.equal(old, fresh[name]), name
        if old.ndim == 2:
            correlation = np.corrcoef(old.detach().flatten(), fresh[name].detach().flatten())[0, 1]
            assert abs(correlation) < 5 / math.sqrt(old.numel()), name


def test_the_module_and_the_global_random_state_are_left_alone(mlp_graph):
    before, state = copy.deepcopy(mlp_graph.state_dict()), torch.get_rng_state()
    reinitialise(mlp_graph, 1)
    assert torch.equal(state, torch.get_rng_state())
    for name, tensor in mlp_graph.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_usual_seed_does_not_give_the_weights_of_torch_manual_seed():
    torch.manual_seed(0)
    untrained = nn.Linear(8, 4)
    assert not torch.equal(reinitialise(untrained, 0).weight, untrained.weight)


def test_modules_that_can_reset_themselves_do():
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.PReLU(8), nn.LSTM(4, 4)))
    model[1](torch.randn(6, 8, 2, 2) + 5)
    fresh = reinitialise(model.eval(), 0)
    assert fresh.training
    assert torch.equal(fresh[1].running_mean, torch.zeros(8))
    assert torch.equal(fresh[1].running_var, torch.ones(8))
    assert int(fresh[1].num_batches_tracked) == 0
    assert torch.equal(fresh[1].weight, torch.ones(8))
    assert torch.equal(fresh[2].weight, torch.full((8,), 0.25))
    assert float(fresh[3].weight_hh_l0.detach().abs().max()) <= 0.5


def test_attention_starts_as_its_constructor_starts():
    fresh = reinitialise(trained(nn.MultiheadAttention(16, 2)), 0)
    bound = math.sqrt(6 / (16 + 48))
    assert 0.9 * bound < float(fresh.in_proj_weight.detach().abs().max()) <= bound
    assert not fresh.in_proj_bias.any()
    assert not fresh.out_proj.bias.any()


def test_a_parent_that_resets_its_children_has_the_last_word():
    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.Linear(4, 4)
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.constant_(self.child.weight, 0.125)

    assert torch.equal(reinitialise(trained(Parent()), 0).child.weight, torch.full((4, 4), 0.125))


def test_a_parameter_of_no_known_layer_keeps_its_scale_and_not_its_values():
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls_token = nn.Parameter(torch.randn(1, 4000) * 0.02 + 1)
            self.temperature = nn.Parameter(torch.tensor(14.0))

    with seeded(1234):
        model = Token()
    fresh = reinitialise(model, 0)
    drawn, old = fresh.cls_token.detach(), model.cls_token.detach()
    assert abs(np.corrcoef(drawn, old)[0, 1]) < 5 / math.sqrt(4000)
    assert float(drawn.mean()) == pytest.approx(1, abs=0.002)
    assert float(drawn.std()) == pytest.approx(0.02, rel=0.1)
    assert fresh.temperature.item() == 14


def test_frozen_parameters_are_drawn_again_and_train():
    model = trained(nn.Linear(8, 4)).requires_grad_(False)
    fresh = reinitialise(model, 0)
    assert fresh.weight.requires_grad
    assert not torch.equal(fresh.weight, model.weight)


def test_shared_parameters_stay_shared():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    fresh = reinitialise(trained(model), 0)
    assert fresh[2].weight is fresh[0].weight


@pytest.mark.parametrize(
    ("name", "layer"), [("dropout", nn.Dropout(0.1)), ("batch_norm", nn.BatchNorm1d(4, affine=False))]
)
def test_a_graph_frozen_in_inference_mode_is_refused(name, layer):
    with pytest.raises(InputError, match=f"holds {name} frozen in inference mode.*--arch"):
        reinitialise(exported(nn.Sequential(nn.Linear(8, 4), layer), torch.randn(4, 8)), 0)


def test_batch_normalisation_of_a_graph_trains_as_the_network_s_own_does():
    own = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, eps=1e-3, momentum=0.3), nn.Flatten(), nn.Linear(64, 3))
    own.train()(torch.randn(8, 1, 6, 6))  # statistics of a trained network
    x = torch.randn(8, 1, 6, 6)
    fresh = reinitialise(ExportedModel(exported(own, x), (1, 6, 6)), 0)
    assert torch.equal(fresh.get_buffer("1.running_var"), torch.ones(4))
    twin = copy.deepcopy(own).train()
    twin.load_state_dict(fresh.state_dict())
    for _ in range(3):
        torch.testing.assert_close(fresh(x), twin(x), rtol=0, atol=0)
    torch.testing.assert_close(fresh.eval()(x), twin.eval()(x), rtol=0, atol=0)
    assert not torch.equal(fresh.get_buffer("1.running_mean"), torch.zeros(4))


def test_weights_that_a_layer_does_not_reset_are_refused_by_name():
    class Stubborn(nn.Linear):
        def reset_parameters(self):
            if not hasattr(self, "made"):
                super().reset_parameters()
                self.made = True

    with pytest.raises(InputError, match=r"leaves its weights 0\.weight trained"):
        reinitialise(nn.Sequential(Stubborn(8, 4)), 0)


def test_a_reset_that_fails_is_one_line():
    class Broken(nn.Module):
        def reset_parameters(self):
            raise RuntimeError("needs a scale\nand more")

    with pytest.raises(InputError, match=r"Broken.reset_parameters\(\) failed: RuntimeError: needs a scale; pass --"):
        reinitialise(Broken(), 0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding="same", groups=4, bias=False)
        self.norm = nn.GroupNorm(2, 8)
        self.scale = nn.Parameter(torch.ones(8, 1, 1))
        self.layer_norm = nn.LayerNorm(128, bias=False)
        self.twice = nn.Linear(128, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        h = torch.relu(self.norm(self.grouped(self.stem(x))) * self.scale)
        h = nn.functional.adaptive_avg_pool2d(h, 4).flatten(1)
        return self.head(self.layer_norm(self.twice(self.twice(h))))


class Tied(nn.Module):
    """One weight in a layer, and elsewhere too."""

    def __init__(self):
        super().__init__()
        self.into, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.into(x)) @ self.into.weight)


def exported_in_shape(model: nn.Module, *shape: int) -> ExportedModel:
    file, dynamic = io.BytesIO(), ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(model.eval(), (torch.randn(4, *shape),), dynamic_shapes=dynamic), file)
    return load_exported(file.getvalue(), where="model.pt2", trusted=False)[0]


def test_it_computes_the_same_and_every_weight_is_in_a_layer_of_its_name():
    graph, x = exported_in_shape(Net(), 3, 16, 16), torch.randn(5, 3, 16, 16)
    layered = with_layers(graph)
    assert torch.equal(layered(x), graph(x))
    assert without_layer(layered) == []
    for name, kind in Net().named_children():
        assert str(layered.get_submodule(name)) == str(kind)
    assert {n for n, _ in layered.named_parameters()} == {n for n, _ in Net().named_parameters()}
    assert head_modules(layered) == ["head"]
    for other in (copy.deepcopy(layered), pickle.loads(pickle.dumps(layered))):
        assert torch.equal(other.train()(x), graph(x))
        assert other.head.training
    assert not layered.training
    assert with_layers(plain := nn.Linear(2, 2)) is plain


def test_weights_used_elsewhere_too_stay_where_they_are_and_are_named():
    graph, x = exported_in_shape(Tied(), 6), torch.randn(5, 6)
    layered = with_layers(graph)
    assert torch.equal(layered(x), graph(x))
    assert without_layer(layered) == ["into.weight", "into.bias"]
