"""audit/benchmarks/canary_training.py runs, and judges what it measures."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

pytest.importorskip("opacus")


@pytest.fixture
def benchmark(monkeypatch):
    """The module, which sets threads when it is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    return importlib.import_module("audit.benchmarks.canary_training")


@pytest.mark.filterwarnings("ignore")
def test_opacus_and_the_batched_runs_train_the_same_model(benchmark):
    """Sizes of the weights, of which the noise of 2 steps is nearly all."""
    for case in benchmark.CASES.values():
        x, y = benchmark.data(case.network.classes, "cpu")
        expected = benchmark.LR * benchmark.SIGMA * benchmark.BOUND / (benchmark.RATE * len(x)) * 2**0.5
        weight = benchmark.by_opacus(case, x, y, 2)
        assert weight.std().item() == pytest.approx(expected, rel=0.15)
        scores = benchmark.batched(replace(case, runs=400), x, y, 2, ["cpu"])
        assert scores.shape == (2, 200)
        assert scores[-1].std().item() == pytest.approx(expected, rel=0.2)
