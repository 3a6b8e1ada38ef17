"""How a model is trained: what reference models must repeat to stand in for the target, and the loop that does it.

`references.training` trains many small models at once, by the same streams of random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._validate import from_toml
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

TELL_SECONDS = 0.5
"""Within an epoch, progress is told this often; at the end of each epoch it always is."""


class Tick(Protocol):
    """Told about a training."""

    def __call__(self, share: float, note: str = "") -> None:
        """`share` of the work is done, in [0, 1]; `note` is where it stands, as "epoch 3 of 30"."""


OptimizerName = Literal["adam", "adamw", "sgd"]
ScheduleName = Literal["constant", "cosine"]
AugmentationName = Literal["none", "flip", "crop-flip"]


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule, epochs, batch, augmentation and seed of a training with cross-entropy.

    Args:
        optimizer: adam, adamw or sgd.
        lr: peak learning rate.
        momentum: of sgd.
        weight_decay: as the optimizer applies it (L2 for adam and sgd, decoupled for adamw).
        epochs: passes over the members.
        batch_size: examples a step; the members are permuted anew each epoch, the last batch may be smaller. A single
            one left over joins the batch before it: BatchNorm cannot train on one.
        schedule: constant, or cosine to zero over all steps.
        augmentation: none, flip (horizontal), or crop-flip (reflect-pad by 1/8 and crop, then flip); images only.
        seed: the base of every random choice (initial weights, order, augmentation), together with a model's index.

    Raises:
        ConfigurationError, ConfigurationTypeError: a value is of the wrong type or out of range.
    """

    optimizer: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    epochs: int = 50
    batch_size: int = 64
    schedule: ScheduleName = "constant"
    augmentation: AugmentationName = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("optimizer", get_args(OptimizerName)),
            ("schedule", get_args(ScheduleName)),
            ("augmentation", get_args(AugmentationName)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"recipe: {name} is one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        for name in ("lr", "momentum", "weight_decay", "epochs", "batch_size", "seed"):
            value = getattr(self, name)
            whole = name in ("epochs", "batch_size", "seed")
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise ConfigurationTypeError(
                    f"recipe: {name} must be {'a whole' if whole else 'a'} number, got {value!r}"
                )
            smallest = 1 if name in ("epochs", "batch_size") else 0
            if not smallest <= value < float("inf"):
                raise ConfigurationError(f"recipe: {name} must be at least {smallest} and finite, got {value!r}")

    @classmethod
    def from_toml(cls, path: str | Path) -> Recipe:
        """Read a recipe: one `name = value` a line, names as the arguments, left-out ones at their defaults.

        Raises:
            InputError: the file cannot be read or is not TOML.
            ConfigurationError: an unknown name, or as the constructor.
        """
        return from_toml(cls, path, "recipe")

    def to_toml(self) -> str:
        """The recipe as TOML text that `from_toml` reads."""
        return "".join(f"{k} = {_toml(v)}\n" for k, v in asdict(self).items())

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer over these tensors; all three work elementwise, so stacked models train as single ones do."""
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "sgd":
                return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        """The learning rate over `steps` steps, to be stepped after each."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def steps_per_epoch(self, members: int) -> int:
        """Batches an epoch over this many members."""
        return len(self.batch_sizes(members))

    def batch_sizes(self, members: int) -> list[int]:
        """Examples in each batch of an epoch over this many members."""
        full, rest = divmod(members, self.batch_size)
        if rest == 1 and full:
            return [self.batch_size] * (full - 1) + [self.batch_size + 1]
        return [self.batch_size] * full + [rest] * (rest > 0)

    def train(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        tick: Tick | None = None,
        *,
        parts: Sequence[nn.Module] | None = None,
        checkpoint: Path | None = None,
    ) -> nn.Module:
        """Train `model` in place on all of (x, y) and return it in eval mode.

        Args:
            model: on the device where it is to train.
            x: (members, ...) inputs.
            y: (members,) labels.
            generator: CPU generator of the order and the augmentation; dropout draws from the global one, seeded by it.
            tick: progress.
            parts: modules of it that train; all else stays in eval mode and as it is. None: the whole model.
            checkpoint: file where the training is kept while it runs, so that one that was interrupted goes on there.

        Raises:
            InputError: the loss became NaN or infinite.
        """
        device = next(model.parameters()).device
        x, y = x.to(device), y.to(device)
        order = batches(self, len(y), generator)

        def next_loss() -> Tensor:
            index = next(order).to(device)
            return F.cross_entropy(model(augment(x[index], self.augmentation, generator)), y[index])

        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(generator.initial_seed())
            model.train(parts is None)
            training = [part.train() for part in ([model] if parts is None else parts)]
            parameters: list[Tensor] = list(dict.fromkeys(p for part in training for p in part.parameters()))
            descend(self, parameters, len(y), next_loss, tick)
        check_finite(model)
        return model.eval()


def descend(
    recipe: Recipe, parameters: list[Tensor], members: int, next_loss: Callable[[], Tensor], tick: Tick | None
) -> None:
    """All steps of a recipe, each on the loss of the next batch."""
    optimizer = recipe.make_optimizer(parameters)
    each = recipe.steps_per_epoch(members)
    steps = each * recipe.epochs
    told = time.monotonic()
    schedule = recipe.make_schedule(optimizer, steps)
    with torch.enable_grad():
        for step in range(1, steps + 1):
            loss = next_loss()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            if tick and (step % each == 0 or time.monotonic() - told >= TELL_SECONDS):
                told = time.monotonic()
                tick(step / steps, f"epoch {(step - 1) // each + 1} of {recipe.epochs}")
    optimizer.zero_grad(set_to_none=True)


def batches(recipe: Recipe, members: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Positions of the members in each batch, epoch after epoch."""
    for _ in range(recipe.epochs):
        yield from torch.randperm(members, generator=generator).split(recipe.batch_sizes(members))


def check_finite(model: nn.Module) -> None:
    """Raise InputError where a training has diverged."""
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise InputError("training diverged: the weights became NaN or infinite; lower the recipe's learning rate")


def augment(x: Tensor, kind: AugmentationName, generator: torch.Generator) -> Tensor:
    """Randomly flip, or shift and flip, a batch of images (b, c, h, w); the same code for every example.

    Raises:
        InputError: the batch holds no images.
    """
    if kind == "none":
        return x
    if x.dim() != 4:
        raise InputError(f"augmentation {kind!r} is for images (batch, channels, height, width), got {tuple(x.shape)}")
    b = len(x)
    if kind == "crop-flip":
        most = 2 * padding(x) + 1
        rows, columns = (torch.randint(0, most, (b,), generator=generator) for _ in range(2))
        return shift_and_flip(x, rows, columns, torch.rand(b, generator=generator) < 0.5)
    return _flip(x, torch.rand(b, generator=generator) < 0.5)


def padding(x: Tensor) -> int:
    """Pixels by which images (b, c, h, w) are padded on each side for crops: 1/8 of the height."""
    return max(x.shape[2] // 8, 1)


def shift_and_flip(x: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor) -> Tensor:
    """A crop of each image, reflect-padded by `padding`, mirrored or not.

    Args:
        x: (b, c, h, w).
        rows: (b,) the crop's first row in the padded image, 0 .. 2 * padding.
        columns: (b,) its first column.
        mirrored: (b,) bool.
    """
    pad, (b, _, h, w) = padding(x), x.shape
    rows = (torch.arange(h)[None] + rows[:, None]).to(x.device)
    columns = (torch.arange(w)[None] + columns[:, None]).to(x.device)
    padded = F.pad(x, (pad, pad, pad, pad), mode="reflect").permute(0, 2, 3, 1)
    each = torch.arange(b, device=x.device)[:, None, None]
    return _flip(padded[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2), mirrored)


def _flip(x: Tensor, mirrored: Tensor) -> Tensor:
    return torch.where(mirrored.to(x.device)[:, None, None, None], x.flip(3), x)


Train = Callable[[Tensor, Tensor, torch.Generator], nn.Module]
"""What `train_shadows` also takes: `train(x, y, generator)` returns a trained module."""


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(float(value) if isinstance(value, float) else int(value))
