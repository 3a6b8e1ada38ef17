"""Promises of the search for the property that carries a leak."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from safexplain.audit.attacks import LikelihoodRatio
from safexplain.audit.controls.splits import Splits
from safexplain.audit.report.root_cause import (
    MIN_EXAMPLES,
    VERSIONS,
    Ablation,
    draw_targets,
    root_cause,
    sample,
    sentence,
)
from safexplain.audit.signals import Signals
from safexplain.errors import InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc

MODELS, EXAMPLES, FEATURES = 17, 600, 40
TOP = FEATURES // 10


@cache
def planted(leak):
    """Maps in which members differ from non-members by one property only, or by nothing."""
    rng = np.random.default_rng(0)
    shape = (MODELS, EXAMPLES, FEATURES)
    member = rng.random(shape[:2]) < 0.5
    there = member[..., None]
    maps = rng.normal(size=shape[1:]) + 0.3 * rng.normal(size=shape)
    size = np.exp(rng.normal(0, 0.3, shape[:2]))
    if leak == "norm":
        size *= np.exp(-0.5 * member)
    if leak == "signs":
        usual = np.sign(rng.normal(size=shape[1:]))
        maps = np.abs(maps) * np.where(rng.random(shape) < np.where(there, 0.64, 0.5), usual, -usual)
    if leak == "strongest":
        usual, moved = (np.sign(rng.normal(size=(EXAMPLES, TOP))) for _ in range(2))
        maps[..., :TOP] = 4 * usual + 0.5 * rng.normal(size=(*shape[:2], TOP)) + 0.35 * moved * there
        size = np.ones_like(size)
    maps = (maps * size[..., None]).astype(np.float32)
    return Signals(member, {"l1": np.abs(maps).sum(-1, dtype=np.float64), "label": member * 0.0}, maps)


@cache
def found(leak):
    return root_cause(planted(leak), fpr=0.05)


def named(leak):
    return {a.name: a for a in found(leak)}


@pytest.mark.parametrize(
    ("leak", "start"),
    [
        ("norm", "The norm carries the leak: "),
        ("signs", "The signs carry the leak: "),
        ("strongest", "The strongest 10% of the coordinates carry the leak: "),
        ("nothing", "Nothing to explain: "),
    ],
)
def test_a_planted_leak_is_named(leak, start):
    assert sentence(found(leak)).startswith(start)


def test_a_property_that_hides_in_the_whole_map_is_still_reported():
    base = Ablation("whole map", "", 0.5, 0.46, 0.54, 0.05, 0.02, 0.1, 0.05)
    hidden = replace(base, name="signs alone", auc=0.7, auc_low=0.65, auc_high=0.75, kind="alone", of="signs")
    assert sentence([base, hidden]).startswith("The attacks on the whole native map are at chance (AUC 0.50), but")
    barely = replace(hidden, auc=0.545, auc_low=0.502, auc_high=0.587)
    tried = [replace(barely, name=str(i), of="ranks", auc=0.5, auc_low=0.46, auc_high=0.54) for i in range(9)]
    assert sentence([base, barely, *tried]).startswith("Nothing to explain")  # one of ten is above 1/2 by luck
    assert not sentence([base, barely]).startswith("Nothing to explain")


def test_without_a_single_carrier_the_best_of_both_kinds_are_named():
    whole = Ablation("whole map", "", 0.8, 0.75, 0.85, 0.3, 0.2, 0.4, 0.05)
    kept = replace(whole, name="norm alone", auc=0.6, auc_low=0.55, auc_high=0.65, kind="alone", of="norm")
    lost = replace(whole, name="signs removed", auc=0.72, kind="removed", of="signs")
    spare = replace(whole, name="norm removed", auc=0.78, kind="removed", of="norm")
    text = sentence([whole, kept, lost, spare])
    assert text.startswith("No single property carries the leak: alone, the norm has the highest AUC")
    assert text.endswith("removing the signs costs most (AUC 0.72).")
    assert sentence([whole, kept]).startswith("Whole maps were not stored")
    assert sentence([]) == ""


def test_the_numbers_are_those_of_the_attack_on_the_transformed_maps():
    signals = replace(planted("norm"), meta={"targets": [3]})
    rows = {a.name: a for a in root_cause(signals, fpr=0.05)}
    maps = np.asarray(signals.attributions, dtype=np.float64)
    others = np.array([i for i in range(MODELS) if i != 3])
    strongest = np.argsort(-np.abs(maps[others]).mean(0), axis=1)[:, :TOP]
    assert set(strongest.ravel()) != set(range(TOP))
    without = np.stack([np.delete(maps[:, i], strongest[i], axis=1) for i in range(EXAMPLES)], axis=1)
    rms = np.sqrt((maps**2).mean(-1, keepdims=True))
    versions = {
        "L1 norm": np.abs(maps).sum(-1),
        "whole map": maps,
        "norm alone": np.abs(maps).sum(-1),
        "variance alone": maps.var(-1),
        "signs alone": np.sign(maps),
        "magnitudes alone": np.abs(maps) / rms,
        "ranks alone": np.argsort(np.argsort(maps, -1), -1) / (FEATURES - 1),
        "sparsity alone": np.abs(maps).mean(-1) / rms[..., 0],
        "strongest 10% alone": np.stack([maps[:, i, np.sort(strongest[i])] for i in range(EXAMPLES)], axis=1),
        "norm removed": maps / rms,
        "signs removed": np.abs(maps),
        "magnitudes removed": np.sign(maps) * rms,
        "strongest 10% removed": without,
    }
    assert list(versions) == [v.name for v in VERSIONS] == list(rows)
    for name, values in versions.items():
        scores = LikelihoodRatio()(values[3], values[others], signals.membership[others])
        assert rows[name].auc == pytest.approx(roc(scores, signals.membership[3]).auc, abs=2e-4), name


def test_rows_and_targets_are_kept_to():
    signals = planted("norm")
    target = draw_targets(replace(signals, meta={"targets": [0, 1, 2]}), 5)
    half = np.arange(EXAMPLES) < EXAMPLES // 2
    other = np.asarray(signals.attributions).copy()
    other[:, ~half] = np.random.default_rng(1).normal(size=other[:, ~half].shape)
    changed = replace(signals, attributions=other)
    assert root_cause(signals, rows=half, target=target) == root_cause(changed, rows=half, target=target)
    assert root_cause(signals, rows=half, target=target) != root_cause(signals, rows=~half, target=target)


def test_maps_of_zeros_and_of_one_number_are_no_error():
    signals = planted("norm")
    zeros = np.asarray(signals.attributions).copy()
    zeros[:, ::3] = 0
    zeros[1] = 0
    assert all(
        np.isfinite([a.auc, a.auc_low, a.tpr_high]).all() for a in root_cause(replace(signals, attributions=zeros))
    )
    one = root_cause(Signals(signals.membership, {}, zeros[..., :1]))
    assert not [a for a in one if a.of == "strongest"]


def test_scalars_stand_in_where_no_maps_are_stored():
    bare = replace(planted("norm"), attributions=None)
    rows = root_cause(bare, fpr=0.05)
    assert [a.name for a in rows] == ["L1 norm", "norm alone"]
    assert rows[0].auc == pytest.approx(named("norm")["L1 norm"].auc, abs=1e-6)
    assert sentence(rows).startswith("Whole maps were not stored, so no property could be removed; ")


def test_too_few_references_give_nothing_and_one_sided_rows_are_refused():
    signals = planted("norm")
    maps = np.asarray(signals.attributions)
    assert root_cause(Signals(signals.membership[:2], {}, maps[:2])) == ()
    target = draw_targets(signals, 0)
    member = signals.membership[target, np.arange(EXAMPLES)]
    with pytest.raises(InputError, match="need both"):
        root_cause(signals, rows=member, target=target)


def test_examples_of_the_verdict_are_left_alone_where_others_are_enough():
    signals, policy = planted("norm"), Policy(selection=0.3, training=0.2)
    rows, says = sample(signals, policy)
    assert not (rows & certified(signals, policy)).any()
    assert rows.sum() > 2 * MIN_EXAMPLES
    assert "outside the certification split." in says


def certified(signals, policy):
    return Splits.of(signals, policy, trains=True).certification


def test_too_few_other_examples_are_not_enough_and_that_is_said():
    signals = planted("norm")
    rows, says = sample(signals, Policy(training=0.1))
    assert rows.all()
    assert "including those of the verdict" in says
    rows, _ = sample(signals, Policy(training=0.4), trains=False)  # nothing was trained, so all were certified on
    assert rows.all()
