"""The recipe by which a target was trained and reference models train, its batches and loop, and compiled passes."""

from __future__ import annotations

import copy
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain._validate import check_types, check_whole, from_table, read_toml
from safexplain.audit.references.dp_training import FEWER, DPTraining, as_toml, defaults_of, filled, train_alone
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement

AugmentationName = Literal["none", "flip", "crop-flip"]

SHARE = 1 / 3  # largest share of the free memory of a GPU that data takes; the rest is for the training


def fits(x: Tensor, device: torch.device) -> bool:
    """Whether data is on the device, or takes at most `SHARE` of its free memory."""
    if x.device == device or device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(x.nbytes <= SHARE * free)


def moved(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; copies to a GPU are asynchronous, from pinned memory."""
    if x.device.type == "cpu" and device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


class Batches:
    """The (b, ...) inputs and (b,) labels of one model's epochs, on the device, in batches of the given sizes.

    An epoch's random numbers are drawn together on the CPU, so that a GPU trains on the same batches.

    InputError: augmentation or channels_last for data other than images, or images too small for crops.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        sizes: Sequence[int],
        augmentation: AugmentationName,
        device: torch.device,
        generator: torch.Generator,
        channels_last: bool = False,
    ) -> None:
        if (augmentation != "none" or channels_last) and x.dim() != 4:
            option = "channels_last" if augmentation == "none" else f"augmentation {augmentation!r}"
            raise InputError(f"{option}: expected images (batch, channels, height, width), got {tuple(x.shape)}")
        if augmentation == "crop-flip" and padding(x) >= min(h := x.shape[2], w := x.shape[3]):
            raise InputError(f"images of {h} x {w} pixels are too small for crops of images padded by {padding(x)}")
        self.near = fits(x, device)
        self.x, self.y = (x.to(device) if self.near else x), y.to(device)
        self.sizes, self.steps = sizes, len(sizes)
        self.generator = generator
        self.augmentation, self.device = augmentation, device
        self.channels_last = channels_last

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch, drawn together."""
        order = self._draws()
        draws = moved(order, self.device)
        for size, end in zip(self.sizes, accumulate(self.sizes), strict=True):
            index, *drawn = draws[:, end - size : end].unbind()
            if self.near:
                x = self._augmented(self.x, index, drawn)
            else:
                copied = moved(self.x[order[0, end - size : end]], self.device)
                x = self._augmented(copied, torch.arange(size, device=self.device), drawn)
            yield x.contiguous(memory_format=torch.channels_last) if self.channels_last else x, self.y[index]

    def _draws(self) -> Tensor:
        """(1, 2 or 4, members) int64: positions; rows and columns of crops; and whether an image is mirrored."""
        g, drawn = self.generator, []
        order = torch.randperm(len(self.y), generator=g)[None]
        for size in self.sizes:
            corner = torch.empty((0, size), dtype=torch.int64)
            if self.augmentation == "crop-flip":
                corner = torch.randint(0, 2 * padding(self.x) + 1, (2, size), generator=g)
            if self.augmentation != "none":
                drawn.append(torch.cat([corner, (torch.rand(size, generator=g) < 0.5).long()[None]]))
        return torch.cat([order, torch.cat(drawn, dim=1)]) if drawn else order

    def _augmented(self, x: Tensor, index: Tensor, drawn: list[Tensor]) -> Tensor:
        x = x[index]
        if len(drawn) == 3:
            return shift_and_flip(x, *drawn)
        return torch.where(drawn[0].bool()[:, None, None, None], x.flip(3), x) if drawn else x


def padding(x: Tensor) -> int:
    """Pixels by which images (b, c, h, w) are padded on each side for crops: 1/8 of the height."""
    return max(x.shape[2] // 8, 1)


def shift_and_flip(x: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor) -> Tensor:
    """A crop of each reflect-padded image (b, c, h, w), from row and column (b,), 0 .. 2 * padding, mirrored (b,) or
    not."""
    (h, w), device = x.shape[2:], x.device
    padded = F.pad(x, (padding(x),) * 4, mode="reflect").permute(0, 2, 3, 1)
    at = columns.to(device)[:, None] + torch.arange(w, device=device)
    at = torch.where(mirrored.to(device).bool()[:, None], at.flip(1), at)
    down = rows.to(device)[:, None] + torch.arange(h, device=device)
    index = torch.arange(len(x), device=device)[:, None, None]
    return padded[index, down[:, :, None], at[:, None, :]].permute(0, 3, 1, 2)


TELL_SECONDS = 0.5  # seconds between reports of progress within an epoch; the end of each epoch is always reported

Tick = Callable[..., None]
"""tick(share, note=""): the share of a training that is done, in [0, 1], and a note such as "epoch 3 of 30"."""

OptimizerName = Literal["adam", "adamw", "sgd"]
ScheduleName = Literal["constant", "cosine"]
PrecisionName = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule, epochs, batch, augmentation, seed and arithmetic of a training with cross-entropy.

    Trained weights keep the type and the memory format in which they were built.

    Args:
        optimizer: adam, adamw or sgd.
        lr: peak learning rate.
        momentum: of sgd.
        weight_decay: as the optimizer applies it (L2 for adam and sgd, decoupled for adamw).
        epochs: passes over the members.
        batch_size: examples per step; the last batch of an epoch may be smaller, but a single example left over joins
            the batch before it, as BatchNorm cannot train on one.
        schedule: constant, or cosine to zero over all steps.
        augmentation: none, flip (horizontal), or crop-flip (reflect-pad by 1/8 and crop, then flip); images only.
        seed: the base of every random choice, together with a model's index.
        precision: float32 (on a GPU, PyTorch rounds convolutions to TF32 by default), or bf16: forward pass and loss
            under `torch.autocast` with bfloat16, which changes the trained models, see `caveat`.
        channels_last: memory format of images and convolutions, faster on most devices; the same up to rounding.
        compile: use `torch.compile` on full batches, once for all models of one architecture, with CUDA graphs on a
            GPU. The same up to rounding; dropout draws other numbers.
        dp: the training of a target with differential privacy, as a `DPTraining` or a mapping of its arguments.
            batch_size is then the expected size of a Poisson batch, and nothing is augmented, scheduled, compiled or in
            bf16. None: it was trained without.
        examples: rows that the target was trained on, for `check_examples` only. None: unknown.

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
    precision: PrecisionName = "float32"
    channels_last: bool = False
    compile: bool = False
    dp: DPTraining | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        if self.dp is not None:
            object.__setattr__(self, "dp", DPTraining.of(self.dp))
        check_types(Recipe, vars(self), "recipe")
        named = {"optimizer": OptimizerName, "schedule": ScheduleName, "augmentation": AugmentationName}
        for name, allowed in {**named, "precision": PrecisionName}.items():
            if (value := getattr(self, name)) not in get_args(allowed):
                raise ConfigurationError(f"recipe: {name} is one of {', '.join(get_args(allowed))}; got {value!r}")
        least = {"lr": 0, "momentum": 0, "weight_decay": 0, "epochs": 1, "batch_size": 1, "seed": 0}
        for name, smallest in least.items():
            if not smallest <= (value := getattr(self, name)) < float("inf"):
                raise ConfigurationError(f"recipe: {name} must be at least {smallest} and finite, got {value!r}")
        if self.examples is not None:
            check_whole("recipe: examples", self.examples, 1)
        if self.dp is not None:
            for name in ("schedule", "augmentation", "precision", "channels_last", "compile"):
                if (value := getattr(self, name)) != (only := getattr(Recipe, name)):
                    raise ConfigurationError(
                        f"recipe: [dp] trains with {name} = {as_toml(only)} only, got {as_toml(value)}; for other"
                        ' trainings name your own function, function = "module:train"'
                    )

    @classmethod
    def from_toml(cls, path: str | Path) -> Recipe:
        """Read a recipe: one `name = value` per line, with the names and defaults of the arguments.

        With a table `[dp]`, learning rate, batch size, momentum and weight decay default to those of `DPFineTuner`.

        InputError: the file cannot be read or is not TOML. ConfigurationError: an unknown name, or as the constructor.
        """
        return cls.of(read_toml(path, "recipe"), f"recipe {path}")

    @classmethod
    def of(cls, values: Mapping[str, Any], what: str, statement: PrivacyStatement | None = None) -> Recipe:
        """From named values as in TOML, called `what`; the privacy statement fills `dp`, epochs and batch size.

        InputError: the statement's training cannot be repeated from it. ConfigurationError: an unknown name, values
        that contradict the statement, or as the constructor.
        """
        if statement is not None:
            values = filled(values, statement, what)
        plain = {name: value for name, value in values.items() if name != "dp"}
        if "dp" in values:
            optimizer = plain.get("optimizer", cls.optimizer)
            plain = {**(defaults_of(optimizer) if isinstance(optimizer, str) else {}), **plain}
        recipe = from_table(cls, plain, what)
        return replace(recipe, dp=DPTraining.of(values["dp"], f"{what}: [dp]")) if "dp" in values else recipe

    def to_toml(self) -> str:
        """The recipe as TOML text for `from_toml`."""
        newer = ("precision", "channels_last", "compile", "dp", "examples")  # older recipes keep their digests
        plain = {k: v for k, v in vars(self).items() if k not in newer or (k != "dp" and v != getattr(Recipe, k))}
        return "".join(f"{k} = {as_toml(v)}\n" for k, v in plain.items()) + (self.dp.to_toml() if self.dp else "")

    def caveat(self, target: nn.Module | None = None) -> str:
        """The caveat of a report about bf16 training, or "", also for a target in half precision."""
        halves = {torch.bfloat16, torch.float16}
        if self.precision == "float32" or (target is not None and any(p.dtype in halves for p in target.parameters())):
            return ""
        return (
            "Reference models were trained in bfloat16 (autocast). If the model was not, a real attacker who repeats"
            " its training may do better than this audit."
        )

    def privacy_note(self, statement: PrivacyStatement | None) -> str:
        """The note of a report about differential privacy of the references; `statement` is the target's."""
        if self.dp is not None:
            return f"Reference models were trained with differential privacy, as the target was: {self.dp.in_words()}."
        if statement is None:
            return ""
        return (
            "Reference models were trained without differential privacy, but the target with it, according to its"
            " statement: they are poor stand-ins for it. Add [dp] to the recipe, dp= from Python."
        )

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer over these tensors; all work elementwise, so that stacked models train as single ones."""
        fused = all(p.is_cuda and p.is_floating_point() for p in parameters) or None
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.weight_decay, "fused": fused}
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(parameters, **options)
            case "adamw":
                return torch.optim.AdamW(parameters, **options)
            case "sgd":
                return torch.optim.SGD(parameters, momentum=self.momentum, **options)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        """The learning rate over `steps` steps; call `step` after each."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def steps_per_epoch(self, members: int) -> int:
        """Batches per epoch over this many members."""
        return len(self.batch_sizes(members))

    def batch_sizes(self, members: int) -> list[int]:
        """Sizes of the batches of an epoch over this many members."""
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
    ) -> nn.Module:
        """Train `model` in place on (members, ...) inputs and (members,) labels; returns it in eval mode.

        The CPU `generator` draws the order and the augmentation; dropout draws from the global one, seeded by it. With
        `parts`, only these modules train, and all others stay in eval mode.

        InputError: the loss became NaN or infinite; augmentation or channels_last for data other than images.
        ConfigurationError: the model cannot be compiled; with `dp`, as `DPFineTuner`.
        """
        if self.dp is not None:
            if parts is not None:
                raise ConfigurationError("with dp, dp.trainable names the parameters that train: leave out parts")
            return train_alone(self, self.dp, model, x, y, generator, tick)
        device = next(model.parameters()).device
        batches = Batches(x, y, self.batch_sizes(len(y)), self.augmentation, device, generator, self.channels_last)
        learner, training, loss = model, [model] if parts is None else list(parts), loss_in(model)
        full_batch_loss = loss
        if self.channels_last or self.compile:
            stand_in = stand_in_for(model, channels_last=self.channels_last, compile=self.compile)
            learner, training = stand_in.module, stand_in.parts(model, training)
            loss, full_batch_loss = stand_in.loss, stand_in.compiled_loss

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with self.autocast(device):
                return (full_batch_loss if len(y) == self.batch_size else loss)(x, y)

        fork = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with fork, compiler_errors() if self.compile else nullcontext():
            torch.manual_seed(generator.initial_seed())
            learner.train(parts is None)
            parameters: list[Tensor] = list(dict.fromkeys(p for part in training for p in part.train().parameters()))
            descend(self, parameters, batches, loss_of, tick)
        if learner is not model:
            copy_tensors(learner, model)
        check_finite(model)
        return model.eval()

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of forward pass and loss."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()


def check_examples(examples: int | None, rows: int) -> None:
    """Raise InputError if reference models train on fewer rows than the target, where its number is known."""
    if examples is not None and rows < (1 - FEWER) * examples:
        raise InputError(
            f"the model was trained on {examples:,} rows according to the recipe, but reference models would train on"
            f" only {rows:,}, and could not stand in for it. Pass all members and about as many non-members:"
            " references train on half of all rows, and only a sample is scored"
        )


def descend(
    recipe: Recipe, parameters: list[Tensor], batches: Any, loss: Callable[..., Tensor], tick: Tick | None
) -> None:
    """Run all steps of a recipe on these parameters; `loss` takes the tensors of one of the `batches`."""
    optimizer = recipe.make_optimizer(parameters)
    steps = batches.steps * recipe.epochs
    schedule = recipe.make_schedule(optimizer, steps)
    done, reported = 0, time.monotonic()
    optimizer.zero_grad(set_to_none=True)
    with torch.enable_grad():
        for epoch in range(recipe.epochs):
            for batch in batches.epoch():
                loss(*batch).backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                done, now = done + 1, time.monotonic()
                if tick and (done % batches.steps == 0 or now - reported >= TELL_SECONDS):
                    reported = now
                    tick(done / steps, f"epoch {epoch + 1} of {recipe.epochs}")


def check_finite(model: nn.Module) -> None:
    """Raise InputError if a training has diverged."""
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise InputError("training diverged: the weights became NaN or infinite; lower the recipe's learning rate")


Train = Callable[[Tensor, Tensor, torch.Generator], nn.Module]  # `train(x, y, generator)` returns a trained module


Loss = Callable[[Tensor, Tensor], Tensor]  # (b, ...) inputs and (b,) labels -> their mean cross-entropy
_last = threading.local()  # `stand_in`: the module that this thread compiled last


def loss_in(model: nn.Module) -> Loss:
    """Mean cross-entropy of a model's outputs, computed in float32 for bfloat16 outputs."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, y)

    return loss


class StandIn:
    """A copy that trains in place of models of one architecture; `compiled_loss` is for full batches."""

    def __init__(self, model: nn.Module, *, channels_last: bool, compile: bool) -> None:
        self.module = copy.deepcopy(model)
        self.channels_last, self.compile = channels_last, compile
        if channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.loss = self.compiled_loss = loss_in(self.module)
        if compile:
            self.compiled_loss = _compiled(self.loss, next(model.parameters()).device)

    def takes(self, model: nn.Module) -> bool:
        """Copy the weights, buffers and flags of a model; False if its architecture differs."""
        if _outline(model) != _outline(self.module):
            return False
        copy_tensors(model, self.module)
        for source, target in zip(model.parameters(), self.module.parameters(), strict=True):
            target.requires_grad_(source.requires_grad)
        try:
            return model_digest(self.module) == model_digest(model)  # compares settings: the weights are equal
        except RefusedError:
            return False

    def parts(self, model: nn.Module, parts: list[nn.Module]) -> list[nn.Module]:
        """The copies of these modules of a model."""
        copies = dict(zip(model.modules(), self.module.modules(), strict=True))
        return [copies[part] for part in parts]


def stand_in_for(model: nn.Module, *, channels_last: bool, compile: bool) -> StandIn:
    """A stand-in with a model's weights; a compiled one is reused if the architecture is that of the last call."""
    last: StandIn | None = getattr(_last, "stand_in", None)
    if compile and last is not None and last.channels_last == channels_last and last.takes(model):
        return last
    made = StandIn(model, channels_last=channels_last, compile=compile)
    if compile:
        _last.stand_in = made
    return made


def forget() -> None:
    """Free the compiled module, with the memory of its CUDA graphs."""
    _last.stand_in = None


def copy_tensors(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers in place; the target's keep their memory format."""
    with torch.no_grad():
        for (_, t), (_, copied) in zip(_tensors_of(source), _tensors_of(target), strict=True):
            copied.copy_(t)


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())


def _outline(model: nn.Module) -> list[tuple[object, ...]]:
    """Classes of the modules; sizes, types and devices of the tensors."""
    modules = [(name, type(module)) for name, module in model.named_modules()]
    return [*modules, *((name, t.shape, t.dtype, t.device) for name, t in _tensors_of(model))]


def _compiled(loss: Loss, device: torch.device) -> Loss:
    assert isinstance(loss, types.FunctionType)
    code = loss.__code__.replace()  # dynamo limits compilations per code object: each architecture gets its own
    function = types.FunctionType(code, loss.__globals__, loss.__name__, None, loss.__closure__)
    on_cuda = device.type == "cuda"
    fast = torch.compile(function, dynamic=False, mode="reduce-overhead" if on_cuda else None)

    def run(x: Tensor, y: Tensor) -> Tensor:
        if on_cuda:
            torch.compiler.cudagraph_mark_step_begin()  # the graph may reuse the memory of the last step
        found: Tensor = fast(x, y)
        return found

    return run


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Replace errors of torch.compile by a ConfigurationError that says what to do."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores for float32 matrix multiplication available")
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # of torch 2.7 and 2.8
            yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConfigurationError(
            f"recipe: compile = true does not work here ({type(error).__name__}: {reason:.300}); torch.compile needs a"
            " C++ compiler such as g++, on a GPU Triton too, and a model that it can trace: install what is missing, or"
            " set compile = false"
        ) from error
