"""What hardening costs: how much of the native explanation is left in the released one, and what the model says to it.

`utility` compares with the native explanation of the same model and example: metrics that look at the released map
alone (such as sensitivity relative to its own norm) reward noise. `faithfulness` asks the model itself whether the
features that a map names carry the prediction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.faithfulness import Faithfulness, faithfulness

__all__ = ["Faithfulness", "Utility", "faithfulness", "utility"]

FEWEST_TOP = 4
"""Released numbers of each map whose signs `sign_errors_top` looks at, at least: the reasons on a notice."""


@dataclass(frozen=True)
class Utility:
    """Agreement of released and native explanations, each a mean over examples.

    Args:
        top_overlap: share of the native top features (by magnitude) that are top features of the released map too.
        top_fraction: which share of the features counts as top.
        rank_correlation: Spearman correlation of the magnitudes.
        cosine: cosine similarity of the maps.
        sign_agreement: share of the native top features that keep their sign.
        sign_errors: share of the released numbers, of all that are not 0, whose sign is not the native one.
        sign_errors_top: share of the maps of which any of the released top features, at least 4, has a wrong sign.
        deletion: mean drop of the probability of the explained class when the features that the released map names are
            deleted, see `faithfulness`; None: the model was not asked.
        insertion: mean of that probability when only they are kept, less the one with nothing kept; or None.
        native_deletion: the same of the native map; None as above.
        native_insertion: likewise.
    """

    top_overlap: float
    top_fraction: float
    rank_correlation: float
    cosine: float
    sign_agreement: float
    sign_errors: float
    sign_errors_top: float
    deletion: float | None = None
    insertion: float | None = None
    native_deletion: float | None = None
    native_insertion: float | None = None

    def with_faithfulness(self, released: Faithfulness, native: Faithfulness) -> Utility:
        """The same with what the model says of both maps."""
        own, theirs = released.to_dict(), native.to_dict()
        return replace(self, **own, **{f"native_{name}": value for name, value in theirs.items()})

    def to_dict(self) -> dict[str, float]:
        """Plain JSON types, without what was not measured."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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
    wrong = (b != 0) & (np.sign(a) != np.sign(b))
    shown = np.argsort(-np.abs(b), axis=1, kind="stable")[:, : max(k, FEWEST_TOP)]
    ranks = [distributions.rankdata(np.abs(v), axis=1) - (d + 1) / 2 for v in (a, b)]
    return Utility(
        top_overlap=float(overlap),
        top_fraction=top_fraction,
        rank_correlation=float(_cosine(*ranks).mean()),
        cosine=float(_cosine(a, b).mean()),
        sign_agreement=float(signs),
        sign_errors=float(wrong.sum() / max(1, np.count_nonzero(b))),
        sign_errors_top=float(np.take_along_axis(wrong, shown, axis=1).any(1).mean()),
    )


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    a, b = (v / np.maximum(np.abs(v).max(1, keepdims=True), 1e-300) for v in (a, b))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    out: NDArray[np.float64] = (a * b).sum(1) / np.maximum(lengths, 1e-300)
    return out
