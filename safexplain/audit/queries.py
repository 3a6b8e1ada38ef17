"""Patient attackers: each example is asked about many times, every time a little differently, and answers are averaged.

Noise that is a function of the query falls away over queries that differ, wherever the answer hardly changes between
them; and how often the label survives tells by itself how well a model knows an example. Queries are dithered by the
same draws for all models (`Dither`). What models predict for them is asked once (`predict`), for whatever is released
beside it.

The pool's labels may be classes of another task, as those of data that a model was pre-trained on before it was
fine-tuned: then no label is compared with the outputs, and the prediction of every class is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import code_digest
from safexplain._progress import Progress, silent
from safexplain._validate import check_whole, keep_number
from safexplain.audit.population import Population
from safexplain.audit.recipe import Tick
from safexplain.audit.references.batches import padding, shift_and_flip
from safexplain.audit.references.executors import (
    Executor,
    Sent,
    check_code,
    check_executor,
    grouped,
    received,
    run_groups,
    sendable,
)
from safexplain.audit.references.shadows import Shadows
from safexplain.errors import ConfigurationError, InputError
from safexplain.outputs import are_probabilities, class_log_odds, log_probabilities
from safexplain.verdict.evidence import at_level
from safexplain.verdict.policy import PATIENCE

Kind = Literal["multiplicative", "additive", "crop-flip"]
Labels = Literal["own", "foreign"]
"""What the pool's labels are: classes of the models' task, or of another."""

Answer = Tensor | Sequence[Tensor]
Explain = Callable[[nn.Module, Tensor, Tensor], Answer]
"""explain(model, x, target) -> attributions (batch, ...), native or hardened, from any library; or several of them, one
of each explainer, which are released together."""

MOST_CLASSES = 32
"""Of models with more classes, how often each label came is not kept."""

MOST_KEPT = 16
"""Dithered queries of which the predictions are kept one by one, at most."""

BLOCK = 64
"""Examples that share a random generator."""

MOST_ROWS, MOST_ASKED = 8_192, 2**20
"""Rows in one forward pass for labels, and numbers in these rows, at most: the passes of tables and small networks cost
mostly the call, those of images what they compute."""


@dataclass(frozen=True)
class Dither:
    """How one query about an example differs from the next.

    Args:
        kind: "multiplicative": x exp(amplitude z); "additive": x + amplitude * scale * z, with the standard deviation
            of the population as scale: over all pixels of images (n, c, h, w), of each feature of everything else. z
            is standard normal. "crop-flip", for images alone: a random crop of the image reflect-padded by 1/8 of its
            height, mirrored half of the time, as `Recipe(augmentation="crop-flip")` trains on.
        amplitude: 0 asks the plain query again; not used by "crop-flip".
        seed: the draws are a function of the seed, the example's index in the population and the number of the query
            alone, and so the same for every model.

    Raises:
        ConfigurationError, ConfigurationTypeError: an unknown kind, or a number out of range.
    """

    kind: Kind = "multiplicative"
    amplitude: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"dither: kind is one of {', '.join(get_args(Kind))}; got {self.kind!r}")
        keep_number(self, "amplitude", minimum=0.0)
        check_whole("dither: seed", self.seed, 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Queries:
    """The dithered queries about the examples of a population.

    Args:
        x: (n, ...) the examples.
        dither: how queries differ.
        scale: of additive dither, a number or one for each feature.
    """

    x: Tensor
    dither: Dither
    scale: Tensor

    @classmethod
    def of(cls, population: Population, dither: Dither) -> Queries:
        """About this population.

        Raises:
            InputError: crops and flips of examples that are no images, or too small to be padded.
        """
        x = population.x.cpu().float()
        if dither.kind == "crop-flip" and not can_crop(population):
            raise InputError(
                "crop-flip is for images (examples, channels, height, width) that can be padded by max(height // 8, 1)"
                f" < height, width; got {tuple(x.shape)}"
            )
        image = x.dim() == 4 and min(x.shape[2:]) > 1
        return cls(x, dither, x.std(correction=0) if image else x.std(0, correction=0))

    def __call__(self, index: Sequence[int] | NDArray[np.int64] | range, number: int) -> Tensor:
        """The query of this number, counted from 0, about these examples: (len(index), ...) float32 on the CPU."""
        at = np.asarray(index, dtype=np.int64)
        x = self.x[torch.from_numpy(at)]
        if self.dither.kind == "crop-flip":
            return self._cropped(x, at, number)
        z = torch.from_numpy(self._draws(at, number))
        if self.dither.kind == "multiplicative":
            return x * z.mul_(self.dither.amplitude).exp_()
        return x + z.mul_(self.dither.amplitude) * self.scale

    def _draws(self, at: NDArray[np.int64], number: int) -> NDArray[np.float32]:
        shape = tuple(self.x.shape[1:])
        z = np.empty((len(at), *shape), np.float32)
        blocks = at // BLOCK
        for block in np.unique(blocks):
            here = blocks == block
            place = at[here] - block * BLOCK
            draws = self._generator(number, block).standard_normal((int(place.max()) + 1, *shape), dtype=np.float32)
            z[here] = draws[place]
        return z

    def _cropped(self, x: Tensor, at: NDArray[np.int64], number: int) -> Tensor:
        pad = padding(x)
        drawn = np.empty((3, len(at)), np.int64)
        blocks = at // BLOCK
        for block in np.unique(blocks):
            here = blocks == block
            draws = self._generator(number, block).integers(0, [[2 * pad + 1], [2 * pad + 1], [2]], (3, BLOCK))
            drawn[:, here] = draws[:, at[here] - block * BLOCK]
        rows, columns, mirrored = torch.from_numpy(drawn)
        return shift_and_flip(x, rows, columns, mirrored.bool())

    def _generator(self, number: int, block: np.int64) -> np.random.Generator:
        return np.random.default_rng([self.dither.seed, 0xD17E, number, int(block)])


def with_channels_last(model: nn.Module, x: Tensor) -> nn.Module:
    """The network, its weights laid out with channels last: on a CPU, convolutions and pooling of images take half the
    time then. Left as it is where it is no such network, or its answers or gradients changed by more than rounding.

    Args:
        model: in evaluation mode.
        x: (n, ...) what it is asked about.
    """
    if x.dim() != 4 or not any(p.dim() == 4 and p.device.type == "cpu" for p in model.parameters()):
        return model

    def answers() -> tuple[Tensor, Tensor]:
        some = x[:2].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            out = model(some)
            return out.detach(), torch.autograd.grad(out.sum(), some)[0]

    try:
        before = answers()
        model.to(memory_format=torch.channels_last)
        near = [torch.allclose(a, b, 1e-3, 1e-4 * float(a.abs().max())) for a, b in zip(before, answers(), strict=True)]
    except Exception:  # a view that this layout does not allow; other errors are said where the model is asked
        near = [False]
    return model if all(near) else model.to(memory_format=torch.contiguous_format)


def can_crop(population: Population) -> bool:
    """Whether these are images that can be reflect-padded for crops."""
    return population.x.dim() == 4 and padding(population.x) < min(population.x.shape[2:])


class Prediction(NamedTuple):
    """What a model says of each example, (batch,) each.

    label: predicted class. loss: -log p_y of the true label y. margin: log p_y - log(1 - p_y), the logit scaling of
    LiRA (arXiv 2112.03570, section IV-C).
    """

    label: Tensor
    loss: Tensor
    margin: Tensor


class Outputs(NamedTuple):
    """What a model returns: how many numbers, and whether they are probabilities already."""

    classes: int
    probabilities: bool


def predicted(model: nn.Module, x: Tensor, y: Tensor, outputs: Outputs | None = None) -> tuple[Prediction, Outputs]:
    """Label, loss and margin of a batch, and what the outputs are, seen from them unless it is said.

    Probabilities are taken as at least 1e-30.

    Raises:
        InputError: outputs are not finite or not of shape (batch, classes >= 2), or a label is none of them.
    """
    label, scores, outputs = _scores(model, x, outputs)
    if int(y.max()) >= outputs.classes:
        raise InputError(
            f"labels must be outputs 0 .. {outputs.classes - 1} of the model, got {int(y.max())}; where they are"
            ' classes of another task, such as that of the pre-training, say labels="foreign"'
        )
    own = scores.gather(1, y[:, None])[:, 0]
    margin = own - scores.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    loss = -own if outputs.probabilities else torch.logaddexp(-margin, torch.zeros_like(margin))
    return Prediction(label, loss, margin), outputs


def _scores(model: nn.Module, x: Tensor, outputs: Outputs | None) -> tuple[Tensor, Tensor, Outputs]:
    """Predicted classes (batch,), logits or log probabilities (batch, classes) float64, and what the outputs are."""
    with torch.no_grad():
        out = model(x)
    if out.dim() != 2 or out.shape[1] < 2 or not bool(torch.isfinite(out).all()):
        raise InputError(f"expected finite outputs of shape (batch, classes >= 2), got {tuple(out.shape)}")
    rows = out.double()
    outputs = outputs or Outputs(out.shape[1], are_probabilities(rows))
    return out.argmax(1), log_probabilities(rows) if outputs.probabilities else rows, outputs


@dataclass(frozen=True, eq=False)
class Predictions:
    """What models predict for plain and dithered queries; see `predict`.

    Args:
        values: name -> (m, n) or (m, n, classes) float64.
        levels: numbers of dithered queries, in increasing order.
        dither: how queries differ.
        classes: outputs of the models.
        labels: what the population's labels are.
    """

    values: Mapping[str, NDArray[np.float64]]
    levels: tuple[int, ...]
    dither: Dither
    classes: int
    labels: Labels = "own"


def levels_of(patience: Sequence[int]) -> tuple[int, ...]:
    """The levels above one query, in increasing order.

    Raises:
        ConfigurationError: a level is no whole number of at least 1.
    """
    return tuple(sorted({check_whole("patience", level, 1) for level in patience} - {1}))


def predict(
    shadows: Shadows,
    population: Population,
    *,
    patience: Sequence[int] = PATIENCE,
    dither: Dither | None = None,
    labels: Labels = "own",
    batch_size: int = 256,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> Predictions:
    """Ask every model for its prediction of every example, plainly and by the dithered queries of every level.

        label     the class predicted for the plain query
        loss      -log p_y of the true label y
        margin    log p_y - log(1 - p_y)
        kept@L    share of the first L dithered queries that kept the label of the plain one
        shares@L  share of them that got each label, (m, n, classes), for up to 32 classes
        loss@L    mean loss of them; margin@L likewise

    Foreign labels are classes of another task, which no output stands for. Then there is no loss and no margin, but

        prediction     log p_c - log(1 - p_c) of every class c of the model, (m, n, classes)
        prediction@L   its mean over the first L dithered queries
        predictions@L  of each of them, one query after the other, (m, n, L * classes), for up to 16 queries

    Args:
        shadows: m models.
        population: n examples.
        patience: the levels; 1 is the plain query.
        dither: how queries differ; None: `Dither()`.
        labels: "own": the population's labels are outputs of the models; "foreign": they are of another task, and not
            looked at.
        batch_size: examples that are looked at together; a call of a model asks several queries about each.
        executor: sends groups of models elsewhere, see `collect_signals`. None: this process.
        progress: told after each call, of all queries.

    Raises:
        InputError: outputs are not finite, or not of shape (batch, classes >= 2), too few for labels of their own, or,
            with foreign ones, not as many of each model.
        ConfigurationError: `labels` is neither.
    """
    check_labels(labels)
    check_executor(executor)
    dither, levels = dither or Dither(), levels_of(patience)
    if executor is not None:
        work = _PredictElsewhere(population, (1, *levels), dither, labels, batch_size, code_digest(__name__))
        return _predicted_by(executor, work, shadows, progress)
    queries, (m, n) = Queries.of(population, dither), shadows.membership.shape
    total, done = m * n * (1 + max(levels, default=0)), 0
    table, classes = Table(m, n), 0
    for part in batches(n, batch_size):
        asked = []
        for i, model in enumerate(shadows.models):
            x, y = (each[part.start : part.stop].to(device_of(model)) for each in (population.x, population.y))
            sums, plain = _Asked.plainly(model, x, y if labels == "own" else None, levels)
            if labels == "foreign" and classes not in (0, sums.outputs.classes):
                raise InputError(
                    f"expected models of one task, got {classes} classes of the first and {sums.outputs.classes} of"
                    f" model {i}; fine-tune reference models to the target's task"
                )
            table.put(i, part, plain)
            asked.append(sums)
            classes = sums.outputs.classes
        done += len(part) * m
        progress("labels", done, total)
        rows = max(batch_size, min(MOST_ROWS, MOST_ASKED // max(1, population.x[0].numel())))
        for first, after in _runs(levels, max(1, rows // len(part))):
            x = torch.cat([queries(part, number) for number in range(first, after)])
            for i, (model, sums) in enumerate(zip(shadows.models, asked, strict=True)):
                sums.add(model, x.to(sums.label.device), after - first)
                if after in levels:
                    table.put(i, part, {at_level(name, after): mean for name, mean in sums.means(after).items()})
            done += len(x) * m
            progress("labels", done, total)
    return Predictions(table.arrays, levels, dither, classes, labels)


@dataclass(frozen=True, eq=False)
class _PredictElsewhere:
    """Asks groups of models for their predictions, in a worker or here."""

    population: Population
    patience: tuple[int, ...]
    dither: Dither
    labels: Labels
    batch_size: int
    code: str

    def __call__(self, group: list[Sent], tick: Tick, seen: bool) -> Predictions:
        """Of models as they were sent."""
        check_code(self.code, __name__)
        return self.ask([received(sent) for sent in group], lambda _, done, total, note="": tick(done / total, note))

    def ask(self, models: Sequence[nn.Module], progress: Progress) -> Predictions:
        """Of these models."""
        nobody = np.zeros((len(models), len(self.population)), dtype=bool)
        return predict(
            Shadows(tuple(models), nobody),
            self.population,
            patience=self.patience,
            dither=self.dither,
            labels=self.labels,
            batch_size=self.batch_size,
            progress=progress,
        )


def _predicted_by(executor: Executor, work: _PredictElsewhere, shadows: Shadows, progress: Progress) -> Predictions:
    """`predict` by an executor; models that cannot be sent are asked from here."""
    m = len(shadows.models)
    sent = sendable(shadows.models, range(m))
    here = [i for i in range(m) if i not in sent]
    parts: dict[int, tuple[Predictions, int]] = {}
    if here:
        found = work.ask(
            [shadows.models[i] for i in here],
            lambda stage, done, total, note="": progress(stage, done / total * len(here), m, note),
        )
        parts |= {i: (found, row) for row, i in enumerate(here)}
    groups = grouped(dict.fromkeys(sent, 1), executor)

    def took(g: int, found: Predictions) -> None:
        parts.update({i: (found, row) for row, i in enumerate(groups[g])})

    if groups:
        run_groups(
            executor,
            work,
            [[sent[i] for i in group] for group in groups],
            took,
            sizes=[len(group) for group in groups],
            stage="labels",
            progress=progress,
            before=len(here),
        )
    of_each = [parts[i] for i in range(m)]
    if len({one.classes for one, _ in of_each}) > 1:
        raise InputError(
            f"expected models of one task, got {', '.join(str(one.classes) for one, _ in of_each)} classes; fine-tune"
            " reference models to the target's task"
        )
    first = of_each[0][0]
    values = {name: np.stack([one.values[name][row] for one, row in of_each]) for name in first.values}
    return replace(first, values=values)


def check_labels(labels: Labels) -> None:
    """Raise ConfigurationError unless it is said what the labels are."""
    if labels not in get_args(Labels):
        raise ConfigurationError(f"labels are {' or '.join(get_args(Labels))}; got {labels!r}")


@dataclass(eq=False)
class _Asked:
    """Sums over the dithered queries about a batch, of one model.

    Args:
        label: (batch,) predicted for the plain query.
        y: (batch,) true labels; None: they are of another task.
        outputs: what the model returns.
        kept: first dithered queries whose predictions are kept one by one, where labels are of another task.
    """

    label: Tensor
    y: Tensor | None
    outputs: Outputs
    kept: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: Tensor | None = None
    each: list[Tensor] = field(default_factory=list)

    @classmethod
    def plainly(
        cls, model: nn.Module, x: Tensor, y: Tensor | None, levels: Sequence[int] = ()
    ) -> tuple[_Asked, dict[str, Tensor]]:
        """With what the plain query gives."""
        label, found, outputs = _ask(model, x, y, None)
        kept = 0 if y is not None else max((level for level in levels if level <= MOST_KEPT), default=0)
        return cls(label, y, outputs, kept), {"label": label, **found}

    def add(self, model: nn.Module, x: Tensor, queries: int) -> None:
        """Ask about (queries * batch, ...)."""
        label, found, _ = _ask(model, x, None if self.y is None else self.y.repeat(queries), self.outputs)
        label = label.reshape(queries, -1)
        by_query = {name: a.reshape(queries, *self.label.shape, *a.shape[1:]) for name, a in found.items()}
        sums = {"kept": (label == self.label).sum(0).double(), **{name: a.sum(0) for name, a in by_query.items()}}
        self.sums = {name: self.sums[name] + a for name, a in sums.items()} if self.sums else sums
        if len(self.each) < self.kept:
            self.each += list(by_query["prediction"][: self.kept - len(self.each)])
        if self.outputs.classes <= MOST_CLASSES:
            if self.counts is None:
                self.counts = sums["kept"].new_zeros(len(self.label), self.outputs.classes)
            self.counts.scatter_add_(1, label.T, torch.ones_like(label.T, dtype=torch.float64))

    def means(self, queries: int) -> dict[str, Tensor]:
        """Of this many queries so far."""
        means = {name: a / queries for name, a in self.sums.items()}
        if queries <= self.kept:
            means["predictions"] = torch.cat(self.each[:queries], dim=1)
        return means if self.counts is None else {**means, "shares": self.counts / queries}


def _ask(
    model: nn.Module, x: Tensor, y: Tensor | None, outputs: Outputs | None
) -> tuple[Tensor, dict[str, Tensor], Outputs]:
    """Labels, what else is predicted by name, and what the outputs are: `predicted`, or the log odds of all classes."""
    if y is None:
        label, scores, outputs = _scores(model, x, outputs)
        return label, {"prediction": class_log_odds(scores)}, outputs
    found, outputs = predicted(model, x, y, outputs)
    return found.label, {"loss": found.loss, "margin": found.margin}, outputs


class Table:
    """Arrays (m, n, ...) that are filled batch by batch, with one move from the device for each."""

    def __init__(self, m: int, n: int, dtype: type[np.floating[Any]] = np.float64) -> None:
        self.size, self.dtype = (m, n), dtype
        self.arrays: dict[str, NDArray[Any]] = {}

    def put(self, i: int, part: range, found: Mapping[str, Tensor]) -> None:
        """Of model i and these examples."""
        kind = torch.float32 if self.dtype is np.float32 else torch.float64
        moved = torch.cat([v.reshape(len(part), -1).to(kind) for v in found.values()], dim=1).cpu().numpy()
        column = 0
        for name, v in found.items():
            after = column + v[0].numel()
            if name not in self.arrays:
                self.arrays[name] = np.zeros((*self.size, *v.shape[1:]), self.dtype)
            self.arrays[name][i, part.start : part.stop] = moved[:, column:after].reshape(v.shape)
            column = after


def batches(n: int, size: int) -> Iterator[range]:
    """0 .. n - 1 in parts of this size."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))


def device_of(model: nn.Module) -> torch.device:
    """Where a model is asked."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _runs(levels: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """The dithered queries in runs (first, after the last) of at most this many, none across a level."""
    first = 0
    for level in levels:
        while first < level:
            after = min(first + most, level)
            yield first, after
            first = after
