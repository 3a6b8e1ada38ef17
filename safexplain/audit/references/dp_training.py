"""Training of reference models with differential privacy, and where they start.

Each trains by `safexplain.dp.DPFineTuner`, with noise of its own seed. Where a linear head alone trains, features are
computed once and all heads train as one batched computation: the same training, by other random numbers. `how` is the
`Recipe` in which `dp` stands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from safexplain.audit.references.dp_recipe import DPTraining, as_toml
from safexplain.errors import InputError, PrivacyWarning


@dataclass(frozen=True, eq=False)
class FrozenAs:
    """Builds models whose frozen layers are the target's: what did not train was public, and is in both."""

    build: Callable[[int], nn.Module]
    target: nn.Module
    dp: DPTraining  # says what trains

    def __call__(self, seed: int) -> nn.Module:
        """An untrained model.

        Raises:
            InputError: the model has frozen tensors that the target has not, or of another shape.
        """
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
                        f"reference models train with [dp] trainable = {as_toml(self.dp.trainable)}, and take all else"
                        f" from the target, which has no {name} of shape {tuple(tensor.shape)}: build models of the"
                        " target's architecture"
                    )
                tensor.copy_(known[name])
        return model


def as_it_trains(model: nn.Module, prepared: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """The model as `DPFineTuner` leaves it, which trains what is `prepared`: with GroupNorm where BatchNorm trains."""
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
    """Train a model in place by `DPFineTuner`, its batches and noise seeded by the generator, and return it in eval
    mode; raises what that does."""
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
    """Train models in place, each on its rows of (x, y): heads on the same features together, all others one after the
    other; raises what `DPFineTuner` does."""
    waiting, done = list(range(len(models))), 0
    while waiting:
        first = waiting[0]
        alike = [i for i in waiting if len(members[i]) == len(members[first]) and _same_but_head(models, i, first, dp)]

        def told(share: float, note: str = "", size: int = len(alike), before: int = done) -> None:
            if tick:
                tick((before + share * size) / len(models), f"{size} heads at once" if size > 1 else note)

        own, group = members[first], [first]
        if len(alike) > 1 and _train_heads(
            how, dp, [models[i] for i in alike], x, y, [members[i] for i in alike], [generators[i] for i in alike], told
        ):
            group = alike
        else:
            own_x, own_y = x[own.to(x.device)], y[own.to(y.device)]
            train_alone(how, dp, models[first], own_x, own_y, generators[first], partial(told, size=1))
        done += len(group)
        waiting = [i for i in waiting if i not in group]


def _same_but_head(models: Sequence[nn.Module], i: int, first: int, dp: DPTraining) -> bool:
    """Whether two models differ in what trains alone, which is their heads."""
    from safexplain.dp.models.parameters import select

    if dp.trainable != "head":
        return i == first
    one, other = models[first].state_dict(), models[i].state_dict()
    training = set(select(models[first], "head"))
    return one.keys() == other.keys() and all(n in training or torch.equal(t, other[n]) for n, t in one.items())


def _train_heads(
    how: Any,
    dp: DPTraining,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Callable[..., None],
) -> bool:
    """Features once, then all heads at once; False where these models have no closed form, and nothing was done."""
    from safexplain.dp.heads.closed_form import Heads, train_heads
    from safexplain.dp.heads.features import linear_head
    from safexplain.dp.heads.finetune_head import has_closed_form, head_problem, linear_that_trains
    from safexplain.dp.sgd.records import InMemory, records_of

    own = members[0]
    tuner = dp.tuner(how, models[0], x[own.to(x.device)], y[own.to(y.device)], seed=0)
    ready = tuner.prepared()
    if not has_closed_form(ready, tuner.records, tuner.config):
        return False
    everyone = records_of((x, y), 0)
    assert isinstance(everyone, InMemory)
    problem = head_problem(ready, everyone, tuner.plan, tuner.config, cache=None)
    name, device = linear_that_trains(ready), problem.x.device
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
