"""Minimisers of regularised logistic regression with a certificate, also where the Hessian is too large to store."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from safexplain.errors import RefusedError

CURVATURE = 0.25
"""Largest second derivative of the logistic loss."""

BLOCK = 1024
"""Rows summed at a time: rounding errors grow with this and with the number of blocks, not with n."""

MOST_ITERATIONS = 500

LARGEST_HESSIAN = 128
"""Weights up to which the Hessian is built and solved; beyond, conjugate gradients need only products with it."""

SHORT = 0.1
"""Steps up to this length are damped by so little that nothing longer is tried."""

STEP_ERROR = 1e-3
"""Residual of a step by conjugate gradients, over the gradient: each iteration gains about three digits at the end."""


def solve(signed: NDArray[np.float64], regularization: float, solver_error: float) -> NDArray[np.float64]:
    """The minimiser of sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2, certified to be within `solver_error`.

    Whether it refuses for want of precision follows from the shape of `signed` and from L, not from its values: at the
    minimiser L |w| is at most n, and L/2 |w|^2 at most the objective at 0, n log 2. That 500 iterations suffice is no
    theorem (some tens do, whatever was tried), so an error must not be shown to who is protected from. Arguments and
    errors as for `minimise`; the result is (p,).
    """
    records, p = signed.shape
    longest = largest_weight(records, regularization) + solver_error
    zero = np.zeros((1, p))
    at_worst = rounding_bound(records, np.eye(1, p) * longest, zero, regularization)[0]
    if at_worst > regularization * solver_error / 2:
        raise RefusedError(
            f"nothing is released: with {records:,} records sums may round by {at_worst:.2g}, and the proof"
            f' needs {regularization * solver_error / 2:.2g}; use mechanism="noisy-gd"'
        )
    return np.asarray(minimise(signed, zero, regularization, solver_error)[0])


def largest_weight(records: int, regularization: float) -> float:
    """Bound on the norm of the minimiser that holds for any records."""
    return min(records / regularization, math.sqrt(2 * records * math.log(2) / regularization))


def minimise(
    signed: NDArray[np.float64], linear: NDArray[np.float64], regularization: float, solver_error: float
) -> NDArray[np.float64]:
    """Minimisers of J(w) = sum_i log(1 + exp(-<w, u_i>)) + L/2 |w|^2 + <b, w> for several b, certified.

    Args:
        signed: (n, p) rows u_i of norm at most 1.
        linear: (runs, p) rows b.
        regularization: L.
        solver_error: largest distance from the minimiser.

    Returns:
        (runs, p).

    Raises:
        RefusedError: no certificate after 500 iterations, or too many rows for float64 to certify it.
    """
    weights, by_hessian = np.zeros_like(linear), signed.shape[1] <= LARGEST_HESSIAN
    for _ in range(MOST_ITERATIONS):
        gradient, hessian, curvature = regularization * weights + linear, 0.0, []
        for start in range(0, len(signed), BLOCK):
            rows = signed[start : start + BLOCK]
            miss = expit(-(weights @ rows.T))
            gradient -= miss @ rows
            if by_hessian:
                hessian = hessian + (rows.T * (miss * (1 - miss))[:, None, :]) @ rows
            else:
                curvature.append(miss * (1 - miss))
        residual = np.linalg.norm(gradient, axis=1) + rounding_bound(len(signed), weights, linear, regularization)
        if (residual <= regularization * solver_error).all():
            return weights
        if by_hessian:
            whole = hessian + regularization * np.eye(linear.shape[1])
            step = np.linalg.solve(whole, gradient[:, :, None])[:, :, 0]
        else:
            each = zip(np.concatenate(curvature, axis=1), gradient, strict=True)
            step = np.stack([_conjugate_gradients(signed, c, regularization, g) for c, g in each])
        weights = weights - step * _part_of_step(signed, linear, regularization, weights, gradient, step)[:, None]
    raise RefusedError(
        f"nothing is released: the solver's gradient norm is at most {residual.max():.2g}, and the proof needs"
        f" {regularization * solver_error:.2g}. With very many records the rounding of sums alone exceeds it: use"
        ' mechanism="noisy-gd"'
    )


def _part_of_step(
    signed: NDArray[np.float64],
    linear: NDArray[np.float64],
    regularization: float,
    weights: NDArray[np.float64],
    gradient: NDArray[np.float64],
    step: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(runs,) how much of each Newton step to take.

    The part log(1 + d) / d of a step of length d gains at least g.s ((1 + d) log(1 + d) - d) / d^2 for gradient g and
    step s, as the third derivative of the logistic loss is at most its second (Sun and Tran-Dinh 2019, arXiv
    1703.04599, nu = 2): the method converges from any start. The whole step, its half, ... is taken instead where it
    gains as much and at least a quarter of what the quadratic model says.
    """
    length = np.maximum(np.linalg.norm(step, axis=1), np.finfo(np.float64).tiny)
    part = np.log1p(length) / length
    long = np.flatnonzero(length > SHORT)
    slope, size = np.einsum("rp,rp->r", gradient[long], step[long]), length[long]
    sure = slope * ((1 + size) * np.log1p(size) - size) / size**2
    before = _objective(signed, linear[long], regularization, weights[long])
    trial = 1.0
    while len(long):
        gained = before - _objective(signed, linear[long], regularization, weights[long] - trial * step[long])
        enough = gained >= np.maximum(sure, trial * slope / 4)
        part[long[enough]] = trial
        trial /= 2
        left = ~enough & (part[long] < trial)
        long, before, slope, sure = long[left], before[left], slope[left], sure[left]
    return np.asarray(part)


def _objective(
    signed: NDArray[np.float64], linear: NDArray[np.float64], regularization: float, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(runs,) J of (runs, p) weights."""
    total = regularization / 2 * (weights**2).sum(axis=1) + (linear * weights).sum(axis=1)
    for start in range(0, len(signed), BLOCK):
        total += np.logaddexp(0.0, -(weights @ signed[start : start + BLOCK].T)).sum(axis=1)
    return np.asarray(total)


def rounding_bound(
    records: int, weights: NDArray[np.float64], linear: NDArray[np.float64], regularization: float
) -> NDArray[np.float64]:
    """(runs,) bound on the norm of the difference between the gradient of J and the one computed in float64.

    From |fl(sum) - sum| <= m u sum |terms| for m additions (Higham, Accuracy and Stability of Numerical Algorithms,
    section 4.2), twice over for terms of higher order: margins are sums of p terms below |w|, and change the logistic
    function by a quarter of their error; then blocks of rows of norm at most 1, then the blocks.
    """
    unit = np.finfo(np.float64).eps / 2
    length = np.linalg.norm(weights, axis=1)
    additions = min(records, BLOCK) + records / BLOCK + 8
    by_records = records * (additions + CURVATURE * (weights.shape[1] + 1) * length)
    return np.asarray(2 * unit * (by_records + 4 * (regularization * length + np.linalg.norm(linear, axis=1))))


def _conjugate_gradients(
    signed: NDArray[np.float64], curvature: NDArray[np.float64], regularization: float, target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """About H^-1 target for the Hessian H = sum_i curvature_i u_i u_i' + L I (Hestenes and Stiefel 1952)."""
    out = np.zeros_like(target)
    residual = target.copy()
    direction, size = residual.copy(), float(residual @ residual)
    enough = STEP_ERROR**2 * size
    for _ in range(len(target)):
        if size <= enough:
            break
        product = signed.T @ (curvature * (signed @ direction)) + regularization * direction
        length = size / float(direction @ product)
        out += length * direction
        residual -= length * product
        size, before = float(residual @ residual), size
        direction = residual + (size / before) * direction
    return out
