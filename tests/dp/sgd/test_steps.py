"""`accumulate` and `step` in every mode, with every clipping rule: the sums of a slow oracle, and nothing else."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from per_sample_oracle import (
    MODELS,
    RULES,
    C,
    batch,
    build,
    clipped_sums,
    loss,
    prepare,
    relative_error,
    sums_of,
    trainable,
)
from torch import Tensor, nn

from safexplain.dp.sgd.clipping import AutoSClipping, Clipping, FlatClipping, PerLayerClipping, sample_norms
from safexplain.dp.sgd.steps import make_step
from safexplain.errors import ConfigurationError, RefusedError

MODES = ["hooks", "functorch", "ghost"]
WAYS = [(mode, rule) for mode in MODES for rule in RULES if (mode, rule) != ("ghost", "per-layer")]
FLAT = FlatClipping(C)
SUMS = [
    *[(name, mode, "flat", torch.float64) for name in MODELS if name != "mlp" for mode in MODES],
    *[("transformer", mode, rule, torch.float64) for mode, rule in WAYS if rule != "flat"],
    *[(name, mode, "auto-s", torch.float32) for name, mode in zip(MODELS, MODES, strict=True)],
]
"""Every layer in every mode, every rule in every mode, and single precision in each."""


@pytest.mark.parametrize(("name", "mode", "rule", "dtype"), SUMS)
def test_the_sum_is_that_of_examples_clipped_one_at_a_time(name, mode, rule, dtype):
    model, (x, y) = build(name, dtype), batch(12, dtype)
    clipping, formula = RULES[rule]
    expected = clipped_sums(model, x, y, formula)
    losses = loss(model(x), y)
    step = prepare(model, clipping, mode=mode)
    assert torch.equal(step.accumulate(x, y), losses.detach())
    assert relative_error(sums_of(step), expected) < {torch.float32: 1e-6, torch.float64: 1e-10}[dtype]
    step.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_may_come_in_pieces(mode):
    model, (x, y) = build("transformer"), batch(12)
    other = copy.deepcopy(model)
    settings = {"mode": mode, "noise_multiplier": 1.0, "expected_batch_size": 10}
    whole = prepare(model, FLAT, generator=torch.Generator().manual_seed(0), **settings)
    whole.accumulate(x, y)
    pieces = prepare(other, FLAT, generator=torch.Generator().manual_seed(0), **settings)
    for rows in (slice(0, 5), slice(5, 5), slice(5, 11), slice(11, 12)):
        assert len(pieces.accumulate(x[rows], y[rows])) == rows.stop - rows.start
    assert relative_error(sums_of(pieces), sums_of(whole)) < 1e-6
    whole.step()
    pieces.step()
    assert relative_error(trainable(other), trainable(model)) < 1e-6


@pytest.mark.parametrize(("mode", "rows"), [("hooks", None), ("functorch", 0), ("ghost", 0), ("ghost", None)])
def test_a_step_without_examples_is_one_of_noise(mode, rows):
    model, (x, y) = build("mlp"), batch(2)
    start = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    step = prepare(model, FLAT, mode=mode, noise_multiplier=2.0, expected_batch_size=5, generator=generator)
    if rows is not None:
        assert step.accumulate(x[:0], y[:0]).shape == (0,)
    step.step()
    moves = [(b - a).detach().flatten() for a, b in zip(trainable(start), trainable(model), strict=True)]
    z = torch.cat(moves) / (2.0 * C / 5)
    assert abs(z.square().mean().item() - 1) < 5 * (2 / len(z)) ** 0.5
    assert abs((z / 1.1).square().mean().item() - 1) > 5 * (2 / len(z)) ** 0.5


@pytest.mark.parametrize(
    ("mode", "rule", "bad"),
    [("hooks", "per-layer", float("nan")), ("functorch", "flat", float("nan")), ("ghost", "auto-s", float("inf"))],
)
def test_an_example_without_a_finite_gradient_is_left_out_and_counted(mode, rule, bad):
    model, (x, y) = build("transformer", torch.float64), batch(7, torch.float64)
    clipping, formula = RULES[rule]
    good, spoilt = [0, 1, 3, 6], x.clone()
    spoilt[[2, 4, 5], 1, 0, 0] = bad
    expected = clipped_sums(model, x[good], y[good], formula)
    step = prepare(model, clipping, mode=mode)
    losses = step.accumulate(spoilt, y)
    assert losses.isnan().tolist() == [i not in good for i in range(7)]
    assert step.optimizer.skipped == 3
    assert relative_error(sums_of(step), expected) < 1e-10
    step.accumulate(spoilt[2:3], y[2:3])
    assert step.optimizer.skipped == 4
    step.step()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_frozen_parameters_stay_as_they_are_and_close_leaves_nothing(mode):
    model, (x, y) = build("conv"), batch(4)
    traces = {name: set(vars(m)) for name, m in model.named_modules()}
    names = set(model.state_dict())
    for p in model[0].parameters():
        p.requires_grad_(False)
    frozen = model[0].weight.clone()
    step = prepare(model, FLAT, mode=mode, noise_multiplier=1.0)
    step.accumulate(x, y)
    step.step()
    assert torch.equal(model[0].weight, frozen)
    assert not hasattr(model[0].weight, "grad_sample")
    assert set(model.state_dict()) == names
    step.close()
    assert all(not hasattr(p, a) for p in model.parameters() for a in ("grad_sample", "_norm_sample"))
    assert {name: set(vars(m)) for name, m in model.named_modules()} == traces
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_what_is_done_with_the_model_between_pieces_does_not_matter(mode):
    model, (x, y) = build("conv"), batch(9)
    expected = clipped_sums(model, x, y, RULES["flat"][1])
    step = prepare(model, FLAT, mode=mode)
    step.accumulate(x[:4], y[:4])
    model(x[:7])
    loss(model(x[:2]), y[:2]).sum().backward()
    step.accumulate(x[4:], y[4:])
    loss(model(x[:2]), y[:2]).sum().backward()
    assert relative_error(sums_of(step), expected) < 1e-6
    before = copy.deepcopy(model)
    step.step()
    moves = [a - b for a, b in zip(trainable(before), trainable(model), strict=True)]
    assert relative_error(moves, expected) < 1e-4


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_error_in_one_piece_does_not_spoil_the_next(mode):
    model, (x, y) = build("mlp"), batch(6)
    expected = clipped_sums(model, x, y, RULES["flat"][1])

    def fails_first(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        return loss(outputs, targets).mean() if len(calls) == 1 else loss(outputs, targets)

    calls: list[int] = []
    step = prepare(model, FLAT, mode=mode, loss=fails_first)
    with pytest.raises(ConfigurationError, match='reduction="none"'):
        step.accumulate(x[:3], y[:3])
    step.accumulate(x, y)
    assert relative_error(sums_of(step), expected) < 1e-6


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(a * b)


@pytest.mark.parametrize("mode", ["functorch", "ghost"])
def test_inputs_may_be_a_tuple(mode):
    model, y = TwoInputs(), torch.tensor([0, 1, 2])
    a, b = torch.randn(2, 3, 4)
    a[1] = float("nan")
    step = prepare(model, FLAT, mode=mode)
    step.accumulate((a, b), y)
    assert step.optimizer.skipped == 1
    weight, bias = sums_of(step)
    assert torch.allclose(weight.sum(dim=0), torch.zeros(4), atol=1e-6)
    assert weight.isfinite().all()
    assert bias.norm() > 0


class Branches(nn.Module):
    """Of two branches, only the one asked for is used."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.used, self.unused = nn.Linear(768, 5), nn.Linear(768, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.flat(x))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_branch_that_is_not_used_gets_noise_only(mode):
    model, (x, y) = Branches(), batch(3)
    step = prepare(model, FLAT, mode=mode)
    step.accumulate(x, y)
    sums = sums_of(step)
    assert sums[0].norm() > 0
    assert all(torch.equal(s, torch.zeros_like(s)) for s in sums[2:])


class Tied(nn.Module):
    """Uses the weight of a layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.layer = nn.Flatten(), nn.Linear(768, 5)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.flat(x), self.layer.weight, self.layer.bias)


def test_a_gradient_that_cannot_be_split_is_refused():
    x, y = batch(3)
    with pytest.raises(RefusedError, match="outside its module's forward"):
        prepare(Tied(), FLAT, mode="ghost").accumulate(x, y)


@pytest.mark.parametrize(
    ("clipping", "options", "message"),
    [
        (PerLayerClipping(), {"mode": "ghost"}, 'PerLayerClipping needs mode="hooks"'),
        (FLAT, {"mode": "ew"}, "expected one of hooks, functorch, ghost"),
        (FLAT, {"expected_batch_size": 0}, "expected_batch_size"),
        (FLAT, {"noise_multiplier": float("nan")}, "noise_multiplier"),
    ],
)
def test_options_that_make_no_sense_are_refused(clipping, options, message):
    with pytest.raises(ConfigurationError, match=message):
        prepare(build("mlp"), clipping, **options)


def test_a_model_is_prepared_only_once_until_it_is_closed():
    model = build("mlp")
    first = prepare(model, FLAT)
    with pytest.raises(ConfigurationError, match="prepared"):
        prepare(model, FLAT)
    first.close()
    prepare(model, FLAT)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (lambda m: m[1].parameters(), "4 of them are missing .* and 0 are not"),
        (lambda m: [*m.parameters(), nn.Parameter(torch.ones(1))], "0 of them are missing .* and 1 are not"),
    ],
)
def test_the_optimizer_must_hold_the_trainable_parameters(held, message):
    model = build("mlp")
    sgd = torch.optim.SGD(held(model), lr=1.0)
    with pytest.raises(ConfigurationError, match=message):
        make_step(model, sgd, clipping=AutoSClipping(), noise_multiplier=1.0, expected_batch_size=1, loss=loss)


def test_layers_that_mix_examples_are_refused():
    x, y = batch(3)
    frozen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(784, 5))
    with pytest.raises(ConfigurationError, match="Replace BatchNorm by GroupNorm"):
        prepare(frozen, FLAT)
    frozen[1].requires_grad_(False).eval()
    expected = clipped_sums(frozen, x, y, RULES["flat"][1])
    frozen.train()
    step = prepare(frozen, FLAT)
    with pytest.raises(ConfigurationError, match="GroupNorm"):
        step.accumulate(x, y)
    frozen[1].eval()
    step.accumulate(x, y)
    assert relative_error(sums_of(step), expected) < 1e-6


def test_a_model_in_evaluation_mode_is_refused():
    model, (x, y) = build("mlp"), batch(3)
    step = prepare(model.eval(), FLAT)
    with pytest.raises(ConfigurationError, match=r"call model\.train\(\)"):
        step.accumulate(x, y)


def test_an_optimizer_of_frozen_parameters_is_refused():
    model = build("mlp")
    sgd = torch.optim.SGD(model.requires_grad_(False).parameters())
    with pytest.raises(ConfigurationError, match="holds no trainable parameter"):
        make_step(model, sgd, clipping=FLAT, noise_multiplier=1.0, expected_batch_size=1, loss=loss)


class Folded(nn.Module):
    """Makes two rows of each."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.inner, self.head = nn.Flatten(), nn.Linear(384, 4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.flat(x).reshape(-1, 384)).reshape(len(x), 8))


def test_gradients_of_different_examples_are_not_clipped_together():
    x, y = batch(3)
    with pytest.raises(RefusedError, match=r"of \[3, 6\] examples"):
        prepare(Folded(), FLAT).accumulate(x, y)


CLIPS = [FlatClipping(250.0), PerLayerClipping(7.0), AutoSClipping(), AutoSClipping(3.0, 1e-6)]
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


@pytest.mark.parametrize("rule", CLIPS, ids=repr)
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
