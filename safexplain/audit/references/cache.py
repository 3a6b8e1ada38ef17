"""Finished reference models on disk, under a key of everything that made them.

Only tensors are stored and only tensors are loaded (`weights_only=True`): a cache directory that somebody else can
write to cannot run code here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from safexplain._files import PieceStore
from safexplain._progress import Progress
from safexplain.audit.recipe import Tick
from safexplain.audit.references.compiled import forget
from safexplain.audit.references.resume import read_tensors


class ModelCache:
    """A directory of state dicts named by digest.

    Args:
        folder: made when missing.

    Raises:
        InputError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | Path) -> None:
        self._store = PieceStore(folder, "a trained model")

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._store.folder

    def load(self, key: str, model: nn.Module) -> bool:
        """Fill `model` with the stored weights; False when there are none, or they are damaged or do not fit."""

        def fill(path: Path) -> bool:
            state = read_tensors(path)
            if state is None:
                return False
            own = {name: t.shape for name, t in model.state_dict().items()}
            if {name: t.shape for name, t in state.items()} != own:
                return False  # before anything is overwritten
            model.load_state_dict(state)
            model.eval()
            return True

        return bool(self._store.load(f"{key}.pt", fill))

    def has(self, key: str) -> bool:
        """Whether something is stored under a key."""
        return any((self.folder / f"{key}.{kind}").is_file() for kind in ("pt", "model"))

    def save(self, key: str, model: nn.Module) -> None:
        """Store the weights, all or nothing.

        Raises:
            InputError: the disk is full or not writable; what was stored before stays.
        """
        state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
        self._store.save(f"{key}.pt", lambda path: torch.save(state, path))

    def load_file(self, key: str, read: Callable[[Path], bool]) -> bool:
        """Read what `save_bytes` stored; False where there is nothing, or `read` says that it is damaged."""
        return bool(self._store.load(f"{key}.model", read))

    def save_bytes(self, key: str, raw: bytes) -> None:
        """Store a model as bytes, all or nothing.

        Raises:
            InputError: the disk is full or not writable; what was stored before stays.
        """
        self._store.save(f"{key}.model", lambda path: path.write_bytes(raw))

    def checkpoint(self, key: str) -> Path:
        """Where the model of this key is kept while it trains."""
        return self._store.folder / f"{key}.partial.pt"


class TrainGroup(Protocol):
    """Trains some of the models in place."""

    def __call__(
        self, group: list[int], tick: Tick, finished: Callable[[int], None], checkpoints: list[Path | None]
    ) -> None:
        """Train the models of these numbers.

        Args:
            group: numbers of models.
            tick: to be told the share of the group that is done.
            finished: to be told the place in the group of each model that is; it is stored then.
            checkpoints: for each, a file where it may be kept while it trains.
        """


def load_or_train(
    models: Sequence[nn.Module],
    keys: Sequence[str],
    store: ModelCache | None,
    groups: Callable[[list[int]], list[list[int]]],
    train: TrainGroup,
    *,
    stage: str,
    progress: Progress,
) -> list[nn.Module]:
    """Fill each model from the store, or train it there and store it: an interrupted run resumes where it stopped.

    Args:
        models: m untrained models of the right architectures; filled or trained in place.
        keys: of everything that makes each; "" where that cannot be told, and it is not stored.
        store: None: nothing is stored.
        groups: indices of missing models -> those that train together, group by group.
        train: trains a group of models in place.
        stage: what progress is told.
        progress: told after each model, and within, with a note such as "model 2 of 16, epoch 3 of 30".

    Returns:
        The models, in eval mode.
    """
    missing = [i for i, key in enumerate(keys) if not (store and key and store.load(key, models[i]))]
    finished = len(models) - len(missing)
    for group in filter(None, groups(missing)):

        def tick(share: float, note: str = "", size: int = len(group), before: int = finished) -> None:
            done = before + share * size
            which = f"model {max(math.ceil(done - 1e-9), 1)} of {len(models)}, " if note.startswith("epoch") else ""
            progress(stage, done, len(models), which + note)

        def save(place: int, group: list[int] = group) -> None:
            if store and (key := keys[group[place]]):
                store.save(key, models[group[place]])
                store.checkpoint(key).unlink(missing_ok=True)

        train(group, tick, save, [store.checkpoint(keys[i]) if store and keys[i] else None for i in group])
        finished += len(group)
    forget()
    progress(stage, len(models), len(models))
    return [m.eval() for m in models]
