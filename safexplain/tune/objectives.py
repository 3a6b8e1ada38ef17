"""What a release costs and what it leaves, on the examples of the selection split: utility first, which is cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit.asked import SUMMARIES, summarise
from safexplain.audit.usefulness import utility
from safexplain.errors import InputError
from safexplain.faithfulness import faithfulness
from safexplain.hardening.hardening import Hardening
from safexplain.tune.leak import FEW, MANY, Leakage, LeakMeter
from safexplain.tune.natives import Natives
from safexplain.tune.result import NORMAL, Point

ROWS = 2000
"""Explanations on which utility is measured, at most: those of the audited model, then of further ones."""

Options = Mapping[str, Mapping[str, Any]]
"""Name of an explainer -> arguments that replace those of the search."""


@dataclass(frozen=True)
class Kept:
    """What is left of the native maps; each a mean over explanations, and over explainers. See `Point`."""

    overlap: float
    rank_correlation: float
    cosine: float
    sign_errors: float

    @property
    def utility(self) -> float:
        """The mean of overlap, rank correlation and cosine."""
        return (self.overlap + self.rank_correlation + self.cosine) / 3


@dataclass(frozen=True, eq=False)
class Objectives:
    """Measures releases of some models about some examples."""

    natives: Natives
    meter: LeakMeter
    model: nn.Module  # the audited one, for faithfulness

    def kept(self, hardening: Hardening, options: Options) -> Kept:
        """How much a release keeps of the native maps that the search's own options give.

        Raises:
            InputError: the explainer refuses the options, or gives maps of another shape.
        """
        return self.kept_of(self.natives.release(self.natives.maps(options), hardening, self.few))

    def kept_of(self, released: Sequence[Tensor]) -> Kept:
        """The same of released maps of the first models."""
        found = []
        for native, maps in zip(self.natives.maps({}), released, strict=True):
            values = native.values[: len(maps)]
            if values.shape != maps.shape:
                raise InputError(
                    f"with these options maps have the shape {tuple(maps.shape[2:])}, the native ones"
                    f" {tuple(values.shape[2:])}: they cannot be compared"
                )
            u = utility(values.flatten(0, 1).numpy(), maps.flatten(0, 1).numpy())
            found.append((u.top_overlap, u.rank_correlation, u.cosine, u.sign_errors))
        return Kept(*np.mean(found, axis=0).tolist())

    def measured(
        self,
        number: int,
        hardening: Hardening,
        options: Options,
        kept: Kept,
        *,
        hopeless: Callable[[float, float], bool] = lambda utility, leak: False,
        name: str = "",
    ) -> Point:
        """The point of a release: its leak by few targets, by more unless it is `hopeless` (utility, least leak), and
        faithfulness. The leak is the larger of two: with the noise averaged away, and as it is."""
        natives = self.natives.maps(options)
        views = [hardening] if hardening.noise is None else [hardening.without_noise(), hardening]
        released = [self.natives.release(natives, view) for view in views]
        leak = self.leak_of(released, lambda leak: hopeless(kept.utility, leak))
        return self.point(number, hardening, self.plain_options(options), kept, leak, released[-1], name)

    def plain_options(self, options: Options) -> dict[str, Any]:
        """As a point has them: without the name of the explainer if there is only one."""
        named = {name: dict(of) for name, of in options.items() if of}
        return named if len(self.natives.methods) > 1 else next(iter(named.values()), {})

    def leak_of(self, views: Sequence[Sequence[Tensor]], hopeless: Callable[[float], bool]) -> Leakage:
        """The larger leak of several views of the same release; by few targets, if these show that it is hopeless."""
        signals = [self._signals(maps) for maps in views]
        few, many = self.meter.targets[:FEW], self.meter.targets[:MANY]
        worst = max((self.meter.excess(*one, few) for one in signals), key=lambda one: one.excess)
        if len(few) == len(many) or hopeless(worst.excess - 2 * NORMAL * worst.error):
            return worst
        return max((self.meter.excess(*one, many) for one in signals), key=lambda one: one.excess)

    def point(
        self,
        number: int,
        hardening: Hardening,
        options: dict[str, Any],
        kept: Kept,
        leak: Leakage,
        released: Sequence[Tensor],
        name: str = "",
    ) -> Point:
        """All figures together; `released` are the maps of all models, the audited one first."""
        faith = [self._faithful(maps[0]) for maps in released]
        deletion, insertion = (None if None in of else float(np.mean(of)) for of in zip(*faith, strict=True))
        return Point(
            number=number,
            hardening=hardening,
            options=options,
            leak=leak.excess,
            leak_error=leak.error,
            utility=kept.utility,
            deletion=deletion,
            insertion=insertion,
            **asdict(kept),
            attack=leak.attack,
            targets=leak.targets,
            name=name,
        )

    @property
    def few(self) -> range:
        """The models on whose maps utility is measured."""
        m, n = self.natives.labels.shape
        return range(min(m, max(1, ROWS // n)))

    def _signals(self, released: Sequence[Tensor]) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """What `LeakMeter.excess` reads: summaries of each map, and the maps side by side."""
        rows = [maps.flatten(2) for maps in released]
        m, n = rows[0].shape[:2]
        each = [summarise(maps.flatten(0, 1)) for maps in rows]
        values = {}
        for name in SUMMARIES:
            columns = [one[name].reshape(m, n).numpy() for one in each]
            values[name] = columns[0] if len(columns) == 1 else np.stack(columns, axis=-1)
        return values, torch.cat(rows, dim=2).numpy()

    def _faithful(self, maps: Tensor) -> tuple[float | None, float | None]:
        """Deletion and insertion of (n, ...) maps of the audited model; None for maps of another resolution."""
        x = self.natives.x
        flat = maps.dim() == 2 and maps.shape[1] == x[0].numel()
        alike = maps.dim() == x.dim() and all(a in (1, b) for a, b in zip(maps.shape[1:], x.shape[1:], strict=True))
        if not (flat or alike):
            return None, None
        found = faithfulness(self.model, x, self.natives.labels[0], maps, batch_size=self.natives.batch_size).to_dict()
        return found["deletion"], found["insertion"]
