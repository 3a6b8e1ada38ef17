"""Signals: the numbers an attacker would see, and the file that holds them."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import EstimatorModule, Population, Shadows, Signals, collect_signals, side_by_side
from safexplain.errors import InputError

RNG = np.random.default_rng(0)
MEMBER = RNG.random((3, 40)) < 0.5
L1 = RNG.random((3, 40))
MAPS = RNG.normal(size=(3, 40, 5)).astype(np.float32)


def signals(**changes):
    return Signals(**{"membership": MEMBER, "values": {"l1": L1, "loss": L1 * 2}, "attributions": MAPS, **changes})


def same(a, b):
    assert np.array_equal(a.membership, b.membership)
    assert a.values.keys() == b.values.keys()
    assert all(np.array_equal(a.values[k], b.values[k]) and a.values[k].dtype == b.values[k].dtype for k in a.values)
    assert (a.attributions is None) == (b.attributions is None)
    assert a.attributions is None or np.array_equal(a.attributions, b.attributions)
    assert dict(a.meta) == dict(b.meta)


# ------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize(
    "case",
    [
        signals(),
        signals(attributions=None),
        signals(values={}),
        signals(values={"l1": L1.astype(np.float32), "label": (9 * L1).astype(int)}),
        signals(meta={"targets": [0, 2], "explainer": "Sali\u00e9ncy", "nested": {"a": [1, None, 0.5]}}),
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


def test_a_file_of_another_pipeline_is_read(tmp_path):
    path = tmp_path / "signals.npz"
    np.savez(path, membership=MEMBER.astype(np.uint8), my_signal=L1.astype(np.float32))
    found = Signals.load(path)
    assert found.membership.dtype == np.bool_
    assert list(found.values) == ["my_signal"]
    assert found.targets == (0, 1, 2)
    assert found.examples == 40
    np.savez(path, membership=MEMBER, l1=L1, meta=np.array("made by hand"))
    assert Signals.load(path).meta == {"note": "made by hand"}


def test_pickled_arrays_are_refused_and_do_not_run(tmp_path):
    proof = tmp_path / "it ran"

    class Payload:
        def __reduce__(self):
            return open, (str(proof), "w")

    path = tmp_path / "signals.npz"
    for name in ("membership", "l1", "meta"):
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
    with pytest.raises(InputError, match="not a readable"):
        Signals.load(tmp_path)
    for content in (b"", b"text", b"PK\x03\x04 not really"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable"):
            Signals.load(path)
    np.save(tmp_path / "one.npy", L1)
    with pytest.raises(InputError, match="single array"):
        Signals.load(tmp_path / "one.npy")
    np.savez(path, l1=L1)
    with pytest.raises(InputError, match=r"no array 'membership'.*found \['l1'\]"):
        Signals.load(path)
    np.savez(path, membership=MEMBER, l1=L1, meta=np.array("[1]"))
    with pytest.raises(InputError, match="meta must be a JSON object"):
        Signals.load(path)


def test_a_damaged_file_is_refused_or_still_right(tmp_path):
    path = tmp_path / "signals.npz"
    signals().save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged[: rng.integers(len(whole))] if rng.random() < 0.1 else damaged)
        try:
            found = Signals.load(path)
        except InputError:
            refused += 1
        else:
            assert np.array_equal(found.membership, MEMBER)
    assert refused > 200


def test_a_header_that_asks_for_all_memory_is_refused(tmp_path):
    path = tmp_path / "signals.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000000, 9), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("membership.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(InputError, match="not a readable"):
        Signals.load(path)


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        signals().save(tmp_path / "missing" / "signals.npz")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "signals.npz"
    signals().save(path)

    def full(partial, **arrays):
        partial.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(InputError, match="No space left"):
        signals(values={"l2": L1}).save(path)
    same(Signals.load(path), signals())
    assert [p.name for p in tmp_path.iterdir()] == ["signals.npz"]


# ---------------------------------------------------------------------------------------------------- the checks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"membership": MEMBER * 1}, "membership must be bool"),
        ({"membership": MEMBER[0]}, "membership must be bool"),
        ({"values": {"l1": L1[:2]}}, r"'l1' must be numbers of shape \(3, 40\)"),
        ({"values": {"l1": L1[..., None]}}, "'l1' must be numbers"),
        ({"values": {"l1": L1 * 1j}}, "'l1' must be numbers"),
        ({"values": {"l1": L1.astype(str)}}, "'l1' must be numbers"),
        ({"values": {"l1": np.where(L1 > 0.9, np.nan, L1)}}, "'l1' has .* NaN or infinite"),
        ({"values": {"l1": np.where(L1[0, 0] == L1, np.inf, L1)}}, "'l1' has 1 NaN or infinite"),
        ({"attributions": MAPS[..., 0]}, "attributions must be floats"),
        ({"attributions": MAPS[:, :9]}, "attributions must be floats"),
        ({"attributions": MAPS.astype(int)}, "attributions must be floats"),
        ({"attributions": np.where(MAPS > 2, np.nan, MAPS)}, "attributions have NaN"),
        ({"values": {}, "attributions": None}, "no signal to attack"),
        ({"meta": {"targets": [3]}}, "models 0 .. 2"),
        ({"meta": {"targets": [-1]}}, "models 0 .. 2"),
        ({"meta": {"targets": []}}, "models 0 .. 2"),
        ({"meta": {"targets": "all"}}, "must be a list of models"),
        ({"meta": {"targets": 5}}, "must be a list of models"),
        ({"meta": {"targets": [None]}}, "must be a list of models"),
    ],
    ids=str,
)
def test_signals_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        signals(**changes)


# ---------------------------------------------------------------------------------------------------- collecting


class Linear(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)))

    def forward(self, x):
        return x.flatten(1) @ self.weight


POOL = Population(torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(9)), torch.arange(40) % 3)
SHADOWS = Shadows(tuple(Linear(s) for s in range(3)), MEMBER)


def explain(model, x, target):
    assert x.dtype == torch.float32
    return x * model.weight.T[target].reshape(x.shape)


@pytest.mark.parametrize("batch_size", [1, 7, 40, 256])
def test_the_signals_are_what_numpy_makes_of_the_explanations(batch_size):
    found = collect_signals(SHADOWS, POOL, explain, batch_size=batch_size)
    assert np.array_equal(found.membership, MEMBER)
    for i, model in enumerate(SHADOWS.models):
        w, x = model.weight.detach().double().numpy(), POOL.x.double().numpy().reshape(40, 6)
        logits = x @ w
        label = logits.argmax(1)
        maps = x * w.T[label]
        loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(40), POOL.y]
        expected = {
            "l1": np.abs(maps).sum(1),
            "l2": np.sqrt((maps**2).sum(1)),
            "variance": ((maps - maps.mean(1, keepdims=True)) ** 2).mean(1),
            "label": label,
            "loss": loss,
        }
        assert found.values.keys() == expected.keys()
        for name, values in expected.items():
            assert np.allclose(found.values[name][i], values, rtol=1e-4, atol=1e-6), name
        assert np.allclose(found.attributions[i], maps, rtol=1e-5, atol=1e-6)


def test_one_number_for_each_example_is_an_explanation_too():
    found = collect_signals(SHADOWS, POOL, lambda model, x, target: x.flatten(1)[:, 0])
    assert found.attributions.shape == (3, 40, 1)
    assert np.allclose(found.values["l1"][0], POOL.x[:, 0, 0].abs())


def test_the_predicted_class_is_explained_and_not_the_label():
    asked = []
    collect_signals(SHADOWS, POOL, lambda model, x, target: (asked.append(target), x)[1])
    predicted = torch.stack([m(POOL.x).argmax(1) for m in SHADOWS.models])
    assert torch.equal(torch.cat(asked).reshape(3, 40), predicted)
    assert not torch.equal(predicted[0], POOL.y)


def test_probabilities_are_not_taken_for_logits():
    class Fixed:
        classes_ = np.arange(3)

        def predict_proba(self, x):
            return np.tile([0.5, 0.3, 0.2], (len(x), 1))

    models = Shadows((EstimatorModule(Fixed(), 3),), MEMBER[:1])
    found = collect_signals(models, POOL, lambda model, x, target: x)
    expected = -np.log(np.array([0.5, 0.3, 0.2]))[POOL.y]
    assert np.allclose(found.values["loss"][0], expected, atol=1e-6)


def test_maps_can_be_left_out_and_targets_and_meta_are_kept():
    seen = []
    found = collect_signals(
        SHADOWS,
        POOL,
        explain,
        batch_size=15,
        keep_attributions=False,
        targets=(0,),
        meta={"explainer": "x"},
        progress=lambda *call: seen.append(call),
    )
    assert found.attributions is None
    assert found.meta == {"explainer": "x", "targets": [0]}
    assert found.targets == (0,)
    assert len(seen) == 9
    assert seen[-1] == ("explaining", 120, 120)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x, t: x[:3], "must be finite, of shape"),
        (lambda m, x, t: x / 0, "must be finite, of shape"),
        (lambda m, x, t: x.log(), "must be finite, of shape"),
    ],
)
def test_explanations_that_cannot_be_attacked_are_refused(function, message):
    with pytest.raises(InputError, match=message):
        collect_signals(SHADOWS, POOL, function)


@pytest.mark.parametrize("spoil", [lambda out: out / 0, lambda out: out[:, :1], lambda out: out[..., None]])
def test_models_whose_outputs_are_no_logits_are_refused(spoil):
    class Spoilt(Linear):
        def forward(self, x):
            return spoil(super().forward(x))

    with pytest.raises(InputError, match="finite outputs of shape"):
        collect_signals(Shadows((Spoilt(0),), MEMBER[:1]), POOL, lambda model, x, target: x)


# --------------------------------------------------------------------------------------------------- side by side


def test_audits_of_disjoint_pools_stand_side_by_side():
    other = signals(
        membership=~MEMBER[:, :10], values={"l1": L1[:, :10] + 1, "loss": L1[:, :10]}, attributions=MAPS[:, 5:15]
    )
    together = side_by_side([signals(meta={"targets": [0]}), Signals(**{**vars(other), "meta": {"targets": [0]}})])
    assert together.examples == 50
    assert together.targets == (0,)
    assert np.array_equal(together.membership, np.hstack([MEMBER, ~MEMBER[:, :10]]))
    assert np.array_equal(together.values["l1"], np.hstack([L1, L1[:, :10] + 1]))
    assert np.array_equal(together.attributions[:, 40:], MAPS[:, 5:15])
    assert side_by_side([signals(attributions=None)] * 2).attributions is None


@pytest.mark.parametrize(
    "other",
    [
        signals(membership=MEMBER[:2], values={"l1": L1[:2], "loss": L1[:2]}, attributions=MAPS[:2]),
        signals(values={"l1": L1}),
        signals(values={"l1": L1, "l2": L1}),
        signals(attributions=None),
        signals(attributions=MAPS[..., :4]),
        signals(meta={"targets": [0]}),
    ],
)
def test_audits_that_differ_do_not_stand_side_by_side(other):
    with pytest.raises(InputError, match="side by side"):
        side_by_side([signals(), other])
