"""Finished reference models on disk, under a key of everything that made them.

Only tensors are stored and only tensors are loaded (`weights_only=True`): a cache directory that somebody else can
write to cannot run code here.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import nn

from safexplain._files import PieceStore


class ModelCache:
    """A directory of state dicts named by digest.

    Args:
        folder: made when missing.

    Raises:
        InputError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | Path) -> None:
        self._store = PieceStore(folder, "a trained model")

    def load(self, key: str, model: nn.Module) -> bool:
        """Fill `model` with the stored weights; False when there are none, or they are damaged or do not fit."""

        def fill(path: Path) -> bool:
            with zipfile.ZipFile(path) as file:  # torch does not look at the checksums that it writes
                if file.testzip() is not None:
                    return False
            state = torch.load(path, map_location="cpu", weights_only=True)
            own = {name: t.shape for name, t in model.state_dict().items()}
            if {name: t.shape for name, t in state.items()} != own:
                return False  # before anything is overwritten
            model.load_state_dict(state)
            model.eval()
            return True

        return bool(self._store.load(f"{key}.pt", fill))

    def save(self, key: str, model: nn.Module) -> None:
        """Store the weights, all or nothing.

        Raises:
            InputError: the disk is full or not writable; what was stored before stays.
        """
        state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
        self._store.save(f"{key}.pt", lambda path: torch.save(state, path))
