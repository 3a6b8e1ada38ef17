"""HardenedProtoDash: prototypes come from the public set, weights are hardened, nothing else leaves."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from safexplain import GaussianNoise, Hardening, UnitNorm
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.explain import harden
from safexplain.explain.aix360 import HardenedProtoDash
from safexplain.explain.libraries import load
from safexplain.testing import find_markers, planted
from safexplain.testing.markers import MARKER_NUMBER

for needed in ("aix360", "cvxpy", "osqp"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning",
    'ignore:"polish" is deprecated:DeprecationWarning',
    "ignore:The default value of raise_error:PendingDeprecationWarning",
)

KEY = b"a key of thirty-two bytes, fixed"
RAW = Hardening.none()
NOISY = Hardening(noise=GaussianNoise(0.5, key=KEY), grid=2.0**-30)
LIFTED = 100.0
DIGITS = load_digits().data[np.random.default_rng(0).permutation(1797)] / 16
PUBLIC, ASKED = DIGITS[:120], DIGITS[1000:1005]
kernels = pytest.mark.parametrize("kernel", ["other", "Gaussian"])


def native():
    return load("aix360.algorithms.protodash").ProtodashExplainer()


class Lifted(HardenedProtoDash):
    """Its native weights are so large that none is cut at 0."""

    def _native(self):
        def explain(*asked):
            W, *others = native().explain(*asked)
            return W + LIFTED, *others

        return SimpleNamespace(explain=explain)


def noise_of(X, Y=None, m=3, public=PUBLIC, **options):
    """What was added to the weight of each prototype, by its row."""
    W, S, _ = Lifted(public, hardening=NOISY).explain(X, Y, m, **options)
    plain, same, _ = HardenedProtoDash(public, hardening=RAW).explain(X, Y, m, **options)
    assert np.array_equal(S, same)
    rows = (public if Y is None else Y)[S]
    return {row.tobytes(): added for row, added in zip(rows, W - LIFTED - plain, strict=True)}


def alike(a, b):
    return a.keys() == b.keys() and all(abs(a[row] - b[row]) < 2e-3 for row in a)


@pytest.mark.parametrize(("kernel", "optimizer"), [("other", "cvxpy"), ("Gaussian", "osqp")])
def test_without_hardening_weights_and_prototypes_are_the_native_ones(kernel, optimizer):
    explainer = HardenedProtoDash(PUBLIC, hardening=RAW)
    expected = native().explain(ASKED, PUBLIC, 4, kernel, 2, optimizer)
    noisy = HardenedProtoDash(PUBLIC, hardening=NOISY)
    chosen = noisy.explain(ASKED, m=4, kernelType=kernel, sigma=2, optimizer=optimizer)[1]
    assert np.array_equal(chosen, expected[1])  # prototypes are public
    for Y in (None, PUBLIC):
        W, S, V = explainer.explain(ASKED, Y, 4, kernelType=kernel, sigma=2, optimizer=optimizer)
        assert np.array_equal(W, expected[0])
        assert np.array_equal(S, expected[1])
        assert np.isnan(V).tolist() == [True] * 4  # natively the objective values
    for m in (1, 5):  # the fewest and the most of six
        assert len(HardenedProtoDash(PUBLIC[:6], hardening=RAW).explain(ASKED, m=m, optimizer=optimizer)[0]) == m


def test_objective_values_never_leave():
    assert np.isfinite(native().explain(ASKED, PUBLIC, 3)[2]).all()
    V = HardenedProtoDash(PUBLIC, hardening=RAW).explain(ASKED, m=3)[2]
    assert V.shape == (3,)
    assert np.isnan(V).all()


def test_the_weights_of_an_answer_are_hardened_as_one_explanation():
    kernel = "other"
    W = native().explain(ASKED, PUBLIC, 4, kernel)[0]
    released = HardenedProtoDash(PUBLIC, hardening=Hardening(clip=UnitNorm())).explain(ASKED, m=4, kernelType=kernel)[0]
    assert released.dtype == W.dtype
    np.testing.assert_allclose(released, W / np.linalg.norm(W), atol=1e-6)
    assert not np.allclose(released, W)


@kernels
def test_the_same_question_written_differently_meets_the_same_noise(kernel):
    asked = noise_of(ASKED, kernelType=kernel)
    assert alike(asked, noise_of(ASKED[::-1], kernelType=kernel))
    assert alike(asked, noise_of(np.concatenate([ASKED, ASKED]), kernelType=kernel))
    assert alike(asked, noise_of(ASKED, PUBLIC[::-1].copy(), kernelType=kernel))
    assert alike(asked, noise_of(ASKED, kernelType=kernel, optimizer="osqp"))
    unchosen = np.array([row.tobytes() not in asked for row in PUBLIC])
    unchosen[np.flatnonzero(unchosen)[5:]] = False
    assert alike(asked, noise_of(ASKED, PUBLIC[~unchosen], kernelType=kernel))
    assert alike(asked, noise_of(ASKED, public=PUBLIC[~unchosen], kernelType=kernel))


@kernels
def test_another_question_meets_other_noise(kernel):
    asked = noise_of(ASKED, kernelType=kernel)
    for other in (
        noise_of(ASKED + 1e-6, kernelType=kernel),
        noise_of(ASKED[[0, 1, 2, 3, 4, 4]], kernelType=kernel),
        noise_of(ASKED, m=4, kernelType=kernel),
        noise_of(ASKED, kernelType="other" if kernel == "Gaussian" else "Gaussian"),
    ):
        close = np.abs(np.subtract.outer([*asked.values()], [*other.values()])) < 2e-3
        assert close.sum() < 2  # the same noise would be as close for all three


def test_the_width_of_a_gaussian_kernel_is_part_of_the_question():
    assert not alike(noise_of(ASKED, kernelType="Gaussian"), noise_of(ASKED, kernelType="Gaussian", sigma=2.0001))


def test_a_candidate_that_is_not_public_is_refused():
    explainer = HardenedProtoDash(PUBLIC, hardening=NOISY)
    training = np.concatenate([PUBLIC[:10], DIGITS[500:502]])
    with pytest.raises(RefusedError, match=r"rows of the declared public set, got 2 of 12 others"):
        explainer.explain(ASKED, training, 3)
    with pytest.raises(RefusedError, match="got 1 of 10 others"):
        explainer.explain(ASKED, PUBLIC[:10] + np.eye(10, 64) * [[1e-9]] * (np.arange(10) == 3)[:, None], 3)


def test_the_public_set_is_a_copy_that_cannot_be_written():
    mine = PUBLIC.copy()
    explainer = HardenedProtoDash(mine, hardening=NOISY)
    mine[:] = 0
    assert np.array_equal(explainer.public, PUBLIC)
    with pytest.raises(ValueError, match="read-only"):
        explainer.public[0, 0] = 1


def test_nothing_that_is_planted_in_the_native_answer_leaves():
    def plant(answer, native):
        native.last = MARKER_NUMBER
        return *answer[:2], answer[2] * 0 + MARKER_NUMBER, {"marker": MARKER_NUMBER}

    explainer = HardenedProtoDash(PUBLIC, hardening=NOISY)
    with planted(type(native()), "explain", plant):
        released, held = explainer.explain(ASKED, m=3), native().explain(ASKED, PUBLIC, 3)
    assert [type(array) for array in released] == [np.ndarray] * 3
    assert all(array.base is None for array in released)
    assert find_markers(pickle.dumps(held))
    assert find_markers([released, pickle.dumps((released, explainer)), repr((released, explainer))]) == []


def test_whole_numbers_do_not_overflow_as_they_do_natively():
    grey = (PUBLIC * 200 + 1).astype(np.uint8)
    W, S, _ = HardenedProtoDash(grey, hardening=RAW).explain(grey[50:53], m=3)
    right = native().explain(grey[50:53].astype(float), grey.astype(float), 3)
    assert np.array_equal(W, right[0])
    assert np.array_equal(S, right[1])


UNANSWERABLE = [
    ({"X": ASKED[0]}, r"X: expected \(rows, features\) of finite numbers"),
    ({"X": ASKED * np.nan}, "NaN or infinity"),
    ({"X": ASKED[:, :5]}, "64 features"),
    ({"m": 120}, "from 1 to 119"),
    ({"m": 2.5}, "whole number"),
    ({"kernelType": "gaussian"}, "kernelType must be"),
    ({"optimizer": "cvxopt"}, "optimizer must be"),
    ({"kernelType": "Gaussian", "sigma": np.nan}, "sigma must be"),
]


def test_what_cannot_be_answered_is_said():
    for options, message in UNANSWERABLE:
        explainer = HardenedProtoDash(PUBLIC, hardening=NOISY)
        with pytest.raises(InputError, match=message):
            explainer.explain(**{"X": ASKED, "m": 3} | options)


def test_a_public_set_that_cannot_be_used_is_said():
    for public in (PUBLIC[:2], np.full((5, 3), np.inf)):
        with pytest.raises(InputError, match="public"):
            HardenedProtoDash(public, hardening=RAW)


def test_a_native_explainer_is_wrapped_with_a_public_set():
    wrapped = harden(native(), NOISY, public=PUBLIC)
    built = HardenedProtoDash(PUBLIC, hardening=NOISY)
    assert HardenedProtoDash(PUBLIC).hardening == Hardening.ranked()
    assert np.array_equal(wrapped.explain(ASKED, m=3)[0], built.explain(ASKED, m=3)[0])
    with pytest.raises(ConfigurationError, match="expected public rows to choose prototypes from"):
        harden(native(), NOISY)
