"""`[dp]` of a recipe (`how`): reference models trained by `DPFineTuner`, as the target's privacy statement says."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from safexplain._privacy_loss import Adjacency
from safexplain._validate import check_number, check_whole, from_table
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning, SafexplainError
from safexplain.verdict.privacy_statement import PrivacyStatement

if TYPE_CHECKING:
    from safexplain.dp.sgd.clipping import Clipping
    from safexplain.dp.sgd.finetune import DPFineTuner

ClippingName = Literal["auto-s", "flat", "per-layer"]

CLIPPINGS = {"AutoSClipping": "auto-s", "FlatClipping": "flat", "PerLayerClipping": "per-layer"}
"""Class in `safexplain.dp` -> name in a recipe."""

MECHANISM = "DP-SGD: clipped gradients of Poisson batches, summed, with Gaussian noise"
"""Beginning of the mechanism in statements whose training can be repeated."""

NEAR = 0.01  # relative difference below which numbers of a recipe and of a statement count as equal but for rounding
FEWER = 0.05  # relative difference allowed between the statement's records and the members in the data

Trained = str | tuple[str, ...]


@dataclass(frozen=True)
class DPTraining:
    """The table `[dp]` of a recipe: a training by `safexplain.dp.DPFineTuner`, whose arguments most of these are.

    The recipe has optimizer, learning rate, epochs and expected batch size.

    Args:
        delta: of the guarantee.
        epsilon: of the guarantee; noise is calibrated to it for the members of each reference model. None: the noise
            multiplier is given.
        adjacency: of epsilon: substitute, add_remove or zero_out.
        noise_multiplier: instead of a calibrated one; with `epsilon`, training stops before that is exceeded.
        steps: of the optimizer, instead of the recipe's epochs.
        sample_rate: expected share of the members in a batch, instead of the recipe's batch size.
        clip: largest norm C of one example's gradient.
        clipping: auto-s (normalised gradients, as `DPFineTuner` has by default), flat (min(1, C / norm), as in Opacus),
            or per-layer.
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
        from safexplain.dp.sgd.plan import TrainingBudget

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
        """From a table, or itself; raises as `from_table` and the constructor."""
        return values if isinstance(values, cls) else from_table(cls, values, what)

    def to_toml(self) -> str:
        """The table, without values at their defaults."""
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
        self, how: Any, model: nn.Module, x: Tensor, y: Tensor, *, seed: int, tick: Callable[..., None] | None = None
    ) -> DPFineTuner:
        """The training of one model on (x, y), on its device, by the `Recipe` that holds this."""
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
"""Default weight decay of torch's optimizers, and so of `DPFineTuner`."""


def defaults_of(optimizer: str) -> dict[str, float]:
    """Defaults of a recipe with `[dp]`; fixed, so that older files keep their meaning."""
    return {"lr": 5e-4, "batch_size": 256, "momentum": 0.0, "weight_decay": WEIGHT_DECAYS.get(optimizer, 0.0)}


def filled(values: Mapping[str, Any], statement: PrivacyStatement, what: str) -> dict[str, Any]:
    """Values of a recipe, name -> value as in the file, completed from a privacy statement; raises as `Recipe.of`."""
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
    """The caveat if a recipe's epochs and batch size are overruled by different ones in the statement, or ""."""
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
    """The values of `[dp]` in a statement; `table` has those of the recipe."""
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
    """A text, number, boolean or list in TOML, where it is written as in JSON."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, eq=False)
class FrozenAs:
    """Builds models whose frozen layers are the target's: layers that did not train were public."""

    build: Callable[[int], nn.Module]
    target: nn.Module
    dp: DPTraining  # its `trainable`

    def __call__(self, seed: int) -> nn.Module:
        """An untrained model; InputError if the target lacks a frozen tensor of it, or has it in another shape."""
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
                        f"the target has no {name} of shape {tuple(tensor.shape)}, which reference models take from it"
                        f" with [dp] trainable = {as_toml(self.dp.trainable)}: build models of its architecture"
                    )
                tensor.copy_(known[name])
        return model


def with_group_norm(model: nn.Module, prepared: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The architecture that `DPFineTuner` returns: GroupNorm in place of BatchNorm that trains (`prepared`)."""
    from safexplain.dp.models.replacements import restore

    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
        return model
    changed = restore(prepared(model))
    return model if changed.state_dict().keys() == model.state_dict().keys() else changed.requires_grad_(True)


def train_alone(
    how: Any,
    dp: DPTraining,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
    tick: Callable[..., None] | None,
) -> nn.Module:
    """Train a model in place by `DPFineTuner`, with batches and noise of the generator, and leave it in eval mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        tuner = dp.tuner(how, model, x, y, seed=generator.initial_seed() % 2**31, tick=tick)
        model.load_state_dict(tuner.fit().model.state_dict())
    return model.eval()


def train_private_models(
    how: Any,
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
    """Whether only heads train, and two models differ in nothing else."""
    from safexplain.dp.models.parameters import select

    if dp.trainable != "head":
        return i == first
    one, other = models[first].state_dict(), models[i].state_dict()
    training = set(select(models[first], "head"))
    return one.keys() == other.keys() and all(n in training or torch.equal(t, other[n]) for n, t in one.items())


def _train_heads(
    how: Any,
    dp: DPTraining,
    x: Tensor,
    y: Tensor,
    models: Sequence[nn.Module],
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Callable[..., None],
) -> bool:
    """Compute features once, then train all heads at once; False, and nothing done, if there is no closed form."""
    from safexplain.dp.heads.closed_form import Heads, train_heads
    from safexplain.dp.heads.features import linear_head
    from safexplain.dp.heads.finetune_head import has_closed_form, head_problem, trainable_linear
    from safexplain.dp.sgd.records import InMemory, records_of

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
