"""Steps of DP-SGD with one interface in every mode: `accumulate` pieces of a logical batch, then `step`.

`make_step` makes a `PerSampleStep` of a model, a `torch.optim` optimizer and a clipping rule.

| mode | gradients of single examples | clipping |
|---|---|---|
| "hooks" | computed for one piece, by Opacus' rules for each layer | all rules |
| "functorch" | computed by `torch.func.vmap`, for any layer | all rules |
| "ghost" | only their norms; a second backward pass sums the clipped ones | one factor per example: not per layer |

The optimizers extend Opacus' by any `Clipping`, exact factors, empty batches and examples without a finite gradient.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, get_args

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample.grad_sample_module import GradSampleHooks
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from opacus.utils.module_utils import trainable_modules
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from safexplain._secure_random import SecureGenerator
from safexplain._validate import check_number
from safexplain.dp.models.checks import Mode, check_loss_shape
from safexplain.dp.models.replacements import GhostHooks
from safexplain.dp.sgd.clipping import Clipping, check_clipping, sample_norms
from safexplain.dp.sgd.records import Inputs, Loss, mean_gradients
from safexplain.dp.sgd.sampling import Source, gaussian
from safexplain.errors import ConfigurationError, RefusedError


class PerSampleStep(ABC):
    """Steps of DP-SGD on a model; made by `make_step`.

    Opacus' hooks are active only during `accumulate`, so between calls the model can be evaluated and saved as usual.
    Every use of a trainable parameter must be inside its module's forward. If a parameter is also used elsewhere (a
    weight tied by hand), Opacus does not split those gradients, and this is not detected.
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
        """Run the forward pass and add the sum of these examples' clipped gradients to the logical batch.

        With `owners`, (batch,) the person of each example from 0 without gaps, the mean gradient of each person is
        clipped, and all their examples must be in this call. Returns the losses (batch,), detached and not private.

        Raises:
            ConfigurationError: the loss is not one number for each example, a trainable part of the model is in
                evaluation mode, or batch normalisation mixes the examples.
            RefusedError: a parameter got a gradient that cannot be split by example.
        """
        if len(y) == 0:
            return torch.empty(0, device=y.device)
        if in_eval := [type(m).__name__ for m in self._hooked if not m.training]:
            raise ConfigurationError(f"a trainable {in_eval[0]} is in evaluation mode; call model.train() first")
        if any(m.training or m.running_mean is None for m in self._batch_norms):
            raise ConfigurationError(
                "batch normalisation in training mode makes each output depend on all examples; replace it by"
                " nn.GroupNorm, or freeze it and call its .eval() after model.train()"
            )
        self._drop_gradients()
        with self._hooks_enabled():
            return self._add_clipped_sum(x, y, owners)

    def step(self) -> None:
        """Add noise once, divide by the expected batch size, update, and clear; with an empty batch, noise alone."""
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
        """Drop gradients of other backward passes, which do not belong to the sum."""
        self.optimizer.original_optimizer.zero_grad()

    @abstractmethod
    def _add_clipped_sum(self, x: Inputs, y: Tensor, owners: Tensor | None) -> Tensor:
        """Add the clipped sum of at least one example; return the losses, detached, of shape (batch,)."""

    def _losses(self, x: Inputs, y: Tensor) -> Tensor:
        losses = self._loss(self._forward(*x) if isinstance(x, tuple) else self._forward(x), y)
        check_loss_shape(losses, len(y))
        return losses

    def _run_hooks(self, losses: Tensor, *, retain_graph: bool = False) -> None:
        """Run the backward pass only for its hooks, without computing gradients of large parameters."""
        gradients = torch.autograd.grad(losses.sum(), self._smallest, retain_graph=retain_graph, allow_unused=True)
        for module, gradient in zip(self._hooked, gradients, strict=True):
            if gradient is not None and any(self._is_missed(p) for p in _direct_parameters(module)):
                raise RefusedError(
                    f"a parameter of {type(module).__name__} is used outside its module's forward, where its gradient"
                    " cannot be split by example; call the module instead, or freeze the parameter"
                )

    def _is_missed(self, p: Any) -> bool:
        """Whether the hooks computed nothing for a parameter in this backward pass."""
        return getattr(p, self._hook_result) is None

    @contextmanager
    def _hooks_enabled(self) -> Iterator[None]:
        """Enable the hooks; after an error, also remove what they left."""
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
    """Mode ghost. Examples without a finite norm would spoil the second backward pass, so the others are run again."""

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
        """Norms of shape (batch,) of whole gradients."""
        for p in self.optimizer.params:
            p._norm_sample = None
        self._run_hooks(losses, retain_graph=True)
        parts = [p._norm_sample.to(losses.device) for p in self.optimizer.params if not self._is_missed(p)]
        norms: Tensor = torch.linalg.vector_norm(torch.stack(parts, dim=1), dim=1)
        return norms


def _direct_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Trainable parameters of a module itself, not of its children."""
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
    """Prepare a model for steps of DP-SGD; `close` the result to restore the model.

    The model must be in training mode, and exactly the parameters to train must require gradients. `loss` returns
    losses of shape (batch,); for `mode` see the table of this module. Other arguments are as for `ClippedOptimizer`.
    With `distributed`, the logical batch is spread over the processes of torch.distributed, and the parameters of the
    first process are sent to all.

    Raises:
        ConfigurationError: options contradict each other, or the optimizer holds other parameters than the model's.
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
    """Clips each example's gradient, sums, adds Gaussian noise of std noise_multiplier * bound, and updates.

    An empty Poisson batch makes a step of noise alone. An example whose gradient is not finite contributes nothing and
    is counted in `skipped`.

    The noisy sum is divided by the expected size of a logical batch over all processes, never by the size of the batch
    drawn, which is private. `skipped` depends on the data without noise, so no guarantee covers it.
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
                "expected per-example gradients of the same number of examples for all parameters, got numbers of"
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
    """`ClippedOptimizer` over the processes of torch.distributed, each with its own part of the logical batch.

    The sums of all processes are added up, with noise from the first one only. Every process must take every step, even
    if its part of the batch is empty, and `expected_batch_size` is that of the whole batch, as in one process.
    """

    def __init__(self, optimizer: Optimizer, *, clipping: Clipping, **options: Any) -> None:
        super().__init__(optimizer, clipping=clipping, **(options | {"max_grad_norm": clipping.bound}))

    def reduce_gradients(self) -> None:
        """Sum the gradients of all processes."""
        for p in self.params:
            torch.distributed.all_reduce(p.grad, op=torch.distributed.ReduceOp.SUM)
