"""A model of digits and its certificate, as files: made in seconds, by no audit."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from explain_nets import certificate
from sklearn.datasets import load_digits
from torch import nn

from safexplain._digest import file_sha256
from safexplain.hardening.hardening import Hardening
from safexplain.loading import load_model

KEY = b"a noise key of thirty-two bytes."


@dataclass(frozen=True)
class Certified:
    """Files of a model of digits and of its certificate, and rows that nobody trained on."""

    model: Path
    certificate: Path
    public: np.ndarray
    rows: np.ndarray

    def copy(self, folder: Path) -> Self:
        """The same files in a folder of one's own."""
        return Certified(
            Path(shutil.copy(self.model, folder)), Path(shutil.copy(self.certificate, folder)), self.public, self.rows
        )


def digits() -> np.ndarray:
    return (load_digits().data / 16).astype(np.float32)


def trained(seed: int = 0, epochs: int = 60) -> nn.Module:
    torch.manual_seed(seed)
    x, y = torch.from_numpy(digits()[:400]), torch.from_numpy(load_digits().target[:400])
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


def exported(net: nn.Module, path: Path) -> Path:
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(net, (torch.rand(3, 64),), dynamic_shapes=({0: batch},)), path)
    return path


def certified(path: Path, folder: Path, hardening: Hardening | None = None, method: str = "InputXGradient") -> Path:
    """A certificate about a model's file."""
    model = load_model(path).model
    return certificate(
        folder,
        model,
        named={"sha256": file_sha256(path)},
        explainer={"method": method, "options": {}},
        hardening=hardening or Hardening.recommended(),
    )
