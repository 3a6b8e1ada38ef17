"""Reference ("shadow") models: trained like the target on coin-flip subsets of one pool, so with known membership."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import Undigestable, code_digest, digest
from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.recipe import Recipe, Tick, Train, check_examples
from safexplain.audit.references.cache import ModelCache, load_or_train
from safexplain.audit.references.dp_training import as_it_trains, starting
from safexplain.audit.references.executors import (
    Executor,
    check_code,
    check_executor,
    parted,
    present,
    train_elsewhere,
    weights_as_bytes,
)
from safexplain.audit.references.training import EstimatorTraining, is_batchable, train_models
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
    only: Iterable[int] | None = None,
    membership: NDArray[np.bool_] | None = None,
    members: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    cache: ModelCache | str | Path | None = None,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> Shadows:
    """Train reference models, each on the members that its own coin flips chose.

    Networks of linear layers and activations train as batched computations, others in a plain loop. With `cache`, each
    finished model is stored under a key of recipe, data, members, initial weights and code version: an interrupted run
    resumes, a changed one does not reuse. Models that are not built by `build` would need pickles and are not stored;
    of estimators, an `EstimatorTraining` may know how they are written without.

    Everything random about a model follows from `seed` and its own number: a part of the models, and more of them, are
    bit for bit those of the whole (networks that train as batched computations: see `training.train_together`).

    With `executor`, groups of models are trained wherever that sends them. They are bit for bit those of one process
    where torch computes in as many threads on the same kind of processor, and else the same within rounding, which
    grows with training. Workers that see the cache store what they finish, so that a worker that dies loses one group
    at most, and that is sent again. See docs/scale.md.

    Args:
        population: the pool.
        train: a `Recipe` (needs `build`); or `train(x, y, generator) -> nn.Module`, called with the global generator
            seeded too; or a scikit-learn classifier, which is cloned, seeded where it or its steps have
            `random_state`, and fitted; or an `EstimatorTraining`, which says more of one.
        build: makes an untrained model from a seed.
        models: how many.
        only: numbers of the models that are trained, a part of 0 .. models - 1; None: all.
        membership: (models, n) bool to use instead of coin flips; also with `only` it has a row for every model.
        members: how many members each model has, drawn at random instead of by coin flips: as many as the target, where
            the number shapes the training, as it does with differential privacy.
        seed: of the coin flips, the initial weights and the order of the batches.
        device: where networks train.
        cache: a `ModelCache` or a folder.
        executor: anything with `submit(fn, *args)` whose result has `.result()`: pools of `concurrent.futures`, loky,
            `dask.distributed.Client.get_executor()`, submitit's executors, `ray_executor()`. None: this process.
        progress: told after each model, and within.

    Returns:
        The models, on `device` (with an executor: on the CPU where this process has no such device), their membership
        and their numbers.

    Raises:
        ConfigurationError: a Recipe without `build`, or something that cannot train, or cannot be sent to workers.
        InputError: a model would have members of fewer than two classes, training diverged, or `only` names a model
            twice, none, or one that there is not.
    """
    check_executor(executor)
    if membership is None:
        member = population.flip(models, seed=seed) if members is None else population.draw(models, members, seed=seed)
    else:
        member = np.asarray(membership, dtype=bool)
    if member.ndim != 2 or member.shape[1] != len(population) or len(member) < 1:
        raise InputError(f"expected membership (models, {len(population)}), got {member.shape}")
    numbers = _numbers(only, len(member))
    member = member[list(numbers)]
    labels = population.y.numpy()
    for i, row in zip(numbers, member, strict=True):
        if len(np.unique(labels[row])) < 2:
            raise InputError(
                f"model {i} would train on {int(row.sum())} examples of fewer than two classes; use more data"
            )
    store = ModelCache(cache) if isinstance(cache, str | Path) else cache
    if isinstance(train, Recipe) and build is None:
        raise ConfigurationError("a Recipe trains what build(seed) makes: pass build=")
    if hasattr(train, "fit") and hasattr(train, "get_params"):
        train = EstimatorTraining(train)
    estimator = isinstance(train, EstimatorTraining)
    if not (estimator or callable(train) or isinstance(train, Recipe)):
        raise ConfigurationTypeError(
            f"train must be a Recipe, a callable train(x, y, generator) or a scikit-learn classifier, got {train!r:.80}"
        )
    job = _Job(
        train=train,
        build=None if estimator else build,
        train_key=_train_key(train) if store else "",
        x=population.x,
        y=population.y,
        classes=population.classes,
        data_key=population.digest() if store else "",
        member=member,
        numbers=numbers,
        seed=seed,
        device=torch.device(device),
        folder=store.folder if store else None,
        code=code_digest(__name__) if executor is not None else "",
    )
    starts = [job.start(place) for place in range(len(member))]
    kept = estimator and executor is None  # what workers send back is an estimator, which is no tensor
    keys = ["" if start is None and not kept else job.key(place, start) for place, start in enumerate(starts)]
    if executor is None:
        return Shadows(tuple(job.fit(range(len(member)), starts, keys, store, progress)), member, numbers)

    def groups(missing: list[int]) -> list[list[int]]:
        if isinstance(train, Recipe) and train.dp is not None:
            return parted(missing, executor, together=train.dp.trainable == "head")
        if not (isinstance(train, Recipe) and starts[0] is not None and is_batchable(starts[0], train)):
            return parted(missing, executor)
        steps = {place: train.steps_per_epoch(int(member[place].sum())) for place in missing}
        return parted(sorted(missing, key=steps.__getitem__), executor, together=True)

    made = train_elsewhere(executor, job, starts, keys, store, groups, stage="training", progress=progress)
    return Shadows(tuple(model.to(present(device)) for model in made), member, numbers)


class Repeated(NamedTuple):
    """How reference models repeat a target: what builds them, and how many members each has; None: coin flips."""

    build: Build | None
    members: int | None

    @classmethod
    def of(
        cls, train: Recipe | Train | Any, build: Build | None, target: nn.Module | None, member: NDArray[np.bool_]
    ) -> Repeated:
        """For a recipe with differential privacy, the target's frozen layers and its number of members.

        Args:
            train: as `train_shadows` takes it.
            build: likewise.
            target: None: its weights are not to be had.
            member: (n,) bool, of the target in the pool.

        Raises:
            InputError: the target was trained on more rows, as the recipe says, than they would be.
        """
        dp = train.dp if isinstance(train, Recipe) else None
        if isinstance(train, Recipe):
            check_examples(train.examples, len(member) // 2 if dp is None else int(member.sum()))
        if dp is None:
            return cls(build, None)
        same = build if build is None or target is None else starting(build, target, dp)
        return cls(same, int(member.sum()))


def _numbers(only: Iterable[int] | None, models: int) -> tuple[int, ...]:
    if only is None:
        return tuple(range(models))
    try:
        given = list(only)
        if any(isinstance(i, bool | np.bool_) for i in given):
            raise TypeError("a mask")
        numbers = tuple(operator.index(i) for i in given)
    except TypeError:
        raise ConfigurationTypeError(
            f"only: expected the numbers of models, such as [3, 4] (of a mask: np.flatnonzero), got {only!r:.60}"
        ) from None
    if wrong := [i for i in numbers if not 0 <= i < models]:
        raise InputError(f"only: there are models 0 .. {models - 1}, got {', '.join(map(str, wrong))}")
    if not numbers or len(set(numbers)) < len(numbers):
        raise InputError(f"only: expected the numbers of models, each once, got {list(numbers)}")
    return numbers


def _train_key(train: Any) -> str:
    """Of what trains; "" where its identity across runs cannot be told."""
    if isinstance(train, EstimatorTraining):
        return train.key()
    try:
        return digest(train.to_toml() if isinstance(train, Recipe) else train)
    except Undigestable:
        return ""


@dataclass(frozen=True, eq=False)
class _Job:
    """Trains some of the models, here or in a worker; places count among those that were asked for."""

    train: Any
    build: Build | None
    train_key: str
    x: Tensor
    y: Tensor
    classes: int
    data_key: str
    member: NDArray[np.bool_]
    numbers: tuple[int, ...]
    seed: int
    device: torch.device
    folder: Path | None
    code: str

    @property
    def base(self) -> int:
        return self.train.seed if isinstance(self.train, Recipe) else 0

    def start(self, place: int) -> nn.Module | None:
        """Untrained; None where none is needed, because the function makes its own and nothing is stored."""
        if self.build is None or not (isinstance(self.train, Recipe) or self.train_key):
            return None
        with torch.random.fork_rng([]):
            seed = mixed_seed(self.seed, self.base, self.numbers[place])
            torch.manual_seed(seed)
            model = self.build(seed % 2**31)
            dp = self.train.dp if isinstance(self.train, Recipe) else None
            return model if dp is None else as_it_trains(model, dp)

    def key(self, place: int, start: nn.Module | None) -> str:
        """Of everything that makes a model; "" where that cannot be told."""
        if not self.train_key:
            return ""
        number = self.numbers[place]
        parts = (self.train_key, self.data_key, self.member[place], start, self.seed, number, code_digest(__name__))
        return digest(*parts)

    def fit(
        self,
        places: Sequence[int],
        starts: Sequence[nn.Module | None],
        keys: Sequence[str],
        store: ModelCache | None,
        progress: Progress,
    ) -> list[nn.Module]:
        """The trained models of these places, from the store or trained and stored."""
        if isinstance(self.train, Recipe):
            return self._by_recipe(self.train, places, [start for start in starts if start is not None], keys, store,
                                   progress)  # fmt: skip
        if isinstance(self.train, EstimatorTraining):
            return self._by_estimator(self.train, places, keys, store, progress)
        found = []
        for done, (place, start, key) in enumerate(zip(places, starts, keys, strict=True)):
            if start is not None and store and key and store.load(key, start):
                found.append(start)
            else:
                found.append(self._by_callable(place))
                if store and key and start is not None and _stands_for(start, found[-1], self.x[:4]):
                    store.save(key, found[-1])
            found[-1] = found[-1].to(self.device).eval()
            progress("training", done + 1, len(places))
        return found

    def __call__(self, group: tuple[list[int], list[str]], tick: Tick, seen: bool) -> list[Any]:
        """In a worker: of each model its weights as bytes, or None where they are in the store, or itself."""
        check_code(self.code, __name__)
        places, keys = group
        store = ModelCache(self.folder) if seen and self.folder else None
        starts = [self.start(place) for place in places]
        models = self.fit(places, starts, keys, store, lambda _, done, total, note="": tick(done / total, note))
        known = isinstance(self.train, Recipe)
        return [
            None
            if store and key and store.has(key)
            else weights_as_bytes(model)
            if start is not None and (known or _stands_for(start, model, self.x[:4]))
            else model.cpu()
            for model, start, key in zip(models, starts, keys, strict=True)
        ]

    def _by_recipe(
        self,
        recipe: Recipe,
        places: Sequence[int],
        starts: Sequence[nn.Module],
        keys: Sequence[str],
        store: ModelCache | None,
        progress: Progress,
    ) -> list[nn.Module]:
        models = [model.to(self.device) for model in starts]

        def train(
            group: list[int], tick: Tick, finished: Callable[[int], None], checkpoints: list[Path | None]
        ) -> None:
            index = [torch.from_numpy(np.flatnonzero(self.member[places[i]])) for i in group]
            own = [self._generator(places[i]) for i in group]
            chosen = [models[i] for i in group]
            train_models(recipe, chosen, self.x, self.y, index, own, tick, finished=finished, checkpoints=checkpoints)

        return load_or_train(models, keys, store, lambda missing: [missing], train, stage="training", progress=progress)

    def _by_callable(self, place: int) -> nn.Module:
        index = torch.from_numpy(np.flatnonzero(self.member[place]))
        generator = self._generator(place)
        with torch.random.fork_rng([]):
            torch.manual_seed(generator.initial_seed())
            model: Any = self.train(self.x[index], self.y[index], generator)
        if not isinstance(model, nn.Module):
            raise ConfigurationTypeError(f"train(x, y, generator) must return a module, got {type(model).__name__}")
        return model

    def _by_estimator(
        self,
        train: EstimatorTraining,
        places: Sequence[int],
        keys: Sequence[str],
        store: ModelCache | None,
        progress: Progress,
    ) -> list[nn.Module]:
        found: list[nn.Module] = []
        x, y = self.x.flatten(1).numpy(), self.y.numpy()
        for done, (place, key) in enumerate(zip(places, keys, strict=True)):
            model = train.load(store, key, self.classes)
            if model is None:
                rows, seed = self.member[place], mixed_seed(self.seed, 0, self.numbers[place]) % 2**31
                model = train.fitted(x[rows], y[rows], classes=self.classes, seed=seed)
                train.keep(store, key, model)
            found.append(model.to(self.device).eval())
            progress("training", done + 1, len(places))
        return found

    def _generator(self, place: int) -> torch.Generator:
        return torch.Generator().manual_seed(mixed_seed(self.seed, self.base + 1, self.numbers[place]))


def _stands_for(start: nn.Module, model: nn.Module, x: Tensor) -> bool:
    """Whether what `build` made computes what a function's model computes, with the same weights."""
    own = {name: t.shape for name, t in start.state_dict().items()}
    state = model.state_dict()
    if {name: t.shape for name, t in state.items()} != own:
        return False
    start.load_state_dict(state)
    with torch.no_grad():
        one, other = (m.cpu().eval()(x.cpu()) for m in (start, copy.deepcopy(model)))
    return torch.equal(one, other)


def mixed_seed(*parts: int) -> int:
    """A seed of 63 bits from several whole numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0]) >> 1
