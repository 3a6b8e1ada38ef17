"""What cryptographic noise costs: beside NumPy's and torch's generators, OpenDP's samplers, and in whole trainings.

Draws, each in the numbers that a mechanism asks for: normal numbers of float64; noise like a million parameters of
float32, four normal numbers to each; a Poisson batch of a million records; discrete Laplace noise of scale 2,000, which
OpenDP 0.16 draws as exactly (`make_laplace` on integers); the Gaussian noise of OpenDP is an exact discrete Gaussian,
ours floating-point numbers from four each. Trainings and answers: the same call without a seed, and with one, which
draws from the other generators.

    python -m audit.benchmarks.noise [--rounds 9] [--out FILE]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import nn

from safexplain._secure_random import SecureGenerator, discrete_laplace, float_safe_normal
from safexplain.dp import DPFineTuner, DPLogisticRegression, FlatClipping
from safexplain.dp.heads import HeadRecipe, train_heads
from safexplain.dp.sgd.sampling import PoissonSampler, gaussian
from safexplain.recourse import LaplaceScore

from ..shared.run import finish
from .harness import Benchmark, Call, Turns

Pair = tuple[str, Call, str, Call, int]
"""What is measured; what draws now and what it is compared with, by name; how often a round calls each."""

SCALE = 2000


def draws() -> dict[str, Pair]:
    """Numbers alone."""
    secure, plain = SecureGenerator(), np.random.default_rng(0)
    source, like = torch.Generator().manual_seed(0), torch.empty(1_000_000)
    scales = np.full(10_000, SCALE)
    secret, seeded = PoissonSampler(), PoissonSampler(0)
    pairs: dict[str, Pair] = {
        "a million normal numbers": (
            "cryptographic", lambda: secure.standard_normal(1_000_000),
            "NumPy's PCG64", lambda: plain.standard_normal(1_000_000), 1,
        ),
        "noise like a million float32": (
            "cryptographic", lambda: gaussian(like, 1.0, secure),
            "torch's Mersenne Twister", lambda: gaussian(like, 1.0, source), 1,
        ),
        "a Poisson batch of a million records": (
            "cryptographic", lambda: secret.batch(3, 1_000_000, 0.01),
            "NumPy's Philox", lambda: seeded.batch(3, 1_000_000, 0.01), 1,
        ),
        "10,000 discrete Laplace numbers": (
            "cryptographic", lambda: discrete_laplace(scales, secure),
            "NumPy's PCG64", lambda: discrete_laplace(scales, plain), 1,
        ),
        "one discrete Laplace number": (
            "cryptographic", lambda: discrete_laplace(scales[:1], secure),
            "NumPy's PCG64", lambda: discrete_laplace(scales[:1], plain), 100,
        ),
    }  # fmt: skip
    return pairs | by_opendp(secure, scales)


def by_opendp(secure: SecureGenerator, scales: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Pair]:
    """The same of OpenDP, where it is installed."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return {}
    dp.enable_features("contrib")
    many, one = [0] * len(scales), [0]
    laplace = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), scale=float(SCALE))
    real = dp.vector_domain(dp.atom_domain(T="f64", nan=False))
    normal = dp.m.make_gaussian(real, dp.l2_distance(T="f64"), scale=1.0)
    zeros = [0.0] * len(scales)
    return {
        "10,000 discrete Laplace numbers: OpenDP": (
            "cryptographic", lambda: discrete_laplace(scales, secure), "OpenDP", lambda: laplace(many), 1,
        ),
        "one discrete Laplace number: OpenDP": (
            "cryptographic", lambda: discrete_laplace(scales[:1], secure), "OpenDP", lambda: laplace(one), 100,
        ),
        "Gaussian noise on 10,000 numbers: OpenDP": (
            "cryptographic", lambda: float_safe_normal(secure, (10_000,)), "OpenDP", lambda: normal(zeros), 1,
        ),
    }  # fmt: skip


def whole() -> dict[str, Pair]:
    """Trainings and answers, as users call them."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 5000)
    x = rng.normal(size=(5000, 30)) + y[:, None]
    pairs: dict[str, Pair] = {}

    def add(name: str, call: Callable[[int | None], Any], times: int = 1) -> None:
        pairs[name] = ("no seed", lambda: call(None), "a seed", lambda: call(0), times)

    for mechanism in ("noisy-gd", "objective", "output"):
        options: dict[str, Any] = {"norm_bound": 8.0, "classes": [0, 1], "mechanism": mechanism}
        add(
            f"DPLogisticRegression, {mechanism}, 5,000 x 30",
            lambda seed, options=options: DPLogisticRegression(**options, random_state=seed).fit(x, y),
            3,
        )
    asked = {
        seed: LaplaceScore(norm_bound=8.0, public_weights=np.ones(30), random_state=seed).fit(x, y)
        for seed in (None, 0)
    }
    add("LaplaceScore, one answer", lambda seed: asked[seed].explain(x[:1], infeasible="mark"), 20)
    add("LaplaceScore, 1,000 answers", lambda seed: asked[seed].explain(x[:1000], infeasible="mark"), 2)
    features, labels = torch.randn(500, 768), torch.randint(0, 10, (500,))
    recipe = HeadRecipe(10, 100, 0.25, 125.0, FlatClipping(1.0), 0.1)
    add(
        "a head of 768 x 10 on fixed features, 100 steps",
        lambda seed: train_heads(
            features, labels, recipe, noise_multiplier=5.0,
            generator=None if seed is None else torch.Generator().manual_seed(seed),
        ),
    )  # fmt: skip
    images, kinds = torch.rand(2000, 1, 28, 28), torch.randint(0, 10, (2000,))
    for name, network in (("an MLP of 200,000 parameters", mlp), ("a CNN of 100,000 parameters", cnn)):
        add(
            f"DPFineTuner, {name}, 10 steps in batches of 128",
            lambda seed, network=network: DPFineTuner(
                network(), (images, kinds), epsilon=8.0, delta=1e-5, steps=10, batch_size=128, seed=seed,
                pretrained=False, progress=lambda *_: None,
            ).fit(),
        )  # fmt: skip
    return pairs


def mlp() -> nn.Module:
    """784 - 256 - 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 160), nn.ReLU(), nn.Linear(160, 10),
    )  # fmt: skip


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds of the processor a call, and ours over the other's."""
    results = {}
    for name, (draws_from, ours, beside, other, times) in (draws() | whole()).items():
        turns = Turns({"ours": ours, "other": other}, rounds, often={"ours": times, "other": times})
        results[name] = {
            "draws": draws_from,
            "beside": beside,
            "ms": turns.ms("ours", 4),
            "ms_beside": turns.ms("other", 4),
            "ratio": turns.ratio("ours", "other"),
        }
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; there is no target."""
    run = Benchmark("noise", __doc__, argv, rounds=9)
    options = run.options
    try:
        opendp = version("opendp")
    except PackageNotFoundError:
        opendp = None
    results = measure(options.rounds)
    return run.conclude({"cryptography": version("cryptography"), "opendp": opendp, "results": results}, {})


if __name__ == "__main__":
    finish(main)
