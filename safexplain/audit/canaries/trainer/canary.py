"""The canary of a probe: given by the user, made for any module, or found by watching a training; stored on disk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import TensorDataset

from safexplain._files import atomic_file
from safexplain.audit.canaries.canary import Canary, GradientCanary, RecordCanary
from safexplain.audit.canaries.make_canary import make_canary
from safexplain.audit.canaries.outlier import far_record
from safexplain.audit.canaries.reference import Reference, least_confident, true_class_probability
from safexplain.audit.canaries.trainer.data import stacked
from safexplain.audit.canaries.trainer.gradient_hook import GradientHook
from safexplain.dp.sgd.opacus_engine import without_hooks
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.canaries.claim import ScenarioName

SOME = 1024  # records that are read from a map-style data set for an outlier


def given_canary(given: Any, data: Any, target: int | None, scenario: ScenarioName) -> RecordCanary:
    """The user's record canary (x', y').

    Raises:
        InputError: not a record like those of the data.
        ConfigurationError: no target.
    """
    if target is None:
        raise ConfigurationError("canary: expected target=, the number of the record that it replaces; got None")
    z, own = data[target]
    try:
        x, y = given
        instead, label = torch.as_tensor(x).to(z), int(y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"canary: expected a record (x', y') of numbers, y' a class index ({error})") from None
    if instead.shape != z.shape:
        raise InputError(f"canary: expected x' of a record's shape {tuple(z.shape)}, got {tuple(instead.shape)}")
    same = torch.equal(instead, z)
    if same and label == int(own):
        raise InputError("canary: expected a record that differs from the target; else D and D' would be the same")
    kind: Any = scenario
    if scenario != "outlier":
        kind = "mislabelled" if same else "crafted" if scenario in ("mislabelled", "gradient") else scenario
    return RecordCanary(kind, target, instead, label)


def make_outlier(data: Any, target: int) -> RecordCanary:
    """A record far from the others, without a model; for a map-style data set, far from some of them."""
    n, at = len(data), target
    if not isinstance(data, TensorDataset) and n > SOME:
        rows = sorted({*range(0, n, n // SOME), target})
        data, at = [data[row] for row in rows], rows.index(target)
    x, y = stacked(data)
    return RecordCanary("outlier", target, *far_record(x, y.reshape(len(y), -1).squeeze(1), at))


def make_record(
    scenario: ScenarioName,
    model: nn.Module,
    data: Any,
    target: int | None,
    auxiliary: tuple[Tensor, Tensor] | None,
    seed: int,
) -> RecordCanary:
    """Craft z' for a module; the target defaults to the record with the least probable true class."""
    network, x, y, confidence = _with_confidence(model, data)
    if auxiliary is not None:
        auxiliary = torch.as_tensor(auxiliary[0]).to(x), torch.as_tensor(auxiliary[1]).to(y)
    generator = torch.Generator(x.device).manual_seed(seed)
    at = int(confidence.argmin()) if target is None else target
    found = make_canary(
        scenario, network, x, y, Reference(network.theta, at, confidence), auxiliary=auxiliary, generator=generator,
    )  # fmt: skip
    assert isinstance(found, RecordCanary)
    return found


def class_targets(model: nn.Module | None, data: Any) -> dict[int, int]:
    """Class -> its record with the least confidence (without a model the first one); the rarest class first.

    Raises:
        InputError: labels are not class indices.
    """
    if model is not None:
        _, _, y, confidence = _with_confidence(model, data)
        return least_confident(confidence, y)
    y = torch.stack([data[i][1] for i in range(len(data))])
    if y.dim() != 1 or not bool((y == y.long()).all()):
        raise InputError(f'target="classes": expected class indices (n,), got {y.dtype} of shape {tuple(y.shape)}')
    return least_confident(torch.zeros(len(y)), y.long())


def _with_confidence(model: nn.Module, data: Any) -> tuple[ModuleNetwork, Tensor, Tensor, Tensor]:
    """The model, all records on its device, and the probability of the true class of each."""
    model = without_hooks(copy.deepcopy(model))
    x, y = stacked(data)
    parameter = next(iter(model.parameters()), x)
    x, y = x.to(parameter.device), y.to(parameter.device).long()
    classes = max(2, logits_of(model, x[:1]).shape[1])
    if not any(p.requires_grad for p in model.parameters()):
        model.requires_grad_(True)
    network = ModuleNetwork(model, classes)
    return network, x, y, true_class_probability(network, network.theta[None], x, y)


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A copy of a module in evaluation mode (no dropout, batch normalisation by its running statistics)."""

    model: nn.Module  # (n, ...) -> logits (n, classes), or (n, 1) or (n,) for class 1 of two; on the data's device
    classes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", copy.deepcopy(self.model).eval())
        if not self.trainable:
            raise InputError("model: expected trainable parameters, got none; set requires_grad for some")

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Name -> parameter, in the order of the flat tensor."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def parameters(self) -> int:
        """Number P of parameters."""
        return sum(p.numel() for p in self.trainable.values())

    @property
    def theta(self) -> Tensor:
        """(P,) current parameters of the model."""
        return torch.cat([p.detach().flatten() for p in self.trainable.values()])

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (1, P) and x (n, ...) -> (1, n, outputs)."""
        trainable = self.trainable
        parts = torch.split(theta[0], [p.numel() for p in trainable.values()])
        state = {name: part.view_as(p) for (name, p), part in zip(trainable.items(), parts, strict=True)}
        found: Tensor = functional_call(self.model, state, (_in_precision(x, theta),))
        found = found[:, None] if found.dim() == 1 else found
        if found.shape not in ((len(x), self.classes), (len(x), 1 if self.classes == 2 else self.classes)):
            raise InputError(
                f"model: expected logits of shape ({len(x)}, {self.classes}) for {self.classes} classes, got"
                f" {tuple(found.shape)}"
            )
        return found[None]


def logits_of(model: nn.Module, x: Tensor, *, finite: bool = True) -> Tensor:
    """Logits (n, outputs) on the CPU, of a model in evaluation mode.

    Raises:
        InputError: another shape, or not finite although `finite` is set.
    """
    parameter = next(model.parameters(), x)
    with torch.no_grad():
        found = model.eval()(_in_precision(x.to(parameter.device), parameter))
    if not isinstance(found, Tensor) or found.dim() not in (1, 2) or len(found) != len(x):
        raise InputError(
            "train: expected a model that returns logits (n, classes), got"
            f" {getattr(found, 'shape', type(found).__name__)}"
            f" for {len(x)} records; pass score= to compute the score from the model yourself"
        )
    found = found.detach().double().cpu().reshape(len(x), -1)
    if finite and not bool(found.isfinite().all()):
        raise InputError(
            "train: expected finite logits, got NaN or infinity: training diverged; lower its learning rate"
        )
    return found


def _in_precision(x: Tensor, parameter: Tensor) -> Tensor:
    """Real inputs in the precision of the model; others unchanged."""
    real = x.is_floating_point() and parameter.is_floating_point()
    return x.to(parameter.dtype) if real else x


def find_coordinate(train: Callable[[GradientHook], Any], target: int) -> GradientCanary:
    """The gradient canary at the parameter that moves least in a training on D without noise and without the target."""
    hook = GradientHook(target)
    train(hook)
    assert hook.movement is not None
    at = int(hook.movement.argmin())
    sgd = isinstance(hook.optimizer.original_optimizer, torch.optim.SGD)  # Adam's steps depend on the noise
    return GradientCanary(target, at, hook.moved[at : at + 1].cpu() if sgd else None)


def save_canary(path: Path, canary: Canary) -> None:
    """Write it atomically."""
    with atomic_file(path) as partial, partial.open("wb") as file:
        torch.save(canary, file)


def load_canary(path: Path) -> Canary | None:
    """The canary that `save_canary` wrote; None if there is none.

    Raises:
        InputError: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with torch.serialization.safe_globals([*get_args(Canary)]):
            found: Canary = torch.load(path, weights_only=True)
    except Exception as error:
        raise InputError(f"{path} is damaged ({error}); delete its folder to start again") from None
    return found
