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
    return np.linalg.slogdet(hessian)[1] - noise_rate * np.linalg.norm(noise, axis=1)
