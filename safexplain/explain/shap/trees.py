"""Shapley values of trees along the paths of their training rows, as shap's TreeExplainer computes them, faster.

A leaf with value v, on whose path m features are split, gives feature j (arXiv 1802.03888, algorithm 1)

    v (o_j - z_j) * sum over subsets S of the others of |S|! (m - |S| - 1)! / m! * prod_{k in S} o_k * prod_{others} z_k

where o_k is 1 if the row takes every split on k along the path, else 0, and z_k is the share of the training rows that
take them. Since s! (m - s - 1)! / m! is the integral of t^s (1 - t)^(m - s - 1) over [0, 1], this is

    v (o_j - z_j) * integral of prod_{k != j} (o_k t + z_k (1 - t)) dt

of a polynomial of degree m - 1, which Gauss-Legendre quadrature with m / 2 points computes exactly: products are passed
down a tree, and sums over its leaves back up.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import roots_legendre

Values = NDArray[Any]


def path_values(ensemble: Any, missing: Values, rows: Values, outputs: Values) -> Values:
    """Shapley values (n, d) of rows (n, d) of a shap `TreeEnsemble` for one output of each, (n,), up to rounding those
    of shap. `missing` is (trees, nodes) the child of a row whose number is NaN."""
    rules = _rules(min(int(ensemble.max_depth), rows.shape[1]) // 2 + 1)
    trees = (ensemble.children_left, ensemble.children_right, missing, ensemble.features, ensemble.thresholds)
    x, compiled = np.ascontiguousarray(rows, dtype=ensemble.input_dtype), _compiled()
    parts = np.array_split(np.arange(len(x)), max(1, min(torch.get_num_threads(), len(x) // 16)))
    args = (*trees, ensemble.node_sample_weight, ensemble.values, *rules)
    with ThreadPoolExecutor(len(parts)) as pool:
        return np.concatenate(list(pool.map(lambda part: compiled(x[part], outputs[part], *args), parts)))


@cache
def _rules(most: int) -> tuple[Values, Values]:
    """Gauss-Legendre points and weights on [0, 1]; row q has the rule with q points."""
    points, weights = np.zeros((2, most + 1, most))
    for q in range(1, most + 1):
        t, w = roots_legendre(q)
        points[q, :q], weights[q, :q] = (t + 1) / 2, w / 2
    return points, weights


@cache
def _compiled() -> Callable[..., Values]:
    njit: Any = import_module("numba").njit  # which comes with shap
    compiled: Callable[..., Values] = njit(_values, nogil=True, fastmath={"contract", "reassoc", "nsz"})
    return compiled


def _values(
    x: Values,
    outputs: Values,
    lefts: Values,
    rights: Values,
    missing: Values,
    features: Values,
    thresholds: Values,
    covers: Values,
    values: Values,
    points: Values,
    weights: Values,
) -> Values:
    """The compiled loop. A parent has a smaller number than its children.

    States of a node's edge: 0, the row leaves its path here; 1, it takes it; 2, it has left at an earlier split on the
    same feature, so nothing is left to give. `factor` multiplies the product along an edge, `given` is what its feature
    gets of each product below it.
    """
    found = np.zeros(x.shape)
    size = lefts.shape[1]
    parent, same, state = np.zeros((3, size), np.int64)
    deep = np.zeros(size, np.int64)
    share, ratio = np.ones((2, size))
    for k in range(lefts.shape[0]):
        left, right, feature = lefts[k], rights[k], features[k]
        end, longest = 1, 0
        for p in range(size):
            if p < end and left[p] >= 0:
                for c in (left[p], right[p]):
                    end, parent[c], a = max(end, c + 1), p, p
                    while a > 0 and feature[parent[a]] != feature[p]:
                        a = parent[a]
                    same[c] = a  # the node below the last split on this feature; 0: there is none
                    ratio[c] = covers[k, c] / covers[k, p]  # shap refuses trees with none
                    share[c] = ratio[c] * share[a]
                    deep[c] = deep[p] + (a == 0)
                    longest = max(longest, deep[c])
        q = (longest + 1) // 2
        product, factor, given = np.empty((end, q)), np.empty((3, end, q)), np.zeros((3, end, q))
        for c in range(1, end):
            a = same[c]
            for i in range(q):
                t, rest = points[q, i], 1 - points[q, i]
                now = t + share[c] * rest
                before = t + share[a] * rest  # 1 at the root
                so_far = (1 - share[a]) / before
                factor[0, c, i], factor[1, c, i], factor[2, c, i] = share[c] * rest / before, now / before, ratio[c]
                given[0, c, i] = weights[q, i] * (-1 / rest - so_far)
                given[1, c, i] = weights[q, i] * ((1 - share[c]) / now - so_far)
        for j in range(x.shape[0]):
            for i in range(q):
                product[0, i] = 1.0
            for p in range(end):
                if left[p] < 0:
                    value = values[k, p, outputs[j]]
                    for i in range(q):
                        product[p, i] *= value
                    continue
                number = x[j, feature[p]]
                goes = missing[k, p] if np.isnan(number) else (left[p] if number <= thresholds[k, p] else right[p])
                for c in (left[p], right[p]):
                    state[c] = 2 if same[c] > 0 and state[same[c]] != 1 else int(c == goes)
                    for i in range(q):
                        product[c, i] = product[p, i] * factor[state[c], c, i]
                for i in range(q):
                    product[p, i] = 0.0  # from here on the sum over the leaves below it
            for c in range(end - 1, 0, -1):
                p, gets = parent[c], 0.0
                for i in range(q):
                    gets += given[state[c], c, i] * product[c, i]
                    product[p, i] += product[c, i]
                found[j, feature[p]] += gets
    return found
