"""A training kept on disk while it runs: one that was killed goes on, and ends bit for bit where it would have ended.

Only tensors and plain values are stored and loaded (`weights_only=True`), all or nothing.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safexplain._files import PieceStore

SECONDS = 180.0
"""A training is stored this often, at the end of a step."""


def read_tensors(path: Path) -> Any:
    """What `torch.save` wrote, on the CPU; None where the file is damaged.

    Raises:
        Exception: whatever torch and zipfile raise on what is no such file, or holds more than tensors and numbers.
    """
    with zipfile.ZipFile(path) as file:  # torch does not look at the checksums that it writes
        if file.testzip() is not None:
            return None
    return torch.load(path, map_location="cpu", weights_only=True)


class Checkpoint:
    """Where one training is kept: weights, buffers, optimizer, learning rate, random generators and step.

    Args:
        path: of the file; its folder is made when missing.
        identity: text that differs for any other training; a file with another one is as if it were not there.
        tensors: all that the training changes besides the optimizer, by name; they are written into.

    Raises:
        InputError: the folder cannot be made.
    """

    def __init__(self, path: Path, identity: str, tensors: Mapping[str, Tensor]) -> None:
        self._store, self._name = PieceStore(path.parent, "a checkpoint"), path.name
        self._identity, self._tensors, self._stored = identity, tensors, time.monotonic()
        self._devices = sorted({t.device.index for t in tensors.values() if t.device.type == "cuda"})

    @property
    def due(self) -> bool:
        """Whether it is time to store the training again."""
        return time.monotonic() - self._stored >= SECONDS

    def load(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        generators: Sequence[torch.Generator],
    ) -> int:
        """Bring everything to where it was stored; the number of steps that are done, 0 where nothing usable is stored.

        Args:
            optimizer: of these tensors.
            schedule: of its learning rate.
            generators: of the order and the augmentation.
        """
        state = self._store.load(self._name, self._read)
        if state is None:
            return 0
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        with torch.no_grad():
            for name, t in self._tensors.items():
                t.copy_(state["tensors"][name])
        for generator, of_one in zip(generators, state["generators"], strict=True):
            generator.set_state(of_one)
        torch.set_rng_state(state["cpu"])
        for device, of_one in zip(self._devices, state["cuda"], strict=True):
            torch.cuda.set_rng_state(of_one, device)
        return int(state["step"])

    def save(
        self,
        step: int,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        generators: Sequence[Tensor],
    ) -> None:
        """Store the training as it stands after `step` steps.

        Args:
            step: how many are done.
            optimizer: of these tensors.
            schedule: of its learning rate.
            generators: states of those of order and augmentation at the beginning of the epoch of the next step.

        Raises:
            InputError: the disk is full or not writable; what was stored before stays.
        """
        state = {
            "identity": self._identity,
            "step": step,
            "tensors": {name: t.detach() for name, t in self._tensors.items()},
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "generators": list(generators),
            "cpu": torch.get_rng_state(),
            "cuda": [torch.cuda.get_rng_state(device) for device in self._devices],
        }
        self._store.save(self._name, lambda path: torch.save(state, path))
        self._stored = time.monotonic()

    def _read(self, path: Path) -> dict[str, Any] | None:
        state = read_tensors(path)
        if state is None or state["identity"] != self._identity or len(state["cuda"]) != len(self._devices):
            return None
        shapes = {name: t.shape for name, t in state["tensors"].items()}
        return dict(state) if shapes == {name: t.shape for name, t in self._tensors.items()} else None
