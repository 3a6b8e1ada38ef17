"""One training of a user's function with many canaries, instead of many trainings with one.

A coin for each canary decides what the training gets: the record itself or its canary, or a gradient up or down along a
parameter of its own. The trained model scores each, and the coins are guessed (Steinke, Nasr and Jagielski 2023, arXiv
2305.08846, with substituted records; `safexplain.verdict.canaries.result.judge_once`). A bound of one run is weaker
than one of many, and its canaries disturb each other; it is for models that cannot be trained a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain.audit.canaries.canary import Direction, RecordScenario, record_scores
from safexplain.audit.canaries.trainer.canary import logits_of
from safexplain.audit.canaries.trainer.data import NeighbouringData, Record
from safexplain.audit.canaries.trainer.gradient_hook import GradientHook
from safexplain.audit.canaries.trainer.runs import Train, call_watched, seed_of_run
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.canaries.result import GUESSED, OneRunResult, check_guesses, check_mechanism, judge_once
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["train_once"]

Array = NDArray[np.float64]

ALLOWED: tuple[ScenarioName, ...] = ("mislabelled", "natural", "gradient")
"""Scenarios of which there are many canaries for the records of a data set."""


def train_once(
    train: Train,
    data: Any,
    *,
    claim: Claim,
    scenario: ScenarioName,
    canaries: int,
    guesses: int | None,
    model: nn.Module | None,
    auxiliary: tuple[Any, Any] | None,
    method: OneRunMethod,
    confidence: float,
    seed: int,
    device: str | None,
) -> OneRunResult:
    """Train once on data with canaries in the place of random records, guess their coins, and judge.

    What `model`, which knows nothing of the coins, finds of each record and its canary is taken off their score. Errors
    and arguments are those of `CanaryProbe.run_once`.
    """
    count = max(1, round(GUESSED * canaries)) if guesses is None else guesses
    _check(scenario, canaries, count, len(data), claim, auxiliary)
    check_mechanism("f-dp", method, claim, instead="steinke")
    check_guesses(count, confidence)
    began = time.monotonic()
    rng = np.random.default_rng(np.random.SeedSequence([seed % 2**64, *b"one run"]))
    rows = rng.permutation(len(data))[:canaries].tolist()
    coins: NDArray[np.bool_] = rng.random(canaries) < 0.5

    def trained(what: str, records: Mapping[int, Record], hook: GradientHook | None = None) -> Any:
        number = seed_of_run(seed, what, 0)
        dataset = NeighbouringData(data, dict(records), fetched=hook.fetched if hook else None)
        return call_watched(train, dataset, number, device, hook, f"the {what} (seed {number})")

    if scenario == "gradient":
        scores = _gradient_scores(trained, rows, coins)
    else:
        own = [data[row] for row in rows]
        others = _outside(auxiliary, own, rng) if scenario == "natural" else _relabelled(data, own, rng)
        instead = {row: other for row, other, coin in zip(rows, others, coins, strict=True) if not coin}
        scores = _pair_scores(trained("training with canaries", instead), own, others, scenario)
        if model is not None:
            scores -= _pair_scores(model, own, others, scenario)
    name = getattr(train, "__qualname__", type(train).__qualname__)
    return judge_once(
        scores, coins, claim, guesses=count, centre=0.0 if scenario == "gradient" else None, method=method,
        confidence=confidence, scenario=scenario, seconds=time.monotonic() - began,
        setting={"trained": name, "records": len(data), "canaries": canaries},
    )  # fmt: skip


def _check(
    scenario: ScenarioName, canaries: int, guesses: int, records: int, claim: Claim, auxiliary: Any | None
) -> None:
    if scenario not in ALLOWED:
        raise ConfigurationError(
            f"scenario: expected one of {', '.join(ALLOWED)} for many canaries in one run, got {scenario!r}; judge"
            " scores of your own by safexplain.verdict.canaries.result.judge_once"
        )
    if not 1 <= guesses <= canaries <= records:
        raise ConfigurationError(
            f"expected 1 <= guesses <= canaries <= {records} (the records), got {guesses} guesses of {canaries}"
        )
    if claim.group != 1:
        raise ConfigurationError(f"claim: canaries of one run are single records, got a claim about {claim.group}")
    if scenario == "natural" and auxiliary is None:
        raise ConfigurationError('scenario "natural" picks among records outside the data: give auxiliary=(x, y)')


def _relabelled(data: Any, own: Sequence[Record], rng: np.random.Generator) -> list[Record]:
    """The same inputs, each under another label, drawn at random."""
    classes = torch.unique(torch.stack([data[i][1] for i in range(len(data))])).tolist()
    if len(classes) < 2:
        raise InputError("a mislabelled canary has another label, but all records have one; give auxiliary records")
    found = []
    for x, y in own:
        others = [label for label in classes if label != y.item()]
        found.append((x, torch.as_tensor(others[int(rng.integers(len(others)))]).to(y).reshape(y.shape)))
    return found


def _outside(auxiliary: Any, own: Sequence[Record], rng: np.random.Generator) -> list[Record]:
    """As many records outside the data, drawn at random."""
    x, y = (torch.as_tensor(part) for part in auxiliary)
    z, label = own[0]
    if len(x) != len(y) or x.shape[1:] != z.shape or len(x) < len(own):
        raise InputError(
            f"auxiliary: expected at least {len(own)} records of shape {tuple(z.shape)}, one for each canary, got"
            f" {tuple(x.shape)} and {tuple(y.shape)}"
        )
    chosen = rng.permutation(len(x))[: len(own)].tolist()
    return [(x[i].to(z), y[i].to(label).reshape(label.shape)) for i in chosen]


def _pair_scores(model: Any, own: Sequence[Record], others: Sequence[Record], scenario: ScenarioName) -> Array:
    """(m,) higher where the model was trained on the record itself."""
    if not isinstance(model, nn.Module):
        raise InputError(f"train must return a torch.nn.Module, got {type(model).__name__}")
    kind: RecordScenario = "natural" if scenario == "natural" else "mislabelled"
    at_own, at_other = (logits_of(model, torch.stack([x for x, _ in records])) for records in (own, others))
    pairs = zip(torch.split(at_own, 1), torch.split(at_other, 1), own, others, strict=True)
    return np.array([float(record_scores(a, b, int(z[1]), int(other[1]), kind)) for a, b, z, other in pairs])


def _gradient_scores(trained: Callable[..., Any], rows: Sequence[int], coins: NDArray[np.bool_]) -> Array:
    """(m,) how far each canary's parameter went its way, beyond its drift in a training without noise or canaries."""
    first = GradientHook(dict.fromkeys(rows, ()), trace=True)
    trained("reference training without noise", {}, first)
    assert first.movement is not None
    if len(first.movement) < len(rows):
        raise ConfigurationError(
            f"each gradient canary needs a parameter of its own: expected at most {len(first.movement)}, the"
            f" parameters of the optimizer, got {len(rows)}"
        )
    coordinates = first.movement.argsort()[: len(rows)].cpu()
    signs = np.where(coins, 1.0, -1.0)
    directions = (Direction((int(at),), (sign,)) for at, sign in zip(coordinates, signs, strict=True))
    hook = GradientHook({row: (direction,) for row, direction in zip(rows, directions, strict=True)})
    trained("training with canaries", {}, hook)
    return np.asarray(first.net.cpu()[coordinates].numpy() - signs * np.array(hook.moved), dtype=np.float64)
