"""Linear heads by closed-form DP-SGD: those of autograd and of torch, and the learning rate if none is given."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import safexplain.dp.heads as head
from safexplain._progress import silent
from safexplain.audit.canaries import audit_training
from safexplain.dp import DPFineTuner
from safexplain.dp.heads import (
    STEP_OBSERVER,
    HeadRecipe,
    Heads,
    Rows,
    clipped_sum,
    common_batches,
    separate_batches,
    train_heads,
)
from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping, PerLayerClipping
from safexplain.dp.sgd.finetune import typical_norm
from safexplain.errors import ConfigurationError, InputError

N, D, CLASSES = 60, 7, 4
RULES = [FlatClipping(0.8), AutoSClipping(0.8, gamma=0.01)]


def data(n=N, d=D, classes=CLASSES, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randint(0, classes, (n,), generator=g)


def recipe(**changes):
    return HeadRecipe(**{
        "classes": CLASSES, "steps": 20, "sample_rate": 0.3, "expected_batch_size": 18, "clipping": FlatClipping(0.8),
        "lr": 0.3, **changes,
    })  # fmt: skip


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def slow_sum(theta, x, labels, clipping):
    """Clipped gradients of one run by autograd, one example at a time."""
    total = torch.zeros_like(theta)
    for row, label in zip(x, labels, strict=True):
        t = theta.clone().requires_grad_()
        logits = t @ row
        if len(t) == 1:
            loss = F.binary_cross_entropy_with_logits(logits[0], label.to(row.dtype))
        else:
            loss = F.cross_entropy(logits[None], label[None])
        (gradient,) = torch.autograd.grad(loss, t)
        total += gradient * (1.0 if clipping is None else clipping.factors(gradient.norm()[None])[0])
    return total


def recorded(monkeypatch):
    """The batches and the noise of the next `train_heads`."""
    batches, noises, draw, sample = [], [], head.gaussian, head.separate_batches

    def gaussian(*arguments, **options):
        noises.append(draw(*arguments, **options))
        return noises[-1].clone()

    def own(*arguments):
        for index, weight in sample(*arguments):
            batches.append(index)
            yield index, weight

    monkeypatch.setattr(head, "gaussian", gaussian)
    monkeypatch.setattr(head, "separate_batches", own)
    return batches, noises


@pytest.mark.parametrize(
    ("clipping", "options"),
    [(RULES[0], {"momentum": 0.9, "l2": 0.01}), (RULES[1], {"optimizer": "adam", "lr": 0.05})],
)
def test_twenty_steps_are_those_of_torchs_optimizer_with_the_same_noise_and_batches(clipping, options, monkeypatch):
    x, y = data()
    made_by = recipe(clipping=clipping, **options)
    batches, noises = recorded(monkeypatch)
    found = train_heads(x, y, made_by, noise_multiplier=1.5, generator=seeded())
    assert len(batches) == len(noises) == 20
    theta, rows = torch.zeros(CLASSES, D + 1, dtype=torch.float64), Rows.of(x, y, bias=True).x
    kind = torch.optim.Adam if made_by.optimizer == "adam" else partial(torch.optim.SGD, momentum=made_by.momentum)
    optimizer = kind([theta], lr=made_by.lr, weight_decay=made_by.l2)
    for index, noise in zip(batches, noises, strict=True):
        theta.grad = (slow_sum(theta, rows[index], y[index], clipping) + 1.5 * 0.8 * noise[0]) / 18
        optimizer.step()
    assert (torch.cat([found.weight[0], found.bias[0][:, None]], 1) - theta).abs().max() <= 1e-9
    assert theta.abs().max() > 0.1


@pytest.mark.parametrize(
    ("clipping", "outputs", "bias", "own"),
    [
        (RULES[0], CLASSES, False, False),
        (RULES[0], 1, True, True),
        (RULES[1], CLASSES, True, True),
        (RULES[1], 1, False, True),
        (None, CLASSES, True, False),
    ],
)
def test_the_clipped_sum_is_that_of_autograd_one_example_at_a_time(clipping, outputs, bias, own):
    x, y = data(classes=max(outputs, 2))
    theta = torch.randn(3, outputs, D + bias, generator=seeded(), dtype=torch.float64)
    rows, index = Rows.of(x, y, bias=bias), torch.randint(0, N, (3, 20), generator=seeded(1))
    weight = torch.rand(3, 20, generator=seeded(2)) < 0.7
    if not own:
        index = index[0]
    found = clipped_sum(theta, rows.take(index), weight, clipping)
    for run in range(3):
        chosen = (index[run] if own else index)[weight[run]]
        slow = slow_sum(theta[run], rows.x[chosen], y[chosen], clipping)
        assert (found[run] - slow).abs().max() < 1e-12
        assert slow.abs().max() > 0.1


def test_an_example_without_a_finite_gradient_contributes_nothing_and_spares_the_others():
    x, y = data(n=5)
    theta = torch.ones(2, CLASSES, D + 1, dtype=torch.float64)
    rows = Rows.of(x, y, bias=True)
    broken = Rows(torch.where(torch.arange(5)[:, None] == 2, 1e308, rows.x), rows.labels, rows.norms)
    keep = torch.tensor([True, True, False, True, True])
    for clipping in RULES:
        found = clipped_sum(theta, broken, None, clipping)
        assert torch.equal(found.isfinite(), torch.ones_like(found, dtype=torch.bool))
        assert torch.allclose(found, clipped_sum(theta, rows, keep.expand(2, 5), clipping), atol=1e-12)


@pytest.mark.parametrize(("rate", "runs"), [(0.1, 1), (0.8, 3)])
def test_batches_are_poisson_samples_at_the_stated_rate(rate, runs):
    n, steps = 40, 3000
    counts, together, sizes = torch.zeros(n), 0, []
    for index, weight in separate_batches(rate, torch.ones(runs, n, dtype=torch.bool), steps, seeded()):
        inside = torch.zeros(runs, n, dtype=torch.bool)
        for run in range(runs):
            if index is None:
                inside[run] = weight[run]
            else:
                rows = index if index.dim() == 1 else index[run]
                inside[run, rows if weight is None else rows[weight[run]]] = True
        counts += inside[0]
        together += int(inside[0, 0] & inside[0, 1])
        sizes.append(int(inside[0].sum()))
    sizes = torch.tensor(sizes, dtype=torch.float64)
    sd = (rate * (1 - rate) / steps) ** 0.5
    assert ((counts / steps - rate).abs() < 5 * sd).all()
    assert abs(together / steps - rate**2) < 5 * sd
    assert sizes.var().item() == pytest.approx(n * rate * (1 - rate), rel=0.15)
    assert not ((counts / steps - 0.5 * rate).abs() < 5 * sd).all(), "another rate would be seen"


def test_a_rate_of_one_takes_every_row_and_draws_nothing():
    generator = seeded()
    before = generator.get_state()
    members = torch.tensor([[True, False, True], [True, True, True]])
    assert [i for i, _ in separate_batches(1.0, members, 4, generator)] == [None] * 4
    assert all(torch.equal(w, members) for _, w in separate_batches(1.0, members, 4, generator))
    assert all(w is None for _, w in separate_batches(1.0, members[1:], 4, generator))
    assert torch.equal(before, generator.get_state())


def test_runs_share_batches_only_when_asked_to():
    members = torch.ones(3, 50, dtype=torch.bool)
    index, weight = next(common_batches(0.3, members, 1, seeded()))
    assert index.dim() == 1
    assert weight is None
    own, weight = next(separate_batches(0.3, members, 1, seeded()))
    first, second = (set(own[r][weight[r]].tolist()) for r in range(2))
    assert first != second


@pytest.mark.parametrize(("clipping", "float_safe"), [(RULES[0], True), (RULES[1], False)])
def test_noise_has_the_stated_scale_whatever_the_batch(float_safe, clipping):
    x, y = data(n=4, d=40)
    made_by = recipe(steps=1, sample_rate=1e-9, expected_batch_size=5, lr=1.0, clipping=clipping)
    found = train_heads(x, y, made_by, noise_multiplier=2.0, runs=200, float_safe=float_safe, generator=seeded())
    every = torch.cat([found.weight.flatten(), found.bias.flatten()])
    expected = 2.0 * 0.8 / 5
    assert len(every) == 200 * CLASSES * 41
    assert every.std().item() == pytest.approx(expected, rel=0.02)
    assert abs(every.mean().item()) < 5 * expected / len(every) ** 0.5


def test_each_run_has_its_own_noise_multiplier():
    x, y = data(n=4, d=500)
    made_by = recipe(steps=1, sample_rate=1e-9, expected_batch_size=1, lr=1.0, clipping=FlatClipping(1.0))
    found = train_heads(x, y, made_by, noise_multiplier=[0.0, 1.0, 3.0], runs=3, generator=seeded())
    assert found.weight[0].abs().max() == 0
    assert found.weight[1:].std((1, 2)).tolist() == pytest.approx([1.0, 3.0], rel=0.06)


@pytest.mark.parametrize(("rate", "shared"), [(0.2, True), (0.8, False)])
def test_non_members_never_influence_a_run(rate, shared):
    x, y = data()
    members = torch.rand(5, N, generator=seeded(3)) < 0.5
    members[:, 0] = False
    members[:4, 1] = False
    members[4, 1] = True
    options = {"noise_multiplier": 1.0, "runs": 5, "membership": members, "shared_batches": shared}
    made_by = recipe(sample_rate=rate)
    before = train_heads(x, y, made_by, generator=seeded(), **options)
    x[0], y[0] = 1e6, (y[0] + 1) % CLASSES
    x[1], y[1] = -30.0, (y[1] + 1) % CLASSES
    after = train_heads(x, y, made_by, generator=seeded(), **options)
    assert torch.equal(before.weight[:4], after.weight[:4])
    assert torch.equal(before.bias[:4], after.bias[:4])
    assert not torch.equal(before.weight[4], after.weight[4]), "the run that trains on row 1 changes"


def test_many_blocks_of_runs_give_what_one_block_gives(monkeypatch):
    x, y = data()
    made_by = recipe(sample_rate=0.5, expected_batch_size=30, clipping=None)
    wide = train_heads(x, y, made_by, noise_multiplier=0.0, runs=1, generator=seeded())
    monkeypatch.setitem(head._BLOCK, "cpu", 1)
    seen = []
    narrow = train_heads(
        x, y, made_by, noise_multiplier=0.0, runs=3, generator=seeded(), progress=lambda *told: seen.append(told)
    )
    assert torch.allclose(wide.weight[0], narrow.weight[0], atol=1e-12)
    assert not torch.allclose(narrow.weight[0], narrow.weight[1], atol=1e-3)
    assert seen == [("training with DP", done, 60) for done in range(1, 61)]


def test_one_logit_separates_two_classes_with_one_vector():
    x, _ = data(n=300, d=3)
    y = (x[:, 0] > 0).long()
    made_by = recipe(classes=2, one_logit=True, steps=60, sample_rate=0.5, expected_batch_size=150, lr=2.0)
    found = train_heads(x, y, made_by, noise_multiplier=1.0, generator=seeded())
    assert found.weight.shape == (1, 1, 3)
    assert found.probabilities(x).shape == (1, 300, 2)
    assert torch.allclose(found.probabilities(x).sum(-1), torch.ones(1, 300, dtype=torch.float64))
    assert (found.probabilities(x)[0].argmax(1) == y).double().mean() > 0.9


def test_training_starts_where_it_is_told_to_and_leaves_that_alone():
    x, y = data()
    start = Heads(torch.randn(1, CLASSES, D, dtype=torch.float64), torch.randn(1, CLASSES, dtype=torch.float64))
    before = start.weight.clone()
    found = train_heads(x, y, recipe(lr=1e-9), noise_multiplier=1.0, runs=2, initial=start)
    assert torch.allclose(found.weight, before.expand(2, -1, -1), atol=1e-6)
    assert torch.equal(start.weight, before)


def test_a_head_with_a_generator_of_its_own_does_not_depend_on_who_trains_beside_it():
    x, y = data(n=20)
    members = torch.rand(4, 20, generator=seeded(3)) < 0.7

    def heads(which, **changes):
        options = {"membership": members[list(which)], "generator": [seeded(i) for i in which]} | changes
        return train_heads(x, y, recipe(sample_rate=0.2), noise_multiplier=1.0, runs=len(which), **options).weight

    every = heads(range(4))
    for which in ([2], [3, 2], [0, 1, 2]):
        assert torch.allclose(heads(which)[which.index(2)], every[2], atol=1e-6)
    assert len({float(w.sum()) for w in every}) == 4
    for changes in ({"generator": [seeded()]}, {"shared_batches": True}):
        with pytest.raises(InputError, match="one for each of 4 runs"):
            heads(range(4), **changes)


def test_precision_is_that_of_the_features_and_at_least_single():
    x, y = data()
    for given, expected in ((torch.float64,) * 2, (torch.float32,) * 2, (torch.float16, torch.float32)):
        assert train_heads(x.to(given), y, recipe(), noise_multiplier=1.0).weight.dtype == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": 1}, {"sample_rate": 1.1}, {"optimizer": "lbfgs"}, {"momentum": 0.9, "optimizer": "adam"},
        {"one_logit": True}, {"clipping": PerLayerClipping(1.0)},
    ],
)  # fmt: skip
def test_a_recipe_that_makes_no_sense_is_refused(changes):
    with pytest.raises(ConfigurationError):
        recipe(**changes)


def test_noise_that_makes_no_sense_is_refused():
    x, y = data()
    for sigma in (float("nan"), [1.0, 2.0]):
        with pytest.raises(ConfigurationError, match="noise_multiplier"):
            train_heads(x, y, recipe(), noise_multiplier=sigma, runs=3)
    with pytest.raises(ConfigurationError, match="clipping"):
        train_heads(x, y, recipe(clipping=None), noise_multiplier=1.0)


def test_data_that_cannot_be_used_is_refused_in_words():
    x, y = data()
    wrong = {
        "features": [(x[0], y), (x * float("nan"), y)],
        "labels": [(x, y[:-1]), (x, y.double()), (x, y + 1), (x, y - 1)],
    }
    for name, cases in wrong.items():
        for features, labels in cases:
            with pytest.raises(InputError, match=name):
                train_heads(features, labels, recipe(), noise_multiplier=1.0)
    for membership in (torch.ones(2, N - 1, dtype=torch.bool), torch.ones(2, N)):
        with pytest.raises(InputError, match="membership"):
            train_heads(x, y, recipe(), noise_multiplier=1.0, runs=2, membership=membership)
    start = Heads(torch.zeros(1, CLASSES, D + 1), torch.zeros(1, CLASSES))
    with pytest.raises(InputError, match="initial"):
        train_heads(x, y, recipe(), noise_multiplier=1.0, initial=start)


def test_weights_that_diverge_are_an_error_and_not_a_result():
    x, y = data()
    with pytest.raises(InputError, match="learning rate"):
        train_heads(x.float(), y, recipe(lr=3e38, momentum=0.9), noise_multiplier=50.0)


@pytest.mark.gpu
def test_a_gpu_trains_the_same_heads():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, y = data()
    made_by = recipe(sample_rate=1.0, expected_batch_size=N)
    on_cpu = train_heads(x, y, made_by, noise_multiplier=0.0, runs=2)
    on_gpu = train_heads(x.cuda(), y, made_by, noise_multiplier=0.0, runs=2)
    assert torch.allclose(on_cpu.weight, on_gpu.weight.cpu(), atol=1e-10)
    noisy = train_heads(x.cuda(), y, recipe(), noise_multiplier=1.0, runs=2)
    assert noisy.weight.isfinite().all()


RECIPE = HeadRecipe(
    classes=3, steps=5, sample_rate=0.5, expected_batch_size=1000, clipping=AutoSClipping(0.5), lr=1.0, optimizer="adam"
)


def rows(norm: float, n: int = 2000, d: int = 20) -> torch.Tensor:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return norm * x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("norm", [0.02, 50.0])
def test_the_typical_norm_is_found_under_noise(norm):
    found = typical_norm(rows(norm), RECIPE, 10.0, torch.Generator().manual_seed(0))
    assert abs(math.log2(found / norm)) < 16 * (4 * 10 / 1000 + abs(math.log2(norm)) / 16 * 0.15)


def test_no_record_changes_what_is_measured_by_more_than_the_clip_bound():
    sums = []
    whole, absent = RECIPE.clipping, rows(1.0, n=50)
    recipe = HeadRecipe(**{**RECIPE.__dict__, "sample_rate": 1.0, "expected_batch_size": 50})
    token = STEP_OBSERVER.set(lambda total, noise, batch: sums.append(total.clone()) or total + noise)
    try:
        for value in (0.0, 1e-30, 1.0, 1e30):
            x = absent.clone()
            x[0] = value
            typical_norm(x, recipe, 1.0, torch.Generator().manual_seed(0))
    finally:
        STEP_OBSERVER.reset(token)
    rest = sums[2].clone()
    rest[0, 0, 0] -= whole.bound * math.log2(20**0.5) / 16
    assert all(float((total - rest).norm()) <= whole.bound * (1 + 1e-5) for total in sums)
    assert max(float((total - rest).norm()) for total in sums) == pytest.approx(whole.bound, rel=1e-4)


def test_a_head_learns_as_well_whatever_the_scale_of_its_inputs():
    x = rows(1.0)
    y = x[:, :3].argmax(1)
    right = []
    for scale in (0.3, 1.0, 50.0):
        torch.manual_seed(0)
        tuner = DPFineTuner(nn.Sequential(nn.Linear(20, 3)), (scale * x, y), epsilon=8, seed=0, progress=silent)
        right.append(float((tuner.fit().model(scale * x).argmax(1) == y).float().mean()))
    assert min(right) > 0.85
    assert max(right) - min(right) < 0.06


def test_the_step_that_measures_is_one_of_those_that_are_stated_and_watched():
    x = rows(1.0, n=60)
    tuner = DPFineTuner(nn.Sequential(nn.Linear(20, 3)), (x, x[:, :3].argmax(1)), epsilon=8, steps=10, delta=1e-3)
    result = audit_training(tuner, "white-box", seed=0)
    assert not result.failed
    assert result.verdict == "as claimed"
