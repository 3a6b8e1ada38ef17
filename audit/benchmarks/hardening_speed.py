"""Time and memory of hardening a batch of maps, of 3 x 32 x 32 and of 3 x 224 x 224 numbers, on one core or on a GPU.

Each round runs, in turn, the hardening, and ranks with noise as version 0.1 made them: `argsort`, ties on a second
path, BLAKE2b of the input, SHAKE-256 and the inverse normal distribution. Figures are the processor time of the fastest
round and the medians of the ratios of a round. Targets for ranks with noise: 5 ms for a map of 3 x 224 x 224, .07 ms
for one of 3 x 32 x 32, on a machine on which version 0.1 took 15.5 and .2; so the targets are .32 and .35 of its time,
measured beside it. Maps half of zeros and maps with ties may take 1.1 times as long as others. Memory is measured in a
process of its own: the highest resident size during one call, over that before it, in units of the attribution
(float32), the released result included, the worst of `--repeats` processes; the target is 2.

    python -m audit.benchmarks.hardening_speed [--rounds 15] [--batch 256] [--device cuda] [--out FILE]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from safexplain.hardening.clips import Levels, RangeClip, RankNorm, Relative, ThresholdMask, TopKMask, TopKSet, UnitNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise

from ..shared.run import finish
from .harness import Benchmark, Call, Turns, at_most, in_fresh_process, peak_mib

NOISE = GaussianNoise(Relative(0.3), key=bytes(32))
CONFIGURATIONS = {
    "recommended": Hardening.recommended(),
    "RankNorm + noise": Hardening(RankNorm(), None, NOISE),
    "balanced RankNorm + noise": Hardening(RankNorm(balanced_from=1024), None, NOISE),
    "RankNorm": Hardening(RankNorm()),
    "TopKSet": Hardening(TopKSet(k=4, fraction=0.1)),
    "Levels": Hardening(Levels(5)),
    "RangeClip + ThresholdMask + noise": Hardening(RangeClip(-0.1, 0.1), ThresholdMask(0.01), NOISE),
    "UnitNorm + TopKMask + noise": Hardening(UnitNorm(), TopKMask(0.1), NOISE),
}
SIDES = {32: 1, 224: 64}
"""Side of a map, and by how much smaller its batch is than `--batch`."""

OF_VERSION_01 = {32: 0.35, 224: 0.32}
ZEROS_AND_TIES, MEMORY = 1.1, 2.0


def batch(n: int, side: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, attributions and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, side, side, generator=generator)
    maps = 0.1 * torch.randn(n, 3, side, side, generator=generator) ** 3
    return x.to(device), maps.to(device), torch.arange(n) % 10


def former(attributions: Tensor, x: Tensor) -> Tensor:
    """`RankNorm` and noise as in version 0.1."""
    rows = attributions.flatten(1).cpu()
    n, d = rows.shape
    profile = RankNorm().profile(d)
    keys = rows.abs().numpy()
    order = np.argsort(keys, axis=1)
    ordered = np.take_along_axis(keys, order, 1)
    values = profile.float().expand(n, d).clone()
    tied = torch.from_numpy((ordered[:, 1:] == ordered[:, :-1]).any(1))
    if bool(tied.any()):
        at, new = torch.arange(d), torch.ones(int(tied.sum()), d, dtype=torch.bool)
        new[:, 1:] = torch.from_numpy(ordered[:, 1:] != ordered[:, :-1])[tied]
        first = torch.where(new, at, 0).cummax(1).values
        last = torch.where(torch.cat([new[:, 1:], torch.ones_like(new[:, :1])], 1), at, d).flip(1).cummin(1)
        total = torch.cat([profile.new_zeros(1), profile.cumsum(0)])
        end = last.values.flip(1) + 1
        values[tied] = ((total[end] - total[first]) / (end - first)).float()
    released = torch.empty_like(rows).scatter_(1, torch.from_numpy(order), values).copysign_(rows)
    std = NOISE.std.factor / d**0.5 if isinstance(NOISE.std, Relative) else NOISE.std
    inputs = x.flatten(1).cpu().numpy()
    for row, numbers in zip(released, inputs, strict=True):
        seed = hashlib.blake2b(numbers.tobytes(), key=bytes(32), digest_size=32).digest()
        words = np.frombuffer(hashlib.shake_256(b"noise" + seed).digest(4 * d), dtype="<u4")
        row += std * torch.from_numpy(ndtri((words + 0.5) * 2.0**-32)).float()
    step = 2.0 ** np.floor(np.log2(std / 16))
    return (released / step).round_().mul_(step).view_as(attributions).to(attributions.device)


def measure(name: str, n: int, side: int, rounds: int, device: str) -> dict[str, Any]:
    """Milliseconds of a map, and the ratios to the other version, and of zeros and ties to other maps."""
    x, maps, target = batch(n, side, device)
    hardening = CONFIGURATIONS[name]
    zeros, ties = maps.clamp_min(0.0), (40 * maps).round()
    calls: dict[str, Call] = {
        "plain": lambda: hardening(maps, inputs=x, target=target),
        "zeros": lambda: hardening(zeros, inputs=x, target=target),
        "ties": lambda: hardening(ties, inputs=x, target=target),
        "former": lambda: former(maps, x),
    }
    turns = Turns(calls, rounds, device=device)
    return {
        "maps": n,
        "ms_a_map_shortest": round(turns.shortest_ms("plain", 6) / n, 4),
        "ms_a_map_median": round(turns.ms("plain", 6) / n, 4),
        "ms_a_map_of_version_0.1_shortest": round(turns.shortest_ms("former", 6) / n, 4),
        "ratio_to_version_0.1": turns.ratio("plain", "former"),
        "ratio_of_zeros": turns.ratio("zeros", "plain"),
        "ratio_of_ties": turns.ratio("ties", "plain"),
    }


def memory_of_one_call(name: str, n: int, side: int, device: str) -> dict[str, float] | None:
    """Highest memory during one call over that before it, as a multiple of the attribution; on a CPU on Linux only."""
    x, maps, target = batch(n, side, device)
    hardening = CONFIGURATIONS[name]
    hardening(maps[:2], inputs=x[:2], target=target[:2])
    extra = peak_mib(lambda: hardening(maps, inputs=x, target=target), device)
    size = maps.numel() * maps.element_size() / 2**20
    if extra is None:
        return None
    return {"attribution_mib": round(size, 2), "peak_extra_mib": extra, "multiple": round(extra / size, 2)}


def memory(name: str, n: int, side: int, device: str, repeats: int) -> dict[str, float] | None:
    """`memory_of_one_call` in fresh processes, the worst of them."""
    found = [in_fresh_process(memory_of_one_call, name, n, side, device) for _ in range(repeats)]
    return max(filter(None, found), key=lambda f: f["multiple"], default=None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when all targets are met, 1 otherwise."""
    run = Benchmark(
        "hardening_speed",
        __doc__,
        argv,
        rounds=15,
        batch={"type": int, "default": 256, "help": "maps of 3 x 32 x 32; of 3 x 224 x 224, a 64th"},
        repeats={"type": int, "default": 3, "help": "processes in which memory is measured"},
    )
    options = run.options
    if options.quick:
        options.batch, options.repeats = 16, 1
    results: dict[str, Any] = {}
    for name in CONFIGURATIONS:
        results[name] = {
            str(side): measure(name, max(1, options.batch // less), side, options.rounds, options.device)
            for side, less in SIDES.items()
        }
        results[name]["memory"] = memory(name, options.batch, 32, options.device, options.repeats)
    noisy = [r for name, r in results.items() if name.endswith("RankNorm + noise")]
    of_zeros_and_ties = max(r[str(side)][f"ratio_of_{w}"] for r in noisy for side in SIDES for w in ("zeros", "ties"))
    targets = {"zeros and ties, over other maps": at_most(ZEROS_AND_TIES, of_zeros_and_ties)}
    for side, target in OF_VERSION_01.items():
        worst = max(r[str(side)]["ratio_to_version_0.1"] for r in noisy)
        targets[f"3 x {side} x {side}, over version 0.1"] = at_most(target, worst)
    if multiples := [r["memory"]["multiple"] for r in results.values() if r["memory"]]:
        targets["memory, in attributions"] = at_most(MEMORY, max(multiples))
    hardenings = {name: hardening.to_dict() for name, hardening in CONFIGURATIONS.items()}
    return run.conclude({"results": results, "hardenings": hardenings}, targets)


if __name__ == "__main__":
    finish(main)
