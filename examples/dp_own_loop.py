"""A training loop of your own: Opacus makes it private, safexplain states both epsilons and checks the loop.

python examples/dp_own_loop.py
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from safexplain.audit.canaries import Claim, WhiteBox
from safexplain.dp import PrivacyStatement, noise_multiplier, statement_from

warnings.filterwarnings("ignore", "Secure RNG turned off|Full backward hook is firing")

EPOCHS, DELTA = 20, 1e-5
SIGMA = noise_multiplier(8, sample_rate=1 / 9, steps=EPOCHS * 9, delta=DELTA, adjacency="substitute")


def train(dataset: Dataset[Any], epochs: int = EPOCHS) -> tuple[nn.Module, PrivacyStatement]:
    """A loop as any other, but for the three lines of Opacus and the last one."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(dataset, batch_size=200)  # of 1,797 digits: 9 batches
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=SIGMA, max_grad_norm=1.0
    )
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(inputs), targets).backward()
            optimizer.step()
    return model, statement_from(engine, private, optimizer, loader, delta=DELTA, pretrained=False)


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)  # pixels are 0 to 16
    model, statement = train(TensorDataset(x, y))
    with torch.no_grad():
        print(f"accuracy: {float((model(x).argmax(1) == y).float().mean()):.0%}")
    print(statement.epsilons)
    print("What the accountant cannot know:", *statement.assumptions[-3:], sep="\n- ")

    def loop(dataset: Dataset[Any], generator: torch.Generator) -> nn.Module:
        return train(dataset, epochs=2)[0]  # each step is checked, so that a few are enough

    print(WhiteBox(loop, (x, y), Claim.of(statement)).run().sentence)


if __name__ == "__main__":
    main()
