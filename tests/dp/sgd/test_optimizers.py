"""`ClippedOptimizer` in a loop of one's own: a drop-in for Opacus' DPOptimizer that also takes what stops that one."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from per_sample_oracle import RULES, C, batch, build, clipped_sums, loss, relative_error, trainable
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.dp.sgd.optimizers import ClippedOptimizer
from safexplain.errors import ConfigurationError, RefusedError

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def prepare(model: nn.Module, rule: str = "flat", **options: object) -> tuple[GradSampleModule, ClippedOptimizer]:
    """A wrapped model and plain gradient descent of rate 1, without noise and divided by 1 unless options say so."""
    sgd = torch.optim.SGD(trainable(model), lr=1.0)
    settings = {
        "clipping": RULES[rule][0],
        "noise_multiplier": 0.0,
        "expected_batch_size": 1,
        "generator": torch.Generator().manual_seed(0),
    } | options
    return GradSampleModule(model, loss_reduction="sum"), ClippedOptimizer(sgd, **settings)


def go(wrapped: nn.Module, optimizer: DPOptimizer, x: Tensor, y: Tensor) -> None:
    """What everyone's loop does."""
    loss(wrapped(x), y).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def moved(before: nn.Module, after: nn.Module) -> list[Tensor]:
    return [b.detach() - a.detach() for b, a in zip(trainable(before), trainable(after), strict=True)]


@pytest.mark.parametrize(
    ("name", "rule"), [*(("transformer", rule) for rule in RULES), ("mlp", "flat"), ("conv", "per-layer")]
)
def test_a_loop_of_ones_own_moves_by_the_sum_of_clipped_gradients(name: str, rule: str) -> None:
    model, (x, y) = build(name, torch.float64), batch(10, torch.float64)
    start = copy.deepcopy(model)
    go(*prepare(model, rule), x, y)
    assert relative_error(moved(start, model), clipped_sums(start, x, y, RULES[rule][1])) < 1e-10


def test_opacus_own_optimizer_comes_close_but_adds_a_constant_to_the_norm() -> None:
    model, (x, y) = build("mlp", torch.float64), batch(10, torch.float64)
    start, sgd = copy.deepcopy(model), torch.optim.SGD(trainable(model), lr=1.0)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    go(wrapped, DPOptimizer(sgd, noise_multiplier=0.0, expected_batch_size=1, max_grad_norm=C), x, y)
    assert 1e-9 < relative_error(moved(start, model), clipped_sums(start, x, y, RULES["flat"][1])) < 1e-4


def train(model: nn.Module, batches: list[list[int]], largest: int, seed: int = 0) -> None:
    """Given logical batches of row numbers, in pieces by Opacus' BatchMemoryManager."""
    x, y = batch(20)

    def collate(items: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        rows = list(items)
        return [torch.stack(column) for column in zip(*rows, strict=True)] if rows else [x[:0], y[:0]]

    generator = torch.Generator().manual_seed(seed)
    wrapped, optimizer = prepare(model, noise_multiplier=0.01, expected_batch_size=8, generator=generator)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=batches, collate_fn=collate)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=largest, optimizer=optimizer) as pieces:
        for a, b in pieces:
            go(wrapped, optimizer, a, b)


def test_pieces_of_a_virtual_batch_make_one_batch_with_one_noise() -> None:
    batches = [list(range(11)), [], list(range(5, 20))]
    start, whole, pieces, unbatched = (build("mlp") for _ in range(4))
    train(whole, batches, largest=20)
    train(pieces, batches, largest=4)
    train(unbatched, [batches[0][:4], batches[0][4:8], batches[0][8:]], largest=4)
    assert relative_error(moved(start, pieces), moved(start, whole)) < 2e-6
    assert relative_error(moved(start, unbatched), moved(start, whole)) > 0.1


def noisy() -> tuple[nn.Module, GradSampleModule, ClippedOptimizer]:
    model = build("mlp")
    generator = torch.Generator().manual_seed(0)
    return model, *prepare(model, noise_multiplier=0.5, expected_batch_size=4, generator=generator)


def is_noise_only(start: nn.Module, model: nn.Module, std: float = 0.5 * C / 4) -> bool:
    """Whether all weights moved by Gaussian noise of this std, to 5 standard errors of the variance."""
    z = torch.cat([d.flatten() for d in moved(start, model)]) / std
    return abs(z.square().mean().item() - 1) < 5 * (2 / len(z)) ** 0.5


def test_a_step_in_which_nothing_was_backpropagated_is_noise_only() -> None:
    model, _, optimizer = noisy()
    for _ in range(2):
        start = copy.deepcopy(model)
        optimizer.step()
        optimizer.zero_grad()
        assert is_noise_only(start, model)
        assert not is_noise_only(start, model, 0.5 * C)
        assert not is_noise_only(start, model, 0.5 * C / 5)


def test_a_batch_without_rows_is_noise_only() -> None:
    model, wrapped, optimizer = noisy()
    start, (x, y) = copy.deepcopy(model), batch(3)
    go(wrapped, optimizer, x[:0], y[:0])
    assert is_noise_only(start, model)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_without_a_finite_gradient_is_left_out_and_counted(rule: str, bad: float) -> None:
    model, (x, y) = build("mlp", torch.float64), batch(6, torch.float64)
    start, spoilt, good = copy.deepcopy(model), x.clone(), [0, 2, 3, 5]
    spoilt[[1, 4], 0, 3, 3] = bad
    wrapped, optimizer = prepare(model, rule)
    go(wrapped, optimizer, spoilt, y)
    assert optimizer.skipped == 2
    assert relative_error(moved(start, model), clipped_sums(start, x[good], y[good], RULES[rule][1])) < 1e-10
    go(wrapped, optimizer, spoilt[[1]], y[[1]])
    assert optimizer.skipped == 3
    assert all(p.isfinite().all() for p in model.parameters())


def test_accountants_see_one_batch_for_each_logical_batch_and_two_for_two() -> None:
    wrapped, optimizer = prepare(build("mlp"))
    seen: list[int] = []
    optimizer.attach_step_hook(lambda o: seen.append(o.accumulated_iterations))
    x, y = batch(8)
    for skip in (True, False):
        optimizer.signal_skip_step(skip)
        go(wrapped, optimizer, x, y)
    optimizer.step()
    optimizer.zero_grad()
    loss(wrapped(x), y).sum().backward()
    go(wrapped, optimizer, x, y)
    assert seen == [1, 1, 2]


def test_the_noise_follows_the_clipping_bound() -> None:
    model = build("mlp")
    _, optimizer = prepare(
        model, clipping=FlatClipping(3.0), noise_multiplier=2.0, expected_batch_size=None, loss_reduction="sum"
    )
    start = copy.deepcopy(model)
    optimizer.step()
    assert is_noise_only(start, model, 6.0)
    assert not is_noise_only(start, model, 2.0)


def test_one_gradient_is_never_used_twice() -> None:
    wrapped, optimizer = prepare(build("mlp"))
    x, y = batch(4)
    loss(wrapped(x), y).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="haven't been cleared"):
        optimizer.step()


def test_gradients_that_went_around_the_hooks_are_refused() -> None:
    wrapped, optimizer = prepare(build("mlp"))
    x, y = batch(4)
    wrapped.disable_hooks()
    loss(wrapped(x), y).sum().backward()
    with pytest.raises(RefusedError, match="no per-example gradients"):
        optimizer.step()


def test_gradients_of_different_examples_are_not_clipped_together() -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    wrapped, optimizer = prepare(nn.ModuleList([first, second]))
    first(torch.ones(4, 3)).sum().backward()
    second(torch.ones(2, 3)).sum().backward()
    with pytest.raises(RefusedError, match=r"of \[2, 4\] examples"):
        optimizer.step()
    wrapped.to_standard_module()


def test_an_unwrapped_model_is_refused() -> None:
    optimizer = ClippedOptimizer(
        torch.optim.SGD(build("mlp").parameters()), clipping=FlatClipping(), noise_multiplier=1.0, expected_batch_size=1
    )
    with pytest.raises(ConfigurationError, match="wrap the model"):
        optimizer.step()


@pytest.mark.parametrize(
    "options", [{"noise_multiplier": -1.0}, {"expected_batch_size": 0}, {"noise_multiplier": float("nan")}]
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        prepare(build("mlp"), **options)


def test_an_optimizer_of_frozen_parameters_is_refused() -> None:
    model = build("mlp").requires_grad_(False)
    with pytest.raises(ConfigurationError, match="nothing can be trained"):
        ClippedOptimizer(
            torch.optim.SGD(model.parameters()), clipping=FlatClipping(), noise_multiplier=1.0, expected_batch_size=1
        )
