"""Random numbers that nobody can predict: for the noise and the batches that a privacy guarantee rests on.

Whoever can tell the state of a generator from some of its numbers takes the noise off the rest. NumPy's and torch's
generators (PCG64, Mersenne Twister, Philox) are fast and are not made against that. Here bits come from the operating
system: few of them directly, many as the keystream of AES-256 in counter mode (NIST SP 800-38A; the core of the
generator CTR_DRBG of SP 800-90A) under a key that is drawn for each request and forgotten with it. So there is no state
that could be read afterwards, copied by a fork, pickled, restored with a machine's snapshot, or shared by threads.

    SecureGenerator   the part of `numpy.random.Generator` that mechanisms use, on such bits
    KeyedGenerator    the same as a function of a secret key: every process that knows it draws the same

Whole numbers are exact. Real numbers are as exact as float64 allows: uniform ones are multiples of 2^-53; logarithms
are taken of 63 bits, so that normal numbers (Box and Muller 1958, A Note on the Generation of Random Normal Deviates)
reach 9.4 standard deviations, and exponential ones 44 means.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Size = int | tuple[int, ...] | None

GENERATOR = "the operating system's cryptographic generator and AES-256 in counter mode under fresh keys from it"
"""What a guarantee says of its randomness."""

ENTROPY: ContextVar[Callable[[int], bytes]] = ContextVar("entropy", default=os.urandom)
"""Where all bits come from. An audit that repeats a training step by step puts a seeded source here, for itself alone
(`safexplain.audit.canaries.white_box`)."""

KEY_BYTES = 32
DIRECT = 1024
"""Bytes up to which the operating system is as fast as a cipher under a new key."""

_ZEROS = bytes(1 << 18)
_POSITIVE = np.int64(2**63 - 1)

_ROWS = 1 << 14
"""Numbers that are made together, in a processor's cache."""


def fresh_key() -> bytes:
    """256 bits from the operating system."""
    return ENTROPY.get()(KEY_BYTES)


def _cipher(key: bytes, start: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()


def _keystream(cipher: CipherContext, count: int) -> bytearray:
    out = bytearray(count)
    view = memoryview(out)
    for first in range(0, count, len(_ZEROS)):
        part = view[first : first + len(_ZEROS)]
        cipher.update_into(_ZEROS[: len(part)] if len(part) < len(_ZEROS) else _ZEROS, part)
    return out


class SecureGenerator:
    """Cryptographically secure random numbers; arguments and shapes as for `numpy.random.Generator`.

    It holds nothing: copies, pickles, forks and threads all draw numbers of their own.
    """

    def bytes(self, count: int) -> bytearray:
        """So many random bytes."""
        direct = count <= DIRECT
        return bytearray(ENTROPY.get()(count)) if direct else _keystream(_cipher(fresh_key(), bytes(16)), count)

    def words(self, count: int) -> Ints:
        """(count,) whole numbers of 64 random bits each, sign included."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.int64)

    def random(self, size: Size = None) -> Any:
        """Uniform multiples of 2^-53 in [0, 1)."""
        return _in_pieces(size, lambda count: ((self.words(count) & _POSITIVE) >> 10).astype(np.float64) * 2.0**-53)

    def integers(self, low: int, high: ArrayLike, size: Size = None) -> Any:
        """Whole numbers from `low` to below `high`, each exactly as likely as any other; `high` may be an array.

        They are remainders of numbers of 63 bits, which are drawn again where they lie in the last, incomplete round.
        """
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
        """(n,) remainders of random numbers by `ends`, and whether all of the multiple's round is below 2^63."""
        drawn = self.words(len(ends)) & _POSITIVE
        out = drawn % ends
        return out, (drawn - out) + (ends - 1) >= 0  # beyond 2^63 sums turn negative

    def standard_exponential(self, size: Size = None) -> Any:
        """Minus the logarithms of uniform numbers of 63 bits."""
        return _in_pieces(size, lambda count: -np.log(open_unit(self.words(count))))

    def laplace(self, loc: float = 0.0, scale: float = 1.0, size: Size = None) -> Any:
        """Real numbers with two-sided exponential noise; for noise on a grid see `discrete_laplace`."""
        return loc + scale * (self.standard_exponential(size) - self.standard_exponential(size))

    def gamma(self, shape: int, scale: float = 1.0, size: Size = None) -> Any:
        """Of a whole-number shape: sums of so many exponential numbers."""
        each = self.standard_exponential((*((size,) if isinstance(size, int) else size or ()), shape))
        return scale * each.sum(axis=-1)

    def standard_normal(self, size: Size = None) -> Any:
        """Independent numbers from the standard normal distribution."""
        return _in_pieces(size, lambda count: box_muller(self.words(count + count % 2))[:count])

    def choice(self, a: ArrayLike, size: int, replace: bool = False) -> NDArray[Any]:
        """A uniformly random subset of `a` of so many elements, in random order."""
        values = np.asarray(a)
        if replace or not 0 <= size <= len(values):
            raise ValueError(f"choice: expected a size of at most {len(values)} without replacement, got {size}")
        chosen: NDArray[Any] = values[np.argsort(self.words(len(values)), kind="stable")[:size]]
        return chosen


class KeyedGenerator(SecureGenerator):
    """The numbers of a key and of one of its streams: the same wherever the key is known, and secret as long as it is.

    One for each use and thread: it goes on where it stopped. It is not pickled.

    Args:
        key: 16 or 32 bytes.
        step: number of the stream, from 0 to 2^48 - 1.
        part: a second number of it, from 0 to 2^16 - 1.
    """

    def __init__(self, key: bytes, step: int = 0, part: int = 0) -> None:
        self._cipher = _cipher(key, part.to_bytes(2, "big") + step.to_bytes(6, "big") + bytes(8))

    def bytes(self, count: int) -> bytearray:
        """The next bytes of the stream."""
        return _keystream(self._cipher, count)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyedGenerator is not pickled or copied, as its key must stay secret")


Randomness = np.random.Generator | SecureGenerator
"""What mechanisms draw from: NumPy's where a seed makes them repeatable."""


def float_safe_normal(rng: Randomness, shape: tuple[int, ...]) -> Floats:
    """Standard normal numbers, each from four, so that the gaps between floating-point numbers do not tell the noise.

    Holohan and Braghin 2021, arXiv 2107.10138, section 5.1, with n = 2.
    """
    out: Floats = rng.standard_normal((4, *shape)).sum(axis=0) / 2
    return out


def open_unit(words: Ints) -> Floats:
    """Uniform numbers in (0, 1], exact near 0, of 63 bits each."""
    return np.asarray(((words & _POSITIVE) + 0.5) * 2.0**-63, np.float64)


def box_muller(words: Ints) -> Floats:
    """As many independent standard normal numbers as there are words, which are an even number of them."""
    half = len(words) // 2
    radius, angle = np.sqrt(-2 * np.log(open_unit(words[:half]))), words[half:] * (math.pi * 2.0**-63)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def _in_pieces(size: Size, draw: Callable[[int], Floats]) -> Any:
    """Numbers of the shape that is asked for; for None a single one."""
    count = 1 if size is None else math.prod(size) if isinstance(size, tuple) else size
    if count <= _ROWS:
        out = draw(count)
    else:
        out = np.empty(count)
        for first in range(0, count, _ROWS):
            out[first : first + _ROWS] = draw(min(_ROWS, count - first))
    return out[0].item() if size is None else out.reshape(size)
