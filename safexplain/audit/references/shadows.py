"""Reference ("shadow") models: trained like the target on coin-flip subsets of one pool, so with known membership."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain._digest import Undigestable, code_digest, digest
from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.recipe import Recipe, Tick, Train
from safexplain.audit.references.cache import ModelCache, load_or_train
from safexplain.audit.references.training import fit_estimator, train_models
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

Build = Callable[[int], nn.Module]
"""seed -> a new, untrained model; also called with the global generator seeded, so that ignoring the seed is fine."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """Models with known membership.

    Args:
        models: m trained models in eval mode.
        membership: (m, n) bool over the population.
        numbers: m whole numbers, each once: the models' own, by which they were seeded. Left out: 0 .. m - 1.

    Raises:
        InputError: rows of membership, or numbers, that are not as many as the models; a number twice.
    """

    models: tuple[nn.Module, ...]
    membership: NDArray[np.bool_]
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.membership.dtype != np.bool_ or self.membership.shape[:1] != (len(self.models),):
            raise InputError(
                f"expected bool membership with a row for each of {len(self.models)} models,"
                f" got {self.membership.dtype} {self.membership.shape}"
            )
        given = self.numbers is not None and len(self.numbers) > 0
        numbers = tuple(int(i) for i in self.numbers) if given else tuple(range(len(self.models)))
        if len(numbers) != len(self.models) or len(set(numbers)) < len(numbers):
            raise InputError(f"numbers: expected one for each of {len(self.models)} models, each once, got {numbers}")
        object.__setattr__(self, "numbers", numbers)

    def behind(self, target: nn.Module, member: NDArray[np.bool_]) -> Shadows:
        """The same with `target`, whose members are `member` (n,) bool, in front as model 0.

        Its number is -1, which no reference model has, or the next one below that is free.
        """
        rows = np.concatenate([np.asarray(member, dtype=bool)[None], self.membership])
        return Shadows((target, *self.models), rows, (min(0, *self.numbers, 0) - 1, *self.numbers))


def train_shadows(
    population: Population,
    train: Recipe | Train | Any,
    *,
    build: Build | None = None,
    models: int = 16,
    membership: NDArray[np.bool_] | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    cache: ModelCache | str | Path | None = None,
    progress: Progress = silent,
) -> Shadows:
    """Train reference models, each on the members that its own coin flips chose.

    Networks of linear layers and activations train as batched computations, others in a plain loop. With `cache`, each
    finished model is stored under a key of recipe, data, members, initial weights and code version: an interrupted run
    resumes, a changed one does not reuse. Models that are not built by `build` (a callable without it, scikit-learn
    estimators) would need pickles and are not stored.

    Args:
        population: the pool.
        train: a `Recipe` (needs `build`); or `train(x, y, generator) -> nn.Module`, called with the global generator
            seeded too; or a scikit-learn classifier, which is cloned, seeded where it or its steps have
            `random_state`, and fitted.
        build: makes an untrained model from a seed.
        models: how many.
        membership: (models, n) bool to use instead of coin flips.
        seed: of the coin flips, the initial weights and the order of the batches.
        device: where networks train.
        cache: a `ModelCache` or a folder.
        progress: told after each model.

    Returns:
        The models, on `device`, and their membership.

    Raises:
        ConfigurationError: a Recipe without `build`, or something that cannot train.
        InputError: a model would have members of fewer than two classes, or training diverged.
    """
    member = population.flip(models, seed=seed) if membership is None else np.asarray(membership, dtype=bool)
    if member.ndim != 2 or member.shape[1] != len(population) or len(member) < 1:
        raise InputError(f"expected membership (models, {len(population)}), got {member.shape}")
    labels = population.y.numpy()
    for i, row in enumerate(member):
        if len(np.unique(labels[row])) < 2:
            raise InputError(
                f"model {i} would train on {int(row.sum())} examples of fewer than two classes; use more data"
            )
    store = ModelCache(cache) if isinstance(cache, str | Path) else cache
    job = _Job(population, member, seed, torch.device(device), store, progress)
    if isinstance(train, Recipe):
        if build is None:
            raise ConfigurationError("a Recipe trains what build(seed) makes: pass build=")
        return Shadows(tuple(job.by_recipe(train, build)), member)
    if hasattr(train, "fit") and hasattr(train, "get_params"):
        return Shadows(tuple(job.by_estimator(train)), member)
    if callable(train):
        return Shadows(tuple(job.by_callable(train, build)), member)
    raise ConfigurationTypeError(
        f"train must be a Recipe, a callable train(x, y, generator) or a scikit-learn classifier, got {train!r:.80}"
    )


@dataclass(frozen=True, eq=False)
class _Job:
    population: Population
    member: NDArray[np.bool_]
    seed: int
    device: torch.device
    store: ModelCache | None
    progress: Progress

    def by_recipe(self, recipe: Recipe, build: Build) -> list[nn.Module]:
        recipe_key = digest(recipe.to_toml())
        initial = [self._new(build, recipe.seed, i) for i in range(len(self.member))]
        keys = [
            "" if self.store is None else self._key(recipe_key, self.member[i], m, i) for i, m in enumerate(initial)
        ]
        models = [model.to(self.device) for model in initial]
        x, y = self.population.x, self.population.y

        def train(
            group: list[int], tick: Tick, finished: Callable[[int], None], checkpoints: list[Path | None]
        ) -> None:
            index = [torch.from_numpy(np.flatnonzero(self.member[i])) for i in group]
            generators = [self._generator(recipe.seed, i) for i in group]
            chosen = [models[i] for i in group]
            train_models(recipe, chosen, x, y, index, generators, tick, finished=finished, checkpoints=checkpoints)

        return load_or_train(
            models, keys, self.store, lambda missing: [missing], train, stage="training", progress=self.progress
        )

    def by_callable(self, train: Train, build: Build | None) -> list[nn.Module]:
        try:
            train_key = digest(train)
        except Undigestable:
            train_key = ""
        models = []
        for i, row in enumerate(self.member):
            model = self._new(build, 0, i) if build and self.store and train_key else None
            key = self._key(train_key, row, model, i) if model else ""
            if not (model and self.store and self.store.load(key, model)):
                index = torch.from_numpy(np.flatnonzero(row))
                generator = self._generator(0, i)
                with torch.random.fork_rng([]):
                    torch.manual_seed(generator.initial_seed())
                    model = train(self.population.x[index], self.population.y[index], generator)
                if not isinstance(model, nn.Module):
                    raise ConfigurationTypeError(
                        f"train(x, y, generator) must return a module, got {type(model).__name__}"
                    )
                if key and self.store:
                    self.store.save(key, model)
            models.append(model.to(self.device).eval())
            self.progress("training", i + 1, len(self.member))
        return models

    def by_estimator(self, estimator: Any) -> list[nn.Module]:
        models: list[nn.Module] = []
        x, y = self.population.x.flatten(1).numpy(), self.population.y.numpy()
        for i, row in enumerate(self.member):
            seed = mixed_seed(self.seed, 0, i) % 2**31
            models.append(fit_estimator(estimator, x[row], y[row], classes=self.population.classes, seed=seed))
            self.progress("training", i + 1, len(self.member))
        return models

    def _new(self, build: Build, base: int, i: int) -> nn.Module:
        with torch.random.fork_rng([]):
            seed = mixed_seed(self.seed, base, i)
            torch.manual_seed(seed)
            return build(seed % 2**31)

    def _generator(self, base: int, i: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self.seed, base + 1, i))

    def _key(self, train_key: str, row: NDArray[np.bool_], initial: nn.Module, i: int) -> str:
        parts = (train_key, self._data_key, row, initial, self.seed, i, self.device.type, code_digest(__name__))
        return digest(*parts)

    @cached_property
    def _data_key(self) -> str:
        return self.population.digest()


def mixed_seed(*parts: int) -> int:
    """A seed of 63 bits from several whole numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1
