"""Measures of a release on the selection split: its native maps, hardened, their utility and their leak.

Native maps are computed once for each set of explainer options. Hardening is exact and includes noise, under a key of
the search that is not secret and is in no file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._progress import as_stage
from safexplain.audit.answers import SUMMARIES, Predictions, explanations_of, summarise
from safexplain.audit.attacks.learned import Boosted, Stacked
from safexplain.audit.attacks.suite import SuiteRow, fitting, scores_of
from safexplain.audit.queries import Population
from safexplain.audit.question import Method, Question, Release
from safexplain.audit.signals import Signals, Store
from safexplain.audit.usefulness import utility
from safexplain.errors import InputError
from safexplain.explain.feature_groups import find_groups, harden_groups
from safexplain.explain.libraries import global_generators
from safexplain.faithfulness import faithfulness
from safexplain.hardening.hardening import Hardening
from safexplain.tune.result import NORMAL, Point
from safexplain.verdict.judgement import is_judged
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc

MOST_KEPT = 1 << 30  # bytes of native maps in memory; beyond, the least recently used ones are computed again

AFTER = ("interpolate_mode",)  # options that only enlarge maps after hardening; maps are compared before


@dataclass(frozen=True, eq=False)
class Maps:
    """Native maps of one explainer."""

    values: Tensor  # (m, n, ...) float32 on the CPU
    groups: Tensor | None = None  # (1 or n, d) group of each entry, of `feature_groups`; None: each by itself


def with_options(methods: Sequence[Method], options: Mapping[str, Any]) -> list[Method]:
    """Explainers with the options of a point, which are by name if there are several."""
    given = [options if len(methods) == 1 else options.get(m.name, {}) for m in methods]
    return [m._replace(arguments={**m.arguments, **o}) for m, o in zip(methods, given, strict=True)]


@dataclass(eq=False)
class Natives:
    """Native maps of m models for the predicted classes of n examples, by the explainers of a question."""

    question: Question
    models: Sequence[nn.Module]  # the audited one first
    population: Population
    predictions: Predictions
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self.methods = [
            m._replace(arguments={k: v for k, v in m.arguments.items() if k not in AFTER})
            for m in self.question.methods
        ]
        self.softmax = self.question.puts_softmax(self.models[0])
        self.batch_size = self.question.options.batch_size
        self.x, self.labels = self.population.x.cpu(), torch.from_numpy(self.predictions.label).long()
        self._kept: dict[str, tuple[Maps, ...]] = {}
        self._key = hashlib.blake2b(f"tune {self.question.seed}".encode(), digest_size=32).digest()

    def maps(self, options: Mapping[str, Any]) -> tuple[Maps, ...]:
        """Native maps of every explainer, with the options of a point. InputError: one fails, or is not finite."""
        name = json.dumps(options, sort_keys=True, default=repr)
        if name in self._kept:
            self._kept[name] = self._kept.pop(name)  # most recently used
            return self._kept[name]
        methods = with_options(self.methods, options)
        drawing = _Drawing(Release(tuple(methods), Hardening.none(), self.softmax, False), self.question.seed)
        found = explanations_of(
            self.models,
            self.population,
            self.predictions,
            [drawing] * len(self.models),
            batch_size=self.batch_size,
            store=self.store,
            progress=as_stage(self.question.progress, "native maps"),
        )
        sizes = [math.prod(shape) for shape in found.shapes]
        split = torch.split(torch.from_numpy(np.asarray(found.maps[1])), sizes, dim=2)
        each = [part.reshape(*part.shape[:2], *shape) for part, shape in zip(split, found.shapes, strict=True)]
        made = tuple(Maps(v, self._groups(m, v)) for m, v in zip(methods, each, strict=True))
        self._kept[name] = made
        while len(self._kept) > 1 and sum(4 * m.values.numel() for k in self._kept.values() for m in k) > MOST_KEPT:
            self._kept.pop(next(iter(self._kept)))
        return made

    def release(self, maps: Sequence[Maps], hardening: Hardening, models: Sequence[int] | None = None) -> list[Tensor]:
        """Hardened native maps of these models (None: all), (models, n, ...) for each explainer."""
        hardening = hardening.with_key(self._key)
        chosen = range(len(self.models)) if models is None else models
        return [
            torch.stack([self._hardened(one, method.name, hardening, model) for model in chosen])
            for one, method in zip(maps, self.methods, strict=True)
        ]

    def _hardened(self, maps: Maps, method: str, hardening: Hardening, model: int) -> Tensor:
        def harden(values: Tensor, rows: slice) -> Tensor:
            inputs = self.x[rows], torch.full((len(values), 1), model)
            return hardening(values, inputs=inputs, target=self.labels[model, rows], method=method)

        values = maps.values[model]
        if maps.groups is None or hardening.is_none:
            return harden(values, slice(None))
        return harden_groups((values,), maps.groups, harden)[0]

    def _groups(self, method: Method, values: Tensor) -> Tensor | None:
        """The groups of entries in the hardened classes, if a mask or window is among the arguments."""
        row = getattr(method.make, "row", None)
        if row is None or row.of != "input" or values.shape[2:] != self.x.shape[1:]:
            return None
        found = find_groups(row.options(self.x, method.arguments), (self.x,))
        groups = None if found is None else found.canonical((self.x,))
        return None if groups is None or bool((groups == torch.arange(groups.shape[1])).all()) else groups


@dataclass(frozen=True, eq=False)
class _Drawing:
    """A release whose explainers use the same seed each time and restore the global generators."""

    release: Release
    seed: int

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor | list[Tensor]:
        with global_generators(()):
            torch.manual_seed(self.seed)
            np.random.seed(self.seed % 2**32)  # noqa: NPY002 - what explainers draw from
            return self.release(model, x, target)


FPRS = (0.005, 0.01, 0.02, 0.05)  # false-positive rates over which the excess is averaged
MIN_REFERENCES = 4  # fewest reference models for stacks
PLAYERS = 8  # most models that play the target to fit the stacks; at least as many are targets
FEW, MANY = 4, 16  # most targets attacked first, and for points that may be on the front
RESAMPLES = 100  # draws of examples and targets behind a standard error

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Leakage:
    """What the best attack adds to the label, among those that add something on held-out models, and the stack of all
    scores, so that small leaks are measured."""

    excess: float  # mean over targets and `FPRS` of its TPR minus the label's, at least 0
    error: float  # standard error, by resampling examples and targets together; also where the excess is 0
    attack: str  # its name and signal; "" if none adds anything
    targets: int  # number of attacked models


class LeakMeter:
    """Attacks releases of the same models, the audited one first, for the same examples; (m, n) bool membership.

    Fast enough for a hundred trials: one query, and neither boosted trees nor attacks that learn from maps. Stacks of
    the suite are fitted to some models that play the target; each other model is scored with all others as references.
    `known` are signals without an explanation: "label" (m, n), and "loss" and "margin" if the policy releases
    predictions. Examples of one of the (n,) `groups` are resampled together. InputError: too few models, or examples of
    one kind.
    """

    def __init__(
        self,
        membership: Bools,
        known: Mapping[str, Array],
        policy: Policy,
        *,
        groups: NDArray[np.integer[Any]] | None = None,
        seed: int = 0,
    ) -> None:
        m, n = membership.shape
        if m - 1 < MIN_REFERENCES:
            raise InputError(
                f"references: expected at least {MIN_REFERENCES} reference models for a search, got {m - 1}"
            )
        sides = membership.any(1) & ~membership.all(1)
        if not sides.all():
            raise InputError(
                f"expected members and non-members among the {n} examples to choose by, got one kind only for models"
                f" {np.flatnonzero(~sides).tolist()}; give more examples, or a larger share (Policy.selection)"
            )
        self.membership, self.policy = membership, replace(policy, patience=(1,), suite=())
        self._known = dict(known)
        order = 1 + np.random.default_rng([seed, 0x7E57]).permutation(m - 1)
        playing = min(PLAYERS, (m - 1) // 2)
        self.players: list[int] = np.sort(order[:playing]).tolist()
        self.targets: list[int] = [0, *np.sort(order[playing:]).tolist()]
        units = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
        rng = np.random.default_rng([seed, 0xB007])
        drawn = rng.multinomial(units.max() + 1, np.full(units.max() + 1, 1 / (units.max() + 1)), size=RESAMPLES)
        self._weights = drawn[:, units].astype(np.float64)
        self._drawn_targets = rng.random((RESAMPLES, len(self.targets)))
        self._of_known: dict[SuiteRow, dict[int, Array]] = {}

    def excess(self, values: Mapping[str, Array], maps: NDArray[np.floating[Any]], targets: Sequence[int]) -> Leakage:
        """The leak of released (m, n, d) maps and their (m, n) or (m, n, k) summaries by name."""
        signals = Signals(self.membership, {**self._known, **values}, maps, {})
        rows = [
            row
            for row in map(_fast, fitting(signals, self.policy))
            if row is not None and (row.baseline or is_judged(row.role, self.policy, "excess"))
        ]
        if not any(row.baseline for row in rows):
            raise InputError("known: expected the labels of the models, to which a leak is compared; got none")
        reads, columns = [*self.players, *targets], dict[SuiteRow, Array]()
        adding, baseline, members = {}, np.empty(0), self.membership[list(targets)]
        for row in rows:
            scores, adds = self._stack(row, signals, columns, reads, always=row is rows[-1])
            if row.baseline:
                baseline = scores[len(self.players) :]
            elif adds:
                adding[f"{row.name} on {row.signal}"] = scores[len(self.players) :]
        if not adding:
            return Leakage(0.0, 0.0, "", len(targets))
        tpr = {name: np.mean([rates(*one) for one in zip(s, members, strict=True)]) for name, s in adding.items()}
        best = max(tpr, key=tpr.__getitem__)
        mean = float(tpr[best] - np.mean([rates(*one) for one in zip(baseline, members, strict=True)]))
        error = self._error(adding[best], baseline, members)
        return Leakage(max(mean, 0.0), error, best if mean > 0 else "", len(targets))

    def _stack(
        self, row: SuiteRow, signals: Signals, columns: dict[SuiteRow, Array], reads: Sequence[int], *, always: bool
    ) -> tuple[Array, bool]:
        """(reads, n) scores of a stack that is fitted on the players, and whether it adds to its first column."""
        for column in row.columns:
            if column not in columns and column.columns:
                columns[column] = self._stack(column, signals, columns, reads, always=False)[0]
            elif column not in columns:
                columns[column] = self._column(column, signals, reads)
        features = np.stack([columns[column] for column in row.columns], axis=-1)
        assert isinstance(row.attack, Stacked)
        players = features[: len(self.players)]
        fitted = row.attack.fit(players, self.membership[self.players], always=always)
        return np.stack([fitted.scores(one) for one in features]), fitted.adds

    def _column(self, row: SuiteRow, signals: Signals, reads: Sequence[int]) -> Array:
        """(reads, n) scores by an attack that is no stack; those without an explanation are cached."""
        everyone = np.arange(len(self.membership))
        kept = {} if row.explains else self._of_known.setdefault(row, {})
        if missing := [read for read in reads if read not in kept]:
            kept |= dict(zip(missing, scores_of(row, signals, missing, everyone), strict=True))
        return np.stack([kept[read] for read in reads])

    def _error(self, scores: Array, baseline: Array, members: Bools) -> float:
        drawn = [
            resampled_rates(attack, member, self._weights) - resampled_rates(base, member, self._weights)
            for attack, base, member in zip(scores, baseline, members, strict=True)
        ]
        at = (self._drawn_targets[:, : len(members)] * len(members)).astype(np.int64)
        return float(np.take_along_axis(np.stack(drawn, axis=1), at, axis=1).mean(1).std(ddof=1))


def _fast(row: SuiteRow) -> SuiteRow | None:
    """The row without what takes long; None where no stack of something is left."""
    if not isinstance(row.attack, Stacked):
        return None
    columns = [c if not c.columns else _fast(c) for c in row.columns]
    kept = tuple(c for c in columns if c is not None and not c.learns and not isinstance(c.attack, Boosted))
    if not kept or (not row.baseline and len(kept) < 2):
        return None
    return replace(row, columns=kept)


def rates(scores: Array, member: Bools) -> float:
    """Mean over `FPRS` of the true-positive rate, between thresholds by straight lines (ties broken at random)."""
    curve = roc(scores, member)
    return float(np.interp(FPRS, curve.fpr, curve.tpr).mean())


def resampled_rates(scores: Array, member: Bools, weights: Array) -> Array:
    """(b,) `rates` where example i stands weights[b, i] times; 0 where one side is not drawn."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.append(ordered[1:] != ordered[:-1], True)
    found = []
    for side in (member, ~member):
        counts = np.cumsum((weights * side)[:, order], axis=1)[:, ends]
        found.append(np.concatenate([np.zeros((len(counts), 1)), counts / np.maximum(counts[:, -1:], 1)], axis=1))
    tpr, fpr = found
    return np.array([np.interp(FPRS, f, t).mean() for f, t in zip(fpr, tpr, strict=True)])


ROWS = 2000  # most explanations for measuring utility: those of the audited model, then of further ones


@dataclass(frozen=True, eq=False)
class Objectives:
    """Measures releases."""

    natives: Natives
    meter: LeakMeter

    def measure(
        self,
        number: int,
        name: str,
        hardening: Hardening,
        options: dict[str, Any],
        beaten: Callable[[float, float], bool],
    ) -> Point | float:
        """The point of a release, with the larger of its leaks with and without noise, or only its utility if
        `beaten(utility, 0)`. InputError: the explainer refuses the options, or maps have another shape."""
        natives = self.natives.maps(options)
        kept = self.kept(self.natives.release(natives, hardening, self.few))
        if beaten(kept["utility"], 0.0):
            return kept["utility"]
        views = [hardening] if hardening.noise is None else [hardening.without_noise(), hardening]
        released = [self.natives.release(natives, view) for view in views]
        leak = self.leak(released, lambda least: beaten(kept["utility"], least))
        return self.point(number, name, hardening, options, kept, leak, released[-1])

    @property
    def few(self) -> range:
        """The models for measuring utility."""
        m, n = self.natives.labels.shape
        return range(min(m, max(1, ROWS // n)))

    def kept(self, released: Sequence[Tensor]) -> dict[str, float]:
        """Agreement of maps of the first models with the native ones under default options, as in `Point`."""
        found = []
        for native, maps in zip(self.natives.maps({}), released, strict=True):
            values = native.values[: len(maps)]
            if values.shape != maps.shape:
                shapes = f"{tuple(values.shape[2:])}, got {tuple(maps.shape[2:])} with these options"
                raise InputError(f"expected maps of the native shape {shapes}")
            u = utility(values.flatten(0, 1).numpy(), maps.flatten(0, 1).numpy())
            found.append((u.top_overlap, u.rank_correlation, u.cosine, u.sign_errors))
        overlap, ranks, cosine, errors = np.mean(found, axis=0).tolist()
        mean = (overlap + ranks + cosine) / 3
        return {
            "utility": mean, "overlap": overlap, "rank_correlation": ranks, "cosine": cosine, "sign_errors": errors
        }  # fmt: skip

    def leak(self, views: Sequence[Sequence[Tensor]], beaten: Callable[[float], bool]) -> Leakage:
        """The largest leak of several views of a release, on few targets if their lower bound is `beaten`."""
        signals = [self._signals(maps) for maps in views]
        few, many = self.meter.targets[:FEW], self.meter.targets[:MANY]
        worst = max((self.meter.excess(*one, few) for one in signals), key=lambda one: one.excess)
        if len(few) == len(many) or beaten(worst.excess - 2 * NORMAL * worst.error):
            return worst
        return max((self.meter.excess(*one, many) for one in signals), key=lambda one: one.excess)

    def point(
        self,
        number: int,
        name: str,
        hardening: Hardening,
        options: dict[str, Any],
        kept: Mapping[str, float],
        leak: Leakage,
        released: Sequence[Tensor],
    ) -> Point:
        """The point with all figures; `released` are the maps of all models, the audited one first."""
        faithful = [self._faithfulness(maps[0]) for maps in released]
        deletion, insertion = (None if None in of else float(np.mean(of)) for of in zip(*faithful, strict=True))
        return Point(
            number=number,
            hardening=hardening,
            options=options,
            leak=leak.excess,
            leak_error=leak.error,
            attack=leak.attack,
            targets=leak.targets,
            name=name,
            deletion=deletion,
            insertion=insertion,
            **kept,
        )

    def _signals(self, released: Sequence[Tensor]) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        """Summaries of each map, and the concatenated maps."""
        rows = [maps.flatten(2) for maps in released]
        each = [summarise(maps.flatten(0, 1)) for maps in rows]
        values = {}
        for name in SUMMARIES:
            columns = [one[name].reshape(rows[0].shape[:2]).numpy() for one in each]
            values[name] = columns[0] if len(columns) == 1 else np.stack(columns, axis=-1)
        return values, torch.cat(rows, dim=2).numpy()

    def _faithfulness(self, maps: Tensor) -> tuple[float | None, float | None]:
        """Deletion and insertion of (n, ...) maps of the audited model; None for maps of another resolution."""
        natives, x = self.natives, self.natives.x
        flat = maps.dim() == 2 and maps.shape[1] == x[0].numel()
        alike = maps.dim() == x.dim() and all(a in (1, b) for a, b in zip(maps.shape[1:], x.shape[1:], strict=True))
        if not (flat or alike):
            return None, None
        found = faithfulness(natives.models[0], x, natives.labels[0], maps, batch_size=natives.batch_size).to_dict()
        return found["deletion"], found["insertion"]
