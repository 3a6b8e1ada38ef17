"""The search: trials in sequence, stored on disk, and the audit of the choice.

Samplers are seeded with the study's seed and the trial's number, so a resumed study draws the same trials again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from safexplain.audit.answers import predict
from safexplain.audit.controls.splits import Splits, copies_together
from safexplain.audit.planning import BUDGET, Clock, Plan, Stage, planned
from safexplain.audit.queries import Population
from safexplain.audit.question import Question
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Shadows
from safexplain.audit.report.outcome import AuditRun
from safexplain.audit.run import Models, judge, trained
from safexplain.audit.signals import Store
from safexplain.errors import ConfigurationError, InputError, MissingExtraError, SafexplainError
from safexplain.explain.hardened import ExplainerFactory
from safexplain.explain.surrogate import PublicExplainer
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import Probability
from safexplain.tune.objectives import MIN_REFERENCES, LeakMeter, Natives, Objectives, with_options
from safexplain.tune.page import render
from safexplain.tune.result import Examples, Point, Study, choose, front_of
from safexplain.tune.space import FIRST, Space, options_of
from safexplain.verdict.certificate.write import write_json
from safexplain.verdict.judgement import EXIT_CODES
from safexplain.verdict.strict_json import canonical

SELECTION = 0.3  # share of the examples for the search if the policy sets none aside
MIN_EXAMPLES = 10  # fewest examples of the selection split for a search
PICTURED = 6  # examples whose maps are kept for pictures
TIMED, FEW = 6, 180  # trials that a plan times, and examples for these
FILE = "study.json"  # results, in the folder of a study; certificates hold the digest of its content
PUBLIC = "public models"  # name of the point whose explanations come from models of public data

COMPARED = {"native": "native", "recommended": "recommended", "DeepLeak's default": "DeepLeak's best"}
"""Names of the trials for comparison -> their names in `Study.reference`."""


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
    further classes are left to the audit. A trial that is less useful than a point without a leak is not attacked. The
    search uses only the examples that the policy sets aside (`Policy.selection`, else 30 %); the chosen point is
    audited once, on the certification split, and the certificate records the search.

    With a folder, the study is saved there after each trial and resumes from it, even after a crash. Ctrl-C ends the
    search, chooses among the points found so far and skips the audit.

    Args:
        model: the target; see `safexplain.audit.Question`.
        population: likewise.
        recipe: likewise.
        trials: number of points to try; the first ones are known formats.
        folder: of the study, and of reference models if `cache` is not given; None: in memory.
        public_models: trained on public data only; their explanations of the predicted class are for comparison.
        references: reference models, at least 4.
        question: `member`, `explainer` and further arguments of `Question`, except `hardening`. Options in the catalog
            of the explainer are searched too, except those in `arguments`.

    Raises:
        ConfigurationError: fewer than one trial, or a policy that releases no explanation.
        InputError: as `audit`; too few reference models or examples; or the folder holds a study of other data,
            models or settings.
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
    """The cost of `searched` for the same question, and what its audit can decide, in about `budget` seconds; trials
    are timed with copies of the model as reference models."""
    question = _to_search(question)
    found = planned(replace(question, hardening=Hardening.recommended()), budget=0.6 * budget)
    policy, population, number = question.policy, question.population, found.references
    rng = np.random.default_rng([question.seed, 0x7E57])
    at = np.sort(rng.permutation(len(population))[: round(FEW / policy.selection)])
    membership = np.concatenate([question.member[at][None], rng.random((number, len(at))) < 0.5])
    models = Models(population.part(at), Shadows((question.target,) * (1 + number), membership))
    clock = Clock(question.place, 0.4 * budget)
    seconds = clock(lambda: Search(question, models, None).run(min(TIMED, trials)))
    rows = min(len(population), found.scored) * policy.selection
    seconds *= max(1.0, rows / FEW) * trials / min(TIMED, trials)
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
        sides = [np.flatnonzero(side)[: PICTURED // 2].tolist() for side in (self.member, ~self.member)]
        at = [i for pair in zip(*sides, strict=False) for i in pair]
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
