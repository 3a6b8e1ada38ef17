"""From training to certificate: fine-tune a network within a privacy budget, hand out its statement, audit it.

python examples/dp_fine_tune.py
safexplain audit model.pt2 --data data.npz --recipe recipe.toml --privacy privacy.json --explainer InputXGradient
safexplain verify run/certificate.json --model model.pt2       # the folder that the audit names
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.dp import DPFineTuner, PrivacyStatement


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    inside = torch.zeros(len(y), dtype=torch.bool)
    inside[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: len(y) // 2]] = True
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    tuner = DPFineTuner(
        network,
        (x[inside], y[inside]),
        epsilon=8,
        delta=1e-5,
        adjacency="substitute",  # protects what a record says, not only whether it was there
        epochs=40,
        batch_size=180,  # expected: Poisson batches differ in size
        lr=0.01,
        pretrained=False,
    )
    print(tuner)
    trained = tuner.fit(compare=(x[~inside], y[~inside]))
    print(trained)
    print(trained.comparison)  # what privacy costs: for your eyes, not for the model card

    trained.statement.save("privacy.json")
    Path("MODEL_CARD.md").write_text(f"# Digits\n\n{trained.statement.to_markdown()}")
    assert PrivacyStatement.load("privacy.json") == trained.statement
    graph = torch.export.export(trained.model, (x[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(graph, "model.pt2")
    np.savez("data.npz", x=x, y=y, member=inside)
    Path("recipe.toml").write_text('optimizer = "adam"\nlr = 0.01\n')  # all else stands in privacy.json


if __name__ == "__main__":
    main()
