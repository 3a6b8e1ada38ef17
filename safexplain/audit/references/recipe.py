"""The recipe by which a target was trained and reference models train, its batches and its loop."""

from __future__ import annotations

import copy
import json
import math
import re
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain._digest import model_digest
from safexplain._privacy_loss import Adjacency
from safexplain._validate import check_number, check_types, check_whole, from_table, read_toml
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning, RefusedError, SafexplainError
from safexplain.verdict.privacy_statement import PrivacyStatement

if TYPE_CHECKING:
    from safexplain.dp.sgd.clipping import Clipping
    from safexplain.dp.sgd.finetune import DPFineTuner

ClippingName = Literal["auto-s", "flat", "per-layer"]

CLIPPINGS = {"AutoSClipping": "auto-s", "FlatClipping": "flat", "PerLayerClipping": "per-layer"}

MECHANISM = "DP-SGD: clipped gradients of Poisson batches, summed, with Gaussian noise"
"""Beginning of the mechanism in statements whose training can be repeated."""

NEAR = 0.01  # relative difference between rounded numbers of a recipe and of a statement
FEWER = 0.05  # relative difference allowed between the statement's records and the members in the data

Trained = str | tuple[str, ...]


@dataclass(frozen=True)
class DPTraining:
    """The table `[dp]` of a recipe: a training by `safexplain.dp.DPFineTuner`, whose arguments most of these are.

    Args:
        delta: of the guarantee.
        epsilon: of the guarantee, to which noise is calibrated. None: the noise multiplier is given.
        adjacency: of epsilon: substitute, add_remove or zero_out.
        noise_multiplier: instead of a calibrated one; with `epsilon`, training stops before that is exceeded.
        steps: of the optimizer, instead of the recipe's epochs.
        sample_rate: expected share of the members in a batch, instead of the recipe's batch size.
        clip: largest norm C of one example's gradient.
        clipping: auto-s (normalised gradients), flat (min(1, C / norm)), or per-layer.
        gamma: of auto-s.
        trainable: all, head, last-block, bias, lora, or patterns of parameter names. All other parameters are the
            target's.

    Raises:
        ConfigurationError: a value is out of range, neither epsilon nor a noise multiplier is given, or gamma for
            another clipping.
    """

    delta: float
    epsilon: float | None = None
    adjacency: Adjacency = "substitute"
    noise_multiplier: float | None = None
    steps: int | None = None
    sample_rate: float | None = None
    clip: float = 1.0
    clipping: ClippingName = "auto-s"
    gamma: float = 0.01
    trainable: Trained = "all"

    def __post_init__(self) -> None:
        from safexplain.dp.sgd.train_loop import TrainingBudget

        if isinstance(self.trainable, list):
            object.__setattr__(self, "trainable", tuple(self.trainable))
        if isinstance(self.trainable, tuple) and len(self.trainable) == 0:
            raise ConfigurationError("recipe: [dp] trainable: expected a name or patterns, got an empty list")
        try:
            TrainingBudget(self.epsilon, self.delta, self.adjacency, self.noise_multiplier)
            for name in ("clip", "gamma"):
                object.__setattr__(self, name, check_number(name, getattr(self, name), above=0.0))
            if self.steps is not None:
                check_whole("steps", self.steps, 1)
            if self.sample_rate is not None and check_number("sample_rate", self.sample_rate, above=0.0) > 1:
                raise ConfigurationError(f"sample_rate: expected a share of at most 1, got {self.sample_rate!r}")
            if self.clipping not in get_args(ClippingName):
                allowed = ", ".join(get_args(ClippingName))
                raise ConfigurationError(f"clipping is one of {allowed}; got {self.clipping!r}")
            if self.clipping != "auto-s" and self.gamma != 0.01:
                raise ConfigurationError(f'gamma belongs to clipping = "auto-s"; clipping is {self.clipping!r}')
        except SafexplainError as error:
            raise type(error)(f"recipe: [dp] {error}") from None

    @classmethod
    def of(cls, values: Any, what: str = "recipe: [dp]") -> DPTraining:
        """From a table, or itself."""
        return values if isinstance(values, cls) else from_table(cls, values, what)

    def to_toml(self) -> str:
        """The table, without defaults."""
        lines = [f"{f.name} = {as_toml(v)}\n" for f in fields(self) if (v := getattr(self, f.name)) != f.default]
        return "\n[dp]\n" + "".join(lines)

    @property
    def chosen(self) -> str | list[str]:
        """`trainable` in the form of `DPFineTuner`."""
        return self.trainable if isinstance(self.trainable, str) else list(self.trainable)

    @property
    def rule(self) -> Clipping:
        """The clipping of one example's gradient."""
        from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping, PerLayerClipping

        match self.clipping:
            case "auto-s":
                return AutoSClipping(self.clip, self.gamma)
            case "flat":
                return FlatClipping(self.clip)
            case "per-layer":
                return PerLayerClipping(self.clip)

    def in_words(self) -> str:
        """Such as "epsilon 8 (substitute) at delta 1e-05"."""
        bound = "" if self.epsilon is None else f"epsilon {self.epsilon:g} ({self.adjacency}) at delta {self.delta:g}"
        noise = "" if self.noise_multiplier is None else f"noise multiplier {self.noise_multiplier:.4g}"
        rate = "" if self.sample_rate is None else f"sample rate {self.sample_rate:.4g}"
        return ", ".join(filter(None, (bound, noise, rate, "" if self.steps is None else f"{self.steps:,} steps")))

    def prepared(self, model: nn.Module) -> nn.Module:
        """The model with the layers that `DPFineTuner` trains."""
        from safexplain.dp.models.prepare import prepare
        from safexplain.dp.models.replacements import BatchNormReplacedWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BatchNormReplacedWarning)
            return prepare(model, self.chosen, mode="hooks" if self.clipping == "per-layer" else "ghost")

    def tuner(
        self, how: Recipe, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, tick: Callable[..., None] | None = None
    ) -> DPFineTuner:
        """The training of one model on (x, y) by the `Recipe` that holds this."""
        from safexplain.dp.sgd.finetune import DPFineTuner

        plain = not (how.momentum and how.optimizer == "sgd") and how.weight_decay == WEIGHT_DECAYS[how.optimizer]
        optimizer: Any = how.optimizer if plain else (lambda parameters: how.make_optimizer(list(parameters)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # about delta, which is the target's
            return DPFineTuner(
                model,
                (x, y),
                epsilon=self.epsilon,
                delta=self.delta,
                adjacency=self.adjacency,
                noise_multiplier=self.noise_multiplier,
                epochs=None if self.steps else how.epochs,
                steps=self.steps,
                batch_size=how.batch_size if self.sample_rate is None else self.sample_rate * len(y),
                clipping=self.rule,
                trainable=self.chosen,
                optimizer=optimizer,
                lr=how.lr,
                device=next(model.parameters()).device,
                pretrained=False,
                seed=seed,
                progress=lambda stage, done, total, note="": tick(done / total, note) if tick else None,
            )


WEIGHT_DECAYS = {"adam": 0.0, "adamw": 0.01, "sgd": 0.0}
"""Defaults of torch's optimizers."""


def defaults_of(optimizer: str) -> dict[str, float]:
    """Defaults of a recipe with `[dp]`, fixed for older files."""
    return {"lr": 5e-4, "batch_size": 256, "momentum": 0.0, "weight_decay": WEIGHT_DECAYS.get(optimizer, 0.0)}


def filled(values: Mapping[str, Any], statement: PrivacyStatement, what: str) -> dict[str, Any]:
    """Values of a recipe as in the file, completed from a privacy statement; raises as `Recipe.of`."""
    table = values.get("dp", {})
    if not isinstance(table, Mapping):
        DPTraining.of(table, f"{what}: [dp]")
    stated = _stated(statement, table)
    merged = {name: value for name, value in table.items() if name not in ("epsilon", "adjacency")}
    dp = from_table(DPTraining, {**stated, **merged}, f"{what}: [dp]")
    for name, value in table.items():
        expected: Any = stated.get(name)
        if name == "epsilon" and "noise_multiplier" not in table:
            adjacency = table.get("adjacency", "substitute")
            DPTraining.of({"delta": dp.delta, "epsilon": value, "adjacency": adjacency}, f"{what}: [dp]")
            expected = statement.epsilons.of(adjacency)
        if expected is not None and not _same(value, expected):
            rounded = f"{expected:.4g}" if isinstance(expected, float) else as_toml(expected)
            raise ConfigurationError(
                f"{what}: [dp] {name} = {as_toml(value)}, but the privacy statement has {rounded}; remove it from the"
                " recipe to take the statement's"
            )
    phase = statement.phases[0]
    size = phase.sample_rate * statement.records
    totals = {"epochs": max(1, round(phase.steps * phase.sample_rate)), "batch_size": max(1, round(size))}
    exact: dict[str, Any] = {name: value for name, value in stated.items() if isinstance(value, float | int)}
    return {**values, **totals, "dp": replace(dp, **exact)}


def overruled(values: Mapping[str, Any], statement: PrivacyStatement, what: str) -> str:
    """The caveat if epochs and batch size differ from those of the statement, or ""."""
    phase = statement.phases[0]
    size = phase.sample_rate * statement.records
    given = {
        name: check_whole(f"{what}: {name}", values[name], 1) for name in ("epochs", "batch_size") if name in values
    }
    epochs = given.get("epochs")
    longer = epochs is not None and abs(epochs / phase.sample_rate - phase.steps) > max(1, epochs)
    if not longer and abs(given.get("batch_size", size) - size) <= max(1.0, NEAR * size):
        return ""
    listed = " and ".join(f"{name} = {value}" for name, value in given.items())
    return (
        f"Reference models were trained by the privacy statement ({phase.steps:,} steps of batches of {size:g} of"
        f" {statement.records:,} records, {phase.steps * phase.sample_rate:.3g} epochs), not by the recipe ({listed})."
    )


def check_records(statement: PrivacyStatement, members: int) -> None:
    """Raise InputError if the number of members differs from the records of the training to be repeated."""
    if not statement.count_noised and abs(statement.records - members) > FEWER * statement.records:
        raise InputError(
            f"the privacy statement is about a training on {statement.records:,} records, but the data marks"
            f" {members:,} members. Mark all records of the training as members, or name your own training of the"
            ' references in the recipe, function = "module:train"'
        )


def _stated(statement: PrivacyStatement, table: Mapping[str, Any]) -> dict[str, Any]:
    phases = statement.phases
    kind = (
        f"{len(phases)} phases"
        if len(phases) > 1
        else f'"{statement.mechanism}"'
        if not phases or not statement.mechanism.startswith(MECHANISM)
        else f"{phases[0].sampling} batches"
        if phases[0].sampling not in ("poisson", "full-batch")
        else f"{statement.unit}s of several rows"
        if statement.unit != "record"
        else ""
    )
    rule = re.fullmatch(r"(\w+)\(max_grad_norm=([^,()]+)(?:, gamma=([^,()]+))?\)", statement.clipping)
    clipping: dict[str, Any] = {}
    if rule and rule[1] in CLIPPINGS:
        clipping = {"clipping": CLIPPINGS[rule[1]], "clip": float(rule[2])}
        clipping |= {"gamma": float(rule[3])} if rule[3] else {}
    elif not {"clip", "clipping"} <= table.keys():
        kind = kind or (f"clipping {statement.clipping}" if statement.clipping else "unknown clipping")
    if kind:
        raise InputError(
            f"reference models cannot repeat the training of the privacy statement, with {kind}: name your own training"
            ' in the recipe, function = "module:train"; train(x, y, generator) returns a model trained like the target'
        )
    steps = {name: getattr(phases[0], name) for name in ("noise_multiplier", "steps", "sample_rate")}
    trainable: dict[str, Trained] = {}
    if counted := re.fullmatch(r"(.*): [\d,]+ of [\d,]+ parameters", statement.trained):
        named = counted[1] in ("all", "head", "last-block", "bias")
        trainable = {"trainable": counted[1] if named else tuple(counted[1].split(", "))}
    elif statement.trained.startswith("low-rank adapters"):
        trainable = {"trainable": "lora"}
    return {"delta": statement.delta, **steps, **clipping, **trainable}


def _same(value: Any, expected: Any) -> bool:
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, expected)):
        return math.isclose(value, expected, rel_tol=NEAR)
    return bool((tuple(value) if isinstance(value, list) else value) == expected)


def as_toml(value: Any) -> str:
    """A text, number, boolean or list in TOML, which is as in JSON."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, eq=False)
class FrozenAs:
    """Builds models whose frozen layers are the target's: layers that did not train were public."""

    build: Callable[[int], nn.Module]
    target: nn.Module
    dp: DPTraining  # its `trainable`

    def __call__(self, seed: int) -> nn.Module:
        """An untrained model; InputError: the target is of another architecture."""
        from safexplain.dp.models.parameters import select

        model = self.build(seed)
        training = set(select(model, self.dp.chosen))
        parameters, known = {name for name, _ in model.named_parameters()}, self.target.state_dict()
        wrapper = {name.partition(".")[0] for name in known}
        if len(wrapper) == 1 and not known.keys() & model.state_dict().keys():
            known = {name.partition(".")[2]: tensor for name, tensor in known.items()}
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name in training or (name not in known and name not in parameters):
                    continue
                if name not in known or known[name].shape != tensor.shape:
                    raise InputError(
                        f"the target has no {name} of shape {tuple(tensor.shape)}, which [dp] trainable ="
                        f" {as_toml(self.dp.trainable)} takes from it: build models of its architecture"
                    )
                tensor.copy_(known[name])
        return model


def with_group_norm(model: nn.Module, prepared: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The architecture that `DPFineTuner` returns, without BatchNorm that trains."""
    from safexplain.dp.models.replacements import restore

    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        return model
    changed = restore(prepared(model))
    return model if changed.state_dict().keys() == model.state_dict().keys() else changed.requires_grad_(True)


def train_alone(
    how: Recipe,
    dp: DPTraining,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
    tick: Callable[..., None] | None,
) -> nn.Module:
    """Train a model in place by `DPFineTuner`, seeded by the generator; returns it in eval mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        tuner = dp.tuner(how, model, x, y, seed=generator.initial_seed() % 2**31, tick=tick)
        model.load_state_dict(tuner.fit().model.state_dict())
    return model.eval()


def train_private_models(
    how: Recipe,
    dp: DPTraining,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Callable[..., None] | None,
) -> None:
    """Train models in place, each on its rows of (x, y): heads on the same features together, all others one by one."""
    waiting, done = list(range(len(models))), 0
    while waiting:
        first = waiting[0]
        alike = [i for i in waiting if len(members[i]) == len(members[first]) and _same_but_head(models, i, first, dp)]

        def report(share: float, note: str = "", size: int = len(alike), before: int = done) -> None:
            if tick:
                tick((before + share * size) / len(models), f"{size} heads at once" if size > 1 else note)

        rows, group = members[first], [first]
        pick = itemgetter(*alike)
        if len(alike) > 1 and _train_heads(how, dp, x, y, pick(models), pick(members), pick(generators), report):
            group = alike
        else:
            x_rows, y_rows = x[rows.to(x.device)], y[rows.to(y.device)]
            train_alone(how, dp, models[first], x_rows, y_rows, generators[first], partial(report, size=1))
        done += len(group)
        waiting = [i for i in waiting if i not in group]


def _same_but_head(models: Sequence[nn.Module], i: int, first: int, dp: DPTraining) -> bool:
    from safexplain.dp.models.parameters import select

    if dp.trainable != "head":
        return i == first
    one, other = models[first].state_dict(), models[i].state_dict()
    training = set(select(models[first], "head"))
    return one.keys() == other.keys() and all(n in training or torch.equal(t, other[n]) for n, t in one.items())


def _train_heads(
    how: Recipe,
    dp: DPTraining,
    x: Tensor,
    y: Tensor,
    models: Sequence[nn.Module],
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Callable[..., None],
) -> bool:
    """Train all heads at once on features computed once; False, and nothing done, if there is no closed form."""
    from safexplain.dp.heads import Heads, linear_head, train_heads
    from safexplain.dp.sgd.finetune import has_closed_form, head_problem, trainable_linear
    from safexplain.dp.sgd.sampling import InMemory, records_of

    rows = members[0]
    tuner = dp.tuner(how, models[0], x[rows.to(x.device)], y[rows.to(y.device)], seed=0)
    ready = tuner.prepared()
    if not has_closed_form(ready, tuner.records, tuner.config):
        return False
    pool = records_of((x, y), 0)
    assert isinstance(pool, InMemory)
    problem = head_problem(ready, pool, tuner.plan, tuner.config, cache=None)
    name, device = trainable_linear(ready), problem.x.device
    assert name is not None
    layers = [linear_head(model, name) for model in models]
    inside = torch.zeros(len(models), len(y), dtype=torch.bool)
    for row, index in zip(inside, members, strict=True):
        row[index.cpu()] = True
    shifts = [torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach() for layer in layers]
    heads = train_heads(
        problem.x,
        y,
        problem.recipe,
        noise_multiplier=tuner.plan.noise_multiplier,
        runs=len(models),
        membership=inside,
        initial=Heads(torch.stack([layer.weight.detach() for layer in layers]), torch.stack(shifts)),
        generator=[torch.Generator(device).manual_seed(g.initial_seed() % 2**31) for g in generators],
        progress=lambda _, done, total, note="": tick(done / total, note),
    )
    with torch.no_grad():
        for layer, weight, shift in zip(layers, heads.weight, heads.bias, strict=True):
            layer.weight.copy_(weight)
            if layer.bias is not None:
                layer.bias.copy_(shift)
    for model in models:
        model.eval()
    return True


AugmentationName = Literal["none", "flip", "crop-flip"]

SHARE = 1 / 3  # largest share of the free memory of a GPU that data takes; the rest is for the training


def fits(x: Tensor, device: torch.device) -> bool:
    """Whether data is on the device, or may be."""
    if x.device == device or device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(x.nbytes <= SHARE * free)


def moved(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; copies to a GPU are asynchronous."""
    if x.device.type == "cpu" and device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


class Batches:
    """The (b, ...) inputs and (b,) labels of one model's epochs, on the device, in batches of the given sizes.

    An epoch's random numbers are drawn together on the CPU, so that a GPU trains on the same batches. InputError:
    augmentation or channels_last for data other than images, or images too small for crops.
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
    """A crop of each reflect-padded image (b, c, h, w), from row and column (b,) on, mirrored (b,) or not."""
    (h, w), device = x.shape[2:], x.device
    padded = F.pad(x, (padding(x),) * 4, mode="reflect").permute(0, 2, 3, 1)
    at = columns.to(device)[:, None] + torch.arange(w, device=device)
    at = torch.where(mirrored.to(device).bool()[:, None], at.flip(1), at)
    down = rows.to(device)[:, None] + torch.arange(h, device=device)
    index = torch.arange(len(x), device=device)[:, None, None]
    return padded[index, down[:, :, None], at[:, None, :]].permute(0, 3, 1, 2)


TELL_SECONDS = 0.5  # seconds between reports of progress within an epoch

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
        precision: float32, or bf16: forward pass and loss under `torch.autocast` with bfloat16, which changes the
            trained models, see `caveat`.
        channels_last: memory format of images and convolutions; the same up to rounding.
        compile: use `torch.compile` on full batches, with CUDA graphs on a GPU; the same up to rounding, but dropout
            draws other numbers.
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
        InputError: not a file in TOML. ConfigurationError: an unknown name, or as the constructor.
        """
        return cls.of(read_toml(path, "recipe"), f"recipe {path}")

    @classmethod
    def of(cls, values: Mapping[str, Any], what: str, statement: PrivacyStatement | None = None) -> Recipe:
        """From named values as in TOML, called `what`; the privacy statement fills `dp`, epochs and batch size.

        InputError: the statement's training cannot be repeated from it. ConfigurationError: an unknown name, a
        contradiction to the statement, or as the constructor.
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
        """The caveat about bf16 training, or "", also for a target in half precision."""
        halves = {torch.bfloat16, torch.float16}
        if self.precision == "float32" or (target is not None and any(p.dtype in halves for p in target.parameters())):
            return ""
        return (
            "Reference models were trained in bfloat16 (autocast). If the model was not, a real attacker who repeats"
            " its training may do better than this audit."
        )

    def privacy_note(self, statement: PrivacyStatement | None) -> str:
        """The note about differential privacy of the references; `statement` is the target's."""
        if self.dp is not None:
            return f"Reference models were trained with differential privacy, as the target was: {self.dp.in_words()}."
        if statement is None:
            return ""
        return (
            "Reference models were trained without differential privacy, but the target with it, according to its"
            " statement: they are poor stand-ins for it. Add [dp] to the recipe, dp= from Python."
        )

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer; all work elementwise, so that stacked models train as single ones."""
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

        The CPU `generator` draws order and augmentation, and seeds the global one for dropout. With `parts`, only these
        modules train, and all others stay in eval mode. InputError: training diverged; augmentation or channels_last
        for data other than images. ConfigurationError: the model cannot be compiled; with `dp`, as `DPFineTuner`.
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
            stand_in = stand_in_for(model, self)
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
    """Raise InputError if reference models train on fewer rows than the target."""
    if examples is not None and rows < (1 - FEWER) * examples:
        raise InputError(
            f"the model was trained on {examples:,} rows according to the recipe, but reference models would train on"
            f" only {rows:,}, and could not stand in for it. Pass all members and about as many non-members:"
            " references train on half of all rows, and only a sample is scored"
        )


def descend(
    recipe: Recipe, parameters: list[Tensor], batches: Any, loss: Callable[..., Tensor], tick: Tick | None
) -> None:
    """Run all steps on these parameters; `loss` takes the tensors of one of the `batches`."""
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

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.module, self.channels_last = copy.deepcopy(model), recipe.channels_last
        if recipe.channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.loss = self.compiled_loss = loss_in(self.module)
        if recipe.compile:
            self.compiled_loss = _compiled(self.loss, next(model.parameters()).device)

    def takes(self, model: nn.Module) -> bool:
        """Copy a model's tensors and flags; False if its architecture differs."""
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


def stand_in_for(model: nn.Module, recipe: Recipe) -> StandIn:
    """A stand-in with a model's weights; a compiled one is reused for the same architecture."""
    last: StandIn | None = getattr(_last, "stand_in", None)
    if recipe.compile and last is not None and last.channels_last == recipe.channels_last and last.takes(model):
        return last
    made = StandIn(model, recipe)
    if recipe.compile:
        _last.stand_in = made
    return made


def forget() -> None:
    """Free the compiled module, with the memory of its CUDA graphs."""
    _last.stand_in = None


def copy_tensors(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers in place, in the target's memory format."""
    with torch.no_grad():
        for (_, t), (_, copied) in zip(_tensors_of(source), _tensors_of(target), strict=True):
            copied.copy_(t)


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(model.named_parameters(), model.named_buffers())


def _outline(model: nn.Module) -> list[tuple[object, ...]]:
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
    """Make errors of torch.compile a ConfigurationError."""
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
