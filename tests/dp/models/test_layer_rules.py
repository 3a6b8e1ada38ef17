"""Norms without gradients are the gradients' norms, whatever the shape, and also where products cancel."""

import pytest
import torch
from torch import Tensor, nn

from safexplain.dp.models.replacements import linear_norms


def norms_of(layer: nn.Linear, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Norms (batch,) of the gradients of weight and bias, from the gradients, in float64."""
    a, g = (t.double().reshape(len(t), -1, t.shape[-1]) for t in (a, g))
    weight, bias = torch.einsum("bto,bti->boi", g, a), g.sum(dim=1)
    return weight.flatten(1).norm(dim=1), bias.norm(dim=1)


@pytest.mark.parametrize("shape", [(), (50,), (2, 3, 2)], ids=str)
def test_norms_of_a_linear_layer_are_those_of_its_gradients(shape):
    torch.manual_seed(0)
    layer, a, g = nn.Linear(31, 17), torch.randn(9, *shape, 31), torch.randn(9, *shape, 17)
    found = linear_norms(layer, [a], g)
    for p, expected in zip((layer.weight, layer.bias), norms_of(layer, a, g), strict=True):
        assert found[p].shape == (9,)
        assert torch.allclose(found[p].double(), expected, rtol=1e-6, atol=0)


def cancelling() -> tuple[Tensor, Tensor]:
    """Two examples of 4 positions, the first's products cancel but for a part in 10,000."""
    g = torch.Generator().manual_seed(2)
    a, b = torch.randn(2, 2, 300, generator=g), torch.randn(2, 2, 200, generator=g)
    a, b = torch.cat([a, a], dim=1), torch.cat([b, b], dim=1)
    b[0, 2:] *= -1.0001
    return a, 1e4 * b


def test_cancelling_products_do_not_hide_a_gradient():
    a, g = cancelling()
    layer = nn.Linear(300, 200)
    expected = norms_of(layer, a, g)[0]
    assert torch.allclose(linear_norms(layer, [a], g)[layer.weight].double(), expected, rtol=1e-3)
    by_products = ((g @ g.mT) * (a @ a.mT)).sum(dim=(1, 2)).clamp(min=0).sqrt().double()
    assert abs(by_products[0] / expected[0] - 1) > 0.1
    assert torch.allclose(by_products[1], expected[1], rtol=1e-6)


def test_frozen_parameters_have_no_norms():
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    assert set(linear_norms(layer, [torch.ones(1, 3)], torch.ones(1, 2))) == {layer.bias}
