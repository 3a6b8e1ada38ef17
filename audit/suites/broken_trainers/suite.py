"""Broken DP trainers: how often canaries find the bug, and how often they report one where there is none.

The trainers are loops as people write them, one call a training, of 24 records: DP-SGD by hand (`by_hand`), loops with
Opacus' `PrivacyEngine` and `safexplain.dp.make_private`, and `DPFineTuner` (`with_engines`). Each broken one differs
from a right one in the lines that its class shows. What is claimed is what its authors believe: the noise multiplier,
sample rate and steps that they told the accountant.

Each audit is a `CanaryProbe` with the built-in options and a seed of its own, and knows nothing of the bug. Power
is the share of audits whose verdict is "violates the claim: a bug". Every trainer is also audited once by
`safexplain canaries --config c.toml` with `function = "..."` in its `[training]`. Broken trainers are audited with
several canaries, to see which of them finds what; an auditor who runs k of them needs each at the confidence
1 - 0.05 / k, as `--scenario all` does.

Right trainers are audited with the canary that is strongest against them. The suite fails if a bug is reported in more
than 5 % of those audits (by the lower Clopper-Pearson limit), if less than 80 % of those that have power say
"consistent", or if a bug that is expected to be found is not.

For trainers whose bug is not found, `true_epsilon` computes what they really spend, where that can be computed.

    python -m audit.suites.broken_trainers [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._privacy_loss import Adjacency, Steps, epsilon_of
from safexplain._progress import silent
from safexplain.audit.canaries import CanaryProbe, Claim
from safexplain.cli import _run as command_line
from safexplain.verdict.canaries.finding import Verdict
from safexplain.verdict.stats import clopper_pearson

from ...shared.run import Parts, Progress, concluded, destination, parser, provenance, rounded, table, write_json
from . import true_epsilon
from .by_hand import FEATURES, ActualBatchSize, Loop, Shuffled, ShuffledMoreNoise, gap_of_biases

RECORDS, DELTA = 24, 1e-5
BUG: Verdict = "violates the claim: a bug"
ADD_REMOVE: Verdict = "violates add/remove as a claim about records or attributes"
REPEATS, OTHERS = 4, 1
RISK, POWER, KEPT = 0.05, 0.8, 0.8


def records() -> tuple[Tensor, Tensor]:
    """x (24, 5) and y (24,), of two classes, one of them rare."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(RECORDS) >= 18).long()
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    x[:, 0] += 2.0 * y - 1.0
    return x, y


@dataclass(frozen=True)
class Case:
    """A trainer and how it is audited.

    Args:
        name: module and class, as "by_hand:Loop".
        scenarios: canaries; the first is the one by which it is judged. "biases": mislabelled, with a score of the
            auditor's own.
        runs: of an audit, on D and D' together.
        times: by how many the sample rate is too small that its authors claim.
        adjacency: of their claim.
        found: whether the audits are expected to find the bug.
        seeds: audits of a right trainer.
    """

    name: str
    scenarios: tuple[str, ...] = ("outlier", "mislabelled")
    runs: int = 100
    times: int = 1
    adjacency: Adjacency = "substitute"
    found: bool = True
    seeds: int = 50

    @property
    def trainer(self) -> Any:
        """The class."""
        module, _, name = self.name.partition(":")
        return getattr(importlib.import_module(f"{__package__}.{module}"), name)

    @property
    def bug(self) -> str:
        """In words."""
        if self.times > 1:
            return f"Right, but accounted with {self.times} times the records."
        if self.adjacency == "add_remove":
            return "Right, but its add/remove epsilon is claimed for what records say."
        return " ".join((self.trainer.__doc__ or "").partition("\n\n")[0].split())

    @property
    def claim(self) -> Claim:
        """What its authors believe."""
        t = self.trainer
        full = t.rate == 1
        mechanism = Steps(t.sigma, t.rate / self.times, t.accounted(), "full-batch" if full else "poisson")
        return Claim(mechanism, DELTA, adjacency=self.adjacency)

    @property
    def clip(self) -> float:
        """C in the units of the sums that the white box sees."""
        return float(self.trainer.clip(RECORDS)) if hasattr(self.trainer, "clip") else 1.0

    @property
    def repeats(self) -> int:
        """Audits with the first canary; loops around an engine take long."""
        return REPEATS if self.name.startswith("by_hand") and self.found else REPEATS // 2

    @property
    def verdict(self) -> Verdict:
        """That finds the bug."""
        return ADD_REMOVE if self.adjacency == "add_remove" else BUG


OUTLIER, SWAPPED = ("outlier", "mislabelled"), ("mislabelled", "outlier")
LAYERS = ("layers", "outlier")

BROKEN = (
    # noise
    Case("by_hand:NoiseDividedTwice", SWAPPED),
    Case("by_hand:NoiseTimesLearningRate", SWAPPED),
    Case("by_hand:NoiseWithoutBound", OUTLIER),
    Case("by_hand:UniformNoise", SWAPPED),
    Case("by_hand:DecayingNoise", SWAPPED, 150),
    Case("by_hand:NoiseInEveryFourthStep", SWAPPED),
    Case("by_hand:ConstantSeed", SWAPPED),
    Case("by_hand:NoNoiseOnBias", ("biases", *OUTLIER)),
    Case("with_engines:NoNoiseOnBias", LAYERS),
    Case("with_engines:ExponentialNoise", ("gradient",)),
    # clipping
    Case("by_hand:ClipAfterAveraging", OUTLIER),
    Case("by_hand:MicroBatchesClipped", OUTLIER),
    Case("by_hand:MicroBatchesScaledBack", OUTLIER),
    Case("by_hand:WeightsAndBiasEach", OUTLIER, 200, found=False),
    Case("by_hand:UpsideDown", OUTLIER),
    Case("by_hand:SquaredNorm", SWAPPED),
    Case("by_hand:ValueClipping", OUTLIER),
    Case("by_hand:LayerLeftOut", OUTLIER),
    Case("by_hand:LoRAFactorLeftOut", OUTLIER),
    Case("by_hand:BoundOfLabel", OUTLIER, 150),
    Case("by_hand:ClassWeightsAfterClipping", SWAPPED),
    Case("by_hand:LargestNormBound", OUTLIER, 200),
    Case("by_hand:AugmentationsClippedEach", OUTLIER, 150),
    # what is not noisy
    Case("by_hand:MomentumFromCleanSums", OUTLIER),
    Case("by_hand:AdamFromCleanSums", OUTLIER),
    Case("by_hand:SecondMomentFromCleanSums", OUTLIER, 200, found=False),
    Case("by_hand:CleanGradientsAddedAgain", OUTLIER),
    Case("by_hand:PullTowardsPrivateMeans", OUTLIER),
    Case("with_engines:InnerOptimizerSteps", OUTLIER),
    # data beside the loop
    Case("by_hand:BatchNormalised", OUTLIER),
    Case("by_hand:CentredLogits", OUTLIER),
    Case("by_hand:StandardisedByPrivateData", OUTLIER),
    Case("by_hand:StartsAtClassMeans", OUTLIER),
    Case("by_hand:BestCheckpoint", OUTLIER),
    Case("by_hand:RateByPrivateLoss", OUTLIER),
    Case("by_hand:Oversampled", OUTLIER, 200),
    Case("with_engines:BatchNormOutside", OUTLIER, 200),
    Case("with_engines:ScaledByLargest", OUTLIER),
    Case("with_engines:HeadOfClassMeans", OUTLIER),
    Case("with_engines:BestStep", OUTLIER),
    Case("with_engines:BiasFittedAfterwards", OUTLIER),
    # accounting
    Case("with_engines:Resumed", ("gradient",)),
    Case("by_hand:PoissonMomentum", SWAPPED, 400, times=5),
    Case("by_hand:Loop", ("mislabelled",), 500, adjacency="add_remove"),
    # not found in the released model
    Case("by_hand:SameNoiseEveryStep", SWAPPED, 400, found=False),
    Case("by_hand:NoiseInEveryMicroBatch", SWAPPED, 400, found=False),
    Case("by_hand:NoNoiseInLastStep", SWAPPED, 400, found=False),
    Case("by_hand:QuantileBound", OUTLIER, 400, found=False),
    Case("by_hand:Mixup", OUTLIER, 400, found=False),
    Case("by_hand:Shuffled", SWAPPED, 400, found=False),
    Case("by_hand:ShuffledMoreNoise", SWAPPED, 400, found=False),
    Case("by_hand:FixedOrder", SWAPPED, 400, found=False),
    Case("by_hand:ActualBatchSize", SWAPPED, 400, found=False),
    Case("with_engines:NotPoisson", ("gradient",), found=False),
    # needs more runs than these
    Case("with_engines:FourViews", OUTLIER, found=False),
    Case("with_engines:EachLayerAtFullBound", LAYERS, 200, found=False),
)
"""Trainers with a bug; `found=False`: it leaves epsilon of the released model as claimed, or needs more runs."""

RIGHT = (
    Case("by_hand:Loop", ("mislabelled",), 280),
    Case("by_hand:AutoS", ("mislabelled",), 280),
    Case("by_hand:PoissonMomentum", ("mislabelled",), 100),
    Case("by_hand:Adam", ("mislabelled",), 100),
    Case("by_hand:PublicStandardisation", ("mislabelled",), 280),
    Case("by_hand:Functional", ("mislabelled",), 100, seeds=0),
    Case("by_hand:AveragedViews", ("mislabelled",), 100),
    Case("by_hand:Dropout", ("mislabelled",), 100, seeds=3),
    Case("by_hand:FrozenBatchNorm", ("mislabelled",), 100, seeds=3),
    Case("by_hand:LowRank", ("outlier",), 100, seeds=3),
    Case("with_engines:FineTunedHead", ("mislabelled",), 100, seeds=3),
    Case("with_engines:Opacus", ("gradient",), 160, seeds=10),
    Case("with_engines:MakePrivate", ("gradient",), 160, seeds=5),
)
"""Trainers without one."""


# ------------------------------------------------------------------------------------------- audits


def audit(case: Case, scenario: str, number: int) -> dict[str, Any]:
    """One audit, its trainings and seed its own."""
    given: dict[str, Any] = {"scenario": scenario}
    if scenario == "biases":
        given = {"scenario": "mislabelled", "score": gap_of_biases, "target": 0}
    began = time.monotonic()
    probe = CanaryProbe(case.trainer.train, records(), claim=case.claim, runs=case.runs, seed=number, **given)
    found = probe.run(silent)
    return {
        "verdict": found.verdict,
        "keeps_claim": found.keeps_claim,
        "epsilon_lower": found.epsilon_lower,
        "power": found.power,
        "seconds": time.monotonic() - began,
    }


def by_command_line(case: Case) -> dict[str, Any]:
    """What `safexplain canaries --config c.toml --json` says."""
    claim, (x, y) = case.claim, records()
    mechanism = claim.mechanism
    scenario, own = case.scenarios[0], list[str]()
    if scenario == "biases":
        scenario = "mislabelled"
        own = ["--target", "0", "--score", f"{__package__}.by_hand:gap_of_biases"]
    assert mechanism is not None
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "records.npz"), x=x.numpy(), y=y.numpy())
        config = Path(folder, "c.toml")
        config.write_text(
            f"""
            [data]
            file = "records.npz"
            [training]
            function = "{__package__}.{case.name}.train"
            steps = {mechanism.steps}
            batch_size = {mechanism.sample_rate * RECORDS}
            noise_multiplier = {mechanism.noise_multiplier}
            [claim]
            delta = {DELTA}
            adjacency = "{case.adjacency}"
            """
        )
        said = io.StringIO()
        began = time.monotonic()
        with contextlib.redirect_stdout(said):
            code = command_line([
                "canaries", "--config", str(config), "--scenario", scenario, "--runs", str(case.runs),
                "--seed", "1000", "--run-dir", str(Path(folder, "run")), "--json", *own,
            ])  # fmt: skip
    content = json.loads(said.getvalue())
    names = ("verdict", "epsilon_lower", "power")
    return {
        "scenario": scenario,
        "exit": code,
        "seconds": time.monotonic() - began,
        **{name: content[name] for name in names},
    }


def measured(case: Case, scenario: str, repeats: int, parts: Parts, progress: Progress) -> dict[str, Any]:
    """How often each verdict came."""
    audits = []
    for number in range(repeats):
        key = [case.name, case.runs, case.times, case.adjacency, scenario, number]
        audits.append(parts.get(key, partial(audit, case, scenario, number)))
        progress(f"{case.name} {scenario}", number + 1, repeats)
    return summary(case, scenario, audits)


def summary(case: Case, scenario: str, audits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of audits with one canary."""
    verdicts = Counter(a["verdict"] for a in audits)
    with_power = [a for a in audits if a["power"] >= POWER]
    low, high = clopper_pearson(verdicts[case.verdict], len(audits))
    return {
        "scenario": scenario,
        "runs": case.runs,
        "audits": len(audits),
        "seconds": median(a["seconds"] for a in audits),
        "verdicts": dict(verdicts),
        "epsilon_lower": median(a["epsilon_lower"] for a in audits),
        "found": verdicts[case.verdict] / len(audits),
        "found_low": low,
        "found_high": high,
        "have_power": len(with_power),
        "kept": sum(a["keeps_claim"] is True for a in audits),
        "kept_with_power": sum(a["keeps_claim"] is True for a in with_power),
    }


def row(case: Case, repeats: Sequence[int], parts: Parts, progress: Progress) -> dict[str, Any]:
    """A trainer: each of its canaries, so many times, and the command line."""
    claim = case.claim
    return {
        "trainer": case.name,
        "bug": case.bug,
        "expected": case.found,
        "claimed": {**asdict(claim)["mechanism"], "adjacency": case.adjacency},
        "epsilon_substitute": claim.substitute,
        "epsilon_add_remove": claim.add_remove,
        "audits": [
            measured(case, scenario, n, parts, progress)
            for scenario, n in zip(case.scenarios, repeats, strict=False)
            if n
        ],
        "command_line": parts.get(
            ["command line", case.name, case.runs, case.times, case.adjacency, case.scenarios[0]],
            partial(by_command_line, case),
        ),
    }


# ------------------------------------------------------------------------------------------- true epsilons

RELEASED, ALL = "the released model", "all models between the steps"
LARGE = 0.1
"""A delta at which other mechanisms than the claimed one show, though epsilon at `DELTA` is kept."""


def spent() -> list[dict[str, Any]]:
    """What trainers really spend whose bug leaves epsilon as claimed, or nearly, and is not or seldom found."""
    t, sigma = Loop.steps, Loop.sigma
    epochs = round(Shuffled.steps * Shuffled.rate)

    def in_order(s: float, delta: float) -> float:
        """Batches of a fixed order: the canary is in one of each epoch, known which."""
        return true_epsilon.of_sum(epochs, s * epochs**0.5, delta)

    def released(s: float, delta: float) -> float:
        return true_epsilon.of_sum(epochs, s * Shuffled.steps**0.5, delta)

    def shuffled(s: float, delta: float) -> float:
        return true_epsilon.of_epochs(round(1 / Shuffled.rate), epochs, s, delta)

    a = ActualBatchSize
    little, more = Shuffled.sigma, ShuffledMoreNoise.sigma
    known: list[tuple[str, str, Callable[[float], float]]] = [
        ("SameNoiseEveryStep", RELEASED, partial(true_epsilon.of_sum, t, t * sigma)),
        ("NoiseInEveryMicroBatch", ALL, partial(true_epsilon.of_sum, t, 2 * sigma * t**0.5)),
        ("NoNoiseInLastStep", RELEASED, partial(true_epsilon.of_sum, t, sigma * (t - 1) ** 0.5)),
        ("Shuffled", RELEASED, partial(released, little)),
        ("Shuffled", ALL, partial(shuffled, little)),
        ("ShuffledMoreNoise", RELEASED, partial(released, more)),
        ("ShuffledMoreNoise", ALL, partial(shuffled, more)),
        ("FixedOrder", RELEASED, partial(released, little)),
        ("FixedOrder", ALL, partial(in_order, little)),
        ("ActualBatchSize", ALL, partial(true_epsilon.of_actual_batch_size, RECORDS, a.rate, a.sigma, a.steps)),
    ]
    rows = []
    for name, of, epsilon in known:
        case = Case(f"by_hand:{name}")
        mechanism = case.claim.mechanism
        assert mechanism is not None
        rows += [
            {
                "trainer": case.name,
                "bug": case.bug,
                "of": of,
                "delta": delta,
                "epsilon": epsilon(delta),
                "claimed": epsilon_of([mechanism], delta, "substitute"),
            }
            for delta in (DELTA, LARGE)
        ]
    return rows


# ------------------------------------------------------------------------------------------- the suite


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """A table for the terminal."""
    header = ("trainer", "canary", "runs", "audits", "found", "bound", "claimed", "have power", "kept", "seconds")
    return table(
        header,
        [
            (
                r["trainer"], a["scenario"], a["runs"], a["audits"], f"{a['found']:.0%}", f"{a['epsilon_lower']:.2f}",
                f"{r['epsilon_substitute']:.2f}", a["have_power"], a["kept_with_power"], f"{a['seconds']:.1f}",
            )
            for r in rows
            for a in r["audits"]
        ],
    )  # fmt: skip


def problems(broken: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]]) -> list[str]:
    """What the measurement was to show and does not."""
    first = [(r, r["audits"][0]) for r in broken]
    found = [
        f"{r['trainer']}: found in {a['found']:.0%}" for r, a in first if r["expected"] and a["found_high"] < POWER
    ]
    audits = [r["audits"][0] for r in right]
    bugs, n = sum(a["verdicts"].get(BUG, 0) for a in audits), sum(a["audits"] for a in audits)
    if clopper_pearson(bugs, n)[0] > RISK:
        found.append(f"a bug reported in {bugs} of {n} audits of right trainers")
    have, kept = (sum(a[key] for a in audits) for key in ("have_power", "kept_with_power"))
    if have and clopper_pearson(kept, have)[1] < KEPT:
        found.append(f"{kept} of {have} audits of right trainers with power say consistent")
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 1 if it does not show what it was to show."""
    arguments = parser("broken_trainers", __doc__)
    arguments.add_argument(
        "--only", nargs="+", metavar="TRAINER", help="fill the cache with these, and write no result"
    )
    options = arguments.parse_args(argv)
    began, progress = time.monotonic(), Progress()
    parts = Parts(options.cache / "broken_trainers", __package__)

    def rows(cases: Sequence[Case], first: Callable[[Case], int], others: int) -> list[dict[str, Any]]:
        found = []
        for case in cases:
            if not options.only or case.name.partition(":")[2] in options.only:
                repeats = (first(case), *[others] * len(case.scenarios))
                found.append(row(case, repeats, parts, progress))
                print(shown(found[-1:]), flush=True)
        return found

    quick = options.quick
    broken = rows(BROKEN[:2] if quick else BROKEN, lambda case: 1 if quick else case.repeats, 0 if quick else OTHERS)
    right = rows(RIGHT[:1] if quick else RIGHT, lambda case: 1 if quick else case.seeds, 0)
    if options.only:
        return 0
    settings = {"records": RECORDS, "features": FEATURES, "delta": DELTA, "confidence": 1 - RISK}
    result = {
        "provenance": provenance(time.monotonic() - began),
        "quick": quick,
        "settings": settings,
        "broken": broken,
        "right": right,
        "spent": parts.get("spent", spent),
    }
    write_json(destination(options), rounded(result))
    missed = [] if quick else problems(broken, right)
    return concluded(missed, destination(options))
