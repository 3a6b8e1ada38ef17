"""The suite of releases: what it computes beside the library is right, and what its result says is what was judged."""

import json

import numpy as np
import pytest
import torch
from evidence import ROOT, twice
from torch import nn

from audit.shared import resampling
from audit.suites.releases import formats, suite, tables, tasks
from safexplain import Probability
from safexplain.audit.queries import Dither
from safexplain.verdict.stats import roc

RESULT = ROOT / "audit" / "results" / "releases.json"


def network(inputs=64, classes=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, classes)).eval()


@pytest.fixture
def queries():
    torch.manual_seed(1)
    return torch.rand(6, 64), torch.arange(6)


@pytest.mark.parametrize(
    ("name", "of_captum", "options", "within"),
    [
        ("InputXGradient", "InputXGradient", {}, 1e-6),
        ("Saliency", "Saliency", {}, 1e-6),
        ("IG", "IntegratedGradients", {"n_steps": 200}, 2e-3),
        ("FeatureAblation", "FeatureAblation", {}, 1e-6),
    ],
)
def test_native_maps_are_captums(queries, name, of_captum, options, within):
    import captum.attr

    x, target = queries
    model = network()
    expected = getattr(captum.attr, of_captum)(Probability(model)).attribute(
        x.clone().requires_grad_(), target=target, **options
    )
    found = tasks.NATIVE[name][1](model, x, target)
    assert found.detach().numpy() == pytest.approx(expected.detach().numpy(), abs=within)


def test_shapley_values_add_up_to_what_the_groups_change_and_are_exact_of_sums(queries):
    x, target = queries
    weight = torch.randn(64, generator=torch.Generator().manual_seed(2))

    class Linear(nn.Module):
        def forward(self, x):
            p = (0.5 + 0.005 * (x @ weight)).clamp(0, 1)
            return torch.stack([p, *[(1 - p) / 9] * 9], 1)

    found = tasks.kernel_shap(Linear(), x, torch.zeros_like(target))
    square = [(i // 8) // 2 * 4 + (i % 8) // 2 for i in range(64)]
    expected = torch.zeros(6, 16).index_add_(1, torch.tensor(square), 0.005 * x * weight)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    model = network()
    weights = tasks.kernel_shap(model, x, target)
    p = model(torch.stack([x, torch.zeros_like(x)])).softmax(-1)[:, range(6), target]
    assert weights.sum(1).numpy() == pytest.approx((p[0] - p[1]).detach().numpy(), abs=1e-5)


def test_rates_with_ties_are_those_of_the_interpolated_curve():
    rng = np.random.default_rng(3)
    member = rng.random(400) < 0.5
    signal = np.round(rng.normal(size=400) + 0.5 * member, 1)
    weights = np.concatenate([np.ones((400, 1)), rng.multinomial(400, np.full(400, 1 / 400), size=4).T], axis=1)
    auc, *tprs = resampling.interpolated_rates(signal, member, weights.astype(np.float32), (0.01, 0.05, 0.5))
    for b in range(5):
        again = np.repeat(np.arange(400), weights[:, b].astype(int))
        curve = roc(signal[again], member[again])
        assert auc[b] == pytest.approx(curve.auc, abs=1e-6)
        for fpr, tpr in zip((0.01, 0.05, 0.5), tprs, strict=True):
            assert tpr[b] == pytest.approx(np.interp(fpr, curve.fpr, curve.tpr), abs=1e-5)


def test_breaking_the_ties_of_a_score_gains_nothing():
    rng = np.random.default_rng(4)
    gains = []
    for _ in range(200):
        member = rng.random(400) < 0.5
        label = (rng.random(400) < 0.3 + 0.2 * member).astype(float)
        broken = label + 1e-3 * rng.random(400)
        once = np.ones((400, 1), np.float32)
        gains.append(
            float(
                resampling.interpolated_rates(broken, member, once, (0.01,))[1][0]
                - resampling.interpolated_rates(label, member, once, (0.01,))[1][0]
            )
        )
    assert abs(np.mean(gains)) < 4 * np.std(gains) / len(gains) ** 0.5


def test_deletion_and_insertion_of_the_right_features():
    class Two(nn.Module):
        """The probability of class 0 is .5 + the first feature less the second."""

        def forward(self, x):
            p = 0.5 + x[:, 0] - x[:, 1]
            return torch.stack([p, 1 - p], 1)

    x = torch.tensor([[0.3, 0.1, 0.2, 0.0, 0.0]])
    label = np.zeros(1, dtype=np.int64)
    deletion, insertion = suite.faithful(Two(), x, label, np.array([[3.0, -1.0, 0, 0, 0]]), 2)
    assert deletion == pytest.approx(0.3)
    assert insertion == pytest.approx(0.3)
    assert suite.faithful(Two(), x, label, np.array([[-3.0, 1.0, 0, 0, 0]]), 1) == pytest.approx((-0.1, -0.1))
    assert suite.faithful(Two(), x, label, np.zeros((1, 5)), 4) == (0, 0)


def test_wrong_signs_are_counted_among_released_numbers_only():
    native = np.array([[1.0, -2.0, 0.5, 0.1], [1.0, 2.0, 3.0, 4.0]])
    released = np.array([[1.0, 0.0, -0.5, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert suite.wrong_signs(native, released, 4) == (1 / 3, 0.5)
    assert suite.wrong_signs(native, released, 1) == (1 / 3, 0.0)


def figures(deletion=0.9, tpr=(0.0, 0.0), auc=(0.0, 0.0), **other):
    found = {name: {"value": value, "se": se} for name, (value, se) in {"tpr": tpr, "auc": auc}.items()}
    nothing = {name: {"value": 0.0, "se": 0.0} for name in found}
    levels = {"1": {"attacks": {"A": nothing}}, "40": {"attacks": {"A": nothing, "B": found}}}
    return {"levels": levels, "deletion": deletion, "insertion": 0.5, "utility": 0.5, "sign_errors": 0.0, **other}


@pytest.mark.parametrize(
    ("row", "safe", "faithful"),
    [
        (figures(), True, True),
        (figures(tpr=(0.009, 0.0)), True, True),
        (figures(tpr=(0.005, 0.004)), False, True),
        (figures(auc=(0.015, 0.004)), False, True),
        (figures(auc=(0.015, 0.002)), True, True),
        (figures(deletion=0.87), True, False),
        (figures(deletion=0.881), True, True),
        (figures(deletion=0.79, tpr=(0.1, 0.0)), False, False),
    ],
)
def test_each_criterion_fails_where_it_should(row, safe, faithful):
    rows = {"native": figures(0.9, tpr=(0.1, 0.01)), "row": row, suite.PUBLIC: figures(0.8)}
    judged = suite.judge(rows)["row"]
    assert (judged["safe"], judged["faithful"], judged["passes"]) == (safe, faithful, safe and faithful)


def test_what_public_models_explain_as_well_is_not_worth_its_risk():
    rows = {"native": figures(0.8), "row": figures(0.8), suite.PUBLIC: figures(0.81)}
    assert not suite.judge(rows)["row"]["passes"]


def test_the_worst_attack_is_sought_at_every_level_and_bounds_over_all_attacks():
    row = figures(tpr=(0.02, 0.001))
    row["levels"]["1"]["attacks"]["C"] = {"tpr": {"value": 0.01, "se": 0.05}, "auc": {"value": 0.0, "se": 0.0}}
    found = suite.worst(row, "tpr")
    assert (found["attack"], found["level"]) == ("B", 40)
    assert found["upper"] == pytest.approx(0.01 + suite.ONE_SIDED * 0.05)


def test_the_front_holds_what_nothing_beats():
    rows = {
        "native": figures(0.9, tpr=(0.1, 0.0)),
        "good": figures(0.9),
        "worse": figures(0.8),
        "flips": figures(0.9, sign_errors=0.1),
        "random map": figures(1.0),
    }
    rows["native"]["utility"] = 1.0
    assert suite.front(rows, suite.judge(rows)) == ["native", "good"]


def some_task(**other):
    pool = tasks.Population.of(np.random.default_rng(5).random((8, 64)), np.arange(8) % 2)
    given = {"explainers": ("InputXGradient",), "models": 2, "targets": 1, "levels": (1, 3), "dither": Dither()}
    return tasks.Task("digits", pool, pool, None, None, **{**given, **other}, source={})


def test_every_release_is_a_function_of_the_answer_alone_and_leaves_the_native_map_as_it_was():
    native = torch.randn(5, 64, generator=torch.Generator().manual_seed(6))
    native[0] = 0
    native[1, :30] = 0
    before = native.clone()
    for name, release in formats.releases(some_task(), "InputXGradient", 64).items():
        first, again = release(native, 0, 0), release(native, 0, 0)
        assert torch.equal(first, again), name
        assert torch.equal(native, before), name
        assert first.shape == native.shape
        assert bool(first.isfinite().all()), name


def test_noise_is_in_single_answers_only_and_the_null_differs_with_every_answer():
    native = torch.randn(5, 64, generator=torch.Generator().manual_seed(7))
    table = formats.releases(some_task(), "InputXGradient", 64)
    noisy = table["0.1's default"]
    assert not torch.equal(noisy(native, 0, 0), noisy(native, 0, 1))
    assert torch.equal(noisy(native, 0, 1), noisy(native, 0, 2)), "no zeros: what is averaged has no noise"
    null = table["random map"]
    assert len({float(null(native, model, query)[0, 0]) for model in range(3) for query in range(3)}) == 9


def test_averages_are_over_the_dithered_answers_and_the_plain_one_stands_alone():
    maps = np.random.default_rng(8).normal(size=(2, 4, 3, 5)).astype(np.float32)
    asked = tasks.Asked(maps, np.zeros((2, 3), np.int64))
    plain, three = (asked.average(lambda rows, *_: 2 * rows, level) for level in (1, 3))
    assert plain == pytest.approx(2 * maps[:, 0])
    assert three == pytest.approx(2 * maps[:, 1:].mean(1), rel=1e-5)


def test_pools_of_a_task_share_nothing_with_its_public_part():
    task = tasks.digits("small", ROOT)
    rows = [{row.numpy().tobytes() for row in part.x} for part in (task.pool, task.public)]
    assert len(rows[0]) == 600
    assert not rows[0] & rows[1]


@pytest.mark.skipif(not RESULT.is_file(), reason="no result yet")
def test_the_committed_verdicts_follow_from_the_committed_figures():
    found = json.loads(RESULT.read_text())
    again = {f"{t} {x}": suite.judge(cell["releases"]) for t, x, cell in tables.cells(found)}
    for task, explainer, cell in tables.cells(found):
        for name, row in cell["releases"].items():
            said = again[f"{task} {explainer}"][name]
            assert row["judged"]["passes"] == said["passes"], (task, explainer, name)
        assert not any(at["upper"] > 0.02 for at in [cell["releases"]["random map"]["judged"]["auc"]]), (
            "attacks find something in random maps"
        )


@pytest.mark.slow
def test_a_quick_run_judges_and_resumes(tmp_path):
    both = twice("audit.suites.releases", tmp_path, "--task", "digits")
    first, again = (found["results"]["digits"]["cells"] for found in both)
    assert first == again
    assert {"native", "random map", suite.PUBLIC, suite.STUDENT} <= first["InputXGradient"]["releases"].keys()
