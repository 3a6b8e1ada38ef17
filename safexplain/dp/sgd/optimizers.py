"""Opacus' optimizers with any `Clipping`, exact factors, empty batches and examples without a finite gradient.

`ClippedOptimizer` is a drop-in for `opacus.optimizers.DPOptimizer` in the modes hooks and functorch, in loops of one's
own (`loss.backward(); optimizer.step(); optimizer.zero_grad()`) and with `BatchMemoryManager`; mode ghost needs
`safexplain.dp.sgd.steps`, which hands over sums that are clipped already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from torch import Tensor
from torch.optim import Optimizer

from safexplain._secure_random.generators import SecureGenerator
from safexplain._validate import check_number
from safexplain.dp.sgd.clipping import Clipping, check_clipping
from safexplain.dp.sgd.sampling import Source, gaussian
from safexplain.errors import ConfigurationError, RefusedError


class ClippedOptimizer(DPOptimizer):  # type: ignore[misc]
    """Clips each example's gradient by a rule, sums, adds Gaussian noise of std noise_multiplier * bound, and steps.

    A step in which nothing was backpropagated, as an empty Poisson batch asks for, is one of noise only. An example
    whose gradient is not finite contributes nothing and is counted in `skipped`.

    Args:
        optimizer: any `torch.optim` optimizer; holds the trainable parameters.
        clipping: the rule.
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients, over the rule's bound.
        expected_batch_size: constant that the noisy sum is divided by (of a logical batch over all processes); never
            the size of the batch drawn, which is private.
        generator: draws the noise; None: a cryptographic one.
        float_safe: see `safexplain.dp.sgd.sampling.gaussian`.
        options: of `DPOptimizer`, such as `loss_reduction`; `max_grad_norm` and `secure_mode` have no effect.

    Attributes:
        skipped: number of examples so far whose gradient was not finite. It depends on the data and no noise is added
            to it: it is for whoever trains, and no guarantee covers its publication.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        clipping: Clipping,
        noise_multiplier: float,
        expected_batch_size: float | None,
        generator: Source | None = None,
        float_safe: bool = True,
        **options: Any,
    ) -> None:
        check_clipping(clipping)
        check_number("noise_multiplier", noise_multiplier, minimum=0.0)
        if expected_batch_size is not None:
            check_number("expected_batch_size", expected_batch_size, above=0.0)
        options.update(max_grad_norm=clipping.bound, secure_mode=False)
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            **options,
        )
        if not self.params:
            raise ConfigurationError("the optimizer holds no parameter with requires_grad; nothing can be trained")
        self.clipping = clipping
        self.float_safe = float_safe
        self.generator = generator or SecureGenerator()
        self.skipped = 0

    @property
    def accumulated_iterations(self) -> int:
        """Backward passes since the gradients were cleared, at least 1: Opacus' accountants count each as a batch."""
        kept = [p.grad_sample for p in self.params if p.grad_sample is not None]
        return max((len(g) if isinstance(g, list) else 1 for g in kept), default=1)

    def drop_accumulated(self) -> None:
        """Forget a logical batch that was left unfinished, as when a loop over its pieces was broken off."""
        for p in self.params:
            p.grad_sample = p.summed_grad = None
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradient of every example in `grad_sample` to `summed_grad`; zeros where there is none.

        Raises:
            RefusedError: a parameter has a gradient of the whole batch but none for each example, or other examples'.
            ValueError: gradients of the last step were not cleared.
        """
        gradients = self.grad_samples
        for p in self.params:
            _check_processed_flag(p.grad_sample)
        self.add_clipped(self._clipped_sums(gradients))
        for p in self.params:
            _mark_as_processed(p.grad_sample)

    def _clipped_sums(self, gradients: list[Tensor]) -> list[Tensor | None]:
        """Clip and sum gradients of shape (batch, *p.shape) for each p of `params`; None where there are no rows."""
        rows = max(map(len, gradients))
        if any(len(g) not in (0, rows) for g in gradients):
            raise RefusedError(
                f"per-example gradients of {sorted({len(g) for g in gradients})} examples, by parameter, cannot be"
                " matched: call step() and zero_grad() after each backward pass"
            )
        if rows == 0:
            return [None] * len(gradients)
        at = next(g.device for g in gradients if len(g))
        norms = torch.stack(
            [sample_norms(g).to(at) if len(g) else torch.zeros(rows, device=at) for g in gradients], dim=1
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
            _check_processed_flag(p.summed_grad)
            p.grad = p.summed_grad + gaussian(p.summed_grad, std, self.generator, float_safe=self.float_safe)
            _mark_as_processed(p.summed_grad)

    def _get_flat_grad_sample(self, p: Tensor) -> Tensor:
        """Gradients of shape (batch, *p.shape) and of p's type; no rows where nothing was backpropagated."""
        if not hasattr(p, "grad_sample"):
            raise ConfigurationError(
                f"a parameter of shape {tuple(p.shape)} has no per-example gradients: wrap the model that the optimizer"
                " belongs to (opacus.GradSampleModule), or use make_step"
            )
        if p.grad_sample is None:
            if p.grad is not None and p.grad.any():
                raise RefusedError(
                    f"a parameter of shape {tuple(p.shape)} has a gradient but no per-example gradients. Either the"
                    " gradients of the last step were not cleared (optimizer.zero_grad()), or the backward pass went"
                    " around Opacus' hooks (mode ghost needs make_step)"
                )
            return p.new_zeros((0, *p.shape))
        flat: Tensor = super()._get_flat_grad_sample(p)
        return flat.to(p.dtype)


class DistributedClippedOptimizer(DistributedDPOptimizer, ClippedOptimizer):  # type: ignore[misc]
    """`ClippedOptimizer` over the processes of torch.distributed, each with its own part of the logical batch.

    The sums of all processes are added up, with noise from the first one only. Every process must take every step, also
    where its part of a batch is empty, and `expected_batch_size` is that of the whole batch, as in one process.
    """

    def __init__(self, optimizer: Optimizer, *, clipping: Clipping, **options: Any) -> None:
        super().__init__(optimizer, clipping=clipping, **(options | {"max_grad_norm": clipping.bound}))

    def reduce_gradients(self) -> None:
        """Sum the gradients of all processes."""
        for p in self.params:
            torch.distributed.all_reduce(p.grad, op=torch.distributed.ReduceOp.SUM)


def sample_norms(gradients: Tensor) -> Tensor:
    """2-norms of shape (batch,) of gradients (batch, ...), summed in two levels: ten times as exact as in one."""
    gradients = gradients.to(torch.promote_types(gradients.dtype, torch.float32))
    if gradients.dim() > 2:
        gradients = torch.linalg.vector_norm(gradients.flatten(2), dim=2)
    norms: Tensor = torch.linalg.vector_norm(gradients.reshape(len(gradients), -1), dim=1)
    return norms
