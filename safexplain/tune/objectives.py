"""Utility and leak of a release on the selection split; utility comes first, as it is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.audit.answers import SUMMARIES, summarise
from safexplain.audit.usefulness import utility
from safexplain.errors import InputError
from safexplain.faithfulness import faithfulness
from safexplain.hardening.hardening import Hardening
from safexplain.tune.leak import FEW, MANY, Leakage, LeakMeter
from safexplain.tune.natives import Natives
from safexplain.tune.result import NORMAL, Point

ROWS = 2000  # most explanations for measuring utility: those of the audited model, then of further ones


@dataclass(frozen=True, eq=False)
class Objectives:
    """Measures releases of some models for some examples."""

    natives: Natives
    meter: LeakMeter

    def measure(
        self,
        number: int,
        name: str,
        hardening: Hardening,
        options: dict[str, Any],
        beaten: Callable[[float, float], bool],
    ) -> Point | float:
        """The point of a release, or only its utility if `beaten(utility, 0)`; the larger leak, with and without noise.

        Raises:
            InputError: the explainer refuses the options, or returns maps of another shape than the native ones.
        """
        natives = self.natives.maps(options)
        kept = self.kept(self.natives.release(natives, hardening, self.few))
        if beaten(kept["utility"], 0.0):
            return kept["utility"]
        views = [hardening] if hardening.noise is None else [hardening.without_noise(), hardening]
        released = [self.natives.release(natives, view) for view in views]
        leak = self.leak(released, lambda least: beaten(kept["utility"], least))
        return self.point(number, name, hardening, options, kept, leak, released[-1])

    @property
    def few(self) -> range:
        """The models for measuring utility."""
        m, n = self.natives.labels.shape
        return range(min(m, max(1, ROWS // n)))

    def kept(self, released: Sequence[Tensor]) -> dict[str, float]:
        """Agreement of maps of the first models with the native ones under default options, as in `Point`."""
        found = []
        for native, maps in zip(self.natives.maps({}), released, strict=True):
            values = native.values[: len(maps)]
            if values.shape != maps.shape:
                raise InputError(
                    f"expected maps of the native shape {tuple(values.shape[2:])}, got {tuple(maps.shape[2:])} with"
                    " these options"
                )
            u = utility(values.flatten(0, 1).numpy(), maps.flatten(0, 1).numpy())
            found.append((u.top_overlap, u.rank_correlation, u.cosine, u.sign_errors))
        overlap, ranks, cosine, errors = np.mean(found, axis=0).tolist()
        mean = (overlap + ranks + cosine) / 3
        return {
            "utility": mean, "overlap": overlap, "rank_correlation": ranks, "cosine": cosine, "sign_errors": errors
        }  # fmt: skip

    def leak(self, views: Sequence[Sequence[Tensor]], beaten: Callable[[float], bool]) -> Leakage:
        """The largest leak of several views of the same release, on few targets if their lower bound is `beaten`."""
        signals = [self._signals(maps) for maps in views]
        few, many = self.meter.targets[:FEW], self.meter.targets[:MANY]
        worst = max((self.meter.excess(*one, few) for one in signals), key=lambda one: one.excess)
        if len(few) == len(many) or beaten(worst.excess - 2 * NORMAL * worst.error):
            return worst
        return max((self.meter.excess(*one, many) for one in signals), key=lambda one: one.excess)

    def point(
        self,
        number: int,
        name: str,
        hardening: Hardening,
        options: dict[str, Any],
        kept: Mapping[str, float],
        leak: Leakage,
        released: Sequence[Tensor],
    ) -> Point:
        """The point with all figures; `released` are the maps of all models, the audited one first."""
        faithful = [self._faithfulness(maps[0]) for maps in released]
        deletion, insertion = (None if None in of else float(np.mean(of)) for of in zip(*faithful, strict=True))
        return Point(
            number=number,
            hardening=hardening,
            options=options,
            leak=leak.excess,
            leak_error=leak.error,
            attack=leak.attack,
            targets=leak.targets,
            name=name,
            deletion=deletion,
            insertion=insertion,
            **kept,
        )

    def _signals(self, released: Sequence[Tensor]) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """Inputs of `LeakMeter.excess`: summaries of each map, and the concatenated maps."""
        rows = [maps.flatten(2) for maps in released]
        each = [summarise(maps.flatten(0, 1)) for maps in rows]
        values = {}
        for name in SUMMARIES:
            columns = [one[name].reshape(rows[0].shape[:2]).numpy() for one in each]
            values[name] = columns[0] if len(columns) == 1 else np.stack(columns, axis=-1)
        return values, torch.cat(rows, dim=2).numpy()

    def _faithfulness(self, maps: Tensor) -> tuple[float | None, float | None]:
        """Deletion and insertion of (n, ...) maps of the audited model; None for maps of another resolution."""
        natives, x = self.natives, self.natives.x
        flat = maps.dim() == 2 and maps.shape[1] == x[0].numel()
        alike = maps.dim() == x.dim() and all(a in (1, b) for a, b in zip(maps.shape[1:], x.shape[1:], strict=True))
        if not (flat or alike):
            return None, None
        found = faithfulness(natives.models[0], x, natives.labels[0], maps, batch_size=natives.batch_size).to_dict()
        return found["deletion"], found["insertion"]
