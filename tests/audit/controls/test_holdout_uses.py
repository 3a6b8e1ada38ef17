"""Uses: who looks again at the same examples is counted, however they are dressed up."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from safexplain.audit import Policy, Signals
from safexplain.audit.controls.holdout_uses import MOST_HASHES, Uses, are_same, default_path, sample_of, uses_of
from safexplain.audit.controls.splits import Splits
from safexplain.audit.signals import hash_examples
from safexplain.errors import InputError, UsesWarning

N = 800
POLICY = Policy(training=0.0)
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
META = {"explainer": "Saliency", "hardening": "first", "population": "ab" * 32, "subject": "model"}


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    path = tmp_path / "state" / "uses.sqlite"
    monkeypatch.setenv("SAFEXPLAIN_USES", str(path))
    return path


def released(seed=0, models=5, **fields):
    rng = np.random.default_rng(seed)
    member = rng.random((models, N)) < 0.5
    return Signals(
        **{"membership": member, "values": {"l1": rng.random((models, N))}, "inputs": X, "meta": META, **fields}
    )


def rows_of(signals, rows):
    inputs = None if signals.inputs is None else signals.inputs[rows]
    values = {name: a[:, rows] for name, a in signals.values.items()}
    hashes = None if signals.examples is None else signals.examples[rows]
    return Signals(signals.membership[:, rows], values, inputs=inputs, examples=hashes, meta=signals.meta)


def models_of(signals, models):
    values = {name: a[models] for name, a in signals.values.items()}
    return replace(signals, membership=signals.membership[models], values=values)


def counted(signals, policy=POLICY, suite=("Threshold on l1",), seed=0):
    uses = uses_of(signals, policy, suite, seed)
    return None if uses is None else uses.record(signals, Splits.of(signals, policy, trains=True).certification)


def other(signals, **changes):
    return replace(signals, meta={**signals.meta, "hardening": "second", **changes})


# ------------------------------------------------------------------------------------------ the same examples again


DRESSES = {
    "as they are": lambda s: s,
    "permuted": lambda s: rows_of(s, np.random.default_rng(1).permutation(N)),
    "without one example": lambda s: rows_of(s, np.arange(1, N)),
    "without every second example": lambda s: rows_of(s, np.arange(0, N, 2)),
    "another subject": lambda s: other(s, subject="another"),
    "without the name of the population": lambda s: replace(
        s, meta={k: v for k, v in s.meta.items() if k != "population"}
    ),
    "another name of the population": lambda s: other(s, population="cd"),
    "one reference less": lambda s: models_of(s, [0, 1, 2, 3]),
    "other models and other members": lambda s: released(seed=7),
    "hashes in place of inputs": lambda s: replace(s, inputs=None, examples=hash_examples(X)),
    "only the name of the population": lambda s: replace(s, inputs=None, examples=None),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_another_configuration_on_the_same_examples_is_a_second_use(dress):
    assert counted(released()) == 1
    assert counted(other(DRESSES[dress](released()))) == 2


@pytest.mark.parametrize("dress", [d for d in DRESSES if d not in ("one reference less",)])
def test_the_same_configuration_again_is_the_same_use(dress):
    assert counted(other(released())) == 1
    assert counted(other(DRESSES[dress](released()))) == 1
    assert counted(replace(released(), meta={**META, "hardening": "third"})) == 2
    assert counted(other(released())) == 1  # it came first


def test_other_examples_are_other_examples():
    assert counted(released()) == 1
    assert counted(other(replace(released(), inputs=X + 1, examples=None))) == 1
    half = np.arange(N) < N // 2
    assert counted(replace(rows_of(released(), half), meta={**META, "hardening": "third"})) == 2
    halves = [rows_of(released(), h) for h in (half, ~half)]
    fresh = [replace(h, examples=h.examples + np.uint64(1)) for h in halves]  # nobody has seen these
    assert [counted(f) for f in fresh] == [1, 1]


@pytest.mark.parametrize(("shared", "uses"), [(0, 1), (4, 1), (8, 1), (9, 2), (40, 2)])
def test_more_than_one_in_a_hundred_of_the_smaller_set_makes_them_the_same(shared, uses):
    small = replace(released(), inputs=None, examples=np.arange(N, dtype=np.uint64))
    large = replace(other(small), examples=np.arange(N, dtype=np.uint64) + np.uint64(N - shared))
    assert counted(small) == 1
    assert counted(large) == uses


def test_each_set_that_was_looked_at_is_remembered():
    """A configuration first judged on one half and then on the other has used both."""
    left, right = (rows_of(released(), rows) for rows in (np.arange(N // 2), np.arange(N // 2, N)))
    assert counted(left) == counted(right) == 1
    assert counted(other(right)) == 2


# ------------------------------------------------------------------------------------------------- configurations


POLICIES = (
    {"fpr": 0.02},
    {"confidence": 0.9},
    {"release": "explanation+prediction"},
    {"claim": "whole"},
    {"suite": ("RMIA",)},
    {"selection": 0.1},
    {"training": 0.1},
    {"patience": (1,)},
    {"references": 4},
    {"max_excess": 0.1},
)


@pytest.mark.parametrize("change", POLICIES, ids=str)
def test_another_policy_is_another_configuration(change):
    start = replace(POLICY, claim="excess")
    assert counted(released(), start) == 1
    assert counted(released(), replace(start, **change)) == 2


@pytest.mark.parametrize("change", [{"max_tpr": 0.2}, {"reason": "we were asked to"}], ids=str)
def test_another_limit_is_not(change):
    assert counted(released()) == 1
    assert counted(released(), replace(POLICY, **change)) == 1


@pytest.mark.parametrize(
    "name", ["explainer", "output", "options", "hardening", "seed", "recipe", "references", "dither"]
)
def test_what_the_signals_say_about_their_making_is_part_of_the_configuration(name):
    assert counted(released()) == 1
    assert counted(replace(released(), meta={**META, name: "another"})) == 2


def test_another_suite_or_another_seed_is_another_configuration():
    assert counted(released()) == 1
    assert counted(released(), suite=("Threshold on l1", "RMIA on loss")) == 2
    assert counted(released(), seed=1) == 3
    assert counted(released()) == 1


def test_signals_that_do_not_say_how_they_were_made_are_told_apart_by_their_numbers():
    plain = replace(released(), meta={})
    assert counted(plain) == counted(plain) == 1
    assert counted(replace(plain, meta={"subject": "another", "title": "x"})) == 1
    assert counted(rows_of(plain, np.random.default_rng(1).permutation(N))) == 1
    tried = {"l1": np.where(np.arange(N) == 5, 0.5, plain.values["l1"])}
    assert counted(replace(plain, values=tried)) == 2
    assert counted(replace(plain, attributions=np.ones((5, N, 2)))) == 3


def test_a_native_explanation_that_is_released_counts_too():
    native = replace(released(), meta={"explainer": "Saliency"})
    assert counted(native) == 1
    assert counted(released()) == 2


# ----------------------------------------------------------------------------------------------------- not counted


def test_what_cannot_be_recognised_is_not_counted():
    assert counted(replace(released(), inputs=None, examples=None, meta={"hardening": "first"})) is None
    assert counted(replace(released(), inputs=None, examples=None, meta={"population": "", "hardening": "a"})) is None
    assert counted(released(), replace(POLICY, uncounted=True)) is None
    bare = replace(released(), inputs=None, examples=None, meta={})
    with pytest.raises(InputError, match="the signals have neither"):
        Uses(default_path(), "one").record(bare, np.ones(N, bool))


def test_a_file_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAFEXPLAIN_USES", str(tmp_path / "file" / "uses.sqlite"))
    with pytest.warns(UsesWarning, match="this verdict is not counted"):
        assert counted(released()) is None
    with pytest.raises(InputError, match="SAFEXPLAIN_USES"):
        Uses(default_path(), "one").record(released(), np.ones(N, bool))


# -------------------------------------------------------------------------------------------------------- the file


def test_the_store_of_an_earlier_version_is_kept_and_not_looked_at(store):
    store.parent.mkdir(parents=True)
    with sqlite3.connect(store) as old:
        old.execute("CREATE TABLE uses (split TEXT, configuration TEXT, at TEXT, PRIMARY KEY (split, configuration))")
        old.execute("INSERT INTO uses VALUES ('a', 'b', 'c')")
    assert counted(released()) == 1
    with sqlite3.connect(store) as now:
        assert now.execute("SELECT * FROM uses").fetchall() == [("a", "b", "c")]


def test_a_set_is_kept_once_and_a_large_one_as_a_sample(store):
    for i in range(20):
        assert counted(other(released(), hardening=str(i))) == i + 1
    with sqlite3.connect(store) as kept:
        assert kept.execute("SELECT COUNT(*), SUM(LENGTH(hashes)) FROM example_sets").fetchone() == (1, 8 * N)
    many = np.arange(3 * MOST_HASHES, dtype=np.uint64)
    assert len(sample_of(many)) == MOST_HASHES
    for share, same in ((0.0, False), (0.003, False), (0.03, True), (0.5, True), (1.0, True)):
        moved = many + np.uint64(int((1 - share) * len(many)))
        assert are_same(sample_of(many), sample_of(moved)) is same
        few = moved[::50]  # a small set beside a large one
        assert are_same(sample_of(many), sample_of(few)) is same
        assert are_same(sample_of(few), sample_of(many)) is same


RUN = """
import sys
import numpy as np
from safexplain.audit import Policy, Signals
from safexplain.audit.controls.holdout_uses import uses_of
member = np.arange(600)[None] % 2 < np.ones((3, 1))
for i in range(10):
    s = Signals(member, {"l1": np.ones((3, 600))}, examples=np.arange(600, dtype=np.uint64),
                meta={"explainer": "E", "hardening": f"{sys.argv[1]} {i}"})
    print(uses_of(s, Policy(), ["row"], 0).record(s, np.ones(600, bool)))
"""


def test_two_processes_at_once_count_every_use():
    running = [subprocess.Popen([sys.executable, "-c", RUN, n], stdout=subprocess.PIPE, text=True) for n in "ab"]
    counts = [int(line) for process in running for line in process.communicate()[0].split()]
    assert all(process.returncode == 0 for process in running)
    assert sorted(counts) == list(range(1, 21))
