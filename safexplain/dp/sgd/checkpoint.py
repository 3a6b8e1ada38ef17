"""Training that was interrupted goes on where it stopped, with the accountant's state.

A checkpoint holds the trained parameters, the optimizer's state and how many steps were spent. It holds no key and no
generator: batches and noise of the steps to come are drawn anew, from the operating system. It is not protected any
less than the final model, but two trainings continued from one checkpoint are two releases, and spend twice.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import nn

from safexplain._files import whole_file
from safexplain.errors import InputError

FORMAT = 1


class Saver:
    """Saves a training now and then, and takes it up again.

    Args:
        path: the file; None saves nothing.
        purpose: what is being trained, on which data, how; a training goes on only with an equal one.
        seconds: between saves.
        model: its parameters that require gradients are saved.
        optimizer: of these.
        skipped: tells how many examples had no finite gradient so far.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(
        self,
        path: str | Path | None,
        purpose: dict[str, Any],
        seconds: float,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        skipped: Callable[[], int],
    ) -> None:
        self.path, self.purpose, self.seconds = None if path is None else Path(path), purpose, seconds
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer, self.skipped = optimizer, skipped
        self.taken, self._whole, self._saved = 0, True, time.monotonic()
        if self.path is not None:
            with _told_unwritable(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=self.path.parent).close()

    def resume(self) -> tuple[int, int]:
        """Load what was saved: steps taken and examples skipped, zeros if nothing was. Nothing pickled is executed.

        Raises:
            InputError: the file cannot be read or is of another training.
        """
        if self.path is None or not self.path.exists():
            return 0, 0
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            if content["format"] != FORMAT:
                raise ValueError("written by another version of safexplain")
            then, self.taken, skipped = content["purpose"], content["step"], content["skipped"]
            parameters, optimizer = content["parameters"], content["optimizer"]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            told = str(error).partition("\n")[0]
            raise InputError(f"cannot read the checkpoint {self.path}: {told}; delete it to start anew") from None
        now = self.purpose
        if different := sorted(k for k in now.keys() | then.keys() if now.get(k) != then.get(k)):
            told = "; ".join(f"{k}: {then.get(k)!r:.60} then, {now.get(k)!r:.60} now" for k in different)
            raise InputError(
                f"the checkpoint {self.path} is of another training ({told}); use another path, or delete it to start"
                " anew"
            )
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(parameters[name])
        self.optimizer.load_state_dict(optimizer)
        return self.taken, skipped

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around an optimizer's step. One that is interrupted may have told of its batch: it is never saved."""
        self._whole = False
        yield
        self.taken += 1
        self._whole = True

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Save when interrupted, unless in the middle of a step or because the training diverged."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self._whole and not isinstance(error, InputError):
                self.save()
            raise

    def save_now_and_then(self) -> None:
        """Save if it is time."""
        if time.monotonic() - self._saved >= self.seconds:
            self.save()

    def save(self) -> None:
        """Save now, all or nothing.

        Raises:
            InputError: it cannot be written.
        """
        if self.path is not None:
            content = {
                "format": FORMAT,
                "purpose": self.purpose,
                "step": self.taken,
                "parameters": {name: p.detach().cpu() for name, p in self.trained.items()},
                "optimizer": self.optimizer.state_dict(),
                "skipped": self.skipped(),
            }
            with _told_unwritable(self.path), whole_file(self.path) as partial, partial.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
        self._saved = time.monotonic()


@contextmanager
def _told_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None
