"""Clip, mask, noise, grid and the person's columns: what leaves, and what must not be readable from it."""

import json
import math
import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hardening_oracle import slow_format, slow_normal, slow_rank, slow_words
from hypothesis import given, settings
from hypothesis import strategies as st

import safexplain
from safexplain import Features
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, ProhibitedReasonError
from safexplain.hardening.clips import (
    Levels,
    NormClip,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    TopKSet,
    UnitNorm,
)
from safexplain.hardening.features import Reason
from safexplain.hardening.hardening import CHUNK, Hardening
from safexplain.hardening.noise import GaussianNoise, query_seeds
from safexplain.outputs import Probability

KEY = b"a secret of thirty-two bytes...."
CLIPS = (
    None,
    RangeClip(-0.5, 0.8),
    NormClip(1.5),
    UnitNorm(2.0),
    RankNorm(2.0, 1.2),
    RankNorm(2.0, 1.2, balanced_from=5),
    TopKSet(k=3),
    Levels(2),
)
MASKS = (None, ThresholdMask(0.3), TopKMask(0.4))
NOISES = (None, GaussianNoise(0.1, key=KEY), GaussianNoise(0.0, key=KEY))
EVERY_PAIR = [
    Hardening(clip, mask, NOISES[(i + j) % len(NOISES)]) for i, clip in enumerate(CLIPS) for j, mask in enumerate(MASKS)
]
"""Every two slots in every combination."""
SOME = [
    Hardening(CLIPS[2], MASKS[1], NOISES[1]),
    Hardening(CLIPS[5], MASKS[2], NOISES[2]),
    Hardening(CLIPS[6]),
]
"""One of each kind of clip, mask and noise."""
some = pytest.mark.parametrize("hardening", SOME, ids=repr)


@pytest.fixture(autouse=True)
def key_in_environment(monkeypatch):
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "the environment's own secret key")


def batch(n=6, d=10, seed=0, dtype=torch.float64):
    """Maps with ties, zeros, a zero row, rows of one sign with zeros, and inputs."""
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(n, d, dtype=torch.float64, generator=g).to(dtype)
    a[0] = 0
    a[1, ::2] = 0
    a[2, :4] = 0.75
    a[2, 4:6] = -0.75
    a[3, 1:] = a[3, 0].abs()
    a[-2] = a[-2].abs()
    a[-1] = -a[-1].abs()
    a[-2:, :3] = 0
    return a, torch.randn(n, 3, generator=g)


def slow_fill(row, seed, *, every_zero):
    """Random numbers below all others in place of zeros, of the others' sign where these share one."""
    if not (every_zero or not any(row)):
        return row
    if not every_zero:
        return slow_normal(seed, len(row), b"direction")
    drawn = slow_words(seed, len(row), b"direction")
    smallest = min((abs(v) for v in row if v), default=1.0)
    sign = {frozenset({True}): 1, frozenset({False}): -1}.get(frozenset(v > 0 for v in row if v))
    drawn = [sign * (w & 2**31 - 1 | 1) if sign else w | 1 for w in drawn]
    return [v if v else w * smallest / 2**35 for v, w in zip(row, drawn, strict=True)]


def slow_clip(clip, row, seed):
    match clip:
        case RangeClip(low, high):
            return [min(max(v, low), high) for v in row]
        case NormClip(limit):
            size = math.sqrt(sum(v * v for v in row))
            return [v * limit / size if size > limit else v for v in row]
        case UnitNorm(norm):
            row = slow_fill(row, seed, every_zero=False) if seed else row
            size = math.sqrt(sum(v * v for v in row))
            return [v * norm / size if size else 0.0 for v in row]
        case RankNorm():
            return slow_rank(clip, slow_fill(row, seed, every_zero=True) if seed else row)
        case TopKSet() | Levels():
            return slow_format(clip, row)
    return row


def slow_mask(mask, row):
    match mask:
        case ThresholdMask(threshold):
            return [v if abs(v) >= threshold else 0.0 for v in row]
        case TopKMask(fraction):
            k = max(1, round(fraction * len(row)))
            kept = sorted(range(len(row)), key=lambda j: (-round(abs(row[j]), 12), j))[:k]
            return [v if j in kept else 0.0 for j, v in enumerate(row)]
    return row


def slow_harden(h, row, seed):
    row = slow_clip(h.clip, list(row), seed)
    row = slow_mask(h.mask, row)
    std = 0.0 if h.noise is None else h.noise.std
    if std:
        row = [v + std * n for v, n in zip(row, slow_normal(seed, len(row)), strict=True)]
    step = h.grid
    if step is None and std:
        step = 2.0 ** math.floor(math.log2(std / 16))
    return row if step is None else [round(v / step) * step for v in row]


@pytest.mark.parametrize("clip", CLIPS, ids=repr)
def test_the_order_is_clip_then_mask_then_noise_then_grid(clip):
    a, x = batch()
    query = {"inputs": x, "target": 3, "model_digest": b"model", "method": "Saliency"}
    for slots, grid in product([one for one in EVERY_PAIR if one.clip == clip], (None, 0.0625)):
        hardening = replace(slots, grid=grid)
        seeds = query_seeds(KEY, **query, configuration=hardening.to_json()) if hardening.noise else [None] * len(a)
        expected = [slow_harden(hardening, row, seed) for row, seed in zip(a.tolist(), seeds, strict=True)]
        assert np.allclose(hardening(a, **query).numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("noise", "grid", "step"),
    [
        (GaussianNoise(0.125, key=KEY), None, 2.0**-7),
        (GaussianNoise(Relative(0.5), key=KEY), None, 2.0**-6),
        (GaussianNoise(0.1, key=KEY), 0.25, 0.25),
    ],
    ids=repr,
)
def test_released_numbers_are_multiples_of_the_grid(noise, grid, step):
    hardening = Hardening(RangeClip(-0.5, 0.9), None, noise, grid)
    assert hardening.grid_step(50) == step
    for dtype in (torch.float16, torch.float32, torch.float64):
        a, x = batch(4, 50, dtype=dtype)
        released = hardening(a, inputs=x).double()
        assert torch.equal((released / step).round(), released / step)
        assert not torch.equal((released / step / 2).round(), released / step / 2)


def test_nothing_is_rounded_without_noise():
    assert Hardening(noise=GaussianNoise(0.1)).grid_step(10) == 2.0**-8
    assert Hardening(RangeClip(-1, 1)).grid_step(10) is None
    assert Hardening(noise=GaussianNoise(0.0)).grid_step(10) is None


def test_masked_coordinates_do_not_keep_their_sign():
    a = torch.tensor([[-0.1, 0.1, -3.0, 4.0]])
    for mask in (TopKMask(0.5), ThresholdMask(1.0)):
        assert torch.signbit(Hardening(mask=mask)(a)).tolist() == [[False, False, True, False]]
    rounded = Hardening(RangeClip(-1, 1), grid=0.5)(torch.tensor([[-0.1, 0.1]]))
    assert torch.signbit(rounded).tolist() == [[False, False]]


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e30])
def test_rank_norm_does_not_show_how_many_coordinates_are_zero(size):
    g = torch.Generator().manual_seed(0)
    a, x = torch.randn(1, 400, generator=g), torch.zeros(1, 1)
    a = a.sign() * (a.abs() + 0.1) * size
    a[0, :300] = 0
    found = Hardening(RankNorm(), noise=GaussianNoise(0.0, key=KEY))(a, inputs=x)[0]
    assert 100 < int((found[:300] > 0).sum()) < 200
    assert float(found[:300].abs().amax()) < float(found[300:].abs().amin())
    assert len(found.abs().unique()) == 400 if size > 1e-40 else len(found[:300].abs().unique()) == 300


def test_without_noise_key_and_clip_stay_and_the_grid_goes():
    noisy = Hardening(RankNorm(), noise=GaussianNoise(0.2, key=KEY), grid=0.5)
    assert noisy.without_noise() == Hardening(RankNorm(), noise=GaussianNoise(0.0))
    assert noisy.without_noise().noise.key == KEY
    plain = Hardening(RankNorm(), grid=0.25)
    assert plain.without_noise() is plain


def test_without_noise_is_what_averaging_over_keys_leaves():
    a, x, noisy = batch()[0][3:], torch.zeros(3, 1), Hardening(RankNorm(), noise=GaussianNoise(0.2, key=KEY))
    exact = noisy.without_noise()(a, inputs=x)
    answers = torch.stack([noisy.with_key(bytes([i, j]) * 16)(a, inputs=x) for i in range(20) for j in range(20)])
    assert (answers.mean(0) - exact).abs().max() < 5 * 0.2 / 20  # five standard errors of the mean of 400
    assert (answers[0] - exact).std() > 0.1


@pytest.mark.parametrize("clip", CLIPS[4:7], ids=repr)
def test_without_noise_the_maps_are_all_that_is_looked_at_and_no_key_is_asked_for(clip, monkeypatch):
    monkeypatch.delenv("SAFEXPLAIN_NOISE_KEY")
    a, x = batch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        released = Hardening(clip)(a)
        assert torch.equal(released, Hardening(clip)(a, inputs=x, target=3, model_digest=b"a", method="IG"))
    assert not released[0].any()


@some
def test_what_is_not_finite_comes_out_as_zero_plus_noise(hardening):
    for dtype, bad in product((torch.float16, torch.float64), (math.nan, math.inf, -math.inf)):
        a, x = batch(dtype=dtype)
        broken, zeroed = a.clone(), a.clone()
        broken[:, 3], zeroed[:, 3] = bad, 0
        broken[5], zeroed[5] = bad, 0
        released = hardening(broken, inputs=x)
        assert bool(released.isfinite().all())
        assert torch.equal(released, hardening(zeroed, inputs=x))


SIZES = st.floats(1e-320, 1e308)
EXTREME = st.builds(
    Hardening,
    st.one_of(
        st.none(),
        SIZES.map(lambda s: RangeClip(-s, s)),
        SIZES.map(NormClip),
        SIZES.map(UnitNorm),
        st.builds(RankNorm, SIZES, SIZES, st.none() | st.integers(2, 2000)),
    ),
    st.one_of(st.none(), SIZES.map(ThresholdMask)),
    st.one_of(st.none(), SIZES.map(lambda s: GaussianNoise(s, key=KEY))),
    st.one_of(st.none(), SIZES),
)


@given(EXTREME, st.lists(st.floats(width=32), min_size=1, max_size=6), st.sampled_from([torch.float16, torch.float32]))
@settings(max_examples=100)
def test_no_configuration_releases_what_is_not_finite(hardening, row, dtype):
    a = torch.tensor([row]).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFEXPLAIN_NOISE_KEY", "the environment's own secret key")
        released = hardening(a, inputs=torch.ones(1, 1))
    assert hardening.is_none or bool(released.isfinite().all())


@some
def test_an_empty_batch_gives_an_empty_tensor(hardening):
    for shape in ((0, 3, 4), (2, 0), (0,), (0, 0)):
        released = hardening(torch.zeros(shape, dtype=torch.float16), inputs=torch.zeros(shape[0], 2), target=1)
        assert released.shape == shape
        assert released.dtype == torch.float16


@some
def test_the_memory_layout_does_not_matter(hardening):
    a = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    x = torch.zeros(4, 1)
    expected = hardening(a, inputs=x)
    wide = torch.zeros(4, 6, 5, 6)
    wide[:, ::2] = a
    views = (a.to(memory_format=torch.channels_last), a.transpose(1, 3).contiguous().transpose(1, 3), wide[:, ::2])
    for view in views:
        assert not view.is_contiguous()
        assert torch.equal(hardening(view, inputs=x), expected)
    repeated = a[:1, :1, :1].expand(4, 3, 5, 6)
    assert torch.equal(hardening(repeated, inputs=x), hardening(repeated.contiguous(), inputs=x))


@some
def test_the_tensors_of_an_example_are_hardened_as_one(hardening):
    a, x = batch(6, 12)
    first, second = a[:, :8].reshape(6, 2, 4), a[:, 8:].float().double()
    whole = hardening(torch.cat([first.flatten(1), second], 1), inputs=x)
    released = hardening((first, second), inputs=x)
    assert isinstance(released, tuple)
    assert [t.shape for t in released] == [first.shape, second.shape]
    assert torch.equal(torch.cat([t.flatten(1) for t in released], 1), whole)


def test_each_tensor_of_a_tuple_keeps_its_precision():
    released = Hardening(UnitNorm())((torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 1, dtype=torch.float64)))
    assert [t.dtype for t in released] == [torch.float16, torch.float64]
    assert [t.shape for t in Hardening(RangeClip(-1, 1))((torch.zeros(2, 3),))] == [(2, 3)]  # a tuple stays one
    assert torch.allclose(released[1], torch.full((2, 1), 0.5, dtype=torch.float64))


@some
def test_what_is_released_is_detached_and_new(hardening):
    a, x = batch(dtype=torch.float32)
    a.requires_grad_()
    maps = a * 1.0
    before = maps.detach().clone()
    for given_map in (maps, maps[1:2]):
        released = hardening(given_map, inputs=x[: len(given_map)])
        assert not released.requires_grad
        assert released.grad_fn is None
        assert released.untyped_storage().data_ptr() != maps.untyped_storage().data_ptr()
    assert torch.equal(maps, before)


def test_no_hardening_changes_nothing():
    assert Hardening.none().is_none
    a, _ = batch(dtype=torch.float32)
    a[0, 0] = math.nan
    released = Hardening.none()((a, a.long()))
    assert torch.equal(released[0].view(torch.int32), a.view(torch.int32))
    assert torch.equal(released[1], a.long())


def test_large_batches_are_worked_on_in_parts_with_the_same_result(monkeypatch):
    a, x = batch(9 * CHUNK // 3000, 3000, dtype=torch.float32)
    hardening, sizes = Hardening(RankNorm(), TopKMask(0.5), GaussianNoise(0.1, key=KEY)), []
    plain = Hardening._harden_rows
    monkeypatch.setattr(
        Hardening, "_harden_rows", lambda self, rows, seeds: sizes.append(rows.numel()) or plain(self, rows, seeds)
    )
    in_parts = hardening(a, inputs=x)
    assert max(sizes) <= CHUNK
    assert len(sizes) > 8
    assert torch.equal(in_parts[:5], hardening(a[:5], inputs=x[:5]))
    assert torch.equal(in_parts[-5:], hardening(a[-5:], inputs=x[-5:]))


CONFIGURATIONS = [
    *EVERY_PAIR,
    Hardening(RangeClip(-1, 2), ThresholdMask(Relative(0.5)), GaussianNoise(Relative(0.1), key=KEY), 0.25),
    Hardening(TopKSet(k=2, fraction=0.1, positive=False, ordered=True)),
    Hardening(Levels(3, balanced=False)),
]


def test_a_configuration_survives_json_and_repr_without_its_key():
    for hardening in CONFIGURATIONS:
        check_copies(hardening)


def check_copies(hardening):
    assert Hardening.from_json(hardening.to_json()) == hardening
    assert Hardening.from_json(hardening.to_dict()) == hardening
    assert Hardening.from_json(hardening.to_json()).to_json() == hardening.to_json()
    assert eval(repr(hardening), {name: getattr(safexplain, name) for name in safexplain.__all__}) == hardening
    assert hash(Hardening.from_json(hardening.to_json())) == hash(hardening)
    assert json.loads(hardening.to_json()) == hardening.to_dict()
    for text in (repr(hardening), hardening.to_json(), str(hardening.to_dict()), f"{hardening.noise}"):
        assert "secret" not in text
        assert KEY.hex() not in text


def test_the_default_is_known_ordered_or_not_and_with_any_columns():
    for ordered in (False, True):
        default = Hardening.recommended(ordered=ordered)
        assert default.is_recommended
        assert replace(default, features=safexplain.Features(["a"])).is_recommended
    assert not Hardening(clip=TopKSet(k=4)).is_recommended


def test_deepleaks_hardening_has_the_numbers_of_its_release():
    noise = GaussianNoise(0.01, key=KEY)
    assert Hardening.deepleak(KEY) == Hardening(clip=RangeClip(-1, 1), mask=ThresholdMask(1e-3), noise=noise)


def test_keys_do_not_count_in_equality():
    assert Hardening.deepleak(KEY) == Hardening.deepleak(b"another of these secret keys")
    assert Hardening.deepleak(KEY).with_key(b"another of these secret keys").noise.key != KEY
    assert Hardening.recommended(key=KEY) == Hardening.recommended()
    assert Hardening(RangeClip(-1, 1)).with_key(KEY) == Hardening(RangeClip(-1, 1))


NO_CONFIGURATIONS = [
    (lambda: GaussianNoise(-0.1), ConfigurationError, "GaussianNoise std must be at least 0"),
    (lambda: GaussianNoise(math.nan), ConfigurationError, "finite"),
    (lambda: GaussianNoise("0.1"), ConfigurationTypeError, "number"),
    (lambda: Hardening(clip=TopKMask(0.5)), ConfigurationTypeError, "clip must be one of RangeClip"),
    (lambda: Hardening(mask=0.5), ConfigurationTypeError, "mask must be one of ThresholdMask, TopKMask"),
    (lambda: Hardening(noise=0.5), ConfigurationTypeError, "noise must be one of GaussianNoise"),
    (lambda: Hardening(grid=0.0), ConfigurationError, "grid must be greater than 0"),
    (lambda: Hardening(noise=GaussianNoise(Relative(0.1))), ConfigurationError, "expected a clip"),
    (lambda: Hardening(mask=ThresholdMask(Relative(0.1))), ConfigurationError, "expected a clip"),
]


def test_a_configuration_that_makes_no_sense_is_refused():
    for make, kind, message in NO_CONFIGURATIONS:
        with pytest.raises(kind, match=message):
            make()


NO_HARDENINGS = [
    "[]",
    None,
    "[" * 100_000,
    '{"clips": null}',
    '{"clip": {"kind": "os.system"}}',
    '{"clip": {"kind": "RangeClip", "low": 0, "high": 1, "middle": 2}}',
    '{"clip": {"kind": "RangeClip", "low": {"relative": 1}, "high": 2}}',
    '{"noise": {"kind": "GaussianNoise", "std": {"relative": 1, "absolute": 2}}}',
    '{"noise": {"kind": "GaussianNoise", "std": 1, "key": "00"}}',
]


def test_json_that_is_no_hardening_is_refused():
    for text in NO_HARDENINGS:
        with pytest.raises(ConfigurationError):
            Hardening.from_json(text)


NOISY = Hardening(noise=GaussianNoise(0.1, key=KEY))


NO_CALLS = [
    (lambda: NOISY(torch.zeros(2, 3)), "expected inputs="),
    (lambda: NOISY(torch.zeros(2, 3), inputs=torch.zeros(3, 3)), "expected 2 inputs"),
    (lambda: NOISY((torch.zeros(2, 3), torch.zeros(3, 3)), inputs=torch.zeros(2, 3)), "of one batch size, got"),
    (lambda: NOISY(torch.zeros(2, 3), inputs=torch.zeros(2, 3), target=[1]), "one target for each"),
    (lambda: NOISY((), inputs=torch.zeros(2, 3)), "batch"),
    (lambda: NOISY(torch.zeros(2, 3).long(), inputs=torch.zeros(2, 3)), "floating-point"),
    (lambda: Probability(torch.nn.Flatten(0))(torch.zeros(2, 3)), "logits"),
]


def test_a_call_that_makes_no_sense_is_refused():
    for call, message in NO_CALLS:
        with pytest.raises(InputError, match=message):
            call()


def test_probability_is_the_softmax_of_the_logits():
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = Probability(torch.nn.Identity())(logits)
    assert torch.allclose(found, logits.exp() / logits.exp().sum(1, keepdim=True))


NAMES = ["income", "home_owns", "home_rents", "age", "debt"]
FORM = Features(NAMES, groups={"home": ["home_owns", "home_rents"]})
VALUES = torch.tensor([[0.5, 0.4, 0.3, -1.0, 0.6], [-2.0, 0.1, -0.4, 3.0, 1.0]])
ROWS = np.array([[20.0, 0, 1, 33, 5], [80.0, 1, 0, 61, 0]])


def released(k=4, **options):
    return Hardening(clip=TopKSet(k=k, ordered=True), features=Features(NAMES, FORM.groups, **options))(VALUES)


def test_columns_of_one_group_are_added_up_and_named_once():
    assert released(k=2).tolist() == [[0, 2, 2, 0, 1], [0, 0, 0, 2, 1]]
    slow = [[0.5, 0.7, -1.0, 0.6], [-2.0, -0.3, 3.0, 1.0]]
    assert torch.allclose(FORM.summed(VALUES), torch.tensor(slow))
    assert FORM.columns == ("income", "home", "age", "debt")


def test_reasons_have_their_rank_the_persons_value_and_the_text_of_the_notice():
    reasons = FORM.reasons(released(), ROWS, describe={"home": "type of residence"})
    assert reasons == [
        [Reason("home", "rents", 1, "type of residence"), Reason("debt", 5.0, 2), Reason("income", 20.0, 3)],
        [Reason("age", 61.0, 1), Reason("debt", 0.0, 2)],
    ]
    assert [str(reason) for reason in reasons[0]] == ["type of residence", "debt", "income"]
    plain = Hardening(clip=TopKSet(k=2, ordered=True))(VALUES)
    assert TopKSet.reasons(plain, NAMES) == [["debt", "income"], ["age", "debt"]]


def test_a_reason_with_no_effect_is_no_reason():
    values = torch.tensor([[1.0, 0.0, 0.0, -1.0, 0.0]])
    names = Features(NAMES).reasons(Hardening(clip=TopKSet(k=4, ordered=True))(values))
    assert [reason.name for reason in names[0]] == ["income"]


def test_without_order_there_are_no_ranks_and_the_columns_come_as_in_the_form():
    plain = Hardening(clip=TopKSet(k=2), features=FORM)(VALUES)
    assert [[(r.name, r.rank) for r in each] for each in FORM.reasons(plain)] == [
        [("home", None), ("debt", None)], [("age", None), ("debt", None)]
    ]  # fmt: skip


def test_a_prohibited_reason_is_an_error_and_not_left_out():
    with pytest.raises(ProhibitedReasonError, match="age: prohibited, but among the reasons"):
        released(prohibited=["age"])
    assert released(k=1, prohibited=["debt"])[0].tolist() == [0, 1, 1, 0, 0]
    hardening = Hardening(clip=TopKSet(k=4), features=Features(NAMES, FORM.groups, ["home"]))
    with pytest.raises(ProhibitedReasonError, match="home"):
        hardening(VALUES)
    counted = hardening.features.refused(hardening.naming_all()(VALUES))
    assert counted.tolist() == [[True], [False]]


def test_a_configuration_says_it_all():
    hardening = Hardening(clip=TopKSet(k=4, ordered=True), features=Features(NAMES, FORM.groups, ["age"]))
    assert Hardening.from_json(hardening.to_json()) == hardening
    assert hash(hardening) == hash(Hardening.from_json(hardening.to_json()))
    assert "ordered" not in Hardening.recommended().to_json()
    assert "features" not in Hardening.recommended().to_json()


NONSENSE = [
    (lambda: Features(["a", "a"]), ConfigurationError, "once"),
    (lambda: Features(["a"], {"b": ["c"]}), ConfigurationError, "expected some of a; got 'c'"),
    (lambda: Features(["a", "b"], {"x": ["a"], "y": ["a"]}), ConfigurationError, "once"),
    (lambda: Features(NAMES, FORM.groups, ["home_owns"]), ConfigurationError, "'home_owns'"),
    (lambda: Hardening(features=Features(["a"], prohibited=["a"])), ConfigurationError, "reasons"),
    (lambda: Hardening(clip=TopKSet(k=1), features=FORM)(torch.ones(2, 4)), InputError, "5 named features"),
    (lambda: FORM.reasons(released(), ROWS[:1]), InputError, "rows"),
    (lambda: Hardening.from_json('{"features": {"names": 3}}'), ConfigurationError, "features"),
]


def test_what_makes_no_sense_is_refused():
    for make, error, said in NONSENSE:
        with pytest.raises(error, match=said):
            make()
