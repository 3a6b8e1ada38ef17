"""What a noised explanation costs is the diameter of what can be released over the noise, and never less."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from safexplain import (
    GaussianNoise,
    Hardening,
    NormClip,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    UnitNorm,
)
from safexplain.errors import ConfigurationError, RefusedError
from safexplain.explanation_cost import diameter, explanation_release

KEY = bytes(range(32))
CLIPS = [RangeClip(-1, 1), RangeClip(-0.1, 0.4), RangeClip(0.2, 1), NormClip(2.0), UnitNorm(1.5), RankNorm(1.0)]
MASKS = [None, ThresholdMask(0.3), TopKMask(0.4)]


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("mask", MASKS, ids=lambda m: type(m).__name__)
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_no_two_explanations_are_further_apart_than_the_diameter(clip, mask, d, seed):
    rng = np.random.default_rng(seed)
    hardening = Hardening(clip=clip, mask=mask)
    signs = rng.choice([-1.0, 1e-9 if isinstance(clip, UnitNorm | RankNorm) else 0.0, 1.0], (2, 64, d))
    pairs = torch.from_numpy(np.where(rng.random((2, 64, 1)) < 0.5, rng.normal(size=(2, 64, d)), signs * 50))
    pairs[1, :32] = -pairs[0, :32]
    released = [hardening(p) for p in pairs]
    assert float((released[0] - released[1]).norm(dim=1).max()) <= diameter(hardening, d) * (1 + 1e-9)


@pytest.mark.parametrize("clip", CLIPS[:5], ids=lambda c: type(c).__name__)
def test_the_diameter_is_reached(clip):
    d, hardening = 4, Hardening(clip=clip)
    ends = torch.full((1, d), 100.0, dtype=torch.float64)
    apart = hardening(ends) - hardening(-ends)
    assert float(apart.norm()) == pytest.approx(diameter(hardening, d), rel=1e-9)


def test_a_mask_that_keeps_few_coordinates_lowers_the_cost_to_what_two_supports_can_differ_by():
    hardening = Hardening(clip=RangeClip(0, 1), mask=TopKMask(0.25))
    x = torch.tensor([[9.0, 9, 0, 0, 0, 0, 0, 0], [0, 0, 9.0, 9, 0, 0, 0, 0]], dtype=torch.float64)
    one, other = hardening(x)
    assert float((one - other).norm()) == pytest.approx(diameter(hardening, 8)) == pytest.approx(2.0)


def test_the_cost_is_the_diameter_over_the_noise_as_in_the_literature():
    hardening = Hardening(clip=RangeClip(-1, 1), noise=GaussianNoise(0.1, key=KEY))
    assert explanation_release(hardening, 3072).mu == pytest.approx(2 * math.sqrt(3072) / 0.1)
    relative = Hardening(clip=UnitNorm(1.0), noise=GaussianNoise(Relative(0.5), key=KEY))
    assert explanation_release(relative, 16).mu == pytest.approx(2 / (0.5 / 4))


def test_legible_noise_is_vacuous_and_the_recommended_hardening_says_so():
    mu = explanation_release(Hardening.recommended(KEY), 64).mu
    assert mu > 50


@pytest.mark.parametrize(
    ("hardening", "missing"),
    [
        (Hardening(clip=RangeClip(-1, 1)), "noise"),
        (Hardening(noise=GaussianNoise(0.1, key=KEY)), "clip"),
        (Hardening(clip=RangeClip(-1, 1), noise=GaussianNoise(0.0, key=KEY)), "noise"),
        (Hardening.none(), "clip"),
    ],
)
def test_what_has_no_guarantee_is_not_charged(hardening, missing):
    with pytest.raises(RefusedError, match=f"without {missing}"):
        explanation_release(hardening, 10)


def test_the_number_of_features_is_checked():
    with pytest.raises(ConfigurationError, match="features"):
        explanation_release(replace(Hardening.recommended(KEY)), 0)
