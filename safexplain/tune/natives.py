"""Native maps of every model, computed once for each set of explainer options, and what a hardening makes of them.

A map is kept at the resolution at which it is hardened: groups of features (superpixels, windows) are one number each,
as the hardened classes have it. Hardening is exact, noise included: it is drawn under a key of the search's own, which
is nobody's secret and stands in no file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain._progress import Progress, named, silent
from safexplain.audit.asked import Predictions, explanations_of
from safexplain.audit.population import Population
from safexplain.audit.question import Method, Release
from safexplain.audit.store import Store
from safexplain.explain.feature_groups import find_groups, harden_groups
from safexplain.hardening.hardening import Hardening

MOST_KEPT = 1 << 30
"""Bytes of native maps held in memory; above it, the set of options that was used longest ago is asked for again."""

AFTER = ("interpolate_mode",)
"""Options that only enlarge what was released, after hardening: maps are compared before."""


@dataclass(frozen=True, eq=False)
class Maps:
    """Native maps of one explainer."""

    values: Tensor  # (m, n, ...) float32 on the CPU
    groups: Tensor | None = None  # (1 or n, d) of each place of a map, of `feature_groups`; None: each by itself


class Natives:
    """Asks m models for native maps about n examples, of the classes that `predictions` say.

    `softmax` says whether `Probability` goes over the models, `seed` is of explainers that draw at random and of noise.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        population: Population,
        predictions: Predictions,
        methods: Sequence[Method],
        *,
        softmax: bool,
        batch_size: int = 256,
        seed: int = 0,
        store: Store | None = None,
        progress: Progress = silent,
    ) -> None:
        self.models, self.population, self.methods = tuple(models), population, tuple(methods)
        self.x, self.labels = population.x.cpu(), torch.from_numpy(predictions.label).long()
        self.softmax, self.batch_size, self.seed = softmax, batch_size, seed
        self._predictions, self._store, self._progress = predictions, store, progress
        self._kept: dict[str, tuple[Maps, ...]] = {}
        self._key = hashlib.blake2b(f"tune {seed}".encode(), digest_size=32).digest()

    def maps(self, options: Mapping[str, Mapping[str, Any]]) -> tuple[Maps, ...]:
        """Native maps of every explainer, with options by its name that replace those of the method.

        Raises:
            InputError: an explanation fails, or is not finite.
        """
        name = json.dumps({n: dict(o) for n, o in options.items() if o}, sort_keys=True, default=repr)
        if name in self._kept:
            self._kept[name] = self._kept.pop(name)  # used last
            return self._kept[name]
        methods = []
        for m in self.methods:
            arguments = {**m.arguments, **options.get(m.name, {})}
            methods.append(m._replace(arguments={k: v for k, v in arguments.items() if k not in AFTER}))
        drawing = _Drawing(Release(tuple(methods), Hardening.none(), self.softmax, False), self.seed)
        found = explanations_of(
            self.models,
            self.population,
            self._predictions,
            [drawing] * len(self.models),
            batch_size=self.batch_size,
            store=self._store,
            progress=named(self._progress, "native maps"),
        )
        sizes = [math.prod(shape) for shape in found.shapes]
        split = torch.split(torch.from_numpy(np.asarray(found.maps[1])), sizes, dim=2)
        each = [part.reshape(*part.shape[:2], *shape) for part, shape in zip(split, found.shapes, strict=True)]
        made = tuple(Maps(v, self._groups(m, v)) for m, v in zip(methods, each, strict=True))
        self._kept[name] = made
        while len(self._kept) > 1 and sum(4 * m.values.numel() for k in self._kept.values() for m in k) > MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return made

    def release(self, maps: Sequence[Maps], hardening: Hardening, models: Sequence[int] | None = None) -> list[Tensor]:
        """What a hardening makes of native maps of these models (None: all), (models, n, ...) for each explainer; noise
        is drawn under this search's key, independently for each model."""
        hardening = hardening.with_key(self._key)
        chosen = list(range(len(self.models)) if models is None else models)
        return [self._harden(one, name.name, hardening, chosen) for one, name in zip(maps, self.methods, strict=True)]

    def _harden(self, maps: Maps, method: str, hardening: Hardening, models: list[int]) -> Tensor:
        values = maps.values[models]
        if hardening.is_none:
            return values
        noise = hardening.noise is not None
        m, n = values.shape[:2]

        def harden(values: Tensor, model: Tensor, example: Tensor) -> Tensor:
            if not noise:
                return hardening(values)
            inputs, target = (self.x[example], model[:, None]), self.labels[model, example]
            return hardening(values, inputs=inputs, target=target, method=method)

        if maps.groups is None:
            model = torch.tensor(models).repeat_interleave(n)
            return harden(values.flatten(0, 1), model, torch.arange(n).repeat(m)).view_as(values)
        out = torch.empty_like(values)
        for i, index in enumerate(models):

            def of_rows(part: Tensor, rows: slice, index: int = index) -> Tensor:
                example = torch.arange(n)[rows]
                return harden(part, torch.full_like(example, index), example)

            out[i] = harden_groups((values[i],), maps.groups, of_rows)[0]
        return out

    def _groups(self, method: Method, values: Tensor) -> Tensor | None:
        """As hardened classes group the places of a map, where a mask or a window is among the arguments."""
        row = getattr(method.make, "row", None)
        if row is None or row.of != "input" or values.shape[2:] != self.x.shape[1:]:
            return None
        found = find_groups(row.options(self.x, method.arguments), (self.x,))
        if found is None:
            return None
        groups = found.canonical((self.x,))
        if bool((groups == torch.arange(groups.shape[1])).all()):
            return None
        return groups


@dataclass(frozen=True, eq=False)
class _Drawing:
    """A release whose explainers draw at random from the same seed each time, and leave the generators alone."""

    release: Release
    seed: int

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor | list[Tensor]:
        with torch.random.fork_rng([]):
            state = np.random.get_state()  # noqa: NPY002 - what explainers draw from
            try:
                torch.manual_seed(self.seed)
                np.random.seed(self.seed % 2**32)  # noqa: NPY002
                return self.release(model, x, target)
            finally:
                np.random.set_state(state)  # noqa: NPY002
