"""The files of an audit on the command line: an overfitted network, its data, its recipe and a policy."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Recipe
from safexplain.audit.references.shadows import train_one


def digits(examples: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images (n, 1, 8, 8) in [0, 1], and labels."""
    found = load_digits()
    return (found.images[:examples, None] / 16).astype(np.float32), found.target[:examples]


def write_case(
    folder: Path, network: Callable[[], nn.Module], x: NDArray[np.float32], y: NDArray[np.int64], recipe: Recipe,
    policy: str,
) -> nn.Module:  # fmt: skip
    """Train a network on half of (x, y); write data.npz, model.pt2, state.pt, recipe.toml and policy.toml."""
    member = np.random.default_rng(0).random(len(x)) < 0.5
    torch.manual_seed(0)
    inside = torch.from_numpy(x[member]), torch.from_numpy(y[member])
    net = train_one(recipe, network(), *inside, torch.Generator().manual_seed(0))
    np.savez(folder / "data.npz", x=x, y=y, member=member)
    export(net, x[:2], folder / "model.pt2")
    torch.save(net.state_dict(), folder / "state.pt")
    (folder / "recipe.toml").write_text(recipe.to_toml())
    (folder / "policy.toml").write_text(policy)
    return net


def export(net: nn.Module, x: NDArray[np.float32], path: Path) -> None:
    """Write a network as torch.export file that takes batches of any size."""
    program = torch.export.export(net.eval(), (torch.from_numpy(x),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, path)
