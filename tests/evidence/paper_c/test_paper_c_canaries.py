"""audit/suites/paper_c_canaries: what they compute beside the library is right, and they run."""

import json

import numpy as np
import pytest

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from dp_accounting import get_epsilon_gaussian
from scipy.special import ndtri

from audit.shared.run import RESULTS
from audit.suites.bound_errors.suite import best_of_all
from audit.suites.paper_c_canaries import runs
from safexplain.verdict.canaries.result import _from_counts
from safexplain.verdict.stats import clopper_pearson


def one_threshold(a, b, threshold, delta):
    fpr = clopper_pearson(int((b >= threshold).sum()), len(b))[1]
    fnr = clopper_pearson(int((a < threshold).sum()), len(a))[1]
    mu = ndtri(1 - fpr) - ndtri(fnr)
    return get_epsilon_gaussian(1 / mu, delta) if mu > 0 else 0.0


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_papers_estimator_is_the_best_of_all_thresholds_one_after_another(shift):
    rng = np.random.default_rng(1)
    a, b = np.round(rng.normal(shift, 1, 70), 1), np.round(rng.normal(-shift, 1, 60), 1)  # with ties
    slow = max(one_threshold(a, b, t, 1e-5) for t in np.unique([*a, *b]))
    assert best_of_all(a, b) == pytest.approx(slow, rel=1e-9)
    assert slow >= one_threshold(a, b, 0.0, 1e-5)


def test_the_threshold_of_records_is_fixed_by_runs_that_do_not_count():
    rng = np.random.default_rng(0)
    a, b = rng.normal(6, 1, (2, 100)), rng.normal(4, 1, (2, 80))
    a[1] += 10
    b[1] += 10
    found = runs.centred(runs.Scores((1, 2), a, b), share=0.25)
    assert found.d.shape == (2, 80)
    assert found.d_prime.shape == (2, 60)
    assert np.ptp(a[:, 20:] - found.d, axis=1) == pytest.approx(0)  # one threshold a step, the same for D and D'
    assert (a[:, 20:] - found.d)[:, 0] == pytest.approx((b[:, 20:] - found.d_prime)[:, 0])
    assert (a[:, 20] - found.d[:, 0]) == pytest.approx([5, 15], abs=0.5)
    a[:, 20:] += 100
    again = runs.centred(runs.Scores((1, 2), a, b), share=0.25)
    assert np.array_equal(again.d_prime, found.d_prime)  # what is counted has no say in where


def test_committed_verdicts_are_what_the_library_says_of_their_counts():
    found = json.loads((RESULTS / "canary_figure3.json").read_text())["results"]
    for *_, cell in list(runs.cells_of(found))[::3]:
        one = cell["repeats"][0]
        again = _from_counts(one).to_dict()
        assert again["verdict"] == one["verdict"]
        assert again["detectable"] == (one["detectable"] and pytest.approx(one["detectable"], rel=0.05))
