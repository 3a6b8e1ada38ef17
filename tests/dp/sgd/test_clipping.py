"""The three clipping rules: the factors that their definitions say, and a bound that holds for every gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from safexplain.dp.sgd.clipping import AutoSClipping, Clipping, FlatClipping, PerLayerClipping, sample_norms
from safexplain.errors import ConfigurationError

RULES = [FlatClipping(250.0), PerLayerClipping(7.0), AutoSClipping(), AutoSClipping(3.0, 1e-6)]
SIZES = st.one_of(
    st.just(0.0), st.floats(-30, 30).map(lambda e: 10.0**e), st.sampled_from([math.inf, math.nan, 1e30, 1e-30])
)


def contributions(rule: Clipping, layers: list[Tensor]) -> Tensor:
    """2-norm of what each example contributes, in float64, from the gradients (batch, ...) of each layer."""
    norms = torch.stack([sample_norms(g) for g in layers], dim=1)
    factors = rule.factors(norms if rule.per_layer else torch.linalg.vector_norm(norms, dim=1))
    columns = factors.reshape(len(norms), -1).expand(-1, len(layers)).T
    kept = [f.double()[:, None] * g.double().flatten(1) for f, g in zip(columns, layers, strict=True)]
    kept = [torch.where(f[:, None] == 0, 0.0, k) for f, k in zip(columns, kept, strict=True)]
    return torch.cat(kept, dim=1).norm(dim=1)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(max_examples=40)
@given(
    dtype=st.sampled_from([torch.float32, torch.float64]),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    seed=st.integers(0, 1000),
)
def test_no_example_contributes_more_than_the_bound(rule, dtype, sizes, seed):
    g = torch.Generator().manual_seed(seed)
    shapes = [(2, 3, 4), (2, 7), (2, 2, 2, 3)]
    layers = [(torch.randn(s, generator=g, dtype=dtype) * c) for s, c in zip(shapes, sizes, strict=True)]
    layers[0][1] *= 1e-3
    assert (contributions(rule, layers) <= rule.bound * (1 + 1e-6)).all()


def test_flat_factors_are_exact():
    norms = torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0**20], dtype=torch.float64)
    exact = torch.tensor([1.0, 1.0, 1.0, 0.5, 2.0**-21], dtype=torch.float64)
    assert torch.equal(FlatClipping(0.5).factors(norms), exact)
    with_a_constant = (0.5 / (norms + 1e-6)).clamp(max=1.0)
    assert not torch.equal(with_a_constant, exact)


def test_per_layer_bounds_are_even():
    norms = torch.full((2, 4), 10.0)
    assert torch.allclose(PerLayerClipping(2.0).factors(norms), torch.tensor(0.1))


def test_auto_s_halves_at_gamma_and_never_reaches_the_bound():
    rule = AutoSClipping(2.0, gamma=0.01)
    norms = torch.tensor([0.01, 1e6], dtype=torch.float64)
    assert torch.allclose(rule.factors(norms) * norms, torch.tensor([1.0, 2.0], dtype=torch.float64), atol=1e-7)
    assert (rule.factors(norms) * norms < rule.bound).all()


@pytest.mark.parametrize(("rule", "bad"), [(FlatClipping(), math.inf), (AutoSClipping(), math.nan)], ids=repr)
def test_a_norm_that_is_not_finite_gets_factor_zero(rule, bad):
    factors = rule.factors(torch.tensor([bad, 1.0]))
    assert factors[0] == 0
    assert factors[1] > 0


def test_one_layer_without_a_finite_norm_takes_the_whole_example_out():
    factors = PerLayerClipping().factors(torch.tensor([[1.0, math.nan], [1.0, 1.0]]))
    assert (factors[0] == 0).all()
    assert (factors[1] > 0).all()


def test_bounds_that_make_no_sense_are_refused():
    for kind in (FlatClipping, PerLayerClipping, AutoSClipping):
        with pytest.raises(ConfigurationError, match="max_grad_norm must be"):
            kind(0)
    with pytest.raises(ConfigurationError, match="gamma must be greater than 0"):
        AutoSClipping(gamma=0.0)
