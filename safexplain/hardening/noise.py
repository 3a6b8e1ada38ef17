"""Keyed noise: the same query always meets the same noise, and nobody without the key can tell what it was.

Fresh noise on each call can be averaged away by asking again. Here the noise of one example is a function of

    (key, model digest, method, hardening configuration, the example's input numbers, its target)

and of nothing else: not of the batch around it, the process, the device, or the options that only re-estimate the same
quantity (`n_steps`, `n_samples`, ...). Numbers enter in one canonical form, so that no other way of writing them (a
type, a sign of zero, axes of size 1, zeros at the end) draws again. The function is a keyed BLAKE2b hash (RFC 7693) of
these fields, expanded with SHAKE-256 (FIPS 202) into 32-bit words, each mapped through the inverse normal distribution
function.

Keyed random values also fill exact zeros, which a clip to a fixed size could not hide.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from safexplain.errors import ConfigurationTypeError, InputError, NoKeyWarning, WeakKeyWarning
from safexplain.hardening.amounts import Amount, keep_amount

KEY_VARIABLE = "SAFEXPLAIN_NOISE_KEY"
"""Environment variable that supplies the noise key (as text) where the configuration carries none."""

SHORTEST_STRONG_KEY = 16
"""Bytes: a shorter key can be found by trying all of them."""

SMALLEST = torch.finfo(torch.float32).tiny
"""The smallest normal number of float32: what is nearer to zero is explained and hashed as zero."""

_DOMAIN = b"safexplain noise v2"
_process_key: bytes | None = None


@dataclass(frozen=True)
class GaussianNoise:
    """Keyed Gaussian noise on every coordinate; see `safexplain.hardening.noise` for what it is a function of.

    Args:
        std: standard deviation: a float in the units of the attribution, or `Relative` to the clip's scale.
        key: secret bytes (os.urandom(32)). None: the environment variable SAFEXPLAIN_NOISE_KEY, or else a key drawn by
            this process, with one warning. The key is a secret: it is not part of `repr`, equality or JSON.

    Raises:
        ConfigurationError: std is negative or not finite, or the key is empty.
    """

    std: Amount
    key: bytes | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        keep_amount(self, "std")
        check_key(self.key)


def check_key(key: bytes | None) -> None:
    """Raise unless `key` is None or non-empty bytes; warn when it is short enough to be guessed.

    Raises:
        ConfigurationTypeError: the key is not bytes, or is empty.
    """
    if key is None:
        return
    if not isinstance(key, bytes) or not key:
        raise ConfigurationTypeError(
            f"the noise key must be non-empty bytes, got {'empty bytes' if key == b'' else type(key).__name__};"
            " make one with os.urandom(32) and keep it secret"
        )
    if len(key) < SHORTEST_STRONG_KEY:
        warnings.warn(
            f"a noise key of {len(key)} bytes can be guessed, and whoever knows it subtracts the noise;"
            " use os.urandom(32)",
            WeakKeyWarning,
            stacklevel=4,
        )


def resolve_key(key: bytes | None) -> bytes:
    """Return `key`, else the one in the environment, else one drawn for this process (with one warning)."""
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
            "no noise key: this process drew its own. After a restart, or on another replica, the same query gets"
            " other noise, and averaging those answers removes it. Pass GaussianNoise(std, key=...) or set"
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
    """One 32-byte seed per example, from the key and everything that makes the query what it is.

    Args:
        key: secret bytes of any length.
        inputs: tensor of shape (batch, ...), or a tuple of such; each example is hashed as its float32 numbers in order
            (see `as_hashed`), without its shape and without the zeros at its end. Where a model can tell shapes apart,
            `method` has to say the shape.
        target: what Captum accepts: None, int, tuple of ints, tensor (batch,) or (1,), list of ints or of tuples.
        model_digest: digest of the explained model's parameters.
        method: name of the explanation method.
        configuration: canonical text of the hardening configuration, without the key.

    Raises:
        InputError: the inputs disagree about the batch size, or the target does not fit it.
    """
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = tensors[0].shape[0]
    if any(t.shape[0] != batch for t in tensors):
        raise InputError(f"inputs must share their first dimension, got {[tuple(t.shape) for t in tensors]}")
    prefix = hashlib.blake2b(key=hashlib.blake2b(key, digest_size=64).digest(), digest_size=32)
    for part in (_DOMAIN, model_digest, method.encode(), configuration.encode()):
        _update(prefix, part)
    rows = [_numbers(t) for t in tensors]
    seeds = []
    for i, label in enumerate(targets_of(target, batch)):
        seed = prefix.copy()
        _update(seed, repr(label).encode())
        for numbers, exact in rows:
            _update(seed, _trimmed(numbers[i]))
            if exact is not None and (numbers[i] != exact[i]).any():  # whole numbers that float32 cannot tell apart
                _update(seed, b"int64" + _trimmed(exact[i]))
        seeds.append(seed.digest())
    return seeds


def as_hashed(tensor: Tensor) -> Tensor:
    """The numbers that the noise is a function of, in the tensor's own type: rounded to float32, and zero, without a
    sign, what is nearer to zero than float32's smallest normal number. Whole numbers stay as they are.

    An explainer that is given these numbers can answer no two questions that the noise takes for one.

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


def standard_normal(seed: bytes, count: int, *, purpose: bytes = b"noise") -> NDArray[np.float64]:
    """`count` independent standard normal numbers (resolution 2^-32 in probability), a function of seed and purpose."""
    words = np.frombuffer(hashlib.shake_256(purpose + seed).digest(4 * count), dtype="<u4")
    out: NDArray[np.float64] = ndtri((words + 0.5) * 2.0**-32)
    return out


def keyed_normal(seeds: list[bytes], d: int, purpose: bytes, like: Tensor) -> Tensor:
    """(len(seeds), d) keyed standard normal numbers; made on the CPU, so that a GPU gets the same ones."""
    numbers = np.empty((len(seeds), d), np.float64 if like.dtype == torch.float64 else np.float32)
    for row, seed in zip(numbers, seeds, strict=True):
        row[:] = standard_normal(seed, d, purpose=purpose)
    return torch.from_numpy(numbers).to(like.device)


def _update(digest: Any, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)


def _numbers(tensor: Tensor) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """(batch, d) float32 numbers with one zero and one NaN; of whole numbers also the exact ones, as float64 holds 2^53
    of them and float32 only 2^24."""
    t = as_hashed(tensor)
    if t.is_complex():
        t = torch.view_as_real(t)
    t = t.reshape(len(t), math.prod(t.shape[1:])).cpu()
    exact = None if t.is_floating_point() else t.to(torch.int64).numpy()
    single = t.to(torch.float32)
    return torch.where(single.isnan(), torch.nan, single).numpy(), exact


def _trimmed(row: NDArray[Any]) -> bytes:
    """The bytes of a row up to its last number that is not zero."""
    last = row.nonzero()[0][-1:]
    return row[: int(last[0]) + 1 if len(last) else 0].tobytes()


def targets_of(target: Any, batch: int) -> Sequence[tuple[int, ...]]:
    """The target of each example as a tuple of ints, however it was written."""
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
        raise InputError(f"expected class indices as the target, as Captum takes them, got {target!r:.80}") from None
    if len(labels) != batch:
        raise InputError(f"expected one target for each of the {batch} examples, got {len(labels)}")
    return labels


def vanishes(tensor: Tensor) -> Tensor:
    """Where a value is zero, or NaN or infinite and so about to be."""
    return (tensor == 0) | ~tensor.isfinite()


def fill_zeros(rows: Tensor, seeds: list[bytes] | None, *, whole_rows_only: bool) -> Tensor:
    """Put keyed random numbers, smaller than all others, where a clip could not hide that a coordinate is zero."""
    zero = rows == 0
    concerned = (zero.all(1) if whole_rows_only else zero.any(1)).nonzero().flatten()
    if not len(concerned):
        return rows
    if seeds is None:
        raise InputError("zeros in an explanation get keyed random values before they are scaled: pass inputs=")
    drawn = keyed_normal([seeds[i] for i in concerned.tolist()], rows.shape[1], b"direction", rows)
    some, zero = rows[concerned], zero[concerned]
    negative, positive = (some < 0).any(1, keepdim=True), (some > 0).any(1, keepdim=True)
    single = torch.where(negative, -drawn.abs(), drawn.abs())
    drawn = torch.where(negative == positive, drawn, single)  # a single sign, which they must share
    smallest = some.abs().masked_fill(zero, torch.inf).amin(1, keepdim=True)
    smallest = torch.where(smallest.isfinite(), smallest, 1.0)
    grown = torch.where(smallest < torch.finfo(rows.dtype).tiny * 2.0**40, 2.0**80, 1.0).to(rows.dtype)
    smallest = smallest * grown  # smaller ones would vanish; only ranks matter here
    rows[concerned] = torch.where(zero, drawn * (smallest / 16), some * grown)
    return rows
