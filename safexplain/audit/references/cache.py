"""Finished reference models on disk, each under a key of everything that made it.

Only tensors are stored and loaded (`weights_only=True`), so that a tampered cache cannot run code.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from safexplain._files import FileStore
from safexplain._progress import Progress
from safexplain.audit.references.parallel import each
from safexplain.audit.references.recipe import forget


class ModelCache:
    """A directory of state dicts named by digest, made when missing; InputError if it cannot be made or written."""

    def __init__(self, folder: str | Path) -> None:
        self._store = FileStore(folder, "a trained model")

    @property
    def folder(self) -> Path:
        """The directory."""
        return self._store.folder

    def load(self, key: str, model: nn.Module) -> bool:
        """Fill `model` with the stored weights; False if they are missing, damaged or of another shape."""

        def fill(path: Path) -> bool:
            with zipfile.ZipFile(path) as file:  # torch does not check the checksums that it writes
                if file.testzip() is not None:
                    return False
            state = torch.load(path, map_location="cpu", weights_only=True)
            shapes = {name: t.shape for name, t in model.state_dict().items()}
            if {name: t.shape for name, t in state.items()} != shapes:
                return False  # before anything is overwritten
            model.load_state_dict(state)
            model.eval()
            return True

        return bool(self._store.load(f"{key}.pt", fill))

    def save(self, key: str, model: nn.Module) -> None:
        """Store the weights, all or nothing; InputError if the disk is full or not writable."""
        state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
        self._store.save(f"{key}.pt", lambda path: torch.save(state, path))

    def load_bytes(self, key: str, read: Callable[[bytes], Any]) -> Any:
        """The result of `read` on the stored bytes; None if there are none, or `read` fails."""
        return self._store.load(f"{key}.model", lambda path: read(path.read_bytes()))

    def save_bytes(self, key: str, raw: bytes) -> None:
        """Store a model as bytes; as `save`."""
        self._store.save(f"{key}.model", lambda path: path.write_bytes(raw))


def load_or_train(
    train: Callable[..., list[nn.Module]],
    starts: Sequence[nn.Module | None],
    groups: Callable[[list[int]], list[list[int]]],
    load: Callable[[int], nn.Module | None],
    save: Callable[[int, nn.Module], None],
    *,
    stage: str,
    progress: Progress,
) -> list[nn.Module]:
    """The models 0 .. m - 1 in eval mode. Those that `load` does not find are trained by `train(places, starts, tick=)`
    in groups, here or in workers, and saved, so that an interrupted run resumes."""
    models = [load(i) for i in range(len(starts))]
    missing = [i for i, model in enumerate(models) if model is None]
    parts = groups(missing)

    def report(stage: str, done: float, total: float, note: str = "") -> None:
        which = f"model {max(math.ceil(done - 1e-9), 1)} of {len(models)}, " if note.startswith("epoch") else ""
        progress(stage, done, total, which + note)

    tasks = [(part, [starts[i] for i in part]) for part in parts]
    sizes, before = [len(part) for part in parts], len(models) - len(missing)
    for k, made in each(train, tasks, sizes=sizes, stage=stage, progress=report, before=before, total=len(models)):
        for i, model in zip(parts[k], made, strict=True):
            save(i, model)
            models[i] = model
    forget()
    progress(stage, len(models), len(models))
    return [model.eval() for model in models if model is not None]
