"""audit/suites/paper_c_canaries: the sweep, its accuracies, estimates of time, and verdicts anew."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from evidence import needs, run, twice
from torch.nn import functional as F

from audit.shared.run import RESULTS, Unusable, write_json
from audit.suites.paper_c_canaries import (
    figure2,
    images,
    rejudge,
    runs,
    scratch,
    sweep,
    tables,
    tasks,
    utility,
    work,
)
from safexplain._privacy_loss import Steps
from safexplain.audit.canaries.canary import GradientCanary, RecordCanary
from safexplain.verdict.canaries.result import Scores, judge


def setting(classes=3, steps=6, rate=1.0, lr=0.5, records=30, **changed):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(records) % classes
    x = torch.randn(records, 4, generator=generator) + y[:, None]
    training = tasks.Training(classes, steps, lr=lr, clip=1.0, bias=classes > 2, one_logit=classes == 2)
    return training.setting("some", x, y, rate, (x[:10] + 1, y[:10]))


def clipped(gradients, bound):
    return gradients * (bound / gradients.norm(dim=1, keepdim=True)).clamp(max=1)


def ones(x):
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def slow_training(s, target, other, label, steps):
    """Weights after each step of a noiseless linear head in which a record, or a gradient, stands in for the target."""
    theta, found = torch.zeros(s.recipe.classes, 5), []
    kept = torch.arange(len(s.x)) != target
    x, y = s.x[kept], s.y[kept]
    if label is not None:
        x, y = torch.cat([x, other[None]]), torch.cat([y, torch.tensor([label])])
    for _ in range(steps):
        wrong = (ones(x) @ theta.T).softmax(1) - F.one_hot(y, s.recipe.classes)
        total = clipped((wrong[:, :, None] * ones(x)[:, None]).flatten(1), s.recipe.clipping.bound).sum(0)
        total = total + other if label is None else total
        theta = theta - s.recipe.lr * total.reshape(theta.shape) / s.recipe.expected_batch_size
        found.append(theta)
    return found


def right(trained, outside):
    return [((ones(outside[0]) @ theta.T).argmax(1) == outside[1]).double().mean().item() for theta in trained]


@pytest.mark.parametrize("kind", ["gradient", "record"])
def test_accuracies_are_those_of_a_plain_loop(kind):
    given = setting()
    noiseless = replace(given, claim=replace(given.claim, mechanism=Steps(1e-6, 1.0, 6)))
    generator = torch.Generator().manual_seed(5)
    outside = (torch.randn(200, 4, generator=generator) * 2, torch.randint(3, (200,), generator=generator))
    if kind == "gradient":
        canary, gradient = GradientCanary(4, 13), torch.zeros(15)
        gradient[13] = 1.0
        pair = [(gradient, None), (-gradient, None)]
    else:
        other = torch.tensor([3.0, -4.0, 2.0, 1.0])
        canary = RecordCanary("natural", 4, other, 2)
        pair = [(given.x[4], int(given.y[4])), (other, 2)]
    found = utility.accuracies(noiseless, canary, outside, models=2, steps=[2, 4, 6], seed=0)
    for arm, (other, label) in zip(found, pair, strict=True):
        expected = right(slow_training(given, 4, other, label, 6), outside)
        assert arm.shape == (2, 3)
        assert arm == pytest.approx(np.tile([expected[i] for i in (1, 3, 5)], (2, 1)), abs=0.006)


def test_time_is_the_work_times_what_a_step_took_and_shared_trainings_count_once(monkeypatch):
    asked = []
    monkeypatch.setattr(work, "seconds_of_a_step", lambda s, r: asked.append(s.recipe.steps) or 0.5)
    given = {"scenarios": ("gradient", "crafted"), "every": 2}
    one = tasks.Task({1.0: setting(), 0.5: setting(rate=0.5)}, runs=100, repeats=3, **given)
    seconds, said = work.estimated([one], "cpu")
    assert seconds == pytest.approx(0.5 * 6 * 2 * 3 * 2)  # steps, canaries, repeats, rates; a block holds all runs
    assert "1,200 trainings" in said
    assert "That is an estimate" in said
    assert "of a GPU" in said
    longer = tasks.Task({1.0: setting(), 0.25: setting(steps=12, rate=0.25)}, runs=100, repeats=3, **given)
    more, _ = work.estimated([one, longer], "cpu")
    assert more == pytest.approx(seconds + 0.5 * 12 * 2 * 3)
    assert asked == [6, 6, 6, 6, 12]


def test_a_step_is_timed():
    assert 0 < work.seconds_of_a_step(setting(), 20) < 10
    assert [work.spoken(s) for s in (20, 600, 7200)] == ["20 s", "10 min", "2.0 h"]


def test_full_sizes_are_the_papers():
    assert (sweep.FULL.runs, sweep.FULL.repeats, sweep.FULL.counted[-1], sweep.FULL.classes) == (2500, 3, 2500, 10)
    assert (sweep.FULL.steps, sweep.FULL.rates) == ((500, 2500), (1.0, 0.25, 0.0625))
    size = scratch.FULL[scratch.LONG]
    assert (size.runs, size.repeats, size.steps, size.hidden) == (2500, 3, 2500, 128)


def written(folder, claim, runs_a_side, shift, name):
    rng = np.random.default_rng(len(name))
    path = folder / f"{name}.npz"
    d, d_prime = rng.normal(shift, 1, (2, runs_a_side)), rng.normal(-shift, 1, (2, runs_a_side))
    np.savez(path, steps=(2, 6), d=d, d_prime=d_prime)
    return path


def test_fewer_runs_are_the_first_of_all(tmp_path):
    claim = setting().claim
    paths = [written(tmp_path, claim, 60, 1.0, name) for name in ("a", "bb")]
    few = sweep.counted(paths, claim, "gradient", 41)
    whole = tasks.scores_of(paths[0])
    alone = judge(Scores((6,), whole.d[1:, :21], whole.d_prime[1:, :20]), claim, scenario="gradient", threshold=0.0)
    assert few["counts"][0][1::2] == [20, 21]
    both = [sweep.counted([path], claim, "gradient", 41)["epsilon_lower"]["mean"] for path in paths]
    assert both[0] == pytest.approx(alone.epsilon_lower)
    assert few["epsilon_lower"]["mean"] == pytest.approx(np.mean(both))
    assert few["epsilon_lower"]["two_se"] == pytest.approx(abs(both[0] - both[1]))
    all_runs = sweep.counted(paths, claim, "crafted", 120)["counts"][0]
    assert all_runs[1] == all_runs[3] == 48  # a fifth fixes the threshold of records


def cell(*curve):
    return {"paper_estimator": {"mean": curve[-1], "curve": list(curve)}}


def values(**ends):
    """Three values of what a figure varies, and where each canary ends with it."""
    return {
        "values": {
            str(i): {"rates": {"1": {"cells": {name: cell(end[i]) for name, end in ends.items()}}}} for i in range(3)
        }
    }


def test_what_the_paper_says_of_a_figure_is_compared_with_it():
    steady, falling, rising = [8.0, 8.0, 7.9], [8.0, 6.0, 2.0], [2.0, 6.0, 8.0]
    as_published = values(gradient=steady, crafted=falling, mislabelled=steady, natural=falling)
    assert sweep.missed({"A2": as_published, "A3": as_published}) == []
    other = values(gradient=steady, crafted=rising, mislabelled=steady, natural=falling)
    assert [line.partition(":")[0] for line in sweep.missed({"A2": other, "A3": other})] == ["A2", "A3"]
    moved = values(gradient=steady, crafted=rising, mislabelled=falling, natural=falling)
    assert sweep.missed({"A4": moved}) == []
    assert len(sweep.missed({"A4": as_published})) == 1  # the mislabelled one does not move more than the gradient
    assert sweep.missed({"A5": {"cells": [{"ratio": 2.2}]}}) == []
    assert len(sweep.missed({"A5": {"cells": [{"ratio": 1.9}]}})) == 1
    arms = {"a": {"mean": [0.1, 0.8]}, "b": {"mean": [0.2, 0.79]}}
    assert sweep.missed({"A1": {"accuracy": arms}}) == []
    assert len(sweep.missed({"A1": {"accuracy": arms | {"c": {"mean": [0.2, 0.7]}}}})) == 1


def by_runs(*means):
    return {"5": {"rates": {"1": {"add_remove": 4.0, "cells": {"gradient": [
        {"epsilon_lower": {"mean": mean}} for mean in means
    ]}}}}}  # fmt: skip


def test_more_runs_show_more():
    assert sweep.missed(by_runs(3.0, 8.0)) == []
    assert len(sweep.missed(by_runs(8.0, 7.0))) == 1
    assert len(sweep.missed(by_runs(1.0, 3.0))) == 1


def test_accounting_is_more_than_twice_add_remove_only_where_the_noise_is_large_for_the_rate():
    found = {(c["sample_rate"], c["noise_multiplier"]): c for c in sweep.accounting()}
    assert found[1.0, 5.0]["ratio"] > 2.5
    assert found[0.01, 0.7]["ratio"] < 1.5
    for c in found.values():
        assert c["add_remove"] < c["substitute"] <= sweep.MOST
        assert c["group_privacy"] is None or c["group_privacy"] >= c["substitute"] - 0.01


def test_verdicts_follow_from_the_counts_again_and_nothing_else_changes(tmp_path, capsys):
    claim = setting().claim
    scores = tasks.scores_of(written(tmp_path, claim, 60, 1.0, "a"))
    one = judge(scores, claim, scenario="gradient", threshold=0.0, seconds=12.0).to_dict()
    kept = {"trained": 120, "curve": [1.0, 2.0], "paper_estimator": [1.0, 2.0], "ceilings": [3.0, 4.0]}
    stale = {**one, **kept, "verdict": "of an earlier version", "epsilon_lower": 0.5}
    content = {"results": {"task": {"rates": {"1": {"cells": {"gradient": {"repeats": [stale]}}}}}}, "quick": False}
    write_json(tmp_path / "out.json", content)
    assert rejudge.rejudge(tmp_path / "out.json") == 0
    assert "1 verdicts changed" in capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    again = found["results"]["task"]["rates"]["1"]["cells"]["gradient"]["repeats"][0]
    assert again["verdict"] == one["verdict"]
    assert again["epsilon_lower"] == pytest.approx(one["epsilon_lower"], abs=1e-5)
    assert {name: again[name] for name in (*kept, "seconds")} == {**kept, "seconds": 12.0}
    with pytest.raises(Unusable, match="no result"):
        rejudge.rejudge(tmp_path / "none.json")


@pytest.mark.parametrize("name", ["figure3", "scratch", "sweep"])
def test_committed_verdicts_are_what_the_library_says_of_their_counts(name):
    found = json.loads((RESULTS / f"canary_{name}.json").read_text())["results"]
    for one, *_ in list(rejudge.repeats_in(found))[::10]:
        again = rejudge.judged(one)
        assert again["verdict"] == one["verdict"], "run the suite with --rejudge"
        assert again["detectable"] == (one["detectable"] and pytest.approx(one["detectable"], rel=0.05))


def test_an_unknown_task_is_named(tmp_path):
    options = Namespace(
        name="some",
        quick=True,
        full=False,
        rejudge=False,
        only="none",
        runs=None,
        repeats=None,
        out=None,
        cache=tmp_path,
    )
    with pytest.raises(Unusable, match=r"'a task'.*'none'"):
        runs.report(options, lambda _: {"a task": None}, (), lambda _: [])


def test_a_row_has_what_every_repeat_would_have_found():
    two = {"epsilon_lower": {"mean": 5.0, "two_se": 0.5}, "paper_estimator": {"mean": 6.0}}
    repeats = [{"trained": 40, "detectable": e, "verdict": "not refuted"} for e in (12.5, None)]
    at = {"add_remove": [1.0], "substitute": [2.0], "cells": {"gradient": two | {"repeats": repeats}}}
    row = tables.on_data({"results": {"task": {"rates": {"1": at}}}}).splitlines()[-1]
    assert row.endswith("| 5.00 ± 0.50 | 6.00 | 1.00 | 2.00 | 12.5, nothing | not refuted |")


def test_figure_2_says_how_long_its_full_size_takes(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(figure2, "NOISE", {1.0: figure2.NOISE[1.0]})
    given = ["--full", "--quick", "--runs", "200", "--repeats", "1", "--out", str(tmp_path / "out.json")]
    figure2.main(given)
    assert "estimate" in capsys.readouterr().out


@pytest.mark.slow
@needs("cifar10.npz", f"weights/{images.NETS['quick']}.npz")
def test_the_sweep_runs_quickly_and_resumes(tmp_path):
    first, again = twice("audit.suites.paper_c_canaries.sweep", tmp_path)
    assert first["results"].keys() == set(sweep.PUBLISHED)
    for figure in ("A2", "A3", "A4"):
        assert first["results"][figure]["values"] == again["results"][figure]["values"]
    assert first["results"]["5"]["rates"] == again["results"]["5"]["rates"]
    assert first["results"]["A1"]["accuracy"] == again["results"]["A1"]["accuracy"]
    done, one = run(
        "audit.suites.paper_c_canaries.sweep", "--quick", "--figure", "A5", "--cache", tmp_path / "cache",
        out=tmp_path / "out.json",
    )  # fmt: skip
    assert done.returncode == 0
    assert one["results"]["A2"] == again["results"]["A2"]  # what was not asked for is kept
