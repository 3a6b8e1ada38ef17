"""Memory: no step of an audit holds all maps, of however many models and examples they are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from memory import Watched

from safexplain.audit import Policy, Signals
from safexplain.audit import signals as stored
from safexplain.audit.attacks import likelihood
from safexplain.audit.attacks.suite import Scorer, fitting
from safexplain.audit.controls import checks as strength
from safexplain.audit.controls.splits import Splits, copies_together, released_sums
from safexplain.audit.usefulness import Sample, utility_of

NOBODY = Sample(torch.nn.Identity(), torch.zeros(1, 1), torch.zeros(1, 1), 1)
"""Without maps of its own, so that no model is asked."""

POLICY = Policy(patience=(1,), uncounted=True, suite=("LikelihoodRatio",))


def made(folder, m, n, d):
    """(m, n, d) maps on disk."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((n, d), np.float32)
    maps = stored.on_disk((m, n, d), folder)
    for row in maps:
        row[:] = base + rng.standard_normal((n, d), np.float32)
    return maps


def everything(maps, member):
    """What an audit does with whole maps, but for the choice of its suite."""
    m, n, _ = maps.shape
    values = {"label": np.zeros((m, n)), "l1": np.arange(m * n, dtype=float).reshape(m, n) % 7}
    examples = np.random.default_rng(1).integers(0, 2**60, n, dtype=np.uint64)
    signals = Signals(member, values, maps, {"targets": [0]}, examples=examples)
    signals = copies_together(signals)[0]
    rows = [row for row in fitting(signals, POLICY) if row.signal in ("attributions", "attributions:sign")]
    assert len(rows) == 2
    splits = Splits.of(signals, POLICY, trains=False)
    scorer = Scorer(signals, rows, target=0, training=splits.training)
    scores = scorer.scores(1)
    strength.recipe_fit(signals, 0, signals.references(0), splits.certification, ["attributions"])
    released_sums(replace(signals, examples=np.arange(len(signals), dtype=np.uint64)), splits.certification)
    utility_of(NOBODY, (maps, maps))
    return scores


@pytest.fixture
def small(monkeypatch):
    """Parts of 2 MiB instead of 128 MiB."""
    monkeypatch.setattr(stored.blocks, "__defaults__", (1 << 19,))
    monkeypatch.setattr(stored.parts, "__defaults__", (1 << 18,))
    monkeypatch.setattr(likelihood, "CHUNK", 1 << 18)
    monkeypatch.setattr(strength, "MOST_NUMBERS", 1 << 19)
    monkeypatch.setattr("safexplain.audit.usefulness.PART", 1 << 16)


def most_memory(work):
    """Bytes held at most during a piece of work, beyond those held before; not those of files."""
    with Watched() as memory:
        work()
    return memory.bytes


SHAPE = (18, 1600, 512)
ALL = 4 * 18 * 1600 * 512


def test_an_audit_holds_a_small_part_of_maps_on_disk_at_a_time(tmp_path, small):
    maps, member = made(tmp_path, *SHAPE), np.random.default_rng(2).random(SHAPE[:2]) < 0.5
    assert most_memory(lambda: everything(maps, member)) < ALL / 2
