"""Objective perturbation written out plainly, for rows of any norm and weights regularised one by one."""

from __future__ import annotations

import numpy as np
from scipy.special import expit


def signed_rows(n, p, seed=0):
    """(n, p) labels times features, of norms between .2 and 1."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, p))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * rng.uniform(0.2, 1, (n, 1))


def log_density(weights, signed, noise_rate, regularization):
    """(points,) log density of the exact minimiser at weights (points, p), up to a constant without the data."""
    miss = expit(-(weights @ signed.T))
    noise = miss @ signed - regularization * weights
    curvature = (signed.T * (miss * (1 - miss))[:, None, :]) @ signed
    hessian = curvature + regularization * np.eye(signed.shape[1])
    with np.errstate(divide="ignore"):  # a determinant of 0, where an unregularised minimiser has run away
        return np.linalg.slogdet(hessian)[1] - noise_rate * np.linalg.norm(noise, axis=1)


def newton(signed, linear, regularization, iterations=60):
    """(runs, p) what damped Newton's method has reached after a fixed number of steps, certified or not."""
    weights, longest = np.zeros_like(linear), np.linalg.norm(signed, axis=1).max() + 1e-300
    for _ in range(iterations):
        miss = expit(-(weights @ signed.T))
        gradient = regularization * weights + linear - miss @ signed
        hessian = (signed.T * (miss * (1 - miss))[:, None, :]) @ signed + np.eye(signed.shape[1]) * regularization
        hessian = hessian + 1e-12 * np.eye(signed.shape[1])
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        length = longest * np.linalg.norm(step, axis=1, keepdims=True) + 1e-300
        weights = weights - step * np.log1p(length) / length
    return weights
