"""Training of reference models by a recipe or an estimator, and finished ones on disk."""

from __future__ import annotations

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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from safexplain._digest import digest, estimator_digest
from safexplain._files import FileStore
from safexplain._progress import Progress
from safexplain.audit.references.dp_training import train_private_models
from safexplain.audit.references.parallel import each, workers
from safexplain.audit.references.recipe import Recipe, Tick, check_finite, descend, fits, forget, moved
from safexplain.columns import Columns
from safexplain.errors import InputError
from safexplain.outputs import EstimatorModule


class ModelCache:
    """A directory of state dicts named by digest, made when missing; InputError if it cannot be made or written."""

    def __init__(self, folder: str | Path) -> None:
        self._store = FileStore(folder, "a trained model")

    @property
    def folder(self) -> Path:
        """The directory."""
        return self._store.folder

    def load(self, key: str, model: nn.Module) -> bool:
        """Fill `model` with the stored weights; False if they are missing, damaged or of another shape."""

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
        """The result of `read` on the stored bytes; None if there are none, or `read` fails."""
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
    """The models 0 .. m - 1 in eval mode. Those that `load` does not find are trained by `train(places, starts, tick=)`
    in groups, here or in workers, and saved, so that an interrupted run resumes."""
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
"""Layers whose batched form is one matrix product or elementwise, without state and without randomness."""


def is_batchable(model: nn.Module, recipe: Recipe) -> bool:
    """Whether `train_together` applies: a Sequential of linear layers and activations, no augmentation, no privacy."""
    leaves = [m for m in model.modules() if not isinstance(m, nn.Sequential)]
    plain = recipe.augmentation == "none" and recipe.dp is None
    return isinstance(model, nn.Sequential) and plain and all(type(m) in BATCHABLE for m in leaves)


ALIGNED = 16
"""Batches of models that train together are padded to multiples of this, so that vector instructions cover each."""

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
    """Train models of one architecture and device in place, each on its rows of (x, y) with its own generator: together
    if possible, else one by one; raises as `Recipe.train`."""
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
    """Groups of at most `most` models with equal steps per epoch, which can train together; `members` maps the number
    of a model to that of its members."""
    by_steps: dict[int, list[int]] = {}
    for i, count in members.items():
        by_steps.setdefault(recipe.steps_per_epoch(count), []).append(i)
    return [g[s : s + most] for g in by_steps.values() for s in range(0, len(g), most)]


def most_together(models: int) -> int:
    """Size of a batched computation for so many models that keeps all workers busy to the end, at least 4."""
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

    Batches are padded to sizes that do not depend on the group. So, in one thread of a CPU, a model with hidden layers
    of at least 8 units was bit for bit the same in every group that was tried; narrower ones differ by rounding.
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
    """How reference models repeat a fitted classifier: as clones with its hyper-parameters, and seeds of their own."""

    estimator: Any  # not changed
    labels: NDArray[Any] | None = None  # of the outputs, if not 0, 1, ...; y then has their indices
    columns: Columns | None = None  # meaning of the numbers of a row, see `EstimatorModule`
    keeper: Any = None  # write(estimator) -> bytes and read(bytes) -> estimator, without running code; None: not stored
    given: Mapping[str, Any] = field(default_factory=dict)  # hyper-parameters that replace the estimator's

    def fitted(self, x: NDArray[np.float32], y: NDArray[np.int64], *, classes: int, seed: int) -> EstimatorModule:
        """A clone, seeded if it or its steps have `random_state` and fitted on (members, d) inputs and labels, as a
        module of `classes` outputs; InputError if it cannot be fitted."""
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
        """Digest of the training without data and seed; "" if it has no stable identity, or none is stored."""
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


LIBRARIES = ("sklearn", "xgboost", "lightgbm")  # libraries whose version changes the model of the same hyper-parameters
