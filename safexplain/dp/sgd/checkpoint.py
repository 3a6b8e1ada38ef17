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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safexplain._files import whole_file
from safexplain.errors import InputError

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a training after some steps.

    Args:
        purpose: what is being trained, on which data, how; a training goes on only with an equal one.
        step: steps taken, each of them spent.
        parameters: name -> trained parameter.
        optimizer: its `state_dict`.
        skipped: examples without a finite gradient so far.
    """

    purpose: dict[str, Any]
    step: int
    parameters: dict[str, Tensor]
    optimizer: dict[str, Any]
    skipped: int

    def save(self, path: str | Path) -> None:
        """Write it, all or nothing.

        Raises:
            InputError: it cannot be written.
        """
        path = Path(path)
        try:
            with whole_file(path) as partial, partial.open("wb") as file:
                torch.save({"format": FORMAT, **vars(self)}, file)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | Path, purpose: dict[str, Any]) -> Checkpoint | None:
        """What was saved for this purpose; None if there is no such file. Nothing pickled is executed.

        Raises:
            InputError: it cannot be read, or was saved for another purpose.
        """
        path = Path(path)
        if not path.exists():
            return None
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content.pop("format") != FORMAT:
                raise ValueError("written by another version of safexplain")
            found = cls(**content)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            told = str(error).partition("\n")[0]
            raise InputError(f"cannot read the checkpoint {path}: {told}; delete it to start anew") from None
        different = sorted(k for k in purpose.keys() | found.purpose.keys() if purpose.get(k) != found.purpose.get(k))
        if different:
            told = "; ".join(f"{k}: {found.purpose.get(k)!r:.60} then, {purpose.get(k)!r:.60} now" for k in different)
            raise InputError(
                f"the checkpoint {path} is of another training ({told}); use another path, or delete it to start anew"
            )
        return found


def _writable(path: Path) -> Path:
    """The path, once it is seen that a file can be written beside it.

    Raises:
        InputError: it cannot.
    """
    trial = path.with_name(f"{path.name}.{os.getpid()}.trial")  # several processes may look at once
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None
    return path


class Saver:
    """Saves a training now and then, and takes it up again.

    Args:
        path: the file; None saves nothing.
        purpose: see `Checkpoint`.
        seconds: between saves.
        model: its parameters that require gradients are saved.
        optimizer: of these.
        skipped: tells how many examples were skipped so far.
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
        self.path, self.purpose, self.seconds = None if path is None else _writable(Path(path)), purpose, seconds
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer, self.skipped = optimizer, skipped
        self.taken, self._whole, self._saved = 0, True, time.monotonic()

    def resume(self) -> tuple[int, int]:
        """Load what was saved: steps taken and examples skipped, zeros if nothing was.

        Raises:
            InputError: the file cannot be read or is of another training.
        """
        found = None if self.path is None else Checkpoint.load(self.path, self.purpose)
        if found is None:
            return 0, 0
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(found.parameters[name])
        self.optimizer.load_state_dict(found.optimizer)
        self.taken = found.step
        return found.step, found.skipped

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
        """Save now."""
        if self.path is not None:
            parameters = {name: p.detach().cpu() for name, p in self.trained.items()}
            state = self.optimizer.state_dict()
            Checkpoint(self.purpose, self.taken, parameters, state, self.skipped()).save(self.path)
        self._saved = time.monotonic()
