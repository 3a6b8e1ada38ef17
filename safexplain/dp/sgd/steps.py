"""Steps of DP-SGD by Opacus with one interface in every mode, and the privacy statement of another loop with Opacus.

| mode | gradients of single examples | clipping |
|---|---|---|
| "hooks" | computed for one piece, by Opacus' rules for each layer | all rules |
| "functorch" | computed by `torch.func.vmap`, for any layer | all rules |
| "ghost" | only their norms; a second backward pass sums the clipped ones | one factor per example: not per layer |
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, ClassVar, cast, get_args

import opacus
import torch
from opacus import PrivacyEngine
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import AbstractGradSampleModule
from opacus.grad_sample.grad_sample_module import GradSampleHooks
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.module_utils import trainable_modules
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from safexplain._digest import weights_digest
from safexplain._privacy_loss import Steps, check_delta
from safexplain._secure_random import SecureGenerator
from safexplain._validate import check_number
from safexplain.dp.models.prepare import Mode, check_loss_shape
from safexplain.dp.models.replacements import GhostHooks, is_pinned
from safexplain.dp.sgd.clipping import Clipping, FlatClipping, PerLayerClipping, check_clipping, sample_norms
from safexplain.dp.sgd.sampling import Inputs, Loss, Source, gaussian, mean_gradients
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement

MECHANISM = (
    "DP-SGD: clipped gradients of Poisson batches, summed, with Gaussian noise (Abadi et al. 2016, arXiv 1607.00133)"
)


class PerSampleStep(ABC):
    """Steps of DP-SGD on a model; made by `make_step`.

    Opacus' hooks are active only during `accumulate`, so between calls the model can be evaluated and saved as usual.
    If a trainable parameter is also used outside its module's forward (a weight tied by hand), Opacus does not split
    those gradients, and this is not detected.
    """

    _hook_result: ClassVar[str]
    """Attribute of a parameter in which the hooks leave its gradients or norms by example."""

    def __init__(self, forward: nn.Module, hooks: Any, optimizer: ClippedOptimizer, loss: Loss) -> None:
        self._forward, self._hooks, self._loss = forward, hooks, loss
        self.optimizer = optimizer
        self._hooked = [m for m in hooks.iterate_submodules(forward) if any(True for _ in _direct_parameters(m))]
        self._smallest = [min(_direct_parameters(m), key=Tensor.numel) for m in self._hooked]
        self._batch_norms = [m for m in forward.modules() if isinstance(m, _BatchNorm)]
        hooks.disable_hooks()
        optimizer.zero_grad(set_to_none=True)

    def accumulate(self, x: Inputs, y: Tensor, owners: Tensor | None = None) -> Tensor:
        """Add the sum of these examples' clipped gradients to the logical batch; returns the losses (batch,), detached
        and not private.

        With `owners`, (batch,) the person of each example from 0 without gaps, the mean gradient of each person is
        clipped, and all their examples must be in this call. ConfigurationError: the loss or mode does not fit;
        RefusedError: a parameter got a gradient that cannot be split by example.
        """
        if len(y) == 0:
            return torch.empty(0, device=y.device)
        if in_eval := [type(m).__name__ for m in self._hooked if not m.training]:
            raise ConfigurationError(f"a trainable {in_eval[0]} is in evaluation mode; call model.train() first")
        if any(m.training or m.running_mean is None for m in self._batch_norms):
            raise ConfigurationError(
                "batch normalisation in training mode mixes the examples; replace it by nn.GroupNorm, or freeze it and"
                " call its .eval() after model.train()"
            )
        self._drop_gradients()
        with self._hooks_enabled():
            return self._add_clipped_sum(x, y, owners)

    def step(self) -> None:
        """Add noise, divide by the expected batch size, update, and clear; with an empty batch, noise alone."""
        self._drop_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Remove Opacus' hooks and attributes from the model."""
        self._hooks.cleanup()
        self._drop_activations()

    def _drop_activations(self) -> None:
        for _, module in trainable_modules(self._forward):
            for name in ("activations", "max_batch_len"):
                module.__dict__.pop(name, None)

    def _drop_gradients(self) -> None:
        self.optimizer.original_optimizer.zero_grad()

    @abstractmethod
    def _add_clipped_sum(self, x: Inputs, y: Tensor, owners: Tensor | None) -> Tensor:
        """Add the clipped sum of at least one example; return the losses, detached, of shape (batch,)."""

    def _losses(self, x: Inputs, y: Tensor) -> Tensor:
        losses = self._loss(self._forward(*x) if isinstance(x, tuple) else self._forward(x), y)
        check_loss_shape(losses, len(y))
        return losses

    def _run_hooks(self, losses: Tensor, *, retain_graph: bool = False) -> None:
        """Run the backward pass for its hooks alone."""
        gradients = torch.autograd.grad(losses.sum(), self._smallest, retain_graph=retain_graph, allow_unused=True)
        for module, gradient in zip(self._hooked, gradients, strict=True):
            if gradient is not None and any(self._is_missed(p) for p in _direct_parameters(module)):
                raise RefusedError(
                    f"a parameter of {type(module).__name__} is used outside its module's forward, where its gradient"
                    " cannot be split by example; call the module instead, or freeze the parameter"
                )

    def _is_missed(self, p: Any) -> bool:
        return getattr(p, self._hook_result) is None

    @contextmanager
    def _hooks_enabled(self) -> Iterator[None]:
        self._hooks.enable_hooks()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Full backward hook is firing")  # for first layers, harmless
                yield
        except BaseException:
            self._drop_activations()
            for p in self.optimizer.params:
                p._forward_counter, p.grad_sample = 0, None
                p.__dict__.pop("_current_grad_sample", None)
            raise
        finally:
            self._hooks.disable_hooks()


class HooksStep(PerSampleStep):
    """Modes hooks and functorch."""

    _hook_result = "grad_sample"

    def _add_clipped_sum(self, x: Inputs, y: Tensor, owners: Tensor | None) -> Tensor:
        losses = self._losses(x, y)
        self._run_hooks(losses)
        if owners is not None:
            for p in self.optimizer.params:
                if p.grad_sample is not None:
                    p.grad_sample = mean_gradients(p.grad_sample, owners)
        self.optimizer.clip_and_accumulate()
        for p in self.optimizer.params:
            p.grad_sample = None
        return losses.detach()


class GhostStep(PerSampleStep):
    """Mode ghost; if examples have no finite norm, which would spoil the second backward pass, the others run again."""

    _hook_result = "_norm_sample"

    def _add_clipped_sum(self, x: Inputs, y: Tensor, owners: Tensor | None) -> Tensor:
        if owners is not None:
            raise ConfigurationError(
                'mode: expected "hooks" for persons, got "ghost", which has norms of examples only'
            )
        losses = self._losses(x, y)
        first = losses.detach()
        while not (finite := (norms := self._norms(losses)).isfinite()).all():
            self.optimizer.skipped += int(len(y) - finite.sum())
            x, y = tuple(t[finite] for t in x) if isinstance(x, tuple) else x[finite], y[finite]
            if len(y) == 0:
                return first
            losses = self._losses(x, y)
        self._hooks.disable_hooks()
        factors = self.optimizer.clipping.factors(norms)
        params = self.optimizer.params
        sums = torch.autograd.grad((factors * losses).sum(), params, allow_unused=True)
        if any(g is not None and self._is_missed(p) for g, p in zip(sums, params, strict=True)):
            raise RefusedError("a parameter got a gradient outside its module's forward; freeze it")
        self.optimizer.add_clipped(sums)
        return first

    def _norms(self, losses: Tensor) -> Tensor:
        for p in self.optimizer.params:
            p._norm_sample = None
        self._run_hooks(losses, retain_graph=True)
        parts = [p._norm_sample.to(losses.device) for p in self.optimizer.params if not self._is_missed(p)]
        norms: Tensor = torch.linalg.vector_norm(torch.stack(parts, dim=1), dim=1)
        return norms


def _direct_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    return (p for p in module.parameters(recurse=False) if p.requires_grad)


def make_step(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    clipping: Clipping,
    noise_multiplier: float,
    expected_batch_size: float,
    loss: Loss,
    mode: Mode = "hooks",
    generator: Source | None = None,
    distributed: bool = False,
    float_safe: bool = True,
) -> PerSampleStep:
    """Prepare a model in training mode for steps of DP-SGD; `close` the result to restore the model.

    Exactly the parameters to train must require gradients, and be the optimizer's. With `distributed`, the logical
    batch is spread over the processes of torch.distributed, and the parameters of the first process are sent to all.
    """
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode: expected one of {', '.join(get_args(Mode))}, got {mode!r}")
    if mode == "ghost" and clipping.per_layer:
        raise ConfigurationError(
            f'{type(clipping).__name__} needs mode="hooks", because mode "ghost" has a single factor for each example'
        )
    kind = DistributedClippedOptimizer if distributed else ClippedOptimizer
    clipped = kind(
        optimizer,
        clipping=clipping,
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        generator=generator,
        float_safe=float_safe,
    )
    _check_model(model, clipped.params)
    forward = DifferentiallyPrivateDistributedDataParallel(model) if distributed else model
    if mode == "ghost":
        return GhostStep(forward, GhostHooks(forward, loss_reduction="sum"), clipped, loss)
    hooks = GradSampleHooks(forward, loss_reduction="sum", force_functorch=mode == "functorch")
    return HooksStep(forward, hooks, clipped, loss)


def _check_model(model: nn.Module, params: Sequence[nn.Parameter]) -> None:
    """Raise unless each example's gradient can be computed and the optimizer holds just the trainable parameters."""
    if narrow := sorted({str(p.dtype) for p in params if p.dtype not in (torch.float32, torch.float64)}):
        raise ConfigurationError(
            f"expected parameters in float32 or float64, got {', '.join(narrow)}, whose rounding breaks the clip bound;"
            " use model.float()"
        )
    if any(hasattr(p, "grad_sample") for p in params):
        raise ConfigurationError("the model is already prepared for per-example gradients; close() that step first")
    if errors := GradSampleHooks.validate(model, strict=False):
        raise ConfigurationError(
            f"the model has layers that mix the examples of a batch: {'; '.join(map(str, errors))}."
            " Replace BatchNorm by GroupNorm, or freeze the layer"
        )
    held, owned = {id(p) for p in params}, {id(p) for p in model.parameters() if p.requires_grad}
    if held != owned:
        raise ConfigurationError(
            f"expected an optimizer of exactly the model's trainable parameters, but {len(owned - held)} of them are"
            f" missing (freeze these: requires_grad_(False)) and {len(held - owned)} are not the model's (remove these)"
        )


# --- optimizers ------------------------------------------------------------------------------------------------------


class ClippedOptimizer(DPOptimizer):  # type: ignore[misc]
    """Clips each example's gradient, sums, adds Gaussian noise of std noise_multiplier * bound, and updates; also for
    empty batches.

    The noisy sum is divided by the expected size of a logical batch, never by that of the batch drawn, which is
    private. Examples without a finite gradient contribute nothing; no guarantee covers their number, `skipped`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        clipping: Clipping,
        noise_multiplier: float,
        expected_batch_size: float,
        generator: Source | None = None,
        float_safe: bool = True,
        **options: Any,
    ) -> None:
        check_clipping(clipping)
        check_number("noise_multiplier", noise_multiplier, minimum=0.0)
        check_number("expected_batch_size", expected_batch_size, above=0.0)
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            **(options | {"max_grad_norm": clipping.bound}),
        )
        if not self.params:
            raise ConfigurationError("the optimizer holds no trainable parameter; set requires_grad on some of them")
        self.clipping = clipping
        self.float_safe = float_safe
        self.generator = generator or SecureGenerator()
        self.skipped = 0

    @property
    def grad_samples(self) -> list[Tensor]:
        """Gradients of shape (batch, *p.shape) and p's type; without rows for unused parameters."""
        return [p.new_zeros((0, *p.shape)) if p.grad_sample is None else p.grad_sample.to(p.dtype) for p in self.params]

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients of all examples in `grad_sample` to `summed_grad`."""
        self.add_clipped(self._clipped_sums(self.grad_samples))

    def _clipped_sums(self, gradients: list[Tensor]) -> list[Tensor | None]:
        """Clip and sum gradients of shape (batch, *p.shape) for each p of `params`; None for those without rows."""
        rows = max(map(len, gradients))
        if any(len(g) not in (0, rows) for g in gradients):
            raise RefusedError(
                f"expected gradients of as many examples for all parameters, got those of"
                f" {sorted({len(g) for g in gradients})} examples: a layer changes the number of rows; freeze it"
            )
        if rows == 0:
            return [None] * len(gradients)
        device = next(g.device for g in gradients if len(g))
        norms = torch.stack(
            [sample_norms(g).to(device) if len(g) else torch.zeros(rows, device=device) for g in gradients], dim=1
        )
        if not self.clipping.per_layer:
            norms = torch.linalg.vector_norm(norms, dim=1, keepdim=True)
        finite = norms.isfinite().all(dim=1)
        if not finite.all():
            self.skipped += int(rows - finite.sum())
            if not finite.any():
                return [None] * len(gradients)
            norms, gradients = norms[finite], [g[finite.to(g.device)] if len(g) else g for g in gradients]
        factors = self.clipping.factors(norms if self.clipping.per_layer else norms[:, 0])
        columns = factors.reshape(len(norms), -1).T.expand(len(gradients), -1)
        return [
            (f.to(g) @ g.reshape(len(g), p.numel())).view_as(p) if len(g) else None
            for f, g, p in zip(columns, gradients, self.params, strict=True)
        ]

    def add_clipped(self, sums: Iterable[Tensor | None]) -> None:
        """Add sums of clipped gradients, one for each of `params`, to the logical batch; None adds zeros."""
        for p, new in zip(self.params, sums, strict=True):
            if p.summed_grad is None:
                p.summed_grad = torch.zeros_like(p) if new is None else new
            elif new is not None:
                p.summed_grad += new

    def add_noise(self) -> None:
        """Set `grad` to the sum of clipped gradients plus noise."""
        std = self.noise_multiplier * self.clipping.bound
        for p in self.params:
            p.grad = p.summed_grad + gaussian(p.summed_grad, std, self.generator, float_safe=self.float_safe)

    def scale_grad(self) -> None:
        """Divide by the expected batch size."""
        for p in self.params:
            p.grad /= self.expected_batch_size


class DistributedClippedOptimizer(DistributedDPOptimizer, ClippedOptimizer):  # type: ignore[misc]
    """`ClippedOptimizer` over the processes of torch.distributed, each with its own part of the logical batch; the
    noise comes from the first one."""

    def __init__(self, optimizer: Optimizer, *, clipping: Clipping, **options: Any) -> None:
        super().__init__(optimizer, clipping=clipping, **(options | {"max_grad_norm": clipping.bound}))

    def reduce_gradients(self) -> None:
        """Sum the gradients of all processes."""
        for p in self.params:
            torch.distributed.all_reduce(p.grad, op=torch.distributed.ReduceOp.SUM)


# --- the statement of a loop with Opacus ------------------------------------------------------------------------------


ACCOUNTANTS = (RDPAccountant, PRVAccountant, GaussianAccountant)
"""Those with a complete history: (noise multiplier, sample rate, steps)."""

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

    Epsilons are computed from the accountant's history. The statement assumes that the loop clips, draws and steps as
    Opacus does, and uses the records in no other way; `safexplain canaries` checks that.

    Args:
        privacy_engine: after the last step.
        model: the trained model, with or without Opacus' wrapper.
        optimizer: from `make_private`.
        loader: from `make_private` or from `BatchMemoryManager`.
        delta: smaller than one over the number of records.
        pretrained: whether the starting weights were trained on other data, then stated as unprotected.

    Raises:
        InputError: objects that are not from one `make_private`.
        ConfigurationError: an accountant or optimizer that is not Opacus' own, or a delta out of range.
        RefusedError: no step, batches that are not Poisson samples, adaptive clipping, or a layer that mixes records.

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
    """The model without Opacus' wrappers, hooks and attributes on the layers."""
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
    if type(accountant) not in ACCOUNTANTS:
        raise ConfigurationError(
            f"privacy_engine: expected the accountant rdp, prv or gdp of Opacus, got {type(accountant).__name__}, whose"
            f" history may mean something else; {STATE_BY_HAND}"
        )
    steps: dict[tuple[float, float], int] = {}
    for noise_multiplier, sample_rate, count in accountant.history:
        kind = float(noise_multiplier), float(sample_rate)
        steps[kind] = steps.get(kind, 0) + int(count)
    if not sum(steps.values()):
        raise RefusedError(
            "privacy_engine: its accountant has counted no step; train first, or load the history"
            " (PrivacyEngine.load_checkpoint)"
        )
    return tuple(Steps(s, q, n, "full-batch" if q == 1 else "poisson") for (s, q), n in steps.items())


def _check_optimizer(optimizer: DPOptimizer, accountant: Any) -> None:
    if isinstance(optimizer, AdaClipDPOptimizer):
        raise RefusedError(
            "optimizer: adaptive clipping estimates its bound from the records, which the history does not cover; train"
            ' with clipping="flat" or "per_layer"'
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
            "loader: expected Poisson samples, whose epsilon can be far too small for other batches (Chua et al. 2024,"
            " arXiv 2403.17673). Train with poisson_sampling=True, and pass the loader that make_private returned"
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
    """Raise if a layer mixes records; Opacus checks trainable layers only."""
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
