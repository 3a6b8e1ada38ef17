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
from torch import Tensor, nn

from safexplain.audit.canaries.canary import RecordScenario, record_scores
from safexplain.audit.canaries.trainer.canary import logits_of
from safexplain.audit.canaries.trainer.data import NeighbouringData, Record, stacked
from safexplain.audit.canaries.trainer.gradient_hook import OVER, GradientHook
from safexplain.audit.canaries.trainer.runs import Train, call_watched, seed_of_run
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import Claim, ScenarioName
from safexplain.verdict.canaries.result import GUESSED, OneRunResult, check_guesses, check_mechanism, judge_once
from safexplain.verdict.stats.one_run import OneRunMethod

__all__ = ["GradientsHook", "train_once"]

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
    guesses: int | None = None,
    model: nn.Module | None = None,
    auxiliary: tuple[Any, Any] | None = None,
    method: OneRunMethod = "f-dp",
    confidence: float = 0.95,
    seed: int = 0,
    device: str | None = None,
) -> OneRunResult:
    """Train once on data with canaries, guess their coins, and judge.

    Args:
        train: (dataset, generator) -> model, or (dataset, generator, device) -> model.
        data: records, as `data.records` makes them.
        claim: what the training is said to keep, about one record.
        scenario: "mislabelled": the record or the same input under another label, drawn at random; "natural": the
            record or one of `auxiliary`; "gradient": the gradient up or down along a parameter of the canary's own, in
            loops with an optimizer of Opacus or `safexplain.dp`, after a training without noise that finds those
            parameters.
        canaries: how many records are replaced, drawn at random; the others are trained on as they are.
        guesses: how many coins are guessed; None: a fifth.
        model: one like the trained, but not of these coins: how likely it finds each record and its canary is taken off
            their score. None: nothing is taken off.
        auxiliary: pair (x, y) of at least so many records as there are canaries.
        method: "f-dp" or "steinke".
        confidence: of the bound.
        seed: of coins, records and training.
        device: handed to `train`.

    Raises:
        ConfigurationError: another scenario, more canaries than records, a claim about groups, or no mechanism.
        InputError: too few guesses, auxiliary records that do not fit, or a training that fails.
        RefusedError: the loop's gradients cannot be replaced.
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
        scores = _record_scores(trained, data, rows, coins, scenario, model, auxiliary, rng)
    return judge_once(
        scores, coins, claim, guesses=count, centre=0.0 if scenario == "gradient" else None, method=method,
        confidence=confidence, scenario=scenario, seconds=time.monotonic() - began,
        setting={
            "trained": getattr(train, "__qualname__", type(train).__qualname__), "records": len(data),
            "canaries": canaries,
        },
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


def _record_scores(
    trained: Callable[..., Any],
    data: Any,
    rows: Sequence[int],
    coins: NDArray[np.bool_],
    scenario: ScenarioName,
    model: nn.Module | None,
    auxiliary: tuple[Any, Any] | None,
    rng: np.random.Generator,
) -> Array:
    """(m,) higher where the model was trained on the record itself (coin True)."""
    own = [data[row] for row in rows]
    if scenario == "natural":
        assert auxiliary is not None
        instead = _others(auxiliary, own, rng)
    else:
        classes = torch.unique(stacked(data)[1]).tolist()
        if len(classes) < 2:
            raise InputError("a mislabelled canary has another label, but all records have one; give auxiliary records")
        instead = []
        for x, y in own:
            others = [label for label in classes if label != y.item()]
            instead.append((x, torch.as_tensor(others[int(rng.integers(len(others)))]).to(y).reshape(y.shape)))
    replaced = {row: canary for row, canary, coin in zip(rows, instead, coins, strict=True) if not coin}
    found = _pair_scores(trained("training with canaries", replaced), own, instead, scenario)
    return found if model is None else found - _pair_scores(model, own, instead, scenario)


def _others(auxiliary: tuple[Any, Any], own: Sequence[Record], rng: np.random.Generator) -> list[Record]:
    x, y = (torch.as_tensor(part) for part in auxiliary)
    z, label = own[0]
    if len(x) != len(y) or x.shape[1:] != z.shape or len(x) < len(own):
        raise InputError(
            f"auxiliary: expected at least {len(own)} records of shape {tuple(z.shape)}, one for each canary, got"
            f" {tuple(x.shape)} and {tuple(y.shape)}"
        )
    chosen = rng.permutation(len(x))[: len(own)].tolist()
    return [(x[i].to(z), y[i].to(label).reshape(label.shape)) for i in chosen]


def _pair_scores(model: Any, own: Sequence[Record], instead: Sequence[Record], scenario: ScenarioName) -> Array:
    if not isinstance(model, nn.Module):
        raise InputError(f"train must return a torch.nn.Module, got {type(model).__name__}")
    at_own = logits_of(model, torch.stack([x for x, _ in own]))
    at_canary = logits_of(model, torch.stack([x for x, _ in instead])) if scenario == "natural" else at_own
    kind: RecordScenario = "natural" if scenario == "natural" else "mislabelled"
    return np.array(
        [
            float(record_scores(at_own[i : i + 1], at_canary[i : i + 1], int(own[i][1]), int(instead[i][1]), kind))
            for i in range(len(own))
        ]
    )


def _gradient_scores(trained: Callable[..., Any], rows: Sequence[int], coins: NDArray[np.bool_]) -> Array:
    """(m,) how far each canary's parameter went its way, beyond its drift in a training without noise or canaries."""
    first = GradientsHook(rows, None, None, trace=True)
    trained("reference training without noise", {}, first)
    assert first.movement is not None
    if len(first.movement) < len(rows):
        raise ConfigurationError(
            f"each gradient canary needs a parameter of its own: expected at most {len(first.movement)}, the"
            f" parameters of the optimizer, got {len(rows)}"
        )
    coordinates = first.movement.argsort()[: len(rows)]
    hook = GradientsHook(rows, coordinates, torch.from_numpy(np.where(coins, 1.0, -1.0)))
    trained("training with canaries", {}, hook)
    drift = first.net[coordinates]
    return np.asarray((drift - hook.net[coordinates]).double().cpu(), dtype=np.float64)


class GradientsHook(GradientHook):
    """Replaces the gradients of many records, each by one along a parameter of its own.

    Args:
        targets: numbers of the records.
        coordinates: (m,) of the optimizer's flat parameters, one for each; None: the gradients are replaced by zeros.
        signs: (m,) of the gradients there, +1 or -1.
        trace: leave the noise out.
    """

    def __init__(
        self, targets: Sequence[int], coordinates: Tensor | None, signs: Tensor | None, *, trace: bool = False
    ) -> None:
        super().__init__(-1, (), 0.0, trace=trace)
        self.place = {target: i for i, target in enumerate(targets)}
        self.coordinates, self.signs = coordinates, signs
        self._start: Tensor | None = None

    @property
    def net(self) -> Tensor:
        """(P,) how far every parameter is from where it began."""
        assert self._start is not None
        return self._flat() - self._start

    def _before_clipping(self, clip: Callable[[], None]) -> Callable[[], None]:
        def replaced() -> None:
            if self._start is None:
                self._start = self._flat().clone()
            numbers = self._rows()
            at = [(row, self.place[number]) for row, number in enumerate(numbers) if number in self.place]
            if at:
                self._put(at, len(numbers))
            clip()

        return replaced

    def _put(self, at: Sequence[tuple[int, int]], rows: int) -> None:
        """Zeros in these rows of every parameter's gradients, but for each canary's own parameter."""
        size, begin = OVER * float(self.optimizer.max_grad_norm), 0
        for p in self.optimizer.params:
            end = begin + p.numel()
            if p.grad_sample is None:
                p.grad_sample = p.new_zeros((rows, *p.shape))
            first = 0
            for g in p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]:
                for row, which in at:
                    if not first <= row < first + len(g):
                        continue
                    g[row - first] = 0.0
                    if self.coordinates is None or self.signs is None:
                        continue
                    where = int(self.coordinates[which])
                    if begin <= where < end:
                        g.view(len(g), -1)[row - first, where - begin] = size * float(self.signs[which])
                first += len(g)
            begin = end
