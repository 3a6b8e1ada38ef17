"""Clips and masks against slow, obvious versions of themselves, one row and one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hardening_oracle import slow_rank
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.hardening.clips import Clip, NormClip, RangeClip, RankNorm, Relative, UnitNorm, absolute
from safexplain.hardening.selection import ThresholdMask, TopKMask

NUMBERS = st.one_of(
    st.floats(-4, 4, allow_subnormal=False), st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1e-30, 1e30])
)
ROWS = arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=NUMBERS)
SIZES = st.floats(0.01, 10)


def apply(step, rows, *scale):
    return step(torch.from_numpy(rows.copy()), *scale).numpy()


def length(row):
    largest = max(abs(v) for v in row)
    return largest * math.sqrt(sum((v / largest) ** 2 for v in row)) if largest else 0.0


@given(ROWS, st.floats(-2, 2), SIZES)
def test_range_clip_limits_every_number(rows, low, width):
    clip = RangeClip(low, low + width)
    expected = [[min(max(v, low), low + width) for v in row] for row in rows]
    assert np.array_equal(apply(clip, rows), expected)
    assert clip.scale(7) == max(abs(low), abs(low + width))


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


def test_balanced_maps_have_the_same_sums_of_every_power_whatever_their_signs():
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 501, dtype=torch.float64, generator=g)
    rows[1] += 1.5
    rows[2] = rows[2] ** 5
    rows[3, :-1] = rows[3, :-1].abs()
    rows[3, -1] = -1e-9
    signs_kept = RankNorm()(rows.clone())
    found = RankNorm(balanced_from=501)(rows.clone())
    for power in range(1, 6):
        assert float((found**power).sum(1).diff().abs().amax()) < 1e-12
    assert float(signs_kept.sum(1).diff().abs().amin()) > 0.1  # what is balanced away
    assert torch.allclose(torch.linalg.vector_norm(found, dim=1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(found.argsort(1), rows.argsort(1))


@given(ROWS, st.floats(0, 2))
def test_threshold_mask_zeroes_small_magnitudes_of_either_sign(rows, threshold):
    expected = [[v if abs(v) >= threshold else 0.0 for v in row] for row in rows]
    assert np.array_equal(apply(ThresholdMask(threshold), rows, None), expected)
    assert np.array_equal(apply(ThresholdMask(Relative(threshold / 2)), rows, 2.0), expected)


def top_k(row, k):
    order = sorted(range(len(row)), key=lambda j: (-abs(row[j]), j))
    return [v if j in order[:k] else 0.0 for j, v in enumerate(row)]


@given(ROWS, st.floats(0.01, 1))
def test_top_k_mask_keeps_exactly_the_largest_and_the_first_among_equals(rows, fraction):
    mask = TopKMask(fraction)
    k = max(1, round(fraction * rows.shape[1]))
    assert np.array_equal(apply(mask, rows, None), [top_k(row, k) for row in rows])


STEPS = [NormClip(0.8), UnitNorm(2.0), RankNorm(balanced_from=3), TopKMask(0.4)]


@pytest.mark.parametrize("step", STEPS, ids=repr)
@given(rows=ROWS, data=st.data())
@settings(max_examples=15)
def test_rows_do_not_influence_each_other(step, rows, data):
    scale = () if isinstance(step, Clip) else (None,)
    row = data.draw(st.integers(0, len(rows) - 1))
    alone = apply(step, rows[row : row + 1], *scale)
    assert np.array_equal(apply(step, rows, *scale)[row : row + 1], alone)


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


OUT_OF_RANGE = [
    (lambda: absolute(Relative(0.5), None), "expected a clip"),
    (lambda: RangeClip(1.0, 1.0), "low < high"),
    (lambda: RangeClip(0.0, -0.0), "low < high"),
    (lambda: NormClip(0.0), "greater than 0"),
    (lambda: UnitNorm(-1.0), "greater than 0"),
    (lambda: RankNorm(0.0), "greater than 0"),
    (lambda: RankNorm(1.0, -1.0), "greater than 0"),
    (lambda: RankNorm(balanced_from=1), "at least 2"),
    (lambda: RankNorm(balanced_from=2.5), "whole number or None"),
    (lambda: Relative(-0.1), "at least 0"),
    (lambda: ThresholdMask(-0.1), "at least 0"),
    (lambda: TopKMask(0.0), "greater than 0"),
    (lambda: TopKMask(1.1), r"\(0, 1\]"),
]


def test_what_is_out_of_range_is_refused():
    for make, message in OUT_OF_RANGE:
        with pytest.raises(ConfigurationError, match=message):
            make()
