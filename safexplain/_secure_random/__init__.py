"""Unpredictable random numbers, for the noise and the batches that a privacy guarantee rests on.

From some numbers of NumPy's or torch's generators an attacker can learn their state, and subtract the noise of the
rest. Here, a few bits come from the operating system directly; many are the keystream of AES-256 in counter mode (NIST
SP 800-38A; the core of CTR_DRBG of SP 800-90A) under a key that is drawn for each request and then discarded.

Whole numbers are exact. Uniform real numbers are multiples of 2^-53; logarithms are taken of 63 bits, so normal numbers
(Box and Muller 1958, A Note on the Generation of Random Normal Deviates) reach 9.4 standard deviations, and exponential
ones 44 means.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Size = int | tuple[int, ...] | None

GENERATOR = "the operating system's cryptographic generator and AES-256 in counter mode under fresh keys from it"
"""How a guarantee describes its source of randomness."""

ENTROPY: ContextVar[Callable[[int], bytes]] = ContextVar("entropy", default=os.urandom)
"""The source of all bits. An audit that repeats a training step by step sets a seeded one in its own context
(`safexplain.audit.canaries.trainer`)."""

DIRECT = 1024  # bytes up to which the operating system is as fast as a cipher under a new key

_ZEROS = bytes(1 << 18)
_POSITIVE = np.int64(2**63 - 1)
_CHUNK = 1 << 14  # numbers that are computed together, so that they fit in a processor's cache


def fresh_key() -> bytes:
    """256 bits from the operating system."""
    return ENTROPY.get()(32)


def _cipher(key: bytes, start: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()


def _keystream(cipher: CipherContext, count: int) -> bytearray:
    out = bytearray(count)
    view = memoryview(out)
    for first in range(0, count, len(_ZEROS)):
        part = view[first : first + len(_ZEROS)]
        cipher.update_into(_ZEROS[: len(part)], part)
    return out


class SecureGenerator:
    """Cryptographically secure random numbers, with the arguments and shapes of `numpy.random.Generator`.

    It holds no state: copies, pickles, forks and threads all draw different numbers.
    """

    def bytes(self, count: int) -> bytearray:
        """`count` random bytes."""
        direct = count <= DIRECT
        return bytearray(ENTROPY.get()(count)) if direct else _keystream(_cipher(fresh_key(), bytes(16)), count)

    def words(self, count: int) -> Ints:
        """(count,) whole numbers of 64 random bits each, sign included."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.int64)

    def random(self, size: Size = None) -> Any:
        """Uniform multiples of 2^-53 in [0, 1)."""
        return _in_chunks(size, lambda count: ((self.words(count) & _POSITIVE) >> 10).astype(np.float64) * 2.0**-53)

    def integers(self, low: int, high: ArrayLike, size: Size = None) -> Any:
        """Exactly uniform whole numbers from `low` to below `high`, which may be an array: remainders of 63-bit
        numbers, of which those in the last, incomplete round are drawn again."""
        ends = np.asarray(high, dtype=np.int64) - low
        if size is not None:
            ends = np.broadcast_to(ends, size)
        if ends.size and ends.min() <= 0:
            raise ValueError("integers: expected low < high")
        flat = ends.reshape(-1)
        out, complete = self._remainders(flat)
        while not complete.all():
            again = np.flatnonzero(~complete)
            out[again], complete[again] = self._remainders(flat[again])
        return (out + low).reshape(ends.shape) if ends.shape else int(out[0]) + low

    def _remainders(self, ends: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """(n,) remainders by `ends`, and whether the round of each number lies wholly below 2^63."""
        drawn = self.words(len(ends)) & _POSITIVE
        out = drawn % ends
        return out, (drawn - out) + (ends - 1) >= 0  # beyond 2^63 sums turn negative

    def standard_exponential(self, size: Size = None) -> Any:
        """Minus the logarithms of uniform numbers of 63 bits."""
        return _in_chunks(size, lambda count: -np.log(open_unit(self.words(count))))

    def gamma(self, shape: int, scale: float = 1.0, size: Size = None) -> Any:
        """Gamma numbers of a whole-number shape: sums of `shape` exponential numbers."""
        each = self.standard_exponential((*((size,) if isinstance(size, int) else size or ()), shape))
        return scale * each.sum(axis=-1)

    def standard_normal(self, size: Size = None) -> Any:
        """Independent numbers from the standard normal distribution."""
        return _in_chunks(size, lambda count: box_muller(self.words(count + count % 2))[:count])

    def choice(self, a: ArrayLike, size: int, replace: bool = False) -> NDArray[Any]:
        """A uniformly random subset of `size` elements of `a`, in random order; `replace` must be False."""
        values = np.asarray(a)
        if replace or size > len(values):
            raise ValueError(f"choice: expected a size of at most {len(values)} without replacement, got {size}")
        chosen: NDArray[Any] = values[np.argsort(self.words(len(values)), kind="stable")[:size]]
        return chosen


class KeyedGenerator(SecureGenerator):
    """One stream of the random numbers of a key: reproducible by everyone who knows the key, and secret from others.

    Use one instance for each purpose and thread, as it continues where it stopped. It cannot be pickled.

    Args:
        key: 16 or 32 bytes.
        step: number of the stream, from 0 to 2^48 - 1.
        part: a second number of the stream, from 0 to 2^16 - 1.
    """

    def __init__(self, key: bytes, step: int = 0, part: int = 0) -> None:
        self._cipher = _cipher(key, part.to_bytes(2, "big") + step.to_bytes(6, "big") + bytes(8))

    def bytes(self, count: int) -> bytearray:
        """The next bytes of the stream."""
        return _keystream(self._cipher, count)


Randomness = np.random.Generator | SecureGenerator
"""Where mechanisms draw from; NumPy's generator where a seed makes the numbers repeatable."""


def float_safe_normal(rng: Randomness, shape: tuple[int, ...]) -> Floats:
    """Standard normal numbers, each made of four, so that gaps between floating-point numbers do not reveal the noise.

    Holohan and Braghin 2021, arXiv 2107.10138, section 5.1, with n = 2.
    """
    out: Floats = rng.standard_normal((4, *shape)).sum(axis=0) / 2
    return out


def open_unit(words: Ints) -> Floats:
    """Uniform numbers in (0, 1] of 63 bits each, exact near 0."""
    return np.asarray(((words & _POSITIVE) + 0.5) * 2.0**-63, np.float64)


def box_muller(words: Ints) -> Floats:
    """As many independent standard normal numbers as there are words; their number must be even."""
    half = len(words) // 2
    radius, angle = np.sqrt(-2 * np.log(open_unit(words[:half]))), words[half:] * (math.pi * 2.0**-63)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def _in_chunks(size: Size, draw: Callable[[int], Floats]) -> Any:
    """An array of this shape, drawn chunk by chunk; a single number for None."""
    out = np.empty(() if size is None else size)
    flat = out.reshape(-1)
    for first in range(0, len(flat), _CHUNK):
        flat[first : first + _CHUNK] = draw(min(_CHUNK, len(flat) - first))
    return out.item() if size is None else out


# --- discrete Laplace ------------------------------------------------------------------------------------------------
# Canonne, Kamath and Steinke 2020 (The Discrete Gaussian for Differential Privacy, arXiv 2004.00010, algorithms 1, 2).


def discrete_laplace(scale: Ints, rng: Randomness) -> Ints:
    """(n,) integers z with probability exactly proportional to exp(-|z| / scale); scale (n,) integers of at least 1.

    Algorithm 2: |z| = u + scale v, where u is uniform below `scale` and accepted with probability exp(-u / scale), and
    v is the number of successes in a row with probability exp(-1); a negative zero is drawn again.
    """
    out = np.zeros(len(scale), dtype=np.int64)
    missing = np.arange(len(scale))
    while len(missing):
        scales = scale[missing]
        low = rng.integers(0, scales)
        size = low + scales * _count_successes(len(missing), rng)
        negative = rng.integers(0, 2, len(missing)) == 1
        accepted = exp_coin(low, scales, rng) & ~(negative & (size == 0))
        out[missing[accepted]] = np.where(negative, -size, size)[accepted]
        missing = missing[~accepted]
    return out


def exp_coin(numerator: Ints, denominator: Ints, rng: Randomness) -> NDArray[np.bool_]:
    """(n,) bool, true with probability exactly exp(-numerator / denominator), where 0 <= numerator <= denominator.

    Algorithm 1: the number of the first failure among coins with probabilities x, x/2, x/3, ... is odd with probability
    exp(-x), the sum of (-x)^k / k!.
    """
    first_failure = np.ones(len(numerator), dtype=np.int64)
    undecided = np.ones(len(numerator), dtype=np.bool_)
    while undecided.any():
        at = np.flatnonzero(undecided)
        success = rng.integers(0, denominator[at] * first_failure[at]) < numerator[at]
        first_failure[at[success]] += 1
        undecided[at[~success]] = False
    return np.asarray(first_failure % 2 == 1)


def _count_successes(n: int, rng: Randomness) -> Ints:
    """(n,) successes of a coin of probability exp(-1) before its first failure."""
    count = np.zeros(n, dtype=np.int64)
    at = np.arange(n)
    while len(at):
        one = np.ones(len(at), dtype=np.int64)
        at = at[exp_coin(one, one, rng)]
        count[at] += 1
    return count
