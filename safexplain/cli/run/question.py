"""From the options of `audit` and `tune` to a `Question`: what was asked, what the files hold, what is audited."""

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
from safexplain.audit.endpoint.client import EndpointError
from safexplain.audit.endpoint.payload import Payload
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.queries import with_channels_last
from safexplain.audit.question import HOUR, LOOKS, AuditOptions, Output, Question
from safexplain.audit.references.fine_tuning import FineTune
from safexplain.audit.references.recipe import check_examples
from safexplain.audit.references.shadows import Build
from safexplain.audit.signals import hash_examples
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import Options, policy_of
from safexplain.cli.run.classifiers import COLUMNS, Tabular, is_classifier_file
from safexplain.cli.run.recipes import RecipeFile, TrainingFunction, dp_notes, untrained
from safexplain.cli.run.stages import STARTED_ELSEWHERE, Stages, TwoStages, no_recipe
from safexplain.columns import Columns
from safexplain.errors import ConfigurationError, InputError, did_you_mean
from safexplain.explain import find_row
from safexplain.explain.served import OF_ROWS, default_hardening
from safexplain.explain.wrap import HARDENED
from safexplain.hardening.features import Features
from safexplain.hardening.formats import TopKSet
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data.checks import AuditData, check_data, check_model_fits
from safexplain.loading.data.load import load_data, load_inputs
from safexplain.loading.models.architectures import fresh_network
from safexplain.loading.models.huggingface import as_the_model_takes
from safexplain.loading.models.load import LoadedModel, load_model
from safexplain.verdict.canaries.result import load_finding
from safexplain.verdict.certificate.write import MODEL_DIGEST
from safexplain.verdict.privacy_statement import PrivacyStatement

ANSWERS = "answers.sqlite"
"""File of the run directory with what an endpoint answered."""

HIDDEN = 256
"""Units of the reference models of a service of which nobody says how its model is built."""

PERCEPTRONS = (
    f"No --arch: the reference models are perceptrons with {HIDDEN} hidden units. If the model behind the endpoint is"
    " another, a real attacker may do better than this audit: a leak found is a leak, a certificate says less."
)


@dataclass(frozen=True)
class Service:
    """A service that runs already, in the place of the model."""

    url: str
    payload: Payload  # how questions are written for it

    def like(self, read: AuditData, arch: str | None) -> LoadedModel:
        """An untrained network like the model behind it, and how one is built; where nobody says, a perceptron."""
        classes = len(self.payload.answer.classes) or max(int(read.y.max()) + 1, len(read.class_names or ()), 2)
        if arch is not None:
            fresh = fresh_network(arch, classes, int(read.x.shape[1]) if read.x.ndim == 4 else None)
        else:
            fresh = partial(_perceptron, read.x[0].size, classes)
        return LoadedModel(fresh(0).float().eval(), fresh, "", "")

    def opened(self, classes: int, folder: Path) -> Endpoint:
        """What stands for the model; its answers are kept in the run directory, once there is one."""
        store = folder / ANSWERS if folder.is_dir() else None
        return Endpoint(self.url, self.payload, classes=classes, store=store)


def _perceptron(features: int, classes: int, seed: int) -> nn.Module:
    """With one hidden layer, for want of an architecture."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        hidden, out = nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, classes)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), out)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `audit` or `tune` was asked: the options that both have, and those that one of them has."""

    given: Options
    hardening: Hardening | None  # that is judged; None: the recommended one
    pool: Path | None = None  # data of the pre-training, which is asked about in place of --data
    service: Service | None = None  # that is asked in place of a model
    scored: int | None = None  # examples; None: as many as the policy needs
    public: Path | None = None  # rows of which explainers are made
    grows: bool = False  # it may look again, with more reference models

    def __post_init__(self) -> None:
        model = self.given.model
        if self.service is None and model is None:
            raise ConfigurationError("expected a MODEL file (or, for audit, --endpoint URL), got none")
        if self.service is not None and model is not None:
            raise ConfigurationError(
                f"expected a model file or --endpoint, got both ({model} and --endpoint); leave one out"
            )
        if self.pool is not None and (self.service is not None or self.of_tables):
            raise ConfigurationError(
                "--pretraining-pool is for model files of networks, trained in stages: leave it out"
            )

    @property
    def of_tables(self) -> bool:
        """Whether the model is a classifier of tables."""
        return self.service is None and is_classifier_file(self.given.model)

    @property
    def looks(self) -> tuple[int, ...]:
        """How many reference models at each look: "16", or "8,16,32"; "": as `LOOKS`."""
        text = self.given.references
        try:
            return tuple(int(number) for number in text.split(",")) if text else LOOKS
        except ValueError:
            raise ConfigurationError(
                f"--references: expected a number, as 16, or several that grow, as 8,16,32; got {text!r}"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the files hold: the data as the model takes them, the model, and how reference models are trained."""

    file: RecipeFile
    statement: PrivacyStatement | None
    data: AuditData
    loaded: LoadedModel  # of a service: a network like its model
    outputs: int  # of the model
    recipe: Any
    build: Build | None = None  # makes an untrained network
    why_not: str = ""  # there is none
    stages: Stages | None = None
    tabular: Tabular | None = None
    notes: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether reference models can be trained."""
        return self.build is not None or self.tabular is not None or isinstance(self.recipe, TrainingFunction)


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run that may begin: all is read and checked, nothing is made or trained."""

    asked: Asked
    found: Found
    folder: Path  # the run directory
    question: Question  # for the plan; `ready` has that for the audit and the search
    says: Sequence[str]  # what has to be known before anything is trained
    two: TwoStages | None  # an audit of pre-training data
    progress: ProgressDisplay
    endpoints: ExitStack  # closes them

    @property
    def then(self) -> FineTune | None:
        """How reference models are fine-tuned after their training."""
        return self.two.how if self.two is not None and self.two.trains else None

    def ready(self, **changes: Any) -> Question:
        """The question, some of it changed: the directory is made, and models of two stages are trained."""
        make_folder(self.folder)
        tabular, service = self.found.tabular, self.asked.service
        if tabular is not None and tabular.read.columns is not None:
            tabular.read.columns.save(self.folder / COLUMNS)
        question = replace(self.question, **changes)
        if service is not None:
            self.endpoints.close()
            target = self.endpoints.enter_context(closing(service.opened(self.found.outputs, self.folder)))
            question = replace(question, model=target)
            if not self.asked.given.quiet:
                will = target.plan(len(question.scored_rows), question.policy.patience)
                typer.echo(f"{target.url} will be asked {will}.", err=True)
        return question if self.two is None or not question.references else self.two.trained(question)


@contextmanager
def begun(asked: Asked, kept: str = "finished models") -> Iterator[Begun]:
    """The run of what was asked, once all of it is read and checked; `kept` is what an interruption leaves in its
    directory, in words."""
    given = asked.given
    folder = choose_folder(given.run_dir, given.resume)
    once = nullcontext() if given.plan else resumable(folder, kept)
    with once, show_progress(given.quiet) as progress, ExitStack() as endpoints:
        file = RecipeFile.read(given.recipe)
        statement = None if given.privacy is None else PrivacyStatement.load(given.privacy)
        found = (_read_tabular if asked.of_tables else _read_network)(asked, file, statement)
        try:
            yield _begun(asked, found, folder, progress, endpoints)
        except EndpointError as error:
            how = f"repeat the command with --run-dir {folder} --resume to continue"
            raise InputError(f"{error}. What it answered is kept: {how}") from None


def _read_tabular(asked: Asked, file: RecipeFile, statement: PrivacyStatement | None) -> Found:
    """Of a classifier of tables."""
    given, tabular = asked.given, Tabular.of(asked.given, asked.public)
    recipe = tabular.training(file)
    notes = tabular.notes(recipe if asked.looks[0] else None)
    if given.explainer is None:
        notes += (tabular.default[1],)
        if not (given.quiet or given.json_):
            typer.echo(tabular.default[1], err=True)
    return Found(
        file=file, statement=statement, data=tabular.read.data, loaded=tabular.loaded, outputs=tabular.outputs,
        recipe=recipe, tabular=tabular, notes=notes,
    )  # fmt: skip


def _read_network(asked: Asked, file: RecipeFile, statement: PrivacyStatement | None) -> Found:
    """Of a network, or of a service."""
    data, loaded, outputs, notes = _data_and_model(asked)
    recipe, stages, caveats = file.training(asked.pool, asked.given.seed, statement if asked.looks[0] else None)
    build, why_not = loaded.fresh, loaded.fresh_unavailable
    if isinstance(recipe, Recipe) and recipe.dp is not None and asked.pool is None:
        build, why_not = untrained(loaded, recipe.dp)
    notes += caveats if build is not None else ()
    return Found(
        file=file, statement=statement, data=data, loaded=loaded, outputs=outputs, recipe=recipe, build=build,
        why_not=why_not, stages=stages, notes=notes,
    )  # fmt: skip


def _data_and_model(asked: Asked, drop_slices: bool = False) -> tuple[AuditData, LoadedModel, int, tuple[str, ...]]:
    """The data as the model takes them, the model, the number of its outputs, and what was done to the data.

    Columns by which the report is sliced are features of a table, or are not, if the model only fits without them.
    """
    given = asked.given
    group, slices = (given.group_column, given.slice_by or []) if asked.pool is None else (None, [])
    try:
        data = load_data(given.data, group=group, slices=slices, drop_slices=drop_slices)
        if asked.service is not None:
            loaded = asked.service.like(data, given.arch)
        else:
            assert given.model is not None
            shape = tuple(data.x.shape[1:])
            loaded = load_model(given.model, arch=given.arch, trust_pickle=given.trust_pickle, input_shape=shape)
        data, notes = as_the_model_takes(data, loaded.preprocessing)
        return data, loaded, check_model_fits(loaded.model, data), notes
    except InputError:
        if slices and not drop_slices:
            with suppress(InputError):
                return _data_and_model(asked, drop_slices=True)
        raise


def _begun(asked: Asked, found: Found, folder: Path, progress: ProgressDisplay, endpoints: ExitStack) -> Begun:
    """The question about what was found."""
    given, loaded, stages = asked.given, found.loaded, found.stages
    place, references = device_of(given.device), asked.looks[0] if found.trains else 0
    data, dropped = _asked_about(asked, found)
    about, says = _about_references(asked, found, references)
    materials = {f"data {found.data.source} sha256": found.data.sha256}
    if asked.public is not None:
        materials[f"public rows {asked.public} sha256"] = file_sha256(asked.public)
    two, recipe, build = None, found.recipe, found.build
    if stages is not None and asked.pool is not None:
        two = TwoStages(stages, found.data, data, loaded, recipe, found.outputs, references > 0, given.seed)
        checked, materials = two.notes(), {**materials, **two.materials()}
        recipe, build = (two.pretraining, two.fresh) if two.trains else (None, build)
    else:
        checked = check_data(data, num_classes=found.outputs)
    population = Population.of(data.x, data.y, data.groups)
    name, subject, target = "", dict[str, dict[str, str]](), loaded.model.to(place)
    if given.model is not None:
        name = given.model.name
        subject = {name: {"sha256": loaded.sha256, MODEL_DIGEST: model_digest(target).hex()}}
    if asked.service is not None:
        target = endpoints.enter_context(closing(asked.service.opened(found.outputs, folder)))
    elif two is None:
        target = with_channels_last(target, population.x)
    tabular, names = found.tabular, given.explainer or ("IG" if found.tabular is None else found.tabular.default[0])
    rows = None if asked.public is None else load_inputs(asked.public)
    rows, columns = (rows, None) if tabular is None else (tabular.read.public, tabular.read.columns)
    calls, form = _about_form(given.options or [])
    explainers, arguments = explainers_of(names, calls, rows, found.data.feature_names, columns)
    if tabular is not None:
        tabular.check(explainers)
    question = Question(
        target,
        population,
        recipe,
        member=data.member,
        explainer=explainers[0] if len(explainers) == 1 else explainers,
        hardening=_in_columns(asked.hardening, found.data.feature_names, explainers, loaded.model, form),
        output=cast("Output", given.output),
        arguments=arguments,
        build=build,
        references=asked.looks if references and asked.grows and two is None else references,
        policy=policy_of(given.policy, given.policy_fpr, given.max_tpr, given.attacks),
        options=AuditOptions(
            slices=data.slices,
            accuracy=found.file.accuracy,
            title=name,
            subject=subject,
            materials=materials,
            notes=(*found.notes, *dropped, *checked, *about),
            privacy=found.statement,
            canaries=None if given.canaries is None else load_finding(given.canaries),
            subject_data="training" if stages is None else stages.subject,
            scored=asked.scored,
            seconds=math.inf if given.references else HOUR,
        ),
        seed=given.seed,
        cache=folder / "models",
        device=place,
        progress=progress,
    )
    return Begun(
        asked=asked, found=found, folder=folder, question=question, says=says, two=two, progress=progress,
        endpoints=endpoints,
    )  # fmt: skip


def _asked_about(asked: Asked, found: Found) -> tuple[AuditData, tuple[str, ...]]:
    """The examples whose membership is attacked. With --drop-copies without members that are exact copies of
    non-members, and without these; a note says how many."""
    given, data = asked.given, found.data
    if asked.pool is not None:
        pool = load_data(asked.pool, group=given.group_column, slices=given.slice_by or [])
        data, _ = as_the_model_takes(pool, found.loaded.preprocessing)
    which = copies_of(hash_examples(data.x), data.x)
    mixed = ((np.bincount(which, data.member) > 0) & (np.bincount(which, ~data.member) > 0))[which]
    if not given.drop_copies or not mixed.any():
        return data, ()
    inside, outside = int((mixed & data.member).sum()), int((mixed & ~data.member).sum())
    said = f"{inside} members and {outside} non-members that are exact copies of each other were left out."
    return data.rows(~mixed), (said,)


def _about_references(asked: Asked, found: Found, references: int) -> tuple[list[str], list[str]]:
    """Caveats about reference models, and what of them has to be known before they are trained; InputError if they
    would train on fewer rows than the model did."""
    file, recipe, member, staged = found.file, found.recipe, found.data.member, found.stages is not None
    dp, members = recipe.dp if isinstance(recipe, Recipe) else None, int(member.sum())
    if not found.trains:
        said = f"Reference models cannot be trained: {found.why_not}."
        return [said], [said]
    if not references:
        return [], []
    notes, says = [], []
    like_target = dp is not None or asked.pool is not None  # which see as many rows as the target
    check_examples(file.examples, members if like_target else len(member) // 2)
    if staged and asked.pool is None:
        notes.append(STARTED_ELSEWHERE)
    if dp is not None and found.statement is not None:
        notes += dp_notes(dp, found.statement, members)
    if isinstance(recipe, Recipe) and file.path is None:
        notes.append(no_recipe(recipe, "--recipe", "trained" if asked.pool is None else "fine-tuned"))
    if file.examples is None and not like_target:
        says.append(
            f"References train on {len(member) // 2:,} rows, half of --data, of which the model was trained on"
            f" {members:,}; if it was trained on more, give all of them."
        )
    if asked.service is not None and asked.given.arch is None:
        notes.append(PERCEPTRONS)
    return notes, says


def explainers_of(
    names: str,
    options: Sequence[str],
    public: NDArray[np.float32] | None = None,
    features: Sequence[str] | None = None,
    columns: Columns | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Hardened classes from the command line's words, those of rows with what they are made with: public rows (n, d),
    names of features, categories, and the options that are the constructor's. And the options of calls."""
    listed = [name.strip() for name in names.split(",") if name.strip()] or [""]
    values: dict[str, dict[str, Any]] = {name: {} for name in listed}
    for text in options:
        key, equals, value = text.partition("=")
        owner, _, name = key.rpartition(".") if len(listed) > 1 else (listed[0], "", key)
        if not equals or not name.isidentifier() or owner not in values:
            raise ConfigurationError(
                "--option: expected NAME=VALUE, as n_steps=25, of several explainers METHOD.NAME=VALUE, as"
                f" IG.n_steps=25; got {text!r}"
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
        kind, of_rows = OF_ROWS[row.name], True
        if public is None and kind._needs:
            raise ConfigurationError(
                f"{row.name} is made from public rows: expected --public FILE, rows that anybody may know and that were"
                " not trained on, in the form of --data, without label and member"
            )
        made = {key: value for key, value in {**known, **own}.items() if key in kind._makes}
        makers.append(kind.catalogued(public=public, **made))
        calls[row.name] = {key: value for key, value in own.items() if key not in kind._makes}
    if public is not None and not of_rows:
        raise ConfigurationError(
            f"--public is for explainers made from public rows ({', '.join(OF_ROWS)}); leave it out"
        )
    (only, *others) = calls.values()
    return makers, {name: own for name, own in calls.items() if own} if others else only


def _about_form(options: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """`--option` without and with what is about the columns of the form: `prohibited` (names) and `groups`."""
    form: dict[str, Any] = {}
    for text in options:
        name, _, value = text.partition("=")
        if name in ("prohibited", "groups"):
            try:
                form[name] = json.loads(value)
            except ValueError:
                form[name] = value.split(",")
    return [text for text in options if text.partition("=")[0] not in form], form


def _in_columns(
    hardening: Hardening | None,
    names: Sequence[str] | None,
    explainers: Sequence[Any],
    model: Any,
    form: Mapping[str, Any],
) -> Hardening:
    """The hardening of a table whose release names reasons: in the columns of its form, of which some may be none.

    One-hot columns, which `load_data` names `column=value`, are added up for their column. None: see
    `default_hardening`.
    """
    kinds = [getattr(explainer, "kind", explainer) for explainer in explainers]
    maps = all(kind._row.of == "input" and not getattr(kind, "_tells", False) for kind in kinds)
    hardening = hardening or default_hardening([kind._row for kind in kinds], model)
    named = names is not None and maps and isinstance(hardening.clip, TopKSet) and hardening.features is None
    if form and not named:
        raise ConfigurationError(
            f"--option {next(iter(form))}: expected a table with names, and a release of reasons in its columns"
            " (--hardening recommended, or a TopKSet without features)"
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
    """From "none", "deepleak", JSON, or the path of a JSON file such as hardening.json of a search; None from
    "recommended", which depends on what is explained."""
    named = {"recommended": lambda: None, "none": Hardening.none, "deepleak": Hardening.deepleak}
    if text.strip() in named:
        return named[text.strip()]()
    if text.strip().startswith("{"):
        return Hardening.from_json(text)
    try:
        return Hardening.from_json(Path(text).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"--hardening: expected a hardening as JSON in {text}, which is no text") from None
    except OSError:
        raise ConfigurationError(
            f"--hardening: expected {', '.join(named)}, JSON, or a JSON file; got {text!r}{did_you_mean(text, named)}"
        ) from None
