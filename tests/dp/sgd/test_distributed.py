"""Two processes fine-tune as one does: the same batches, each record once, the noise of the first, one guarantee."""

from pathlib import Path

import pytest
import torch
from opacus.optimizers import DistributedDPOptimizer
from per_sample_oracle import C, build, prepare
from torch import Tensor, nn

from safexplain._progress import silent
from safexplain.dp import DPFineTuner
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.dp.sgd.steps import DistributedClippedOptimizer

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def fine_tuned(folder: str, rank: int = 0) -> dict[str, list[Tensor]]:
    """Parameters by mode, after training with a checkpoint and from weights that the first process alone decides."""
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    options = {"epsilon": 8.0, "delta": 1e-5, "steps": 30, "batch_size": 4, "lr": 0.05, "seed": 3, "piece": 2}
    ends = {}
    for mode in ("hooks", "ghost"):
        path = Path(folder) / f"{mode}.pt"
        data = x, (x[:, 0] > 0).long()
        tuner = DPFineTuner(network(rank), data, **options, mode=mode, checkpoint=path, progress=silent)
        done = tuner.fit()
        assert done.statement.records == 40
        ends[mode] = [p.detach() for p in done.model.parameters()]
    return ends


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(fine_tuned(folder, rank), f"{folder}/end{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_two_processes_train_as_one_does(tmp_path):
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"end{rank}.pt", weights_only=True) for rank in (0, 1))
    (tmp_path / "alone").mkdir()
    for mode, alone in fine_tuned(str(tmp_path / "alone")).items():
        for a, b, c, start in zip(first[mode], second[mode], alone, network().parameters(), strict=True):
            assert torch.equal(a, b)
            assert torch.allclose(a, c, atol=1e-5)
            assert not torch.allclose(a, start, atol=1e-3)


def test_the_optimizer_is_opacus_own_with_its_noise_on_the_first_process(tmp_path):
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
