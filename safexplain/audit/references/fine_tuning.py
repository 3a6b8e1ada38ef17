"""Fine-tuning of reference models on another task, to audit the data of their pre-training (arXiv 2306.01181)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache as cache_of
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import Undigestable, code_digest, digest
from safexplain._progress import Progress, silent
from safexplain._validate import check_number, check_whole
from safexplain.audit.queries import Population, device_of
from safexplain.audit.references.parallel import present
from safexplain.audit.references.recipe import Recipe, Tick, Trained, with_group_norm
from safexplain.audit.references.shadows import (
    ModelCache,
    Shadows,
    groups_by_steps,
    load_or_train,
    mixed_seed,
    most_together,
    train_models,
    train_one,
)
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.outputs import EstimatorModule

if TYPE_CHECKING:
    from safexplain.dp.sgd.finetune import DPFineTuner

Trainable = Literal["head", "all", "lora"] | int
"""The part of a pre-trained model that is fine-tuned; a number n means the last n blocks and the head."""

_STREAM = 0xF17E  # separates random numbers from those of the pre-training
_FEATURES = 2**30  # bytes of features of heads that train together


@dataclass(frozen=True, eq=False)
class FineTune:
    """How models are fine-tuned on another task.

    Args:
        downstream: data of the new task; its membership is not attacked.
        recipe: of the fine-tuning. With `dp`, this `trainable` overrides the one in `dp`, and blocks with BatchNorm
            get GroupNorm, as always with DP.
        trainable: "head": only the new head. An integer n of at least 1: the last n blocks and the head; 1 means
            `layer4` and `fc` of a ResNet, "the last 2 layers" of arXiv 2306.01181. "all": everything. "lora": the head
            and low-rank adapters on the projections of attention, or else on all linear layers, merged afterwards.
        sample: share of `downstream` in (0, 1] that each model draws at random without replacement.
        outputs: of the new head; None: one for each class of the downstream labels.

    Raises:
        ConfigurationError, ConfigurationTypeError: a value is of the wrong type or out of range.
    """

    downstream: Population
    recipe: Recipe
    trainable: Trainable = "head"
    sample: float = 0.85
    outputs: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("downstream", Population), ("recipe", Recipe)):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigurationTypeError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")
        check_trainable(self.trainable)
        sample = check_number("sample", self.sample, above=0.0)
        if sample > 1:
            raise ConfigurationError(f"sample: expected a share in (0, 1], got {self.sample!r}")
        object.__setattr__(self, "sample", sample)
        if self.outputs is not None and check_whole("outputs", self.outputs, 2) < self.downstream.classes:
            raise ConfigurationError(
                f"outputs: expected at least {self.downstream.classes}, one for each class, got {self.outputs}"
            )

    @property
    def classes(self) -> int:
        """Outputs of the new head."""
        return self.outputs or self.downstream.classes

    def shares(self, seed: int, number: int, member: NDArray[np.bool_]) -> list[tuple[Population, NDArray[np.int64]]]:
        """The rows on which model `number`, pre-trained on `member` (n,) bool, is fine-tuned."""
        n = len(self.downstream)
        rng = np.random.default_rng([seed, number, _STREAM])
        return [(self.downstream, np.sort(rng.choice(n, min(max(round(self.sample * n), 1), n), replace=False)))]

    def check(self, model: nn.Module) -> None:
        """Raise InputError if a model of this architecture cannot be fine-tuned in this way."""
        job = _Job(self, np.zeros((1, 1), dtype=bool), 0, torch.device("cpu"))
        job.check(job.start(0, model))


def check_trainable(trainable: object) -> None:
    """Raise ConfigurationError for any other value than a `Trainable`."""
    is_number = isinstance(trainable, int) and not isinstance(trainable, bool) and trainable >= 1
    if not is_number and not (isinstance(trainable, str) and trainable in ("head", "all", "lora")):
        raise ConfigurationError(
            'trainable: expected "head", "all", "lora", or a number of blocks of at least 1 that train with the head,'
            f" got {trainable!r}"
        )


def fine_tune(
    pretrained: Shadows,
    how: FineTune,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    cache: ModelCache | str | Path | None = None,
    progress: Progress = silent,
) -> Shadows:
    """Fine-tune each model on its own random share of another task's data, with a new head for its classes.

    Layers that are not fine-tuned stay in eval mode and bit for bit the same, with the statistics of BatchNorm (which
    the code of arXiv 2306.01181 updates). Heads that train alone, without augmentation, do so on features computed
    once: the same models up to rounding.

    Args:
        pretrained: models with known membership of the pool, from `train_shadows`; their head is one `nn.Linear`.
        how: data, recipe and trainable part.
        seed: of the shares, the new heads and the order of the batches.
        device: where models train.
        cache: a `ModelCache` or a folder for finished models.
        progress: called after each model.

    Returns:
        The fine-tuned models, on `device` (on the CPU if only workers have such a device), and the membership of the
        pre-training.

    Raises:
        InputError: a model has not one linear head, does not take the data or has too few blocks; a share has fewer
            than two classes; or training diverged.
    """
    if not isinstance(pretrained, Shadows):
        raise ConfigurationTypeError(
            f"pretrained: expected Shadows, as from train_shadows, got {type(pretrained).__name__}"
        )
    store = ModelCache(cache) if isinstance(cache, str | Path) else cache
    job = _Job(how, pretrained.membership, seed, torch.device(device))
    for i in range(len(pretrained.models)):
        if len(torch.unique(y := torch.cat([data.y[rows] for data, rows in job.shares(i)]))) < 2:
            raise InputError(
                f"model {i} would be fine-tuned on {len(y)} examples of fewer than two classes: raise sample, or"
                " use more downstream data"
            )
    models = [job.start(i, model) for i, model in enumerate(pretrained.models)]
    digest_of = cache_of(Population.digest)
    keys = [job.key(i, model, digest_of) if store else "" for i, model in enumerate(models)]
    for i, model in enumerate(models):
        job.check(model)
        if how.recipe.dp is not None and how.trainable != "head":
            models[i] = job.dp_architecture(i, model)

    def load(i: int) -> nn.Module | None:
        return models[i] if store and keys[i] and store.load(keys[i], models[i]) else None

    def save(i: int, model: nn.Module) -> None:
        if store and keys[i]:
            store.save(keys[i], model)

    groups = partial(job.groups, models)
    made = load_or_train(job, models, groups, load, save, stage="fine-tuning", progress=progress)
    tuned = tuple(model.to(present(device)) for model in made)
    return Shadows(tuned, pretrained.membership)


def replace_head(model: nn.Module, classes: int | None = None, *, seed: int) -> nn.Module:
    """A copy with a new `nn.Linear` of `classes` outputs (None: as many as before) as its head; InputError unless the
    head is one `nn.Linear`."""
    from safexplain.dp.models.replacements import replace_module

    name = head_name(model)
    model = copy.deepcopy(model)
    old = cast("nn.Linear", model.get_submodule(name))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        new = nn.Linear(old.in_features, classes or old.out_features, bias=old.bias is not None)
    return replace_module(model, name, new.to(old.weight).train(old.training))


def head_name(model: nn.Module) -> str:
    """Name of the linear layer that is the head; raises as `replace_head`."""
    from safexplain.dp.models.parameters import head_modules

    names = list[str]()
    with suppress(InputError):
        names = head_modules(model)
        if len(names) == 1 and isinstance(model.get_submodule(names[0]), nn.Linear):
            return names[0]
    kind = "a scikit-learn classifier" if isinstance(model, EstimatorModule) else type(model).__name__
    raise InputError(
        f"expected one nn.Linear as the head of {kind}, got {', '.join(names) or 'none'}. Pre-train models whose last"
        " layer is one, called fc, classifier, head or heads, or at the end"
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """Fine-tunes the models with the numbers `places`, here or in a worker."""

    how: FineTune
    membership: NDArray[np.bool_]
    seed: int
    device: torch.device

    def __call__(self, places: list[int], starts: list[nn.Module], tick: Tick) -> list[nn.Module]:
        models = [start.to(self.device) for start in starts]
        if len(models) > 1 or self.on_features(models[0]):
            self._train_heads(models, places, tick)
        elif self.how.recipe.dp is None:
            self._train_alone(models[0], places[0], tick)
        else:
            tuner = self._tuner(places[0], models[0], tick)
            models[0].load_state_dict(tuner.fit().model.state_dict())
        return [model.cpu() for model in models]

    def start(self, i: int, pretrained: nn.Module) -> nn.Module:
        return replace_head(pretrained, self.how.classes, seed=self._mixed(i, 0))

    def key(self, i: int, initial: nn.Module, digest_of: Callable[[Population], str]) -> str:
        """Digest of everything that makes model i; "" if it has no stable identity."""
        how, parts = self.how, [(digest_of(data), rows) for data, rows in self.shares(i)]
        try:
            tuning = how.recipe.to_toml(), how.trainable
            return digest("fine-tuning", tuning, parts, initial, self.seed, i, code_digest(__name__))
        except Undigestable:
            return ""

    def shares(self, i: int) -> list[tuple[Population, NDArray[np.int64]]]:
        """The data of model i, as rows of populations."""
        return self.how.shares(self.seed, i, self.membership[i])

    def data(self, i: int) -> tuple[Tensor, Tensor]:
        """The same as inputs and labels."""
        shares = self.shares(i)
        return torch.cat([data.x[rows] for data, rows in shares]), torch.cat([data.y[rows] for data, rows in shares])

    def _mixed(self, i: int, what: int) -> int:
        return mixed_seed(self.seed, self.how.recipe.seed, i, _STREAM + what)

    def check(self, model: nn.Module) -> None:
        """Raise InputError unless a model maps downstream examples to outputs for the new classes."""
        x = self.how.downstream.x[:2]
        try:
            output = self._outputs(model, x)
        except Exception as error:  # any, as models are foreign code
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(
                f"{type(model).__name__} does not take downstream examples of shape {tuple(x.shape[1:])}: {reason}."
                " Give them the shape and type of the pre-training data"
            ) from error
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if shape != (len(x), self.how.classes):
            raise InputError(
                f"expected ({len(x)}, {self.how.classes}) outputs of {type(model).__name__}, from a linear head with"
                f" one for each class, got {shape}"
            )
        if isinstance(self.how.trainable, int):
            self._parts(model)
        elif self.how.trainable == "lora":
            self._adapted(model)

    def _outputs(self, model: nn.Module, x: Tensor) -> Any:
        model.eval()
        with torch.no_grad():
            return model(x.to(device_of(model)))

    def on_features(self, model: nn.Module) -> bool:
        """Whether the head can train on features computed once."""
        from safexplain.dp.heads import features

        if self.how.trainable != "head" or self.how.recipe.dp is not None or self.how.recipe.augmentation != "none":
            return False
        name, x = head_name(model), self.how.downstream.x[:8]
        outputs: list[Tensor] = []
        hook = model.get_submodule(name).register_forward_hook(lambda _, __, output: outputs.append(output))
        try:
            if not torch.equal(self._outputs(model, x), outputs[0]):
                return False
        finally:
            hook.remove()
        try:
            features(model, name, x)
        except InputError:  # features are not (n, d), or depend on other rows
            return False
        return True

    def groups(self, models: Sequence[nn.Module], missing: list[int]) -> list[list[int]]:
        """Heads in groups that train together; other models alone."""
        by_shape: dict[tuple[torch.Size, ...], dict[int, int]] = {}
        for i in missing:
            if self.on_features(models[i]):
                shapes = tuple(p.shape for p in models[i].get_submodule(head_name(models[i])).parameters())
                by_shape.setdefault(shapes, {})[i] = sum(len(rows) for _, rows in self.shares(i))
        found = []
        for shapes, counts in by_shape.items():
            most = max(1, _FEATURES // (4 * shapes[0][1] * max(counts.values())))
            found += groups_by_steps(self.how.recipe, counts, min(most, most_together(len(missing))))
        together = {i for group in found for i in group}
        return found + [[i] for i in missing if i not in together]

    def _train_heads(self, models: Sequence[nn.Module], places: Sequence[int], tick: Tick) -> None:
        from safexplain.dp.heads import features

        inputs, labels, index, heads, first = [], [], [], [], 0
        for i, model in zip(places, models, strict=True):
            x, y = self.data(i)
            inputs.append(features(model, head_name(model), x))
            labels.append(y)
            index.append(torch.arange(first, first + len(y)))
            heads.append(nn.Sequential(model.get_submodule(head_name(model))))
            first += len(y)
        generators = [torch.Generator().manual_seed(self._mixed(i, 1)) for i in places]
        train_models(self.how.recipe, heads, torch.cat(inputs), torch.cat(labels), index, generators, tick)

    def _train_alone(self, model: nn.Module, i: int, tick: Tick) -> None:
        from safexplain.dp.models.replacements import restore

        learner = self._with_adapters(model, i) if self.how.trainable == "lora" else model
        parts = None if self.how.trainable == "all" else [learner.get_submodule(name) for name in self._parts(learner)]
        with _only(learner, [learner] if parts is None else parts):
            generator = torch.Generator().manual_seed(self._mixed(i, 1))
            train_one(self.how.recipe, learner, *self.data(i), generator, tick, parts=parts)
        if learner is not model:
            model.load_state_dict(restore(learner).state_dict())

    def dp_architecture(self, i: int, model: nn.Module) -> nn.Module:
        """With GroupNorm in place of BatchNorm that trains."""
        from safexplain.dp.models.replacements import BatchNormReplacedWarning

        with warnings.catch_warnings():
            if i:
                warnings.simplefilter("ignore", BatchNormReplacedWarning)  # raised once, for model 0
            return with_group_norm(model, lambda model: self._tuner(i, model).prepared())

    def _tuner(self, i: int, model: nn.Module, tick: Tick | None = None) -> DPFineTuner:
        from safexplain.dp.models.replacements import pin_to_eval

        (x, y), how, trainable = self.data(i), self.how, self.how.trainable
        model = self._with_adapters(model, i) if trainable == "lora" else copy.deepcopy(model)
        training: Trained = str(trainable)
        if trainable != "all":
            parts = {name: model.get_submodule(name) for name in self._parts(model)}
            for module in set(model.modules()).difference(*(part.modules() for part in parts.values())):
                pin_to_eval(module)  # no dropout in frozen layers
            if isinstance(trainable, int):
                training = tuple(name for name, part in parts.items() if any(True for _ in part.parameters()))
        assert how.recipe.dp is not None
        recipe = replace(how.recipe, batch_size=min(how.recipe.batch_size, len(y)))
        seed = mixed_seed(self._mixed(i, 1), 0) % 2**31
        return replace(how.recipe.dp, trainable=training).tuner(recipe, model, x, y, seed=seed, tick=tick)

    def _parts(self, model: nn.Module) -> list[str]:
        from safexplain.dp.models.parameters import blocks
        from safexplain.dp.models.replacements import LoRALinear

        head = head_name(model)
        if self.how.trainable == "head":
            return [head]
        if self.how.trainable == "lora":
            adapted = [name for name, module in model.named_modules() if isinstance(module, LoRALinear)]
            return [f"{name}.{part}" for name in adapted for part in ("lora_a", "lora_b")] + [head]
        count, names = int(self.how.trainable), blocks(model, head)
        if count > len(names):
            raise InputError(
                f"trainable: {type(model).__name__} has {len(names)} block{'s' * (len(names) != 1)} below its head"
                f" ({', '.join(names) or 'none'}), got {count}; use trainable='all' to train everything"
            )
        order = [name for name, _ in model.named_modules()]
        found: list[str] = []
        for name in [*order[order.index(names[-count]) :], head]:
            if not any(f"{name}.".startswith(f"{outer}.") for outer in found):
                found.append(name)
        return found

    def _with_adapters(self, model: nn.Module, i: int) -> nn.Module:
        """A copy with adapters."""
        from safexplain.dp.models.replacements import add_lora, replace_composites, replace_module

        model, _ = replace_composites(copy.deepcopy(model), frozen_too=True)
        targets, name = self._adapted(model), head_name(model)
        head = model.get_submodule(name)
        model = replace_module(model, name, nn.Identity())
        device = device_of(model)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self._mixed(i, 2))
            add_lora(model, targets=targets)
        return replace_module(model, name, head)

    def _adapted(self, model: nn.Module) -> Sequence[str]:
        from safexplain.dp.models.replacements import TARGETS

        head = head_name(model)
        linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name != head]
        if not linear:
            raise InputError(
                'trainable="lora": the model has no linear layer except its head; use "head", a number of blocks or'
                ' "all"'
            )
        return TARGETS if any(name.rpartition(".")[2] in TARGETS for name in linear) else linear


@contextmanager
def _only(model: nn.Module, parts: Sequence[nn.Module]) -> Iterator[None]:
    before = {p: p.requires_grad for p in model.parameters()}
    training = {p for part in parts for p in part.parameters()}
    for p in before:
        p.requires_grad_(p in training and p.is_floating_point())
    try:
        yield
    finally:
        for p, required in before.items():
            p.requires_grad_(required)
