"""The privacy statement of a training loop with Opacus.

`statement_from` computes both epsilons from the history of the engine's accountant; Opacus itself reports only that of
a record added or removed.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, cast

import opacus
from opacus import PrivacyEngine
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from safexplain._digest import weights_digest
from safexplain._privacy_loss import Steps, check_delta
from safexplain.dp.models.replacements import is_pinned
from safexplain.dp.sgd.clipping import FlatClipping, PerLayerClipping
from safexplain.dp.sgd.plan import MECHANISM
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement

ACCOUNTANTS = (RDPAccountant, PRVAccountant, GaussianAccountant)
"""Accountants with a complete history: (noise multiplier, sample rate, steps) of every step."""

SAME_CALL = "pass the engine with the model, optimizer and loader of a single make_private call"
STATE_BY_HAND = "state its steps yourself: PrivacyStatement(..., phases=(Steps(...),)).bound_to(model)"


def statement_from(
    privacy_engine: PrivacyEngine,
    model: nn.Module,
    optimizer: DPOptimizer,
    loader: DataLoader[Any],
    *,
    delta: float,
    pretrained: bool = True,
) -> PrivacyStatement:
    """The guarantee of a training with Opacus, under both adjacencies, bound to the model's present weights.

    Epsilons are computed from the accountant's history, which is all that is known of the loop. The statement lists the
    rest as assumptions: that it clips, draws and steps as Opacus does, and uses the records in no other way.
    `safexplain.audit.canaries.WhiteBox` or `safexplain canaries` checks the loop itself.

    Args:
        privacy_engine: after the last step.
        model: the trained model, with or without Opacus' wrapper.
        optimizer: from `make_private`.
        loader: from `make_private` or from `BatchMemoryManager`.
        delta: smaller than one over the number of records.
        pretrained: whether the starting weights were trained on other data, which the statement then lists as
            unprotected.

    Raises:
        InputError: objects that are not from `make_private`, or from different trainings.
        ConfigurationError: an accountant or optimizer that is not Opacus' own, or a delta out of range.
        RefusedError: no step was taken, batches are not Poisson samples, clipping is adaptive, or a layer mixes the
            records of a batch.

    Warns:
        WeakDeltaWarning: delta is at least one over the number of records.
    """
    for name, given, kind in (
        ("privacy_engine", privacy_engine, PrivacyEngine),
        ("model", model, nn.Module),
        ("optimizer", optimizer, DPOptimizer),
        ("loader", loader, DataLoader),
    ):
        if not isinstance(given, kind):
            raise InputError(f"{name}: expected a {kind.__name__}, got {type(given).__name__}; {SAME_CALL}")
    phases = _phases(privacy_engine.accountant)
    _check_optimizer(optimizer, privacy_engine.accountant)
    records = _count_records(loader, privacy_engine)
    model = _unwrapped(model)
    _check_layers(model)
    check_delta(delta, records)
    secure = "torchcsprng's generator, with Opacus' secure_mode" if optimizer.secure_mode else ""
    return PrivacyStatement(
        mechanism=f"{MECHANISM}, by Opacus {opacus.__version__}",
        records=records,
        delta=delta,
        phases=phases,
        clipping=_clipping(optimizer),
        trained=_trained_parameters(model, optimizer),
        pretrained=pretrained,
        seeded=optimizer.generator is not None and not optimizer.secure_mode,
        weights=weights_digest(model),
        own_loop=True,
        generator=secure,
    )


def without_hooks(model: nn.Module) -> nn.Module:
    """The model without Opacus' wrappers, and without its hooks and attributes on the layers."""
    model = _unwrapped(model)
    for module in model.modules():
        for hooks in (module._forward_hooks, module._backward_hooks):
            for number, hook in list(hooks.items()):
                if isinstance(getattr(getattr(hook, "func", hook), "__self__", None), AbstractGradSampleHooks):
                    del hooks[number]
        for name in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
            module.__dict__.pop(name, None)
    return model


def _unwrapped(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, AbstractGradSampleModule):
            model = model._module
        elif isinstance(model, DifferentiallyPrivateDistributedDataParallel):
            model = model.module
        else:
            return model


def _phases(accountant: Any) -> tuple[Steps, ...]:
    """The steps of an accountant's history, merged by noise and sample rate."""
    if type(accountant) not in ACCOUNTANTS:
        raise ConfigurationError(
            f"privacy_engine: expected the accountant rdp, prv or gdp of Opacus, got {type(accountant).__name__}, whose"
            f" history may be of another mechanism; {STATE_BY_HAND}"
        )
    steps: dict[tuple[float, float], int] = {}
    for noise_multiplier, sample_rate, count in accountant.history:
        kind = float(noise_multiplier), float(sample_rate)
        steps[kind] = steps.get(kind, 0) + int(count)
    if not sum(steps.values()):
        raise RefusedError(
            "privacy_engine: its accountant has counted no step; train first, and after a restart load the history too"
            " (PrivacyEngine.load_checkpoint)"
        )
    return tuple(Steps(s, q, n, "full-batch" if q == 1 else "poisson") for (s, q), n in steps.items())


def _check_optimizer(optimizer: DPOptimizer, accountant: Any) -> None:
    """Raise unless it is Opacus' own, and reports its steps to this accountant."""
    if isinstance(optimizer, AdaClipDPOptimizer):
        raise RefusedError(
            "optimizer: adaptive clipping estimates its bound from the records, which the accountant's history does not"
            ' cover; train with clipping="flat" or "per_layer"'
        )
    if not type(optimizer).__module__.startswith("opacus."):
        raise ConfigurationError(
            f"optimizer: expected one of Opacus, got {type(optimizer).__name__}, whose clipping and noise are unknown;"
            f" {STATE_BY_HAND}"
        )
    hook = getattr(optimizer.step_hook, "__closure__", None) or ()
    if not any(cell.cell_contents is accountant for cell in hook):
        raise InputError(f"optimizer: it reports its steps to another accountant than this engine's; {SAME_CALL}")


def _count_records(loader: DataLoader[Any], engine: PrivacyEngine) -> int:
    """The number of records, if the loader draws Poisson batches at no more than the accounted sample rate."""
    sampler: Any = loader.batch_sampler
    if isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if not isinstance(sampler, UniformWithReplacementSampler | DistributedUniformWithReplacementSampler):
        raise RefusedError(
            "loader: expected Poisson samples; for other batches, the epsilon of Poisson sampling can be far too small"
            " (Chua et al. 2024, arXiv 2403.17673). Train with poisson_sampling=True, and pass the loader that"
            " make_private returned"
        )
    records = len(cast(Sized, loader.dataset))
    if engine.dataset is None or len(engine.dataset) != records:
        raise InputError(f"loader: its data set is not the one that the engine was made private with; {SAME_CALL}")
    accounted = engine.accountant.history[-1][1]
    if sampler.sample_rate > accounted * (1 + 1e-9):
        raise InputError(
            f"loader: it draws each record at a rate of {sampler.sample_rate:.4g}, but the accountant counted"
            f" {accounted:.4g}; {SAME_CALL}"
        )
    return records


def _check_layers(model: nn.Module) -> None:
    """Raise if a layer mixes records; Opacus checks only layers with trainable parameters."""
    mixing = [
        f"{name or 'the model'} ({type(m).__name__})"
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and m.training and not is_pinned(m)
    ]
    if mixing:
        raise RefusedError(
            f"model: {', '.join(mixing)} computes statistics over the records of a batch without noise; train"
            " safexplain.dp.prepare(model), or keep frozen batch normalisation in evaluation mode"
        )


def _trained_parameters(model: nn.Module, optimizer: DPOptimizer) -> str:
    """Which parameters the optimizer holds, in the words of `DPFineTuner`."""
    held = {id(p): p.numel() for p in optimizer.params}
    names = {name: p for name, p in model.named_parameters() if id(p) in held}
    if len(names) != len(held):
        raise InputError(f"model: the optimizer holds parameters that are not this model's; {SAME_CALL}")
    sizes = [p.numel() for p in model.parameters()]
    chosen = "all" if len(names) == len(sizes) else ", ".join(names)
    return f"{chosen}: {sum(held.values()):,} of {sum(sizes):,} parameters"


def _clipping(optimizer: Any) -> str:
    """The clipping rule as in `safexplain.dp`; Opacus adds 1e-6 to each norm."""
    bounds = getattr(optimizer, "max_grad_norms", None)
    if bounds is None:
        return repr(FlatClipping(float(optimizer.max_grad_norm)))
    if len(set(map(float, bounds))) == 1:
        return repr(PerLayerClipping(float(optimizer.max_grad_norm)))
    return f"each parameter tensor to a separate bound, together at most {float(optimizer.max_grad_norm):g}"
