"""Fine-tune a network within a privacy budget, and hand out model, statement and model card."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from safexplain.dp import DPFineTuner, PrivacyStatement


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    inside, outside = train_test_split(range(len(y)), test_size=400, random_state=0, stratify=y)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    tuner = DPFineTuner(
        network,
        (x[inside], y[inside]),
        epsilon=8,
        delta=1e-5,
        adjacency="substitute",  # protects what a record says, not only whether it was there
        epochs=20,
        batch_size=140,  # expected: Poisson batches differ in size
        lr=0.01,
        pretrained=False,
    )
    print(f"planned: {tuner.plan.steps} steps, noise multiplier {tuner.plan.noise_multiplier:.2f}")
    trained = tuner.fit()
    print(f"accuracy on new digits: {accuracy(network, x[outside], y[outside]):.0%} before, ", end="")
    print(f"{accuracy(trained.model, x[outside], y[outside]):.0%} after")
    print(trained.statement)

    trained.statement.save("privacy.json")  # for `safexplain audit --privacy privacy.json`
    Path("MODEL_CARD.md").write_text(f"# Digits\n\n{trained.statement.to_markdown()}")
    assert PrivacyStatement.load("privacy.json") == trained.statement


if __name__ == "__main__":
    main()
