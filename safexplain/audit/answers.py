"""Answers of models: predictions and released maps, as arrays (models, examples, ...), by level: 1 is the plain query,
L the first L dithered ones together, as in the names of `Signals` ("l1@32")."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from safexplain.audit.queries import Dither, Explain, Labels, Population, Queries, batches, device_of, levels_of
from safexplain.audit.references.parallel import each, parallel
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.signals import LARGEST_MAPS, Explanations, Signals, Store, hash_examples, on_disk
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.outputs import are_probabilities, class_log_odds, log_probabilities
from safexplain.verdict.judgement import WHOLE_MAP, at_level
from safexplain.verdict.policy import PATIENCE

Array = NDArray[np.float64]
Table = dict[int, dict[str, NDArray[Any]]]  # level -> name -> (models, examples, ...)
Tick = Callable[[float], object]  # called with the share that is done
MAX_CLASSES = 32  # classes up to which the share of each label is kept
MAX_SINGLE = 16  # dithered queries whose predictions are kept one by one, at most
MAX_ROWS, MAX_NUMBERS = 8_192, 2**20  # rows in one forward pass for labels, and numbers in these rows, at most

DITHERS_WITHOUT_NOISE = 4
"""Dithered queries that are explained if a release has no noise; more hardly help the attacker."""

CLASS_SUMMARIES = ("l1", "l2", "mean")  # summaries of the explanation of each further class


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
"""Name -> function of maps (batch, d), giving (batch,), 0 for zeros; all but the first three are the same for a
positive multiple of the map. With RMS = sqrt(mean a_j^2):

    l1        sum |a_j|
    l2        sqrt(sum a_j^2)
    variance  mean (a_j - mean a)^2 over all entries (Huang et al., Algorithm 1)
    mean      (mean a_j) / RMS, from -1 to 1
    positive  share of entries above 0
    support   share of entries that are not 0
    sparsity  (mean |a_j|) / RMS, from 1 / sqrt(d) for one entry to 1 for equal |a_j| (the ratio in Hoyer's measure,
              JMLR 5 (2004), section 3.1)
    peak      (max |a_j|) / RMS, from 1 to sqrt(d)
"""


def summarise(maps: Tensor) -> dict[str, Tensor]:
    """Name -> (batch,) float64 summaries of maps (batch, ...), on their device."""
    rows = maps.reshape(len(maps), -1).double()
    return {name: of(rows) for name, of in SUMMARIES.items()}


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of m models with `classes` outputs, level -> name -> (m, n) or (m, n, classes); see `predict`."""

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
        """The same by the names of signals, such as "kept@32"."""
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
    """Predict every example by every model, for the plain query and the dithered queries of every level.

        label     class predicted for the plain query
        loss      -log p_y of the true label y
        margin    log p_y - log(1 - p_y), the logit scaling of LiRA (arXiv 2112.03570, section IV-C)
        kept@L    share of the first L dithered queries with the label of the plain one
        shares@L  share of these with each label, (m, n, classes), for up to 32 classes
        loss@L    their mean loss; margin@L likewise

    For foreign labels, which are classes of another task, in place of loss and margin

        prediction     log p_c - log(1 - p_c) of every class c of the model, (m, n, classes)
        prediction@L   its mean over the first L dithered queries
        predictions@L  of each of them, one query after the other, (m, n, L * classes), for up to 16 queries

    Probabilities are at least 1e-30. Arguments are those of `collect_signals`.

    Raises:
        InputError: outputs are not finite or not of shape (batch, classes >= 2), do not cover own labels, or differ in
            number between models with foreign ones.
        ConfigurationError: `labels` is neither.
    """
    if labels not in get_args(Labels):
        raise ConfigurationError(f"labels: expected {' or '.join(get_args(Labels))}, got {labels!r}")
    job = _PredictModels(population, dither or Dither(), levels_of(patience), labels, batch_size)
    if not parallel():
        return job(shadows.models, progress=progress)
    m, tasks = len(shadows.models), [((model,),) for model in shadows.models]
    found: dict[int, Predictions] = dict(each(job, tasks, stage="labels", progress=progress))
    first = found[0]
    for i in range(m):
        _check_classes(first.classes, found[i].classes, i)
    table = {
        level: {name: np.concatenate([found[i].by_level[level][name] for i in range(m)]) for name in values}
        for level, values in first.by_level.items()
    }
    return Predictions(table, job.dither, first.classes, labels)


@dataclass(frozen=True, eq=False)
class _PredictModels:
    """Predicts by some models, perhaps in another process."""

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
        table = _TableBuilder(m, n)

        def count(number: int) -> None:
            nonlocal done
            done += number
            progress("labels", done, total)
            tick(done / total)

        for part in batches(n, self.batch_size):
            sums_by_model = []
            for i, model in enumerate(models):
                x, y = (a[part.start : part.stop].to(device_of(model)) for a in (population.x, population.y))
                sums, plain = _Sums.start(model, x, y if self.labels == "own" else None, levels)
                if self.labels == "foreign" and classes:
                    _check_classes(classes, sums.outputs.classes, i)
                table.put(i, part, {(1, name): a for name, a in plain.items()})
                sums_by_model.append(sums)
                classes = sums.outputs.classes
            count(len(part) * m)
            rows = max(self.batch_size, min(MAX_ROWS, MAX_NUMBERS // max(1, population.x[0].numel())))
            for first, after in _runs(levels, max(1, rows // len(part))):
                x = torch.cat([queries(part, number) for number in range(first, after)])
                for i, (model, sums) in enumerate(zip(models, sums_by_model, strict=True)):
                    sums.add(model, x.to(sums.label.device), after - first)
                    if after in levels:
                        table.put(i, part, {(after, name): mean for name, mean in sums.means(after).items()})
                count(len(x) * m)
        return Predictions(table.by_level, self.dither, classes, self.labels)


def _check_classes(first: int, other: int, model: int) -> None:
    if first != other:
        raise InputError(
            f"expected models of one task, got {first} classes for the first and {other} for model {model}; fine-tune"
            " them for the target's"
        )


class _Outputs(NamedTuple):
    classes: int  # their number
    probabilities: bool


@dataclass(eq=False)
class _Sums:
    """Sums of one model's predictions over the dithered queries about a batch."""

    label: Tensor  # (batch,) predicted for the plain query
    y: Tensor | None  # (batch,) true labels; None: they are of another task
    outputs: _Outputs
    singles: int = 0  # first dithered queries whose predictions are kept one by one, if labels are foreign
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: Tensor | None = None
    single: list[Tensor] = field(default_factory=list)

    @classmethod
    def start(
        cls, model: nn.Module, x: Tensor, y: Tensor | None, levels: Sequence[int]
    ) -> tuple[_Sums, dict[str, Tensor]]:
        """Empty sums, and the predictions of the plain query."""
        label, found, outputs = _predict(model, x, y, None)
        singles = 0 if y is not None else max((level for level in levels if level <= MAX_SINGLE), default=0)
        return cls(label, y, outputs, singles), {"label": label, **found}

    def add(self, model: nn.Module, x: Tensor, queries: int) -> None:
        """Add the predictions for (queries * batch, ...)."""
        label, found, _ = _predict(model, x, None if self.y is None else self.y.repeat(queries), self.outputs)
        label = label.reshape(queries, -1)
        by_query = {name: a.reshape(queries, *self.label.shape, *a.shape[1:]) for name, a in found.items()}
        sums = {"kept": (label == self.label).sum(0).double(), **{name: a.sum(0) for name, a in by_query.items()}}
        self.sums = {name: self.sums[name] + a for name, a in sums.items()} if self.sums else sums
        if len(self.single) < self.singles:
            self.single += list(by_query["prediction"][: self.singles - len(self.single)])
        if self.outputs.classes <= MAX_CLASSES:
            if self.counts is None:
                self.counts = sums["kept"].new_zeros(len(self.label), self.outputs.classes)
            self.counts.scatter_add_(1, label.T, torch.ones_like(label.T, dtype=torch.float64))

    def means(self, queries: int) -> dict[str, Tensor]:
        """Means over the queries so far."""
        means = {name: a / queries for name, a in self.sums.items()}
        if queries <= self.singles:
            means["predictions"] = torch.cat(self.single[:queries], dim=1)
        return means if self.counts is None else {**means, "shares": self.counts / queries}


def _predict(
    model: nn.Module, x: Tensor, y: Tensor | None, outputs: _Outputs | None
) -> tuple[Tensor, dict[str, Tensor], _Outputs]:
    """(batch,) labels, further predictions by name, and the kind of the outputs; raises as `predict`."""
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
            f"expected labels 0 .. {outputs.classes - 1}, the outputs of the model, got {int(y.max())}; if they are"
            ' classes of another task, such as that of the pre-training, pass labels="foreign"'
        )
    true_score = scores.gather(1, y[:, None])[:, 0]
    margin = true_score - scores.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    loss = -true_score if outputs.probabilities else torch.logaddexp(-margin, torch.zeros_like(margin))
    return label, {"loss": loss, "margin": margin}, outputs


def _runs(levels: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs (first, after the last) of at most `most` dithered queries, none across a level."""
    first = 0
    for level in levels:
        while first < level:
            after = min(first + most, level)
            yield first, after
            first = after


class _TableBuilder:
    """A table that is filled batch by batch."""

    def __init__(self, m: int, n: int, dtype: torch.dtype = torch.float64) -> None:
        self.size, self.dtype = (m, n), dtype
        self.by_level: Table = {}

    def put(self, i: int, part: range, found: Mapping[tuple[int, str], Tensor]) -> None:
        """Store the answers of model i about these examples, by level and name."""
        moved = torch.cat([v.reshape(len(part), -1).to(self.dtype) for v in found.values()], dim=1).cpu().numpy()
        column = 0
        for (level, name), v in found.items():
            after, arrays = column + v[0].numel(), self.by_level.setdefault(level, {})
            if name not in arrays:
                arrays[name] = np.zeros((*self.size, *v.shape[1:]), moved.dtype)
            arrays[name][i, part.start : part.stop] = moved[:, column:after].reshape(v.shape)
            column = after


def explanations_of(
    models: Sequence[nn.Module],
    population: Population,
    predictions: Predictions,
    releases: Sequence[Explain],
    *,
    quiet: Sequence[Explain] | None = None,
    attacked: Collection[int] = (),
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
    """Explain every example by every model, as `collect_signals`, by one of the `releases` for each model.

    If the service decides (`own_class`), each query explains its own predicted class, and the average is over queries
    with the label of the plain one, or else it is the plain map. `quiet` are the releases without noise, and
    `attacked` models answer all queries as released. Whole maps are on disk beyond `largest` bytes. If (m, n, d)
    `natives` of the plain queries are given, `of_native` of a release hardens them, and these queries are not
    explained again.

    Raises:
        InputError: an explanation is not finite, or not of shape (batch, ...), the same for all.
    """
    m, levels, store = len(models), levels_of(levels), store or Store()
    queries, label, jobs = Queries.of(population, predictions.dither), predictions.label, list[ExplainModel]()
    most = max(levels, default=0)
    for i, release in enumerate(releases):
        dithered, dithers = release, min(most, DITHERS_WITHOUT_NOISE)
        if quiet is not None and i in attacked:
            dithers = most
        elif quiet is not None:
            dithered = quiet[i]
        native = None if natives is None else natives[i]
        jobs.append(
            ExplainModel(
                f"model {i}", release, dithered, population.x, queries, levels, dithers, tuple(classes), own_class,
                batch_size, keep_maps, native,
            )
        )  # fmt: skip
    data_digest = population.digest() if store.folder else ""
    keys, found, done = list[str](), Explanations({}, {}, ()), 0
    total, missing = sum(job.explanations for job in jobs), list[int]()

    def put(i: int, answers: Explanations) -> None:
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
                shape = (m, *maps.shape)
                found.maps[level] = on_disk(shape, store.folder) if large else np.zeros(shape, np.float32)
            found.maps[level][i] = maps

    for i, job in enumerate(jobs):
        predicted = {name: a[i] for name, a in predictions.values.items()} if store.folder else {}
        keys.append(job.key(models[i], predicted, data_digest) if store.folder else "")
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
    """Explains every example by one model, perhaps in another process."""

    name: str  # of the model, in messages
    release: Explain
    dithered: Explain
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
        """Number of maps: examples times queries times classes."""
        return len(self.x) * (1 + len(self.classes)) * ((self.native is None) + self.dithers)

    def key(self, model: nn.Module, predicted: Mapping[str, NDArray[Any]], population: str) -> str:
        """Digest of all on which the answers of a model depend; "" if it has no stable identity."""
        options = (self.levels, self.dithers, self.classes, self.own_class, self.batch_size, self.keep_maps)
        queries = (population, self.queries.dither.to_dict(), options, dict(predicted))
        try:
            code = code_digest(__name__, *_modules_of((self.release, self.dithered)))
            return digest(code, model_digest(model), queries, self.release, self.dithered)
        except (Undigestable, RefusedError):
            return ""

    def __call__(self, model: nn.Module, labels: NDArray[Any], tick: Tick = lambda share: None) -> Explanations:
        """Explain every example; `labels` (n,) are those of the plain queries."""
        n, place = len(self.x), device_of(model)
        summaries, maps = _TableBuilder(1, n), _TableBuilder(1, n, torch.float32)
        oracle = _Oracle(model, self.name, max(self.explanations, 1), tick)
        predicted = torch.from_numpy(np.asarray(labels)).long()
        for part in batches(n, self.batch_size):
            target = predicted[part.start : part.stop].to(place)
            targets = [target, *(torch.full_like(target, c) for c in self.classes)]

            def keep(level: int, found: Tensor, part: range = part) -> None:
                summaries.put(0, part, {(level, name): v for name, v in oracle.summaries(found).items()})
                if self.keep_maps:
                    maps.put(0, part, {(level, WHOLE_MAP): found[0]})

            x, release = self.x[part.start : part.stop].to(place), self.release
            if self.native is not None:
                native = torch.from_numpy(self.native[part.start : part.stop]).to(place).view(x.shape)
                release = partial(self.release.of_native, native=native)  # type: ignore[attr-defined]
            average = _Average(oracle.ask(release, x, targets, counts=self.native is None))
            keep(1, average.plain)
            for number in range(self.dithers):
                query = self.queries(part, number).to(x.device)
                if self.own_class:
                    with torch.no_grad():
                        label = model(query).argmax(1)
                    average.add(oracle.ask(self.dithered, query, [label, *targets[1:]]), label == target)
                else:
                    average.add(oracle.ask(self.dithered, query, targets))
                if number + 1 in self.levels:
                    keep(number + 1, average.mean)
            for level in self.levels:
                if level > self.dithers:
                    keep(level, average.mean)
        return Explanations(
            {level: {name: a[0] for name, a in values.items()} for level, values in summaries.by_level.items()},
            {level: values[WHOLE_MAP][0] for level, values in maps.by_level.items()},
            oracle.shapes or (),
        )


def _check_shapes(now: tuple[tuple[int, ...], ...], before: tuple[tuple[int, ...], ...]) -> None:
    if now != before or not all(math.prod(shape) for shape in now):
        raise InputError(f"expected maps of one shape, not empty, got {now} and {before}")


@dataclass(eq=False)
class _Average:
    """Average of the maps (targets, batch, d) of dithered queries; the plain query's if no other map counts."""

    plain: Tensor
    total: Tensor | float = 0.0
    counted: Tensor | float = 0.0

    def add(self, maps: Tensor, counts: Tensor | None = None) -> None:
        """Add the maps of one query, for the examples in `counts` (batch,) bool or (None) all."""
        weights: Tensor | float = 1.0 if counts is None else counts.double()[:, None]
        self.total, self.counted = self.total + weights * maps, self.counted + weights

    @property
    def mean(self) -> Tensor:
        """(targets, batch, d)."""
        if not isinstance(self.counted, Tensor):
            return torch.as_tensor(self.total / self.counted)
        return torch.where(self.counted > 0, self.total / self.counted, self.plain.double())


@dataclass(eq=False)
class _Oracle:
    """Requests explanations of one model, checks and counts them."""

    model: nn.Module
    name: str
    total: int
    tick: Tick
    done: int = 0
    shapes: tuple[tuple[int, ...], ...] | None = None

    def ask(self, release: Explain, x: Tensor, targets: Sequence[Tensor], *, counts: bool = True) -> Tensor:
        """(targets, batch, d) maps of each of the targets, with those of several explainers side by side."""
        return torch.stack([self._ask(release, x, target, counts) for target in targets])

    def _ask(self, release: Explain, x: Tensor, target: Tensor, counts: bool) -> Tensor:
        answer: Any = release(self.model, x, target)
        answers: list[Any] = list(answer) if isinstance(answer, list | tuple) and answer else [answer]
        for a in answers:
            if not isinstance(a, Tensor) or a.shape[:1] != x.shape[:1] or not bool(torch.isfinite(a).all()):
                got = tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__
                raise InputError(f"expected finite explanations of shape ({len(x)}, ...), got {got} from {self.name}")
        shapes = tuple(tuple(a.shape[1:]) for a in answers)
        if self.shapes is None:
            self.shapes = shapes
        _check_shapes(shapes, self.shapes)
        if counts:
            self.done += len(x)
            self.tick(self.done / self.total)
        return torch.cat([a.detach().reshape(len(a), -1) for a in answers], dim=1)

    def summaries(self, maps: Tensor) -> dict[str, Tensor]:
        """Summaries of (targets, batch, d) maps, a number per explainer."""
        assert self.shapes is not None
        widths = [math.prod(shape) for shape in self.shapes]
        first, *others = ([summarise(part) for part in found.split(widths, dim=1)] for found in maps)
        found = {s: first[0][s] if len(first) == 1 else torch.stack([p[s] for p in first], dim=1) for s in SUMMARIES}
        if others:
            parts = [part for several in others for part in several]
            found |= {f"class_{s}": torch.stack([part[s] for part in parts], dim=1) for s in CLASS_SUMMARIES}
        return found


def _modules_of(value: Any) -> set[str]:
    """Modules of this package that define an explainer."""
    inside = [*value] if isinstance(value, tuple) else [*vars(value).values()] if is_dataclass(value) else []
    names = {str(getattr(one, "__module__", "")) for one in (value, type(value))}
    found = {name for name in names if name.partition(".")[0] == "safexplain"}
    return found.union(*map(_modules_of, inside))


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
    """The answers of models as `Signals`, without any the membership alone. Arguments as `collect_signals`."""
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
    plain_maps, x = maps.pop(WHOLE_MAP, None), population.x.cpu().numpy()
    return Signals(
        shadows.membership,
        {**values, **maps},
        plain_maps,
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
    """Query every model about every example, as often as a patient attacker would, and keep what the attacker sees.

        l1, l2, ...                      summaries of the released map (`SUMMARIES`)
        class_l1, class_l2, class_mean   of the explanations of each of `classes`, k numbers an example
        l1@L, ..., class_l1@L            the same of the map averaged over the first L dithered queries, for each L
        attributions@L                   that map itself, if maps are kept
        label, loss, kept@L, ...         see `predict`; more than an explanation alone releases, but for labels

    All queries explain the class that the model predicts for the plain query, and all models the first four dithered
    queries. If the release has noise (`without_noise` is given), targets and null models answer every query by the
    release, and the other models, which are the attacker's own, explain four `without_noise`. Maps of several
    explainers that are released together are concatenated, and each summary is a vector (m, n, k).

    Args:
        shadows: m models with membership over `population`.
        population: the pool of n examples; its labels are the slice "class", its groups those of the signals.
        explain: see `Explain`, called with float32 batches on the model's device and class indices; or one per model.
            None: only predictions are kept.
        patience: queries per example; the plain query is always among them.
        dither: how queries differ; None: `Dither()`.
        without_noise: the release without its noise, or one per model. None: the release has no noise.
        labels: "own", or "foreign" if they are classes of another task, see `predict`.
        batch_size: examples per call.
        keep_attributions: also keep the whole maps, (m, n, d) float32 for each level.
        largest_maps: bytes of maps beyond which these are on disk.
        store: a folder for the answers of each finished model, so that an interrupted run resumes.
        keep_inputs: also keep the examples.
        classes: outputs that are explained for every query, besides the predicted one.
        targets: models that may be attacked; None: all trained ones.
        null: untrained models, without members.
        out_of_distribution: (n,) bool, examples from another source that no model was trained on.
        slices: name -> (n,), parts of the data by which results are shown.
        meta: kept in the file; `shape` (of one map), `population` (its digest) and `dither` are added.
        progress: called after each batch.

    Raises:
        InputError: membership does not fit the population, `null` or `out_of_distribution`; or as `predict`, or an
            explanation is not finite, or not of shape (batch, ...), the same for all.
        ConfigurationError: a level is not an integer of at least 1, or `labels` is neither of the two.
    """
    (m, n), levels = shadows.membership.shape, levels_of(patience)
    if n != len(population):
        raise InputError(f"expected membership over the {len(population)} examples of the population, got {n}")
    if explain is None and not (without_noise is None and not classes):
        raise InputError("expected explain= with without_noise or classes, got None")
    options: dict[str, Any] = {
        "targets": targets, "null": null, "classes": classes, "slices": slices, "keep_inputs": keep_inputs,
        "out_of_distribution": out_of_distribution, "meta": meta,
    }  # fmt: skip
    checked = signals_of(shadows, population, None, None, **options)  # raises before anything is queried
    predictions = predict(
        shadows, population, patience=patience, dither=dither, labels=labels, batch_size=batch_size, progress=progress
    )
    if wrong := [c for c in classes if not 0 <= c < predictions.classes]:
        raise InputError(f"classes: expected outputs 0 .. {predictions.classes - 1} of the model, got {wrong}")
    explanations = None
    if explain is not None:
        explanations = explanations_of(
            shadows.models,
            population,
            predictions,
            _each(explain, m),
            quiet=None if without_noise is None else _each(without_noise, m),
            attacked={*checked.targets, *checked.null},
            levels=levels,
            classes=classes,
            batch_size=batch_size,
            keep_maps=keep_attributions,
            largest=largest_maps,
            store=Store.of(store),
            progress=progress,
        )
    return signals_of(shadows, population, predictions, explanations, **options)


def _each(explainer: Explain | Sequence[Explain], m: int) -> list[Explain]:
    explainers = [explainer] * m if callable(explainer) else list(explainer)
    if len(explainers) != m:
        raise InputError(f"expected one explainer, or one for each of {m} models; got {len(explainers)}")
    return explainers
