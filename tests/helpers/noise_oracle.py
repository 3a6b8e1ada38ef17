"""The noise stream, one block and one number at a time, by other means than the package's."""

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
