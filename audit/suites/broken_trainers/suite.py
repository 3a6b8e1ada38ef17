"""Broken DP trainers: which are refuted, by the white box and by a thousand runs of canaries? Is a right one refuted?

The trainers are loops as people write them, of 24 records: DP-SGD by hand (`by_hand`), loops with Opacus'
`PrivacyEngine`, and `DPFineTuner` (`with_engines`); what is claimed is what their authors told the accountant. Each is
audited by `WhiteBox`, and by `audit_within` as `safexplain canaries --scenario all` does it, at 95 %. The suite fails
if a broken trainer is found by neither, or if a right one is refuted or not called "as claimed" by the white box.

    python -m audit.suites.broken_trainers [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from safexplain._privacy_loss import Adjacency, Steps
from safexplain.audit.canaries import CanaryProbe, Claim, WhiteBox
from safexplain.audit.canaries.probe import audit_within
from safexplain.errors import InputError
from safexplain.verdict.canaries.result import decisive

from ...shared.run import Parts, Progress, Run
from .by_hand import FEATURES

RECORDS, DELTA = 24, 1e-5
RUNS = 1000
AGAIN = 5
"""Audits of each right trainer."""


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
        breaks: whether it breaks its claim, also in the released model; otherwise it is shown and nothing expected.
    """

    name: str  # module and class, as "by_hand:Loop"
    times: int = 1  # by how many the sample rate is too small that its authors claim
    adjacency: Adjacency = "substitute"  # of their claim
    breaks: bool = True

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
        mechanism = Steps(t.sigma, t.rate / self.times, t.accounted(), "full-batch" if t.rate == 1 else "poisson")
        return Claim(mechanism, DELTA, adjacency=self.adjacency)

    @property
    def clip(self) -> float:
        """C in the units of the sums that the white box sees."""
        return float(self.trainer.clip(RECORDS)) if hasattr(self.trainer, "clip") else 1.0


BROKEN = (
    # noise
    *map(Case, (
        "by_hand:NoiseDividedTwice", "by_hand:NoiseTimesLearningRate", "by_hand:NoiseWithoutBound",
        "by_hand:UniformNoise", "by_hand:DecayingNoise", "by_hand:NoiseInEveryFourthStep", "by_hand:ConstantSeed",
        "by_hand:NoNoiseOnBias", "by_hand:SameNoiseEveryStep", "by_hand:NoNoiseInLastStep",
        "with_engines:NoNoiseOnBias", "with_engines:ExponentialNoise",
    )),
    # clipping
    *map(Case, (
        "by_hand:ClipAfterAveraging", "by_hand:MicroBatchesClipped", "by_hand:MicroBatchesScaledBack",
        "by_hand:WeightsAndBiasEach", "by_hand:UpsideDown", "by_hand:SquaredNorm", "by_hand:ValueClipping",
        "by_hand:LayerLeftOut", "by_hand:LoRAFactorLeftOut", "by_hand:BoundOfLabel",
        "by_hand:ClassWeightsAfterClipping", "by_hand:LargestNormBound", "by_hand:QuantileBound",
        "by_hand:AugmentationsClippedEach", "by_hand:Mixup", "by_hand:Oversampled", "by_hand:ActualBatchSize",
        "with_engines:FourViews", "with_engines:EachLayerAtFullBound",
    )),
    # what is not noisy
    *map(Case, (
        "by_hand:MomentumFromCleanSums", "by_hand:AdamFromCleanSums", "by_hand:SecondMomentFromCleanSums",
        "by_hand:CleanGradientsAddedAgain", "by_hand:PullTowardsPrivateMeans", "with_engines:InnerOptimizerSteps",
    )),
    # data beside the loop
    *map(Case, (
        "by_hand:BatchNormalised", "by_hand:CentredLogits", "by_hand:StandardisedByPrivateData",
        "by_hand:StartsAtClassMeans", "by_hand:BestCheckpoint", "by_hand:RateByPrivateLoss",
        "with_engines:BatchNormOutside", "with_engines:ScaledByLargest", "with_engines:HeadOfClassMeans",
        "with_engines:BestStep", "with_engines:BiasFittedAfterwards",
    )),
    # sampling and accounting
    *map(Case, (
        "by_hand:Shuffled", "by_hand:ShuffledMoreNoise", "by_hand:FixedOrder", "with_engines:NotPoisson",
        "with_engines:Resumed",
    )),
    Case("by_hand:PoissonMomentum", times=5),
    Case("by_hand:Loop", adjacency="add_remove"),
    Case("by_hand:NoiseInEveryMicroBatch", breaks=False),
)  # fmt: skip
"""Trainers with a bug."""

RIGHT = tuple(map(Case, (
    "by_hand:Loop", "by_hand:AutoS", "by_hand:PoissonMomentum", "by_hand:Adam", "by_hand:PublicStandardisation",
    "by_hand:AveragedViews", "by_hand:Dropout", "by_hand:FrozenBatchNorm", "by_hand:LowRank", "by_hand:Functional",
    "with_engines:FineTunedHead", "with_engines:Opacus",
)))  # fmt: skip
"""Trainers without one."""


# ------------------------------------------------------------------------------------------- audits


def by_white_box(case: Case, number: int) -> dict[str, Any]:
    """What watching the steps finds."""
    began = time.monotonic()
    try:
        found = WhiteBox(case.trainer.train, records(), case.claim, clip=case.clip, seed=number).run()
    except InputError as error:
        return {"verdict": "refused", "says": str(error).partition(":")[0], "seconds": time.monotonic() - began}
    failed = [check.name for check in found.failed]
    return {"verdict": found.verdict, "failed": failed, "runs": found.runs, "seconds": time.monotonic() - began}


def by_canaries(case: Case, number: int) -> dict[str, Any]:
    """What about a thousand runs find."""
    began = time.monotonic()
    if case.name == "by_hand:Functional":
        return {"verdict": "no module"}
    scenarios = ("mislabelled", "outlier", *(("gradient",) if case.name.startswith("with_engines") else ()))
    probes = {
        name: CanaryProbe(case.trainer.train, records(), claim=case.claim, scenario=name, seed=number)
        for name in scenarios
    }
    try:
        minutes = RUNS * next(iter(probes.values())).seconds_each / 60
        found, _ = audit_within(probes, minutes)
    except InputError as error:
        return {"verdict": "refused", "says": str(error).partition(":")[0], "seconds": time.monotonic() - began}
    best = decisive(found)
    return {
        "verdict": best.verdict, "scenario": best.scenario, "runs": sum(one.runs for one in found),
        "epsilon_lower": best.epsilon_lower, "detectable": best.detectable, "seconds": time.monotonic() - began,
    }  # fmt: skip


def row(case: Case, repeats: int, parts: Parts) -> dict[str, Any]:
    """A trainer with its audits."""
    key = [case.name, case.times, case.adjacency]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "trainer": case.name, "bug": case.bug, "breaks": case.breaks,
            "claimed": {**asdict(case.claim)["mechanism"], "adjacency": case.adjacency},
            "epsilon_substitute": case.claim.substitute, "epsilon_add_remove": case.claim.add_remove,
            "white_box": [parts.get(["white", *key, i], partial(by_white_box, case, i)) for i in range(repeats)],
            "canaries": [parts.get(["canaries", *key, i], partial(by_canaries, case, i)) for i in range(repeats)],
        }  # fmt: skip


FOUND = ("refuted", "refused")


def found_by(row: dict[str, Any]) -> list[str]:
    """Which audits find a broken trainer."""
    return [how for how in ("white_box", "canaries") if all(audit["verdict"] in FOUND for audit in row[how])]


# ------------------------------------------------------------------------------------------- the suite


def problems(broken: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]]) -> list[str]:
    """What the measurement was to show and does not."""
    missed = [f"{r['trainer']}: found by neither" for r in broken if r["breaks"] and not found_by(r)]
    for r in right:
        white, canaries = (Counter(audit["verdict"] for audit in r[how]) for how in ("white_box", "canaries"))
        if set(white) != {"as claimed"}:
            missed.append(f"{r['trainer']}: the white box says {dict(white)}")
        if canaries["refuted"]:
            missed.append(f"{r['trainer']}: refuted by canaries in {canaries['refuted']} of {canaries.total()}")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 1 if it does not show what it was to show."""
    run = Run("broken_trainers", __doc__, argv)
    progress, parts, quick = Progress(), run.parts(__package__), run.quick
    cases = [(case, 1) for case in (BROKEN[:2] if quick else BROKEN)]
    cases += [(case, 1 if quick else AGAIN) for case in (RIGHT[:1] if quick else RIGHT)]
    rows = []
    for case, repeats in cases:
        rows.append(row(case, repeats, parts))
        progress(case.name, len(rows), len(cases))
    broken, right = rows[: 2 if quick else len(BROKEN)], rows[2 if quick else len(BROKEN) :]
    settings = {"records": RECORDS, "features": FEATURES, "delta": DELTA, "runs": RUNS}
    run.write(settings=settings, broken=broken, right=right, run=run.provenance())
    return run.end(problems(broken, right))
