"""Asking models: every model is asked about every example, and what an attacker would see is kept.

Of each map that comes back, summaries are kept: numbers that an attack can compare between models. `l1`, `l2` and
`variance` tell how large a map is. The others do not change when the map is multiplied by a positive number: they
survive clipping to a norm and normalisation, and tell how a map is shaped. Each of these is 0 for a map of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import Undigestable, code_digest, digest, model_digest
from safexplain._files import made_folder
from safexplain._progress import Progress, silent
from safexplain.audit.population import Population
from safexplain.audit.queries import (
    Dither,
    Explain,
    Labels,
    Predictions,
    Queries,
    Table,
    batches,
    check_labels,
    device_of,
    levels_of,
    predict,
)
from safexplain.audit.recipe import Tick
from safexplain.audit.references.executors import (
    Executor,
    Sent,
    arrived,
    check_code,
    check_executor,
    grouped,
    received,
    run_groups,
    sendable,
)
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.signals import Signals, hash_examples
from safexplain.audit.storage.maps import MapFiles, Records, StoredMaps, packed, record
from safexplain.audit.storage.pieces import LARGEST_MAPS, Explained, ExplainedStore
from safexplain.errors import InputError, RefusedError
from safexplain.verdict.evidence import WHOLE_MAP, at_level
from safexplain.verdict.policy import PATIENCE


def _l1(a: Tensor) -> Tensor:
    return a.abs().sum(1)


def _l2(a: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(a, dim=1)
    return norm


def _by_rms(numbers: Tensor, a: Tensor) -> Tensor:
    rms = _l2(a) / a.shape[1] ** 0.5
    return torch.where(rms > 0, numbers / rms, 0.0)


SUMMARIES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": _l1,
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
    """The summaries of each map.

    Args:
        maps: (batch, ...), flattened to (batch, d) and taken as float64.
        names: which summaries, of `SUMMARIES`.

    Returns:
        Name -> (batch,) float64, on the device of the maps.
    """
    rows = maps.reshape(len(maps), -1).double()
    return {name: SUMMARIES[name](rows) for name in names}


CLASS_SUMMARIES = ("l1", "l2", "mean")
"""What is kept of the explanation of each of several classes."""

DITHERS_WITHOUT_NOISE = 4
"""Dithered queries that are explained of a release without noise: more of them tell the attacker little more."""


def collect_signals(
    shadows: Shadows,
    population: Population,
    explain: Explain | Sequence[Explain] | None,
    *,
    patience: Sequence[int] = PATIENCE,
    dither: Dither | None = None,
    without_noise: Explain | Sequence[Explain] | None = None,
    predictions: Predictions | None = None,
    natives: NDArray[np.float32] | None = None,
    labels: Labels = "own",
    own_class: bool = False,
    batch_size: int = 256,
    keep_attributions: bool = True,
    largest_maps: float = LARGEST_MAPS,
    store: ExplainedStore | str | Path | None = None,
    executor: Executor | None = None,
    keep_inputs: bool = False,
    classes: Sequence[int] | None = None,
    targets: tuple[int, ...] | None = None,
    null: Sequence[int] = (),
    out_of_distribution: NDArray[np.bool_] | None = None,
    slices: Mapping[str, NDArray[Any]] | None = None,
    meta: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Signals:
    """Ask every model about every example, once and as often as a patient attacker would, and keep what that one sees.

        l1, l2, ...              summaries of the released map (`safexplain.audit.collect`)
        class_l1, class_l2,      summaries of the explanations of each of `classes`, k numbers an example
        class_mean
        label, loss, margin      see `safexplain.audit.queries.predict`; loss and margin are more than an explanation
                                 alone releases
        l1@L, ..., class_l1@L    the same summaries of the map averaged over the first L dithered queries, for each L
        attributions@L           that map itself, where maps are kept
        kept@L, shares@L,        what happened to the labels, and the mean loss and margin, of the same L queries
        loss@L, margin@L
        prediction, ...@L,       what the model predicts of each of its classes, instead of loss and margin where labels
        predictions@L            are foreign

    What is explained is always the class that the model predicts for the plain query, which favours the attacker: the
    answers to an example's queries are then all about one thing. Where the service decides (`own_class`), it is the
    class predicted for each query: averaged are the maps of those queries that kept the label of the plain one, and
    where none did, the average is the plain map.

    Of the dithered queries, all models explain the first four, of which more tell little more. Where the release has
    noise, which falls away over many (`without_noise` is given), targets and null models answer every query through
    what is released, and the other models, which stand for the attacker's own, explain four `without_noise`.

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
        predictions: of the same models for the same queries, where they were asked already; None: they are asked.
        natives: (m, n, d) native maps of the plain queries, in the shape of the inputs: `explain.of_native` hardens
            them, which gives what `explain` gives, and nothing is explained for these queries.
        labels: "own", or "foreign" where the population's labels are classes of another task than the models', see
            `predict`; they are the slice "class" in both cases. Of predictions that are given it must be what these
            say.
        own_class: explain the class that is predicted for each query, and not for the plain one.
        batch_size: examples a call.
        keep_attributions: also keep the whole maps, (m, n, d) float32 for each level.
        largest_maps: bytes of these that are kept in memory; more of them go to disk, as `audit.storage` says, 16 bits
            a number. Attacks read them there.
        store: a folder in which each finished model's answers are kept, so that an interrupted run explains no model
            again, as far as the identity of models and explainers can be told; large maps stay there. None: nothing is
            kept, and large maps lie in a temporary folder as long as anything refers to them.
        keep_inputs: also keep what was asked about.
        classes: indices of outputs that are explained for every query, beside the predicted one.
        targets: models that may be attacked; None: all trained ones, which then all answer all queries.
        null: models that are untrained and have no members.
        out_of_distribution: (n,) bool, examples from another source that no model was trained on.
        slices: name -> (n,), parts of the data by which results are shown.
        meta: kept in the file; `shape` (of one map), `population` (its digest) and `dither` are added.
        executor: sends groups of models elsewhere, see `train_shadows`; what cannot be sent, such as an endpoint, is
            asked from here. What comes back is the same. None: this process.
        progress: told after each explanation of a batch, of all queries.

    Raises:
        InputError: membership does not fit the population, `null`, `out_of_distribution` or the predictions; an
            explanation is not finite, of shape (batch, ...), the same for all; the model's outputs are not finite or
            too few.
        ConfigurationError: a level is no whole number of at least 1, or `labels` is neither of the two.
    """
    check_labels(labels)
    check_executor(executor)
    (m, n), levels = shadows.membership.shape, levels_of(patience)
    if n != len(population):
        raise InputError(f"membership is over {n} examples, the population has {len(population)}")
    if explain is None and not (without_noise is None and classes is None):
        raise InputError("nothing is explained (explain=None), and yet without_noise or classes say how")
    plainly = [] if explain is None else _each(explain, m)
    quietly = plainly if without_noise is None else _each(without_noise, m)
    dither = dither or (Dither() if predictions is None else predictions.dither)
    about: dict[str, Any] = {**(meta or {}), "population": population.digest()}
    several = None if classes is None else [int(c) for c in classes]
    options = {"targets": targets, "null": list(null) or None, "classes": several or None}
    about |= {name: [int(i) for i in listed] for name, listed in options.items() if listed is not None}
    if labels == "foreign":
        about["labels"] = labels
    if levels:
        about["dither"] = {**dither.to_dict(), **about.get("dither", {})}
    beside: dict[str, Any] = {
        "out_of_distribution": out_of_distribution,
        "groups": population.groups,
        "slices": {"class": population.y.cpu().numpy(), **(slices or {})},
    }
    asked = Signals(shadows.membership, {"label": np.zeros((m, n))}, None, about, **beside)  # refused before all else
    if predictions is None:
        predictions = predict(
            shadows,
            population,
            patience=patience,
            dither=dither,
            labels=labels,
            batch_size=batch_size,
            executor=executor,
            progress=progress,
        )
    _check_predictions(predictions, (m, n), levels, dither, labels)
    if wrong := [c for c in several or () if not 0 <= c < predictions.classes]:
        raise InputError(f"classes to explain are outputs 0 .. {predictions.classes - 1} of the model, got {wrong}")

    released = {*asked.targets, *asked.null}
    most, queries = max(levels, default=0), Queries.of(population, dither)
    jobs = [
        ExplainModel(
            name=f"model {i}",
            explain=once,
            patiently=once if i in released else quiet,
            x=population.x,
            queries=queries,
            levels=levels,
            dithers=most if without_noise is not None and i in released else min(most, DITHERS_WITHOUT_NOISE),
            classes=tuple(several or ()),
            own_class=own_class,
            batch_size=batch_size,
            keep_maps=keep_attributions,
            largest=largest_maps / m,
            native=None if natives is None else natives[i],
        )
        for i, (once, quiet) in enumerate(zip(plainly, quietly, strict=True))
    ]
    pieces, found = ExplainedStore.of(store), _Found(m, n)
    digest_of_all = about["population"] if pieces.folder else ""
    done, total, keys, missing = 0, sum(job.explanations for job in jobs), list[str](), list[int]()
    for i, job in enumerate(jobs):
        seen = {name: a[i] for name, a in predictions.values.items()}
        keys.append(job.key(shadows.models[i], seen, digest_of_all) if pieces.folder else "")
        if (piece := pieces.load(keys[i])) is None:
            missing.append(i)
        else:
            found.put(i, *piece)
            done += job.explanations
            progress("explaining", done, total)
    sent = {} if executor is None else sendable(shadows.models, missing)
    for i in missing:
        if i in sent:
            continue

        def tick(share: float, before: int = done, own: int = jobs[i].explanations) -> None:
            progress("explaining", before + round(share * own), total)

        answers = jobs[i](shadows.models[i], predictions.values["label"][i], tick)
        found.put(i, answers, pieces.save(keys[i], answers))
        done += jobs[i].explanations
    if sent and executor is not None:
        groups = [
            [(i, sent[i], predictions.values["label"][i], keys[i]) for i in group]
            for group in grouped({i: jobs[i].explanations for i in sent}, executor)
        ]

        def took(g: int, answers: list[Explained | None]) -> None:
            for (i, *_, key), one in zip(groups[g], answers, strict=True):
                piece = arrived(lambda: pieces.load(key)) if one is None else (one, pieces.save(key, one))  # noqa: B023
                if piece is None:
                    raise InputError(f"a worker stored what model {i} released, and it cannot be read here")
                found.put(i, *piece)

        run_groups(
            executor,
            _ExplainElsewhere(tuple(jobs), pieces.folder, code_digest(__name__)),
            groups,
            took,
            sizes=[sum(jobs[i].explanations for i, *_ in group) for group in groups],
            models=[len(group) for group in groups],
            stage="explaining",
            progress=progress,
            before=done,
            models_before=m - len(sent),
            folder=None if pieces.folder is None else made_folder(pieces.folder),
        )
    if keep_inputs:
        beside["inputs"] = population.x.cpu().numpy()
    else:
        beside["examples"] = hash_examples(population.x.cpu().numpy())
    if found.shapes is not None and len(found.shapes) == 1:
        about["shape"] = list(found.shapes[0])
    maps = found.maps(pieces)
    whole = maps.pop(WHOLE_MAP, None)
    kept = {name: predictions.values[name] for name in _names(levels) if name in predictions.values}
    return Signals(shadows.membership, {**found.summaries, **kept, **maps}, whole, about, **beside)


@dataclass(frozen=True, eq=False)
class ExplainModel:
    """Explains one model: all that a process of its own needs for it, but the model. It can be pickled where the two
    callables can; examples and queries that several of them share are pickled once, where they are pickled together.

    Args:
        name: of the model, in messages.
        explain: answers the plain query.
        patiently: answers the dithered queries.
        x: (n, ...) the examples.
        queries: the dithered queries about them.
        levels: above one query, in increasing order.
        dithers: dithered queries that are explained, at most; an average over more of them is that over these.
        classes: explained beside the predicted one.
        own_class: see `collect_signals`.
        batch_size: examples a call.
        keep_maps: also keep the whole maps.
        largest: bytes of these, of all levels, that are given as they are; more are given 16 bits a number.
        native: (n, d) native maps of the plain queries, which are hardened; None: these queries are explained.
    """

    name: str
    explain: Explain
    patiently: Explain
    x: Tensor
    queries: Queries
    levels: tuple[int, ...]
    dithers: int
    classes: tuple[int, ...]
    own_class: bool
    batch_size: int
    keep_maps: bool
    largest: float = math.inf
    native: NDArray[np.float32] | None = None

    @property
    def explanations(self) -> int:
        """How many examples are explained, each as often as it is asked about and once for each class."""
        return len(self.x) * (1 + len(self.classes)) * ((self.native is None) + self.dithers)

    def key(self, model: nn.Module, predicted: Mapping[str, NDArray[Any]], population: str) -> str:
        """Digest of all that the answers of a model depend on, "" where that cannot be told.

        Args:
            model: that is explained.
            predicted: what it predicts, which nearly tells by itself which model it is.
            population: digest of the examples.
        """
        how = (self.levels, self.dithers, self.classes, self.own_class, self.batch_size, self.keep_maps, self.largest)
        asked = (population, self.queries.dither.to_dict(), how, dict(predicted))
        try:
            code = code_digest(__name__, *_modules_of((self.explain, self.patiently)))
            return digest(code, model_digest(model), asked, self.explain, self.patiently)
        except (Undigestable, RefusedError):
            return ""

    def __call__(
        self, model: nn.Module, labels: NDArray[Any], tick: Callable[[float], object] | None = None
    ) -> Explained:
        """Ask the model about every example.

        Args:
            model: on the device where it is asked.
            labels: (n,) what it predicts for the plain queries, whole numbers of any type.
            tick: told the share that is done, after each explanation of a batch.

        Raises:
            InputError: an explanation is not finite, or not of shape (batch, ...), the same for all.
        """
        n = len(self.x)
        summaries, maps = Table(1, n), Table(1, n, np.float32)
        large: dict[int, Records] = {}
        oracle = _Oracle(model, self.name, self.explanations, tick)
        explained = torch.from_numpy(np.asarray(labels)).long()
        place = device_of(model)
        for part in batches(n, self.batch_size):
            about_what = explained[part.start : part.stop].to(place)
            wanted = [about_what, *(torch.full_like(about_what, c) for c in self.classes)]

            def keep(level: int, found: Tensor, part: range = part) -> None:
                summaries.put(0, part, {at_level(s, level): v for s, v in oracle.summaries(found).items()})
                if self.keep_maps and 4 * n * found.shape[2] * (1 + len(self.levels)) <= self.largest:
                    maps.put(0, part, {at_level(WHOLE_MAP, level): found[0]})
                elif self.keep_maps:
                    if level not in large:
                        large[level] = np.zeros(n, record(found.shape[2]))
                    large[level][part.start : part.stop] = packed(found[0].to(torch.float32).cpu().numpy())

            x = self.x[part.start : part.stop].to(place)
            plainly = self.explain
            if self.native is not None:
                known = torch.from_numpy(self.native[part.start : part.stop]).to(place).view(x.shape)
                plainly = partial(self.explain.of_native, native=known)  # type: ignore[attr-defined]
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
        of_level = {level: maps.arrays.get(at_level(WHOLE_MAP, level)) for level in (1, *self.levels)}
        return Explained(
            {name: a[0] for name, a in summaries.arrays.items()},
            {**{level: a[0] for level, a in of_level.items() if a is not None}, **large},
            oracle.shapes or (),
        )


@dataclass(frozen=True, eq=False)
class _ExplainElsewhere:
    """Explains groups of models in a worker: (number, the model as it was sent, its labels, its key) each."""

    jobs: tuple[ExplainModel, ...]
    folder: Path | None
    code: str

    def __call__(
        self, group: list[tuple[int, Sent, NDArray[Any], str]], tick: Tick, seen: bool
    ) -> list[Explained | None]:
        """What each released, or None where it is in the store."""
        check_code(self.code, __name__)
        store = ExplainedStore.of(self.folder if seen else None)
        total, done, found = sum(self.jobs[i].explanations for i, *_ in group), 0, list[Explained | None]()
        for place, (i, sent, labels, key) in enumerate(group):
            own, which = self.jobs[i].explanations, f"model {place + 1} of {len(group)}"
            piece = store.load(key)
            if piece is None:

                def told(share: float, done: int = done, own: int = own, which: str = which) -> None:
                    tick((done + share * own) / total, which)

                answers = self.jobs[i](received(sent), labels, told)
                if key and store.folder is not None:
                    store.save(key, answers)
                found.append(None if key and store.folder is not None else answers)
            else:
                found.append(None)
            done += own
        return found


@dataclass(eq=False)
class _Found:
    """What m models released, put together as it comes, in any order.

    Args:
        m: models.
        n: examples.
    """

    m: int
    n: int
    summaries: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    whole: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    files: dict[str, dict[int, Path]] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] | None = None

    def put(self, i: int, found: Explained, files: Mapping[int, Path]) -> None:
        """Of model i; its large maps are in these files, one a level.

        Raises:
            InputError: its maps have another shape than those of the models before.
        """
        if self.shapes is None:
            self.shapes = found.shapes
        _check_shapes(found.shapes, self.shapes)
        for name, a in found.summaries.items():
            if name not in self.summaries:
                self.summaries[name] = np.zeros((self.m, *a.shape))
            self.summaries[name][i] = a
        for level, maps in found.maps.items():
            name = at_level(WHOLE_MAP, level)
            if level in files:
                continue
            if name not in self.whole:
                self.whole[name] = np.zeros((self.m, *maps.shape), np.float32)
            self.whole[name][i] = maps
        for level, path in files.items():
            self.files.setdefault(at_level(WHOLE_MAP, level), {})[i] = path

    def maps(self, store: ExplainedStore) -> dict[str, Any]:
        """Name -> (m, n, d) maps, in memory or on disk."""
        d, found = sum(map(math.prod, self.shapes or ())), dict[str, Any](self.whole)
        for name, files in self.files.items():
            found[name] = StoredMaps((MapFiles(tuple(files[i] for i in range(self.m)), self.n, d, store),))
        return found


def _check_shapes(now: tuple[tuple[int, ...], ...], before: tuple[tuple[int, ...], ...]) -> None:
    if now != before or not all(math.prod(shape) for shape in now):
        listed = ([list(shape) for shape in each] for each in (now, before))
        raise InputError("maps must all have one shape, not empty; got {}, {}".format(*listed))


@dataclass(eq=False)
class _Average:
    """Of the maps (targets, batch, d) of dithered queries.

    Args:
        plain: of the plain query, the average where no other map counts.
    """

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


def _modules_of(value: Any) -> set[str]:
    """Modules of this package in which explainers are defined: what other code answered is not taken for theirs."""
    inside = [*value] if isinstance(value, tuple) else [*vars(value).values()] if is_dataclass(value) else []
    own = {str(getattr(each, "__module__", "")) for each in (value, type(value))}
    found = {name for name in own if name.partition(".")[0] == "safexplain"}
    return found.union(*map(_modules_of, inside))


def _each(explain: Explain | Sequence[Explain], m: int) -> list[Explain]:
    explains = [explain] * m if callable(explain) else list(explain)
    if len(explains) != m:
        raise InputError(f"expected one explain, or one for each of {m} models; got {len(explains)}")
    return explains


def _names(levels: Sequence[int]) -> list[str]:
    """Of what is predicted: plainly, and at each level."""
    of_level = ("kept", "shares", "loss", "margin", "prediction", "predictions")
    return ["label", "loss", "margin", "prediction", *(at_level(name, level) for level in levels for name in of_level)]


def _check_predictions(
    found: Predictions, size: tuple[int, int], levels: Sequence[int], dither: Dither, labels: Labels
) -> None:
    """They must be of these models, examples and queries."""
    if found.labels != labels:
        raise InputError(f"the predictions were asked for with labels={found.labels!r}, the explanations {labels!r}")
    if found.values["label"].shape != size or not set(levels) <= set(found.levels):
        raise InputError(
            f"expected predictions of {size[0]} models for {size[1]} examples at levels {list(levels)}, got"
            f" {found.values['label'].shape} at {list(found.levels)}"
        )
    if levels and found.dither != dither:
        raise InputError(f"the predictions are for queries of {found.dither}, the explanations for {dither}")


@dataclass(eq=False)
class _Oracle:
    """Asks one model for explanations, checks them and counts them."""

    model: nn.Module
    name: str
    total: int
    tick: Callable[[float], object] | None
    done: int = 0
    shapes: tuple[tuple[int, ...], ...] | None = None

    def ask(self, explain: Explain, x: Tensor, targets: Sequence[Tensor], *, counts: bool = True) -> Tensor:
        """(targets, batch, d): maps about each of the targets, those of several explainers side by side."""
        return torch.stack([self._ask(explain, x, target, counts) for target in targets])

    def _ask(self, explain: Explain, x: Tensor, target: Tensor, counts: bool) -> Tensor:
        answer: Any = explain(self.model, x, target)
        answers: list[Any] = list(answer) if isinstance(answer, list | tuple) and answer else [answer]
        for a in answers:
            if not isinstance(a, Tensor) or a.shape[:1] != x.shape[:1] or not bool(torch.isfinite(a).all()):
                got = tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__
                raise InputError(f"explanations must be finite, of shape ({len(x)}, ...); got {got} from {self.name}")
        shapes = tuple(tuple(a.shape[1:]) for a in answers)
        if self.shapes is None:
            self.shapes = shapes
        _check_shapes(shapes, self.shapes)
        self.done += len(x) if counts else 0
        if self.tick is not None and counts:
            self.tick(self.done / self.total)
        return torch.cat([a.detach().reshape(len(a), -1) for a in answers], dim=1)

    def summaries(self, maps: Tensor) -> dict[str, Tensor]:
        """Of (targets, batch, d) maps: the predicted class's, and those of further classes; one number an explainer."""
        assert self.shapes is not None
        widths = [math.prod(shape) for shape in self.shapes]
        one, *others = ([summarise(each) for each in found.split(widths, dim=1)] for found in maps)
        found = {s: _together([each[s] for each in one]) for s in SUMMARIES}
        if others:
            every = [each for several in others for each in several]
            found |= {f"class_{s}": torch.stack([each[s] for each in every], dim=1) for s in CLASS_SUMMARIES}
        return found


def _together(numbers: Sequence[Tensor]) -> Tensor:
    """(batch,) of one explainer, (batch, k) of several."""
    return numbers[0] if len(numbers) == 1 else torch.stack(list(numbers), dim=1)
