"""Signals: the numbers an attacker would see, and the file that holds them."""

import json

import numpy as np
import pytest

from safexplain.audit import Signals
from safexplain.audit.signals import hash_examples, near
from safexplain.errors import InputError

RNG = np.random.default_rng(0)
MEMBER = RNG.random((3, 40)) < 0.5
L1 = RNG.random((3, 40))
MAPS = RNG.normal(size=(3, 40, 5)).astype(np.float32)
INPUTS = RNG.normal(size=(40, 2, 3)).astype(np.float32)
TRAINED = np.array([[True], [False], [True]]) & MEMBER  # the second model was trained on nothing
OPTIONAL = ("attributions", "inputs", "out_of_distribution", "groups", "examples")
HASHES = hash_examples(INPUTS)
GROUPS = np.arange(40) // 4
REGION = np.array(["north", "south"])[np.arange(40) % 2]
OUTSIDE = np.arange(40) >= 30
INSIDE = MEMBER & ~OUTSIDE


def signals(**changes):
    return Signals(**{"membership": MEMBER, "values": {"l1": L1, "loss": L1 * 2}, "attributions": MAPS, **changes})


def same(a, b):
    assert np.array_equal(a.membership, b.membership)
    assert a.values.keys() == b.values.keys()
    assert all(np.array_equal(a.values[k], b.values[k]) and a.values[k].dtype == b.values[k].dtype for k in a.values)
    for name in OPTIONAL:
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        assert one is None or (np.array_equal(one, other) and one.dtype == other.dtype), name
    assert a.slices.keys() == b.slices.keys()
    assert all(np.array_equal(a.slices[k], b.slices[k]) for k in a.slices)
    assert dict(a.meta) == dict(b.meta)


@pytest.mark.parametrize(
    "case",
    [
        signals(values={}),
        signals(values={"l1": L1.astype(np.float32), "label": (9 * L1).astype(int)}, attributions=None),
        signals(values={"l1": L1, "class_l1": np.stack([L1, -L1], axis=2)}),
        signals(membership=INSIDE, out_of_distribution=OUTSIDE, inputs=INPUTS[:, 0]),
        signals(
            membership=TRAINED,
            meta={"null": [1], "shape": [1, 5], "explainer": "Sali\u00e9ncy", "data": {"a": [1, None, 0.5]}},
        ),
        signals(groups=GROUPS.astype(np.int16), slices={"a b": np.array(["\u00e9"] * 40)}, inputs=INPUTS),
        signals(values={"l1@5": L1, "kept@5": L1, "shares@5": np.stack([L1, 1 - L1], 2), "attributions@5": MAPS}),
    ],
)
def test_signals_survive_their_file(tmp_path, case):
    path = tmp_path / "signals.npz"
    case.save(path)
    same(Signals.load(path), case)
    assert Signals.load(str(path)).targets == case.targets
    assert [p.name for p in tmp_path.iterdir()] == ["signals.npz"]


def test_the_file_is_the_documented_one(tmp_path):
    path = tmp_path / "signals.npz"
    signals(meta={"targets": [1]}).save(path)
    with np.load(path, allow_pickle=False) as file:
        assert set(file.files) == {"membership", "l1", "loss", "attributions", "meta"}
        assert file["membership"].dtype == np.bool_
        assert json.loads(str(file["meta"])) == {"targets": [1]}
    signals(membership=INSIDE, inputs=INPUTS, out_of_distribution=OUTSIDE).save(path)
    with np.load(path, allow_pickle=False) as file:
        assert set(file.files) == {"membership", "l1", "loss", "meta", *OPTIONAL} - {"groups"}
        assert file["out_of_distribution"].dtype == np.bool_
        assert np.array_equal(file["examples"], HASHES)
    signals(groups=GROUPS, slices={"region": REGION}).save(path)
    with np.load(path, allow_pickle=False) as file:
        assert set(file.files) == {"membership", "l1", "loss", "meta", "attributions", "groups", "slice_region"}
        assert np.array_equal(file["slice_region"], REGION)


def test_a_file_of_another_pipeline_is_read(tmp_path):
    path = tmp_path / "signals.npz"
    np.savez(path, membership=MEMBER.astype(np.uint8), my_signal=L1.astype(np.float32))
    found = Signals.load(path)
    assert found.membership.dtype == np.bool_
    assert list(found.values) == ["my_signal"]
    assert found.targets == (0, 1, 2)
    assert len(found) == 40
    np.savez(path, membership=INSIDE, l1=L1, out_of_distribution=OUTSIDE.astype(float))
    assert np.array_equal(Signals.load(path).out_of_distribution, OUTSIDE)
    np.savez(path, membership=MEMBER, l1=L1, meta=np.array("made by hand"))
    assert Signals.load(path).meta == {"note": "made by hand"}


def test_pickled_arrays_are_refused_and_do_not_run(tmp_path):
    proof = tmp_path / "it ran"

    class Payload:
        def __reduce__(self):
            return open, (str(proof), "w")

    path = tmp_path / "signals.npz"
    for name in ("membership", "l1", "meta", "inputs", "out_of_distribution"):
        arrays = {"membership": MEMBER, "l1": L1, name: np.array([Payload()], dtype=object)}
        np.savez(path, **arrays)
        with pytest.raises(InputError, match="of plain arrays"):
            Signals.load(path)
        assert not proof.exists()
        with np.load(path, allow_pickle=True) as file:
            _ = file[name]
        assert proof.exists()  # the payload is a working one
        proof.unlink()


def test_a_file_that_is_none_is_refused_in_one_line(tmp_path):
    path = tmp_path / "signals.npz"
    with pytest.raises(InputError, match="no such file"):
        Signals.load(path)
    np.savez(path, l1=L1)
    with pytest.raises(InputError, match=r"expected an array 'membership'.*got \['l1'\]"):
        Signals.load(path)
    np.savez(path, membership=MEMBER, l1=L1, meta=np.array("[1]"))
    with pytest.raises(InputError, match="meta: expected a JSON object"):
        Signals.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"membership": MEMBER * 1}, "membership: expected bool"),
        ({"values": {"l1": L1[:2]}}, r"'l1': expected numbers of shape \(3, 40\)"),
        *(({"values": {name: L1}}, f"{name}: this name is reserved") for name in ("meta", "slice_region", "file")),
        ({"values": {"label": L1}}, "label: expected predicted classes, integers"),
        ({"values": {"l1": np.where(L1[0, 0] == L1, np.inf, L1)}}, "'l1' has 1 NaN or infinite"),
        ({"attributions": MAPS[..., 0]}, "attributions: expected floats"),
        ({"attributions": np.where(MAPS > 2, np.nan, MAPS)}, "attributions have NaN"),
        ({"values": {}, "attributions": None}, "expected signals such as l1, .* got none"),
        ({"inputs": INPUTS[:30]}, r"inputs: expected floats of shape \(40, ...\)"),
        ({"inputs": np.where(INPUTS > 2, np.inf, INPUTS)}, "inputs have NaN"),
        ({"out_of_distribution": OUTSIDE[:30]}, r"out_of_distribution: expected bool of shape \(40,\)"),
        ({"out_of_distribution": OUTSIDE}, "expected no member out of distribution"),
        ({"meta": {"null": [1]}}, r"expected null models without members, but models \[1\]"),
        ({"meta": {"null": [3]}, "membership": TRAINED}, r"meta\['null'\]: expected models 0 .. 2"),
        ({"meta": {"null": [0, 1, 2]}, "membership": MEMBER & False}, "got null models only"),
        ({"meta": {"shape": [2, 3]}}, r"shape of 5 numbers, as of attributions, got \[2, 3\]"),
        ({"meta": {"shape": [-5, -1]}}, "list of positive sizes"),
        ({"meta": {"targets": []}}, "models 0 .. 2"),
        ({"meta": {"targets": "all"}}, "expected a list of models"),
        *(({"values": {name: L1}}, "expected NAME@L with L queries") for name in ("l1@1", "@5", "l1@05", "l1@5@5")),
        ({"values": {"inputs@5": L1}}, "inputs@5: inputs has no level"),
        ({"values": {"kept@5": L1 + 0.5}}, r"kept@5: expected shares of queries in \[0, 1\]"),
        ({"values": {"kept@5": MAPS}}, r"kept@5: expected numbers of shape \(models, examples\)"),
        ({"values": {"shares@5": L1}}, r"shares@5: expected numbers of shape \(models, examples, classes\)"),
        ({"values": {"attributions@5": MAPS[..., :4]}}, r"attributions@5: expected floats .*examples, 5\)"),
        ({"groups": GROUPS[:30]}, r"groups: expected integers of shape \(40,\)"),
        ({"slices": {"region": REGION[:30]}}, r"slice 'region': expected integers or short texts of shape \(40,\)"),
        ({"slices": {"": REGION}}, "slice '': expected integers"),
        ({"slices": {"story": np.array(["a" * 201] * 40)}}, "a text of 201 characters"),
        ({"examples": HASHES[:30]}, r"examples: expected hashes, uint64 of shape \(40,\)"),
    ],
    ids=lambda case: case if isinstance(case, str) else "+".join(case),
)
def test_signals_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        signals(**changes)


def test_null_models_are_neither_targets_nor_references():
    found = signals(membership=TRAINED, meta={"null": [1]})
    assert found.null == (1,)
    assert found.models == found.targets == (0, 2)
    assert found.references(0) == (2,)
    assert found.references(1) == (0, 2)
    assert signals(membership=TRAINED, meta={"null": [1], "targets": [2]}).targets == (2,)


def test_the_shape_of_a_map_is_kept():
    assert signals(meta={"shape": [1, 5]}).shape == (1, 5)
    assert signals().shape is None
    assert signals(attributions=None, meta={"shape": [3, 32, 32]}).shape == (3, 32, 32)
    assert signals(attributions=MAPS[..., :1], meta={"shape": []}).shape == ()


def test_near_duplicates_have_one_hash_whatever_their_spelling_and_others_do_not():
    zeros = np.zeros((2, 3), np.float32)
    zeros[1] *= -1
    assert np.signbit(zeros[1]).all()
    a, b = hash_examples(zeros)
    assert a == b
    assert np.array_equal(hash_examples(INPUTS.astype(float)), HASHES)
    assert np.array_equal(hash_examples(INPUTS.reshape(40, 6)), HASHES)
    order = RNG.permutation(40)
    assert np.array_equal(hash_examples(INPUTS[order]), HASHES[order])
    assert len(np.unique(HASHES)) == 40
    many = RNG.normal(size=(2000, 30))
    for other in (many * (1 + 3e-7), many * (1 + 1e-4 * RNG.normal(size=many.shape)), many.astype(np.float32)):
        assert (near(hash_examples(other)) == near(hash_examples(many))).mean() > 0.85
    far = many + 0.1 * RNG.normal(size=many.shape)
    assert not np.isin(near(hash_examples(far)), near(hash_examples(many))).any()
    assert len(np.unique(near(hash_examples(many)))) == 2000
    close = np.repeat(many[:100], 2, 0) + 1e-6 * np.arange(200)[:, None] % 2e-6
    assert len(np.unique(near(hash_examples(close)))) < 110
    assert len(np.unique(hash_examples(close))) == 200  # near-duplicates, and no copies
    many = np.arange(3000, dtype=np.float32)[:, None]  # more than one block
    assert np.array_equal(hash_examples(many)[1500:], hash_examples(many[1500:]))
    assert hash_examples(np.zeros((0, 3))).shape == (0,)


def test_hashes_come_from_the_inputs_unless_they_are_given():
    assert np.array_equal(signals(inputs=INPUTS).examples, HASHES)
    assert np.array_equal(signals(inputs=INPUTS, examples=HASHES + 1).examples, HASHES + 1)
    assert signals().examples is None


@pytest.mark.parametrize(("name", "shape"), [("predictions", (4,)), ("predictions@2", (5,))])
def test_predictions_of_several_queries_are_as_many_for_each(name, shape):
    with pytest.raises(
        InputError, match=rf"{name}: expected predictions@L of shape \(models, examples, L \* classes\)"
    ):
        signals(values={name: np.zeros((3, 40, *shape))})
    signals(values={"predictions@2": np.zeros((3, 40, 6)), "prediction": np.zeros((3, 40, 3))})
