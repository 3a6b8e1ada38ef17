"""Native maps of every model, computed once for each set of explainer options, and what a hardening makes of them.

A map is kept at the resolution at which it is hardened: groups of features (superpixels, windows) are one number each,
as the hardened classes have it. Hardening is exact, noise included: it is drawn under a key of the search's own, which
is nobody's secret and stands in no file.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain._files import PieceStore
from safexplain._progress import Progress, silent
from safexplain.audit.run import Method
from safexplain.errors import InputError
from safexplain.explain.feature_groups import find_groups, harden_groups
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import Probability

MOST_KEPT = 1 << 30
"""Bytes of native maps held in memory; above it, the set of options that was used longest ago is computed again."""

LONG = 2.0
"""Seconds from which on the maps of a set of options are kept on disk too, where the study is."""

AFTER = ("interpolate_mode",)
"""Options that only enlarge what was released, after hardening: maps are compared before."""


@dataclass(frozen=True, eq=False)
class Maps:
    """Native maps of one explainer.

    Args:
        values: (m, n, ...) float32 on the CPU.
        groups: (1 or n, d) the group of each place of a map, of `feature_groups`; None: each place by itself.
    """

    values: Tensor
    groups: Tensor | None = None


class Natives:
    """Asks models for native maps.

    Args:
        models: m models, the audited one first.
        x: (n, ...) examples.
        labels: (m, n) int64, the class that each model predicts, which is explained.
        methods: explainers that are released together.
        softmax: whether `Probability` goes over the models.
        batch_size: examples a call.
        seed: of explainers that draw at random, and of noise.
        folder: where maps are kept that took long; None: nowhere.
        identity: of models and examples, which names the files.
        progress: told about each model, where it takes long.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        x: Tensor,
        labels: Tensor,
        methods: Sequence[Method],
        *,
        softmax: bool,
        batch_size: int = 256,
        seed: int = 0,
        folder: Path | None = None,
        identity: str = "",
        progress: Progress = silent,
    ) -> None:
        self.models, self.x, self.labels, self.methods = tuple(models), x.cpu(), labels, tuple(methods)
        self.softmax, self.batch_size, self.seed = softmax, batch_size, seed
        self._store = None if folder is None else PieceStore(folder, "native maps")
        self._identity, self._progress = identity, progress
        self._kept: dict[str, tuple[Maps, ...]] = {}
        self._key = hashlib.blake2b(f"tune {seed}".encode(), digest_size=32).digest()

    def maps(self, options: Mapping[str, Mapping[str, Any]]) -> tuple[Maps, ...]:
        """Native maps of every explainer.

        Args:
            options: name of an explainer -> arguments that replace those of the method.

        Raises:
            InputError: an explanation fails, or is not finite.
        """
        name = json.dumps({n: dict(o) for n, o in options.items() if o}, sort_keys=True, default=repr)
        if name in self._kept:
            self._kept[name] = self._kept.pop(name)  # used last
            return self._kept[name]
        found = tuple(self._of(method, dict(options.get(method.name, {}))) for method in self.methods)
        self._kept[name] = found
        while len(self._kept) > 1 and sum(4 * m.values.numel() for k in self._kept.values() for m in k) > MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return found

    def release(self, maps: Sequence[Maps], hardening: Hardening, models: Sequence[int] | None = None) -> list[Tensor]:
        """What a hardening makes of native maps, (models, n, ...) for each explainer.

        Args:
            maps: as `self.maps` gives them.
            hardening: noise is drawn under this search's key, independently for each model.
            models: indices; None: all.
        """
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

    def _of(self, method: Method, options: dict[str, Any]) -> Maps:
        arguments = {k: v for k, v in {**method.arguments, **options}.items() if k not in AFTER}
        name = hashlib.sha256(
            json.dumps([self._identity, method.name, arguments], sort_keys=True, default=repr).encode()
        )
        file = f"{name.hexdigest()}.npy"
        if self._store is not None and (kept := self._store.load(file, _read)) is not None:
            return Maps(kept, self._groups(method, arguments, kept))
        began = time.monotonic()
        values = self._ask(method, arguments, name.digest())
        if self._store is not None and time.monotonic() - began > LONG:
            self._store.save(file, lambda path: _write(path, values))
        return Maps(values, self._groups(method, arguments, values))

    def _ask(self, method: Method, arguments: dict[str, Any], name: bytes) -> Tensor:
        """(m, n, ...) maps; what draws at random draws the same for the same options."""
        asked, found = method._replace(arguments=arguments), []
        with torch.random.fork_rng([]):
            state = np.random.get_state()  # noqa: NPY002 - what explainers draw from
            try:
                torch.manual_seed(int.from_bytes(name[:4], "little"))
                np.random.seed(int.from_bytes(name[4:8], "little"))  # noqa: NPY002
                for i, model in enumerate(self.models):
                    place = next((p.device for p in model.parameters()), self.x.device)
                    forward = Probability(model) if self.softmax else model
                    parts = [
                        asked(forward, Hardening.none(), x.to(place), label.to(place)).detach().float().cpu()
                        for x, label in zip(
                            torch.split(self.x, self.batch_size),
                            torch.split(self.labels[i], self.batch_size),
                            strict=True,
                        )
                    ]
                    found.append(torch.cat(parts))
                    self._progress("native maps", i + 1, len(self.models))
            finally:
                np.random.set_state(state)  # noqa: NPY002
        maps = torch.stack(found)
        if not bool(torch.isfinite(maps).all()):
            raise InputError(f"{method.name} gives maps that are not finite with {arguments}")
        return maps

    def _groups(self, method: Method, arguments: dict[str, Any], values: Tensor) -> Tensor | None:
        """As hardened classes group the places of a map, where a mask or a window is among the arguments."""
        row = getattr(method.make, "row", None)
        if row is None or row.of != "input" or values.shape[2:] != self.x.shape[1:]:
            return None
        found = find_groups(row.options(self.x, arguments), (self.x,))
        if found is None:
            return None
        groups = found.canonical((self.x,))
        if bool((groups == torch.arange(groups.shape[1])).all()):
            return None
        return groups


def _read(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path, allow_pickle=False))


def _write(path: Path, values: Tensor) -> None:
    with path.open("wb") as file:
        np.save(file, values.numpy())
