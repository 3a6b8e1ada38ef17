"""A training loop that exists already, made private: three names are replaced, the loop stays."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from safexplain.dp import BudgetSpent, make_private


def main() -> None:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)  # pixels are 0 to 16
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=200, shuffle=True)
    criterion = nn.CrossEntropyLoss()

    model, optimizer, loader, privacy = make_private(
        model, optimizer, loader, epsilon=8, delta=1e-5, epochs=20, pretrained=False
    )
    for epoch in range(20):
        for inputs, targets in loader:
            optimizer.zero_grad()
            if len(targets):  # a Poisson batch may be empty: its step is one of noise
                criterion(model(inputs), targets).backward()
            optimizer.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: {privacy.statement.epsilons}")
    with torch.no_grad():
        print(f"accuracy: {float((model(x).argmax(1) == y).float().mean()):.0%}")

    try:  # one step more than was planned for
        inputs, targets = next(iter(loader))
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    except BudgetSpent as refused:
        print(f"refused: {refused}")


if __name__ == "__main__":
    main()
