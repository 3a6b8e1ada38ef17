"""audit/benchmarks/canary_training.py runs, and judges what it measures."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from evidence import run

pytest.importorskip("opacus")


@pytest.mark.slow
def test_a_quick_run_goes_through_every_part(tmp_path):
    done, report = run("audit.benchmarks.canary_training", "--quick", "--workers", 2, out=tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert report["quick"]
    assert {len(rows) for rows in report["results"].values()} == {3}
    assert all(row["clock_seconds_a_run_median"] > 0 for rows in report["results"].values() for row in rows.values())
    assert len(report["targets"]) == 4
    assert all(set(target) == {"target", "found", "met"} for target in report["targets"].values())


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
