"""DP-SGD of linear heads on features of a frozen backbone: closed-form clipping, and many heads in one computation.

theta is (runs, outputs, columns): outputs are the classes, or one logit for class 1 of two; columns are the features
and, with a bias, a last one for the constant 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from safexplain._digest import digest, model_digest
from safexplain._files import FileStore
from safexplain._progress import Progress, silent
from safexplain._secure_random import SecureGenerator
from safexplain._validate import check_whole, keep_number, whole_number
from safexplain.dp.sgd.clipping import Clipping
from safexplain.dp.sgd.sampling import Source, gaussian, uniform
from safexplain.errors import ConfigurationError, InputError

STEP_OBSERVER: ContextVar[Callable[[Tensor, Tensor, Tensor], Tensor] | None] = ContextVar("step", default=None)
"""Maps the sum, the noise and the rows of the batch of each step of one head to the noisy sum, for
`safexplain.audit.canaries.trainer`."""

_BLOCK = {"cpu": 2**21, "cuda": 2**29}
"""Bytes of features that a step gathers, to fit in a processor's cache or a GPU's memory."""

Batch = tuple[Tensor | None, Tensor | None]
"""(index, weight). index: rows of the batch, (b,) for all runs or (runs, b); None: all n rows, in order.
weight: (runs, b) or (1, b) bool, False where a row is padding or not in the run's batch; None: every row is in."""

_DRAWS, _DRAWS_PER_RUN = 2**18, 2**16
"""Sampling decisions that are drawn together, for all runs and for a run with its own generator."""
_DENSE = 0.5
"""Above this share of the rows, multiplying all of them is faster than gathering some."""

Generators = Source | Sequence[Source]
"""One for all runs, or one for each."""

HeadOptimizer = Literal["sgd", "adam"]


@dataclass(frozen=True)
class HeadRecipe:
    """Training of a linear head by DP-SGD; ConfigurationError: a value out of range.

    Args:
        classes: their public number, not read off the labels.
        steps: of the optimizer.
        sample_rate: probability that a row is in a batch; 1 for full batches.
        expected_batch_size: public constant that the noisy sum of gradients is divided by.
        clipping: `FlatClipping` or `AutoSClipping`; None only for training without noise.
        lr: learning rate.
        optimizer: as in `torch.optim`.
        momentum: of SGD.
        l2: weight decay, also of the bias.
        bias: whether the head has a bias.
        one_logit: whether two classes have one vector of weights, as in logistic regression.
    """

    classes: int
    steps: int
    sample_rate: float
    expected_batch_size: float
    clipping: Clipping | None
    lr: float
    optimizer: HeadOptimizer = "sgd"
    momentum: float = 0.0
    l2: float = 0.0
    bias: bool = True
    one_logit: bool = False

    def __post_init__(self) -> None:
        check_whole("classes", self.classes, 2)
        check_whole("steps", self.steps, 1)
        for name in ("sample_rate", "expected_batch_size", "lr"):
            keep_number(self, name, above=0.0)
        for name in ("momentum", "l2"):
            keep_number(self, name, minimum=0.0)
        per_layer = self.clipping is not None and self.clipping.per_layer
        momentum = not self.momentum or (self.momentum < 1 and self.optimizer == "sgd")
        for name, expected, right in (
            ("sample_rate", "a probability in (0, 1]", self.sample_rate <= 1),
            ("optimizer", "sgd or adam", self.optimizer in get_args(HeadOptimizer)),
            ("momentum", "a number below 1, and 0 for Adam", momentum),
            ("clipping", "FlatClipping or AutoSClipping", not per_layer),
            ("one_logit", "False for more than two classes", not self.one_logit or self.classes == 2),
        ):
            if not right:
                raise ConfigurationError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    @property
    def outputs(self) -> int:
        """Rows of a head's weight matrix."""
        return 1 if self.one_logit else self.classes

    def make_update(self, theta: Tensor) -> Callable[[Tensor], None]:
        """The optimizer's step on theta, in place, far faster than by the classes of `torch.optim`."""
        options: dict[str, Any] = {"lr": self.lr, "weight_decay": self.l2, "maximize": False, "foreach": False}
        if self.optimizer == "sgd":
            buffers: list[Tensor | None] = [None]
            options |= {"momentum": self.momentum, "dampening": 0.0, "nesterov": False}
            return lambda gradient: sgd([theta], [gradient], buffers, **options)
        first, second, count = torch.zeros_like(theta), torch.zeros_like(theta), torch.zeros(())
        options |= {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        return lambda gradient: adam([theta], [gradient], [first], [second], [], [count], **options)


@dataclass(frozen=True, eq=False)
class Rows:
    """Examples x (n, columns) with the constant, labels (n,) and norms (n,) of x; a first axis of runs may be added."""

    x: Tensor
    labels: Tensor
    norms: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, *, bias: bool) -> Rows:
        """From features (n, d) or (runs, n, d) and labels; `bias` adds the column of ones."""
        x = torch.cat([features, torch.ones_like(features[..., :1])], -1) if bias else features
        return cls(x, labels, torch.linalg.vector_norm(x, dim=-1))

    def take(self, index: Tensor) -> Rows:
        """The rows with these indices, (b,) for all runs or (runs, b) for each."""
        x = self.x.index_select(0, index.reshape(-1)).view(*index.shape, *self.x.shape[1:])
        return Rows(x, self.labels[index], self.norms[index])


def clipped_sum(theta: Tensor, batch: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
    """Sum over the batch of the clipped gradients of each example's cross-entropy, like theta (runs, outputs, columns).

    One example's gradient is the outer product of p - y and (x, 1), so its norm is the product of their norms
    (Goodfellow 2015, arXiv 1510.01799, section 4). `weight` as in `Batch`.
    """
    runs, outputs, columns = theta.shape
    common = batch.x.dim() == 2
    flat = theta.reshape(runs * outputs, columns)
    logits = (flat @ batch.x.T).view(runs, outputs, len(batch.x)) if common else theta @ batch.x.mT
    residual = logit_gradient(logits, batch.labels)
    factors = weight
    if clipping is not None:
        norms = residual.square().sum(1).sqrt_().mul_(batch.norms)
        factors = clipping.factors(norms.flatten()).view_as(norms) * (1 if weight is None else weight)
    if factors is not None:
        residual = residual.mul_(factors[:, None]).nan_to_num_(0.0)  # 0 times NaN is NaN
    if common:
        return (residual.view(runs * outputs, len(batch.x)) @ batch.x).view_as(theta)
    return residual @ batch.x


def logit_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the cross-entropy with respect to the logits, p - y: (runs, outputs, b)."""
    if logits.shape[1] == 1:
        return logits.sigmoid() - labels.unsqueeze(-2)
    index = labels.unsqueeze(-2).expand(len(logits), 1, -1)
    return logits.softmax(1).scatter_add_(1, index, logits.new_full((), -1.0).expand_as(index))


@dataclass(frozen=True, eq=False)
class Heads:
    """Linear heads: weight (runs, outputs, d), with one output for each class or a logit for class 1 of two; and bias
    (runs, outputs), perhaps zeros."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """(n, d) -> (runs, n, outputs)."""
        runs, outputs, d = self.weight.shape
        flat = features.to(self.weight) @ self.weight.reshape(runs * outputs, d).T
        return flat.view(len(features), runs, outputs).transpose(0, 1) + self.bias[:, None]

    def probabilities(self, features: Tensor) -> Tensor:
        """(n, d) -> (runs, n, classes), also with one logit."""
        logits = self.logits(features)
        return logits.softmax(-1) if logits.shape[-1] > 1 else torch.cat([-logits, logits], -1).sigmoid()


def train_heads(
    features: Tensor,
    labels: Tensor,
    recipe: HeadRecipe,
    *,
    noise_multiplier: float | Sequence[float],
    runs: int = 1,
    membership: Tensor | None = None,
    shared_batches: bool = False,
    initial: Heads | None = None,
    generator: Generators | None = None,
    float_safe: bool = True,
    progress: Progress = silent,
) -> Heads:
    """Train linear heads by DP-SGD with Poisson sampling, on the device and in the precision of `features`.

    Each run has the guarantee of `safexplain.dp.epsilons`, if a row's features depend on no other row. Runs on the same
    rows compose.

    Args:
        features: (n, d), finite; half precision is raised to float32.
        labels: (n,) integers in [0, classes).
        recipe: the training.
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients over the clipping bound, one
            for all runs or one for each; 0 is not private.
        runs: number of heads.
        membership: (runs, n) bool, the rows that each run trains on; None for all.
        shared_batches: draw one sequence of batches for all runs; each keeps its guarantee, but they are independent
            only given the batches.
        initial: starting weights, one head for all runs or one for each; None for zeros.
        generator: of sampling and noise, torch's on the device of `features`; None for a cryptographic one. With one
            for each run, its result does not depend on the other runs, up to rounding.
        float_safe: as for `safexplain.dp.sgd.sampling.gaussian`; half as fast.
        progress: called with the steps of all runs together.

    Raises:
        InputError: an array has a wrong shape or is not finite, or the weights diverged.
        ConfigurationError: `noise_multiplier` does not match the runs, or noise without clipping.
    """
    x = features if features.dtype == torch.float64 else features.float()
    _check_data(x, labels, recipe.classes, runs, membership)
    rows = Rows.of(x, labels.to(x.device).long(), bias=recipe.bias)
    std = _standard_deviations(noise_multiplier, recipe, runs).to(x)
    generator = SecureGenerator() if generator is None else generator
    if not isinstance(generator, Source) and (shared_batches or len(generator) != runs):
        raise InputError(f"generator: expected one, or without shared_batches one for each of {runs} runs")
    members = torch.ones(runs, len(x), dtype=torch.bool) if membership is None else membership
    members = members.to(x.device)
    theta = _initial_theta(initial, runs, recipe, rows.x)
    noisy = bool(std.any())
    width = runs if shared_batches else _runs_per_block(recipe.sample_rate, rows.x)
    for first in range(0, runs, width):
        block = slice(first, min(first + width, runs))
        part, draw_batches = theta[block], common_batches if shared_batches else separate_batches
        update = recipe.make_update(part)
        source: Any = generator if isinstance(generator, Source) else generator[block]
        batches = draw_batches(recipe.sample_rate, members[block], recipe.steps, source)
        for step, (index, weight) in enumerate(batches, 1):
            batch = rows if index is None else rows.take(index)
            total = clipped_sum(part, batch, weight, recipe.clipping)
            if noisy:
                noise = _noise(part, source, float_safe).mul_(std[block, None, None])
                total = add_noise(total, noise, index, weight, len(x))
            update(total.div_(recipe.expected_batch_size))
            if step % max(recipe.steps // 50, 1) == 0 or step == recipe.steps:
                done = block.start * recipe.steps + (block.stop - block.start) * step
                progress("training with DP", done, runs * recipe.steps)
    if not bool(theta.isfinite().all()):
        raise InputError("training diverged: the weights of a head became NaN or infinite; lower the learning rate")
    d = x.shape[1]
    bias = theta[..., d] if recipe.bias else torch.zeros_like(theta[..., 0])
    return Heads(theta[..., :d].contiguous(), bias.contiguous())


def add_noise(total: Tensor, noise: Tensor, index: Tensor | None, weight: Tensor | None, n: int) -> Tensor:
    """The sum plus noise; an observer of a single run also gets the batch out of n rows."""
    observer = STEP_OBSERVER.get()
    if observer is None or len(total) > 1:
        return total.add_(noise)
    batch = torch.arange(n, device=total.device) if index is None else index.flatten()
    return observer(total, noise, batch if weight is None else batch[weight.flatten() > 0])


def _noise(part: Tensor, generator: Generators, float_safe: bool) -> Tensor:
    if isinstance(generator, Source):
        return gaussian(part, 1.0, generator, float_safe=float_safe)
    return torch.stack([gaussian(p, 1.0, g, float_safe=float_safe) for p, g in zip(part, generator, strict=True)])


def _standard_deviations(noise_multiplier: float | Sequence[float], recipe: HeadRecipe, runs: int) -> Tensor:
    sigma = torch.as_tensor(noise_multiplier, dtype=torch.float64)
    if sigma.shape not in ((), (runs,)) or not bool(((sigma >= 0) & sigma.isfinite()).all()):
        raise ConfigurationError(
            f"noise_multiplier: expected one number of at least 0, or {runs} of them, got {noise_multiplier!r:.80}"
        )
    if recipe.clipping is None:
        if bool(sigma.any()):
            raise ConfigurationError("noise_multiplier: noise needs clipped gradients; give the recipe a clipping")
        return torch.zeros(runs)
    return sigma.expand(runs) * recipe.clipping.bound


def _runs_per_block(sample_rate: float, x: Tensor) -> int:
    return max(1, int(_BLOCK.get(x.device.type, 2**28) / (sample_rate * x.numel() * x.element_size())))


def _initial_theta(initial: Heads | None, runs: int, recipe: HeadRecipe, x: Tensor) -> Tensor:
    theta = x.new_zeros(runs, recipe.outputs, x.shape[1])
    if initial is not None:
        expected = (recipe.outputs, x.shape[1] - recipe.bias)
        if initial.weight.shape[1:] != expected or len(initial.weight) not in (1, runs):
            raise InputError(
                f"initial: expected weights of shape (1 or {runs}, *{expected}), got {tuple(initial.weight.shape)}"
            )
        theta[..., : expected[1]] = initial.weight.to(x)
        if recipe.bias:
            theta[..., -1] = initial.bias.to(x)
    return theta


def _check_data(x: Tensor, labels: Tensor, classes: int, runs: int, membership: Tensor | None) -> None:
    whole_number("runs", runs, 1)
    if x.dim() != 2 or not x.numel():
        raise InputError(f"features: expected shape (n, d), got {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise InputError("features: expected finite numbers, got NaN or infinity")
    if labels.shape != x.shape[:1] or labels.is_floating_point():
        raise InputError(f"labels: expected {len(x)} class indices, got {labels.dtype} of shape {tuple(labels.shape)}")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(f"labels: expected 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}")
    if membership is not None and (membership.shape != (runs, len(x)) or membership.dtype != torch.bool):
        raise InputError(
            f"membership: expected bool of shape {(runs, len(x))}, got {membership.dtype} {tuple(membership.shape)}"
        )


# --- Poisson batches: each member of each run is in a batch with the same probability, independently -----------------


def separate_batches(sample_rate: float, members: Tensor, steps: int, generator: Generators) -> Iterator[Batch]:
    """Batches of members (runs, n) drawn separately for each run; a rate of 1 draws no random numbers."""
    runs, n = members.shape
    if sample_rate >= 1:
        weight = None if bool(members.all()) else members
        yield from ((None, weight) for _ in range(steps))
        return
    dense = sample_rate * float(members.float().mean()) > _DENSE
    together = max(1, _DRAWS // (runs * n) if isinstance(generator, Source) else _DRAWS_PER_RUN // n)
    for start in range(0, steps, together):
        count = min(together, steps - start)
        if isinstance(generator, Source):
            drawn = uniform((count, runs, n), generator, members.device) < sample_rate
        else:
            each = [uniform((count, n), one, members.device) < sample_rate for one in generator]
            drawn = torch.stack(each, 1)
        drawn &= members
        yield from ((None, chosen) for chosen in drawn) if dense else _gathered(drawn)


def _gathered(drawn: Tensor) -> Iterator[Batch]:
    """The batch of each step from (steps, runs, n) bool, padded to the largest of its runs."""
    steps, runs, n = drawn.shape
    sizes = drawn.sum(2)
    ends = sizes.flatten().cumsum(0)
    sample, row = drawn.view(steps * runs, n).nonzero(as_tuple=True)
    index = torch.zeros(steps * runs, n, dtype=torch.long, device=drawn.device)
    index[sample, torch.arange(len(row), device=row.device) - (ends - sizes.flatten())[sample]] = row
    widths = sizes.amax(1).tolist()  # the only wait for a GPU
    for chosen, size, width in zip(index.view(steps, runs, n), sizes, widths, strict=True):
        if runs == 1:
            yield chosen[0, :width], None
        else:
            yield chosen[:, :width], torch.arange(width, device=row.device) < size[:, None]


def common_batches(sample_rate: float, members: Tensor, steps: int, generator: Source) -> Iterator[Batch]:
    """One batch of rows for all runs, of which each uses its members; arguments as in `separate_batches`."""
    everyone = bool(members.all())
    for index, weight in separate_batches(sample_rate, torch.ones_like(members[:1]), steps, generator):
        if everyone:
            yield index, weight
        elif index is None:
            yield None, members if weight is None else members & weight
        else:
            yield index, members[:, index]


# --- features of a frozen backbone ------------------------------------------------------------------------------------


_ALONE = 2
"""Rows that are also passed one at a time."""
_TOLERANCE = 1e-3
"""Their allowed difference over the largest feature: above rounding, below dropout and batch normalisation."""
_PIECE = 2**24
"""Approximate number of values in one file of the cache."""


def _load(store: FileStore | None, name: str, rows: int) -> Tensor | None:

    def read(path: Path) -> Tensor | None:
        found = np.load(path, allow_pickle=False)
        return torch.from_numpy(found) if found.ndim == 2 and len(found) == rows else None

    return None if store is None else store.load(name, read)


def _save(store: FileStore | None, name: str, rows: Tensor) -> None:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, rows.numpy())

    if store:
        store.save(name, write)


def linear_head(model: nn.Module, head_name: str) -> nn.Linear:
    """The head of that name; InputError: there is no such module, or it is not an `nn.Linear`."""
    try:
        head = model.get_submodule(head_name)
    except AttributeError:
        linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
        raise InputError(
            f"head_name: the model has no module {head_name!r}; its linear layers are {', '.join(linear)}"
        ) from None
    if not isinstance(head, nn.Linear):
        raise InputError(f"head_name: expected an nn.Linear, but {head_name!r} is a {type(head).__name__}")
    return head


def head_input(model: nn.Module, head_name: str, x: Tensor) -> Tensor:
    """The head's input (n, d) for inputs `x`, with gradients; InputError: another shape, or not one call."""
    caught: list[Tensor] = []
    hook = linear_head(model, head_name).register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    try:
        model(x)
    finally:
        hook.remove()
    if len(caught) != 1:
        raise InputError(
            f"the head {head_name!r} must be called once in a forward pass, but it was called {len(caught)} times"
        )
    if caught[0].dim() != 2 or len(caught[0]) != len(x):
        raise InputError(
            f"the head {head_name!r} must have inputs of shape (n, d), but for {len(x)} rows it got"
            f" {tuple(caught[0].shape)}; pool or flatten before the head"
        )
    return caught[0]


def features(
    model: nn.Module,
    head_name: str,
    x: Tensor,
    *,
    batch_size: int = 256,
    cache: str | Path | None = None,
    progress: Progress = silent,
) -> Tensor:
    """The input of the head for every row, in eval mode; an interrupted call continues where it stopped.

    A head trained on features has the guarantee of DP-SGD only if a row's features depend on that row and on weights
    from public data alone, which is tried on a few rows. The cache identifies a backbone by names, classes and weights
    of its modules, not by their code.

    Args:
        model: backbone and head; its mode is restored afterwards.
        head_name: of an `nn.Linear` in `model.named_modules()`.
        x: (n, ...) inputs, preprocessed.
        batch_size: rows at a time.
        cache: folder for the array and, until it is complete, its parts; None for no cache.
        progress: called after every batch.

    Returns:
        (n, d) on the CPU, in the precision of the head's input.

    Raises:
        InputError: no such head, an input that is not (n, d), or features that are not finite, random or dependent on
            other rows.
    """
    linear_head(model, head_name)
    if batch_size < 1 or not len(x):
        raise InputError(f"expected at least one row and a batch_size of at least 1, got {len(x)} and {batch_size}")
    store = None if cache is None else FileStore(cache, "features")
    key = _key(model, head_name, x) if store else ""
    if (cached := _load(store, f"{key}.npy", len(x))) is not None:
        return cached
    with evaluation_mode(model), torch.no_grad():
        width = _check(model, head_name, x[: max(2, min(batch_size, 8))])
        step = batch_size * max(1, _PIECE // (batch_size * width))
        pieces = []
        for start in range(0, len(x), step):
            end, name = min(start + step, len(x)), f"{key}.{start}.npy"
            piece = _load(store, name, end - start)
            if piece is None:
                batches = []
                for first in range(start, end, batch_size):
                    last = min(first + batch_size, end)
                    batches.append(head_input(model, head_name, x[first:last].to(_device(model))).cpu())
                    progress("features", last, len(x))
                piece = torch.cat(batches)
                if not bool(piece.isfinite().all()):
                    raise InputError(
                        "the backbone's features are NaN or infinite; check the inputs and their preprocessing"
                    )
                _save(store, name, piece)
            pieces.append(piece)
    found = torch.cat(pieces)
    _save(store, f"{key}.npy", found)
    if store:
        store.remove(f"{key}.*.npy")
    return found


def _check(model: nn.Module, head_name: str, rows: Tensor) -> int:
    rows = rows.to(_device(model))
    together = head_input(model, head_name, rows)[:_ALONE].cpu()
    alone = torch.cat([head_input(model, head_name, row[None]) for row in rows[:_ALONE]]).cpu()
    if float((together - alone).abs().max()) > _TOLERANCE * float(together.abs().max()):
        raise InputError(
            "the features of a row are random or depend on the other rows of its batch (permanent dropout, or batch"
            " statistics), so a head trained on them would have no guarantee; use another backbone"
        )
    return together.shape[1]


def _device(model: nn.Module) -> torch.device:
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, then restore the modes of its modules."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def _key(model: nn.Module, head_name: str, x: Tensor) -> str:
    parent = model.get_submodule(head_name.rpartition(".")[0])
    name, head = head_name.rpartition(".")[2], model.get_submodule(head_name)
    setattr(parent, name, nn.Identity())
    try:
        return digest(model_digest(model), head_name, x)[:32]
    finally:
        setattr(parent, name, head)
