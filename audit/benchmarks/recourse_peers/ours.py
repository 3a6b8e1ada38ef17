"""safexplain's answers: one way for a plain answer of each model, and ways that ask for more.

To add a way, add a row to `WAYS`: its title, the models it reads, and what makes it ready: a function of the task that
returns what answers rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .tasks import PRIVATE, Task, Work

Answers = Callable[[np.ndarray], np.ndarray]
"""(m, width) rows of the table -> (m, width) answers; a row without one is NaN."""


def constraints(task: Task) -> Any:
    """What every tool is told, as far as it can be told."""
    from safexplain.recourse import Constraints

    rest = task.width - task.plain
    return Constraints(
        task.width,
        lower=[*task.low, *[0.0] * rest],
        upper=[*task.high, *[1.0] * rest],
        immutable=tuple(task.columns(task.fixed)),
        increasing=tuple(task.columns(task.rising)),
        integer=tuple(np.flatnonzero(task.whole).tolist()),
        one_hot=tuple(task.groups),
    )


def cost(task: Task, mad: bool = False) -> Any:
    """L1 over public ranges, or over median absolute deviations."""
    from safexplain.recourse import L1

    return L1(task.units(mad))


def network(task: Task) -> Any:
    """The network on rows of the table, in float64."""
    import torch

    from .tasks import layers

    scale = torch.nn.Linear(task.width, task.width).double()
    unit = np.concatenate([task.range, np.ones(task.width - task.plain)])
    shift = np.concatenate([task.low / task.range, np.zeros(task.width - task.plain)])
    weights = task.as_layers()
    net = layers([task.width, *(len(w) for w in weights[::2])]).double()
    with torch.no_grad():
        scale.weight.copy_(torch.from_numpy(np.diag(1 / unit)))
        scale.bias.copy_(torch.from_numpy(-shift))
        for p, w in zip(net.parameters(), weights, strict=True):
            p.copy_(torch.from_numpy(w))
    return torch.nn.Sequential(scale, *net).eval()


def found(answer: Any) -> np.ndarray:
    """Counterfactuals, NaN where there is none."""
    out: np.ndarray = np.where(answer.valid[:, None], answer.counterfactual, np.nan)
    return out


def plain(task: Task, mad: bool = False) -> Answers:
    """`linear_recourse`, or `network_recourse`."""
    rules, price = constraints(task), cost(task, mad)
    if task.model != "network":
        from safexplain.recourse import linear_recourse

        weights, bias = task.linear()
        return lambda rows: found(linear_recourse(weights, bias, rows, cost=price, constraints=rules))
    from safexplain.recourse.networks.search import network_recourse

    net = network(task)
    return lambda rows: found(network_recourse(net, rows, cost=price, constraints=rules))


@dataclass(frozen=True)
class Way:
    """One way to answer.

    Args:
        title: in tables.
        models: that it reads.
        ready: task -> what answers.
        at_once: rows that are asked about together; None: all.
        few: whether only some of a network's persons are asked about, as it takes its time.
    """

    title: str
    models: tuple[str, ...]
    ready: Callable[[Task], Answers]
    at_once: int | None = None
    few: bool = False


def plausible(task: Task) -> Answers:
    """`Plausibility` as a limit: no outlier among the public rows."""
    from safexplain.recourse import linear_recourse
    from safexplain.recourse.networks.search import network_recourse
    from safexplain.recourse.plausibility import Plausibility

    rules, price, near = constraints(task), cost(task), Plausibility(task.table[task.public])
    weights, bias = task.linear() if task.model != "network" else (None, 0.0)
    net = network(task)

    def answers(rows: np.ndarray) -> np.ndarray:
        def solve(at: Any, within: Any) -> Any:
            if weights is None:
                return network_recourse(net, rows[at], cost=price, constraints=rules, within=within)
            return linear_recourse(weights, bias, rows[at], cost=price, constraints=rules, within=within)

        return found(near.answers(rows, solve, lambda x: task.score(x) >= 0, cost=price, constraints=rules))

    return answers


BOTH = ("logistic", "network")
WAYS: tuple[Way, ...] = (
    Way("safexplain", (*BOTH, PRIVATE), plain),
    Way("safexplain, one at a time", BOTH, plain, at_once=1),
    Way("safexplain, cost in MAD", ("logistic",), lambda task: plain(task, mad=True)),
    Way("safexplain, plausible", ("logistic", PRIVATE), plausible, few=True),
)
"""In the order of the tables; the first is what the others are compared with."""


def call(way: Way, name: str, model: str) -> Callable[[Work], Callable[[], dict[str, Any]]]:
    """All persons, as a `Worker` calls it; one at a time: the next few in each run."""

    def ready(work: Work) -> Callable[[], dict[str, Any]]:
        task = Task(work, name, model)
        answers, persons = way.ready(task), task.persons[: 10 if way.few and model == "network" else None]
        origin = task.table[persons]
        if way.at_once is None:
            return lambda: {"rows": persons, "found": answers(origin), "units": len(persons)}
        size = (5 if model == "network" else 20) * way.at_once
        done: dict[int, np.ndarray] = {}
        turns = [0]

        def run() -> dict[str, Any]:
            at = [int(persons[(turns[0] + i) % len(persons)]) for i in range(min(size, len(persons)))]
            turns[0] += len(at)
            for start in range(0, len(at), way.at_once or 1):
                part = at[start : start + (way.at_once or 1)]
                for row, answer in zip(part, answers(task.table[part]), strict=True):
                    done[row] = answer
            return {"rows": np.array(list(done)), "found": np.stack(list(done.values())), "units": len(at)}

        return run

    return ready


def calls(names: tuple[str, ...]) -> dict[str, Callable[[Work], Callable[[], dict[str, Any]]]]:
    """Every way on every data set and model that it reads."""
    return {
        f"{way.title}, {name}, {model}": call(way, name, model)
        for way in WAYS for name in names for model in way.models
    }  # fmt: skip
