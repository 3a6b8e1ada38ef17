"""Broken DP trainers: how often canaries find the bug, and how often they report one where there is none.

Each trainer is DP-SGD of a linear regression on 20 records, in expected batches of 5, with one deliberate bug. What is
claimed is what its authors believe: Poisson batches, every gradient clipped to C, noise of standard deviation sigma C
at every step. The canary is a worst-case record of the auditor's own: a feature that no other record has, with a label
of +1000 in D and -1000 in D', so that a right clip always makes +-C of its gradient. For batch
normalisation it is a record like any other, and one with a huge feature instead.

  score         what is looked at
  released      the parameter of the canary's feature in the released model
  steps         the models after every step (the guarantee covers them all): the likelihood ratio of the claimed
                mechanism, the strongest score there is against a right trainer
  last steps    how far the parameter moved in the last step of every epoch; the canary is the last record of the data
  jumps         mean less median of the steps: what sticks out of noise that is always the same

Measured for each trainer: how often the verdict is "violates the claim: a bug" (power). A right trainer is audited with
the scores that are tightest, at thresholds fixed beforehand and chosen on some of the runs, under the claim for a
substituted record and under that for an added or removed one; the suite fails if a bug is reported in more than
5 % of the audits (by the lower Clopper-Pearson limit).

What these audits do not find. Shuffled batches accounted as Poisson: a record is in exactly one batch of each epoch,
which the claim says of (1 - q)^T of the trainings in no batch at all. That shows where noise is small and epochs are
few (rows "reshuffled", claimed epsilon of 9 and 21); with a claimed epsilon of 3 no score here tells the two apart by
5,000 runs (row "reshuffled, more noise"). Noise that is the same at every step makes the released model more private,
not less, and a step of four without noise little less: there the models between the steps have to be looked at (rows
"..., released", of 5,000 runs).

An auditor does not know the bug, and would run several of these audits: with k of them each needs the confidence
1 - 0.05 / k.

    python -m audit.suites.broken_trainers [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from safexplain._privacy_loss import Steps
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.finding import Verdict
from safexplain.verdict.canaries.result import CanaryResult, Scores, judge
from safexplain.verdict.stats import clopper_pearson

from ...shared.run import Parts, Progress, destination, parser, provenance, table, write_json

Array = NDArray[np.float64]

RECORDS, FEATURES = 20, 3
"""The first feature is the canary's alone."""
LABEL, HUGE = 1e3, 1e4
LR, DELTA = 0.1, 1e-5
TARGET = RECORDS - 1
BUG: Verdict = "violates the claim: a bug"
ADD_REMOVE: Verdict = "violates add/remove as a claim about records or attributes"
REPEATS, FALSE_ALARM_REPEATS, QUICK_REPEATS = 200, 1000, 5
RISK, POWER, BLOCK = 0.05, 0.9, 50

Canary = Literal["label", "features"]


# ------------------------------------------------------------------------------------------- the trainers


@dataclass(frozen=True)
class Trainer:
    """DP-SGD, all runs side by side; right but for what differs from the defaults.

    Args:
        sampling: "poisson"; "shuffled": batches of a new order of the records each epoch; "ordered": of their own.
        clip: each "record"; the "batch", its mean as a whole; "centred": what a record differs from the batch's mean.
        noise: "right"; "unscaled": sigma, not sigma C; "divided twice" by the batch size; "dropped" in the last step of
            each epoch; "repeated": drawn once a run; "constant": drawn once, as by a seed in the code.
        batch_norm: features are standardised over the batch.
        sigma: noise multiplier.
        bound: C.
        epochs: passes over the data.
        batches: steps in an epoch; 1: full batches.
    """

    sampling: Literal["poisson", "shuffled", "ordered"] = "poisson"
    clip: Literal["record", "batch", "centred"] = "record"
    noise: Literal["right", "unscaled", "divided twice", "dropped", "repeated", "constant"] = "right"
    batch_norm: bool = False
    sigma: float = 4.0
    bound: float = 1.0
    epochs: int = 10
    batches: int = 4

    @property
    def mechanism(self) -> Steps:
        """What its authors believe it to be."""
        sampling: Any = "poisson" if self.batches > 1 else "full-batch"
        return Steps(self.sigma, 1 / self.batches, self.epochs * self.batches, sampling)

    def train(self, x: Array, y: Array, rng: np.random.Generator) -> Array:
        """Train on x (runs, n, d), y (runs, n); returns the first parameter before and after each step, (runs, T + 1).

        In units of a gradient of norm C in a batch of the expected size.
        """
        runs, n, d = x.shape
        size, steps = n / self.batches, self.epochs * self.batches
        theta, path = np.zeros((runs, d)), np.zeros((runs, steps + 1))
        same = np.random.default_rng(7).standard_normal((1, d)) if self.noise == "constant" else None
        kept = rng.standard_normal((runs, d))
        for t in range(steps):
            if t % self.batches == 0:
                order = self._order(runs, n, rng)
            batch = (rng.random((runs, n)) < 1 / self.batches) if order is None else order == t % self.batches
            inputs = _standardised(x, batch) if self.batch_norm else x
            residual = np.einsum("rd,rnd->rn", theta, inputs) - y
            total = self._clipped_sum(residual[:, :, None] * inputs, batch, size)
            drawn = rng.standard_normal((runs, d)) if self.noise not in ("repeated", "constant") else kept
            total += self._std(t, size) * (drawn if same is None else same)
            theta = theta - LR * total / size
            path[:, t + 1] = theta[:, 0]
        return path * size / (LR * self.bound)

    def _order(self, runs: int, n: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """(runs, n) which batch of the epoch each record is in; None: by coins."""
        batches = np.tile(np.arange(n) * self.batches // n, (runs, 1))
        if self.sampling == "shuffled":
            return rng.permuted(batches, axis=1)
        return batches if self.sampling == "ordered" else None

    def _clipped_sum(self, gradients: Array, batch: NDArray[np.bool_], size: float) -> Array:
        """(runs, d) from gradients (runs, n, d) of all records."""
        gradients = gradients * batch[:, :, None]
        if self.clip == "batch":
            return size * self._clipped(gradients.sum(1) / size)
        if self.clip == "centred":
            centre = gradients.sum(1, keepdims=True) / size
            return ((self._clipped(gradients - centre) + centre) * batch[:, :, None]).sum(1)
        return self._clipped(gradients).sum(1)

    def _clipped(self, gradients: Array) -> Array:
        norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
        return gradients * np.minimum(1.0, self.bound / np.maximum(norms, 1e-12))

    def _std(self, t: int, size: float) -> float:
        """Of the noise on the sum in one step."""
        last = t % self.batches == self.batches - 1
        right = self.sigma * self.bound
        return {"unscaled": self.sigma, "divided twice": right / size, "dropped": 0.0 if last else right}.get(
            self.noise, right
        )


def _standardised(x: Array, batch: NDArray[np.bool_]) -> Array:
    """Features less their mean over their deviation in the batch of each run."""
    weight = batch[:, :, None] / np.maximum(batch.sum(1), 1)[:, None, None]
    centred = x - (weight * x).sum(1, keepdims=True)
    scaled: Array = centred / np.sqrt((weight * centred**2).sum(1, keepdims=True) + 1e-5)
    return scaled


def datasets(canary: Canary, each: int) -> tuple[Array, Array]:
    """Data of `each` runs on D and as many on D': x (2 each, n, d), y (2 each, n)."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((RECORDS, FEATURES))
    y = x[:, 1].copy()
    x[:, 0] = 0.0
    if canary == "features":
        x[:, 0] = np.where(np.arange(RECORDS) % 2, 1.0, -1.0)
        y = 3 * x[:, 0]
    both_x, both_y = np.tile(x, (2 * each, 1, 1)), np.tile(y, (2 * each, 1))
    if canary == "features":
        both_x[each:, TARGET, 0] = HUGE
    else:
        both_x[:, TARGET] = np.eye(FEATURES)[0]
        both_y[:each, TARGET], both_y[each:, TARGET] = LABEL, -LABEL
    return both_x, both_y


# ------------------------------------------------------------------------------------------- scores


def likelihood_ratio(steps: Array, claimed: Steps) -> Array:
    """Of trainings (runs, T) under the claimed mechanism with gradients +C and -C and no others."""
    q, two = claimed.sample_rate, 2 * claimed.noise_multiplier**2
    a, b = (np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + (s * 2 * steps - 1) / two) for s in (1, -1))
    return np.asarray((a - b).sum(1))


def _last(steps: Array, batches: int) -> Array:
    return steps[:, batches - 1 :: batches]


SCORES: dict[str, Callable[[Array, Steps], Array]] = {
    "released": lambda steps, _: steps.sum(1),
    "steps": likelihood_ratio,
    "last steps": lambda steps, claimed: _last(steps, round(1 / claimed.sample_rate)).sum(1),
    "jumps": lambda steps, _: steps.mean(1) - np.median(steps, axis=1),
}
"""From what the parameter moved in each step (runs, T); higher on D."""


# ------------------------------------------------------------------------------------------- the audits


@dataclass(frozen=True)
class Case:
    """An audit.

    Args:
        bug: in words.
        trainer: that is audited.
        runs: on D and D' together.
        score: of `SCORES`.
        canary: the record; see the top of this file.
        claimed: the mechanism; None: what the trainer's authors believe.
        fixed: whether the threshold is 0, fixed beforehand, or chosen on some of the runs.
        expected: the verdict that finds the bug.
    """

    bug: str
    trainer: Trainer
    runs: int
    score: str = "released"
    canary: Canary = "label"
    claimed: Steps | None = None
    fixed: bool = True
    expected: Verdict = BUG

    @property
    def claim(self) -> Claim:
        """What is claimed."""
        adjacency: Any = "add_remove" if self.expected == ADD_REMOVE else "substitute"
        return Claim(self.claimed or self.trainer.mechanism, DELTA, adjacency=adjacency)

    def audit(self, number: int) -> CanaryResult:
        """The audit of this number: other runs each time."""
        rng = np.random.default_rng([0xB06, number, *self.bug.encode()])
        each, claim = self.runs // 2, self.claim
        steps = np.diff(self.trainer.train(*datasets(self.canary, each), rng), axis=1)
        mechanism = self.claimed or self.trainer.mechanism
        scores = SCORES[self.score](steps, mechanism)
        threshold = 0.0 if self.fixed else None
        both = Scores((mechanism.steps,), scores[None, :each], scores[None, each:])
        return judge(both, claim, scenario="mislabelled", threshold=threshold, seed=number)


RIGHT = Trainer()
FEW = Trainer(sampling="shuffled", epochs=2, sigma=0.5)

BROKEN: dict[str, Case] = {
    case.bug: case
    for case in (
        Case("noise not scaled by the clip bound", replace(RIGHT, noise="unscaled", bound=5.0), 200),
        Case("noise divided by the batch size twice", replace(RIGHT, noise="divided twice"), 200),
        Case("the batch clipped, not each record", replace(RIGHT, clip="batch"), 200),
        Case("clipped around the batch's mean", replace(RIGHT, clip="centred"), 200),
        Case(
            "batch normalisation", replace(RIGHT, batch_norm=True, batches=1, sigma=8.0), 200, canary="features",
            fixed=False,
        ),
        Case("the same noise in every run", replace(RIGHT, noise="constant"), 200, fixed=False),
        Case("the same noise at every step", replace(RIGHT, noise="repeated"), 200, "jumps"),
        Case("no noise in the last step of each epoch", replace(RIGHT, noise="dropped"), 400, "last steps"),
        Case("batches in a fixed order", replace(RIGHT, sampling="ordered"), 400, "last steps"),
        Case("reshuffled, claimed epsilon 21", FEW, 1000),
        Case("reshuffled, claimed epsilon 9", replace(FEW, epochs=1, sigma=0.7), 5000, "steps"),
        Case("wrong q: accounted with five times the records", RIGHT, 1000, claimed=Steps(4.0, 0.05, 200)),
        Case("add/remove claimed for records", RIGHT, 2000, expected=ADD_REMOVE),
    )
}  # fmt: skip
"""Bugs, and the audit that finds each."""

HARD: dict[str, Case] = {
    case.bug: case
    for case in (
        Case("reshuffled, more noise", replace(FEW, epochs=2, sigma=2.0), 5000, "steps"),
        Case("no noise in the last step, released", replace(RIGHT, noise="dropped"), 5000),
        Case("the same noise at every step, released", replace(RIGHT, noise="repeated"), 5000),
    )
}
"""Bugs that these audits do not find, or not in every audit of 5,000 runs."""

SOUND: dict[str, Case] = {
    case.bug: case
    for case in (
        Case("right, released", RIGHT, 1000),
        Case("right, released, threshold chosen", RIGHT, 1000, fixed=False),
        Case("right, steps", RIGHT, 1000, "steps"),
        Case("right, steps, threshold chosen", RIGHT, 1000, "steps", fixed=False),
        Case("right, steps, little noise", replace(RIGHT, sigma=1.0, epochs=4), 1000, "steps"),
        Case("right, full batches", replace(RIGHT, batches=1, sigma=8.0), 1000),
        Case("right, full batches, threshold chosen", replace(RIGHT, batches=1, sigma=8.0), 1000, fixed=False),
        Case("right, released, add/remove claimed", RIGHT, 1000, expected=ADD_REMOVE),
        Case("right, steps, add/remove claimed", RIGHT, 1000, "steps", expected=ADD_REMOVE),
    )
}
"""Trainers without a bug: nothing but the claim about records may be found wrong."""


# ------------------------------------------------------------------------------------------- counting


def verdicts(case: Case, first: int, last: int) -> list[dict[str, Any]]:
    """Verdict and bound of the audits with these numbers."""
    found = [case.audit(number) for number in range(first, last)]
    return [{"verdict": r.verdict, "epsilon_lower": r.epsilon_lower, "ceiling": r.ceiling} for r in found]


def measure(case: Case, repeats: int, parts: Parts, progress: Progress) -> dict[str, Any]:
    """A row of the result: how often each verdict came."""
    audits: list[dict[str, Any]] = []
    for first in range(0, repeats, BLOCK):
        last = min(first + BLOCK, repeats)
        audits += parts.get([asdict(case), first, last], partial(verdicts, case, first, last))
        progress(case.bug, last, repeats)
    counts = Counter(audit["verdict"] for audit in audits)
    found = counts[case.expected]
    low, high = clopper_pearson(found, repeats)
    false_low, false_high = clopper_pearson(counts[BUG], repeats)
    claim, mechanism = case.claim, case.claimed or case.trainer.mechanism
    return {
        "trainer": case.bug,
        "differs": {k: v for k, v in asdict(case.trainer).items() if v != getattr(RIGHT, k)},
        "claimed_mechanism": asdict(mechanism),
        "claimed_for": claim.adjacency,
        "epsilon_substitute": claim.substitute,
        "epsilon_add_remove": claim.add_remove,
        "score": case.score,
        "canary": case.canary,
        "threshold": "0" if case.fixed else "chosen on some of the runs",
        "runs": case.runs,
        "audits": repeats,
        "verdicts": dict(counts),
        "expected": case.expected,
        "power": found / repeats,
        "power_low": low,
        "power_high": high,
        "bug": counts[BUG] / repeats,
        "bug_low": false_low,
        "bug_high": false_high,
        "epsilon_lower_median": float(np.median([audit["epsilon_lower"] for audit in audits])),
        "ceiling": audits[0]["ceiling"],
    }


def shown(rows: list[dict[str, Any]], share: str) -> str:
    """A table of one group."""
    return table(
        ("trainer", "claimed S", "A/R", "score", "runs", "audits", share, "95 % interval", "median bound"),
        [
            (
                row["trainer"], f"{row['epsilon_substitute']:.2f}", f"{row['epsilon_add_remove']:.2f}", row["score"],
                row["runs"], row["audits"], f"{row[share]:.1%}",
                f"{row[f'{share}_low']:.1%}-{row[f'{share}_high']:.1%}", f"{row['epsilon_lower_median']:.2f}",
            )
            for row in rows
        ],
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 1 if a bug is reported in a right trainer too often, or a bug found too seldom."""
    options = parser("broken_trainers", __doc__).parse_args(argv)
    began, progress = time.monotonic(), Progress()
    parts = Parts(options.cache / "broken_trainers", __package__)
    groups = {}
    for name, cases, repeats in (
        ("broken", BROKEN, REPEATS), ("hard", HARD, REPEATS), ("sound", SOUND, FALSE_ALARM_REPEATS),
    ):  # fmt: skip
        repeats = QUICK_REPEATS if options.quick else repeats
        groups[name] = [measure(case, repeats, parts, progress) for case in cases.values()]
        print(f"\n{name}\n{shown(groups[name], 'bug' if name == 'sound' else 'power')}", flush=True)
    alarms = [row["trainer"] for row in groups["sound"] if row["bug_low"] > RISK]
    missed = [row["trainer"] for row in groups["broken"] if row["power_high"] < POWER]
    settings = {"records": RECORDS, "features": FEATURES, "delta": DELTA, "confidence": 1 - RISK}
    result = {"provenance": provenance(time.monotonic() - began), "settings": settings, **groups}
    write_json(destination(options), result)
    for problem, names in (("bug reported too often", alarms), ("found too seldom", missed)):
        if names:
            print(f"{problem}: {', '.join(names)}", file=sys.stderr)
    return 1 if alarms or missed else 0
