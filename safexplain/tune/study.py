"""The search: a release measured on the selection split, trials in sequence, stored on disk, and the choice's audit.

Native maps are computed once for each set of explainer options. Hardening is exact and includes noise, under a key of
the search that is not secret and is in no file. Samplers are seeded with the study's seed and the trial's number, so a
resumed study draws the same trials again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import model_digest, sha256
from safexplain._files import make_folder, write_atomically
from safexplain._progress import as_stage
from safexplain._validate import check_whole
from safexplain.audit.answers import SUMMARIES, Predictions, explanations_of, predict, summarise
from safexplain.audit.attacks.learned import Boosted, Stacked
from safexplain.audit.attacks.suite import SuiteRow, fitting, scores_of
from safexplain.audit.controls.splits import Splits, copies_together
from safexplain.audit.planning import BUDGET, Clock, Plan, Stage, planned
from safexplain.audit.queries import Population
from safexplain.audit.question import Method, Question, Release
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.report.outcome import AuditRun, in_turn
from safexplain.audit.run import Models, judge, trained
from safexplain.audit.signals import Signals, Store
from safexplain.audit.usefulness import utility
from safexplain.errors import ConfigurationError, InputError, MissingExtraError, SafexplainError
from safexplain.explain.feature_groups import find_groups, harden_groups
from safexplain.explain.hardened import ExplainerFactory
from safexplain.explain.libraries import global_generators
from safexplain.explain.surrogate import PublicExplainer
from safexplain.faithfulness import faithfulness
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import Probability
from safexplain.tune.result import NORMAL, Examples, Point, Study, choose, front_of, render
from safexplain.tune.space import FIRST, Space, options_of
from safexplain.verdict.certificate.write import write_json
from safexplain.verdict.judgement import EXIT_CODES, is_judged
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import roc
from safexplain.verdict.strict_json import canonical

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
    """What the best attack adds to the label, among those that add something on held-out models."""

    excess: float  # mean over targets and `FPRS` of its TPR minus the label's, at least 0
    error: float  # standard error, by resampling examples and targets together; also where the excess is 0
    attack: str  # its name and signal; "" if none adds anything
    targets: int  # number of attacked models


class LeakMeter:
    """Attacks releases of the same models, the audited one first, for the same examples; (m, n) bool membership.

    Fast enough for a hundred trials: one query, and neither boosted trees nor attacks that learn from maps. Stacks of
    the suite are fitted to some models that play the target; each other model is scored with all others as references.
    `known` are signals without an explanation, such as "label" (m, n). Examples of one of the (n,) `groups` are
    resampled together. InputError: too few models, or examples of one kind.
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
    """(b,) `rates` where example i stands weights[b, i] times."""
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
        """The point, with the larger of its leaks with and without noise, or only its utility if `beaten(utility, 0)`;
        InputError: the explainer refuses the options, or maps have another shape."""
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
        """Agreement with the native maps under default options, of the first models."""
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


SELECTION = 0.3  # share of the examples for the search if the policy sets none aside
MIN_EXAMPLES = 10  # fewest examples of the selection split for a search
TIMED, SOME = 6, 180  # trials that a plan times, and examples for these
FILE = "study.json"  # results, in the folder of a study; certificates hold the digest of its content
PUBLIC = "public models"  # name of the point whose explanations come from models of public data

COMPARED = {"native": "native", "recommended": "recommended", "DeepLeak's default": "DeepLeak's best"}
"""Names of trials -> names in `Study.reference`."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of a search.

    Args:
        front: points that no other point dominates in leak and utility, the least leaking first.
        chosen: the point that `choose` takes from them.
        confirmed: its audit, on the certification split; None: the search was interrupted.
        study: the record of the search.
        within: whether the upper bound of its leak is within the policy's allowance.
        examples: for pictures, if any.
    """

    front: tuple[Point, ...]
    chosen: Point
    confirmed: AuditRun | None
    study: Study
    within: bool = True
    examples: Examples | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of the command line: that of the confirmation, or 3 (inconclusive) without one."""
        return EXIT_CODES["inconclusive"] if self.confirmed is None else self.confirmed.exit_code

    @property
    def files(self) -> dict[str, str]:
        """Files that `save` writes: kind -> name."""
        found = {"page": "front.html", "front": "front.json", "hardening": "hardening.json"}
        return found | ({} if self.confirmed is None else self.confirmed.files)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "front": [point.to_dict() for point in self.front],
            "chosen": self.chosen.to_dict(),
            "within": self.within,
            "confirmed": None if self.confirmed is None else self.confirmed.to_dict(),
            **self.study.to_dict(),
            "exit_code": self.exit_code,
        }

    def save(self, folder: str | Path) -> Path:
        """Write front.json, front.html, hardening.json and, for a confirmed choice, the files of `AuditRun.save`, and
        return the folder, created if missing. InputError: a file cannot be written."""
        folder = make_folder(folder)
        if self.confirmed is not None:
            self.confirmed.save(folder)
        write_json(folder / "hardening.json", self.chosen.hardening.to_dict())
        write_json(folder / "front.json", self.to_dict())
        result = None if self.confirmed is None else self.confirmed.result
        page = render(self.study, self.front, self.chosen, self.within, result, self.examples)
        write_atomically(folder / "front.html", page.encode("utf-8", errors="replace"), "the page")
        return folder


def tune(
    model: nn.Module,
    population: Population,
    recipe: Recipe | Train | Any = None,
    *,
    trials: int = 100,
    folder: str | Path | None = None,
    public_models: Sequence[nn.Module] = (),
    references: int = 16,
    **question: Any,
) -> Tuned:
    """Search for the release that leaks least and keeps most, and audit it.

        found = tune(
            model, population, Recipe(lr=3e-3), build=build, member=mask,
            explainer=HardenedInputXGradient, trials=100, folder="run",
        )
        found.chosen, found.confirmed.verdict
        found.save("run")

    A trial hardens native maps that were computed once. It is measured by their agreement with the native maps
    (`Point.utility`) and by how much the best attack adds to the label at one query; slow attacks, more queries and
    further classes are left to the audit. A trial less useful than a point without a leak is not attacked. The search
    uses only the examples that the policy sets aside (`Policy.selection`, else 30 %); the chosen point is audited once,
    on the certification split, and the certificate records the search.

    With a folder, the study is saved there after each trial and resumes from it. Ctrl-C ends the search, chooses among
    the points found so far and skips the audit.

    Args:
        model: the target; see `safexplain.audit.Question`.
        population: likewise.
        recipe: likewise.
        trials: number of points to try; the first ones are known formats.
        folder: of the study, and of reference models without `cache`; None: in memory.
        public_models: trained on public data only, for comparison.
        references: reference models, at least 4.
        question: `member`, `explainer` and further arguments of `Question`, except `hardening`. Options in the catalog
            of the explainer are searched too, except those in `arguments`.

    Raises:
        ConfigurationError: fewer than one trial, or a policy that releases no explanation.
        InputError: as `audit`; too few reference models or examples; or the folder holds another study.
        MissingExtraError: Optuna is not installed.
    """
    asked = Question(model, population, recipe, references=references, **{"hardening": Hardening.none(), **question})
    return searched(asked, trials, folder, public_models)


def searched(question: Question, trials: int, folder: str | Path | None, public_models: Sequence[nn.Module]) -> Tuned:
    """`tune` for a question, whose hardening is ignored."""
    check_whole("trials", trials, 1)
    question, place = _to_search(question), None if folder is None else make_folder(folder)
    if place is not None:
        question = replace(question, cache=question.cache or place / "models")
    models = trained(question)
    search = Search(question, models, place)
    public, answers = search.of_public(public_models) if public_models else (None, None)
    interrupted, confirmed, progress = False, None, question.progress
    try:
        search.run(trials)
    except KeyboardInterrupt:
        if not search.points:
            raise
        interrupted = True
    policy, options, front = question.policy, question.options, front_of(search.points)
    allowance, digest = policy.tolerated_excess, sha256(search.content)
    chosen, within = choose(front, allowance)
    if not interrupted:
        methods = with_options(question.methods, chosen.options)
        by_name = {method.name: method.arguments for method in methods if method.arguments}
        confirming = replace(
            question,
            hardening=chosen.hardening,
            arguments=methods[0].arguments if callable(question.explainer) else by_name,
            options=replace(options, search={"trials": len(search.trials), "digest": digest}),
            progress=lambda stage, done, total, note="": progress(f"confirming: {stage}", done, total, note),
        )
        try:
            confirmed = judge(confirming, models)
        except KeyboardInterrupt:
            interrupted = True
    notes = []
    if not within:
        notes = [f"No point's leak is bounded by the allowance of {allowance:.1%}; the least leaking one was chosen."]
    if interrupted:
        notes += ["The search was interrupted before the chosen point was confirmed, so nothing is proven about it."]
    reference = {COMPARED[point.name]: point for point in search.points if point.name in COMPARED}
    measured = {p.number: p for p in (*reference.values(), *front)}
    study = Study(
        trials=len(search.trials),
        pruned=sum("pruned" in trial for trial in search.trials),
        failed=sum("failed" in trial for trial in search.trials),
        seed=question.seed,
        allowance=allowance,
        digest=digest,
        path=None if place is None else str(place),
        reference=reference | ({} if public is None else {PUBLIC: public}),
        points=tuple(search.points),
        sizes={"selection": search.examples, "models": len(models.shadows.models)},
        notes=tuple(notes),
        interrupted=interrupted,
        title=options.title or type(question.model).__name__,
        explainer=f"{question.method} of the predicted {question.output}",
    )
    return Tuned(front, chosen, confirmed, study, within, search.pictured(measured, answers))


def plan_tune(question: Question, *, trials: int = 100, budget: float = BUDGET) -> Plan:
    """The cost of `searched`, and what its audit can decide, in about `budget` seconds; trials are timed with copies of
    the model as reference models."""
    question = _to_search(question)
    found = planned(replace(question, hardening=Hardening.recommended()), budget=0.6 * budget)
    policy, population, number = question.policy, question.population, found.references
    rng = np.random.default_rng([question.seed, 0x7E57])
    at = np.sort(rng.permutation(len(population))[: round(SOME / policy.selection)])
    membership = np.concatenate([question.member[at][None], rng.random((number, len(at))) < 0.5])
    models = Models(population.part(at), Shadows((question.target,) * (1 + number), membership))
    clock = Clock(question.place, 0.4 * budget)
    seconds = clock(lambda: Search(question, models, None).run(min(TIMED, trials)))
    rows = min(len(population), found.scored) * policy.selection
    seconds *= max(1.0, rows / SOME) * trials / min(TIMED, trials)
    search = Stage("searching", seconds, trials, "trials", "by the first of them")
    first = [stage for stage in found.stages if stage.name.endswith("reference models")]
    rest = [replace(s, name=f"confirming: {s.name}") for s in found.stages if s not in first]
    return replace(
        found,
        stages=(*first, search, *rest),
        notes=(*found.notes, "The plan assumes that the search chooses the recommended hardening."),
        took=found.took + clock.spent,
    )


def _to_search(question: Question) -> Question:
    """The question with examples set aside for choosing; raises the errors of `tune`."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "optuna":
            raise
        raise MissingExtraError('a search needs Optuna; install the extra: pip install "safexplain[tune]"') from None
    check_whole("seed", question.seed, 0)
    policy, given, number = question.policy, question.shadows, question.references
    number = len(given.models) if given is not None else number if isinstance(number, int) else number[0]
    number = 0 if given is None and question.recipe is None else number
    if number < MIN_REFERENCES:
        raise InputError(
            f"references: expected at least {MIN_REFERENCES} reference models for a search (16 are usual), and a recipe"
            f" to train them, got {number}"
        )
    if not question.explains:
        raise ConfigurationError(
            'policy: expected one that releases explanations, got release = "prediction"; there is nothing to search'
        )
    policy = policy if policy.selection else replace(policy, selection=SELECTION)
    return replace(question, references=number, policy=policy)


class Search:
    """Trials about one question, kept in the folder (None: in memory). InputError: too few examples, or the folder
    holds another study."""

    def __init__(self, question: Question, models: Models, folder: Path | None) -> None:
        import optuna

        policy, options, shadows = question.policy, question.options, models.shadows
        signals, _ = copies_together(models.signals())
        rows = np.flatnonzero(Splits.of(signals, policy, trains=True).selection)
        self.question, self.examples = question, len(rows)
        if self.examples < MIN_EXAMPLES:
            raise InputError(
                f"expected at least {MIN_EXAMPLES} examples to choose by, got {self.examples}: Policy.selection ="
                f" {policy.selection:g} of {len(signals)}"
            )
        some, membership = models.population.part(rows), shadows.membership[:, rows]
        self.member = membership[0]
        self.file = None if folder is None else folder / FILE
        self.setting = _setting(question, shadows.models, some, membership)
        kept = _kept_trials(self.file, self.setting)
        asked = predict(
            Shadows(shadows.models, membership),
            some,
            patience=(1,),
            labels=options.labels,
            batch_size=options.batch_size,
            progress=as_stage(question.progress, "asking for labels"),
        )
        store = Store.of(None if folder is None else folder / "maps")
        self.natives = Natives(question, shadows.models, some, asked, store)
        meter = LeakMeter(membership, asked.values, policy, groups=some.groups, seed=question.seed)
        self.objectives = Objectives(self.natives, meter)
        self.space = Space.of(self.natives.maps({})[0].values, options_of(question.methods, some.x))
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it prints a line
        self.study = optuna.create_study(directions=["minimize", "maximize"])
        optuna.logging.set_verbosity(verbosity)
        self.trials: list[dict[str, Any]] = []  # as in the file
        self.points: list[Point] = []  # of the measured ones
        for trial in kept:
            self.try_next(trial)
        if kept:
            self.save()

    @property
    def content(self) -> bytes:
        """Content of the file: each trial with its figures, its utility if pruned, or its error."""
        return canonical({"setting": self.setting, "trials": self.trials})

    def save(self) -> None:
        """Write the file, if there is a folder."""
        if self.file is not None:
            write_atomically(self.file, self.content, "the study")

    def run(self, trials: int) -> None:
        """Run trials until there are `trials`."""
        for number in range(len(self.trials), trials):
            self.try_next()
            self.save()
            pruned = number + 1 - len(self.points)
            note = f"{len(front_of(self.points))} on the front" + (f", {pruned} pruned" if pruned else "")
            self.question.progress("searching", number + 1, trials, note)

    def try_next(self, kept: Mapping[str, Any] | None = None) -> None:
        """Draw the next trial and measure it, unless `kept` has results for the same release."""
        import optuna

        number = len(self.trials)
        name = list(FIRST)[number] if number < len(FIRST) else ""
        known = FIRST.get(name)
        if isinstance(known, Mapping):
            self.study.enqueue_trial(dict(known))
        seed = np.random.SeedSequence([self.question.seed, 0x7121A1, number]).generate_state(1)[0]
        self.study.sampler = optuna.samplers.TPESampler(seed=int(seed))
        trial = self.study.ask()
        hardening = known if isinstance(known, Hardening) else self.space.hardening(trial)
        options = {} if name else self.space.drawn_options(trial)
        release = {"hardening": hardening.to_dict(), "options": options}
        if kept is None or canonical({key: kept.get(key) for key in release}) != canonical(release):
            kept = self._measured(number, name, hardening, options)
        kept = {**kept, **release}  # JSON has other types
        state, values = "FAIL" if "failed" in kept else "PRUNED", None
        if "leak" in kept:
            self.points.append(Point.from_dict(kept))
            state, values = "COMPLETE", [self.points[-1].leak, self.points[-1].utility]
        self.study.tell(trial, values, state=optuna.trial.TrialState[state])
        self.trials.append(kept)

    def _measured(self, number: int, name: str, hardening: Hardening, options: dict[str, Any]) -> dict[str, Any]:
        for point in self.points:
            if (point.hardening, point.options) == (hardening, options):
                return replace(point, number=number, name=name).to_dict()
        beaten = (lambda utility, leak: False) if name else self._beaten
        try:
            found = self.objectives.measure(number, name, hardening, options, beaten)
        except SafexplainError as error:
            if name == "native" or isinstance(error, MissingExtraError):
                raise
            return {"failed": str(error)}
        return found.to_dict() if isinstance(found, Point) else {"pruned": found}

    def _beaten(self, utility: float, leak: float) -> bool:
        """Whether a point dominates or equals one of this utility with at least this leak."""
        return any(p.utility >= utility and p.leak <= max(leak, 0.0) for p in self.points)

    def of_public(self, models: Sequence[nn.Module]) -> tuple[Point, Tensor]:
        """The point of public models, and their maps (n, ...) for the class that the audited model predicts."""
        natives, objectives, released = self.natives, self.objectives, []
        examples = torch.arange(len(natives.x)).expand(natives.labels.shape)
        pairs, at = torch.unique(torch.stack([examples, natives.labels]).flatten(1), dim=1, return_inverse=True)
        softmax = [self.question.puts_softmax(model) for model in models]
        explaining = [Probability(m) if over else m for m, over in zip(models, softmax, strict=True)]
        place = next((p.device for p in models[0].parameters()), natives.x.device)
        for method in natives.methods:
            make = method.make
            make = make if isinstance(make, ExplainerFactory) else partial(make, hardening=Hardening.none())
            explainer = PublicExplainer(natives.models[0], explaining, make)
            maps = [
                explainer.attribute(natives.x[i].to(place), target=label.to(place), **method.arguments).float().cpu()
                for i, label in zip(*(torch.split(part, natives.batch_size) for part in pairs), strict=True)
            ]
            released.append(torch.cat(maps)[at].view(*natives.labels.shape, *maps[0].shape[1:]))
        kept = objectives.kept([maps[: len(objectives.few)] for maps in released])
        leak = objectives.leak([released], lambda leak: False)
        return objectives.point(-1, PUBLIC, Hardening.none(), {}, kept, leak, released), released[0][0]

    def pictured(self, points: Mapping[int, Point], public: Tensor | None) -> Examples:
        """A few examples, members and non-members in turn, with their maps."""
        natives = self.natives
        at = in_turn(self.member)
        maps = {} if public is None else {-1: public[at].numpy()}
        for number, point in points.items():
            maps[number] = natives.release(natives.maps(point.options), point.hardening, [0])[0][0][at].numpy()
        return Examples(natives.x[at].numpy(), natives.labels[0, at].numpy(), self.member[at], maps)


def _setting(
    question: Question, models: Sequence[nn.Module], some: Population, membership: NDArray[np.bool_]
) -> dict[str, str]:
    policy, options = question.policy, question.options
    methods = [[m.name, sorted((k, repr(v)) for k, v in m.arguments.items())] for m in question.methods]
    return {
        "the model": model_digest(models[0]).hex(),
        "the reference models": sha256(b"".join(map(model_digest, models[1:]))),
        "the examples": some.digest(),
        "who is a member": sha256(np.packbits(membership).tobytes()),
        "the explainer": sha256(canonical([methods, question.output])),
        "the policy": sha256(canonical([policy.fpr, policy.release, policy.selection])),
        "the seed": str(question.seed),
        **({} if options.labels == "own" else {"the labels": options.labels}),
    }


def _kept_trials(file: Path | None, setting: Mapping[str, str]) -> list[dict[str, Any]]:
    """The stored trials; InputError: they have another setting."""
    if file is None or not file.exists():
        return []
    try:
        content = json.loads(file.read_bytes())
        before, trials = dict(content["setting"]), list[dict[str, Any]](content["trials"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: expected a study to resume, got {error!r:.160}; name another folder") from None
    if other := [name for name in {**setting, **before} if before.get(name) != setting.get(name)]:
        raise InputError(f"{file.parent} holds another study ({', '.join(other)} differ); name another folder")
    return trials
