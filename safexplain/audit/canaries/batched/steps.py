"""The steps of DP-SGD or DP-Adam for some runs at once, with a canary in each.

A step sums the clipped gradients of the batch, adds what the canary contributes to the runs whose coin puts it in, adds
noise, divides by the expected batch size, and updates (arXiv 2511.21804, Algorithm 1, lines 11 to 21).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from safexplain.audit.canaries.batched.canary_gradients import Inserted
from safexplain.audit.canaries.batched.networks import Network
from safexplain.audit.canaries.batched.sampling import Draws
from safexplain.dp.heads.head_step import Rows
from safexplain.dp.heads.recipe import HeadRecipe

__all__ = ["steps_of"]


def steps_of(
    network: Network,
    others: Rows,
    inserted: Inserted,
    recipe: HeadRecipe,
    noise_multiplier: float,
    theta: Tensor,
    draws: Draws,
    rows_at_once: int,
) -> Iterator[int]:
    """Train, stopping after each step.

    Args:
        network: the shape of the models.
        others: the records that all runs share, the canary's place left out.
        inserted: what stands there.
        recipe: of the training.
        noise_multiplier: standard deviation of the noise on the sum over the clipping bound.
        theta: (runs, P) where training starts, changed in place.
        draws: the randomness.
        rows_at_once: rows of a batch that are computed together, which bounds the memory.

    Yields:
        The number of the step that `theta` has just taken, from 1.
    """
    runs, records = len(theta), len(others.x)
    rows = _with(others, inserted, network.bias)
    update = recipe.make_update(theta)
    std = noise_multiplier * recipe.clipping.bound if recipe.clipping is not None else 0.0
    products = network.parameters // rows.x.shape[1]
    for step, (index, weight) in enumerate(draws.batches(runs, records, products), 1):
        coins = draws.coins(runs, inserted.canaries)
        if len(inserted.x):
            count = records if index is None else index.shape[-1]
            everyone = torch.ones(1, 1, dtype=torch.bool, device=theta.device) if weight is None else weight
            weight = torch.cat([everyone.expand(runs, count), inserted.weights(coins)], 1)
            if index is not None:
                extra = torch.arange(records, len(rows.x), device=index.device)
                index = torch.cat([index, extra.expand(*index.shape[:-1], -1)], -1)
        total = _clipped_sum(network, theta, rows, index, weight, recipe, rows_at_once)
        inserted.add(total, coins)
        if std:
            total.add_(draws.noise(theta, std))
        update(total.div_(recipe.expected_batch_size))
        yield step


def _clipped_sum(
    network: Network,
    theta: Tensor,
    rows: Rows,
    index: Tensor | None,
    weight: Tensor | None,
    recipe: HeadRecipe,
    at_once: int,
) -> Tensor:
    """(runs, P) sum over the batch, some rows after the others."""
    count, total = len(rows.x) if index is None else index.shape[-1], None
    for first in range(0, max(1, count), at_once):
        part = slice(first, first + at_once)
        some = Rows(rows.x[part], rows.labels[part], rows.norms[part]) if index is None else rows.take(index[..., part])
        found = network.clipped_sum(theta, some, None if weight is None else weight[:, part], recipe.clipping)
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


def _with(others: Rows, inserted: Inserted, bias: bool) -> Rows:
    """The inserted records behind the others."""
    if not len(inserted.x):
        return others
    new = Rows.of(inserted.x, inserted.y, bias=bias)
    pairs = ((others.x, new.x), (others.labels, new.labels), (others.norms, new.norms))
    return Rows(*(torch.cat(pair) for pair in pairs))
