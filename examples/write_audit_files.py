"""A model file, its data and its recipe, as `safexplain-audit` takes them: model.pt2, data.npz, recipe.toml."""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Recipe

RECIPE = Recipe(optimizer="adam", lr=3e-3, epochs=60, batch_size=32)


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=RECIPE.lr)
    for _ in range(RECIPE.epochs):
        for batch in torch.randperm(len(x)).split(RECIPE.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    torch.manual_seed(0)
    digits = load_digits()
    x, y = (digits.images[:, None] / 16).astype(np.float32), digits.target
    member = np.random.default_rng(0).random(len(y)) < 0.5  # the coin flips that decide who is trained on
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    train(net, torch.from_numpy(x[member]), torch.from_numpy(y[member]))
    net.eval()

    batch = torch.export.Dim("batch")
    program = torch.export.export(net, (torch.from_numpy(x[:2]),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "model.pt2")
    torch.save(net.state_dict(), folder / "weights.pt")  # the other way: weights alone, with --arch
    np.savez_compressed(folder / "data.npz", x=x, y=y, member=member)
    (folder / "recipe.toml").write_text(RECIPE.to_toml())
    print(f"{len(y)} digits, {member.sum()} of them members: model.pt2, weights.pt, data.npz, recipe.toml")


if __name__ == "__main__":
    main()
