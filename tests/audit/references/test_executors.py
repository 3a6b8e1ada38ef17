"""Reference models trained and explained elsewhere: the same as in one process, by any engine, and whoever dies."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from safexplain.audit import (
    FineTune,
    ModelCache,
    Policy,
    Population,
    Recipe,
    audit,
    collect_signals,
    fine_tune,
    train_shadows,
)
from safexplain.audit.asked import predict
from safexplain.audit.references import executors, ray_executor
from safexplain.audit.references.executors import Sent, grouped, packed, parted, run_groups, unpacked, workers_of
from safexplain.audit.run import AuditOptions
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, MissingExtraError

try:  # workers of Dask, Ray and submitit need not be able to import this file
    from cloudpickle import register_pickle_by_value

    register_pickle_by_value(sys.modules[__name__])
except ImportError:
    pass

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),  # Python 3.12, of pools that fork
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets of Dask and Ray, closed by their processes
]
RECIPE = Recipe(lr=0.01, epochs=3, batch_size=16)


def population(n=80, d=5):
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (n,), generator=g)
    return Population(torch.randn(n, d, generator=g) + y[:, None], y)


POOL = population()


def mlp(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def dropping(seed):
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def of_ones_own(x, y, generator):
    model = mlp(torch.rand(1))
    with torch.no_grad():
        model[0].weight.add_(x.mean() + torch.rand(1, generator=generator))
    return model


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def equal(a, b):
    assert a.numbers == b.numbers
    assert np.array_equal(a.membership, b.membership)
    return all(torch.equal(m(POOL.x), n(POOL.x)) for m, n in zip(a.models, b.models, strict=True))


@contextmanager
def forked(workers=2):
    """Workers that need not import anything."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        yield pool


@contextmanager
def spawned():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@contextmanager
def loky():
    module = pytest.importorskip("loky")
    pool = module.get_reusable_executor(max_workers=1)
    yield pool
    module.get_reusable_executor(max_workers=1).shutdown(kill_workers=True)


@contextmanager
def dask():
    module = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.CRITICAL}
    with module.LocalCluster(**options) as cluster, module.Client(cluster) as client:
        yield client.get_executor()


@contextmanager
def ray():
    module = pytest.importorskip("ray")
    module.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield ray_executor()
    module.shutdown()


@contextmanager
def submitit(tmp_path):
    module = pytest.importorskip("submitit")
    executor = module.AutoExecutor(tmp_path / "jobs", cluster="local")
    executor.update_parameters(timeout_min=5)
    yield executor


ENGINES = {"loky": loky, "dask": dask, "ray": ray, "spawned": spawned}


@pytest.fixture
def engine(request):
    with ENGINES[request.param]() as executor:
        yield executor


slow_process = pytest.param("spawned", marks=pytest.mark.slow)


# ------------------------------------------------------------------------------------------------- the same results


@pytest.mark.parametrize("engine", ["loky", "dask", "ray", slow_process], indirect=True)
def test_an_engine_trains_and_asks_the_models_of_one_process(engine, tmp_path):
    found = train_shadows(POOL, RECIPE, build=mlp, models=4, executor=engine, cache=tmp_path)
    assert equal(found, of_one_process())
    assert len(list(tmp_path.iterdir())) == 4
    here = predict(found, POOL, patience=(1, 3))
    there = predict(found, POOL, patience=(1, 3), executor=engine)
    assert here.values.keys() == there.values.keys()
    assert all(np.array_equal(here.values[name], there.values[name]) for name in here.values)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_an_engine_does_again_what_a_killed_worker_did_not_finish(engine, tmp_path):
    build = KillsOnce(tmp_path / "killed", dropping)
    found = train_shadows(POOL, RECIPE, build=build, models=4, executor=engine, cache=tmp_path / "cache")
    assert (tmp_path / "killed").exists()
    assert equal(found, train_shadows(POOL, RECIPE, build=dropping, models=4))


def of_one_process():
    return train_shadows(POOL, RECIPE, build=mlp, models=4)


@pytest.mark.slow  # docs/scale.md has an example that runs in the debug executor
def test_submitit_trains_the_models_of_one_process(tmp_path):
    with submitit(tmp_path) as executor:
        executor = type("InOneJob", (), {"_max_workers": 1, "submit": staticmethod(executor.submit)})
        found = train_shadows(POOL, RECIPE, build=mlp, models=4, executor=executor, cache=tmp_path / "cache")
    assert equal(found, of_one_process())


@pytest.mark.parametrize(
    ("train", "build"),
    [(RECIPE, mlp), (RECIPE, dropping), (of_ones_own, mlp), (of_ones_own, None), (DecisionTreeClassifier(), None)],
    ids=["together", "alone", "callable with build", "callable", "estimator"],
)
@pytest.mark.parametrize("cached", [True, False])
def test_whatever_trains_gives_the_same_models_in_threads_and_in_processes(tmp_path, train, build, cached):
    whole = train_shadows(POOL, train, build=build, models=6, seed=3)
    with forked() as pool, ThreadPoolExecutor(2) as threads:
        for executor in (pool, threads):
            cache = tmp_path / type(executor).__name__ if cached else None
            options = {"build": build, "models": 6, "seed": 3, "cache": cache, "executor": executor}
            assert equal(train_shadows(POOL, train, **options), whole)
            if cached:
                assert not list(cache.glob(".run-*"))
            assert equal(train_shadows(POOL, train, **options), whole)


def test_an_executor_trains_a_part_and_a_cache_that_it_filled_is_used_without_it(tmp_path):
    whole = train_shadows(POOL, RECIPE, build=dropping, models=6)
    with forked() as pool:
        part = train_shadows(POOL, RECIPE, build=dropping, models=6, only=[4, 1], executor=pool, cache=tmp_path)
    assert part.numbers == (4, 1)
    assert torch.equal(weights(part.models[0]), weights(whole.models[4]))
    stored = {path.name for path in tmp_path.iterdir()}
    assert len(stored) == 2
    assert equal(train_shadows(POOL, RECIPE, build=dropping, models=6, cache=tmp_path), whole)
    assert len(list(tmp_path.iterdir())) == 6


def test_heads_and_networks_are_fine_tuned_elsewhere_as_in_one_process(tmp_path):
    pretrained = train_shadows(POOL, RECIPE, build=dropping, models=4)
    for trainable in ("head", "all"):
        how = FineTune(POOL, RECIPE, trainable=trainable)
        whole = fine_tune(pretrained, how, seed=2)
        with forked() as pool:
            assert equal(fine_tune(pretrained, how, seed=2, executor=pool), whole)
            assert equal(fine_tune(pretrained, how, seed=2, executor=pool, cache=tmp_path / trainable), whole)
        assert equal(fine_tune(pretrained, how, seed=2, cache=tmp_path / trainable), whole)


class Seen:
    """Progress, kept."""

    def __init__(self):
        self.calls = []

    def __call__(self, *call):
        self.calls.append(call)


class Gradient:
    """Saliency, whose answers a worker can give."""

    def __call__(self, model, x, target):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(x).gather(1, target[:, None]).sum(), x)[0]


class AtHome(nn.Module):
    """A model that cannot be sent."""

    def __init__(self, model):
        super().__init__()
        self.model, self.lock = model, threading.Lock()

    def forward(self, x):
        return self.model(x)


@pytest.mark.parametrize("at_home", [False, True])
def test_signals_collected_elsewhere_are_those_of_one_process(tmp_path, at_home):
    models = train_shadows(POOL, RECIPE, build=mlp, models=5)
    if at_home:
        models = type(models)((AtHome(models.models[0]), *models.models[1:]), models.membership)
    asked = {"patience": (1, 6), "classes": (0, 2), "targets": (0,)}
    whole = collect_signals(models, POOL, Gradient(), **asked)
    with forked() as pool:
        for store in (None, tmp_path / "kept"):
            seen = Seen()
            found = collect_signals(models, POOL, Gradient(), **asked, executor=pool, store=store, progress=seen)
            assert found.values.keys() == whole.values.keys()
            assert all(np.array_equal(found.values[name], whole.values[name]) for name in whole.values)
            assert np.array_equal(found.attributions, whole.attributions)
            assert found.meta == whole.meta
            assert {stage for stage, *_ in seen.calls} == {"labels", "explaining"}
            assert seen.calls[-1][1] == seen.calls[-1][2]
        assert predict(models, POOL, executor=pool).classes == 3


def test_models_of_other_tasks_are_not_asked_together():
    member = POOL.flip(2, seed=0)
    models = train_shadows(POOL, RECIPE, build=mlp, models=1).models
    other = nn.Sequential(nn.Linear(5, 4)).eval()
    both = type(train_shadows(POOL, RECIPE, build=mlp, models=1))((models[0], other), member)
    with forked() as pool, pytest.raises(InputError, match=r"models of one task, got 3, 4 classes"):
        predict(both, POOL, labels="foreign", executor=pool)


@pytest.mark.slow
def test_an_audit_by_an_executor_has_the_result_of_one_process(tmp_path):
    from sklearn.datasets import load_digits

    from safexplain import HardenedSaliency, Hardening

    x, y = load_digits(return_X_y=True)
    pool = Population.of(x[:300] / 16, y[:300])
    recipe = Recipe(epochs=8, batch_size=16, lr=3e-3)

    def build(seed):
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    target = train_shadows(pool, recipe, build=build, models=1, seed=5)

    def judged(**options):
        found = audit(
            target.models[0],
            pool,
            recipe,
            build=build,
            member=target.membership[0],
            explainer=HardenedSaliency,
            hardening=Hardening.recommended(),
            references=4,
            policy=Policy(patience=(1, 5)),
            options=AuditOptions(force=True),
            **options,
        )
        return json.dumps([c.result.to_dict() for c in found.configurations], default=str)

    with forked() as executor:
        assert judged(executor=executor) == judged()
        assert judged(executor=executor, cache=tmp_path) == judged()


# ------------------------------------------------------------------------------------------------ whoever dies


class KillsOnce:
    """Builds models, and kills the first worker that asks for one."""

    def __init__(self, mark, build):
        self.mark, self.build, self.home = Path(mark), build, os.getpid()

    def __call__(self, seed):
        if os.getpid() != self.home and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.build(seed)


class KillsAlways(KillsOnce):
    def __call__(self, seed):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.build(seed)


class Counts:
    """A training function that notes each of its calls."""

    def __init__(self, folder, killed_at=None):
        self.folder, self.killed_at, self.home = Path(folder), killed_at, os.getpid()
        self.folder.mkdir()

    def __call__(self, x, y, generator):
        called = len(list(self.folder.iterdir()))
        (self.folder / f"{called}-{os.getpid()}-{time.monotonic_ns()}").touch()
        if called == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return of_ones_own(x, y, generator)


@pytest.mark.parametrize("cached", [True, False])
def test_a_worker_that_dies_loses_its_group_alone(tmp_path, cached, caplog):
    whole = train_shadows(POOL, RECIPE, build=dropping, models=8)
    with forked() as pool:
        build = KillsOnce(tmp_path / "killed", dropping)
        cache = tmp_path / "cache" if cached else None
        assert equal(train_shadows(POOL, RECIPE, build=build, models=8, executor=pool, cache=cache), whole)
    assert "a worker process died" in caplog.text


def test_models_that_were_finished_are_not_trained_again_when_a_worker_dies(tmp_path):
    train = Counts(tmp_path / "calls", killed_at=5)
    with forked(1) as pool:
        found = train_shadows(POOL, train, models=8, executor=pool)
    assert equal(found, train_shadows(POOL, of_ones_own, models=8))
    calls = len(list((tmp_path / "calls").iterdir()))
    assert 9 <= calls <= 8 + 2  # groups of two: that of the one that was killed begins again


def test_where_every_pool_breaks_the_rest_is_trained_in_this_process(tmp_path, caplog):
    with forked() as pool:
        build = KillsAlways(tmp_path, dropping)
        found = train_shadows(POOL, RECIPE, build=build, models=4, executor=pool)
    assert equal(found, train_shadows(POOL, RECIPE, build=dropping, models=4))
    assert "4 of 4 groups are done in this process" in caplog.text


class Losing:
    """An executor whose workers are lost, some times."""

    _max_workers = 1

    def __init__(self, times):
        self.times = times

    def submit(self, fn, *args):
        future = Future()
        if self.times:
            self.times -= 1
            future.set_exception(ConnectionError("the worker is gone"))
        else:
            future.set_result(fn(*args))
        return future


def test_a_group_whose_worker_was_lost_is_sent_again_once_and_then_told(caplog):
    assert equal(train_shadows(POOL, RECIPE, build=mlp, models=4, executor=Losing(1)), of_one_process())
    assert "was lost (ConnectionError: the worker is gone) and is sent again" in caplog.text
    with pytest.raises(ConnectionError, match="the worker is gone") as caught:
        train_shadows(POOL, RECIPE, build=mlp, models=4, executor=Losing(2))
    assert "was lost 2 times" in caught.value.__notes__[-1]


def test_an_executor_that_was_closed_leaves_everything_to_this_process(caplog):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    assert equal(train_shadows(POOL, RECIPE, build=mlp, models=4, executor=pool), of_one_process())
    assert "1 of 1 groups are done in this process" in caplog.text


class OnlyResults:
    """What a minimal executor returns."""

    def __init__(self, value):
        self.value = value

    def result(self):
        return self.value


class Minimal:
    def submit(self, fn, *args):
        return OnlyResults(fn(*args))


def test_submit_and_result_are_all_that_an_executor_needs():
    assert equal(train_shadows(POOL, RECIPE, build=mlp, models=4, executor=Minimal()), of_one_process())


# ------------------------------------------------------------------------------------------------ what goes wrong


class Diverged(InputError):
    def __init__(self, *_):
        super().__init__("training diverged")


class Fails:
    """Raises for one model, by its number of members."""

    def __init__(self, members, error):
        self.members, self.error = members, error

    def __call__(self, seed):
        return dropping(seed)

    def train(self, x, y, generator):
        if len(x) == self.members:
            raise self.error("this very thing", 2)
        return of_ones_own(x, y, generator)


def membership():
    """Model i has 40 + i members."""
    found = np.zeros((6, 80), dtype=bool)
    for i in range(6):
        found[i, : 40 + i] = True
    return found


def test_what_a_group_raises_is_raised_after_the_others_were_stored(tmp_path, caplog):
    train = Fails(42, Diverged).train
    with forked() as pool, pytest.raises(InputError, match="training diverged") as caught:
        train_shadows(POOL, train, build=mlp, membership=membership(), executor=pool, cache=tmp_path)
    assert str(caught.value) == "training diverged"
    assert "In a worker:" in caught.value.__notes__[0]
    assert len(list(tmp_path.glob("*.pt"))) == 5
    assert "the others are finished first" in caplog.text


class Unreadable(Exception):
    def __init__(self, one, two):
        super().__init__(one)

    def __reduce__(self):  # of its own: where tblib is imported, as Dask does, exceptions are read without `__init__`
        return Unreadable, self.args


def test_an_exception_that_cannot_be_read_again_still_says_what_happened():
    train = Fails(42, Unreadable).train
    with forked() as pool, pytest.raises(RuntimeError, match="Unreadable: this very thing"):
        train_shadows(POOL, train, membership=membership(), executor=pool)


@pytest.mark.parametrize("executor", [3, "loky", object()])
def test_what_is_no_executor_is_refused(executor):
    for call in (
        lambda: train_shadows(POOL, RECIPE, build=mlp, executor=executor),
        lambda: predict(of_one_process(), POOL, executor=executor),
        lambda: collect_signals(of_one_process(), POOL, Gradient(), executor=executor),
        lambda: fine_tune(of_one_process(), FineTune(POOL, RECIPE), executor=executor),
    ):
        with pytest.raises(ConfigurationTypeError, match=r"expected something with submit\(fn, \*args\)"):
            call()


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def build(seed):
        assert lock
        return mlp(seed)

    with forked() as pool, pytest.raises(ConfigurationError, match=r"cannot send this .*build .*cloudpickle"):
        train_shadows(POOL, RECIPE, build=build, models=4, executor=pool)


def test_without_cloudpickle_a_lambda_is_named_and_what_is_at_the_top_of_a_module_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    monkeypatch.setitem(sys.modules, "test_executors_module", sys.modules[__name__])
    with pytest.raises(ConfigurationError, match=r"build \(<function .*lambda.* install cloudpickle"):
        train_shadows(POOL, RECIPE, build=lambda seed: mlp(seed), models=4, executor=Minimal())
    assert unpacked(packed({"a": [1, nn.Linear]}, None)) == {"a": [1, nn.Linear]}


def test_a_worker_with_other_code_is_refused(monkeypatch):
    calls = []

    def code(*modules):
        calls.append(modules)
        return f"version {len(calls)}"

    monkeypatch.setattr(executors, "code_digest", code)
    with pytest.raises(ConfigurationError, match="another version of safexplain or of torch"):
        train_shadows(POOL, RECIPE, build=mlp, models=4, executor=Minimal())


def test_without_ray_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"safexplain\[ray\]"):
        ray_executor()


# ------------------------------------------------------------------------------------ data, progress, interruption


class Away:
    """A worker on another machine: it sees none of the folders here."""

    _max_workers = 2

    def __init__(self):
        self.sent = []

    def submit(self, fn, payload, group, session, *rest):
        self.sent.append(len(payload))
        return OnlyResults(fn(payload, group, "/nowhere", *rest))


def test_a_worker_that_does_not_see_the_folder_gets_everything_by_value(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "LARGE", 1000)
    monkeypatch.setattr(executors, "_here", {})
    away = Away()
    found = train_shadows(POOL, RECIPE, build=dropping, models=4, executor=away, cache=tmp_path)
    assert equal(found, train_shadows(POOL, RECIPE, build=dropping, models=4))
    assert len(away.sent) == 8
    assert min(away.sent[4:]) > max(away.sent[:4]) + POOL.x.nbytes - 100
    assert len(list(tmp_path.glob("*.pt"))) == 4  # stored by this process


def test_large_arrays_are_written_once_and_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "LARGE", 1000)
    x, rows = torch.randn(100, 10), np.arange(1000)
    raw = packed({"a": x, "b": [x, rows], "small": torch.ones(3)}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npy", "1.npy"]
    assert len(raw) < 2000
    found = unpacked(raw, tmp_path)
    assert torch.equal(found["a"], x)
    assert np.array_equal(found["b"][1], rows)
    found["a"][0] = 7.0  # in memory alone
    assert torch.equal(unpacked(raw, tmp_path)["a"], x)
    assert len(packed(x, None)) > 4000


def slow(x, y, generator):
    time.sleep(0.15)
    return of_ones_own(x, y, generator)


def test_progress_adds_up_what_all_workers_tell(monkeypatch):
    monkeypatch.setattr(executors, "BEAT_SECONDS", 0.0)
    seen = []
    with forked() as pool:
        train_shadows(POOL, slow, models=16, executor=pool, progress=lambda *call: seen.append(call))
    done = [call[1] for call in seen]
    assert done == sorted(done)
    assert done[-1] == 16
    assert {call[0] for call in seen} == {"training"}
    assert any("2 groups running, " in call[3] and "of 16 models finished" in call[3] for call in seen[:-1])
    assert any(call[1] != int(call[1]) or "0 of 16" not in call[3] for call in seen)


def test_an_interrupted_run_keeps_what_is_finished_and_cancels_what_waits(tmp_path):
    def interrupting(stage, done, total, note=""):
        if done >= 2:
            raise KeyboardInterrupt

    with forked(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            train_shadows(
                POOL, slow, build=mlp, models=12, executor=pool, cache=tmp_path, progress=interrupting
            )  # groups of three
        stored = len(list(tmp_path.glob("*.pt")))
        assert 2 <= stored < 12
        assert not list(tmp_path.glob(".run-*"))
        seen = []
        options = {"build": mlp, "models": 12, "cache": tmp_path, "progress": lambda *call: seen.append(call)}
        found = train_shadows(POOL, slow, **options, executor=pool)
    assert seen[0][1] >= stored
    assert equal(found, train_shadows(POOL, slow, build=mlp, models=12, cache=tmp_path))


def test_workers_stop_once_the_folder_of_their_run_is_gone(tmp_path):
    beat = executors._Beats(tmp_path / "run", 0)
    beat(0.5)  # not seen: nothing is told, and nothing stops
    (tmp_path / "run").mkdir()
    beat = executors._Beats(tmp_path / "run", 0)
    beat(0.5, "epoch 3 of 30")
    assert json.loads((tmp_path / "run" / "group-0.json").read_text()) == {"share": 0.5, "note": "epoch 3 of 30"}
    (tmp_path / "run" / "group-0.json").unlink()
    (tmp_path / "run").rmdir()
    beat.last = -10.0
    with pytest.raises(InterruptedError):
        beat(0.6)


def test_groups_keep_all_workers_busy():
    pool = ThreadPoolExecutor(4)
    assert workers_of(pool) == 4
    assert workers_of(Minimal()) == 8
    assert [len(g) for g in parted(range(256), pool)] == [8] * 32
    assert [len(g) for g in parted(range(16), pool)] == [1] * 16
    assert [len(g) for g in parted(range(16), pool, together=True)] == [4] * 4
    assert [len(g) for g in parted(range(256), pool, together=True)] == [32] * 8
    groups = grouped({0: 100, **dict.fromkeys(range(1, 33), 5)}, pool)
    assert groups[0] == [0]
    assert sorted(i for group in groups for i in group) == list(range(33))
    assert max(map(len, groups)) <= 8


def test_a_device_that_only_workers_have_leaves_models_on_the_cpu():
    assert executors.present("cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        assert executors.present("cuda") == torch.device("cpu")


def test_the_caches_of_the_parent_and_of_a_worker_are_one(tmp_path):
    store = ModelCache(tmp_path)
    with forked() as pool:
        train_shadows(POOL, RECIPE, build=mlp, models=4, executor=pool, cache=store)
    seen = []
    train_shadows(
        POOL, RECIPE, build=mlp, models=4, executor=Losing(99), cache=store, progress=lambda *c: seen.append(c)
    )
    assert seen == [("training", 4, 4)]


def test_results_are_taken_as_they_come_and_each_once():
    taken = {}

    def work(group, tick, seen):
        tick(0.5)
        return group * 2

    run_groups(Minimal(), work, [3, 4, 5], taken.__setitem__, sizes=[1, 1, 1], stage="x", progress=lambda *_: None)
    assert taken == {0: 6, 1: 8, 2: 10}


def test_a_model_that_is_sent_is_asked_on_its_device():
    model = mlp(0)
    (sent,) = executors.sendable([model], [0]).values()
    assert isinstance(sent, Sent)
    assert torch.equal(weights(executors.received(pickle.loads(pickle.dumps(sent)))), weights(model))


def test_weights_of_models_are_mapped_too_tied_ones_stay_tied_and_frozen_ones_frozen(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "LARGE", 1000)
    model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False), nn.Linear(20, 20))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    raw = packed(model, tmp_path, "group-3-0-")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["group-3-0-0.npy", "group-3-0-1.npy"]
    found = unpacked(raw, tmp_path)
    assert found[0].weight is found[1].weight
    assert [p.requires_grad for p in found.parameters()] == [True, False, False]
    assert torch.equal(weights(found), weights(model))
    assert len(packed(model, None, dry=True)) < len(packed(model, None)) - 3000


def test_models_are_explained_from_files_and_by_value_where_these_are_not_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "LARGE", 100)
    models = train_shadows(POOL, RECIPE, build=mlp, models=3)
    whole = collect_signals(models, POOL, Gradient(), patience=(1,))
    monkeypatch.setattr(executors, "_here", {})
    for executor in (Minimal(), Away()):
        found = collect_signals(
            models, POOL, Gradient(), patience=(1,), executor=executor, store=tmp_path / type(executor).__name__
        )
        assert np.array_equal(found.attributions, whole.attributions)
