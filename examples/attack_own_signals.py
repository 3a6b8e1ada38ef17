"""Signals from any pipeline, written with plain NumPy as .npz, and attacked: `safexplain attack signals.npz`."""

import json
import sys
from pathlib import Path

import numpy as np

from safexplain.audit import Policy, Signals, certify


def write(path: Path, effect: float) -> None:
    """17 models, 2000 examples: the norm of an explanation is exp(-effect) times as large on members."""
    rng = np.random.default_rng(0)
    member = rng.random((17, 2000)) < 0.5  # [model, example]: was this model trained on this example?
    difficulty = rng.normal(size=2000)  # examples differ among themselves more than membership makes
    log_norm = difficulty - effect * member + 0.5 * rng.normal(size=member.shape)
    np.savez_compressed(
        path,
        membership=member,
        l1=np.exp(log_norm),
        label=rng.integers(0, 2, 2000) * np.ones(member.shape),
        meta=np.array(json.dumps({"explainer": "simulated"})),
    )


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for name, effect in (("leaking", 0.7), ("quiet", 0.0)):
        path = folder / f"{name}.npz"
        write(path, effect)
        result = certify(Signals.load(path), Policy(fpr=0.01, max_tpr=0.03))
        print(f"{path.name}: {result.verdict}")
        print("   ", result.sentence)


if __name__ == "__main__":
    main()
