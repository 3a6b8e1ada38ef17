"""audit/benchmarks/recourse_peers: every tool is told and judged alike, and the exact program is exact."""

from __future__ import annotations

import ast
import itertools
import json

import numpy as np
import pytest
from evidence import ROOT

from audit.benchmarks.peers.environments import Environment, Skipped
from audit.benchmarks.recourse_peers import ours, suite, tables, tasks, theirs
from audit.shared.run import RESULTS

RESULT = RESULTS / "recourse_peers.json"
NAME = "COMPAS"
NEVER, RISES, COUNT, PART, KIND = "race", "age", "count", "part", "kind"


def small(seed=0, n=60, width=(3, 2)):
    """A data set of five features under COMPAS' lists of what may change, with a regression and a network."""
    rng = np.random.default_rng(seed)
    numbers = np.column_stack([rng.integers(0, 5, n), rng.integers(0, 4, n), rng.normal(size=n).round(3)]).astype(float)
    codes = np.column_stack([rng.integers(0, 3, n), rng.integers(0, 2, n)])
    numbers[:2], codes[:3] = [[0, 0, -2.5], [4, 3, 2.5]], [[0, 0], [1, 1], [2, 0]]  # every value occurs
    work = {
        f"{NAME} numbers": numbers, f"{NAME} codes": codes, f"{NAME} y": rng.integers(0, 2, n),
        f"{NAME} names": np.array([RISES, COUNT, PART, KIND, NEVER]), f"{NAME} public": np.arange(40),
        f"{NAME} logistic 0": rng.normal(size=8), f"{NAME} logistic 1": np.array([-0.5]),
    }  # fmt: skip
    widths = (8, *width, 2)
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        work[f"{NAME} network {2 * i}"] = rng.normal(size=(b, a))
        work[f"{NAME} network {2 * i + 1}"] = rng.normal(size=b)
    for model in tasks.MODELS:
        score = tasks.Task(work, NAME, model).score(tasks.Task(work, NAME).table)
        work[f"{NAME} {model} persons"] = np.flatnonzero(score < -0.05)[:12]
    return work


def task_of(model="logistic", seed=0):
    return tasks.Task(small(seed), NAME, model)


# --------------------------------------------------------------------------------------------------------- the judge


def test_the_table_has_a_column_a_number_and_one_a_category():
    task = task_of()
    assert task.width == 3 + 3 + 2
    assert task.groups == [(3, 4, 5), (6, 7)]
    assert task.columns([0, 4]) == [0, 6, 7]
    assert (task.table[:, 3:6].sum(1) == 1).all()
    assert np.allclose(task.unscaled(task.scaled(task.table)), task.table)
    assert task.whole.tolist() == [True, True, False]
    assert ([task.names[i] for i in task.fixed], [task.names[i] for i in task.rising]) == ([NEVER], [RISES])


def test_one_model_is_read_in_three_ways():
    task = task_of()
    weights, bias = task.linear()
    assert np.allclose(task.table @ weights + bias, task.score(task.table))
    last = task.as_layers()
    outputs = task.scaled(task.table) @ last[0].T + last[1]
    assert np.allclose(outputs[:, 1] - outputs[:, 0], task.score(task.table))
    torch = pytest.importorskip("torch")
    network = task_of("network")
    with torch.no_grad():
        logits = ours.network(network)(torch.from_numpy(network.table)).numpy()
    assert np.allclose(logits[:, 1] - logits[:, 0], network.score(network.table))


def test_each_constraint_is_judged_by_itself():
    task = task_of()
    origin = task.table[:1].copy()
    origin[0] = [2, 1, 0.0, 1, 0, 0, 1, 0]
    breaks = {
        "fixed": [2, 1, 0.0, 1, 0, 0, 0, 1],
        "rising": [1, 1, 0.0, 1, 0, 0, 1, 0],
        "range": [2, 1, 9.0, 1, 0, 0, 1, 0],
        "whole": [2, 1.5, 0.0, 1, 0, 0, 1, 0],
        "one category": [2, 1, 0.0, 0.6, 0.4, 0, 1, 0],
    }
    for kind, row in breaks.items():
        kept = task.kept(origin, np.array([row], dtype=float))
        assert {name for name, each in kept.items() if not each[0]} == {kind}
    assert all(each[0] for each in task.kept(origin, origin).values())


def test_another_category_costs_one_and_counts_once():
    task = task_of()
    origin = np.array([[2, 1, 0.0, 1, 0, 0, 1, 0]], dtype=float)
    answer = np.array([[4, 1, 0.0, 0, 1, 0, 1, 0]], dtype=float)
    assert task.cost(origin, answer)[0] == pytest.approx(2 / 4 + 1)
    assert task.changed(origin, answer).tolist() == [2]


def test_only_answers_that_are_granted_and_keep_everything_are_usable():
    task = task_of()
    score = task.score(task.table)
    refused, granted = int(score.argmin()), int(score.argmax())
    origin = task.table[[refused] * 3]
    found = np.stack([task.table[refused], task.table[granted], np.full(task.width, np.nan)])
    found[1, 6:] = origin[1, 6:]
    found[1, 0] = 4
    nobody = lambda rows: np.zeros(len(rows), dtype=bool)  # noqa: E731
    told = tasks.judged(task, origin, found, nobody, {"other": np.array([1.0, 2.0, 3.0])})
    assert told["answered"] == pytest.approx(1 / 3)  # an answer that changes nothing is none
    good = task.score(found[1:2])[0] >= 0
    assert told["usable"] == pytest.approx(good / 3)
    costs = tasks.usable_costs(task, np.array([refused, granted]), np.stack([found[2], task.table[granted]]))
    assert np.isnan(costs[refused])
    assert costs[granted] == 0.0
    if good:
        assert told["over"]["other"]["mean"] == pytest.approx(told["cost"] / 2)


def test_rows_far_from_all_public_ones_are_outliers():
    task = task_of()
    far = task.table[:1].copy()
    far[0, 2] = 40.0
    assert task.outliers()(far).tolist() == [True]
    assert task.outliers()(task.table[task.public]).mean() < 0.3


# ------------------------------------------------------------------------------------------------------ the answers


def cheapest(task, row, grid):
    """Least cost over a grid of the only fractional number, every whole number and every category."""
    origin, best = task.table[row], np.inf
    for age, count, part, kind in itertools.product(range(int(origin[0]), 5), range(4), grid, range(3)):
        answer = np.concatenate([[age, count, part], np.eye(3)[kind], origin[6:]])
        if task.score(answer[None])[0] >= 0:
            best = min(best, float(task.cost(origin[None], answer[None])[0]))
    return best


@pytest.mark.parametrize("model", tasks.MODELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_exact_program_finds_the_cheapest_row_there_is(model, seed):
    task = task_of(model, seed)
    one, grid = theirs.program(task), np.linspace(-2.5, 2.5, 101)
    for row in task.persons[:3].tolist():
        found, least = one(row), cheapest(task, row, grid)
        if found is None:
            assert np.isinf(least)
            continue
        origin = task.table[[row]]
        assert task.score(found[None])[0] >= tasks.REACHED
        assert all(each[0] for each in task.kept(origin, found[None]).values())
        cost = float(task.cost(origin, found[None])[0])
        assert cost <= least + 1e-6
        assert cost >= least - 5 / 100 / 5 - 1e-6  # a step of the grid


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_our_answers_of_a_regression_cost_what_the_exact_ones_do(seed):
    task = task_of("logistic", seed)
    found, one = ours.plain(task)(task.table[task.persons]), theirs.program(task)
    for row, answer in zip(task.persons.tolist(), found, strict=True):
        exact = one(row)
        assert (exact is None) == bool(np.isnan(answer).any())
        if exact is not None:
            costs = task.cost(task.table[[row, row]], np.stack([answer, exact]))
            assert costs[0] == pytest.approx(costs[1], abs=1e-5)


def test_every_way_answers_in_a_worker(tmp_path):
    work = small()
    for way in ours.WAYS:
        if "logistic" in way.models and "plausible" not in way.title:
            told = ours.call(way, NAME, "logistic")(work)()
            assert told["found"].shape == (len(told["rows"]), 8)
            assert told["units"] == len(told["rows"])


# -------------------------------------------------------------------------------------------------------- the suite


def test_what_runs_in_carla_is_written_for_python_3_7():
    for name in ("recourse_peers/__init__", "recourse_peers/tasks", "recourse_peers/in_carla", "peers/worker"):
        ast.parse((ROOT / "audit" / "benchmarks" / f"{name}.py").read_text(), feature_version=(3, 7))


def test_a_python_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Skipped, match=r"python0\.1"):
        Environment("old", ("something",), interpreter="python0.1").python(tmp_path)


def test_every_tool_has_a_call_for_everything_it_is_asked():
    for peer in suite.PEERS:
        for data, model in itertools.product(tasks.NAMES, (*tasks.MODELS, tasks.PRIVATE)):
            for tool in suite.contests(data, model, peer):
                if peer.module == "theirs":
                    assert f"{tool}, {data}, {model}" in theirs.CALLS
    assert "CARLA ActionableRecourse" not in suite.contests("HELOC", "network", suite.PEERS[-1])


def test_answers_dearer_than_the_exact_ones_are_named():
    tools = {"safexplain": {"over": {"HiGHS": {"most": 1.01}}}}
    assert suite.dearer({"HELOC, logistic": {"tools": tools}, "HELOC, network": {"tools": tools}}) == [
        "HELOC, logistic: an answer costs 1.0100 times the least"
    ]


@pytest.fixture(scope="module")
def committed():
    return json.loads(RESULT.read_text())


def test_our_recorded_answers_keep_everything_and_are_never_dearer_than_the_exact_ones(committed):
    assert suite.dearer(committed["results"]) == []
    for title, result in committed["results"].items():
        for tool, t in result["tools"].items():
            if tool.startswith("safexplain") and "skipped" not in t:
                assert t["usable"] == t["granted"], (title, tool)
                assert all(share in (1.0, None) for share in t["kept"].values()), (title, tool)


def test_every_table_is_written_from_the_result(committed):
    for name, make in tables.TABLES.items():
        if name == "recourse peers: missing":
            continue
        lines = make(committed).splitlines()
        assert len(lines) > 2, name
        assert len({line.count("|") for line in lines}) == 1, name
    assert "skipped: no Python" in tables.answers(
        {"results": {"HELOC, logistic": {"tools": {"CARLA": {"skipped": "no Python"}}}}}
    )
