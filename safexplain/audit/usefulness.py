"""The cost of hardening: agreement of released with native explanations, and their faithfulness to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats as distributions
from torch import Tensor, nn

from safexplain.audit.signals import parts
from safexplain.errors import InputError
from safexplain.faithfulness import Faithfulness, faithfulness

TOP_FRACTION = 0.1  # default share of the features that count as top
PART = 1 << 20  # numbers of maps compared at a time; each is copied a dozen times
FEWEST_TOP = 4  # smallest number of released features per map in `sign_errors_top`: the reasons in a notice


@dataclass(frozen=True)
class Utility:
    """Agreement of released and native explanations, as means over examples.

    Args:
        top_overlap: share of the native top features (by magnitude) that are also top features of the released map.
        top_fraction: share of the features that counts as top.
        rank_correlation: Spearman correlation of the magnitudes.
        cosine: cosine similarity of the maps.
        sign_agreement: share of the native top features that keep their sign.
        sign_errors: share of the released numbers other than 0 whose sign differs from the native one.
        sign_errors_top: share of the maps with a wrong sign among the released top features, at least 4.
        deletion: mean drop of the probability of the explained class if the features that the released map names are
            deleted, see `faithfulness`; None: not measured.
        insertion: mean of that probability if only these are kept, less the one with nothing kept; or None.
        native_deletion, native_insertion: those of the native map, or None.
        prohibited: share of the explanations with a prohibited column among their reasons, which a service does not
            answer; None: no column is prohibited.
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
    prohibited: float | None = None

    def with_faithfulness(self, released: Faithfulness, native: Faithfulness) -> Utility:
        """With the faithfulness of both maps."""
        return replace(self, **released.to_dict(), **{f"native_{k}": v for k, v in native.to_dict().items()})

    def to_dict(self) -> dict[str, float]:
        """Plain JSON types, without values that were not measured."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def utility(
    native: NDArray[np.floating[Any]], released: NDArray[np.floating[Any]], *, top_fraction: float = TOP_FRACTION
) -> Utility:
    """Compare explanations of the same examples, without those whose native explanation is zero.

    Args:
        native: (n, ...) finite attributions.
        released: the same shape.
        top_fraction: in (0, 1].

    Raises:
        InputError: shapes differ, or every native explanation is zero.
    """
    if native.shape != released.shape or native.ndim < 2:
        raise InputError(f"expected two arrays of one shape (n, ...), got {native.shape} and {released.shape}")
    a, b = (np.asarray(v).reshape(len(v), -1) for v in (native, released))
    cut = parts(len(a), a.shape[1], PART)
    found = _agreement(((a[part], b[part]) for part in cut), top_fraction)
    if found is None:
        raise InputError("expected native explanations other than zero, got zeros only")
    return found


def _agreement(
    pairs: Iterable[tuple[NDArray[np.floating[Any]], NDArray[np.floating[Any]]]], top_fraction: float
) -> Utility | None:
    """Utility of pairs of native and released maps, (p, d) each; None if all native ones are zero."""
    overlap = signs = top = wrong_signs = nonzero = 0
    ranks, cosines, any_wrong = list[NDArray[np.float64]](), list[NDArray[np.float64]](), list[NDArray[np.bool_]]()
    for native, released in pairs:
        a, b = (np.asarray(v, dtype=np.float64) for v in (native, released))
        compared = a.any(1)
        if not compared.any():
            continue
        a, b = a[compared], b[compared]
        d = a.shape[1]
        k = max(1, round(top_fraction * d))
        top_a, top_b = (np.argsort(-np.abs(v), axis=1, kind="stable")[:, :k] for v in (a, b))
        chosen = np.zeros(a.shape, dtype=bool)
        np.put_along_axis(chosen, top_b, True, axis=1)
        overlap += int(np.take_along_axis(chosen, top_a, axis=1).sum())
        signs += int((np.sign(np.take_along_axis(a, top_a, 1)) == np.sign(np.take_along_axis(b, top_a, 1))).sum())
        top += top_a.size
        wrong = (b != 0) & (np.sign(a) != np.sign(b))
        shown = np.argsort(-np.abs(b), axis=1, kind="stable")[:, : max(k, FEWEST_TOP)]
        wrong_signs, nonzero = wrong_signs + int(wrong.sum()), nonzero + int(np.count_nonzero(b))
        any_wrong.append(np.take_along_axis(wrong, shown, axis=1).any(1))
        ranks.append(_cosine(*(distributions.rankdata(np.abs(v), axis=1) - (d + 1) / 2 for v in (a, b))))
        cosines.append(_cosine(a, b))
    if not ranks:
        return None
    return Utility(
        top_overlap=overlap / top,
        top_fraction=top_fraction,
        rank_correlation=float(np.concatenate(ranks).mean()),
        cosine=float(np.concatenate(cosines).mean()),
        sign_agreement=signs / top,
        sign_errors=wrong_signs / max(1, nonzero),
        sign_errors_top=float(np.concatenate(any_wrong).mean()),
    )


@dataclass(frozen=True, eq=False)
class Sample:
    """Examples (n, ...) on the model's device, its (n, classes) outputs, and the maps (n, ...) of each explainer."""

    model: nn.Module
    x: Tensor
    outputs: Tensor
    batch_size: int
    native: tuple[Tensor, ...] = ()
    released: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, batch_size: int) -> Sample:
        """With the model's outputs."""
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in torch.split(x, batch_size)])
        return cls(model, x, outputs, batch_size)

    @property
    def labels(self) -> Tensor:
        """(n,) predicted classes, which are explained."""
        return self.outputs.argmax(1)

    def explained(self, explain: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """(n, ...) maps of `explain(x, labels)`."""
        parts = zip(*(torch.split(t, self.batch_size) for t in (self.x, self.labels)), strict=True)
        return torch.cat([explain(x, labels).detach() for x, labels in parts])

    def with_maps(self, native: Tensor, released: Tensor) -> Sample:
        """With the maps of one more explainer; NaN and infinity in native ones become zeros, as in a release."""
        clean = native.nan_to_num(0.0, 0.0, 0.0)
        return replace(self, native=(*self.native, clean), released=(*self.released, released))

    def faithfulness(self, maps: Sequence[Tensor]) -> Faithfulness | None:
        """Of the maps of all explainers about the input; maps of a layer are enlarged to the image."""
        fitting = [fitted for each in maps if (fitted := self._fitted(each)) is not None]
        found = [faithfulness(self.model, self.x, self.labels, m, batch_size=self.batch_size) for m in fitting]
        if not found:
            return None
        return Faithfulness(np.concatenate([f.deletion for f in found]), np.concatenate([f.insertion for f in found]))

    def _fitted(self, maps: Tensor) -> Tensor | None:
        if maps[0].numel() == self.x[0].numel():
            return maps.reshape(self.x.shape)
        if not maps.dim() == self.x.dim() == 4 or maps.shape[1] != 1:
            return None
        return nn.functional.interpolate(maps, self.x.shape[2:], mode="bilinear")


def utility_of(sample: Sample, maps: tuple[Any, Any] | None = None, features: Any = None) -> Utility | None:
    """Utility of a release, by the maps of model 0 in (m, n, d) `maps`, native and released, or (None) by those of the
    sample; None if every native map is zero. `features` are those of the hardening, which may prohibit some."""
    if maps is None:
        sides = [torch.cat([m.flatten(1).cpu() for m in side], 1) for side in (sample.native, sample.released)]
        maps = sides[0].numpy()[None], sides[1].numpy()[None]
    native, released = maps
    _, n, d = native.shape
    found = _agreement(((native[0, part], released[0, part]) for part in parts(n, d, PART)), TOP_FRACTION)
    if found is not None and features is not None and features.prohibited:
        by_explainer = released[0].reshape(n, -1, len(features.names))
        refused = np.stack([features.refused(by_explainer[:, i]).any(1) for i in range(by_explainer.shape[1])])
        found = replace(found, prohibited=float(refused.any(0).mean()))
    ours, theirs = sample.faithfulness(sample.released), sample.faithfulness(sample.native)
    return found if found is None or ours is None or theirs is None else found.with_faithfulness(ours, theirs)


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    a, b = (v / np.maximum(np.abs(v).max(1, keepdims=True), 1e-300) for v in (a, b))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    out: NDArray[np.float64] = (a * b).sum(1) / np.maximum(lengths, 1e-300)
    return out
