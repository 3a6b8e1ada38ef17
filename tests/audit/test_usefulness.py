"""Utility: how much of the native explanation is left, against a version that does one example at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from safexplain.audit import utility
from safexplain.audit.usefulness import Utility
from safexplain.errors import InputError

RNG = np.random.default_rng(0)
NATIVE = RNG.normal(size=(30, 3, 4, 5))


def slow_utility(native, released, fraction):
    overlaps, signs, ranks, cosines, wrong, wrong_top = [], [], [], [], [], []
    for a, b in zip(native.reshape(len(native), -1), released.reshape(len(released), -1), strict=True):
        if not a.any():
            continue
        k = max(1, round(fraction * len(a)))
        top_a = sorted(range(len(a)), key=lambda j: (-abs(a[j]), j))[:k]
        top_b = sorted(range(len(b)), key=lambda j: (-abs(b[j]), j))[:k]
        overlaps.append(len(set(top_a) & set(top_b)) / k)
        signs.append(np.mean([np.sign(a[j]) == np.sign(b[j]) for j in top_a]))
        errors = [np.sign(a[j]) != np.sign(b[j]) for j in range(len(b)) if b[j] != 0]
        wrong.extend(errors)
        shown = sorted(range(len(b)), key=lambda j: (-abs(b[j]), j))[: max(4, k)]
        wrong_top.append(any(b[j] != 0 and np.sign(a[j]) != np.sign(b[j]) for j in shown))
        ranks.append(distributions.spearmanr(abs(a), abs(b)).statistic)
        cosines.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    means = [np.mean(values) for values in (ranks, cosines, signs, wrong, wrong_top)]
    return Utility(float(np.mean(overlaps)), fraction, *map(float, means))


@pytest.mark.parametrize(("fraction", "noise"), [(0.01, 1.0), (0.1, 10.0), (0.5, 0.1), (1.0, 1.0)])
def test_every_measure_equals_the_slow_one(fraction, noise):
    released = (NATIVE + noise * RNG.normal(size=NATIVE.shape)).round(1)
    found, expected = utility(NATIVE, released, top_fraction=fraction), slow_utility(NATIVE, released, fraction)
    assert found.to_dict() == pytest.approx(expected.to_dict())


@given(st.floats(1e-200, 1e200))
def test_an_unchanged_explanation_keeps_everything_at_any_size(size):
    found = utility(NATIVE, size * NATIVE)
    expected = {"top_overlap": 1, "top_fraction": 0.1, "rank_correlation": 1, "cosine": 1, "sign_agreement": 1}
    expected |= {"sign_errors": 0, "sign_errors_top": 0}
    assert found.to_dict() == pytest.approx(expected)


def test_explanations_that_are_zero_do_not_count():
    native = NATIVE.copy()
    native[3:8] = 0
    released = NATIVE + RNG.normal(size=NATIVE.shape)
    kept = np.r_[0:3, 8:30]
    assert utility(native, released) == utility(native[kept], released[kept])
    assert utility(NATIVE, np.zeros_like(NATIVE)).cosine == 0


@pytest.mark.parametrize(
    ("native", "released", "message"),
    [
        (NATIVE, NATIVE[:5], "one shape"),
        (NATIVE[:, 0, 0, 0], NATIVE[:, 0, 0, 0], "one shape"),
        (np.zeros_like(NATIVE), NATIVE, "got zeros only"),
    ],
)
def test_what_cannot_be_compared_is_refused(native, released, message):
    with pytest.raises(InputError, match=message):
        utility(native, released)
