"""Native maps of every model, computed once for each set of explainer options, and their hardened versions.

Hardening is exact and includes noise, under a key of the search that is not secret and is in no file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain._progress import as_stage
from safexplain.audit.answers import Predictions, explanations_of
from safexplain.audit.population import Population
from safexplain.audit.question import Method, Question, Release
from safexplain.audit.store import Store
from safexplain.explain.feature_groups import find_groups, harden_groups
from safexplain.explain.libraries import global_generators
from safexplain.hardening.hardening import Hardening

MOST_KEPT = 1 << 30
"""Most bytes of native maps in memory; beyond, the least recently used set of options is computed again."""

AFTER = ("interpolate_mode",)  # options that only enlarge maps after hardening; maps are compared before


@dataclass(frozen=True, eq=False)
class Maps:
    """Native maps of one explainer."""

    values: Tensor  # (m, n, ...) float32 on the CPU
    groups: Tensor | None = None  # (1 or n, d) group of each entry, of `feature_groups`; None: each by itself


def with_options(methods: Sequence[Method], options: Mapping[str, Any]) -> list[Method]:
    """Explainers with the options of a point, which are by name if there are several."""
    given = [options if len(methods) == 1 else options.get(m.name, {}) for m in methods]
    return [m._replace(arguments={**m.arguments, **o}) for m, o in zip(methods, given, strict=True)]


@dataclass(eq=False)
class Natives:
    """Computes native maps of m models for the predicted classes of n examples, by the explainers of a question."""

    question: Question
    models: Sequence[nn.Module]  # the audited one first
    population: Population
    predictions: Predictions
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self.methods = [
            m._replace(arguments={k: v for k, v in m.arguments.items() if k not in AFTER})
            for m in self.question.methods
        ]
        self.softmax = self.question.puts_softmax(self.models[0])
        self.batch_size = self.question.options.batch_size
        self.x, self.labels = self.population.x.cpu(), torch.from_numpy(self.predictions.label).long()
        self._kept: dict[str, tuple[Maps, ...]] = {}
        self._key = hashlib.blake2b(f"tune {self.question.seed}".encode(), digest_size=32).digest()

    def maps(self, options: Mapping[str, Any]) -> tuple[Maps, ...]:
        """Native maps of every explainer, with the options of a point.

        Raises:
            InputError: an explanation fails, or is not finite.
        """
        name = json.dumps(options, sort_keys=True, default=repr)
        if name in self._kept:
            self._kept[name] = self._kept.pop(name)  # most recently used
            return self._kept[name]
        methods = with_options(self.methods, options)
        drawing = _Drawing(Release(tuple(methods), Hardening.none(), self.softmax, False), self.question.seed)
        found = explanations_of(
            self.models,
            self.population,
            self.predictions,
            [drawing] * len(self.models),
            batch_size=self.batch_size,
            store=self.store,
            progress=as_stage(self.question.progress, "native maps"),
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
        """Hardened native maps of these models (None: all), (models, n, ...) for each explainer."""
        hardening = hardening.with_key(self._key)
        chosen = range(len(self.models)) if models is None else models
        return [
            torch.stack([self._hardened(one, method.name, hardening, model) for model in chosen])
            for one, method in zip(maps, self.methods, strict=True)
        ]

    def _hardened(self, maps: Maps, method: str, hardening: Hardening, model: int) -> Tensor:
        def harden(values: Tensor, rows: slice) -> Tensor:
            inputs = self.x[rows], torch.full((len(values), 1), model)
            return hardening(values, inputs=inputs, target=self.labels[model, rows], method=method)

        values = maps.values[model]
        if maps.groups is None or hardening.is_none:
            return harden(values, slice(None))
        return harden_groups((values,), maps.groups, harden)[0]

    def _groups(self, method: Method, values: Tensor) -> Tensor | None:
        """The groups of entries in the hardened classes, if a mask or window is among the arguments."""
        row = getattr(method.make, "row", None)
        if row is None or row.of != "input" or values.shape[2:] != self.x.shape[1:]:
            return None
        found = find_groups(row.options(self.x, method.arguments), (self.x,))
        groups = None if found is None else found.canonical((self.x,))
        return None if groups is None or bool((groups == torch.arange(groups.shape[1])).all()) else groups


@dataclass(frozen=True, eq=False)
class _Drawing:
    """A release whose explainers use the same seed each time and restore the global generators."""

    release: Release
    seed: int

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor | list[Tensor]:
        with global_generators(()):
            torch.manual_seed(self.seed)
            np.random.seed(self.seed % 2**32)  # noqa: NPY002 - what explainers draw from
            return self.release(model, x, target)
