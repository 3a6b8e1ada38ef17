"""Faithfulness: whether the features that a map names carry the prediction, measured on the model itself.

One step of the deletion and insertion of Petsiuk et al. (arXiv 1806.07421), at a fixed share of the features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._validate import check_number, check_whole
from safexplain.errors import ConfigurationError, InputError
from safexplain.outputs import are_probabilities


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Faithfulness of each example's map.

    Args:
        deletion: (n,) float64, drop of the label's probability when the named features are deleted; higher is better.
        insertion: (n,) float64, the label's probability when only they are kept, minus that with none kept.
        fraction: largest share of the features that is named.
    """

    deletion: NDArray[np.float64] = field(repr=False)
    insertion: NDArray[np.float64] = field(repr=False)
    fraction: float = 0.1

    def to_dict(self) -> dict[str, float]:
        """The means, as plain JSON types."""
        return {"deletion": float(self.deletion.mean()), "insertion": float(self.insertion.mean())}


def faithfulness(
    model: nn.Module | Callable[[Tensor], Tensor],
    x: Tensor | NDArray[Any],
    labels: Tensor | NDArray[Any],
    maps: Tensor | NDArray[Any],
    *,
    fraction: float = 0.1,
    batch_size: int = 256,
    seed: int = 0,
) -> Faithfulness:
    """Measure the model's outputs with the features that maps name deleted, and with only these kept.

    A feature is a number of the map; a map of one channel names pixels, with all their channels. The
    max(1, round(fraction d)) highest numbers are named, with their signs, but only numbers above 0: others do not count
    for the class. Ties are broken at random.

    Args:
        model: in evaluation mode, (batch, ...) -> (batch, classes >= 2) logits or probabilities, which the first batch
            shows; logits get a softmax.
        x: (n, ...) examples.
        labels: (n,) the class that each map explains.
        maps: (n, ...) released or native, in the shape of x, broadcastable to it, or flat (n, d). NaN names nothing.
        fraction: of the features that is named, in (0, 1].
        batch_size: examples in one call of the model.
        seed: for ties; the result does not depend on `batch_size`.

    Raises:
        InputError: shapes do not fit, a label is no output of the model, or its outputs are not finite.
        ConfigurationError, ConfigurationTypeError: a fraction, batch size or seed out of range.
    """
    if check_number("fraction", fraction, above=0.0) > 1:
        raise ConfigurationError(f"fraction must be at most 1, got {fraction!r}")
    check_whole("batch_size", batch_size, 1)
    x, labels, maps = torch.as_tensor(x), torch.as_tensor(labels).long(), torch.as_tensor(maps)
    maps = _aligned(x, labels, maps)
    generator = np.random.default_rng(check_whole("seed", seed, 0))
    device = next((p.device for p in model.parameters()), x.device) if isinstance(model, nn.Module) else x.device
    probabilities: bool | None = None
    found = []
    with torch.no_grad():
        for part in (slice(start, start + batch_size) for start in range(0, len(x), batch_size)):
            named = named_features(maps[part], fraction, generator).to(device)
            batch, targets = x[part].to(device), labels[part].to(device)
            versions = (batch, torch.where(named, 0, batch), torch.where(named, batch, 0), torch.zeros_like(batch))
            outputs = [_as_float64(model(version), targets) for version in versions]
            if probabilities is None:
                probabilities = are_probabilities(torch.cat(outputs))
            p, without, only, nothing = (
                (out if probabilities else out.softmax(1)).gather(1, targets[:, None])[:, 0] for out in outputs
            )
            found.append(torch.stack([p - without, only - nothing]).cpu().numpy())
    deletion, insertion = np.concatenate(found, axis=1) if found else np.zeros((2, 0))
    return Faithfulness(deletion, insertion, float(fraction))


def named_features(maps: Tensor, fraction: float, generator: np.random.Generator) -> Tensor:
    """Whether each number of maps (n, ...) is among the max(1, round(fraction d)) highest and above 0: bool, in their
    shape, on the CPU; `generator` breaks ties."""
    rows = maps.detach().reshape(len(maps), -1).cpu().double().numpy()
    rows = np.where(rows > 0, rows, 0.0)
    drawn = generator.random(rows.shape)
    order = np.lexsort((drawn, -rows), axis=1)[:, : max(1, round(fraction * rows.shape[1]))]
    named = np.zeros(rows.shape, dtype=bool)
    np.put_along_axis(named, order, True, axis=1)
    return torch.from_numpy(named & (rows > 0)).reshape(maps.shape)


def _aligned(x: Tensor, labels: Tensor, maps: Tensor) -> Tensor:
    if x.dim() < 2 or labels.shape != x.shape[:1]:
        raise InputError(f"expected x (n, ...) and labels (n,), got {tuple(x.shape)} and {tuple(labels.shape)}")
    if maps.shape[:1] == x.shape[:1] and maps.dim() == 2 and maps.shape[1] == x[0].numel():
        maps = maps.reshape(x.shape)
    alike = maps.dim() == x.dim() and len(maps) == len(x) and maps[:1].numel() > 0
    if len(x) and not (alike and all(m in (1, d) for m, d in zip(maps.shape[1:], x.shape[1:], strict=True))):
        raise InputError(
            f"expected maps in the shape of x, {tuple(x.shape)}, or with 1 in place of some of it, got"
            f" {tuple(maps.shape)}: enlarge maps of another resolution"
        )
    return maps


def _as_float64(out: Tensor, labels: Tensor) -> Tensor:
    if out.dim() != 2 or out.shape[1] < 2 or len(out) != len(labels) or not bool(torch.isfinite(out).all()):
        raise InputError(f"expected finite outputs of shape ({len(labels)}, classes >= 2), got {tuple(out.shape)}")
    if len(labels) and not 0 <= (least := int(labels.min())) <= (most := int(labels.max())) < out.shape[1]:
        raise InputError(f"labels must be outputs 0 .. {out.shape[1] - 1} of the model, got {least} .. {most}")
    return out.double()
