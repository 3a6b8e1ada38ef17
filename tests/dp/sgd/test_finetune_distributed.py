"""Two processes fine-tune as one does: the same batches, each record once, the noise of the first, one guarantee."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from safexplain._progress import silent
from safexplain.dp import DPFineTuner

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")

Q = 0.1


def parts() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(40, 5)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), x, (x[:, 0] > 0).long()


def fine_tuned(folder: str) -> list[Tensor]:
    """Parameters after training with a checkpoint, which the first process alone writes."""
    model, x, y = parts()
    options = {"epsilon": 8.0, "delta": 1e-5, "steps": 30, "batch_size": 40 * Q, "lr": 0.05, "seed": 3, "piece": 2}
    path = Path(folder) / "run.pt"

    tuner = DPFineTuner(model, (x, y), **options, checkpoint=path, progress=silent)
    done = tuner.fit()
    assert done.statement.records == 40
    return [p.detach() for p in done.model.parameters()]


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(fine_tuned(folder), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    (tmp_path / "alone").mkdir()
    start = [p.detach() for p in parts()[0].parameters()]
    for a, b, c, s in zip(first, second, fine_tuned(str(tmp_path / "alone")), start, strict=True):
        assert torch.equal(a, b)
        assert torch.allclose(a, c, atol=1e-5)
        assert not torch.allclose(a, s, atol=1e-3)
