"""Sets and levels: what counts most, without its size, without a wrong sign, without a key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hardening_oracle import slow_format
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.hardening.clips import RangeClip
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.hardening.selection import Levels, TopKSet

ROWS = st.tuples(st.integers(1, 5), st.integers(1, 24)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(-3, 3) | st.floats(-1e30, 1e30))
)
SETS = st.builds(TopKSet, st.integers(1, 30), st.none() | st.floats(0.01, 1.0), st.booleans()) | st.builds(
    TopKSet, st.none(), st.floats(0.01, 1.0), st.booleans()
)
LEVELS = st.builds(Levels, st.integers(1, 5), st.booleans())


def maps(n=50, d=200, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@given(ROWS, SETS | LEVELS)
def test_formats_agree_with_one_number_at_a_time(rows, clip):
    assert np.array_equal(
        clip(torch.from_numpy(rows.copy())).numpy(), [slow_format(clip, row) for row in rows.tolist()]
    )


@given(ROWS, SETS | LEVELS)
def test_a_format_tells_nothing_but_order(rows, clip):
    ranks = np.unique(np.abs(rows), return_inverse=True)[1].reshape(rows.shape) + 1.0
    found = clip(torch.from_numpy(rows.copy()))
    assert torch.equal(clip(torch.from_numpy(np.sign(rows) * ranks)), found)
    assert len(found.abs().unique()) <= (clip.n + 1 if isinstance(clip, Levels) else 2)


@given(ROWS, st.builds(TopKSet, st.integers(1, 30)) | st.builds(Levels, st.integers(1, 5), st.booleans()))
def test_no_feature_gets_a_sign_that_is_not_its_own(rows, clip):
    found = clip(torch.from_numpy(rows.copy())).numpy()
    assert not (found * np.sign(rows) < 0).any()
    assert not found[rows == 0].any()


def test_every_explanation_names_as_many_features():
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


NOTHING_NAMED = [
    (TopKSet, ConfigurationError, "expected k, as TopKSet"),
    (lambda: TopKSet(k=0), ConfigurationError, "at least 1"),
    (lambda: TopKSet(k=True), ConfigurationError, "whole number"),
    (lambda: TopKSet(fraction=0.0), ConfigurationError, "greater than 0"),
    (lambda: TopKSet(fraction=1.5), ConfigurationError, r"\(0, 1\]"),
    (lambda: TopKSet(k=1, positive=1), ConfigurationTypeError, "True or False"),
    (lambda: Levels(0), ConfigurationError, "at least 1"),
    (lambda: Levels(17), ConfigurationError, "at most 16"),
    (lambda: Levels(2, balanced="yes"), ConfigurationTypeError, "True or False"),
]


def test_what_names_nothing_is_refused():
    for make, kind, message in NOTHING_NAMED:
        with pytest.raises(kind, match=message):
            make()


# --------------------------------------------------------------------------------------------------- wrong signs


def test_the_default_never_flips_a_sign_among_the_features_that_it_names():
    for d in (2, 5, 10, 23, 64, 1000):
        assert Hardening.recommended().sign_error_rate(d) == 0
        assert Hardening.recommended().sign_error_rate(d, k=4) == 0


# ------------------------------------------------------------------------------------------- what is recommended


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
