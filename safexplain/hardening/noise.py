"""Keyed noise: the same query always gets the same noise, which cannot be computed without the key.

What it is made of, and how near it is to normal noise, stands in docs/api/hardening.md."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from safexplain.errors import ConfigurationTypeError, InputError, NoKeyWarning, WeakKeyWarning
from safexplain.hardening.clips import Amount, keep_amount

KEY_VARIABLE = "SAFEXPLAIN_NOISE_KEY"

SHORTEST_STRONG_KEY = 16
"""Bytes."""

SMALLEST = torch.finfo(torch.float32).tiny
"""The smallest normal number of float32: smaller magnitudes are explained and hashed as zero."""

STREAM = "aes256ctr-normal2x16-v3"
"""Version of the noise: part of each seed, and named by certificates; changed whenever the noise changes."""

UNIT = 2.0**-28

_DOMAIN = f"safexplain noise {STREAM}".encode()
_process_key: bytes | None = None


@dataclass(frozen=True)
class GaussianNoise:
    """Keyed Gaussian noise on every coordinate; see `safexplain.hardening.noise`.

    Args:
        std: standard deviation: a float in the units of the attribution, or `Relative` to the clip's scale.
        key: secret bytes (os.urandom(32)), not part of `repr`, equality or JSON; None: see `resolve_key`.

    Raises:
        ConfigurationError: std is negative or not finite, or the key is empty.
    """

    std: Amount
    key: bytes | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        keep_amount(self, "std")
        check_key(self.key)

    @property
    def stream(self) -> str:
        """Version of the noise, which certificates name."""
        return STREAM


def check_key(key: bytes | None) -> None:
    """ConfigurationTypeError unless `key` is None or non-empty bytes; warns if it is short enough to be guessed."""
    if key is None:
        return
    if not isinstance(key, bytes) or not key:
        kind = type(key).__name__  # not its value, which may be a secret
        raise ConfigurationTypeError(f"the noise key must be non-empty bytes, as os.urandom(32), got {kind}")
    if len(key) < SHORTEST_STRONG_KEY:
        warnings.warn(
            f"a noise key of {len(key)} bytes can be guessed, and the noise subtracted; use os.urandom(32)",
            WeakKeyWarning,
            stacklevel=4,
        )


def resolve_key(key: bytes | None) -> bytes:
    """The key, else that of the environment, else a random one for this process, with a warning."""
    global _process_key
    if key is not None:
        return key
    if from_environment := os.environ.get(KEY_VARIABLE):
        encoded = from_environment.encode()
        check_key(encoded)
        return encoded
    if _process_key is None:
        _process_key = os.urandom(32)
        warnings.warn(
            "no noise key: this process uses a random one. After a restart, or on another replica, the same query"
            " gets other noise, and averaging the answers removes it. Pass GaussianNoise(std, key=...) or set"
            f" {KEY_VARIABLE}.",
            NoKeyWarning,
            stacklevel=2,
        )
    return _process_key


def query_seeds(
    key: bytes,
    *,
    inputs: Tensor | tuple[Tensor, ...],
    target: Any = None,
    model_digest: bytes = b"",
    method: str = "",
    configuration: str = "",
) -> list[bytes]:
    """One 32-byte seed for each example, from the key and the query.

    Each example of the inputs, (batch, ...) each, is hashed as its float32 numbers in order (see `as_hashed`), without
    its shape and trailing zeros: if a model distinguishes shapes, `method` has to state the shape. `target` is as in
    Captum, `configuration` the text of the hardening without its key. InputError: different batch sizes.
    """
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = tensors[0].shape[0]
    if any(t.shape[0] != batch for t in tensors):
        raise InputError(f"inputs must share their first dimension, got {[tuple(t.shape) for t in tensors]}")
    secret = hashlib.blake2b(key, digest_size=64).digest()
    gmac = AESGCM(hashlib.blake2b(key=secret, digest_size=32, person=b"input numbers").digest())
    prefix = hashlib.blake2b(key=secret, digest_size=32)
    for part in (_DOMAIN, model_digest, method.encode(), configuration.encode()):
        _update(prefix, part)
    rows = [_numbers(t) for t in tensors]
    seeds = []
    for i, label in enumerate(targets_of(target, batch)):
        seed = prefix.copy()
        _update(seed, repr(label).encode())
        for numbers, exact in rows:
            _update(seed, _tag(gmac, numbers[i]))
            if exact is not None and (numbers[i] != exact[i]).any():  # whole numbers that float32 cannot tell apart
                _update(seed, b"int64" + _tag(gmac, exact[i]))
        seeds.append(seed.digest())
    return seeds


def as_hashed(tensor: Tensor) -> Tensor:
    """The numbers that the noise is a function of, in the tensor's own type: rounded to float32, and unsigned zero for
    magnitudes below `SMALLEST`. Whole numbers are not changed. An explainer of these numbers can never answer two
    queries that share their noise.

    >>> as_hashed(torch.tensor([1e-310, -0.0, 1.0 + 1e-12, 2.5], dtype=torch.float64)).tolist()
    [0.0, 0.0, 1.0, 2.5]
    """
    t = tensor.detach()
    if t.is_complex():
        return torch.view_as_complex(as_hashed(torch.view_as_real(t.resolve_conj())))
    if not t.is_floating_point():
        return t
    single = t.to(torch.float32)
    return torch.where(single.abs() < SMALLEST, 0.0, single).to(t.dtype)


def keyed_normal(seeds: list[bytes], d: int, purpose: bytes, like: Tensor) -> Tensor:
    """(len(seeds), d) keyed standard normal numbers of the type and on the device of `like`, on all the same."""
    words = _words(seeds, d, purpose).to(like.device).flatten()
    table = _table_on(like.device)
    sums = table.index_select(0, words & 0xFFFF).add_(table.index_select(0, (words >> 16).bitwise_and_(0xFFFF)))
    return sums.to(torch.float64 if like.dtype == torch.float64 else torch.float32).mul_(UNIT).view(len(seeds), d)


def _words(seeds: list[bytes], d: int, purpose: bytes) -> Tensor:
    """(len(seeds), d) integers of 32 bits by AES-256-CTR; half of the counter is the purpose."""
    start, zeros = hashlib.blake2b(purpose, digest_size=8).digest() + bytes(8), bytes(4 * d)
    stream = np.empty(4 * d * len(seeds) + 15, np.uint8)  # OpenSSL needs room for one more block
    view = memoryview(stream.data)
    for i, seed in enumerate(seeds):
        key = seed if len(seed) == 32 else hashlib.blake2b(seed, digest_size=32).digest()
        encryptor = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor()
        encryptor.update_into(zeros, view[4 * d * i :])
    return torch.from_numpy(stream[: 4 * d * len(seeds)].view("<i4").astype(np.int32, copy=False)).view(len(seeds), d)


@lru_cache(maxsize=1)
def normal_table() -> NDArray[np.int32]:
    """65,536 quantiles of the normal distribution with variance 1/2, in units of 2^-28, in increasing order.

    No entry is nearer to the middle between two whole numbers than 3.8e-6, twenty times the error of `ndtri`, so every
    machine rounds to the same table.
    """
    upper = -ndtri((np.arange(32_768)[::-1] + 0.5) / 65_536)
    scaled = np.rint(upper / (UNIT * math.sqrt(2.0 * np.mean(upper**2)))).astype(np.int32)
    return np.concatenate([-scaled[::-1], scaled])


@lru_cache(maxsize=16)
def _table_on(device: torch.device) -> Tensor:
    return torch.from_numpy(normal_table()).to(device)


def _update(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _tag(gmac: AESGCM, row: NDArray[Any]) -> bytes:
    """Length and GMAC of a row up to its last nonzero number; two given rows of n bytes share it with probability at
    most n / 16 * 2^-128. The nonce is constant, because tags only enter a keyed hash."""
    if len(row) and row[-1] == 0:
        row = row[: int((row.nonzero()[0][-1:] + 1).sum())]
    tag: bytes = gmac.encrypt(bytes(12), b"", row.view(np.uint8))
    return row.nbytes.to_bytes(8, "little") + tag


def _numbers(tensor: Tensor) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """(batch, d) float32 numbers with one zero and one NaN; for whole numbers also the exact ones: float32 holds
    them only up to 2^24."""
    t = as_hashed(tensor)
    if t.is_complex():
        t = torch.view_as_real(t)
    t = t.reshape(len(t), math.prod(t.shape[1:])).contiguous().cpu()  # bytes are hashed in their order
    exact = None if t.is_floating_point() else t.to(torch.int64).numpy()
    single = t.to(torch.float32)
    if bool((nan := single.isnan()).any()):
        single = torch.where(nan, torch.nan, single)
    return single.numpy(), exact


def targets_of(target: Any, batch: int) -> Sequence[tuple[int, ...]]:
    """The target of each example as a tuple of ints."""
    if target is None:
        return [()] * batch
    if isinstance(target, Tensor | np.ndarray):
        target = target.tolist()
        if isinstance(target, list) and len(target) == 1:
            target = target[0]
    if isinstance(target, int | np.integer):
        return [(int(target),)] * batch
    if isinstance(target, tuple):
        return [tuple(int(t) for t in target)] * batch
    try:
        labels = [tuple(int(v) for v in t) if isinstance(t, tuple | list) else (int(t),) for t in target]
    except (TypeError, ValueError):
        raise InputError(f"target: expected class indices, as Captum takes them, got {target!r:.80}") from None
    if len(labels) != batch:
        raise InputError(f"expected one target for each of the {batch} examples, got {len(labels)}")
    return labels


def fill_zeros(rows: Tensor, seeds: list[bytes], *, whole_rows_only: bool) -> Tensor:
    """Put keyed random numbers where a clip could not hide a zero of (rows, d) numbers, which may change in place. It
    takes as long without zeros, which hides them too.

    `whole_rows_only`: True gives rows of zeros a random direction. False replaces each zero by a number smaller than
    all others, of random sign, or of the sign that all others share; sizes then count by their ranks only.
    """
    zero, d = rows == 0, rows.shape[1]
    if whole_rows_only:
        return torch.where(zero.all(1, keepdim=True), keyed_normal(seeds, d, b"direction", rows), rows)
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    smallest = torch.where(zero, torch.inf, rows.abs()).amin(1, keepdim=True)
    smallest = torch.where(smallest.isfinite(), smallest, 1.0)
    tiny = (smallest < torch.finfo(rows.dtype).tiny * 2.0**40) & zero.any(1, keepdim=True)
    if bool(tiny.any()):  # smaller ones would vanish; only ranks matter here
        grown = torch.where(tiny, 2.0**80, 1.0).to(rows.dtype)
        rows, smallest = rows * grown, smallest * grown
    single = (low < 0) != (high > 0)  # a sign, which zeros must share
    words = _words(seeds, d, b"direction").to(rows.device)
    drawn = words.bitwise_and_(torch.where(single, 2**31 - 1, -1).int()).bitwise_or_(1).to(rows.dtype)
    return torch.where(zero, drawn.mul_(smallest * torch.where(single & (low < 0), -(2.0**-35), 2.0**-35)), rows)
