"""Reference ("shadow") models: trained like the target on random subsets of one pool, and stored."""

from __future__ import annotations

import copy
import io
import math
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from safexplain._digest import Undigestable, code_digest, digest, estimator_digest
from safexplain._files import FileStore
from safexplain._progress import Progress, silent
from safexplain.audit.queries import Population
from safexplain.audit.references.parallel import each, parallel, present, workers
from safexplain.audit.references.recipe import (
    FrozenAs,
    Recipe,
    Tick,
    Train,
    check_examples,
    check_finite,
    descend,
    fits,
    forget,
    moved,
    train_private_models,
    with_group_norm,
)
from safexplain.columns import Columns
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.outputs import EstimatorModule


class ModelCache:
    """A directory of finished models; InputError if it cannot be made or written. Only tensors are loaded, so that a
    tampered cache cannot run code."""

    def __init__(self, folder: str | Path) -> None:
        self._store = FileStore(folder, "a trained model")

    @property
    def folder(self) -> Path:
        """The directory."""
        return self._store.folder

    def load(self, key: str, model: nn.Module) -> bool:
        """Fill `model` with stored weights; False if they are missing, damaged or of another shape."""

        def fill(path: Path) -> bool:
            with zipfile.ZipFile(path) as file:  # torch does not check the checksums that it writes
                if file.testzip() is not None:
                    return False
            state = torch.load(path, map_location="cpu", weights_only=True)
            shapes = {name: t.shape for name, t in model.state_dict().items()}
            if {name: t.shape for name, t in state.items()} != shapes:
                return False  # before anything is overwritten
            model.load_state_dict(state)
            model.eval()
            return True

        return bool(self._store.load(f"{key}.pt", fill))

    def save(self, key: str, model: nn.Module) -> None:
        """Store the weights, all or nothing; InputError if the disk is full or not writable."""
        state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
        self._store.save(f"{key}.pt", lambda path: torch.save(state, path))

    def load_bytes(self, key: str, read: Callable[[bytes], Any]) -> Any:
        """`read` of the stored bytes; None if there are none, or it fails."""
        return self._store.load(f"{key}.model", lambda path: read(path.read_bytes()))

    def save_bytes(self, key: str, raw: bytes) -> None:
        """Store a model as bytes; as `save`."""
        self._store.save(f"{key}.model", lambda path: path.write_bytes(raw))


def load_or_train(
    train: Callable[..., list[nn.Module]],
    starts: Sequence[nn.Module | None],
    groups: Callable[[list[int]], list[list[int]]],
    load: Callable[[int], nn.Module | None],
    save: Callable[[int, nn.Module], None],
    *,
    stage: str,
    progress: Progress,
) -> list[nn.Module]:
    """All models in eval mode; those that `load` does not find are trained by `train(places, starts, tick=)` in groups,
    here or in workers, and saved."""
    models = [load(i) for i in range(len(starts))]
    missing = [i for i, model in enumerate(models) if model is None]
    parts = groups(missing)

    def report(stage: str, done: float, total: float, note: str = "") -> None:
        which = f"model {max(math.ceil(done - 1e-9), 1)} of {len(models)}, " if note.startswith("epoch") else ""
        progress(stage, done, total, which + note)

    tasks = [(part, [starts[i] for i in part]) for part in parts]
    sizes, before = [len(part) for part in parts], len(models) - len(missing)
    for k, made in each(train, tasks, sizes=sizes, stage=stage, progress=report, before=before, total=len(models)):
        for i, model in zip(parts[k], made, strict=True):
            save(i, model)
            models[i] = model
    forget()
    progress(stage, len(models), len(models))
    return [model.eval() for model in models if model is not None]


ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus)
BATCHABLE = (nn.Linear, nn.Flatten, *ACTIVATIONS)
"""Layers without state and without randomness."""


def is_batchable(model: nn.Module, recipe: Recipe) -> bool:
    """Whether `train_together` applies: a Sequential of linear layers and activations, no augmentation, no privacy."""
    leaves = [m for m in model.modules() if not isinstance(m, nn.Sequential)]
    plain = recipe.augmentation == "none" and recipe.dp is None
    return isinstance(model, nn.Sequential) and plain and all(type(m) in BATCHABLE for m in leaves)


ALIGNED = 16  # batches of models that train together are padded to multiples of this, for vector instructions
TOGETHER = 32  # most models in one batched computation; finished models are stored after each

train_one = Recipe.train


def train_models(
    recipe: Recipe,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Tick | None = None,
) -> None:
    """Train models of one architecture in place, each on its rows of (x, y), together if possible; raises as
    `Recipe.train`."""
    if recipe.dp is not None:
        train_private_models(recipe, recipe.dp, models, x, y, members, generators, tick)
        return
    together = bool(models) and is_batchable(models[0], recipe)
    counts = {i: len(index) for i, index in enumerate(members)}
    groups, done = groups_by_steps(recipe, counts) if together else [[i] for i in counts], 0
    device = next(models[0].parameters()).device if models else torch.device("cpu")
    if len(models) > 1 and fits(x, device):
        x = x.to(device)
    for group in groups:

        def report(share: float, note: str = "", size: int = len(group), before: int = done) -> None:
            if tick:
                tick((before + share * size) / len(models), f"{size} models at once, {note}" if size > 1 else note)

        if together:
            index, seeded = [members[i] for i in group], [generators[i] for i in group]
            train_together(recipe, [models[i] for i in group], x, y, index, seeded, report)
        else:
            (i,) = group
            train_one(recipe, models[i], x[members[i].to(x.device)], y[members[i].to(y.device)], generators[i], report)
        done += len(group)


def groups_by_steps(recipe: Recipe, members: Mapping[int, int], most: int = TOGETHER) -> list[list[int]]:
    """Groups of at most `most` models with equal steps per epoch; `members` has counts."""
    by_steps: dict[int, list[int]] = {}
    for i, count in members.items():
        by_steps.setdefault(recipe.steps_per_epoch(count), []).append(i)
    return [g[s : s + most] for g in by_steps.values() for s in range(0, len(g), most)]


def most_together(models: int) -> int:
    """Size of a batched computation that keeps all workers busy to the end, at least 4."""
    count = workers()
    return TOGETHER if count == 1 else min(max(-(-models // (2 * count)), 4), TOGETHER)


def train_together(
    recipe: Recipe,
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    members: Sequence[Tensor],
    generators: Sequence[torch.Generator],
    tick: Tick | None = None,
) -> list[nn.Module]:
    """Train models of one batchable architecture at once, each like `train_one` on its members.

    Batches are padded to sizes that do not depend on the group: in one thread of a CPU, models with hidden layers of at
    least 8 units were bit for bit the same in every group; narrower ones differ by rounding.
    """
    device = next(models[0].parameters()).device
    parameters, _ = stack_module_state(list(models))
    skeleton = models[0]
    forward = vmap(lambda p, batch: functional_call(skeleton, p, (batch,)))
    batches = _ManyBatches(recipe, x, y, members, generators, device)

    def loss(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        with recipe.autocast(device):
            logits = forward(parameters, x).transpose(1, 2)
            losses = F.cross_entropy(logits.float() if recipe.precision == "bf16" else logits, y, reduction="none")
            return ((losses * weight).sum(1) / weight.sum(1)).sum()

    descend(recipe, list(parameters.values()), batches, loss, tick)
    with torch.no_grad():
        for i, model in enumerate(models):
            for name, p in model.named_parameters():
                p.copy_(parameters[name][i])
            check_finite(model)
    return [model.eval() for model in models]


class _ManyBatches:
    """Batches of m models at once, padded to common widths: (m, b, ...) inputs, (m, b) labels and weights."""

    def __init__(
        self,
        recipe: Recipe,
        x: Tensor,
        y: Tensor,
        members: Sequence[Tensor],
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> None:
        self.near = fits(x, device)
        self.x, self.y, self.device = (x.to(device) if self.near else x), y.to(device), device
        self.members, self.generators = [index.cpu() for index in members], generators
        self.sizes = [recipe.batch_sizes(len(index)) for index in members]
        self.steps = len(self.sizes[0])
        most = [*[recipe.batch_size] * (self.steps - 1), recipe.batch_size + 1]
        self.widths = [-(-min(size, len(x)) // ALIGNED) * ALIGNED for size in most]  # no wider than the pool
        self.weights = [
            torch.stack([torch.arange(width) < size for size in sizes]).to(device, torch.float32)
            for width, sizes in zip(self.widths, zip(*self.sizes, strict=True), strict=True)
        ]

    def epoch(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batches of one epoch, drawn together."""
        drawn = [
            index[torch.randperm(len(index), generator=g)].split(sizes)
            for index, g, sizes in zip(self.members, self.generators, self.sizes, strict=True)
        ]
        padded = [
            torch.stack([F.pad(index, (0, width - len(index))) for index in step])
            for *step, width in zip(*drawn, self.widths, strict=True)
        ]
        order = torch.cat(padded, dim=1)
        draws = moved(order, self.device)
        for width, end, weight in zip(self.widths, accumulate(self.widths), self.weights, strict=True):
            index = draws[:, end - width : end]
            x = self.x[index] if self.near else moved(self.x[order[:, end - width : end]], self.device)
            yield x, self.y[index], weight


@dataclass(frozen=True, eq=False)
class EstimatorTraining:
    """Reference models of a fitted classifier: clones with its hyper-parameters and seeds of their own."""

    estimator: Any  # not changed
    labels: NDArray[Any] | None = None  # of the outputs, if not 0, 1, ...; y then has their indices
    columns: Columns | None = None  # meaning of the numbers of a row, see `EstimatorModule`
    keeper: Any = None  # write(estimator) -> bytes and read(bytes) -> estimator, without running code; None: not stored
    given: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters that replace the estimator's

    def fitted(self, x: NDArray[np.float32], y: NDArray[np.int64], *, classes: int, seed: int) -> EstimatorModule:
        """A seeded clone, fitted on (members, d) inputs and labels, as a module of `classes` outputs; InputError: it
        cannot be fitted."""
        from sklearn.base import clone
        from sklearn.exceptions import ConvergenceWarning

        one = clone(self.estimator).set_params(**self.given)
        states = [p for p in one.get_params() if p == "random_state" or p.endswith("__random_state")]
        one.set_params(**dict.fromkeys(states, seed))
        rows = x if self.columns is None else self.columns.decode(x)
        labels = y if self.labels is None else self.labels[y]
        names = getattr(self.estimator, "feature_names_in_", None)
        if self.columns is None and names is not None and len(names) == x.shape[1]:
            rows = import_module("pandas").DataFrame(x.astype(np.float64), columns=list(names))
        try:
            with (
                redirect_stdout(io.StringIO()),  # LightGBM and verbose estimators write to it
                warnings.catch_warnings(action="ignore", category=ConvergenceWarning),
                import_module("joblib").parallel_config("threading", n_jobs=torch.get_num_threads()),
            ):
                one.fit(rows, labels)
        except Exception as error:  # any, as estimators are foreign code
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(
                f"a clone of {type(self.estimator).__name__} cannot be fitted on {len(y):,} rows:"
                f" {type(error).__name__}: {reason:.200}"
            ) from error
        return EstimatorModule(one, classes, columns=self.columns, labels=self.labels)

    def key(self) -> str:
        """Digest of the training without data and seed; "" if it has no stable identity."""
        from sklearn.base import clone

        named = estimator_digest(clone(self.estimator).set_params(**self.given))
        if named is None or self.keeper is None:
            return ""
        columns = "" if self.columns is None else self.columns.to_json()
        labels = [] if self.labels is None else self.labels.tolist()
        versions = [(name, sys.modules[name].__version__) for name in LIBRARIES if name in sys.modules]
        return digest("estimator", named, columns, repr(labels), repr(versions))

    def load(self, store: ModelCache | None, key: str, classes: int) -> EstimatorModule | None:
        """The model stored under a key, if there is one."""
        if store is None or not key or self.keeper is None:
            return None
        found = store.load_bytes(key, self.keeper.read)
        return None if found is None else EstimatorModule(found, classes, columns=self.columns, labels=self.labels)

    def keep(self, store: ModelCache | None, key: str, model: nn.Module) -> None:
        """Store a finished model, if it can be written."""
        if store is None or not key or self.keeper is None or not isinstance(model, EstimatorModule):
            return
        try:
            raw = self.keeper.write(model.estimator)
        except (ValueError, TypeError, AttributeError):  # a kind that cannot be written
            return
        store.save_bytes(key, raw)

    def __str__(self) -> str:
        params = {**self.estimator.get_params(), **self.given}
        lines = [f"{name} = {value!r}" for name, value in sorted(params.items()) if value is not None]
        return "\n".join([f"# {type(self.estimator).__name__}", *lines]) + "\n"


LIBRARIES = ("sklearn", "xgboost", "lightgbm")  # whose versions change a model


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
    finished model is stored under a key of recipe, data, members, initial weights and code, so that an interrupted run
    resumes and a changed one reuses nothing; models that `build` did not make are not stored. Everything random about a
    model follows from `seed` and its number: more models leave the first ones the same (for batched networks, see
    `train_together`). In a `joblib.parallel_config` of several workers, these train the same models up to rounding.

    Args:
        population: the pool.
        train: a `Recipe` (needs `build`); `train(x, y, generator) -> nn.Module`, with the global generator seeded too;
            a scikit-learn classifier, which is cloned; or an `EstimatorTraining`.
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
        ConfigurationError: no `build` for a Recipe, or an object that cannot train.
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
        """With the frozen layers and the number of members, (n,) bool, of a target with differential privacy;
        InputError: by its recipe, it was trained on more rows than the references would be."""
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
