"""Uses: who looks again at the same examples is counted, however they are dressed up."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from safexplain.audit import Policy, Signals
from safexplain.audit.controls import splits as holdout_uses
from safexplain.audit.controls.splits import MOST_HASHES, Splits, Uses, default_path, sample_of, shared, spread, uses_of
from safexplain.audit.signals import hash_examples, near
from safexplain.errors import InputError, UsesWarning

N, MODELS = 800, 12
POLICY = Policy(training=0.0)
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
META = {"explainer": "Saliency", "hardening": "first", "population": "ab" * 32, "subject": "model"}


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    path = tmp_path / "state" / "uses.sqlite"
    monkeypatch.setenv("SAFEXPLAIN_USES", str(path))
    return path


def released(seed=0, models=MODELS, **fields):
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
    return None if uses is None else uses.record(signals, Splits.of(signals, policy, trains=True).certification)[0]


def other(signals, **changes):
    return replace(signals, meta={**signals.meta, "hardening": "second", **changes})


DRESSES = {
    "as they are": lambda s: s,
    "permuted": lambda s: rows_of(s, np.random.default_rng(1).permutation(N)),
    "without every second example": lambda s: rows_of(s, np.arange(0, N, 2)),
    "another subject and another name of the population": lambda s: other(s, subject="another", population="cd"),
    "other models and other members": lambda s: released(seed=7),
    "hashes in place of inputs": lambda s: replace(s, inputs=None, examples=hash_examples(X)),
    "inputs with noise of a ten-thousandth": lambda s: replace(
        s, inputs=X * (1 + 1e-4 * np.random.default_rng(2).normal(size=X.shape)).astype(np.float32), examples=None
    ),
    "inputs in other units, rows and models permuted": lambda s: models_of(
        rows_of(replace(s, inputs=X / np.float32(255), examples=None), np.random.default_rng(1).permutation(N)),
        [3, 1, 0, 2, *range(4, MODELS)],
    ),
    "inputs in other units, one reference less, another twice": lambda s: models_of(
        replace(s, inputs=3 * X + 1, examples=None), [*range(MODELS - 2), 1]
    ),
    "invented hashes": lambda s: replace(s, inputs=None, examples=np.arange(N, dtype=np.uint64)),
}

HARMLESS = ("permuted", "another subject and another name of the population", "hashes in place of inputs")


@pytest.mark.parametrize("dress", DRESSES)
def test_another_configuration_on_the_same_examples_is_a_second_use(dress):
    assert counted(released()) == 1
    assert counted(other(DRESSES[dress](released()))) == 2


@pytest.mark.parametrize("dress", HARMLESS)
def test_the_same_release_again_is_the_same_use(dress):
    assert counted(other(released())) == 1
    assert counted(other(DRESSES[dress](released()))) == 1
    assert counted(replace(released(), meta={**META, "hardening": "third"})) == 2
    assert counted(other(released())) == 1  # it came first


def test_neither_the_precision_of_the_numbers_nor_the_reason_of_a_policy_makes_another_use():
    plain = released()
    assert counted(plain) == 1
    assert counted(plain, replace(POLICY, reason="we were asked to")) == 1
    assert counted(replace(plain, values={"l1": plain.values["l1"].astype(np.float32)})) == 1


def test_other_answers_under_the_same_name_are_another_use():
    plain = released()
    assert counted(plain) == 1
    l1 = plain.values["l1"]
    assert counted(replace(plain, values={"l1": np.where(np.arange(N) % 40 == 5, 0.5, l1)})) == 2
    assert counted(replace(plain, values={"l1": l1, "mean": l1})) == 3
    assert counted(replace(plain, values={"l2": l1})) == 4
    assert counted(replace(plain, meta={**META, "targets": [1]})) == 5


def test_other_examples_are_other_examples():
    assert counted(released()) == 1
    fresh = np.random.default_rng(5).normal(size=X.shape).astype(np.float32)
    assert counted(other(replace(released(seed=3), inputs=fresh, examples=None))) == 1
    for seed in (8, 9):  # of few models the columns are everybody's
        assert counted(replace(released(seed, models=3), inputs=seed * fresh, examples=None)) == 1


@pytest.mark.parametrize(("share", "uses"), [(0, 1), (40, 1), (41, 2)])
def test_more_than_one_in_twenty_of_the_smaller_set_makes_them_the_same(share, uses):
    small = replace(released(), inputs=None, examples=np.arange(N, dtype=np.uint64))
    large = replace(other(released(seed=3)), inputs=None, examples=np.arange(N, dtype=np.uint64) + np.uint64(N - share))
    assert counted(small) == 1
    assert counted(large) == uses


@pytest.mark.parametrize(("content", "columns", "pairs"), [(50, 0, 0), (0, 975, 0), (0, 0, 500)])
def test_one_more_hash_in_common_than_is_tolerated_makes_two_sets_the_same(content, columns, pairs):
    stored = [np.arange(1000, dtype=np.uint64)] * 3
    for more, same in ((0, False), (1, True)):
        common = [shared + more * (shared > 0) for shared in (content, columns, pairs)]
        new = [np.arange(1000 - few, 2000 - few, dtype=np.uint64) for few in common]
        assert holdout_uses._are_same(stored, new) is same


@pytest.mark.parametrize(("n", "kept"), [(64, 64), (65, 0)])
def test_columns_that_another_target_would_share_by_chance_are_not_kept(n, kept):
    """Of n equal columns two random targets share 1 - 1 / sqrt(pi n): .9295 and .93002, where .93 is tolerated."""
    signals = Signals(np.zeros((2, n), bool), {"l1": np.zeros((2, n))}, meta={"targets": [0]})
    assert len(holdout_uses._matrix(signals, np.ones(n, bool))[0]) == kept
    twice = np.array([[False] * 2 * n, [False] * n + [True] * n])  # n of either kind, by all models but the first
    signals = Signals(twice, {"l1": np.zeros((2, 2 * n))}, meta={"targets": [0]})
    assert len(holdout_uses._matrix(signals, np.ones(2 * n, bool))[0]) == 2 * kept


def test_sums_over_a_release_by_hand():
    maps = np.random.default_rng(0).normal(size=(MODELS, N, 3))
    signals, some = released(values={"maps": maps}, meta={"targets": [1]}), np.arange(N) % 3 > 0
    weight = spread(near(hash_examples(X[some]))) / 2.0**63 - 1  # from -1 to 1
    sums = np.arcsinh(maps[:, some]) @ np.random.RandomState(3).standard_normal(3) @ weight
    scale = np.sqrt(some.sum() * 3)
    members = signals.membership[:, some] @ weight
    by_hand = np.array([sums.sum(), sums @ sums / scale, sums[1], sums @ members / scale]) / scale
    assert holdout_uses.released_sums(signals, some)["maps"] == pytest.approx(by_hand)


@pytest.mark.parametrize(("by", "same"), [(1.9e-5, True), (2.1e-5, False)])
def test_sums_over_a_release_may_differ_by_rounding(by, same):
    one, other = (f'{{"look": [0.0], "l1": [{value!r}]}}' for value in (1.0, 1.0 + by))
    assert holdout_uses._are_one_use(("configuration", other), ("configuration", one)) is same


def test_independent_pools_of_one_size_are_told_apart_by_their_matrices():
    """Also where the references' flips are the same, by one seed: of other targets the columns are others."""
    rng = np.random.default_rng(0)
    for models in (6, 9, 17):
        one, other_ = (rng.random((models, 1200)) < 0.5 for _ in range(2))
        same_flips = np.concatenate([other_[:1], one[1:]])
        files = [Signals(m, {"l1": m * 1.0}, meta={"targets": [0]}) for m in (one, other_, same_flips)]
        columns, pairs = zip(*(holdout_uses._matrix(file, np.ones(1200, bool)) for file in files), strict=True)
        for samples, most in ((columns, 0.96), (pairs, 0.1)):
            kept = [sample_of(sample) for sample in samples]
            assert shared(kept[0], kept[0]) == (1.0 if len(kept[0]) else 0.0)
            assert max(shared(kept[0], s) for s in kept[1:]) < most


POLICIES = ({"fpr": 0.02}, {"claim": "whole"}, {"selection": 0.1}, {"patience": (1,)}, {"max_excess": 0.1})


@pytest.mark.parametrize("change", POLICIES, ids=str)
def test_another_policy_is_another_configuration(change):
    start = replace(POLICY, claim="excess")
    assert counted(released(), start) == 1
    assert counted(released(), replace(start, **change)) == 2


def test_declared_looks_at_more_and_more_models_are_one_use_and_a_second_first_look_is_not():
    looks = [replace(POLICY, looks=3, look=i) for i in (1, 2, 3)]
    assert [counted(released(models=9 + i), look) for i, look in enumerate(looks)] == [1, 1, 1]
    assert counted(released(seed=4, models=9), looks[0]) == 2


def test_every_other_verdict_is_named_with_its_policy_and_its_outcome():
    uses = uses_of(released(), POLICY, ["one"], 0)
    assert uses.record(released(), np.ones(N, bool), "default policy: leak proven") == (1, ())
    softer = uses_of(released(), replace(POLICY, max_tpr=0.4), ["one"], 0)
    number, tried = softer.record(released(), np.ones(N, bool), "max_tpr = 0.4: certified")
    assert number == 2
    assert tried[0].endswith("UTC: default policy: leak proven")
    number, tried = uses.record(released(), np.ones(N, bool), "default policy: leak proven")
    assert (number, len(tried)) == (1, 1)


@pytest.mark.parametrize("name", ["options", "dither"])
def test_what_the_signals_say_about_their_making_is_part_of_the_configuration(name):
    assert counted(released()) == 1
    assert counted(replace(released(), meta={**META, name: "another"})) == 2


def test_another_suite_or_another_seed_is_another_configuration():
    assert counted(released()) == 1
    assert counted(released(), suite=("Threshold on l1", "RMIA on loss")) == 2
    assert counted(released(), seed=1) == 3
    assert counted(released()) == 1


def test_a_native_explanation_that_is_released_counts_too():
    native = replace(released(), meta={"explainer": "Saliency"})
    assert counted(native) == 1
    assert counted(released()) == 2


def test_what_cannot_be_recognised_is_not_counted_whatever_its_population_is_called():
    assert counted(replace(released(), inputs=None, examples=None)) is None
    bare = replace(released(), inputs=None, examples=None, meta={})
    with pytest.raises(InputError, match="hashes of examples, got neither"):
        Uses(default_path(), "one").record(bare, np.ones(N, bool))


def test_a_file_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAFEXPLAIN_USES", str(tmp_path / "file" / "uses.sqlite"))
    with pytest.warns(UsesWarning, match="this verdict is not counted"):
        assert counted(released()) is None
    with pytest.raises(InputError, match="SAFEXPLAIN_USES"):
        Uses(default_path(), "one").record(released(), np.ones(N, bool))


def test_a_set_is_kept_once_and_a_large_one_as_a_sample(store):
    for i in range(20):
        assert counted(other(released(), hardening=str(i))) == i + 1
    with sqlite3.connect(store) as kept:
        assert kept.execute("SELECT COUNT(*), SUM(LENGTH(content)) FROM holdouts").fetchone() == (1, 8 * N)
    cut, beyond = np.arange(MOST_HASHES, dtype=np.uint64), np.array([MOST_HASHES - 1, 2 * MOST_HASHES], np.uint64)
    assert shared(cut, beyond) == shared(beyond, cut) == 1.0  # compared up to the last of the sample
    many = np.arange(3 * MOST_HASHES, dtype=np.uint64)
    assert len(sample_of(many)) == MOST_HASHES
    for share in (0.0, 0.02, 0.1, 0.5, 1.0):
        moved = many + np.uint64(int((1 - share) * len(many)))
        assert shared(sample_of(many), sample_of(moved)) == pytest.approx(share, abs=0.01)
        few = moved[::50]  # a small set beside a large one
        assert shared(sample_of(few), sample_of(many)) == pytest.approx(share, abs=0.04)


def test_two_threads_at_once_count_every_use():
    """As two processes, in a moment: each use has a connection of its own to the file."""

    def look(name):
        return [counted(other(released(), hardening=f"{name} {i}")) for i in range(5)]

    with ThreadPoolExecutor(2) as pool:
        counts = [count for found in pool.map(look, "ab") for count in found]
    assert sorted(counts) == list(range(1, 11))
