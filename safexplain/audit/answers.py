"""Asking models: every model is asked about every example, once and by dithered queries, and the answers are a table.

`predict` asks what models predict, `explanations_of` for what they release; both give arrays (models, examples, ...)
by level: 1 is the plain query, L the first L dithered ones together. `signals_of` writes such tables as `Signals`, in
whose file format names carry the level ("l1@32"); `collect_signals` does all three.

Of each map that comes back, summaries are kept: numbers that an attack can compare between models. `l1`, `l2` and
`variance` tell how large a map is. The others do not change when the map is multiplied by a positive number: they
survive clipping to a norm and normalisation, and tell how a map is shaped. Each of these is 0 for a map of zeros.

The pool's labels may be classes of another task, as those of data that a model was pre-trained on before it was
fine-tuned: then no label is compared with the outputs, and the prediction of every class is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import Undigestable, code_digest, digest, model_digest
from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.queries import Dither, Explain, Labels, Queries, batches, device_of, levels_of
from safexplain.audit.references.parallel import each, parallel
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.signals import Signals, hash_examples
from safexplain.audit.store import LARGEST_MAPS, Answers, Store, zeros
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.outputs import are_probabilities, class_log_odds, log_probabilities
from safexplain.verdict.evidence import WHOLE_MAP, at_level
from safexplain.verdict.policy import PATIENCE

Array = NDArray[np.float64]
Table = dict[int, dict[str, NDArray[Any]]]
"""Level -> name -> (models, examples, ...)."""

Tick = Callable[[float], object]
"""Told the share that is done."""

MOST_CLASSES = 32
"""Of models with more classes, how often each label came is not kept."""

MOST_KEPT = 16
"""Dithered queries of which the predictions are kept one by one, at most."""

MOST_ROWS, MOST_ASKED = 8_192, 2**20
"""Rows in one forward pass for labels, and numbers in these rows, at most: the passes of tables and small networks cost
mostly the call, those of images what they compute."""

DITHERS_WITHOUT_NOISE = 4
"""Dithered queries that are explained of a release without noise: more of them tell the attacker little more."""

CLASS_SUMMARIES = ("l1", "l2", "mean")
"""What is kept of the explanation of each of several classes."""


def _l2(a: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(a, dim=1)
    return norm


def _by_rms(numbers: Tensor, a: Tensor) -> Tensor:
    rms = _l2(a) / a.shape[1] ** 0.5
    return torch.where(rms > 0, numbers / rms, 0.0)


SUMMARIES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": lambda a: a.abs().sum(1),
    "l2": _l2,
    "variance": lambda a: a.var(1, correction=0),
    "mean": lambda a: _by_rms(a.mean(1), a),
    "positive": lambda a: (a > 0).double().mean(1),
    "support": lambda a: (a != 0).double().mean(1),
    "sparsity": lambda a: _by_rms(a.abs().mean(1), a),
    "peak": lambda a: _by_rms(a.abs().amax(1), a),
}
"""Name -> function of maps (batch, d), giving (batch,). With RMS = sqrt(mean a_j^2):

    l1        sum |a_j|
    l2        sqrt(sum a_j^2)
    variance  mean (a_j - mean a)^2 over all entries (Huang et al., Algorithm 1)
    mean      (mean a_j) / RMS, from -1 to 1
    positive  share of entries above 0
    support   share of entries that are not 0
    sparsity  l1 / (l2 sqrt d) = (mean |a_j|) / RMS: 1 where all |a_j| are equal, 1 / sqrt(d) where one entry is not 0
              (the ratio in Hoyer's measure, JMLR 5 (2004), section 3.1)
    peak      (max |a_j|) / RMS, from 1 to sqrt(d)
"""


def summarise(maps: Tensor, names: Sequence[str] = tuple(SUMMARIES)) -> dict[str, Tensor]:
    """Name -> (batch,) float64 summaries of maps (batch, ...), on their device; `names` are of `SUMMARIES`."""
    rows = maps.reshape(len(maps), -1).double()
    return {name: SUMMARIES[name](rows) for name in names}


# --- predictions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Predictions:
    """What models predict for plain and dithered queries; see `predict`.

    Args:
        by_level: level -> name -> (m, n) or (m, n, classes) float64.
        dither: how queries differ.
        classes: outputs of the models.
        labels: what the population's labels are.
    """

    by_level: Table
    dither: Dither
    classes: int
    labels: Labels = "own"

    @property
    def label(self) -> Array:
        """(m, n) the class predicted for the plain query."""
        return self.by_level[1]["label"]

    @property
    def values(self) -> dict[str, Array]:
        """The same by name, with the level as signals have it: "kept@32"."""
        return {at_level(name, level): a for level, found in self.by_level.items() for name, a in found.items()}


def predict(
    shadows: Shadows,
    population: Population,
    *,
    patience: Sequence[int] = PATIENCE,
    dither: Dither | None = None,
    labels: Labels = "own",
    batch_size: int = 256,
    progress: Progress = silent,
) -> Predictions:
    """Ask every model for its prediction of every example, plainly and by the dithered queries of every level.

        label     the class predicted for the plain query
        loss      -log p_y of the true label y
        margin    log p_y - log(1 - p_y), the logit scaling of LiRA (arXiv 2112.03570, section IV-C)
        kept@L    share of the first L dithered queries that kept the label of the plain one
        shares@L  share of them that got each label, (m, n, classes), for up to 32 classes
        loss@L    mean loss of them; margin@L likewise

    Foreign labels are classes of another task, which no output stands for. Then there is no loss and no margin, but

        prediction     log p_c - log(1 - p_c) of every class c of the model, (m, n, classes)
        prediction@L   its mean over the first L dithered queries
        predictions@L  of each of them, one query after the other, (m, n, L * classes), for up to 16 queries

    Probabilities are taken as at least 1e-30.

    Args:
        shadows: m models.
        population: n examples.
        patience: the levels; 1 is the plain query.
        dither: how queries differ; None: `Dither()`.
        labels: "own": the population's labels are outputs of the models; "foreign": they are of another task, and not
            looked at.
        batch_size: examples that are looked at together; a call of a model asks several queries about each.
        progress: told after each call, of all queries.

    Raises:
        InputError: outputs are not finite, or not of shape (batch, classes >= 2), too few for labels of their own, or,
            with foreign ones, not as many of each model.
        ConfigurationError: `labels` is neither.
    """
    if labels not in get_args(Labels):
        raise ConfigurationError(f"labels are {' or '.join(get_args(Labels))}; got {labels!r}")
    asking = _Predicting(population, dither or Dither(), levels_of(patience), labels, batch_size)
    if not parallel():
        return asking(shadows.models, progress=progress)
    m, found = len(shadows.models), dict[int, Predictions]()
    for i, one in each(asking, [((model,),) for model in shadows.models], stage="labels", progress=progress):
        found[i] = one
    first = found[0]
    for i in range(m):
        _check_classes(first.classes, found[i].classes, i)
    table = {
        level: {name: np.concatenate([found[i].by_level[level][name] for i in range(m)]) for name in values}
        for level, values in first.by_level.items()
    }
    return Predictions(table, asking.dither, first.classes, labels)


@dataclass(frozen=True, eq=False)
class _Predicting:
    """Asks models for their predictions, here or in another process; fields as the arguments of `predict`."""

    population: Population
    dither: Dither
    levels: tuple[int, ...]
    labels: Labels
    batch_size: int

    def __call__(
        self, models: Sequence[nn.Module], tick: Tick = lambda share: None, progress: Progress = silent
    ) -> Predictions:
        population, levels = self.population, self.levels
        queries, m, n = Queries.of(population, self.dither), len(models), len(population)
        total, done, classes = m * n * (1 + max(levels, default=0)), 0, 0
        table = _Filling(m, n)

        def asked(number: int) -> None:
            nonlocal done
            done += number
            progress("labels", done, total)
            tick(done / total)

        for part in batches(n, self.batch_size):
            open_sums = []
            for i, model in enumerate(models):
                x, y = (a[part.start : part.stop].to(device_of(model)) for a in (population.x, population.y))
                sums, plain = _Sums.plainly(model, x, y if self.labels == "own" else None, levels)
                if self.labels == "foreign" and classes:
                    _check_classes(classes, sums.outputs.classes, i)
                table.put(i, part, {(1, name): a for name, a in plain.items()})
                open_sums.append(sums)
                classes = sums.outputs.classes
            asked(len(part) * m)
            rows = max(self.batch_size, min(MOST_ROWS, MOST_ASKED // max(1, population.x[0].numel())))
            for first, after in _runs(levels, max(1, rows // len(part))):
                x = torch.cat([queries(part, number) for number in range(first, after)])
                for i, (model, sums) in enumerate(zip(models, open_sums, strict=True)):
                    sums.add(model, x.to(sums.label.device), after - first)
                    if after in levels:
                        table.put(i, part, {(after, name): mean for name, mean in sums.means(after).items()})
                asked(len(x) * m)
        return Predictions(table.by_level, self.dither, classes, self.labels)


def _check_classes(first: int, other: int, model: int) -> None:
    if first != other:
        raise InputError(
            f"expected models of one task, got {first} classes of the first and {other} of model {model}; fine-tune"
            " reference models to the target's task"
        )


class _Outputs(NamedTuple):
    """What a model returns: how many numbers, and whether they are probabilities already."""

    classes: int
    probabilities: bool


@dataclass(eq=False)
class _Sums:
    """Sums over the dithered queries about a batch, of one model."""

    label: Tensor  # (batch,) predicted for the plain query
    y: Tensor | None  # (batch,) true labels; None: they are of another task
    outputs: _Outputs
    kept: int = 0  # first dithered queries whose predictions are kept one by one, if labels are of another task
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: Tensor | None = None
    each: list[Tensor] = field(default_factory=list)

    @classmethod
    def plainly(
        cls, model: nn.Module, x: Tensor, y: Tensor | None, levels: Sequence[int]
    ) -> tuple[_Sums, dict[str, Tensor]]:
        """With what the plain query gives."""
        label, found, outputs = _predicted(model, x, y, None)
        kept = 0 if y is not None else max((level for level in levels if level <= MOST_KEPT), default=0)
        return cls(label, y, outputs, kept), {"label": label, **found}

    def add(self, model: nn.Module, x: Tensor, queries: int) -> None:
        """Ask about (queries * batch, ...)."""
        label, found, _ = _predicted(model, x, None if self.y is None else self.y.repeat(queries), self.outputs)
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


def _predicted(
    model: nn.Module, x: Tensor, y: Tensor | None, outputs: _Outputs | None
) -> tuple[Tensor, dict[str, Tensor], _Outputs]:
    """(batch,) labels, what else is predicted by name, and what the outputs are; InputError as `predict`."""
    with torch.no_grad():
        out = model(x)
    if out.dim() != 2 or out.shape[1] < 2 or not bool(torch.isfinite(out).all()):
        raise InputError(f"expected finite outputs of shape (batch, classes >= 2), got {tuple(out.shape)}")
    rows = out.double()
    outputs = outputs or _Outputs(out.shape[1], are_probabilities(rows))
    label, scores = out.argmax(1), log_probabilities(rows) if outputs.probabilities else rows
    if y is None:
        return label, {"prediction": class_log_odds(scores)}, outputs
    if int(y.max()) >= outputs.classes:
        raise InputError(
            f"labels must be outputs 0 .. {outputs.classes - 1} of the model, got {int(y.max())}; where they are"
            ' classes of another task, such as that of the pre-training, say labels="foreign"'
        )
    own = scores.gather(1, y[:, None])[:, 0]
    margin = own - scores.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    loss = -own if outputs.probabilities else torch.logaddexp(-margin, torch.zeros_like(margin))
    return label, {"loss": loss, "margin": margin}, outputs


def _runs(levels: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """The dithered queries in runs (first, after the last) of at most this many, none across a level."""
    first = 0
    for level in levels:
        while first < level:
            after = min(first + most, level)
            yield first, after
            first = after


class _Filling:
    """A table that is filled batch by batch, with one move from the device for each."""

    def __init__(self, m: int, n: int, dtype: torch.dtype = torch.float64) -> None:
        self.size, self.dtype = (m, n), dtype
        self.by_level: Table = {}

    def put(self, i: int, part: range, found: Mapping[tuple[int, str], Tensor]) -> None:
        """What model i answered about these examples, by level and name."""
        moved = torch.cat([v.reshape(len(part), -1).to(self.dtype) for v in found.values()], dim=1).cpu().numpy()
        column = 0
        for (level, name), v in found.items():
            after, arrays = column + v[0].numel(), self.by_level.setdefault(level, {})
            if name not in arrays:
                arrays[name] = np.zeros((*self.size, *v.shape[1:]), moved.dtype)
            arrays[name][i, part.start : part.stop] = moved[:, column:after].reshape(v.shape)
            column = after


# --- explanations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Explanations:
    """What m models released about n examples; see `explanations_of`.

    Args:
        summaries: level -> name -> (m, n) or (m, n, k) float64.
        maps: level -> (m, n, d) float32 maps of all explainers side by side, in memory or on disk; empty if none are
            kept.
        shapes: of the map of one example, one of each explainer.
    """

    summaries: Table
    maps: dict[int, NDArray[np.float32]]
    shapes: tuple[tuple[int, ...], ...]


def explanations_of(
    models: Sequence[nn.Module],
    population: Population,
    predictions: Predictions,
    releases: Sequence[Explain],
    *,
    patiently: Sequence[Explain] | None = None,
    dithers: Sequence[int] | None = None,
    levels: Sequence[int] = (),
    classes: Sequence[int] = (),
    own_class: bool = False,
    batch_size: int = 256,
    keep_maps: bool = True,
    largest: float = LARGEST_MAPS,
    natives: NDArray[np.float32] | None = None,
    store: Store | None = None,
    progress: Progress = silent,
) -> Explanations:
    """Ask every model for its explanation of every example, plainly and by the dithered queries of every level.

    What is explained is the class that the model predicts for the plain query, which favours the attacker: the answers
    to an example's queries are then all about one thing. If the service decides (`own_class`), it is the class
    predicted for each query, and averaged are the maps of those queries that kept the label of the plain one; where
    none did, the average is the plain map.

    `releases` answer the plain query, one a model, and `patiently` the dithered ones (None: the same), `dithers` of
    them for each model (None: at most four): an average over more is that over these, at each of the `levels` above
    one. `classes` are explained beside the predicted one. Whole maps are kept in memory up to `largest` bytes, or else
    on disk. Where (m, n, d) `natives` of the plain queries are known, `of_native` of a release hardens them; nothing
    is explained for these queries. The `store` keeps what each finished model answered.

    Raises:
        InputError: an explanation is not finite, or not of shape (batch, ...), the same for all.
    """
    m, levels, store = len(models), levels_of(levels), store or Store()
    dithers = [min(max(levels, default=0), DITHERS_WITHOUT_NOISE)] * m if dithers is None else dithers
    queries, label = Queries.of(population, predictions.dither), predictions.label
    jobs = [
        ExplainModel(
            f"model {i}", releases[i], (patiently or releases)[i], population.x, queries, levels, dithers[i],
            tuple(classes), own_class, batch_size, keep_maps, None if natives is None else natives[i],
        )
        for i in range(m)
    ]  # fmt: skip
    of_data = population.digest() if store.folder else ""
    keys, found, done = list[str](), Explanations({}, {}, ()), 0
    total, missing = sum(job.explanations for job in jobs), list[int]()

    def put(i: int, answers: Answers) -> None:
        nonlocal found
        if not found.shapes:
            found = Explanations({}, {}, answers.shapes)
        _check_shapes(answers.shapes, found.shapes)
        for level, values in answers.summaries.items():
            for name, a in values.items():
                table = found.summaries.setdefault(level, {})
                if name not in table:
                    table[name] = np.zeros((m, *a.shape))
                table[name][i] = a
        for level, maps in answers.maps.items():
            if level not in found.maps:
                large = maps.nbytes * m * len(answers.maps) > largest
                found.maps[level] = zeros((m, *maps.shape), large=large, folder=store.folder)
            found.maps[level][i] = maps

    for i, job in enumerate(jobs):
        seen = {name: a[i] for name, a in predictions.values.items()} if store.folder else {}
        keys.append(job.key(models[i], seen, of_data) if store.folder else "")
        if (answers := store.load(keys[i])) is None:
            missing.append(i)
        else:
            put(i, answers)
            done += job.explanations
            progress("explaining", done, total)
    tasks = [(jobs[i], models[i], label[i]) for i in missing]
    sizes = [jobs[i].explanations for i in missing]
    for task, answers in each(
        ExplainModel.__call__, tasks, sizes=sizes, stage="explaining", progress=progress, before=done, total=total
    ):
        put(missing[task], answers)
        store.save(keys[missing[task]], answers)
    return found


@dataclass(frozen=True, eq=False)
class ExplainModel:
    """Explains one model: all that a process of its own needs for it, but the model; fields as in `explanations_of`."""

    name: str  # of the model, in messages
    release: Explain
    patiently: Explain
    x: Tensor  # (n, ...) the examples
    queries: Queries
    levels: tuple[int, ...]
    dithers: int
    classes: tuple[int, ...]
    own_class: bool
    batch_size: int
    keep_maps: bool
    native: NDArray[np.float32] | None = None  # (n, d)

    @property
    def explanations(self) -> int:
        """How many examples are explained, each as often as it is asked about and once for each class."""
        return len(self.x) * (1 + len(self.classes)) * ((self.native is None) + self.dithers)

    def key(self, model: nn.Module, predicted: Mapping[str, NDArray[Any]], population: str) -> str:
        """Digest of all that the answers of a model depend on, "" if that cannot be told."""
        how = (self.levels, self.dithers, self.classes, self.own_class, self.batch_size, self.keep_maps)
        asked = (population, self.queries.dither.to_dict(), how, dict(predicted))
        try:
            code = code_digest(__name__, *_modules_of((self.release, self.patiently)))
            return digest(code, model_digest(model), asked, self.release, self.patiently)
        except (Undigestable, RefusedError):
            return ""

    def __call__(self, model: nn.Module, labels: NDArray[Any], tick: Tick = lambda share: None) -> Answers:
        """Ask the model about every example; `labels` (n,) are those of the plain queries."""
        n, place = len(self.x), device_of(model)
        summaries, maps = _Filling(1, n), _Filling(1, n, torch.float32)
        oracle = _Oracle(model, self.name, max(self.explanations, 1), tick)
        explained = torch.from_numpy(np.asarray(labels)).long()
        for part in batches(n, self.batch_size):
            about_what = explained[part.start : part.stop].to(place)
            wanted = [about_what, *(torch.full_like(about_what, c) for c in self.classes)]

            def keep(level: int, found: Tensor, part: range = part) -> None:
                summaries.put(0, part, {(level, name): v for name, v in oracle.summaries(found).items()})
                if self.keep_maps:
                    maps.put(0, part, {(level, WHOLE_MAP): found[0]})

            x, plainly = self.x[part.start : part.stop].to(place), self.release
            if self.native is not None:
                known = torch.from_numpy(self.native[part.start : part.stop]).to(place).view(x.shape)
                plainly = partial(self.release.of_native, native=known)  # type: ignore[attr-defined]
            average = _Average(oracle.ask(plainly, x, wanted, counts=self.native is None))
            keep(1, average.plain)
            for number in range(self.dithers):
                query = self.queries(part, number).to(x.device)
                if self.own_class:
                    with torch.no_grad():
                        label = model(query).argmax(1)
                    average.add(oracle.ask(self.patiently, query, [label, *wanted[1:]]), label == about_what)
                else:
                    average.add(oracle.ask(self.patiently, query, wanted))
                if number + 1 in self.levels:
                    keep(number + 1, average.mean)
            for level in self.levels:
                if level > self.dithers:
                    keep(level, average.mean)
        return Answers(
            {level: {name: a[0] for name, a in values.items()} for level, values in summaries.by_level.items()},
            {level: values[WHOLE_MAP][0] for level, values in maps.by_level.items()},
            oracle.shapes or (),
        )


def _check_shapes(now: tuple[tuple[int, ...], ...], before: tuple[tuple[int, ...], ...]) -> None:
    if now != before or not all(math.prod(shape) for shape in now):
        listed = ([list(shape) for shape in one] for one in (now, before))
        raise InputError("maps must all have one shape, not empty; got {}, {}".format(*listed))


@dataclass(eq=False)
class _Average:
    """Of the maps (targets, batch, d) of dithered queries; the plain query's where no other map counts."""

    plain: Tensor
    total: Tensor | float = 0.0
    counted: Tensor | float = 0.0

    def add(self, maps: Tensor, counts: Tensor | None = None) -> None:
        """The maps of one query; `counts` (batch,) bool: for which examples, None: for all."""
        if counts is None:
            self.total, self.counted = self.total + maps, self.counted + 1.0
        else:
            here = counts.double()[:, None]
            self.total, self.counted = self.total + here * maps.double(), self.counted + here

    @property
    def mean(self) -> Tensor:
        """Of what was added, (targets, batch, d)."""
        if not isinstance(self.counted, Tensor):
            return torch.as_tensor(self.total / self.counted)
        return torch.where(self.counted > 0, self.total / self.counted, self.plain.double())


@dataclass(eq=False)
class _Oracle:
    """Asks one model for explanations, checks them and counts them."""

    model: nn.Module
    name: str
    total: int
    tick: Tick
    done: int = 0
    shapes: tuple[tuple[int, ...], ...] | None = None

    def ask(self, release: Explain, x: Tensor, targets: Sequence[Tensor], *, counts: bool = True) -> Tensor:
        """(targets, batch, d): maps about each of the targets, those of several explainers side by side."""
        return torch.stack([self._ask(release, x, target, counts) for target in targets])

    def _ask(self, release: Explain, x: Tensor, target: Tensor, counts: bool) -> Tensor:
        answer: Any = release(self.model, x, target)
        answers: list[Any] = list(answer) if isinstance(answer, list | tuple) and answer else [answer]
        for a in answers:
            if not isinstance(a, Tensor) or a.shape[:1] != x.shape[:1] or not bool(torch.isfinite(a).all()):
                got = tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__
                raise InputError(f"explanations must be finite, of shape ({len(x)}, ...); got {got} from {self.name}")
        shapes = tuple(tuple(a.shape[1:]) for a in answers)
        if self.shapes is None:
            self.shapes = shapes
        _check_shapes(shapes, self.shapes)
        if counts:
            self.done += len(x)
            self.tick(self.done / self.total)
        return torch.cat([a.detach().reshape(len(a), -1) for a in answers], dim=1)

    def summaries(self, maps: Tensor) -> dict[str, Tensor]:
        """Of (targets, batch, d) maps: the predicted class's, and those of further classes; one number an explainer."""
        assert self.shapes is not None
        widths = [math.prod(shape) for shape in self.shapes]
        one, *others = ([summarise(part) for part in found.split(widths, dim=1)] for found in maps)
        found = {s: one[0][s] if len(one) == 1 else torch.stack([part[s] for part in one], dim=1) for s in SUMMARIES}
        if others:
            every = [part for several in others for part in several]
            found |= {f"class_{s}": torch.stack([part[s] for part in every], dim=1) for s in CLASS_SUMMARIES}
        return found


def _modules_of(value: Any) -> set[str]:
    """Modules of this package in which explainers are defined: what other code answered is not taken for theirs."""
    inside = [*value] if isinstance(value, tuple) else [*vars(value).values()] if is_dataclass(value) else []
    own = {str(getattr(one, "__module__", "")) for one in (value, type(value))}
    found = {name for name in own if name.partition(".")[0] == "safexplain"}
    return found.union(*map(_modules_of, inside))


# --- signals ----------------------------------------------------------------------------------------------------------


def signals_of(
    shadows: Shadows,
    population: Population,
    predictions: Predictions | None,
    explanations: Explanations | None,
    *,
    targets: Sequence[int] | None = None,
    null: Sequence[int] = (),
    classes: Sequence[int] = (),
    slices: Mapping[str, NDArray[Any]] | None = None,
    out_of_distribution: NDArray[np.bool_] | None = None,
    keep_inputs: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Signals:
    """The answers of models as `Signals`; without any, who is a member of what; arguments as `collect_signals`."""
    about: dict[str, Any] = {**(meta or {}), "population": population.digest()}
    listed = {"targets": targets, "null": null or None, "classes": classes or None}
    about |= {name: [int(i) for i in given] for name, given in listed.items() if given is not None}
    values: dict[str, NDArray[Any]] = {"label": np.zeros(shadows.membership.shape)}
    maps: dict[str, NDArray[Any]] = {}
    if predictions is not None:
        values = {}
        if predictions.labels == "foreign":
            about["labels"] = "foreign"
        if len(predictions.by_level) > 1:
            about["dither"] = {**predictions.dither.to_dict(), **about.get("dither", {})}
    if explanations is not None:
        for level, found in explanations.summaries.items():
            values |= {at_level(name, level): a for name, a in found.items()}
        maps = {at_level(WHOLE_MAP, level): a for level, a in explanations.maps.items()}
        if len(explanations.shapes) == 1:
            about["shape"] = list(explanations.shapes[0])
    if predictions is not None:
        values |= predictions.values
    whole, x = maps.pop(WHOLE_MAP, None), population.x.cpu().numpy()
    return Signals(
        shadows.membership,
        {**values, **maps},
        whole,
        about,
        inputs=x if keep_inputs else None,
        examples=None if keep_inputs else hash_examples(x),
        out_of_distribution=out_of_distribution,
        groups=population.groups,
        slices={"class": population.y.cpu().numpy(), **(slices or {})},
    )


def collect_signals(
    shadows: Shadows,
    population: Population,
    explain: Explain | Sequence[Explain] | None,
    *,
    patience: Sequence[int] = PATIENCE,
    dither: Dither | None = None,
    without_noise: Explain | Sequence[Explain] | None = None,
    labels: Labels = "own",
    batch_size: int = 256,
    keep_attributions: bool = True,
    largest_maps: float = LARGEST_MAPS,
    store: Store | str | Path | None = None,
    keep_inputs: bool = False,
    classes: Sequence[int] = (),
    targets: tuple[int, ...] | None = None,
    null: Sequence[int] = (),
    out_of_distribution: NDArray[np.bool_] | None = None,
    slices: Mapping[str, NDArray[Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Signals:
    """Ask every model about every example, once and as often as a patient attacker would, and keep what that one sees.

        l1, l2, ...              summaries of the released map (`SUMMARIES`)
        class_l1, class_l2,      summaries of the explanations of each of `classes`, k numbers an example
        class_mean
        label, loss, margin      see `predict`; loss and margin are more than an explanation alone releases
        l1@L, ..., class_l1@L    the same summaries of the map averaged over the first L dithered queries, for each L
        attributions@L           that map itself, if maps are kept
        kept@L, shares@L,        what happened to the labels, and the mean loss and margin, of the same L queries
        loss@L, margin@L
        prediction, ...@L,       what the model predicts of each of its classes, instead of loss and margin if labels
        predictions@L            are foreign

    What is explained is always the class that the model predicts for the plain query. Of the dithered queries, all
    models explain the first four, of which more tell little more. If the release has noise, which averages away over
    many (`without_noise` is given), targets and null models answer every query through what is released, and the other
    models, which stand for the attacker's own, explain four `without_noise`.

    Explanations of several explainers that are released together are put side by side: the maps one after the other,
    and each summary as a vector (m, n, k).

    Args:
        shadows: m models with membership over `population`.
        population: the pool of n examples; its labels are the slice "class", its groups those of the signals.
        explain: see `Explain`, called with float32 batches on the model's device and class indices; or one a model.
            None: nothing is explained, and what is predicted is all that is kept.
        patience: how often is asked about each example; the plain query is always among them.
        dither: how queries differ; None: `Dither()`.
        without_noise: the release less its noise, by which models that are no targets answer dithered queries; or one
            a model. None: the release has no noise.
        labels: "own", or "foreign" if the population's labels are classes of another task than the models', see
            `predict`; they are the slice "class" in both cases.
        batch_size: examples a call.
        keep_attributions: also keep the whole maps, (m, n, d) float32 for each level.
        largest_maps: bytes of these that are kept in memory; more of them go to disk, and attacks read them there.
        store: a folder in which each finished model's answers are kept, so that an interrupted run explains no model
            again, as far as the identity of models and explainers can be told. None: nothing is kept.
        keep_inputs: also keep what was asked about.
        classes: indices of outputs that are explained for every query, beside the predicted one.
        targets: models that may be attacked; None: all trained ones, which then all answer all queries.
        null: models that are untrained and have no members.
        out_of_distribution: (n,) bool, examples from another source that no model was trained on.
        slices: name -> (n,), parts of the data by which results are shown.
        meta: kept in the file; `shape` (of one map), `population` (its digest) and `dither` are added.
        progress: told after each batch, of all queries.

    Raises:
        InputError: membership does not fit the population, `null` or `out_of_distribution`; an explanation is not
            finite, of shape (batch, ...), the same for all; the model's outputs are not finite or too few.
        ConfigurationError: a level is no whole number of at least 1, or `labels` is neither of the two.
    """
    (m, n), levels = shadows.membership.shape, levels_of(patience)
    if n != len(population):
        raise InputError(f"membership is over {n} examples, the population has {len(population)}")
    if explain is None and not (without_noise is None and not classes):
        raise InputError("nothing is explained (explain=None), and yet without_noise or classes say how")
    kept: dict[str, Any] = {
        "targets": targets, "null": null, "classes": classes, "slices": slices, "keep_inputs": keep_inputs,
        "out_of_distribution": out_of_distribution, "meta": meta,
    }  # fmt: skip
    asked = signals_of(shadows, population, None, None, **kept)  # what is wrong is refused before anything is asked
    predictions = predict(
        shadows, population, patience=patience, dither=dither, labels=labels, batch_size=batch_size, progress=progress
    )
    if wrong := [c for c in classes if not 0 <= c < predictions.classes]:
        raise InputError(f"classes to explain are outputs 0 .. {predictions.classes - 1} of the model, got {wrong}")
    explanations, place = None, Store.of(store)
    if explain is not None:
        plainly = _each(explain, m)
        quietly = None if without_noise is None else _each(without_noise, m)
        explanations = explanations_of(
            shadows.models,
            population,
            predictions,
            plainly,
            **patient_queries(levels, plainly, quietly, {*asked.targets, *asked.null}),
            levels=levels,
            classes=classes,
            batch_size=batch_size,
            keep_maps=keep_attributions,
            largest=largest_maps,
            store=place,
            progress=progress,
        )
    return signals_of(shadows, population, predictions, explanations, **kept)


def patient_queries(
    levels: Sequence[int], plainly: Sequence[Explain], quietly: Sequence[Explain] | None, released: set[int]
) -> dict[str, Any]:
    """By what each model answers dithered queries, and how many: of a release with noise (`quietly` without it), models
    that are attacked or null answer all of them as released, others a few quietly."""
    most = max(levels, default=0)
    few = min(most, DITHERS_WITHOUT_NOISE)
    if quietly is None:
        return {"patiently": plainly, "dithers": [few] * len(plainly)}
    return {
        "patiently": [plainly[i] if i in released else quiet for i, quiet in enumerate(quietly)],
        "dithers": [most if i in released else few for i in range(len(quietly))],
    }


def _each(explainer: Explain | Sequence[Explain], m: int) -> list[Explain]:
    explainers = [explainer] * m if callable(explainer) else list(explainer)
    if len(explainers) != m:
        raise InputError(f"expected one explainer, or one for each of {m} models; got {len(explainers)}")
    return explainers
