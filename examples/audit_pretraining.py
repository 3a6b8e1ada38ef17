"""A fine-tuned model audited: does it tell who was in the data that its backbone was pre-trained on?

The backbone learned digits from a pool in which a third of the labels are wrong, so that it remembers examples. Its new
head was trained on another task, other digits modulo 5, which has no label for the pool's examples. Its probabilities,
or the norms of native explanations of its classes, still tell who was in the pool; the recommended hardening does not.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import nn

from safexplain import HardenedInputXGradient, Hardening
from safexplain.audit import (
    AuditOptions,
    FineTune,
    Policy,
    Population,
    Recipe,
    Shadows,
    audit,
    fine_tune,
    train_shadows,
)

POLICY = Policy(fpr=0.05, max_tpr=0.15, patience=(1,))  # an attacker who asks once about each example
ABOUT = AuditOptions(subject_data="pre-training", classes=(0, 1, 2, 3, 4))  # clients may ask about each class


def build(seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = shuffle(*load_digits(return_X_y=True), random_state=0)
    pool = Population.of(x[:800] / 16, np.where(rng.random(800) < 0.3, rng.integers(0, 10, 800), y[:800]))
    downstream = Population.of(x[800:] / 16, y[800:] % 5)

    pretrained = train_shadows(pool, Recipe(lr=3e-3, epochs=40, batch_size=32), build=build, models=17)
    tuned = fine_tune(pretrained, FineTune(downstream, Recipe(lr=0.01, epochs=20), trainable="head"))
    run = audit(
        tuned.models[0],
        pool,
        member=tuned.membership[0],
        shadows=Shadows(tuned.models[1:], tuned.membership[1:]),
        explainer=HardenedInputXGradient,
        hardening=Hardening.recommended(),
        policy=POLICY,
        options=ABOUT,
    )
    for name, result in (("native", run.native), ("hardened", run.result)):
        print(f"{name}: {result.verdict}")
        for attack in result.attacks:
            if attack.attack == "JointLikelihoodRatio" and attack.signal in ("prediction", "class_l1"):
                print(f"    {attack.title}: AUC {attack.auc:.3f}, {attack.at(0.05).tpr:.1%} of the members at 5 %")


if __name__ == "__main__":
    main()
