"""Exported graphs get their layers back: the same function, whose layers can be trained with differential privacy."""

import copy
import io
import pickle

import torch
from torch import nn

from safexplain.dp.models.parameters import head_modules
from safexplain.loading.exported import ExportedModel, load_exported, with_layers, without_layer


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


def exported(model: nn.Module, *shape: int) -> ExportedModel:
    file, dynamic = io.BytesIO(), ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(model.eval(), (torch.randn(4, *shape),), dynamic_shapes=dynamic), file)
    return load_exported(file.getvalue(), where="model.pt2", trusted=False)[0]


def test_it_computes_the_same_and_every_weight_is_in_a_layer_of_its_name():
    graph, x = exported(Net(), 3, 16, 16), torch.randn(5, 3, 16, 16)
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
    graph, x = exported(Tied(), 6), torch.randn(5, 6)
    layered = with_layers(graph)
    assert torch.equal(layered(x), graph(x))
    assert without_layer(layered) == ["into.weight", "into.bias"]
