"""The inputs of a linear head on a frozen backbone: computed once, in eval mode, and cached on disk.

A head trained on features has the guarantee of DP-SGD only if a row's features depend on that row and on weights from
public data alone; a few rows show whether they depend on others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from safexplain._digest import digest, model_digest
from safexplain._files import FileStore
from safexplain._progress import Progress, silent
from safexplain.errors import InputError

_ALONE = 2
"""Rows that are also passed one at a time, to check that they do not depend on others."""
_TOLERANCE = 1e-3
"""Allowed difference over the largest feature: above rounding, below the effect of dropout and batch normalisation."""
_PIECE = 2**24
"""Approximate number of values in one file of the cache."""


def _load(store: FileStore, name: str, rows: int) -> Tensor | None:
    """The array of that name; None if it is missing, damaged or has another number of rows."""

    def read(path: Path) -> Tensor | None:
        found = np.load(path, allow_pickle=False)
        return torch.from_numpy(found) if found.ndim == 2 and len(found) == rows else None

    return store.load(name, read)


def _save(store: FileStore, name: str, rows: Tensor) -> None:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, rows.numpy())

    store.save(name, write)


def linear_head(model: nn.Module, head_name: str) -> nn.Linear:
    """The head of that name; InputError: there is no such module, or it is not an `nn.Linear`."""
    try:
        head = model.get_submodule(head_name)
    except AttributeError:
        linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        raise InputError(
            f"head_name: the model has no module {head_name!r}; its linear layers are {', '.join(linear)}"
        ) from None
    if not isinstance(head, nn.Linear):
        raise InputError(f"head_name: expected an nn.Linear, but {head_name!r} is a {type(head).__name__}")
    return head


def head_input(model: nn.Module, head_name: str, x: Tensor) -> Tensor:
    """The head's input (n, d) for inputs `x`, with gradients; InputError: another shape, or not exactly one call."""
    caught: list[Tensor] = []
    hook = linear_head(model, head_name).register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    try:
        model(x)
    finally:
        hook.remove()
    if len(caught) != 1:
        raise InputError(
            f"the head {head_name!r} must be called once in a forward pass, but it was called {len(caught)} times"
        )
    if caught[0].dim() != 2 or len(caught[0]) != len(x):
        raise InputError(
            f"the head {head_name!r} must have inputs of shape (n, d), but for {len(x)} rows it got"
            f" {tuple(caught[0].shape)}; pool or flatten before the head"
        )
    return caught[0]


def features(
    model: nn.Module,
    head_name: str,
    x: Tensor,
    *,
    batch_size: int = 256,
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> Tensor:
    """The input of the head for every row, in eval mode; cached by model and rows.

    The cache identifies a backbone by names, classes and weights of its modules, not by their code. An interrupted call
    continues where it stopped.

    Args:
        model: backbone and head; its mode is restored afterwards.
        head_name: of an `nn.Linear` in `model.named_modules()`.
        x: (n, ...) inputs, preprocessed.
        batch_size: rows at a time.
        cache: folder, created if missing, for the array or, until it is complete, its parts; None for no cache.
        progress: called after every batch.

    Returns:
        (n, d) on the CPU, in the precision of the head's input.

    Raises:
        InputError: there is no such head, its input is not (n, d), or features are not finite, are random or depend on
            other rows.
    """
    linear_head(model, head_name)
    if batch_size < 1 or not len(x):
        raise InputError(f"expected at least one row and a batch_size of at least 1, got {len(x)} and {batch_size}")
    store = None if cache is None else FileStore(cache, "features")
    key = _key(model, head_name, x) if store else ""
    if store and (cached := _load(store, f"{key}.npy", len(x))) is not None:
        return cached
    with _eval(model), torch.no_grad():
        width = _check(model, head_name, x[: max(2, min(batch_size, 8))])
        step = batch_size * max(1, _PIECE // (batch_size * width))
        pieces = []
        for start in range(0, len(x), step):
            rows = x[start : start + step]
            piece = _load(store, f"{key}.{start}.npy", len(rows)) if store else None
            if piece is None:
                piece = _compute(model, head_name, rows, batch_size, progress, start, len(x))
                if store:
                    _save(store, f"{key}.{start}.npy", piece)
            pieces.append(piece)
    found = torch.cat(pieces)
    if store:
        _save(store, f"{key}.npy", found)
        store.remove(f"{key}.*.npy")
    return found


def _compute(
    model: nn.Module, head_name: str, rows: Tensor, batch_size: int, progress: Progress, start: int, total: int
) -> Tensor:
    found = []
    for first in range(0, len(rows), batch_size):
        batch = rows[first : first + batch_size]
        found.append(head_input(model, head_name, batch.to(_device(model))).cpu())
        start += len(batch)
        progress("features", start, total)
    computed = torch.cat(found)
    if not bool(computed.isfinite().all()):
        raise InputError("the backbone's features are NaN or infinite; check the inputs and their preprocessing")
    return computed


def _check(model: nn.Module, head_name: str, rows: Tensor) -> int:
    """The number of features; raises InputError unless they depend on their own row only."""
    rows = rows.to(_device(model))
    together = head_input(model, head_name, rows)[:_ALONE].cpu()
    alone = torch.cat([head_input(model, head_name, row[None]) for row in rows[:_ALONE]]).cpu()
    if float((together - alone).abs().max()) > _TOLERANCE * float(together.abs().max()):
        raise InputError(
            "the features of a row are random or depend on the other rows of its batch (permanent dropout, or batch"
            " statistics in eval mode), so a head trained on them would have no guarantee; use another backbone"
        )
    return together.shape[1]


def _device(model: nn.Module) -> torch.device:
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


@contextmanager
def _eval(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, and restore the modes afterwards."""
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _key(model: nn.Module, head_name: str, x: Tensor) -> str:
    """A digest of the backbone without its head, and of the rows."""
    parent = model.get_submodule(head_name.rpartition(".")[0])
    name, head = head_name.rpartition(".")[2], model.get_submodule(head_name)
    setattr(parent, name, nn.Identity())
    try:
        return digest(model_digest(model), head_name, x)[:32]
    finally:
        setattr(parent, name, head)
