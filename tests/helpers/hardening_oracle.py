"""The steps of a hardening, one number at a time, by other means than the package's."""

import hashlib
import math
from functools import cache
from statistics import NormalDist

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def slow_words(seed, count, purpose=b"noise"):
    """AES-256 of the blocks 0, 1, 2, ..., as signed 32-bit words."""
    blocks, start = Cipher(algorithms.AES(seed), modes.ECB()).encryptor(), hashlib.blake2b(purpose, digest_size=8)
    stream = b"".join(blocks.update(start.digest() + i.to_bytes(8, "big")) for i in range(math.ceil(count / 4)))
    return [int.from_bytes(stream[4 * i : 4 * i + 4], "little", signed=True) for i in range(count)]


@cache
def slow_table():
    """Quantiles by the standard library, of variance 1/2, in units of 2^-28."""
    quantiles = [NormalDist().inv_cdf((k + 0.5) / 65_536) for k in range(32_768)]
    quantiles += [-q for q in reversed(quantiles)]
    spread = math.sqrt(math.fsum(q * q for q in quantiles) / 65_536)
    return [round(2**28 * q / spread / math.sqrt(2)) for q in quantiles]


def slow_normal(seed, count, purpose=b"noise"):
    """The sum of the table's numbers for the halves of each word."""
    table = slow_table()
    return [math.ldexp(table[w & 0xFFFF] + table[w >> 16 & 0xFFFF], -28) for w in slow_words(seed, count, purpose)]


def slow_rank(clip, row):
    """The numbers that belong to the ranks; equal ones share the mean of theirs."""

    def magnitudes(d, norm):
        raw = [(-math.log(1 - (j + 0.5) / d)) ** clip.shape for j in range(d)]
        return [v * norm / math.sqrt(sum(r * r for r in raw)) for v in raw]

    d = len(row)
    balanced = clip.balanced_from and d >= clip.balanced_from and min(row) < 0 < max(row)
    if balanced:
        above = magnitudes(d // 2, clip.norm / math.sqrt(2))
        values = [-v for v in reversed(above)] + [0.0] * (d % 2) + above
    else:
        values = magnitudes(d, clip.norm)
    keys, out = (row if balanced else [abs(v) for v in row]), []
    for v, key in zip(row, keys, strict=True):
        lower, equal = sum(k < key for k in keys), sum(k == key for k in keys)
        value = sum(values[lower : lower + equal]) / equal
        out.append(value if balanced else math.copysign(value, v) if v else 0.0)
    return out


def slow_format(clip, row):
    """1 for each named feature (ordered: k to 1), or the step of each over the number of steps; the first go before
    their equals."""
    d = len(row)

    def first(keys, count):
        order = sorted(range(d), key=lambda j: (-keys[j], j))[:count]
        return [j in order and keys[j] > 0 for j in range(d)]

    if not hasattr(clip, "n"):
        count = min(d, max(clip.k or 0, round((clip.fraction or 0) * d), 1))
        keys = row if clip.positive else [abs(v) for v in row]
        if not clip.ordered:
            return [float(named) for named in first(keys, count)]
        order = sorted(range(d), key=lambda j: (-keys[j], j))[:count]
        return [float(count - order.index(j)) if j in order and keys[j] > 0 else 0.0 for j in range(d)]
    out = [0.0] * d
    for j in range(1, clip.n + 1):
        count = max(1, round(d / 2**j))
        if clip.balanced and min(row) < 0 < max(row):
            sides = [(1, first(row, max(1, count // 2))), (-1, first([-v for v in row], max(1, count // 2)))]
        else:
            named = first([abs(v) for v in row], count)
            sides = [
                (1, [n and v > 0 for n, v in zip(named, row, strict=True)]),
                (-1, [n and v < 0 for n, v in zip(named, row, strict=True)]),
            ]
        for sign, named in sides:
            out = [v + sign * n for v, n in zip(out, named, strict=True)]
    return [v / clip.n for v in out]
