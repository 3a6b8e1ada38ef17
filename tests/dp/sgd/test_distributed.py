"""Two processes on the CPU take the steps that one process takes, with the noise of the first alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from opacus.optimizers import DistributedDPOptimizer
from per_sample_oracle import C, batch, build, loss, prepare, relative_error, trainable
from torch import Tensor, nn

from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.dp.sgd.steps import DistributedClippedOptimizer, make_step

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")

MODES = ["hooks", "ghost"]
BATCHES = [range(12), range(5), range(7, 9), range(0)]
"""Logical batches of row numbers; of the third, the second of two processes has none, of the last nobody."""


def part(rows: range, rank: int, world: int) -> list[int]:
    """Rows of one process of one or two."""
    return [r for r in rows if world == 1 or (3 <= r < 9) == (rank == 0)]


def train(mode: str, rank: int = 0, world: int = 1) -> list[Tensor]:
    """Parameters after steps of noise and clipped gradients on one process's part of each batch."""
    model, (x, y) = build("transformer"), batch(12)
    if rank > 0:
        nn.init.zeros_(model.head.weight)  # the first process's parameters replace these
    step = make_step(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        clipping=FlatClipping(C),
        noise_multiplier=0.1,
        expected_batch_size=6,
        loss=loss,
        mode=mode,
        generator=torch.Generator().manual_seed(4 + rank),
        distributed=world > 1,
    )
    for rows in BATCHES:
        mine = part(rows, rank, world)
        for piece in (mine[:2], mine[2:]):
            step.accumulate(x[piece], y[piece])
        step.step()
    step.close()
    return [p.detach() for p in trainable(model)]


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save({mode: train(mode, rank, world=2) for mode in MODES}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    start = [p.detach() for p in trainable(build("transformer"))]
    for mode in MODES:
        assert all(torch.equal(a, b) for a, b in zip(first[mode], second[mode], strict=True))
        alone = train(mode)
        assert relative_error(first[mode], alone) < 1e-6
        moved, together = ([b - a for a, b in zip(start, end, strict=True)] for end in (alone, first[mode]))
        assert relative_error(together, moved) < 1e-5
        assert relative_error([m / 2 for m in together], moved) > 0.1


def test_the_optimizer_is_opacus_own_with_its_noise_on_the_first_process(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        step = prepare(build("mlp"), FlatClipping(C), distributed=True, noise_multiplier=1.0)
        assert isinstance(step.optimizer, DistributedClippedOptimizer)
        assert isinstance(step.optimizer, DistributedDPOptimizer)
        for rank, noisy in ((0, True), (1, False)):
            step.optimizer.rank = rank
            step.optimizer.zero_grad()
            step.optimizer.clip_and_accumulate()
            step.optimizer.add_noise()
            assert all(bool(p.grad.any()) == noisy for p in step.optimizer.params)
    finally:
        torch.distributed.destroy_process_group()
