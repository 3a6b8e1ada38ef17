"""The search itself: trials one after the other, kept on disk, and the confirmation of what was chosen.

    reference models --> native maps on the selection split --trials--> points --front--> chosen --audit--> confirmed

Every trial is drawn by a sampler that is seeded with the study's seed and the trial's number and has seen the trials
before it, so that a study that was killed and taken up again finds what it would have found.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import model_digest, sha256
from safexplain._files import whole_file
from safexplain._progress import Progress, named, silent
from safexplain._validate import check_whole
from safexplain.audit.population import Population
from safexplain.audit.queries import Labels, predict
from safexplain.audit.recipe import Recipe, Train
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.executors import Executor
from safexplain.audit.references.shadows import Build, Shadows
from safexplain.audit.run import (
    LOOKED_AT,
    AuditOptions,
    Method,
    Output,
    Pool,
    audit_pools,
    gives_probabilities,
    methods_of,
    prepare,
)
from safexplain.audit.splits import Splits, copies_together
from safexplain.errors import ConfigurationError, InputError, MissingExtraError, SafexplainError
from safexplain.explain.surrogate import PublicExplainer
from safexplain.explain.wrap import Catalogued
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import Probability
from safexplain.tune.leak import FEWEST_REFERENCES, LeakMeter
from safexplain.tune.natives import AFTER, Natives
from safexplain.tune.objectives import Objectives, Options
from safexplain.tune.result import Examples, Point, Study, choose, front_of
from safexplain.tune.space import FORMATS, Space, check_space, options_of, sizes_of
from safexplain.tune.tuned import Tuned
from safexplain.verdict.certificate.strict_json import canonical
from safexplain.verdict.policy import Policy

SELECTION = 0.3
"""Share of the examples set aside for the search where the policy sets none aside."""

FEWEST_EXAMPLES = 10
"""Examples of the selection split below which nothing is searched."""

SHOWN = 6
"""Examples of which maps are kept for pictures."""

FILE, CONTENT = "study.sqlite", "study.json"
"""Names in the folder of a study: Optuna's storage, and what its digest is of."""

NAME = "safexplain tune"
"""Of the study in Optuna's storage."""

DEEPLEAKS = "DeepLeak's default"
"""Name of DeepLeak's own configuration among the trials."""


def tune(
    model: nn.Module,
    population: Population,
    recipe: Recipe | Train | Any = None,
    *,
    member: NDArray[np.bool_],
    explainer: Callable[..., Any] | Sequence[Callable[..., Any]],
    space: str = "default",
    trials: int = 100,
    folder: str | Path | None = None,
    public_models: Sequence[nn.Module] = (),
    output: Output = "probability",
    arguments: Mapping[str, Any] | None = None,
    build: Build | None = None,
    references: int = 16,
    shadows: Shadows | None = None,
    policy: Policy | None = None,
    options: AuditOptions | None = None,
    seed: int = 0,
    cache: ModelCache | str | Path | None = None,
    device: str | torch.device | None = None,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> Tuned:
    """Search for the release that tells least and keeps most, and have it confirmed.

        found = tune(
            model, population, Recipe(lr=3e-3), build=build, member=mask,
            explainer=HardenedInputXGradient, trials=100, folder="run",
        )
        found.chosen, found.confirmed.verdict
        found.save("run")

    A trial hardens native maps that were computed once, and is judged by two figures: how much of them is left (see
    `Point.utility`), and how much the best attack adds to the label at one query (see `safexplain.tune.leak`, which
    also says which attacks take too long and are left to the confirmation, as are the other levels of patience and
    the explanations of further classes). What keeps less than a point that adds nothing cannot be on the front and is
    not attacked. All this is measured on the examples that the policy sets aside for choosing (`Policy.selection`);
    the chosen point is audited once, keyed, on those that certify, and the certificate tells of the search.

    With a folder, the study is kept there after each trial and taken up again, also after the process was killed;
    Ctrl-C ends the search, chooses among what was found and leaves the confirmation out.

    Args:
        model: see `audit`, as all that is not explained here.
        population: likewise.
        recipe: likewise.
        member: likewise.
        explainer: likewise; options that the catalog lists for it are searched too, but for those in `arguments`.
        space: "default": all slots and formats; "deepleak": DeepLeak's form and ranges.
        trials: how many points are tried, the first ones being formats that are known.
        folder: of the study; None: it is kept in memory.
        public_models: trained on public data only; what they say about the predicted class is a point to compare with.
        output: likewise.
        arguments: of `attribute`, the same in all trials.
        build: likewise.
        references: likewise, but at least 4.
        shadows: likewise.
        policy: likewise; where it sets no examples aside for choosing, 30 % are.
        options: likewise.
        seed: likewise, and of the search.
        cache: likewise; None: the folder `models` in that of the study.
        device: likewise.
        executor: likewise, for the reference models and the confirmation; trials are made in this process.
        progress: told after each trial, with the time left.

    Raises:
        ConfigurationError: an unknown space, fewer than one trial, or a policy that releases no explanation.
        InputError: as `audit`; too few reference models or examples; or the folder holds the study of other data,
            models or settings.
        MissingExtraError: Optuna is not installed.
    """
    check_space(space)
    check_whole("trials", trials, 1)
    check_whole("seed", seed, 0)
    optuna = _optuna()
    number = references if shadows is None else len(shadows.models)
    if number < FEWEST_REFERENCES or (shadows is None and recipe is None):
        raise InputError(
            f"a search needs at least {FEWEST_REFERENCES} reference models, of which some play the target: give"
            f" references={FEWEST_REFERENCES} or more (16 are usual) and how to train them, got"
            f" {0 if shadows is None and recipe is None else number}"
        )
    policy = policy or Policy()
    if policy.release == "prediction":
        raise ConfigurationError(
            'a search looks for a release of explanations, and this policy has none: release = "prediction"'
        )
    if not policy.selection:
        policy = replace(policy, selection=SELECTION)
    place = None if folder is None else Path(folder)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        cache = place / "models" if cache is None else cache
    pool, options = prepare(
        model,
        population,
        recipe,
        member=member,
        build=build,
        references=references,
        shadows=shadows,
        options=options,
        seed=seed,
        cache=cache,
        device=device,
        executor=executor,
        progress=progress,
    )
    methods = methods_of(explainer, arguments)
    setting = _Setting(pool, methods, output, space, policy, options.batch_size, seed, options.labels)
    search = _Search.of(setting, optuna, place, progress)
    reference, answers = _public(setting, search.objectives, public_models)
    interrupted = False
    try:
        search.run(trials)
    except KeyboardInterrupt:
        interrupted = True
    found = search.found()
    if not found.points:
        raise InputError(
            f"none of {found.trials} trials could be measured"
            + (f"; the last one: {found.failures[-1]}" if found.failures else "")
        )
    tuned = _conclude(setting, search, found, place, interrupted, reference, answers)
    says = f"{'+'.join(method.name for method in setting.methods)} of the predicted {output}"
    tuned = replace(tuned, study=replace(tuned.study, title=options.title, explainer=says))
    if interrupted or tuned.chosen is None:
        return tuned
    chosen = tuned.chosen
    said = {"trials": found.trials, "digest": tuned.study.digest}
    try:
        confirmed = audit_pools(
            [pool],
            explainer=explainer,
            hardening=chosen.hardening,
            output=output,
            arguments=_merged(setting.methods, arguments, chosen.options),
            policy=policy,
            options=replace(options, search=said),
            recipe=recipe,
            seed=seed,
            executor=executor,
            progress=lambda stage, done, total, note="": progress(f"confirming: {stage}", done, total, note),
        )
    except KeyboardInterrupt:
        return replace(tuned, study=_noted(tuned.study, NOT_CONFIRMED, interrupted=True))
    return replace(tuned, confirmed=confirmed)


PUBLIC = "public models"
"""Name of the point that explains by models of public data only."""

NOT_CONFIRMED = "The search was interrupted: the chosen point was not confirmed, so that nothing is proven about it."


def _noted(study: Study, note: str, *, interrupted: bool) -> Study:
    return replace(study, notes=(*study.notes, note), interrupted=interrupted)


@dataclass(frozen=True, eq=False)
class _Setting:
    """What is searched for, in which models and examples."""

    pool: Pool
    methods: tuple[Method, ...]
    output: Output
    space: str
    policy: Policy
    batch_size: int
    seed: int
    labels: Labels = "own"
    splits: Splits = field(init=False)

    def __post_init__(self) -> None:
        signals, _ = copies_together(self.pool.signals())
        splits = Splits.of(signals, self.policy, trains=True)
        if (found := int(splits.selection.sum())) < FEWEST_EXAMPLES:
            raise InputError(
                f"the search has {found} examples to choose by (Policy.selection = {self.policy.selection:g} of"
                f" {len(signals)}); expected at least {FEWEST_EXAMPLES}"
            )
        object.__setattr__(self, "splits", splits)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Indices of the examples that may choose."""
        return np.flatnonzero(self.splits.selection)

    @property
    def plain(self) -> bool:
        """Whether one explainer answers, whose options are given without its name."""
        return len(self.methods) == 1

    def identity(self) -> dict[str, str]:
        """Digests of all that a trial's figures depend on, by what they are of."""
        rows, pool = self.rows, self.pool
        groups = None if pool.population.groups is None else pool.population.groups[rows]
        data = Population(pool.population.x[rows], pool.population.y[rows], groups)
        methods = [[m.name, sorted((k, repr(v)) for k, v in m.arguments.items())] for m in self.methods]
        kept = ("fpr", "release", "selection")
        policy = {name: value for name, value in self.policy.to_dict().items() if name in kept}
        membership = np.packbits(pool.shadows.membership[:, rows]).tobytes()
        return {
            "the model": model_digest(pool.shadows.models[0]).hex(),
            "the reference models": sha256(b"".join(map(model_digest, pool.shadows.models[1:]))),
            "the examples": data.digest(),
            "who is a member": sha256(membership),
            "the explainer": sha256(canonical([methods, self.output])),
            "the policy": sha256(canonical(policy)),
            "the space": self.space,
            "the seed": str(self.seed),
            **({} if self.labels == "own" else {"the labels": self.labels}),
        }


@dataclass(frozen=True)
class _Found:
    """What the trials of a study say, in the order of their numbers."""

    points: tuple[Point, ...]
    pruned: tuple[tuple[int, float], ...]
    failures: tuple[str, ...]

    @property
    def trials(self) -> int:
        """That were run."""
        return len(self.points) + len(self.pruned) + len(self.failures)


class _Search:
    """Trials over one setting, in Optuna's study.

    Args:
        setting: what is searched for.
        optuna: the library.
        study: of Optuna.
        objectives: of the setting.
        space: what may be tried.
        progress: told after each trial.
    """

    def __init__(
        self, setting: _Setting, optuna: Any, study: Any, objectives: Objectives, space: Space, progress: Progress
    ) -> None:
        self.setting, self.optuna, self.study = setting, optuna, study
        self.objectives, self.space, self.progress = objectives, space, progress
        self.given = _given(setting.space)

    @classmethod
    def of(cls, setting: _Setting, optuna: Any, folder: Path | None, progress: Progress) -> _Search:
        """With the study of the folder, where there is one."""
        identity = setting.identity()
        study = _study(optuna, folder, identity)
        pool, rows = setting.pool, setting.rows
        at = torch.from_numpy(rows)
        x, membership = pool.population.x[at], pool.shadows.membership[:, rows]
        groups = None if pool.population.groups is None else pool.population.groups[rows]
        models = Shadows(pool.shadows.models, membership)
        asked = predict(
            models,
            Population(x, pool.population.y[at], groups),
            patience=(1,),
            labels=setting.labels,
            batch_size=setting.batch_size,
            progress=named(progress, "asking for labels"),
        )
        meter = LeakMeter(membership, asked.values, setting.policy, groups=groups, seed=setting.seed)
        first = pool.shadows.models[0]
        natives = Natives(
            pool.shadows.models,
            x,
            torch.from_numpy(asked.values["label"]).long(),
            setting.methods,
            softmax=setting.output == "probability" and not gives_probabilities(first, x[:LOOKED_AT]),
            batch_size=setting.batch_size,
            seed=setting.seed,
            folder=None if folder is None else folder / "maps",
            identity=sha256(canonical(identity)),
            progress=progress,
        )
        sizes = sizes_of([maps.values for maps in natives.maps({})])
        space = Space(setting.space, sizes, options_of(setting.methods, x))
        return cls(setting, optuna, study, Objectives(natives, meter, first), space, progress)

    def found(self) -> _Found:
        """What is there so far."""
        finished = sorted(self._finished().items())
        points, pruned, failures = [], [], []
        for number, kept in finished:
            if "point" in kept:
                points.append(Point.from_dict(json.loads(kept["point"])))
            elif "pruned" in kept:
                pruned.append((number, float(kept["pruned"])))
            else:
                failures.append(str(kept["failed"]))
        return _Found(tuple(points), tuple(pruned), tuple(failures))

    def run(self, trials: int) -> None:
        """Run the trials of these numbers that have not been run."""
        done = self._finished().keys()
        points = list(self.found().points)
        for number in range(trials):
            if number not in done:
                self._trial(number, points)
            pruned = number + 1 - len(points)
            note = f"{len(front_of(points))} on the front" + (f", {pruned} pruned" if pruned > 0 else "")
            self.progress("searching", number + 1, trials, note)

    def _finished(self) -> dict[int, dict[str, Any]]:
        """Number -> what was noted, of trials that came to their end."""
        states = self.optuna.trial.TrialState
        ended = (states.COMPLETE, states.PRUNED, states.FAIL)
        kept = self.study.get_trials(deepcopy=False, states=ended)
        marks = {states.COMPLETE: "point", states.PRUNED: "pruned", states.FAIL: "failed"}  # else it was killed
        return {int(t.user_attrs["number"]): t.user_attrs for t in kept if marks[t.state] in t.user_attrs}

    def _trial(self, number: int, points: list[Point]) -> None:
        if number < len(self.given):
            name, hardening, answers = self.given[number]
            parameters: dict[str, Any] = {}
            distributions: dict[str, Any] = {}
            if answers is not None:
                hardening, parameters, distributions = self.space.known(answers)
            assert hardening is not None
            state, values, noted = self._outcome(number, hardening, {}, points, name)
            self.study.add_trial(
                self.optuna.trial.create_trial(
                    state=state,
                    values=values,
                    params=parameters,
                    distributions=distributions,
                    user_attrs=noted,
                )
            )
            return
        self.study.sampler = self.optuna.samplers.TPESampler(seed=_seed(self.setting.seed, number))
        trial = self.study.ask()
        hardening, options = self.space.suggest(trial)
        state, values, noted = self._outcome(number, hardening, options, points, "")
        for key, value in noted.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial, values, state=state)

    def _outcome(
        self, number: int, hardening: Hardening, options: Options, points: list[Point], name: str
    ) -> tuple[Any, list[float] | None, dict[str, Any]]:
        """State of the trial, its values, and what is noted of it."""
        states = self.optuna.trial.TrialState
        plain = self.objectives.plain_options(options)
        same = next((p for p in points if p.hardening == hardening and p.options == plain), None)
        try:
            if same is not None:  # measured already
                return self._measured(replace(same, number=number, name=name), points)
            kept = self.objectives.kept(hardening, options)
            if not name and _hopeless(points, kept.utility, 0.0):
                return states.PRUNED, None, {"number": number, "pruned": kept.utility}
            point = self.objectives.measured(
                number,
                hardening,
                options,
                kept,
                hopeless=(lambda utility, leak: False) if name else (lambda u, leak: _hopeless(points, u, leak)),
                name=name,
            )
        except SafexplainError as error:
            if name == "native" or isinstance(error, MissingExtraError):
                raise
            return states.FAIL, None, {"number": number, "failed": str(error)}
        return self._measured(point, points)

    def _measured(self, point: Point, points: list[Point]) -> tuple[Any, list[float], dict[str, Any]]:
        points.append(point)
        noted = {"number": point.number, "point": json.dumps(point.to_dict(), allow_nan=False)}
        return self.optuna.trial.TrialState.COMPLETE, [point.leak, point.utility], noted


def _hopeless(points: Sequence[Point], utility: float, leak: float) -> bool:
    """Whether a point dominates, or equals, one of this utility that leaks at least so much."""
    return any(p.utility >= utility and p.leak <= max(leak, 0.0) for p in points)


def _given(space: str) -> list[tuple[str, Hardening | None, Mapping[str, Any] | None]]:
    """The first trials: name, and the hardening or the answers that give it."""
    known = [("native", None, FORMATS["native"])] if space == "default" else [("native", Hardening.none(), None)]
    first: list[tuple[str, Hardening | None, Mapping[str, Any] | None]] = [
        *known,
        ("recommended", Hardening.recommended(), None),
        (DEEPLEAKS, Hardening.deepleak(), None),
    ]
    if space == "default":
        first += [(name, None, answers) for name, answers in FORMATS.items() if name != "native"]
    return first


def _conclude(
    setting: _Setting,
    search: _Search,
    found: _Found,
    folder: Path | None,
    interrupted: bool,
    public: Point | None,
    answers: Tensor | None,
) -> Tuned:
    """The front, the chosen point and the summary of the study; `answers` are those of the public models."""
    front = front_of(found.points)
    allowance = setting.policy.tolerated_excess
    chosen, within = choose(front, allowance)
    by_name = {point.name: point for point in found.points if point.name}
    reference: dict[str, Point] = {name: by_name[name] for name in ("native", "recommended") if name in by_name}
    theirs = [p for p in found.points if p.name == DEEPLEAKS or (setting.space == "deepleak" and not p.name)]
    if (best := choose(front_of(theirs), allowance)[0]) is not None:
        reference["DeepLeak's best"] = best
    if public is not None:
        reference[PUBLIC] = public
    content = {
        "setting": setting.identity(),
        "points": [point.to_dict() for point in found.points],
        "pruned": [{"number": number, "utility": utility} for number, utility in found.pruned],
        "failed": list(found.failures),
    }
    text = canonical(content)
    if folder is not None:
        with whole_file(folder / CONTENT) as partial:
            partial.write_bytes(text)
    notes = []
    if not within:
        notes.append(f"No point is surely within the allowance of {allowance:.1%}: the least leaking one was chosen.")
    if interrupted:
        notes.append(NOT_CONFIRMED)
    study = Study(
        trials=found.trials,
        pruned=len(found.pruned),
        failed=len(found.failures),
        space=setting.space,
        seed=setting.seed,
        allowance=allowance,
        digest=sha256(text),
        path=None if folder is None else str(folder),
        reference=reference,
        points=found.points,
        sizes={"selection": len(setting.rows), "models": len(setting.pool.shadows.models)},
        notes=tuple(notes),
        interrupted=interrupted,
    )
    shown = {p.number: p for p in (*reference.values(), *front) if p is not public}
    return Tuned(front, chosen, None, study, within, _examples(setting, search, shown, answers))


def _public(
    setting: _Setting, objectives: Objectives, public_models: Sequence[nn.Module]
) -> tuple[Point | None, Tensor | None]:
    """What models of public data say about the class that each model predicts, and their maps (n, ...) for the class
    that the audited model predicts; None without such models.
    """
    if not public_models:
        return None, None
    natives, released = objectives.natives, []
    x, labels = natives.x, natives.labels
    examples = torch.arange(len(x)).expand(labels.shape)
    pairs, at = torch.unique(torch.stack([examples, labels]).flatten(1), dim=1, return_inverse=True)
    for method in setting.methods:
        make = method.make if isinstance(method.make, Catalogued) else partial(method.make, hardening=Hardening.none())
        explaining = [
            Probability(m) if setting.output == "probability" and not gives_probabilities(m, x[:LOOKED_AT]) else m
            for m in public_models
        ]
        explainer = PublicExplainer(setting.pool.shadows.models[0], explaining, make)
        arguments = {name: value for name, value in method.arguments.items() if name not in AFTER}
        place = next((p.device for p in public_models[0].parameters()), x.device)
        maps = [
            explainer.attribute(x[example].to(place), target=label.to(place), **arguments).float().cpu()
            for example, label in zip(*(torch.split(part, setting.batch_size) for part in pairs), strict=True)
        ]
        released.append(torch.cat(maps)[at].view(*labels.shape, *maps[0].shape[1:]))
    kept = objectives.kept_of([maps[: len(objectives.few)] for maps in released])
    leak = objectives.leak_of([released], lambda leak: False)
    return objectives.point(-1, Hardening.none(), {}, kept, leak, released, PUBLIC), released[0][0]


def _examples(setting: _Setting, search: _Search, points: Mapping[int, Point], public: Tensor | None) -> Examples:
    """A few examples with what each point releases about them."""
    natives, member = search.objectives.natives, setting.pool.shadows.membership[0, setting.rows]
    sides = [np.flatnonzero(side)[: SHOWN // 2] for side in (member, ~member)]
    at = np.array([i for pair in zip(*sides, strict=False) for i in pair], dtype=np.int64)
    maps = {}
    for number, point in points.items():
        options = {setting.methods[0].name: point.options} if setting.plain else point.options
        released = natives.release(natives.maps(options), point.hardening, [0])[0][0]
        maps[number] = released[torch.from_numpy(at)].numpy()
    if public is not None:
        maps[-1] = public[torch.from_numpy(at)].numpy()
    inputs = natives.x[torch.from_numpy(at)].numpy()
    return Examples(inputs, natives.labels[0].numpy()[at], member[at], maps)


def _merged(
    methods: Sequence[Method], arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments of the confirmation: those of the search, with the options of the point."""
    given = dict(arguments or {})
    if len(methods) == 1:
        return {**given, **options}
    return {name: {**given.get(name, {}), **options.get(name, {})} for name in {**given, **options}}


def _seed(seed: int, number: int) -> int:
    """Of the sampler of one trial."""
    return int(np.random.SeedSequence([seed, 0x7121A1, number]).generate_state(1)[0])


def _optuna() -> Any:
    """The library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "optuna":
            raise
        raise MissingExtraError('a search needs Optuna: pip install "safexplain[tune]"') from None
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Optuna says about each study that it makes."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _study(optuna: Any, folder: Path | None, identity: Mapping[str, str]) -> Any:
    """Optuna's study, new or that of the folder.

    Raises:
        InputError: the folder holds one of something else, or cannot be used.
    """
    storage: Any = optuna.storages.InMemoryStorage()
    with _quiet():
        try:
            if folder is not None:
                storage = optuna.storages.RDBStorage(f"sqlite:///{(folder / FILE).absolute()}")
            study = optuna.create_study(
                storage=storage, study_name=NAME, directions=["minimize", "maximize"], load_if_exists=True
            )
        except Exception as error:  # whatever SQLAlchemy raises on a file that is none of its own
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise InputError(f"cannot keep a study in {folder}: {reason}; name another folder") from error
        before = study.user_attrs.get("setting")
        if before is None:
            study.set_user_attr("setting", dict(identity))
        elif before != identity:
            other = [name for name, digest in identity.items() if before.get(name) != digest]
            raise InputError(
                f"{folder} holds a study of something else ({', '.join(other)} differ): take up a study with the same"
                " data, models and settings, or name another folder"
            )
        running = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        for trial in running:  # of a process that was killed; its number is run again
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study
