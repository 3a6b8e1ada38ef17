"""The search itself: trials one after the other, kept on disk, and the confirmation of what was chosen.

    reference models --> native maps on the selection split --trials--> points --front--> chosen --audit--> confirmed

Every trial is drawn by a sampler that is seeded with the study's seed and the trial's number and has seen the trials
before it, so that a study that was killed and taken up again finds what it would have found.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain._digest import model_digest, sha256
from safexplain._files import whole_file
from safexplain._progress import Progress, named
from safexplain._validate import check_whole
from safexplain.audit.asked import predict
from safexplain.audit.controls.splits import Splits, copies_together
from safexplain.audit.population import Population
from safexplain.audit.question import Question
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.run import Models, judge, trained
from safexplain.audit.store import Store
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
    space: str = "default",
    trials: int = 100,
    folder: str | Path | None = None,
    public_models: Sequence[nn.Module] = (),
    references: int = 16,
    **question: Any,
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
    the explanations of further classes). A trial that keeps less than a point that adds nothing cannot be on the front
    and is not attacked. All this is measured on the examples that the policy sets aside for choosing
    (`Policy.selection`); the chosen point is audited once, keyed, on those that certify, and the certificate tells of
    the search.

    With a folder, the study is kept there after each trial and resumes, also after the process was killed; Ctrl-C ends
    the search, chooses among what was found and leaves the confirmation out.

    Args:
        model: the target; see `safexplain.audit.Question`.
        population: likewise.
        recipe: likewise.
        space: "default": all slots and formats; "deepleak": DeepLeak's form and ranges.
        trials: how many points are tried, the first ones being formats that are known.
        folder: of the study, and of reference models if `cache` is not given; None: it is kept in memory.
        public_models: trained on public data only; what they say about the predicted class is a point to compare with.
        references: reference models, at least 4.
        question: `member`, `explainer` and what else the question of an audit says, but for `hardening`. Options that
            the catalog lists for the explainer are searched too, except those in `arguments`. If the policy sets no
            examples aside for choosing, 30 % are.

    Raises:
        ConfigurationError: an unknown space, fewer than one trial, or a policy that releases no explanation.
        InputError: as `audit`; too few reference models or examples; or the folder holds the study of other data,
            models or settings.
        MissingExtraError: Optuna is not installed.
    """
    asked = Question(model, population, recipe, references=references, **{"hardening": Hardening.none(), **question})
    return searched(asked, space=space, trials=trials, folder=folder, public_models=public_models)


def searched(
    question: Question,
    *,
    space: str = "default",
    trials: int = 100,
    folder: str | Path | None = None,
    public_models: Sequence[nn.Module] = (),
) -> Tuned:
    """`tune` of a question, whose hardening counts for nothing."""
    check_space(space)
    check_whole("trials", trials, 1)
    check_whole("seed", question.seed, 0)
    optuna, place = _optuna(), None if folder is None else Path(folder)
    question = to_search(question)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        question = replace(question, cache=question.cache or place / "models")
    models = trained(question)
    search = _Search(question, models, space, optuna, place)
    reference, answers = _public(search, public_models)
    interrupted = False
    try:
        search.run(trials)
    except KeyboardInterrupt:
        interrupted = True
    points, pruned, failures = search.found()
    if not points:
        tried = len(points) + len(pruned) + len(failures)
        raise InputError(
            f"none of {tried} trials could be measured" + (f"; the last one: {failures[-1]}" if failures else "")
        )
    tuned = _conclude(search, place, interrupted, reference, answers)
    if interrupted or tuned.chosen is None:
        return tuned
    chosen, options = tuned.chosen, question.judges[1]
    try:
        confirming = replace(
            question,
            hardening=chosen.hardening,
            arguments=_merged(question, chosen.options),
            options=replace(options, search={"trials": tuned.study.trials, "digest": tuned.study.digest}),
            progress=_confirming(question.progress),
        )
        return replace(tuned, confirmed=judge(confirming, models))
    except KeyboardInterrupt:
        study = replace(tuned.study, notes=(*tuned.study.notes, NOT_CONFIRMED), interrupted=True)
        return replace(tuned, study=study)


def to_search(question: Question) -> Question:
    """The question with examples set aside for choosing, once it can be searched.

    Raises:
        InputError: too few reference models, or no way to train any.
        ConfigurationError: the policy releases no explanation.
    """
    policy, given = question.judges[0], question.shadows
    (number,) = [question.references] if isinstance(question.references, int) else question.references[:1]
    number = number if given is None else len(given.models)
    if number < FEWEST_REFERENCES or (given is None and question.recipe is None):
        raise InputError(
            f"a search needs at least {FEWEST_REFERENCES} reference models, of which some play the target: give"
            f" references={FEWEST_REFERENCES} or more (16 are usual) and how to train them, got"
            f" {0 if given is None and question.recipe is None else number}"
        )
    if not question.explains:
        raise ConfigurationError(
            'a search looks for a release of explanations, and this policy has none: release = "prediction"'
        )
    policy = policy if policy.selection else replace(policy, selection=SELECTION)
    return replace(question, references=number, policy=policy)


def _confirming(progress: Progress) -> Progress:
    return lambda stage, done, total, note="": progress(f"confirming: {stage}", done, total, note)


PUBLIC = "public models"
"""Name of the point that explains by models of public data only."""

NOT_CONFIRMED = "The search was interrupted: the chosen point was not confirmed, so that nothing is proven about it."


class _Search:
    """Trials about one question, in Optuna's study.

    Args:
        question: what is searched for.
        models: the audited one and its references.
        space: name of what may be tried.
        optuna: the library.
        folder: that keeps the study; None: memory.

    Raises:
        InputError: too few examples may choose, or the folder holds another study.
    """

    def __init__(self, question: Question, models: Models, space: str, optuna: Any, folder: Path | None) -> None:
        self.question, self.models, self.space_name, self.optuna = question, models, space, optuna
        (policy, options), shadows, population = question.judges, models.shadows, models.population
        signals, _ = copies_together(models.signals())
        chosen = Splits.of(signals, policy, trains=True).selection
        self.rows = np.flatnonzero(chosen)
        if len(self.rows) < FEWEST_EXAMPLES:
            raise InputError(
                f"the search has {len(self.rows)} examples to choose by (Policy.selection = {policy.selection:g} of"
                f" {len(signals)}); expected at least {FEWEST_EXAMPLES}"
            )
        self.some = population.part(self.rows)
        self.membership = shadows.membership[:, self.rows]
        self.identity = self._identity()
        self.study = _study(optuna, folder, self.identity)
        asked = predict(
            Shadows(shadows.models, self.membership),
            self.some,
            patience=(1,),
            labels=options.labels,
            batch_size=options.batch_size,
            progress=named(question.progress, "asking for labels"),
        )
        meter = LeakMeter(self.membership, asked.values, policy, groups=self.some.groups, seed=question.seed)
        self.natives = Natives(
            shadows.models,
            self.some,
            asked,
            question.methods,
            softmax=question.released_by(question.hardening, shadows.models[0]).softmax,
            batch_size=options.batch_size,
            seed=question.seed,
            store=Store.of(None if folder is None else folder / "maps"),
            progress=question.progress,
        )
        self.objectives = Objectives(self.natives, meter, shadows.models[0])
        sizes = sizes_of([maps.values for maps in self.natives.maps({})])
        self.space = Space(space, sizes, options_of(question.methods, self.some.x))
        self.given = _given(space)

    def _identity(self) -> dict[str, str]:
        """Digests of all that a trial's figures depend on, by what they are of."""
        question, shadows, (policy, options) = self.question, self.models.shadows, self.question.judges
        methods = [[m.name, sorted((k, repr(v)) for k, v in m.arguments.items())] for m in question.methods]
        kept = ("fpr", "release", "selection")
        return {
            "the model": model_digest(shadows.models[0]).hex(),
            "the reference models": sha256(b"".join(map(model_digest, shadows.models[1:]))),
            "the examples": self.some.digest(),
            "who is a member": sha256(np.packbits(self.membership).tobytes()),
            "the explainer": sha256(canonical([methods, question.output])),
            "the policy": sha256(canonical({name: policy.to_dict()[name] for name in kept})),
            "the space": self.space_name,
            "the seed": str(question.seed),
            **({} if options.labels == "own" else {"the labels": options.labels}),
        }

    def found(self) -> tuple[list[Point], list[tuple[int, float]], list[str]]:
        """Points, pruned trials (number and utility) and failures so far, in the order of their numbers."""
        points, pruned, failures = list[Point](), list[tuple[int, float]](), list[str]()
        for number, kept in sorted(self._finished().items()):
            if "point" in kept:
                points.append(Point.from_dict(json.loads(kept["point"])))
            elif "pruned" in kept:
                pruned.append((number, float(kept["pruned"])))
            else:
                failures.append(str(kept["failed"]))
        return points, pruned, failures

    def run(self, trials: int) -> None:
        """Run the trials of these numbers that have not been run."""
        done = self._finished().keys()
        points, *_ = self.found()
        for number in range(trials):
            if number not in done:
                self._trial(number, points)
            pruned = number + 1 - len(points)
            note = f"{len(front_of(points))} on the front" + (f", {pruned} pruned" if pruned > 0 else "")
            self.question.progress("searching", number + 1, trials, note)

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
        self.study.sampler = self.optuna.samplers.TPESampler(seed=_seed(self.question.seed, number))
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
    search: _Search, folder: Path | None, interrupted: bool, public: Point | None, answers: Tensor | None
) -> Tuned:
    """The front, the chosen point and the summary of the study; `answers` are those of the public models."""
    question, (points, pruned, failures) = search.question, search.found()
    front, allowance = front_of(points), question.judges[0].tolerated_excess
    chosen, within = choose(front, allowance)
    by_name = {point.name: point for point in points if point.name}
    reference: dict[str, Point] = {name: by_name[name] for name in ("native", "recommended") if name in by_name}
    theirs = [p for p in points if p.name == DEEPLEAKS or (search.space_name == "deepleak" and not p.name)]
    if (best := choose(front_of(theirs), allowance)[0]) is not None:
        reference["DeepLeak's best"] = best
    if public is not None:
        reference[PUBLIC] = public
    content = {
        "setting": search.identity,
        "points": [point.to_dict() for point in points],
        "pruned": [{"number": number, "utility": utility} for number, utility in pruned],
        "failed": failures,
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
        trials=len(points) + len(pruned) + len(failures),
        pruned=len(pruned),
        failed=len(failures),
        space=search.space_name,
        seed=question.seed,
        allowance=allowance,
        digest=sha256(text),
        path=None if folder is None else str(folder),
        reference=reference,
        points=tuple(points),
        sizes={"selection": len(search.rows), "models": len(search.models.shadows.models)},
        notes=tuple(notes),
        interrupted=interrupted,
        title=question.judges[1].title or type(question.model).__name__,
        explainer=f"{question.method} of the predicted {question.output}",
    )
    shown = {p.number: p for p in (*reference.values(), *front) if p is not public}
    return Tuned(front, chosen, None, study, within, _examples(search, shown, answers))


def _public(search: _Search, public_models: Sequence[nn.Module]) -> tuple[Point | None, Tensor | None]:
    """What models of public data say about the class that each model predicts, and their maps (n, ...) for the class
    that the audited model predicts; None without such models.
    """
    if not public_models:
        return None, None
    question, objectives, natives, released = search.question, search.objectives, search.natives, []
    x, labels = natives.x, natives.labels
    examples = torch.arange(len(x)).expand(labels.shape)
    pairs, at = torch.unique(torch.stack([examples, labels]).flatten(1), dim=1, return_inverse=True)
    for method in question.methods:
        make = method.make if isinstance(method.make, Catalogued) else partial(method.make, hardening=Hardening.none())
        explaining = [
            Probability(m) if question.released_by(question.hardening, m).softmax else m for m in public_models
        ]
        explainer = PublicExplainer(search.models.shadows.models[0], explaining, make)
        arguments = {name: value for name, value in method.arguments.items() if name not in AFTER}
        place = next((p.device for p in public_models[0].parameters()), x.device)
        batches = zip(*(torch.split(part, natives.batch_size) for part in pairs), strict=True)
        maps = [
            explainer.attribute(x[example].to(place), target=label.to(place), **arguments).float().cpu()
            for example, label in batches
        ]
        released.append(torch.cat(maps)[at].view(*labels.shape, *maps[0].shape[1:]))
    kept = objectives.kept_of([maps[: len(objectives.few)] for maps in released])
    leak = objectives.leak_of([released], lambda leak: False)
    return objectives.point(-1, Hardening.none(), {}, kept, leak, released, PUBLIC), released[0][0]


def _examples(search: _Search, points: Mapping[int, Point], public: Tensor | None) -> Examples:
    """A few examples with what each point releases about them."""
    natives, member, methods = search.natives, search.membership[0], search.question.methods
    sides = [np.flatnonzero(side)[: SHOWN // 2] for side in (member, ~member)]
    at = np.array([i for pair in zip(*sides, strict=False) for i in pair], dtype=np.int64)
    maps = {}
    for number, point in points.items():
        options = {methods[0].name: point.options} if len(methods) == 1 else point.options
        released = natives.release(natives.maps(options), point.hardening, [0])[0][0]
        maps[number] = released[torch.from_numpy(at)].numpy()
    if public is not None:
        maps[-1] = public[torch.from_numpy(at)].numpy()
    inputs = natives.x[torch.from_numpy(at)].numpy()
    return Examples(inputs, natives.labels[0].numpy()[at], member[at], maps)


def _merged(question: Question, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the confirmation: those of the search, with the options of the point."""
    given = dict(question.arguments or {})
    if len(question.methods) == 1:
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
