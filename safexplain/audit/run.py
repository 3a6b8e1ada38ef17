"""All steps of an audit, for Python and the command line:
question --train--> models (target, references) --ask--> answers, native and released --attack--> results --> files"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain._digest import model_digest, sha256
from safexplain._progress import as_stage
from safexplain.audit.answers import Predictions, explanations_of, predict, signals_of
from safexplain.audit.attacks.suite import MIN_FOR_NULL, Scorer, fitting
from safexplain.audit.certify import certify
from safexplain.audit.controls.checks import ADVICE, META, PRIVACY, UNUSUAL, Hits, Statistics, below_stated, measured
from safexplain.audit.controls.checks import LOOKED_AT as LOOKED_AT_MEMBERS
from safexplain.audit.controls.splits import copies_of, refuse_copies
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.queries import Population, device_of, levels_of, with_channels_last
from safexplain.audit.question import ENOUGH_REFERENCES, AuditOptions, HardeningLike, Method, Question
from safexplain.audit.references.recipe import Recipe, Train
from safexplain.audit.references.shadows import Repeated, Shadows, train_shadows
from safexplain.audit.report.outcome import AuditRun, environment, pictures
from safexplain.audit.report.root_cause import Ablation, root_cause, sample
from safexplain.audit.report.root_cause import sentence as cause_sentence
from safexplain.audit.report.tables import NATIVE, Configuration, ReportData
from safexplain.audit.signals import LARGEST_MAPS, Explanations, Signals, Store, free_space, hash_examples
from safexplain.audit.usefulness import Sample, utility_of
from safexplain.errors import ConfigurationError, DataWarning, InputError, RefusedError
from safexplain.native_maps import Finding as NativeFinding
from safexplain.native_maps import Watch, collecting
from safexplain.outputs import Probability
from safexplain.verdict.certificate.write import ANSWERS_DIGEST, MODEL_DIGEST
from safexplain.verdict.guarantee import Implied
from safexplain.verdict.words import as_written, in_words

__all__ = ["AuditOptions", "AuditRun", "Question", "audit"]

SAMPLED = 256  # examples whose explanations are checked first, for impossible values and for faithfulness


def audit(
    model: nn.Module | Any, population: Population, recipe: Recipe | Train | Any = None, **question: Any
) -> AuditRun:
    """Train reference models, attack a model's explanations natively and hardened, and judge what is released.

        result = audit(
            model, population, Recipe(lr=3e-3), build=build, member=mask,
            explainer=HardenedInputXGradient, hardening=Hardening.recommended(), references=16,
        )
        result.verdict, result.native.verdict
        result.save("run")

    Args:
        model: the target.
        population: the pool of n examples, members and non-members from one source.
        recipe: how the model was trained.
        question: `member`, `explainer` and `hardening`, and further fields of `safexplain.audit.question.Question`.

    Raises:
        InputError, ConfigurationError: as `Question`; or an explanation fails, the privacy statement is about another
            model, the canaries are about another training, or one `Recipe` is given for fine-tuned models.
    """
    return answered(Question(model, population, recipe, **question))


def answered(question: Question) -> AuditRun:
    """`audit` of a question, with further looks while it is undecided and there is time."""
    options, folder = question.options, question.cache_folder
    store = Store.of(options.store or (None if folder is None else folder / "explained"))
    question = replace(question, options=replace(options, store=store))
    began, looks = time.monotonic(), question.looks
    for number, look in enumerate(looks, 1):
        since = time.monotonic()
        found = judge(question.at(look), trained(question.at(look)))
        if number < len(looks) and found.result.too_wide:
            now, following = time.monotonic(), looks[number]
            more = following.times(look) * (now - since)
            if now - began + more <= options.seconds:
                del found  # may be large
                continue
            found = replace(found, next_look=(following.references, following.scored, more))
        break
    store.finish()
    return found


@dataclass(frozen=True, eq=False)
class Models:
    """The scored examples, and the models over them."""

    population: Population  # the n scored examples
    shadows: Shadows  # m models and membership; model 0 is the target
    untrained: nn.Module | None = None  # one like the target, for the null control if references are few
    slices: dict[str, NDArray[Any]] | None = None  # name -> (n,), see `AuditOptions`
    notes: tuple[str, ...] = ()  # caveats for the reader

    @property
    def null(self) -> tuple[int, ...]:
        """Index of the untrained model among `queried`."""
        return () if self.untrained is None else (len(self.shadows.models),)

    @property
    def queried(self) -> Shadows:
        """All models, and last the untrained one, which has no members."""
        if self.untrained is None:
            return self.shadows
        nobody = np.zeros((1, len(self.population)), dtype=bool)
        return Shadows((*self.shadows.models, self.untrained), np.concatenate([self.shadows.membership, nobody]))

    def signals(
        self,
        predictions: Predictions | None = None,
        explanations: Explanations | None = None,
        classes: Sequence[int] = (),
        **meta: Any,
    ) -> Signals:
        return signals_of(
            self.queried, self.population, predictions, explanations, targets=[0], null=self.null, classes=classes,
            slices=self.slices, meta=meta,
        )  # fmt: skip


def trained(question: Question) -> Models:
    """The target and its reference models, trained unless they are given, over the scored examples."""
    target, population, member, options = question.target, question.population, question.member, question.options
    recipe, shadows, references, endpoint = question.recipe, question.shadows, question.references, question.endpoint
    assert isinstance(references, int)
    x = population.x.cpu().numpy()
    refuse_copies(copies_of(hash_examples(x), x), member)  # before anything long
    _check_privacy(options, target)
    rows = question.scored_rows
    scored, inside = population.part(rows), member[rows]
    if endpoint is not None:
        _begin(question, endpoint, scored, inside)
    part = options.quick or endpoint is not None  # an endpoint is queried about scored examples only
    fitted = (scored, inside) if part else (population, member)
    notes = [*options.notes, *_fit_notes(target, *fitted, options), *_group_notes(population, member)]
    if options.labels == "foreign" and shadows is None and (isinstance(recipe, Recipe) or hasattr(recipe, "fit")):
        raise ConfigurationError(
            'subject_data="pre-training": expected fine-tuned reference models, got one recipe; pass'
            " shadows=fine_tune(train_shadows(population, recipe, ...), FineTune(...)), or a function that pre-trains"
            " and fine-tunes"
        )
    if shadows is None and recipe is not None and references:
        repeated = Repeated.of(recipe, question.build, None if endpoint else target, member)
        shadows = train_shadows(
            population,
            recipe,
            build=repeated.build,
            models=references,
            members=repeated.members,
            seed=question.seed,
            device=question.place,
            cache=question.cache,
            progress=as_stage(question.progress, "training reference models"),
        )
        shadows = replace(shadows, models=tuple(with_channels_last(m, population.x) for m in shadows.models))
    number = 0 if shadows is None else len(shadows.models)
    if number == 0:
        notes.append("No reference models: only threshold attacks ran, so nothing can be certified.")
    elif number < ENOUGH_REFERENCES:
        notes.append(f"Only {number} reference models: a real attacker may train more and find more.")
    if isinstance(recipe, Recipe) and number:
        notes += [note for note in (recipe.caveat(target), recipe.privacy_note(options.privacy)) if note]
    if len(rows) < len(population):
        notes.append(
            f"{len(rows):,} of {len(population):,} examples were scored, drawn at random in advance; reference models"
            " were trained on halves of all."
        )
    shadows = (shadows or Shadows((), np.zeros((0, len(population)), dtype=bool))).behind(target, member)
    shadows = replace(shadows, membership=shadows.membership[:, rows])
    untrained = None
    if len(shadows.models) < MIN_FOR_NULL and question.build is not None:
        with torch.random.fork_rng([]):
            torch.manual_seed(question.seed)
            untrained = question.build(question.seed).to(question.place).eval()
    slices = {name: np.asarray(values)[rows] for name, values in options.slices.items()}
    return Models(scored, shadows, untrained, slices, tuple(notes))


def _begin(question: Question, endpoint: Endpoint, scored: Population, member: NDArray[np.bool_]) -> None:
    endpoint.plan(len(scored), question.policy.patience)
    given, shape = () if question.shadows is None else question.shadows.models, None
    like = given[0] if given else None if question.build is None else question.build(question.seed)
    if like is not None:  # the endpoint's maps must have the shape of its maps
        x = scored.x[:2].to(device_of(like))
        mode = like.training
        with torch.no_grad():
            target = like.eval()(x).argmax(1)
        shape = tuple(question.methods[0](like, question.keyed("references"), x, target).shape[1:])
        like.train(mode)
    endpoint.begin(scored, member, shape, question.progress)


def judge(question: Question, models: Models) -> AuditRun:
    """Query all models, attack their answers, and judge the release."""
    policy, options, endpoint = question.policy, question.options, question.endpoint
    population, target = models.population, question.target
    implied, notes = _implied(question, population)
    notes = [*models.notes, *notes]
    explained: str = question.output
    methods = [m for m in question.methods if hasattr(m.make, "explains") and question.explains and endpoint is None]
    if odds := [m.name for m in methods if m.make.explains(target) == "log odds"]:  # type: ignore[attr-defined]
        explained = "class's log odds"
        notes += [f"{name} explains the log odds of the predicted class, not its {question.output}." for name in odds]
    large, keep, map_notes = _room_for_maps(question, models)
    notes += map_notes
    if endpoint is not None:
        answered = endpoint.ask(population, policy.patience, question.dither, question.progress)
        notes = [endpoint.caveat, *notes, *answered]
    predictions = predict(
        models.queried, population, patience=policy.patience, dither=question.dither, labels=options.labels,
        batch_size=options.batch_size, progress=as_stage(question.progress, "asking for labels"),
    )  # fmt: skip
    releases = _Releases(question, models, predictions, large, keep)
    sampled, findings = releases.sample() if question.explains and endpoint is None else (None, ())
    notes += [f"Native explanations that cannot be right: {finding}" for finding in findings]
    signals, native = dict[str, Signals](), None
    for name, hardening in question.releases.items():
        signals[name], answers = releases.signals(name, hardening, native)
        native = native or answers
    scorers = dict[int, Scorer]()
    configurations = [
        _configuration(question, name, signals, population, scorers, sampled, implied) for name in signals
    ]
    causes, cause = _root_cause(question, signals.get(NATIVE))
    pictured = question.explains and endpoint is None
    title = options.title or (endpoint.url if endpoint else type(question.model).__name__)
    report = ReportData(
        title=title,
        explainer=f"{question.method} of the predicted {explained}" if question.explains else "predictions alone",
        configurations=tuple(configurations),
        provenance={},
        pictures=pictures(population.x, models.shadows.membership[0], signals, configurations[-1].name)
        if pictured
        else None,
        notes=tuple(notes),
        privacy=options.privacy,
        canaries=options.canaries,
        root_cause=causes,
        root_cause_sentence=cause,
        keyed=question.hardening.noise is not None,
        subject_data=None if options.subject_data == "training" else options.subject_data,
        endpoint=endpoint.url if endpoint else None,
    )
    return AuditRun(signals, report, _stated(question, title, releases.softmax), findings)


def _room_for_maps(question: Question, models: Models) -> tuple[bool, bool, list[str]]:
    """Whether whole maps go to disk, whether they are kept at all, and notes about this."""
    size = question.map_bytes(models.queried.membership.size)
    if size <= LARGEST_MAPS:
        return False, True, []
    need, free = size / 2**30, free_space(Store.of(question.options.store).folder) / 2**30
    if need >= free:
        return False, False, [
            f"The attack on whole maps was left out: the maps of all models take {need:.3g} GiB, and the disk has"
            f" {free:.3g} GiB free."
        ]  # fmt: skip
    return True, True, [
        f"The maps of all models were attacked on disk, {need:.3g} GiB; signals.npz does not hold them, so attacks on"
        " whole maps cannot be repeated from it."
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Releases:
    """Queries all models, one release after the other."""

    question: Question
    models: Models
    predictions: Predictions
    large: bool  # whole maps go to disk
    keep: bool  # whole maps are kept

    @cached_property
    def softmax(self) -> bool:
        """Whether models return logits, and their probability is explained."""
        first, *others = self.models.shadows.models
        like = first if self.question.endpoint is None else next(iter(others), None)  # an endpoint may give labels only
        return self.question.puts_softmax(like)

    def sample(self) -> tuple[Sample, tuple[NativeFinding, ...]]:
        """Some examples with the target's maps, native and released, and findings about these."""
        question, model, population = self.question, self.models.shadows.models[0], self.models.population
        options, plain = question.options, question.hardening.none()
        number = min(len(population), max(1, SAMPLED // (32 if options.quick else 1)))
        chosen = np.sort(np.random.default_rng([question.seed, 0]).choice(len(population), number, replace=False))
        x = population.x[torch.from_numpy(chosen)].to(device_of(model))
        sample, watch = Sample.of(model, x, options.batch_size), Watch(logs=False)
        forward = Probability(model) if self.softmax else model
        with collecting() as collected:
            for method in question.methods:
                native = sample.explained(partial(method.__call__, forward, plain))
                watch.add(model, method.name, (native,), inputs=(x,), outputs=sample.outputs.clone)
                if question.compares:
                    released = sample.explained(partial(method.__call__, forward, question.keyed("target")))
                    sample = sample.with_maps(native, released)
        return sample, (*watch.findings(model), *(f for f in collected.findings(model) if f.kind == "incomplete"))

    def signals(
        self, name: str, hardening: HardeningLike, native: Explanations | None = None
    ) -> tuple[Signals, Explanations | None]:
        """The answers of every model, to patient queries for the judged release. References have another key, and no
        noise for patient queries. Native maps are hardened again if possible."""
        question, models, policy, options = self.question, self.models, self.question.policy, self.question.options
        endpoint, m = question.endpoint, len(models.queried.models)
        compared = hardening.is_none and question.compares  # shown for comparison, and not judged
        levels = levels_of((1,) if compared else policy.patience)
        meta = self._meta(name, hardening)
        predictions, explanations = self.predictions, None
        if options.labels == "own":
            meta[META] = self._accuracy
        if endpoint is not None:
            hidden = () if endpoint.payload.releases_probabilities else ("loss", "margin", "prediction", "predictions")
            visible = {
                level: {name: a for name, a in found.items() if name not in hidden}
                for level, found in predictions.by_level.items()
            }
            predictions = replace(predictions, by_level=visible)
        if not levels:
            predictions = replace(predictions, by_level={1: predictions.by_level[1]})
        if question.explains:
            keyed = [hardening] if hardening.is_none else [question.keyed(whose) for whose in ("target", "references")]
            released, attackers = (question.released_by(h, self.softmax) for h in (keyed[0], keyed[-1]))
            noisy = endpoint is not None or hardening.noise is not None  # an endpoint may add noise
            quiet = [question.released_by(keyed[-1].without_noise(), self.softmax)] * m if noisy else None
            explanations = explanations_of(
                models.queried.models,
                models.population,
                predictions,
                [released, *[attackers] * (m - 1)],
                quiet=quiet,
                attacked={0, *models.null},
                levels=levels,
                classes=options.classes,
                own_class=endpoint is not None,  # it chooses the class
                batch_size=options.batch_size,
                keep_maps=self.keep,
                largest=0 if self.large else np.inf,
                natives=self._natives(native) if native and released.hardens_again(models.shadows.models[0]) else None,
                store=Store.of(None if endpoint else options.store),
                progress=as_stage(question.progress, f"explaining ({name})"),
            )
        classes = options.classes if question.explains else ()
        return models.signals(predictions, explanations, classes, **meta), explanations

    def _natives(self, native: Explanations) -> NDArray[np.float32] | None:
        """(m, n, d) maps that can be hardened again: in the shape of the input, for the predicted class alone."""
        maps, x = native.maps.get(1), self.models.population.x
        fits = isinstance(maps, np.ndarray) and maps.shape[2] == x[0].numel()
        return maps if fits and not self.question.options.classes else None

    def _meta(self, name: str, hardening: HardeningLike) -> dict[str, Any]:
        """The origin of signals, by which `holdout_uses` distinguishes configurations."""
        question, policy, options = self.question, self.question.policy, self.question.options
        meta: dict[str, Any] = {
            "explainer": question.method,
            "output": question.output,
            "options": repr([sorted({**m.arguments, **m.made_with}.items()) for m in question.methods]),
            "release": name,
            "seed": question.seed,
            "recipe": _as_text(question.recipe),
            "asked": repr((policy.patience, options.classes)),
            "references": len(self.models.shadows.models) - 1,
        }
        if isinstance(question.recipe, Recipe) and (options.privacy or question.recipe.dp):
            target = True if options.privacy else None  # None: unknown
            meta[PRIVACY] = {"target": target, "references": question.recipe.dp is not None}
        if not hardening.is_none:
            meta["hardening"] = hardening.to_json()
        (subject,) = _identity(question.target).values()
        return {**meta, "subject": subject}

    @cached_property
    def _accuracy(self) -> dict[str, Any]:
        membership, population = self.models.shadows.membership, self.models.population
        options = self.question.options
        return measured(
            self.predictions.label[: len(membership)],
            population.y.cpu().numpy(),
            membership,
            None if population.groups is None else np.asarray(population.groups),
            options.accuracy,
            _statistics(self.models.shadows.models[0], population, membership[0], options.batch_size),
        )


def _configuration(
    question: Question,
    name: str,
    signals: dict[str, Signals],
    population: Population,
    scorers: dict[int, Scorer],
    sampled: Sample | None,
    implied: Implied | None,
) -> Configuration:
    """One release with its result and utility; a compared one is not counted as a use."""
    policy, options, endpoint = question.policy, question.options, question.endpoint
    compared = name == NATIVE and question.compares
    result = certify(
        signals[name],
        replace(policy, patience=(1,), uncounted=True) if compared else policy,
        inputs=None if compared and options.quick else population.x.numpy(),
        scorers=scorers,
        counted=not (compared or options.quick),
        force=options.force,
        seed=question.seed,
        exposed=options.exposed,
        progress=as_stage(question.progress, "attacking" if endpoint else f"attacking ({name})"),
        quick=options.quick,
        implied=None if endpoint else implied,
    )
    plain = question.hardening.to_dict()
    if endpoint is not None:
        declared = f"{as_written(plain)} as declared, and in the reference models"
        return Configuration(name, declared, result, None, f"what {endpoint.url} answers")
    if name == NATIVE:
        explained, alone = "the native explanation, as it is", "no explanation, and predictions as they are"
        return Configuration(name, explained if question.explains else alone, result, None)
    native, released = signals[NATIVE].attributions, signals[name].attributions
    assert sampled is not None
    maps = None if native is None or released is None else (native, released)
    utility = utility_of(sampled, maps, getattr(question.hardening, "features", None))
    return Configuration(name, as_written(plain), result, utility, in_words(plain))


def _root_cause(question: Question, native: Signals | None) -> tuple[tuple[Ablation, ...], str]:
    """The properties of the native maps that carry the leak, and a sentence about them."""
    if native is None or not question.explains or len(native.models) < MIN_FOR_NULL:
        return (), ""
    policy, seed = question.policy, question.seed
    rows, which = sample(native, policy, trains=any(r.learns for r in fitting(native)), seed=seed)
    causes = root_cause(
        native, rows=rows, seed=seed, fpr=policy.fpr, progress=as_stage(question.progress, "root cause")
    )
    return causes, f"{cause_sentence(causes)} {which}" if causes else ""


def _stated(question: Question, title: str, softmax: bool) -> dict[str, Any]:
    """Fields of the certificate that the report lacks."""
    options, hardening, endpoint = question.options, question.hardening, question.endpoint
    recipe, made_in = _as_text(question.recipe), environment(question.target, question.seed)
    materials = {**options.materials, **({"recipe sha256": sha256(recipe)} if recipe else {})}
    if endpoint is not None:
        materials["payload sha256"] = endpoint.payload.digest
        made_in["command"] = made_in["command"].replace(endpoint.given, endpoint.url)  # without credentials
    return {
        "subject": options.subject or {title: _identity(question.target)},
        "explainer": {
            "method": question.method,
            "output": question.output,
            "softmax": softmax,
            "options": _options_of(question.methods, question.arguments or {}),
            "shape": list(question.population.x.shape[1:]),
        },
        "hardening": hardening.to_dict(),
        "noise_stream": getattr(hardening.noise, "stream", None),
        "materials": materials,
        "environment": made_in,
        "search": options.search,
    }


def _identity(target: nn.Module) -> dict[str, str]:
    if isinstance(target, Endpoint):
        return {ANSWERS_DIGEST: target.digest}
    return {MODEL_DIGEST: model_digest(target).hex()}


def _options_of(methods: Sequence[Method], arguments: Any) -> dict[str, Any]:
    """The options in the certificate: arguments of `attribute`, and `made_with` of each explainer."""
    made = {method.name: {"made_with": method.made_with} for method in methods if method.made_with}
    first = methods[0].name
    if len(methods) == 1 and not isinstance(arguments.get(first), dict):
        return {**arguments, **made.get(first, {})}
    return {name: {**arguments.get(name, {}), **made.get(name, {})} for name in {**arguments, **made}}


def _as_text(recipe: Any) -> str:
    """The recipe in TOML, or the name or text of a function or an estimator."""
    if recipe is None or isinstance(recipe, Recipe):
        return "" if recipe is None else recipe.to_toml()
    return str(getattr(recipe, "__qualname__", None) or recipe)


def _check_privacy(options: AuditOptions, target: nn.Module) -> None:
    """Raise InputError unless statement and canaries are about this training, and do not conflict."""
    stated, found = options.privacy, options.canaries
    if stated is not None:
        try:
            stated.check_model(target)
        except RefusedError as error:
            raise InputError(str(error)) from None
    if stated is None or found is None:
        return
    if found.claim.mechanism not in stated.phases:
        raise InputError(
            f"expected canaries of the training in the privacy statement ({', '.join(map(str, stated.phases))}), got"
            f" {found.claim.mechanism}; audit the stated training"
        )
    if found.verdict == "refuted":
        raise InputError(f"the canaries refute the privacy statement, so it cannot be certified: {found}")


def _implied(question: Question, population: Population) -> tuple[Implied | None, list[str]]:
    """What the stated guarantee implies, or a note why it implies nothing."""
    policy, options = question.policy, question.options
    if (stated := options.privacy) is None:
        return None, []
    why = ""
    if options.subject_data == "pre-training":
        why = "it is about the fine-tuning data, but the audit about the pre-training data"
    elif (population.groups is not None) != (stated.unit == "person"):
        why = f"it is about {stated.unit}s, but the examples form {'no ' if stated.unit == 'person' else ''}groups"
    found = None if why else Implied.of(stated, policy.fpr)
    if found is None:
        why = why or "its epsilon is infinite"
        return None, [f"The privacy statement implies nothing for the scored examples: {why}."]
    return found, []


def _group_notes(population: Population, member: NDArray[np.bool_]) -> list[str]:
    if population.groups is None:
        return []
    _, group = np.unique(population.groups, return_inverse=True)
    sides = [np.bincount(group, weights=side) > 0 for side in (member, ~member)]
    split = int((sides[0] & sides[1]).sum())
    if not split:
        return []
    return [
        f"{split} of {len(sides[0])} groups have members and non-members of the model: these non-members resemble"
        " members more than unrelated examples do, so that attacks find less."
    ]


def _fit_notes(
    target: nn.Module, population: Population, member: NDArray[np.bool_], options: AuditOptions
) -> list[str]:
    """Notes about accuracy, and about wrong data."""
    if options.labels == "foreign":
        return [
            f"{int(member.sum()):,} of {len(member):,} examples of the pre-training data are members. Their labels"
            f" ({len(torch.unique(population.y)):,} classes) belong to another task than the model's, so there is no"
            " accuracy and no loss."
        ]
    device, batches = device_of(target), torch.split(population.x, options.batch_size)
    with torch.no_grad():
        predicted = torch.cat([target(part.to(device)).argmax(1).cpu() for part in batches])
    hit = (predicted == population.y).numpy()
    inside, outside = float(hit[member].mean()), float(hit[~member].mean())
    notes = [f"Accuracy of the model: {inside:.1%} on members, {outside:.1%} on non-members."]
    if hardly_better_than_guessing(inside, len(torch.unique(population.y))):
        notes.append("It is hardly better than guessing on its members: check the labels and the scaling of x.")
    groups = None if population.groups is None else np.asarray(population.groups)
    wrong = [below_stated(Hits.of(hit, member, groups), options.accuracy)]
    statistics = _statistics(target, population, member, options.batch_size)
    if statistics is not None and (statistics.divergence > UNUSUAL or statistics.impossible):
        wrong.append(str(statistics))
    if reasons := "; ".join(filter(None, wrong)):
        warning = f"{reasons[:1].upper()}{reasons[1:]}: {ADVICE}."
        warnings.warn(warning, DataWarning, stacklevel=4)
        notes.append(warning)
    return notes


def _statistics(
    target: nn.Module, population: Population, member: NDArray[np.bool_], batch_size: int
) -> Statistics | None:
    some = np.flatnonzero(member)[:LOOKED_AT_MEMBERS]
    return Statistics.of(target, population.x[torch.from_numpy(some)], batch_size)


def hardly_better_than_guessing(accuracy: float, classes: int) -> bool:
    """Whether an accuracy in [0, 1] is so low that labels or scaling seem wrong.

    >>> hardly_better_than_guessing(0.7, 2), hardly_better_than_guessing(0.54, 2), hardly_better_than_guessing(0.12, 10)
    (False, True, True)
    """
    return accuracy < 1 / classes + min(0.5 / classes, 0.05)
