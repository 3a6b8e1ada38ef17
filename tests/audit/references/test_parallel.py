"""Work by joblib's backends: the results of one process, in any order, and whichever worker dies."""

import logging
import os
import pickle
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
import joblib
import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit.references import parallel
from safexplain.audit.references.parallel import each
from safexplain.errors import ConfigurationError, InputError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not be able to import this file
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of Dask and Ray, closed by their processes


@contextmanager
def loky():
    with joblib.parallel_config(backend="loky", n_jobs=2):
        yield


@contextmanager
def dask():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster), joblib.parallel_config("dask"):
        yield


@contextmanager
def ray():
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    register_ray()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with joblib.parallel_config("ray", n_jobs=2):
        yield
    ray.shutdown()


ENGINES = {"loky": loky, "dask": dask, "ray": ray}


class Sums:
    """Sums of a large tensor, which kills the first worker that is asked for the third."""

    def __init__(self, mark):
        self.x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0))
        self.mark, self.home = Path(mark), os.getpid()

    def __call__(self, i, tick):
        tick(0.5)
        if i == 2 and os.getpid() != self.home and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if i == 99:
            raise InputError("ninety-nine")
        return i, (self.x * i).sum()


def ignore(*_):
    pass


def done(work, tasks, **options):
    return dict(each(work, tasks, **{"stage": "summing", "progress": ignore, **options}))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_killed_worker_did_not_finish_is_done_again(engine, tmp_path, caplog):
    work, tasks, seen = Sums(tmp_path / "killed"), [(i,) for i in range(5)], []
    with ENGINES[engine]():
        assert parallel.parallel()
        found = done(work, tasks, progress=lambda *call: seen.append(call))
        with pytest.raises(InputError, match="ninety-nine"):
            done(work, [(99,), (0,)])
    assert work.mark.exists()
    assert found == done(work, tasks)
    assert seen == [("summing", float(i), 5.0) for i in range(1, 6)]


@pytest.mark.slow
def test_workers_that_always_die_are_given_up(monkeypatch):
    monkeypatch.setattr(parallel, "TRIES", 1)

    def dies(tick):
        os.kill(os.getpid(), signal.SIGKILL)

    with loky(), pytest.raises(Exception, match="unexpectedly terminated") as raised:
        done(dies, [(), ()])
    assert "workers were lost 1 times in a row" in raised.value.__notes__[0]


def test_progress_moves_within_tasks_of_this_process():
    seen = []

    def work(i, tick):
        tick(0.5, f"task {i}")
        return i

    found = each(work, [(0,), (1,)], sizes=[2, 4], stage="s", progress=lambda *call: seen.append(call), before=3)
    assert list(found) == [(0, 0), (1, 1)]
    assert seen == [("s", 4, 9, "task 0"), ("s", 5, 9), ("s", 7, 9, "task 1"), ("s", 9, 9)]


@pytest.mark.parametrize(("backend", "n_jobs"), [("threading", 4), ("loky", 1)])
def test_threads_and_single_workers_are_this_process(backend, n_jobs):
    with joblib.parallel_config(backend, n_jobs=n_jobs):
        assert not parallel.parallel()
    assert not parallel.parallel()


def test_pools_that_fork_are_refused():
    with (
        joblib.parallel_config("multiprocessing", n_jobs=2),
        pytest.raises(ConfigurationError, match='"loky", "dask" or "ray", got MultiprocessingBackend'),
    ):
        done(len, [("a",)])


def sent(value):
    """As a worker has it, whether an array came beside the pickle, and as a second task has it."""
    (raw, arrays), (_, again) = parallel._packed(None, [(value,), (value,)]).values()
    assert all(a is b for a, b in zip(arrays, again, strict=True))
    for array in arrays:
        array.flags.writeable = False
    return parallel._unpacked(raw, arrays)[1][0], len(arrays)


def test_large_arrays_are_sent_once_and_can_be_written_to():
    values = {
        "tensor": torch.randn(512, 600),
        "half": torch.randn(1024, 600).bfloat16(),
        "image": nn.Parameter(torch.randn(8, 64, 32, 32).to(memory_format=torch.channels_last), requires_grad=False),
        "array": np.arange(200_000),
        "small": torch.ones(3),
    }
    found, beside = sent({**values, "same": values["tensor"]})
    assert beside == 4
    assert found["same"] is found["tensor"]
    for name, value in values.items():
        assert type(found[name]) is type(value)
        assert found[name].dtype == value.dtype
        assert bool((found[name] == value).all())
    assert found["image"].stride() == values["image"].stride()
    assert not found["image"].requires_grad
    found["tensor"].add_(1)
    assert not torch.equal(found["tensor"], values["tensor"])


def test_a_worker_of_another_version_is_refused():
    raw, arrays = parallel._packed(len, [("a",)])[0]
    _, raised, error = parallel._do(0, {**parallel.VERSIONS, "torch": "1.0"}, raw, *arrays)
    assert raised
    with pytest.raises(ConfigurationError, match="install the same versions"):
        raise pickle.loads(error)
