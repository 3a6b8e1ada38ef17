"""`safexplain demo`."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from safexplain import HardenedInputXGradient
from safexplain._progress import Progress, as_stage
from safexplain.audit import AuditOptions, Policy, Population, Recipe, audit, train_shadows
from safexplain.audit.references.shadows import ModelCache
from safexplain.audit.report.outcome import AuditRun
from safexplain.hardening.hardening import Hardening

REFERENCES = 16

RECIPE = Recipe(optimizer="adam", lr=3e-3, epochs=60, batch_size=64)
POLICY = Policy(
    fpr=0.05,
    max_tpr=0.08,
    confidence=0.9,
    reason="with about 900 non-members, a false-positive rate of 1 % would rest on nine of them, so it is 5 %, and the"
    " confidence is 90 %; explanations may add 3 points to what the labels of the same queries reveal",
)


def build(seed: int) -> nn.Module:
    """A small network for 8 x 8 digits that can memorise its members."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))


def digits() -> Population:
    """The 1,797 digits of scikit-learn; pixels scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return Population.of(found.images[:, None] / 16, found.target)


def run_demo(cache: Path, *, seed: int, device: str, progress: Progress) -> AuditRun:
    """Train a network on half of the digits, and audit its native explanations and the recommended release."""
    population, models = digits(), ModelCache(cache)
    target = train_shadows(
        population, RECIPE, build=build, models=1, seed=seed, device=device, cache=models,
        progress=as_stage(progress, "training the model"),
    )  # fmt: skip
    notes = ("Demonstration: one network, overfitted to half of the digits.",)
    return audit(
        target.models[0], population, RECIPE, build=build, member=target.membership[0],
        explainer=HardenedInputXGradient, hardening=Hardening.recommended(), references=REFERENCES, policy=POLICY,
        options=AuditOptions(scored=len(population), title="Handwritten digits, small network", notes=notes),
        seed=seed + 1,  # other coin flips than those of the target
        cache=models, progress=progress,
    )  # fmt: skip
