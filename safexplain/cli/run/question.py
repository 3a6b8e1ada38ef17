"""From the options of `audit` and `tune` to a `Question`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import nn

from safexplain._digest import file_sha256, model_digest
from safexplain._progress import ProgressDisplay, show_progress
from safexplain.audit import Population, Recipe
from safexplain.audit.controls.splits import copies_of
from safexplain.audit.endpoint.payload import Payload
from safexplain.audit.endpoint.target import Endpoint, EndpointError
from safexplain.audit.queries import with_channels_last
from safexplain.audit.question import HOUR, LOOKS, AuditOptions, Output, Question
from safexplain.audit.references.fine_tuning import FineTune
from safexplain.audit.references.recipe import check_examples
from safexplain.audit.references.shadows import Build
from safexplain.audit.signals import hash_examples
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import Options, policy_of
from safexplain.cli.run.recipes import (
    COLUMNS,
    STARTED_ELSEWHERE,
    WEAKER,
    RecipeFile,
    Stages,
    Tabular,
    TrainingFunction,
    TwoStages,
    dp_builder,
    dp_notes,
    is_classifier_file,
    no_recipe,
)
from safexplain.columns import Columns
from safexplain.errors import ConfigurationError, InputError, did_you_mean
from safexplain.explain import find_row
from safexplain.explain.hardened import HARDENED
from safexplain.explain.served import TABLE_METHODS, default_hardening
from safexplain.hardening.clips import TopKSet
from safexplain.hardening.features import Features
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data import AuditData, check_data, check_model_fits, load_data, load_inputs
from safexplain.loading.huggingface import normalise_as_trained
from safexplain.loading.models import LoadedModel, fresh_network, load_model
from safexplain.verdict.canaries.result import load_finding
from safexplain.verdict.certificate.write import MODEL_DIGEST
from safexplain.verdict.privacy_statement import PrivacyStatement

ANSWERS = "answers.sqlite"  # of an endpoint, in the run directory
HIDDEN = 256  # units of the reference models of a service whose architecture is unknown

PERCEPTRONS = (
    f"No --arch: the reference models are perceptrons with {HIDDEN} hidden units. If the model behind the endpoint is"
    f" built differently, {WEAKER}"
)


@dataclass(frozen=True)
class Service:
    """A running service that is audited in place of a model file."""

    url: str
    payload: Payload  # the form of its requests and answers

    def stand_in(self, read: AuditData, arch: str | None) -> LoadedModel:
        """An untrained network like its model, by default a perceptron."""
        classes = len(self.payload.answer.classes) or max(int(read.y.max()) + 1, len(read.class_names or ()), 2)
        if arch is not None:
            fresh = fresh_network(arch, classes, int(read.x.shape[1]) if read.x.ndim == 4 else None)
        else:
            fresh = partial(_perceptron, read.x[0].size, classes)
        return LoadedModel(fresh(0).float().eval(), fresh, "", "")

    def as_endpoint(self, classes: int, folder: Path) -> Endpoint:
        """The endpoint, which stores its answers in the run directory, once that exists."""
        store = folder / ANSWERS if folder.is_dir() else None
        return Endpoint(self.url, self.payload, classes=classes, store=store)


def _perceptron(features: int, classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        hidden, out = nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, classes)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), out)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `audit` or `tune`."""

    given: Options
    hardening: Hardening | None  # to judge; None: the recommended one
    pool: Path | None = None  # data of the pre-training, audited in place of --data
    service: Service | None = None  # audited in place of a model file
    scored: int | None = None  # examples; None: as many as the policy needs
    public: Path | None = None  # rows that explainers are made from
    grows: bool = False  # whether it may look again, with more reference models

    def __post_init__(self) -> None:
        model = self.given.model
        if self.service is None and model is None:
            raise ConfigurationError("expected a MODEL file (or, for audit, --endpoint URL), got neither")
        if self.service is not None and model is not None:
            raise ConfigurationError(f"expected a model file or --endpoint, got both (the file is {model})")
        if self.pool is not None and (self.service is not None or self.of_tables):
            raise ConfigurationError("--pretraining-pool only works with a network that was trained in stages")

    @property
    def of_tables(self) -> bool:
        """Whether the model is a classifier of tables."""
        return self.service is None and is_classifier_file(self.given.model)

    @property
    def looks(self) -> tuple[int, ...]:
        """Number of reference models at each look."""
        text = self.given.references
        try:
            return tuple(int(number) for number in text.split(",")) if text else LOOKS
        except ValueError:
            raise ConfigurationError(
                f"--references: expected a number such as 16, or several that grow, such as 8,16,32; got {text!r}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Contents of the files."""

    file: RecipeFile
    statement: PrivacyStatement | None
    data: AuditData
    loaded: LoadedModel  # for a service, a network like its model
    outputs: int  # of the model
    recipe: Any
    build: Build | None = None  # makes an untrained network
    no_build_reason: str = ""  # why `build` is None
    stages: Stages | None = None
    tabular: Tabular | None = None
    notes: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether reference models can be trained."""
        return self.build is not None or self.tabular is not None or isinstance(self.recipe, TrainingFunction)


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run that can start: all is read, nothing is written yet."""

    request: Request
    inputs: Inputs
    folder: Path  # the run directory
    question: Question  # for the plan; `ready` returns the one for the audit and the search
    warnings: Sequence[str]  # shown before anything is trained
    two_stages: TwoStages | None  # for an audit of pre-training data
    progress: ProgressDisplay
    endpoints: ExitStack  # closes endpoints

    @property
    def then(self) -> FineTune | None:
        """How reference models are fine-tuned after their training."""
        return self.two_stages.fine_tuning if self.two_stages is not None and self.two_stages.trains else None

    def ready(self, **changes: Any) -> Question:
        """The changed question; creates the run directory, and trains references of two stages."""
        make_folder(self.folder)
        tabular, service = self.inputs.tabular, self.request.service
        if tabular is not None and tabular.read.columns is not None:
            tabular.read.columns.save(self.folder / COLUMNS)
        question = replace(self.question, **changes)
        if service is not None:
            self.endpoints.close()
            target = self.endpoints.enter_context(closing(service.as_endpoint(self.inputs.outputs, self.folder)))
            question = replace(question, model=target)
            if not self.request.given.quiet:
                number = target.plan(len(question.scored_rows), question.policy.patience)
                typer.echo(f"{target.url} will be asked {number}.", err=True)
        if self.two_stages is None or not question.references:
            return question
        return self.two_stages.with_references(question)


@contextmanager
def prepared_run(request: Request, kept: str = "finished models") -> Iterator[PreparedRun]:
    """A run of the request; `kept` names what an interruption leaves."""
    given = request.given
    folder = choose_folder(given.run_dir, given.resume)
    once = nullcontext() if given.plan else resumable(folder, kept)
    with once, show_progress(given.quiet) as progress, ExitStack() as endpoints:
        file = RecipeFile.read(given.recipe)
        statement = None if given.privacy is None else PrivacyStatement.load(given.privacy)
        inputs = (_read_tabular if request.of_tables else _read_network)(request, file, statement)
        try:
            yield _prepare(request, inputs, folder, progress, endpoints)
        except EndpointError as error:
            again = f"to continue, repeat the command with --run-dir {folder} --resume"
            raise InputError(f"{error}. Its answers so far are kept: {again}") from None


def _read_tabular(request: Request, file: RecipeFile, statement: PrivacyStatement | None) -> Inputs:
    given, tabular = request.given, Tabular.of(request.given, request.public)
    recipe = tabular.training(file)
    notes = tabular.notes(recipe if request.looks[0] else None)
    if given.explainer is None:
        notes += (tabular.default[1],)
        if not (given.quiet or given.json_):
            typer.echo(tabular.default[1], err=True)
    return Inputs(
        file=file, statement=statement, data=tabular.read.data, loaded=tabular.loaded, outputs=tabular.outputs,
        recipe=recipe, tabular=tabular, notes=notes,
    )  # fmt: skip


def _read_network(request: Request, file: RecipeFile, statement: PrivacyStatement | None) -> Inputs:
    data, loaded, outputs, notes = _data_and_model(request)
    recipe, stages, caveats = file.training(request.pool, request.given.seed, statement if request.looks[0] else None)
    build, no_build_reason = loaded.fresh, loaded.fresh_unavailable
    if isinstance(recipe, Recipe) and recipe.dp is not None and request.pool is None:
        build, no_build_reason = dp_builder(loaded, recipe.dp)
    notes += caveats if build is not None else ()
    return Inputs(
        file=file, statement=statement, data=data, loaded=loaded, outputs=outputs, recipe=recipe, build=build,
        no_build_reason=no_build_reason, stages=stages, notes=notes,
    )  # fmt: skip


def _data_and_model(request: Request, drop_slices: bool = False) -> tuple[AuditData, LoadedModel, int, tuple[str, ...]]:
    """Preprocessed data, model, number of its outputs, and notes. The columns of --slice-by count as features, unless
    the model only fits without them."""
    given = request.given
    group, slices = (given.group_column, given.slice_by or []) if request.pool is None else (None, [])
    try:
        data = load_data(given.data, group=group, slices=slices, drop_slices=drop_slices)
        if request.service is not None:
            loaded = request.service.stand_in(data, given.arch)
        else:
            assert given.model is not None
            shape = tuple(data.x.shape[1:])
            loaded = load_model(given.model, arch=given.arch, trust_pickle=given.trust_pickle, input_shape=shape)
        data, notes = normalise_as_trained(data, loaded.preprocessing)
        return data, loaded, check_model_fits(loaded.model, data), notes
    except InputError:
        if slices and not drop_slices:
            with suppress(InputError):
                return _data_and_model(request, drop_slices=True)
        raise


def _prepare(
    request: Request, inputs: Inputs, folder: Path, progress: ProgressDisplay, endpoints: ExitStack
) -> PreparedRun:
    given, loaded, stages = request.given, inputs.loaded, inputs.stages
    place, references = device_of(given.device), request.looks[0] if inputs.trains else 0
    data, dropped = _audited_data(request, inputs)
    about, warnings = _reference_notes(request, inputs, references)
    materials = {f"data {inputs.data.source} sha256": inputs.data.sha256}
    if request.public is not None:
        materials[f"public rows {request.public} sha256"] = file_sha256(request.public)
    two_stages, recipe, build = None, inputs.recipe, inputs.build
    if stages is not None and request.pool is not None:
        two_stages = TwoStages(stages, inputs.data, data, loaded, recipe, inputs.outputs, references > 0, given.seed)
        checked, materials = two_stages.notes(), {**materials, **two_stages.materials()}
        recipe, build = (two_stages.pretraining, two_stages.fresh) if two_stages.trains else (None, build)
    else:
        checked = check_data(data, num_classes=inputs.outputs)
    population = Population.of(data.x, data.y, data.groups)
    target, name = loaded.model.to(place), "" if given.model is None else given.model.name
    subject = {name: {"sha256": loaded.sha256, MODEL_DIGEST: model_digest(target).hex()}} if name else {}
    if request.service is not None:
        target = endpoints.enter_context(closing(request.service.as_endpoint(inputs.outputs, folder)))
    elif two_stages is None:
        target = with_channels_last(target, population.x)
    tabular, names = inputs.tabular, given.explainer or ("IG" if inputs.tabular is None else inputs.tabular.default[0])
    rows = None if request.public is None else load_inputs(request.public)
    rows, columns = (rows, None) if tabular is None else (tabular.read.public, tabular.read.columns)
    calls, form = _split_form_options(given.options or [])
    explainers, arguments = explainers_of(names, calls, rows, inputs.data.feature_names, columns)
    if tabular is not None:
        tabular.check(explainers)
    options = AuditOptions(
        slices=data.slices, accuracy=inputs.file.accuracy, title=name, subject=subject, materials=materials,
        notes=(*inputs.notes, *dropped, *checked, *about), privacy=inputs.statement,
        canaries=None if given.canaries is None else load_finding(given.canaries),
        subject_data="training" if stages is None else stages.subject,
        scored=request.scored, seconds=math.inf if given.references else HOUR,
    )  # fmt: skip
    question = Question(
        target, population, recipe, member=data.member,
        explainer=explainers[0] if len(explainers) == 1 else explainers,
        hardening=_with_form_columns(request.hardening, inputs.data.feature_names, explainers, loaded.model, form),
        output=cast("Output", given.output), arguments=arguments, build=build,
        references=request.looks if references and request.grows and two_stages is None else references,
        policy=policy_of(given.policy, given.policy_fpr, given.max_tpr, given.attacks), options=options,
        seed=given.seed, cache=folder / "models", device=place, progress=progress,
    )  # fmt: skip
    return PreparedRun(
        request=request, inputs=inputs, folder=folder, question=question, warnings=warnings,
        two_stages=two_stages, progress=progress, endpoints=endpoints,
    )  # fmt: skip


def _audited_data(request: Request, inputs: Inputs) -> tuple[AuditData, tuple[str, ...]]:
    given, data = request.given, inputs.data
    if request.pool is not None:
        pool = load_data(request.pool, group=given.group_column, slices=given.slice_by or [])
        data, _ = normalise_as_trained(pool, inputs.loaded.preprocessing)
    which = copies_of(hash_examples(data.x), data.x)
    mixed = ((np.bincount(which, data.member) > 0) & (np.bincount(which, ~data.member) > 0))[which]
    if not given.drop_copies or not mixed.any():
        return data, ()
    inside, outside = int((mixed & data.member).sum()), int((mixed & ~data.member).sum())
    note = f"{inside} members and {outside} non-members that are exact copies of each other were left out."
    return data.rows(~mixed), (note,)


def _reference_notes(request: Request, inputs: Inputs, references: int) -> tuple[list[str], list[str]]:
    """Caveats about reference models, and warnings before training."""
    file, recipe, member, staged = inputs.file, inputs.recipe, inputs.data.member, inputs.stages is not None
    dp, members = recipe.dp if isinstance(recipe, Recipe) else None, int(member.sum())
    if not inputs.trains:
        note = f"Reference models cannot be trained: {inputs.no_build_reason}."
        return [note], [note]
    if not references:
        return [], []
    notes, warnings = [], []
    like_target = dp is not None or request.pool is not None  # these train on as many rows as the target
    check_examples(file.examples, members if like_target else len(member) // 2)
    if staged and request.pool is None:
        notes.append(STARTED_ELSEWHERE)
    if dp is not None and inputs.statement is not None:
        notes += dp_notes(dp, inputs.statement, members)
    if isinstance(recipe, Recipe) and file.path is None:
        notes.append(no_recipe(recipe, "--recipe", "trained" if request.pool is None else "fine-tuned"))
    if file.examples is None and not like_target:
        warnings.append(
            f"References train on {len(member) // 2:,} rows, half of --data; the model was trained on {members:,} of"
            " them. If it was trained on more, include them all."
        )
    if request.service is not None and request.given.arch is None:
        notes.append(PERCEPTRONS)
    return notes, warnings


def explainers_of(
    names: str,
    options: Sequence[str],
    public: NDArray[np.float32] | None = None,
    features: Sequence[str] | None = None,
    columns: Columns | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """The hardened classes that --explainer names, and their calls' options; those of rows are made with public rows
    (n, d) and their constructor's options."""
    listed = [name.strip() for name in names.split(",") if name.strip()] or [""]
    values: dict[str, dict[str, Any]] = {name: {} for name in listed}
    for text in options:
        key, equals, value = text.partition("=")
        owner, _, name = key.rpartition(".") if len(listed) > 1 else (listed[0], "", key)
        if not equals or not name.isidentifier() or owner not in values:
            raise ConfigurationError(
                "--option: expected NAME=VALUE, such as n_steps=25, and with several explainers METHOD.NAME=VALUE, such"
                f" as IG.n_steps=25; got {text!r}"
            )
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[owner][name] = tuple(parsed) if isinstance(parsed, list) else parsed
    known: dict[str, Any] = {} if features is None else {"feature_names": list(features)}
    if columns is not None and (categories := columns.categorical_names):
        known["categorical_features"] = sorted(categories)
        known["categorical_names"] = {str(place): names for place, names in categories.items()}
    makers, calls, of_rows = list[Any](), dict[str, dict[str, Any]](), False
    for name in listed:
        try:
            row, own = find_row(name), values[name]
        except ConfigurationError as error:
            raise ConfigurationError(f"--explainer: {error}") from None
        calls[row.name] = own
        if row.entry == "attribute":
            makers.append(HARDENED[row.name])
            continue
        kind, of_rows = TABLE_METHODS[row.name], True
        if public is None and kind._needs_background:
            raise ConfigurationError(
                f"{row.name} is made from public rows: give --public FILE, with rows that are no secret and were not"
                " trained on, in the form of --data without label and member"
            )
        made = {key: value for key, value in {**known, **own}.items() if key in kind._init_options}
        makers.append(kind.catalogued(public=public, **made))
        calls[row.name] = {key: value for key, value in own.items() if key not in kind._init_options}
    if public is not None and not of_rows:
        raise ConfigurationError(f"--public only works with {', '.join(TABLE_METHODS)}, made from public rows")
    (only, *others) = calls.values()
    return makers, {name: own for name, own in calls.items() if own} if others else only


def _split_form_options(options: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """`--option` of the explainers, and those of the form's columns: `prohibited` (names) and `groups`."""
    form: dict[str, Any] = {}
    for text in options:
        name, _, value = text.partition("=")
        if name in ("prohibited", "groups"):
            try:
                form[name] = json.loads(value)
            except ValueError:
                form[name] = value.split(",")
    return [text for text in options if text.partition("=")[0] not in form], form


def _with_form_columns(
    hardening: Hardening | None,
    names: Sequence[str] | None,
    explainers: Sequence[Any],
    model: Any,
    form: Mapping[str, Any],
) -> Hardening:
    """The hardening, with the columns of the form if the release names reasons of a table; one-hot columns, which
    `load_data` names `column=value`, are added up."""
    kinds = [getattr(explainer, "kind", explainer) for explainer in explainers]
    maps = all(kind._row.of == "input" and not getattr(kind, "_has_answers", False) for kind in kinds)
    hardening = hardening or default_hardening([kind._row for kind in kinds], model)
    named = names is not None and maps and isinstance(hardening.clip, TopKSet) and hardening.features is None
    if form and not named:
        raise ConfigurationError(
            f"--option {next(iter(form))} needs a table with column names and a release of reasons (--hardening"
            " recommended, or a TopKSet without features); leave it out"
        )
    one_hot: dict[str, list[str]] = {}
    for name in (names or ()) if named else ():
        if "=" in name:
            one_hot.setdefault(name.partition("=")[0], []).append(name)
    if not (form or one_hot):
        return hardening
    given = {"groups": one_hot, **form}
    if not isinstance(given["groups"], Mapping) or not isinstance(given.get("prohibited", []), list):
        raise ConfigurationError(
            '--option: expected prohibited=age,sex and groups={"home": ["home_owns", "home_rents"]}, as JSON'
        )
    return replace(hardening, features=Features(names or (), **given))


def parse_hardening(text: str) -> Hardening | None:
    """The hardening of a name, JSON or a JSON file; None for "recommended"."""
    named = {"recommended": lambda: None, "none": Hardening.none, "deepleak": Hardening.deepleak}
    if text.strip() in named:
        return named[text.strip()]()
    if text.strip().startswith("{"):
        return Hardening.from_json(text)
    try:
        return Hardening.from_json(Path(text).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"--hardening: expected JSON in {text}, which is not a text file") from None
    except OSError:
        got = f"{text!r}{did_you_mean(text, named)}"
        raise ConfigurationError(f"--hardening: expected {', '.join(named)}, JSON, or its file; got {got}") from None
