"""Reference ("shadow") models: trained like the target on random subsets of one pool, so with known membership."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import Undigestable, code_digest, digest
from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.references.dp_training import FrozenAs, with_group_norm
from safexplain.audit.references.parallel import parallel, present
from safexplain.audit.references.recipe import Recipe, Tick, Train, check_examples
from safexplain.audit.references.training import (
    EstimatorTraining,
    ModelCache,
    groups_by_steps,
    is_batchable,
    load_or_train,
    most_together,
    train_models,
)
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

Build = Callable[[int], nn.Module]
"""seed -> a new, untrained model; the global generator is seeded too, so that the seed may be ignored."""


@dataclass(frozen=True, eq=False)
class Shadows:
    """Trained models in eval mode with (m, n) bool membership; InputError unless these have a row for each."""

    models: tuple[nn.Module, ...]
    membership: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.membership.dtype != np.bool_ or self.membership.shape[:1] != (len(self.models),):
            raise InputError(
                f"expected bool membership with a row for each of {len(self.models)} models,"
                f" got {self.membership.dtype} {self.membership.shape}"
            )

    def behind(self, target: nn.Module, member: NDArray[np.bool_]) -> Shadows:
        """With the target, trained on `member` (n,) bool, in front as model 0."""
        return Shadows((target, *self.models), np.concatenate([np.asarray(member, dtype=bool)[None], self.membership]))


def train_shadows(
    population: Population,
    train: Recipe | Train | Any,
    *,
    build: Build | None = None,
    models: int = 16,
    membership: NDArray[np.bool_] | None = None,
    members: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    cache: ModelCache | str | Path | None = None,
    progress: Progress = silent,
) -> Shadows:
    """Train reference models, each on members drawn by its own coin flips.

    Networks of linear layers and activations train as batched computations, others in a plain loop. With `cache`, each
    finished model is stored under a key of recipe, data, members, initial weights and code version, so that an
    interrupted run resumes and a changed one reuses nothing; models that `build` did not make would need pickles and
    are not stored. Everything random about a model follows from `seed` and its number: more models leave the first ones
    bit for bit the same (for batched networks, see `training.train_together`).

    In a `joblib.parallel_config` of several workers, these train. Models are bit for bit those of one process if torch
    computes in as many threads on the same kind of processor, and otherwise equal up to rounding, which grows with
    training. See docs/scale.md.

    Args:
        population: the pool.
        train: a `Recipe` (needs `build`); `train(x, y, generator) -> nn.Module`, called with the global generator
            seeded too; a scikit-learn classifier, which is cloned, seeded if it or its steps have `random_state`, and
            fitted; or an `EstimatorTraining`.
        build: makes an untrained model from a seed.
        models: number of models.
        membership: (models, n) bool to use instead of coin flips.
        members: members per model, drawn at random instead of by coin flips, as with differential privacy.
        seed: of the coin flips, the initial weights and the order of the batches.
        device: where networks train.
        cache: a `ModelCache` or a folder.
        progress: called after each model, and within its training.

    Returns:
        The models, on `device` (on the CPU if only workers have such a device), and their membership.

    Raises:
        ConfigurationError: a Recipe without `build`, or an object that cannot train.
        InputError: the members of a model have fewer than two classes, or training diverged.
    """
    if membership is None:
        member = population.flip(models, seed=seed) if members is None else population.draw(models, members, seed=seed)
    else:
        member = np.asarray(membership, dtype=bool)
    if member.ndim != 2 or member.shape[1] != len(population) or len(member) < 1:
        raise InputError(f"expected membership (models, {len(population)}), got {member.shape}")
    labels = population.y.numpy()
    for i, row in enumerate(member):
        if len(np.unique(labels[row])) < 2:
            raise InputError(
                f"model {i} would train on {int(row.sum())} examples of fewer than two classes; use more data"
            )
    store = ModelCache(cache) if isinstance(cache, str | Path) else cache
    if isinstance(train, Recipe) and build is None:
        raise ConfigurationError("a Recipe needs build=, a function that makes an untrained model from a seed")
    if hasattr(train, "fit") and hasattr(train, "get_params"):
        train = EstimatorTraining(train)
    estimator = isinstance(train, EstimatorTraining)
    if not (estimator or callable(train) or isinstance(train, Recipe)):
        raise ConfigurationTypeError(
            "expected a Recipe, a function train(x, y, generator) or a scikit-learn classifier as train, got"
            f" {train!r:.80}"
        )
    train_key = _train_key(train) if store else ""
    made_of = train_key, population.digest() if train_key else ""
    starts: list[nn.Module | None] = [None] * len(member)
    if build is not None and not estimator and (isinstance(train, Recipe) or train_key):
        starts = [_untrained(train, build, mixed_seed(seed, _base_seed(train), i)) for i in range(len(member))]
    keys = [
        digest(*made_of, row, start, seed, i, code_digest(__name__)) if train_key and (start or estimator) else ""
        for i, (row, start) in enumerate(zip(member, starts, strict=True))
    ]
    job = _Job(train, population, member, seed, torch.device(device))

    def load(i: int) -> nn.Module | None:
        if isinstance(train, EstimatorTraining):
            return train.load(store, keys[i], population.classes)
        start = starts[i]
        return start if store and keys[i] and start is not None and store.load(keys[i], start) else None

    def save(i: int, model: nn.Module) -> None:
        if isinstance(train, EstimatorTraining):
            train.keep(store, keys[i], model)
        elif store and keys[i] and (isinstance(train, Recipe) or _can_rebuild(starts[i], model, population.x[:4])):
            store.save(keys[i], model)

    def groups(missing: list[int]) -> list[list[int]]:
        most = most_together(len(missing))
        if isinstance(train, Recipe) and train.dp is not None and train.dp.trainable == "head":
            size = most if parallel() else max(len(missing), 1)
            return [missing[first : first + size] for first in range(0, len(missing), size)]
        if isinstance(train, Recipe) and starts[0] is not None and is_batchable(starts[0], train):
            return groups_by_steps(train, {i: int(member[i].sum()) for i in missing}, most)
        return [[i] for i in missing]

    made = load_or_train(job, starts, groups, load, save, stage="training", progress=progress)
    return Shadows(tuple(model.to(present(device)) for model in made), member)


class Repeated(NamedTuple):
    """How reference models repeat the training of a target."""

    build: Build | None
    members: int | None  # of each model; None: coin flips

    @classmethod
    def of(
        cls, train: Recipe | Train | Any, build: Build | None, target: nn.Module | None, member: NDArray[np.bool_]
    ) -> Repeated:
        """With the frozen layers (None: unknown) and the number of members, (n,) bool, of a target with differential
        privacy; InputError if, by its recipe, it was trained on more rows than the references would be."""
        dp = train.dp if isinstance(train, Recipe) else None
        if isinstance(train, Recipe):
            check_examples(train.examples, len(member) // 2 if dp is None else int(member.sum()))
        if dp is None:
            return cls(build, None)
        if build is not None and target is not None and dp.trainable != "lora":
            build = FrozenAs(build, copy.deepcopy(target).cpu(), dp)  # adapters are merged into the layers beside them
        return cls(build, int(member.sum()))


def _train_key(train: Any) -> str:
    """Digest of `train`; "" if it has no identity that is stable across runs."""
    if isinstance(train, EstimatorTraining):
        return train.key()
    try:
        return digest(train.to_toml() if isinstance(train, Recipe) else train)
    except Undigestable:
        return ""


def _base_seed(train: object) -> int:
    return train.seed if isinstance(train, Recipe) else 0


def _untrained(train: Any, build: Build, seed: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = build(seed % 2**31)
        return model if not isinstance(train, Recipe) or train.dp is None else with_group_norm(model, train.dp.prepared)


@dataclass(frozen=True, eq=False)
class _Job:
    """Trains the models with the numbers `places`, here or in a worker."""

    train: Any
    population: Population
    member: NDArray[np.bool_]
    seed: int
    device: torch.device

    def __call__(self, places: list[int], starts: list[nn.Module], tick: Tick) -> list[nn.Module]:
        """The trained models of these places, on the CPU."""
        members = [np.flatnonzero(self.member[place]) for place in places]
        if isinstance(self.train, Recipe):
            models, index = [start.to(self.device) for start in starts], [torch.from_numpy(rows) for rows in members]
            x, y, generators = self.population.x, self.population.y, [self._generator(place) for place in places]
            train_models(self.train, models, x, y, index, generators, tick)
            return [model.cpu() for model in models]
        one = self._by_estimator if isinstance(self.train, EstimatorTraining) else self._by_function
        return [
            one(place, self.population.x[rows], self.population.y[rows]).cpu()
            for place, rows in zip(places, members, strict=True)
        ]

    def _by_function(self, place: int, x: Tensor, y: Tensor) -> nn.Module:
        generator = self._generator(place)
        with torch.random.fork_rng([]):
            torch.manual_seed(generator.initial_seed())
            model: Any = self.train(x, y, generator)
        if not isinstance(model, nn.Module):
            raise ConfigurationTypeError(
                f"expected an nn.Module from train(x, y, generator), got {type(model).__name__}"
            )
        return model

    def _by_estimator(self, place: int, x: Tensor, y: Tensor) -> nn.Module:
        seed, classes = mixed_seed(self.seed, 0, place) % 2**31, self.population.classes
        return cast("EstimatorTraining", self.train).fitted(x.flatten(1).numpy(), y.numpy(), classes=classes, seed=seed)

    def _generator(self, place: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self.seed, _base_seed(self.train) + 1, place))


def _can_rebuild(start: nn.Module | None, model: nn.Module, x: Tensor) -> bool:
    """Whether the model that `build` made gives the same outputs with the weights of a function's model."""
    if start is None:
        return False
    expected = {name: t.shape for name, t in start.state_dict().items()}
    state = model.state_dict()
    if {name: t.shape for name, t in state.items()} != expected:
        return False
    start.load_state_dict(state)
    with torch.no_grad():
        one, other = (m.eval()(x.cpu()) for m in (start.cpu(), model))
    return torch.equal(one, other)


def mixed_seed(*parts: int) -> int:
    """A seed of 63 bits from several integers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1
