"""Signals from any pipeline, written with plain NumPy as .npz, and attacked: `safexplain attack signals.npz`."""

import json
import sys
from pathlib import Path

import numpy as np

from safexplain.audit import Signals, certify


def write(path: Path, effect: float) -> None:
    """17 models, 2000 examples: the norm of an explanation is exp(-effect) times as large on members.

    The first model is the target, the others are its references. The file holds what each model released at one query,
    and at 32 that differ a little: the norm of the averaged explanation, and the share that kept the label.
    """
    rng = np.random.default_rng(round(2 + 100 * effect))
    member = rng.random((17, 2000)) < 0.5  # [model, example]: was this model trained on this example?
    difficulty = rng.normal(size=2000)  # examples differ among themselves more than membership makes
    arrays = {"label": rng.integers(0, 2, 2000) * np.ones(member.shape)}
    for asked, noise in ((1, 0.7), (32, 0.5)):
        at = "" if asked == 1 else f"@{asked}"
        arrays[f"l1{at}"] = np.exp(difficulty - effect * member + noise * rng.normal(size=member.shape))
        if asked > 1:
            arrays[f"kept{at}"] = rng.uniform(0.8, 1, size=2000) * np.ones(member.shape)
    arrays["inputs"] = rng.normal(size=(2000, 5))  # what was asked about: other people each time
    meta = {"explainer": "simulated", "targets": [0]}
    np.savez_compressed(path, membership=member, meta=np.array(json.dumps(meta)), **arrays)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    for name, effect in (("leaking", 0.7), ("quiet", 0.0)):
        path = folder / f"{name}.npz"
        write(path, effect)
        result = certify(Signals.load(path))
        print(f"{path.name}: {result.verdict}")
        print("   ", result.sentence)


if __name__ == "__main__":
    main()
