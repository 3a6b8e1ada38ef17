"""Epsilon of a composed pair, from nothing but normal distribution functions and an FFT: the accountant's oracle.

The loss log(P/Q) of a pair of normal mixtures is tabulated on a fine grid of outputs, rounded down and up to a grid of
losses, and composed; what comes out are a lower and an upper bound on epsilon.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import norm


def bracket(p, q, sigma, steps, delta, *, interval=2e-4, reach=30.0):
    """(lower, upper) epsilon of `steps` compositions of P against Q, mixtures given as [(weight, mean), ...]."""
    means = [m for _, m in (*p, *q)]
    x = np.linspace(min(means) - 14 * sigma, max(means) + 14 * sigma, 2_000_001)
    cdf = sum(w * norm.cdf(x, m, sigma) for w, m in p)
    mass = np.diff(cdf)
    loss = _log(p, x, sigma) - _log(q, x, sigma)
    low, high = np.minimum(loss[:-1], loss[1:]), np.maximum(loss[:-1], loss[1:])
    return tuple(
        _epsilon(np.rint(round_(edge / interval)).astype(int), mass, interval, steps, delta, reach)
        for round_, edge in ((np.floor, low), (np.ceil, high))
    )


def _log(mixture, x, sigma):
    return np.logaddexp.reduce([np.log(w) + norm.logpdf(x, m, sigma) for w, m in mixture if w > 0])


def _epsilon(cells, mass, interval, steps, delta, reach):
    width = int(2 * reach / interval)
    single = np.zeros(width)
    np.add.at(single, cells % width, mass)
    total = np.maximum(np.fft.irfft(np.fft.rfft(single) ** steps, width), 0)
    losses = np.arange(width) * interval
    losses[losses >= reach] -= 2 * reach
    order = np.argsort(losses)
    losses, total = losses[order], total[order]

    def delta_of(epsilon):
        above = losses > epsilon
        return float((-np.expm1(epsilon - losses[above]) * total[above]).sum())

    low, high = 0.0, reach
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high
