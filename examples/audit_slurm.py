"""Reference models trained and explained by SLURM jobs, from a login node; no sbatch script is needed.

python audit_slurm.py           jobs with a GPU each; then `safexplain attack signals.npz` judges
python audit_slurm.py local     the same with processes of this machine as jobs; "debug": in this process
"""

import sys
from pathlib import Path

import submitit
from sklearn.datasets import load_digits
from torch import Tensor, nn

from safexplain import HardenedSaliency, Hardening
from safexplain.audit import Population, Recipe, collect_signals, train_shadows

SHARED = Path("shared")  # a folder that the login node and all nodes see under this name: make it absolute
RECIPE = Recipe(lr=3e-3, epochs=10, batch_size=32)
RELEASED = Hardening.recommended()


def build(seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return HardenedSaliency(model, hardening=RELEASED).attribute(x, target=target)


def main(cluster: str = "slurm") -> None:
    executor = submitit.AutoExecutor(SHARED / "jobs", cluster=cluster)
    executor.update_parameters(
        name="references",
        timeout_min=240,
        mem_gb=16,
        cpus_per_task=4,
        slurm_partition="gpu",
        slurm_gres="gpu:1",
        slurm_setup=["export OMP_NUM_THREADS=4"],
    )
    x, y = load_digits(return_X_y=True)
    pool = Population.of(x[:400] / 16, y[:400])
    models = train_shadows(
        pool,
        RECIPE,
        build=build,
        models=9,
        device="cuda" if cluster == "slurm" else "cpu",
        cache=SHARED / "models",
        executor=executor,
    )
    signals = collect_signals(models, pool, explain, patience=(1, 5), targets=(0,), executor=executor)
    signals.save("signals.npz")
    print(f"{len(models.models)} models, {len(signals.values)} signals about {len(pool)} examples")


if __name__ == "__main__":
    main(*sys.argv[1:])
