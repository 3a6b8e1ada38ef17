"""The digest of weights names a model in whatever form it travels."""

from __future__ import annotations

import copy

import torch
from torch import nn

from safexplain._digest import weights_digest


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_form_names_and_mode_do_not_matter():
    model = net()
    exported = torch.export.export(model, (torch.ones(2, 4),)).module()
    wrapped = nn.ModuleDict({"other": copy.deepcopy(model)})
    assert weights_digest(model) == weights_digest(exported) == weights_digest(wrapped.eval()) == weights_digest(net())


def test_one_changed_weight_does():
    model = net()
    before = weights_digest(model)
    with torch.no_grad():
        model[2].weight[1, 1] += 1e-6
    assert weights_digest(model) != before
