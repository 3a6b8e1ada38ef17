"""Noise has the standard deviation, type and generator asked for, and seeds that cannot be tried one by one."""

from __future__ import annotations

import math

import pytest
import torch
from opacus.optimizers.optimizer import _generate_noise
from torch import Tensor

from safexplain.dp.sgd.sampling import fresh_generator, gaussian

N = 200_000


def has_std(noise: Tensor, std: float) -> bool:
    """Whether mean and variance are within 5 standard errors of a Gaussian's of this std."""
    z = noise.double().flatten() / std
    mean_error = abs(z.mean().item()) * math.sqrt(len(z))
    variance_error = abs(z.square().mean().item() - 1) * math.sqrt(len(z) / 2)
    return mean_error < 5 and variance_error < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("float_safe", [True, False])
def test_the_noise_has_its_std_and_no_other(dtype: torch.dtype, float_safe: bool) -> None:
    like = torch.empty(N, dtype=dtype)
    noise = gaussian(like, 0.3, torch.Generator().manual_seed(3), float_safe=float_safe)
    assert noise.dtype == dtype
    assert has_std(noise, 0.3)
    assert not has_std(noise, 0.3 * 1.01)
    assert not has_std(noise, 0.3 * 0.99)
    assert not has_std(noise / 2, 0.3)


def test_the_noise_is_gaussian_also_in_its_tails() -> None:
    noise = gaussian(torch.empty(N), 1.0, torch.Generator().manual_seed(3)).double()
    expected = N * math.erfc(3 / math.sqrt(2))
    assert abs((noise.abs() > 3).sum().item() - expected) < 5 * math.sqrt(expected)


def on_a_lattice(noise: Tensor) -> float:
    """Share of multiples of 2^-30: what is smaller in a sum in float64 would show through such noise."""
    multiples = noise * 2.0**30
    return (multiples == multiples.round()).double().mean().item()


def test_noise_on_float64_hides_all_digits_of_the_sum() -> None:
    like, g = torch.empty(1000, dtype=torch.float64), torch.Generator().manual_seed(0)
    assert on_a_lattice(gaussian(like, 1.0, g)) < 0.01
    assert on_a_lattice(gaussian(like, 1.0, g, float_safe=False)) < 0.01
    opacus_draws_in_float32 = _generate_noise(1.0, like, g, secure_mode=True)
    assert on_a_lattice(opacus_draws_in_float32) > 0.9


def test_noise_is_a_function_of_its_generator_alone() -> None:
    before = torch.get_rng_state()
    one, two = (gaussian(torch.empty(50), 1.0, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_noise_at_std_zero() -> None:
    assert torch.equal(gaussian(torch.ones(3), 0.0, torch.Generator()), torch.zeros(3))


def from_a_seed(generator: torch.Generator) -> bool:
    """Whether the generator's first numbers are those of its seed."""
    again = torch.Generator().manual_seed(generator.initial_seed())
    return torch.equal(torch.randn(20, generator=again), torch.randn(20, generator=generator))


def test_fresh_generators_hold_more_than_a_seed() -> None:
    seeded = torch.Generator()
    seeded.seed()
    assert from_a_seed(seeded)
    assert not from_a_seed(fresh_generator())
    drawn = [torch.randn(N, generator=fresh_generator()) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert all(has_std(noise, 1.0) for noise in drawn)


def test_a_seed_of_torch_on_the_cpu_has_32_bits() -> None:
    small, large = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7 + 2**32)
    assert torch.equal(torch.randn(20, generator=small), torch.randn(20, generator=large))


def test_a_fresh_generator_goes_on_from_its_saved_state() -> None:
    generator = fresh_generator()
    torch.randn(3, generator=generator)
    resumed = torch.Generator()
    resumed.set_state(generator.get_state())
    assert torch.equal(torch.randn(9, generator=generator), torch.randn(9, generator=resumed))


@pytest.mark.gpu
def test_noise_drawn_on_the_cpu_arrives_on_the_gpu() -> None:
    like = torch.empty(50, device="cuda")
    cpu = gaussian(torch.empty(50), 1.0, torch.Generator().manual_seed(5))
    assert torch.equal(gaussian(like, 1.0, torch.Generator().manual_seed(5)).cpu(), cpu)
    assert has_std(gaussian(torch.empty(N, device="cuda"), 2.0, fresh_generator("cuda")).cpu(), 2.0)
