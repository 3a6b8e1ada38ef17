"""Opacus' optimizers with any `Clipping`, exact factors, empty batches and examples without a finite gradient.

`safexplain.dp.sgd.steps` makes and calls them. In mode ghost it hands over sums that are clipped already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import Tensor
from torch.optim import Optimizer

from safexplain._secure_random.generators import SecureGenerator
from safexplain._validate import check_number
from safexplain.dp.sgd.clipping import Clipping, check_clipping, sample_norms
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
            raise ConfigurationError("the optimizer holds no parameter with requires_grad; nothing can be trained")
        self.clipping = clipping
        self.float_safe = float_safe
        self.generator = generator or SecureGenerator()
        self.skipped = 0

    @property
    def grad_samples(self) -> list[Tensor]:
        """Gradients of shape (batch, *p.shape) and of p's type; no rows where nothing was backpropagated."""
        return [p.new_zeros((0, *p.shape)) if p.grad_sample is None else p.grad_sample.to(p.dtype) for p in self.params]

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradient of every example in `grad_sample` to `summed_grad`; zeros where there is none.

        Raises:
            RefusedError: parameters have gradients of different examples.
        """
        self.add_clipped(self._clipped_sums(self.grad_samples))

    def _clipped_sums(self, gradients: list[Tensor]) -> list[Tensor | None]:
        """Clip and sum gradients of shape (batch, *p.shape) for each p of `params`; None where there are no rows."""
        rows = max(map(len, gradients))
        if any(len(g) not in (0, rows) for g in gradients):
            raise RefusedError(
                f"per-example gradients of {sorted({len(g) for g in gradients})} examples, by parameter, cannot be"
                " matched: a layer changes the number of rows; freeze it"
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
            p.grad = p.summed_grad + gaussian(p.summed_grad, std, self.generator, float_safe=self.float_safe)

    def scale_grad(self) -> None:
        """Divide by the expected batch size."""
        for p in self.params:
            p.grad /= self.expected_batch_size


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
