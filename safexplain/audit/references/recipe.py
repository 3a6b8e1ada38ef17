"""How a model is trained: what reference models must repeat to stand in for the target, and the loop that does it.

`references.training` trains many small models at once, by the same streams of random numbers.
"""

from __future__ import annotations

import copy
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain._validate import check_types, check_whole, from_table, read_toml
from safexplain.audit.references.batches import AugmentationName, Batches
from safexplain.audit.references.dp_training import FEWER, DPTraining, as_toml, filled, left_out, train_alone
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement

TELL_SECONDS = 0.5
"""Within an epoch, progress is told this often; at the end of each epoch it always is."""


Tick = Callable[..., None]
"""Called as tick(share, note=""): that share of a training, in [0, 1], is done; the note says "epoch 3 of 30"."""

OptimizerName = Literal["adam", "adamw", "sgd"]
ScheduleName = Literal["constant", "cosine"]
PrecisionName = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule, epochs, batch, augmentation, seed and arithmetic of a training with cross-entropy.

    The defaults of the last three train in plain float32. Whatever they are, trained weights keep the type and the
    memory format in which they were built.

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
        precision: float32 (as PyTorch is set: on a GPU convolutions round to TF32 unless told otherwise), or bf16:
            forward pass and loss under `torch.autocast` with bfloat16, where weights, gradients and optimizer stay
            float32. This changes what is trained, see `caveat`.
        channels_last: images and convolutions lie channels last, which GPUs and most processors convolve faster. The
            same arithmetic up to rounding. For images only; no effect where linear networks train together.
        compile: forward and backward pass of full batches go through `torch.compile`, with CUDA graphs on a GPU; once
            for all models of one architecture. The same arithmetic up to rounding, dropout draws other numbers. The
            smaller last batch of an epoch runs uncompiled. No effect where linear networks train together.
        dp: of a target that was trained with differential privacy: how, as a `DPTraining` or a mapping of its
            arguments, at least delta and epsilon (or a noise multiplier). References are then trained by
            `safexplain.dp.DPFineTuner`; batch_size is the expected size of a Poisson batch, `momentum` and
            `weight_decay` are as they stand here, and nothing is augmented, scheduled, compiled or in bf16. None: the
            target was trained without.
        examples: rows that the target was trained on, for `check_examples`; no training changes with it. None: not
            said.

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
                        f"recipe: [dp] trains with {name} = {as_toml(only)} only, got {as_toml(value)}; for another"
                        ' training name a function of yours, function = "module:train"'
                    )

    @classmethod
    def from_toml(cls, path: str | Path) -> Recipe:
        """Read a recipe: one `name = value` a line, names as the arguments, left-out ones at their defaults.

        With a table `[dp]`, of the names of `DPTraining`, learning rate, batch size, momentum and weight decay that are
        left out are as `DPFineTuner` has them.

        Raises:
            InputError: the file cannot be read or is not TOML.
            ConfigurationError: an unknown name, or as the constructor.
        """
        return cls.of(read_toml(path, "recipe"), f"recipe {path}")

    @classmethod
    def of(cls, values: Mapping[str, Any], what: str, statement: PrivacyStatement | None = None) -> Recipe:
        """From named values, as TOML has them, `dp` a table. Messages call the recipe `what`; a statement of the
        target's training fills `dp`, epochs and batch size.

        Raises:
            InputError: the statement is about a training that cannot be repeated from it.
            ConfigurationError: an unknown name, values that contradict the statement, or as the constructor.
        """
        if statement is not None:
            values = filled(values, statement, what)
        plain = {name: value for name, value in values.items() if name != "dp"}
        if "dp" in values:
            optimizer = plain.get("optimizer", cls.optimizer)
            plain = {**(left_out(optimizer) if isinstance(optimizer, str) else {}), **plain}
        recipe = from_table(cls, plain, what)
        return replace(recipe, dp=DPTraining.of(values["dp"], f"{what}: [dp]")) if "dp" in values else recipe

    def to_toml(self) -> str:
        """The recipe as TOML text that `from_toml` reads.

        Precision, channels_last, compile, examples and `[dp]` stand in it only where they are not at their defaults: a
        recipe of before there were such keeps its text, and so its digest in certificates.
        """
        newer = ("precision", "channels_last", "compile", "dp", "examples")
        plain = {k: v for k, v in vars(self).items() if k not in newer or (k != "dp" and v != getattr(Recipe, k))}
        return "".join(f"{k} = {as_toml(v)}\n" for k, v in plain.items()) + (self.dp.to_toml() if self.dp else "")

    def caveat(self, target: nn.Module | None = None) -> str:
        """What a reader must know of how reference models were trained, or "", as for a target in half precision."""
        halves = {torch.bfloat16, torch.float16}
        if self.precision == "float32" or (target is not None and any(p.dtype in halves for p in target.parameters())):
            return ""
        return (
            "Reference models were trained in bfloat16 (autocast). If the model was not, a real attacker who trains as"
            " it was trained may do better than this audit."
        )

    def privacy_note(self, statement: PrivacyStatement | None) -> str:
        """The same of differential privacy, with the statement of the target's training."""
        if self.dp is not None:
            return f"Reference models were trained with differential privacy, as the target was: {self.dp.in_words()}."
        if statement is None:
            return ""
        return (
            "Reference models were trained without differential privacy, with which the target was trained, as its"
            " statement says: they are poor stand-ins for it. Add [dp] to the recipe, dp= from Python."
        )

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer over these tensors; all three work elementwise, so stacked models train as single ones do."""
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
    ) -> nn.Module:
        """Train `model` in place, on its device, and return it in eval mode.

        All of the (members, ...) inputs and (members,) labels are trained on. Inputs move to the device
        at once where they fit, else batch by batch. The CPU's `generator` draws the order and the augmentation; dropout
        draws from the global one, seeded by it. With `parts`, modules of the model, only these train, and all else
        stays in eval mode and as it is.

        Raises:
            InputError: the loss became NaN or infinite; augmentation or channels_last for what are no images.
            ConfigurationError: the model cannot be compiled, or there is no compiler; or as `DPFineTuner`, by which
                a recipe with `dp` trains.
        """
        if self.dp is not None:
            if parts is not None:
                raise ConfigurationError("a recipe with dp names what trains in dp: leave parts out")
            return train_alone(self, self.dp, model, x, y, generator, tick)
        device = next(model.parameters()).device
        batches = Batches(x, y, self.batch_sizes(len(y)), self.augmentation, device, generator, self.channels_last)
        learner, training, loss = model, [model] if parts is None else list(parts), loss_in(model)
        of_full_batch = loss
        if self.channels_last or self.compile:
            stand_in = stand_in_for(model, channels_last=self.channels_last, compile=self.compile)
            learner, training = stand_in.module, stand_in.parts(model, training)
            loss, of_full_batch = stand_in.loss, stand_in.compiled_loss

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            with self.autocast(device):
                return (of_full_batch if len(y) == self.batch_size else loss)(x, y)

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
        """In which forward pass and loss run."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()


def check_examples(examples: int | None, rows: int) -> None:
    """Raise InputError where reference models train on fewer rows than the target did, if that is known."""
    if examples is not None and rows < (1 - FEWER) * examples:
        raise InputError(
            f"the recipe says that the model was trained on {examples:,} rows, and reference models would train on"
            f" {rows:,} only, which makes them no stand-ins for it. Give all members, and about as many non-members:"
            " references train on half of all rows, and only a sample is scored"
        )


def descend(
    recipe: Recipe, parameters: list[Tensor], batches: Any, loss: Callable[..., Tensor], tick: Tick | None
) -> None:
    """All steps of a recipe, by which the optimizer moves these parameters; `loss` is of the tensors of one batch.

    `batches` has `steps`, how many an epoch has, and `epoch()`, which draws those of the next one.
    """
    optimizer = recipe.make_optimizer(parameters)
    steps = batches.steps * recipe.epochs
    schedule = recipe.make_schedule(optimizer, steps)
    done, told = 0, time.monotonic()
    optimizer.zero_grad(set_to_none=True)
    with torch.enable_grad():
        for epoch in range(recipe.epochs):
            for batch in batches.epoch():
                loss(*batch).backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                done, now = done + 1, time.monotonic()
                if tick and (done % batches.steps == 0 or now - told >= TELL_SECONDS):
                    told = now
                    tick(done / steps, f"epoch {epoch + 1} of {recipe.epochs}")


def check_finite(model: nn.Module) -> None:
    """Raise InputError where a training has diverged."""
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise InputError("training diverged: the weights became NaN or infinite; lower the recipe's learning rate")


Train = Callable[[Tensor, Tensor, torch.Generator], nn.Module]
"""What `train_shadows` also takes: `train(x, y, generator)` returns a trained module."""


# ------------------------------------------------------------------------------------------------ compiled once for all


Loss = Callable[[Tensor, Tensor], Tensor]
"""(b, ...) inputs and (b,) labels -> their mean cross-entropy."""


class _Last(threading.local):
    """The module that this thread compiled last: threads do not train in the same one."""

    stand_in: StandIn | None = None


_last = _Last()


def loss_in(model: nn.Module) -> Loss:
    """Mean cross-entropy of a model's outputs, in float32 whatever these are in."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, y)

    return loss


class StandIn:
    """A copy of a model that trains in its place, and in that of others of its architecture: 4-d parameters lie
    `channels_last`, and the loss of batches of one size is compiled, with CUDA graphs on a GPU."""

    def __init__(self, model: nn.Module, *, channels_last: bool, compile: bool) -> None:
        self.module = copy.deepcopy(model)
        self.channels_last, self.compile = channels_last, compile
        if channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.loss = self.compiled_loss = loss_in(self.module)
        if compile:
            self.compiled_loss = _compiled(self.loss, next(model.parameters()).device)

    def takes(self, model: nn.Module) -> bool:
        """Fill in the weights, buffers and flags of a model; False where it is not of this architecture."""
        if _outline(model) != _outline(self.module):
            return False
        copy_tensors(model, self.module)
        for source, target in zip(model.parameters(), self.module.parameters(), strict=True):
            target.requires_grad_(source.requires_grad)
        try:
            return model_digest(self.module) == model_digest(model)  # of settings: the weights are equal
        except RefusedError:
            return False

    def parts(self, model: nn.Module, parts: list[nn.Module]) -> list[nn.Module]:
        """The modules here that stand for modules of a model."""
        names = {part: name for name, part in model.named_modules()}
        return [self.module.get_submodule(names[part]) for part in parts]


def stand_in_for(model: nn.Module, *, channels_last: bool, compile: bool) -> StandIn:
    """A stand-in with a model's weights; a compiled one is that of the call before, where the architecture is equal."""
    last = _last.stand_in
    if compile and last is not None and last.channels_last == channels_last and last.takes(model):
        return last
    made = StandIn(model, channels_last=channels_last, compile=compile)
    if compile:
        _last.stand_in = made
    return made


def forget() -> None:
    """Give back what compiled modules hold, memory of CUDA graphs among it."""
    _last.stand_in = None


def copy_tensors(source: nn.Module, target: nn.Module) -> None:
    """Parameters and buffers, in place: the target's keep their memory format."""
    there = dict(tensors_of(target))
    with torch.no_grad():
        for name, t in tensors_of(source):
            there[name].copy_(t)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, those too that are not in its state_dict."""
    return chain(model.named_parameters(), model.named_buffers())


def _outline(model: nn.Module) -> list[tuple[object, ...]]:
    """Classes of the modules; sizes, types and devices of the tensors."""
    modules = [(name, type(module)) for name, module in model.named_modules()]
    return [*modules, *((name, t.shape, t.dtype, t.device) for name, t in tensors_of(model))]


def _compiled(loss: Loss, device: torch.device) -> Loss:
    assert isinstance(loss, types.FunctionType)
    own = loss.__code__.replace()  # dynamo counts compilations by code: one architecture does not count for another
    function = types.FunctionType(own, loss.__globals__, loss.__name__, None, loss.__closure__)
    on_cuda = device.type == "cuda"
    fast = torch.compile(function, dynamic=False, mode="reduce-overhead" if on_cuda else None)

    new_step: Callable[[], None] = torch.compiler.cudagraph_mark_step_begin

    def run(x: Tensor, y: Tensor) -> Tensor:
        if on_cuda:
            new_step()  # what the step before left in the graph's memory is not needed any more
        found: Tensor = fast(x, y)
        return found

    return run


@contextmanager
def compiler_errors() -> Iterator[None]:
    """A sentence that says what to do, for whatever torch.compile raises; its own advice is not said.

    Raises:
        ConfigurationError: compiling is impossible here, or that model cannot be compiled.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores for float32 matrix multiplication available")
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # of torch 2.7 and 2.8
            yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = next(iter(str(error).strip().splitlines()), "")
        raise ConfigurationError(
            f"recipe: compile = true does not work here ({type(error).__name__}: {said:.300}); torch.compile needs a"
            " C++ compiler such as g++, on a GPU Triton too, and a model that it can trace: install what is missing, or"
            " set compile = false"
        ) from error
