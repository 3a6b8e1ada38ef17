"""What hardening costs: how much of the native explanation is left in the released one. NumPy and SciPy only.

Measured against the native explanation of the same model and example: metrics that look at the released map alone
(such as sensitivity relative to its own norm) reward noise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.errors import InputError


@dataclass(frozen=True)
class Utility:
    """Agreement of released and native explanations, each a mean over examples.

    Args:
        top_overlap: share of the native top features (by magnitude) that are top features of the released map too.
        top_fraction: which share of the features counts as top.
        rank_correlation: Spearman correlation of the magnitudes.
        cosine: cosine similarity of the maps.
        sign_agreement: share of the native top features that keep their sign.
    """

    top_overlap: float
    top_fraction: float
    rank_correlation: float
    cosine: float
    sign_agreement: float

    def to_dict(self) -> dict[str, float]:
        """Plain JSON types."""
        return asdict(self)


def utility(
    native: NDArray[np.floating[Any]], released: NDArray[np.floating[Any]], *, top_fraction: float = 0.1
) -> Utility:
    """Compare explanations of the same examples.

    Examples whose native explanation is zero have nothing to agree with and are left out.

    Args:
        native: (n, ...) finite attributions.
        released: the same shape.
        top_fraction: in (0, 1].

    Raises:
        InputError: shapes differ, or every native explanation is zero.
    """
    if native.shape != released.shape or native.ndim < 2:
        raise InputError(f"expected two arrays of one shape (n, ...), got {native.shape} and {released.shape}")
    a = np.asarray(native, dtype=np.float64).reshape(len(native), -1)
    b = np.asarray(released, dtype=np.float64).reshape(len(released), -1)
    some = a.any(1)
    if not some.any():
        raise InputError("every native explanation is zero; there is nothing to compare with")
    a, b = a[some], b[some]
    d = a.shape[1]
    k = max(1, round(top_fraction * d))
    top_a, top_b = (np.argsort(-np.abs(v), axis=1, kind="stable")[:, :k] for v in (a, b))
    chosen = np.zeros(a.shape, dtype=bool)
    np.put_along_axis(chosen, top_b, True, axis=1)
    overlap = np.take_along_axis(chosen, top_a, axis=1).mean()
    signs = (np.sign(np.take_along_axis(a, top_a, 1)) == np.sign(np.take_along_axis(b, top_a, 1))).mean()
    ranks = [distributions.rankdata(np.abs(v), axis=1) - (d + 1) / 2 for v in (a, b)]
    return Utility(
        top_overlap=float(overlap),
        top_fraction=top_fraction,
        rank_correlation=float(_cosine(*ranks).mean()),
        cosine=float(_cosine(a, b).mean()),
        sign_agreement=float(signs),
    )


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    a, b = (v / np.maximum(np.abs(v).max(1, keepdims=True), 1e-300) for v in (a, b))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    out: NDArray[np.float64] = (a * b).sum(1) / np.maximum(lengths, 1e-300)
    return out
