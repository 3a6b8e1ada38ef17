"""`safexplain demo`: a real model's explanations attacked, hardened, attacked again, and judged, in some minutes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from safexplain import HardenedInputXGradient
from safexplain._progress import Progress, named
from safexplain.audit import Policy, Population, Recipe, train_shadows
from safexplain.audit.outcome import AuditRun
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.run import AuditOptions, Pool, audit_pools
from safexplain.hardening.hardening import Hardening

POOLS, POOL_SIZE, REFERENCES = 3, 599, 16
"""Three disjoint pools use all 1,797 digits while each is small enough to overfit; a target and 16 references each."""

RECIPE = Recipe(optimizer="adam", lr=3e-3, epochs=60, batch_size=32)
POLICY = Policy(
    fpr=0.05,
    max_tpr=0.08,
    confidence=0.9,
    reason="with about 900 non-members a false-positive rate of 1 % would rest on nine of them, so it is 5 %, and the"
    " confidence is 90 %; explanations may add 3 points to what the labels of the same queries tell",
)


def build(seed: int) -> nn.Module:
    """A small network for 8 x 8 digits that can learn its members by heart."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))


def pools(seed: int) -> list[Population]:
    """The scikit-learn digits, shuffled into disjoint pools; pixels scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    x = digits.images[:, None] / 16
    parts = [order[i * POOL_SIZE : (i + 1) * POOL_SIZE] for i in range(POOLS)]
    return [Population.of(x[part], digits.target[part]) for part in parts]


def run_demo(cache: Path, *, seed: int, device: str, progress: Progress) -> AuditRun:
    """Train on digits, and attack the native explanation and the recommended one."""
    made = []
    for i, population in enumerate(pools(seed)):
        shadows = train_shadows(
            population,
            RECIPE,
            build=build,
            models=2 + REFERENCES,
            only=[0, *range(2, 2 + REFERENCES)],  # without the partner of the target, which is trained on all the rest
            seed=POOLS * seed + i,
            device=device,
            cache=ModelCache(cache),
            progress=named(progress, f"training (pool {i + 1} of {POOLS})"),
        )
        made.append(Pool(population, shadows))
    options = AuditOptions(
        title="Handwritten digits, small network",
        materials={f"pool {i + 1} sha256": p.population.digest() for i, p in enumerate(made)},
        notes=(
            f"Demonstration: {POOLS} targets, each overfitted to half of its own {POOL_SIZE} digits,"
            f" with {REFERENCES} reference models each.",
        ),
    )
    return audit_pools(
        made,
        explainer=HardenedInputXGradient,
        hardening=Hardening.recommended(),
        policy=POLICY,
        options=options,
        recipe=RECIPE,
        seed=seed,
        progress=progress,
    )
