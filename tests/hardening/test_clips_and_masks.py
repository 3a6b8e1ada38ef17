"""Clips and masks against slow, obvious versions of themselves, one row and one number at a time."""

import math

import numpy as np
import pytest
import torch
from hardening_oracle import slow_format, slow_rank
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
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
    absolute,
)
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise

NUMBERS = st.one_of(
    st.floats(-4, 4, allow_subnormal=False), st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1e-30, 1e30])
)
ROWS = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS)
SIZES = st.floats(0.01, 10)


def apply(step, rows, *scale):
    return step(torch.from_numpy(rows.copy()), *scale).numpy()


def length(row):
    largest = max(abs(v) for v in row)
    return largest * math.sqrt(sum((v / largest) ** 2 for v in row)) if largest else 0.0


@given(ROWS, SIZES)
def test_norm_clip_shortens_long_rows_only(rows, limit):
    expected = [[v * limit / length(row) if length(row) > limit else v for v in row] for row in rows]
    assert np.allclose(apply(NormClip(limit), rows), expected, rtol=1e-12, atol=1e-290)


@given(ROWS, SIZES)
def test_unit_norm_gives_every_row_one_length(rows, size):
    expected = [[v / length(row) * size if length(row) else v for v in row] for row in rows]
    found = apply(UnitNorm(size), rows)
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-300)
    assert all(length(row) == pytest.approx(size) for row in found if length(row))


@given(ROWS, SIZES, st.floats(0.2, 3))
def test_rank_norm_keeps_ranks_and_signs_and_gives_all_rows_the_same_magnitudes(rows, norm, shape):
    clip = RankNorm(norm, shape)
    found = apply(clip, rows)
    assert np.allclose(found, [slow_rank(clip, row) for row in rows], rtol=1e-9, atol=1e-12)
    assert np.array_equal(np.sign(found), np.sign(rows))


@given(ROWS, SIZES, st.floats(0.2, 3), st.integers(2, 6))
def test_balanced_rank_norm_ranks_signed_values_where_both_signs_are_there(rows, norm, shape, start):
    clip = RankNorm(norm, shape, balanced_from=start)
    found = apply(clip, rows)
    assert np.allclose(found, [slow_rank(clip, row) for row in rows], rtol=1e-9, atol=1e-12)


@given(ROWS, st.floats(0, 2))
def test_threshold_mask_zeroes_small_magnitudes_of_either_sign(rows, threshold):
    expected = [[v if abs(v) >= threshold else 0.0 for v in row] for row in rows]
    assert np.array_equal(apply(ThresholdMask(threshold), rows, None), expected)
    assert np.array_equal(apply(ThresholdMask(Relative(threshold / 2)), rows, 2.0), expected)


@pytest.mark.parametrize(
    ("step", "size"),
    [(UnitNorm(), 1e-44), (UnitNorm(), 3e38), (RankNorm(), 1e-44), (RankNorm(balanced_from=2), 3e38)],
    ids=repr,
)
def test_tiny_and_huge_numbers_keep_their_direction(step, size):
    row = torch.tensor([[1.0, -2.0, 0.5]]) / 2
    found = step(row.clone() * size)
    expected = step(row.double()).float()
    assert torch.allclose(found, expected, rtol=0.3 if size < 1e-40 else 1e-5, atol=0)  # 1e-44 has three bits


@pytest.mark.parametrize("size", [1e-30, 3e38])
def test_norm_clip_neither_under_nor_overflows(size):
    row = torch.tensor([[1.0, -2.0, 0.5]]) / 2 * size
    length = 1.145644 * size
    assert torch.allclose(NormClip(length / 2)(row.clone()), row / 2, rtol=1e-5, atol=0)
    assert torch.allclose(NormClip(length * 2)(row.clone()), row, rtol=1e-6, atol=0)


def test_scales_are_what_one_coordinate_can_be():
    assert RangeClip(-3.0, 1.0).scale(100) == 3.0
    for clip in (NormClip(2.0), UnitNorm(2.0), RankNorm(2.0)):
        assert clip.scale(100) == pytest.approx(0.2)
    assert absolute(Relative(0.5), 0.2) == pytest.approx(0.1)
    assert absolute(0.5, 0.2) == 0.5


MAKERS = {
    "RangeClip low": lambda v: RangeClip(v, 1e9),
    "RangeClip high": lambda v: RangeClip(-1e9, v),
    "NormClip max_norm": NormClip,
    "UnitNorm norm": UnitNorm,
    "RankNorm norm": RankNorm,
    "RankNorm shape": lambda v: RankNorm(1.0, v),
    "RankNorm balanced_from": lambda v: RankNorm(balanced_from="none" if v is None else v),  # None itself means never
    "Relative factor": Relative,
    "ThresholdMask threshold": ThresholdMask,
    "TopKMask fraction": TopKMask,
}


def test_what_is_no_finite_number_is_refused_by_name():
    for name, make in MAKERS.items():
        for value in (True, "1", None, torch.tensor(1.0)):
            with pytest.raises(ConfigurationTypeError, match=f"{name} must be a number"):
                make(value)
        for value in (math.nan, np.float32("-inf"), 10**400):
            with pytest.raises(ConfigurationError, match=f"{name} must be finite"):
                make(value)


FORMAT_ROWS = st.tuples(st.integers(1, 5), st.integers(1, 24)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(-3, 3) | st.floats(-1e30, 1e30))
)
SETS = st.builds(
    TopKSet, st.integers(1, 30), st.none() | st.floats(0.01, 1.0), st.booleans(), st.booleans()
) | st.builds(TopKSet, st.none(), st.floats(0.01, 1.0), st.booleans(), st.booleans())
LEVELS = st.builds(Levels, st.integers(1, 5), st.booleans())


def maps(n=50, d=200, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@given(FORMAT_ROWS, SETS | LEVELS)
def test_formats_agree_with_one_number_at_a_time(rows, clip):
    assert np.array_equal(
        clip(torch.from_numpy(rows.copy())).numpy(), [slow_format(clip, row) for row in rows.tolist()]
    )


def test_every_explanation_names_as_many_features():
    rows = torch.tensor([[1.0, -3.0, 2.0, 0.5]])
    for fraction, kept in ((0.1, 1), (0.25, 1), (0.5, 2), (1.0, 4)):
        assert int(TopKMask(fraction)(rows.clone(), None).count_nonzero()) == kept
    assert TopKSet(k=4)(maps()).sum(1).unique().tolist() == [4]
    assert TopKSet(fraction=0.1)(maps()).sum(1).unique().tolist() == [20]
    assert TopKSet(k=30, fraction=0.1)(maps()).sum(1).unique().tolist() == [30]
    assert TopKSet(k=4, fraction=0.1)(maps()).sum(1).unique().tolist() == [20]
    steps = Levels(3)(maps())
    for value, count in ((1.0, 12), (2 / 3, 13), (1 / 3, 25)):
        for sign in (1, -1):
            assert ((steps - sign * value).abs() < 1e-6).sum(1).unique().tolist() == [count]


def test_levels_of_one_sign_are_filled_by_magnitude_also_beside_zeros():
    rows = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, -1.0, -2.0, -3.0], [-1.0, 1.0, 2.0, 3.0]])
    assert Levels(1)(rows).tolist() == [[0, 0, 1, 1], [0, 0, -1, -1], [-1, 0, 0, 1]]


def test_features_that_count_against_the_class_are_not_named_in_order_to_fill_the_set():
    rows = torch.tensor([[-1.0, -2.0, 0.5, 0.0], [-1.0, -2.0, -3.0, 0.0]])
    assert TopKSet(k=3)(rows).tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert TopKSet(k=3, positive=False)(rows).tolist() == [[1, 1, 1, 0], [1, 1, 1, 0]]


def test_reasons_are_names_in_the_order_of_the_features():
    names = ["age", "income", "debt", "years"]
    released = Hardening(clip=TopKSet(k=2))(torch.tensor([[0.1, -5.0, 3.0, 0.2], [9.0, 1.0, 2.0, 0.0]]))
    assert TopKSet.reasons(released, names) == [["debt", "years"], ["age", "debt"]]
    assert TopKSet.reasons(released[0], names) == ["debt", "years"]
    assert TopKSet.reasons(released.numpy().reshape(2, 2, 2), names) == [["debt", "years"], ["age", "debt"]]
    assert TopKSet.reasons(released[:0], names) == []


NO_SETS = [
    (torch.tensor([[0.3, 0.0]]), ["a", "b"], "expected a released TopKSet"),
    (torch.tensor([[1.0, -1.0]]), ["a", "b"], "expected a released TopKSet"),
    (torch.ones(2, 3), ["a", "b"], "one number for each"),
    (torch.tensor(1.0), ["a"], "one number for each"),
]


def test_reasons_of_what_is_no_set_are_refused():
    for released, names, message in NO_SETS:
        with pytest.raises(InputError, match=message):
            TopKSet.reasons(released, names)


OUT_OF_RANGE = [
    (lambda: RangeClip(1.0, 1.0), ConfigurationError, "low < high"),
    (lambda: NormClip(0.0), ConfigurationError, "greater than 0"),
    (lambda: UnitNorm(-1.0), ConfigurationError, "greater than 0"),
    (lambda: RankNorm(0.0), ConfigurationError, "greater than 0"),
    (lambda: RankNorm(1.0, -1.0), ConfigurationError, "greater than 0"),
    (lambda: RankNorm(balanced_from=1), ConfigurationError, "at least 2"),
    (lambda: RankNorm(balanced_from=2.5), ConfigurationError, "whole number or None"),
    (lambda: Relative(-0.1), ConfigurationError, "at least 0"),
    (lambda: ThresholdMask(-0.1), ConfigurationError, "at least 0"),
    (lambda: TopKMask(0.0), ConfigurationError, "greater than 0"),
    (lambda: TopKMask(1.1), ConfigurationError, r"\(0, 1\]"),
    (TopKSet, ConfigurationError, "expected k, as TopKSet"),
    (lambda: TopKSet(k=0), ConfigurationError, "at least 1"),
    (lambda: TopKSet(k=True), ConfigurationError, "whole number"),
    (lambda: TopKSet(k=1, positive=1), ConfigurationTypeError, "True or False"),
    (lambda: Levels(0), ConfigurationError, "at least 1"),
    (lambda: Levels(17), ConfigurationError, "at most 16"),
    (lambda: Levels(2, balanced="yes"), ConfigurationTypeError, "True or False"),
]


def test_what_is_out_of_range_is_refused():
    for make, kind, message in OUT_OF_RANGE:
        with pytest.raises(kind, match=message):
            make()


def test_the_rate_of_wrong_signs_is_counted_on_these_maps():
    """64 or more, of 16,384 numbers, of the size of the clip's scale; without a clip, of size 1."""
    for clip, size, d, n in ((RangeClip(-3, 2), 3.0, 1000, 64), (None, 1.0, 10, 1638), (None, 1.0, 1, 16_384)):
        hardening = Hardening(clip, noise=GaussianNoise(0.5, key=b"public: only counts"))
        native = size * torch.randn(n, d, generator=torch.Generator().manual_seed(0))
        released = hardening(native, inputs=torch.arange(float(n))[:, None])
        wrong = (released * native < 0).double()
        assert hardening.sign_error_rate(d) == pytest.approx(float(wrong.sum() / (released != 0).sum()), abs=1e-6)
        largest = released.abs().topk(1, 1).indices
        assert hardening.sign_error_rate(d, k=1) == pytest.approx(float(wrong.gather(1, largest).mean()), abs=1e-6)


def test_the_scale_of_a_format_is_its_largest_number():
    for clip in (TopKSet(k=4), TopKSet(k=4, ordered=True), Levels(3), Levels(16)):
        assert clip.scale(200) == float(clip(maps()).max())
