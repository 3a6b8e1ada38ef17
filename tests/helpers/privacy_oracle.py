"""What an attacker who knows everything but one record can prove, exactly."""

import numpy as np
from scipy.special import expit

from safexplain.recourse.mechanisms.laplace_score import laplace_grid


def log_probabilities(value, sensitivity, epsilon, low, high, noise=1.0):
    """Log probabilities of everything that may be released of a value: the low end, the grid points between, the high
    end. `noise` other than 1 stands for a mechanism that adds so much of it."""
    grid, _, scale = laplace_grid(sensitivity, epsilon, low, high)
    scale *= noise
    first, last = int(np.floor(low / grid)), int(np.ceil(high / grid))  # multiples at or beyond the ends
    at = np.rint(np.clip(value, low, high) / grid)
    ratio = np.exp(-1 / scale)

    def tail(steps):  # log P(Z >= steps)
        steps = np.asarray(steps, dtype=float)
        beyond = -np.abs(np.maximum(steps, 1 - steps)) / scale - np.log1p(ratio)
        return np.where(steps > 0, beyond, np.log1p(-np.exp(beyond)))

    inner = np.arange(first + 1, last)
    between = np.log(np.tanh(0.5 / scale)) - np.abs(inner - at) / scale
    return np.concatenate([[tail(at - first)], between, [tail(last - at)]])


def largest_loss(one, other):
    """Largest log ratio of probabilities, either way."""
    return float(np.abs(one - other).max())


def leaning(record, others=20_000):
    """X, y, of norm at most 1 without a constant column: others that push weights to one side, and a record, signed,
    that lies on the far side; two such records with opposite first features change the weights nearly as much as
    anything can."""
    X = np.array([[0.0, -1.0]] * others + [record])
    return X, np.ones(len(X), dtype=int)


SIDES = (0.92, 0.39), (-0.92, 0.39)


def two_gaussians(n, d, seed=0, distance=1.51):
    """Classes y = 0, 1 around -m and +m, |m| = 1.51, unit variance."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return rng.normal(size=(n, d)) + np.outer(2 * y - 1, np.full(d, distance / np.sqrt(d))), y


def signed_rows(n, p, seed=0):
    """(n, p) labels times features, of norms between .2 and 1."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, p))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * rng.uniform(0.2, 1, (n, 1))


def log_density(weights, signed, noise_rate, regularization):
    """(points,) log density of objective perturbation at weights (points, p), regularised one by one, for rows of any
    norm, up to a constant without the data."""
    miss = expit(-(weights @ signed.T))
    noise = miss @ signed - regularization * weights
    curvature = (signed.T * (miss * (1 - miss))[:, None, :]) @ signed
    hessian = curvature + regularization * np.eye(signed.shape[1])
    return np.linalg.slogdet(hessian)[1] - noise_rate * np.linalg.norm(noise, axis=1)
