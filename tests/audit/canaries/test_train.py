"""Runs trained side by side: each is the run that Opacus makes of the same batches, coins, noise and canary."""

import threading

import numpy as np
import pytest
import torch
from opacus_oracle import NETWORKS, D, N, Recorded, by_opacus, data, recipe, seeded

from safexplain.audit.canaries import run as module
from safexplain.audit.canaries.canary import GradientCanary, RecordCanary
from safexplain.audit.canaries.run import Inserted, KeyedDraws, LinearHead, steps_of, train_runs
from safexplain.dp.heads import Rows
from safexplain.dp.sgd.clipping import FlatClipping, PerLayerClipping
from safexplain.errors import ConfigurationError, InputError

TARGET, RUNS, CPU = 7, 4, torch.device("cpu")
ONE_LOGIT = NETWORKS["one logit"]
OPTIMIZERS = {"sgd": {}, "momentum": {"momentum": 0.5}, "adam": {"optimizer": "adam", "lr": 0.02}}
KINDS = ("gradient", "crafted", "mislabelled")
PAIRS = [(name, kind, list(OPTIMIZERS)[(i + j) % 3]) for i, name in enumerate(NETWORKS) for j, kind in enumerate(KINDS)]
"""Every network with every kind of canary and with every optimizer, and every kind with every optimizer."""


def canary_of(kind, network, x, y):
    if kind == "gradient":
        return GradientCanary(TARGET, 3)
    other = (int(y[TARGET]) + 1) % network.classes
    at = x[TARGET] if kind == "mislabelled" else torch.full((D,), 1.5, dtype=x.dtype)
    return RecordCanary(kind, TARGET, at, other)


def inserted_of(canary, x, y, runs=RUNS):
    on_d = torch.arange(runs) % 2 == 0
    if isinstance(canary, GradientCanary):
        return Inserted(x[:0], torch.zeros(0, dtype=torch.long), on_d, canary.coordinate)
    labels = torch.tensor([int(y[TARGET]), canary.y])
    return Inserted(torch.stack([x[TARGET], canary.x]), labels, on_d)


def others_of(network, x, y):
    kept = torch.arange(N) != TARGET
    return Rows.of(x[kept], y[kept], bias=network.bias)


def trained(network, x, y, canary, made_by, draws, runs=RUNS, at_once=10**6, sigma=0.7):
    """theta at the start and at the end."""
    generator = seeded(5)
    start = torch.randn(runs, network.parameters, generator=generator, dtype=x.dtype) / 4
    theta, inserted = start.clone(), inserted_of(canary, x, y, runs)
    for _ in steps_of(network, others_of(network, x, y), inserted, made_by, sigma, theta, draws, at_once):
        pass
    return start, theta


def options(**changes):
    return {"noise_multiplier": 0.7, "runs": 8, "every": 10, "generator": seeded(3), **changes}


@pytest.mark.parametrize(("name", "kind", "how"), PAIRS)
def test_every_run_is_the_run_of_opacus_with_the_same_batches_coins_noise_and_canary(name, kind, how, monkeypatch):
    network = NETWORKS[name]
    x, y = data(network)
    rate = 0.7 if kind == "crafted" else 0.3  # at which rows are gathered
    canary, made_by = canary_of(kind, network, x, y), recipe(network, sample_rate=rate, **OPTIMIZERS[how])
    draws = Recorded(1, 0, made_by.sample_rate, made_by.steps, CPU)
    start, theta = trained(network, x, y, canary, made_by, draws)
    assert sum(int(c.sum()) for c in draws.given["coins"]) > RUNS
    assert all(index is None for index, _ in draws.given["batches"]) == (kind == "crafted")
    for run in (0, 1):
        slow = by_opacus(network, x, y, canary, made_by, start, draws.given, run, monkeypatch)
        assert (theta[run] - slow).abs().max() < 1e-9
        assert (theta[run] - start[run]).abs().max() > 0.1
    if kind == "gradient":
        wrong = by_opacus(network, x, y, canary, made_by, start, draws.given, 0, monkeypatch, swapped=True)
        assert (theta[0] - wrong).abs().max() > 1e-3, "the canary of the other data set would be seen"


@pytest.mark.parametrize("kind", ["gradient", "crafted", "mislabelled"])
def test_scores_are_those_of_the_weights_at_the_stated_steps(kind):
    network = NETWORKS["MLP"]
    x, y = data(network)
    canary, made_by = canary_of(kind, network, x, y), recipe(network)
    if kind == "gradient":
        canary = GradientCanary(TARGET, 3, torch.linspace(0, 1, made_by.steps + 1, dtype=x.dtype))
    start = torch.randn(6, network.parameters, generator=seeded(8), dtype=x.dtype)
    given = options(runs=6, every=7, initial=start)
    found = train_runs(network, x, y, canary, made_by, **given)
    assert found.steps == (7, 14, 21, 28, 30)
    seed = int(torch.randint(2**62, (), generator=seeded(3)))
    draws = KeyedDraws(seed, 0, made_by.sample_rate, made_by.steps, CPU)
    theta, inserted, expected = start.clone(), inserted_of(canary, x, y, 6), []
    for step in steps_of(network, others_of(network, x, y), inserted, made_by, 0.7, theta, draws, 10**6):
        if step in found.steps and kind == "gradient":
            expected.append(step / made_by.steps - (theta - start)[:, 3])
        elif step in found.steps:
            own, label = network.logits(theta, x[TARGET][None])[:, 0], int(y[TARGET])
            if kind == "mislabelled":
                expected.append(own[:, label] - own[:, canary.y])
            else:
                p, q = own.softmax(1)[:, label], network.logits(theta, canary.x[None])[:, 0].softmax(1)[:, canary.y]
                expected.append((p / (1 - p)).log() - (q / (1 - q)).log())
    expected = torch.stack(expected).numpy()
    assert found.d == pytest.approx(expected[:, ::2], abs=1e-9)
    assert found.d_prime == pytest.approx(expected[:, 1::2], abs=1e-9)
    assert found.d != pytest.approx(-expected[:, ::2], abs=1e-3), "another sign would be seen"


def test_coins_have_the_sample_rate_and_know_nothing_of_the_batches():
    draws = KeyedDraws(4, 0, 0.25, 4000, CPU)
    batches = draws.batches(50)
    coins, sizes = [], []
    for index, _ in batches:
        coins.append(draws.coins(6))
        sizes.append(len(index))
    coins, sizes = torch.stack(coins).double(), torch.tensor(sizes, dtype=torch.float64)
    bound = 5 * (0.25 * 0.75 / 4000) ** 0.5
    assert ((coins.mean(0) - 0.25).abs() < bound).all()
    assert not ((coins.mean(0) - 0.2).abs() < bound).any(), "another rate would be seen"
    together = torch.corrcoef(torch.cat([coins, sizes[:, None]], 1).T).fill_diagonal_(0)
    assert together.abs().max() < 0.08
    certain = KeyedDraws(4, 0, 1.0, 3, CPU)
    assert certain.coins(5).all()


def test_batches_are_the_same_in_all_blocks_and_other_draws_are_not():
    first, second = (KeyedDraws(4, block, 0.3, 5, CPU) for block in (0, 1))
    for (one, _), (other, _) in zip(first.batches(50), second.batches(50), strict=True):
        assert torch.equal(one, other)
    like = torch.zeros(3, 4)
    assert not torch.equal(first.noise(like, 1.0), second.noise(like, 1.0))
    assert not torch.equal(first.coins(50), second.coins(50))


@pytest.fixture
def many_blocks(monkeypatch):
    """Blocks of two runs."""
    monkeypatch.setitem(module._PARAMETERS, "cpu", 1)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]], ids=["alone", "threads"])
def test_an_interrupted_training_resumes_and_ends_as_it_would_have(tmp_path, many_blocks, devices):
    network = NETWORKS["MLP"]
    x, y = data(network)
    canary, made_by = canary_of("crafted", network, x, y), recipe(network)
    whole = train_runs(network, x, y, canary, made_by, **options())

    def interrupt(stage, done, total):
        if done > 4.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_runs(network, x, y, canary, made_by, **options(cache=tmp_path, progress=interrupt, devices=devices))
    stored = len(list(tmp_path.glob("*.npz")))
    assert stored == 2 if len(devices) == 1 else 1 <= stored <= 3, "only running blocks are lost"
    assert not list(tmp_path.glob("*.partial"))
    shown = []
    again = train_runs(network, x, y, canary, made_by, **options(cache=tmp_path, progress=lambda *a: shown.append(a)))
    assert np.array_equal(again.d, whole.d)
    assert np.array_equal(again.d_prime, whole.d_prime)
    assert shown[0][1] > 2 * stored
    assert shown[-1] == ("training", 8, 8)


def test_stored_runs_are_reused_only_for_exactly_the_same_training(tmp_path, many_blocks, monkeypatch):
    network = ONE_LOGIT
    x, y = data(network)
    canary, made_by = canary_of("crafted", network, x, y), recipe(network)
    kept = train_runs(network, x, y, canary, made_by, **options(cache=tmp_path))
    count = len(list(tmp_path.iterdir()))
    steps = []
    again = train_runs(network, x, y, canary, made_by, **options(cache=tmp_path, progress=lambda *a: steps.append(a)))
    assert np.array_equal(again.d, kept.d)
    assert not steps, "nothing was trained"
    assert len(list(tmp_path.iterdir())) == count
    changed = x.clone()
    changed[0, 0] += 1e-9
    start = torch.zeros(network.parameters, dtype=x.dtype)
    for case in (
        (network, changed, y, canary, made_by, options()),
        (network, x, y, canary_of("gradient", network, x, y), made_by, options()),
        (network, x, 1 - y, canary, made_by, options()),
        (network, x, y, canary, recipe(network, lr=0.21), options()),
        (network, x, y, canary, recipe(network, clipping=FlatClipping(0.81)), options()),
        (network, x, y, canary, made_by, options(noise_multiplier=0.71)),
        (network, x, y, canary, made_by, options(generator=seeded(4))),
        (network, x, y, canary, made_by, options(every=9)),
        (network, x, y, canary, made_by, options(initial=start)),
    ):
        *positional, named = case
        train_runs(*positional, **named, cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == count + 4
        count += 4
    monkeypatch.setattr(module, "TRAINERS", (*module.TRAINERS, "safexplain.audit.certify"))  # other code
    train_runs(network, x, y, canary, made_by, **options(cache=tmp_path))
    assert len(list(tmp_path.iterdir())) == count + 4


def test_more_devices_or_fewer_rows_at_once_change_nothing(many_blocks, monkeypatch):
    network = NETWORKS["MLP"]
    x, y = data(network)
    canary, made_by = canary_of("crafted", network, x, y), recipe(network)
    threads = set()
    one = train_runs(network, x, y, canary, made_by, **options(runs=9))
    two = train_runs(
        network, x, y, canary, made_by,
        **options(runs=9, devices=["cpu", "cpu"], progress=lambda *_: threads.add(threading.get_ident())),
    )  # fmt: skip
    assert one.d.shape[1] == 5
    assert one.d_prime.shape[1] == 4
    assert np.array_equal(one.d, two.d)
    assert np.array_equal(one.d_prime, two.d_prime)
    assert len(threads) == 2
    monkeypatch.setitem(module._NUMBERS, "cpu", 2 * 3 * network.numbers_per_row)
    assert module.rows_at_once(2, network.numbers_per_row, CPU) == 3
    split = train_runs(network, x, y, canary, made_by, **options(runs=9))
    assert split.d == pytest.approx(one.d, abs=1e-9)
    assert module.rows_at_once(10**9, network.numbers_per_row, CPU) == 1, "a row is taken, however many runs there are"


def test_weights_that_diverge_are_an_error_and_not_a_score():
    network = NETWORKS["MLP"]
    x, y = data(network)
    canary, made_by = canary_of("gradient", network, x, y), recipe(network, lr=3e38, momentum=0.9)
    with pytest.raises(InputError, match="learning rate"):
        train_runs(network, x.float(), y, canary, made_by, **options(noise_multiplier=50.0))


def test_each_run_starts_anew_unless_told_where():
    assert not LinearHead(D, 3).initial(4, seeded(), CPU, torch.float64).any()
    network = NETWORKS["MLP"]
    x, y = data(network)
    made_by, canary = recipe(network, lr=1e-12), canary_of("crafted", network, x, y)
    found = train_runs(network, x, y, canary, made_by, **options())
    assert np.ptp(found.d[-1]) > 0.01
    start = network.initial(1, seeded(), CPU, x.dtype)[0]
    before = start.clone()
    told = train_runs(network, x, y, canary, made_by, **options(initial=start))
    assert np.ptp(told.d[-1]) < 1e-6
    assert torch.equal(start, before)


def test_arguments_that_make_no_sense_are_refused_in_words():
    network = ONE_LOGIT
    x, y = data(network)
    made_by, canary = recipe(network), canary_of("crafted", network, x, y)
    cases = [
        (InputError, "target", (network, x, y, GradientCanary(N, 0), made_by), {}),
        (InputError, "coordinate", (network, x, y, GradientCanary(0, network.parameters), made_by), {}),
        (InputError, "drift", (network, x, y, GradientCanary(0, 0, torch.zeros(4)), made_by), {}),
        (InputError, "canary", (network, x, y, RecordCanary("crafted", 0, torch.ones(D + 1), 1), made_by), {}),
        (InputError, "canary", (network, x, y, RecordCanary("crafted", 0, torch.ones(D), 2), made_by), {}),
        (InputError, "canary", (network, x, y, RecordCanary("crafted", 0, x[0] / 0, 1), made_by), {}),
        (ConfigurationError, "runs", (network, x, y, canary, made_by), {"runs": 1}),
        (ConfigurationError, "every", (network, x, y, canary, made_by), {"every": 31}),
        (ConfigurationError, "one kind", (network, x, y, canary, made_by), {"devices": ["cpu", "meta"]}),
    ]  # fmt: skip
    for error, match, positional, changes in cases:
        with pytest.raises(error, match=match):
            train_runs(*positional, **options(**changes))
    with pytest.raises(ConfigurationError, match="got PerLayerClipping"):
        recipe(network, clipping=PerLayerClipping(1.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["gradient", "crafted"])
def test_a_gpu_trains_the_same_runs(name, kind):
    network = NETWORKS[name]
    x, y = data(network)
    canary, made_by = canary_of(kind, network, x, y), recipe(network, sample_rate=1.0)
    start = network.initial(1, seeded(), CPU, x.dtype)[0]
    given = {"noise_multiplier": 0.0, "initial": start}
    on_cpu = train_runs(network, x, y, canary, made_by, **options(**given))
    for place in ({"devices": ["cuda"]}, {"devices": ["cuda:0", "cuda:0"]}):
        on_gpu = train_runs(network, x, y, canary, made_by, **options(**given, **place))
        assert on_gpu.d == pytest.approx(on_cpu.d, abs=1e-9)
        assert on_gpu.d_prime == pytest.approx(on_cpu.d_prime, abs=1e-9)
    cuda = torch.Generator("cuda").manual_seed(1)
    noisy = train_runs(network, x.cuda(), y.cuda(), canary, recipe(network), **options(generator=cuda))
    assert noisy.d[-1].mean() != noisy.d_prime[-1].mean()
