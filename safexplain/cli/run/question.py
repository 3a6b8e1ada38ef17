"""What the common options of `audit` and `tune` become: a run directory and arguments of the library, all checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import typer
from torch import nn

from safexplain._digest import file_sha256, model_digest
from safexplain._progress import Shown, shown
from safexplain.audit import Population, Recipe
from safexplain.audit.endpoint.client import EndpointError
from safexplain.audit.endpoint.payload import Payload
from safexplain.audit.endpoint.target import Endpoint
from safexplain.audit.queries import with_channels_last
from safexplain.audit.question import HOUR, LOOKS, AuditOptions, Question
from safexplain.audit.references.fine_tuning import FineTune
from safexplain.audit.references.recipe import check_examples
from safexplain.audit.signals import hash_examples
from safexplain.cli.console import choose_folder, device_of, make_folder, resumable
from safexplain.cli.options import Options, policy_of
from safexplain.cli.run.classifiers import (
    COLUMNS,
    Tabular,
    check_methods,
    check_public,
    is_classifier_file,
    with_public,
)
from safexplain.cli.run.recipes import TrainingFunction, dp_notes, read_recipe, stated, untrained
from safexplain.cli.run.stages import TwoStages, no_recipe
from safexplain.errors import ConfigurationError, InputError, near
from safexplain.explain import find_row
from safexplain.explain.served import OF_ROWS
from safexplain.explain.wrap import HARDENED
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


@dataclass(frozen=True)
class Begun:
    """A run that may begin: all is read and checked, nothing is made or trained."""

    folder: Path  # the run directory
    question: Question  # for the plan; `ready` has that for the audit and the search
    features: tuple[str, ...]  # names of columns
    says: tuple[str, ...]  # what has to be known before anything is trained
    tabular: Tabular | None  # a classifier of tables
    two: TwoStages | None  # an audit of pre-training data
    progress: Shown

    @property
    def then(self) -> FineTune | None:
        """How reference models are fine-tuned after their training."""
        return self.two.how if self.two is not None and self.question.recipe is not None else None

    def ready(self, **changes: Any) -> Question:
        """The question, some of it changed: the directory is made, and models of two stages are trained.

        Raises:
            InputError: the directory cannot be written, or a training fails.
        """
        make_folder(self.folder)
        if self.tabular is not None and self.tabular.read.columns is not None:
            self.tabular.read.columns.save(self.folder / COLUMNS)
        found = replace(self.question, **changes)
        if self.then is None or self.two is None:
            return found
        assert isinstance(found.references, int)
        of_stages = replace(self.two, references=found.references)
        shadows = of_stages.train(found.population, found.place, self.folder / "models", found.progress)
        return replace(found, shadows=shadows, recipe=self.two.tuning, build=self.two.loaded.fresh)


@dataclass(frozen=True)
class Service:
    """A service that runs already, in the place of the model.

    Args:
        url: of the endpoint.
        payload: how questions are written for it.
    """

    url: str
    payload: Payload

    def classes(self, read: AuditData) -> int:
        """Classes of the model behind it: those that the payload lists, or those of the data."""
        return len(self.payload.answer.classes) or max(int(read.y.max()) + 1, len(read.class_names or ()), 2)

    def like(self, read: AuditData, arch: str | None) -> LoadedModel:
        """An untrained network like the model behind it, and how one is built; where nobody says, a perceptron."""
        if arch is not None:
            fresh = fresh_network(arch, self.classes(read), int(read.x.shape[1]) if read.x.ndim == 4 else None)
        else:
            fresh = partial(_perceptron, read.x[0].size, self.classes(read))
        return LoadedModel(fresh(0).float().eval(), fresh, "", "")

    def opened(self, classes: int, folder: Path | None) -> Endpoint:
        """What stands for the model, its answers kept in the run directory, or in memory."""
        store = None if folder is None else folder / ANSWERS
        return Endpoint(self.url, self.payload, classes=classes, store=store)


def _perceptron(features: int, classes: int, seed: int) -> nn.Module:
    """With one hidden layer, for want of an architecture."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        hidden, out = nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, classes)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), out)


@contextmanager
def begun(
    given: Options,
    hardening: Hardening,
    kept: str = "finished models",
    pool: Path | None = None,
    service: Service | None = None,
    scored: int | None = None,
    public: Path | None = None,
    grows: bool = False,
) -> Iterator[Begun]:
    """The run directory and the question of `audit` and `tune`, once all of it is read and checked.

    Args:
        given: the options that both have.
        hardening: that is judged.
        kept: what an interruption leaves in the directory, in words.
        pool: data of the pre-training, which is asked about in place of `data`; None: there is none.
        service: that is asked in place of a model; None: there is a model.
        scored: how many examples are scored; None: as many as the policy needs.
        public: rows of which explainers are made; None: there are none.
        grows: it may look again, with more reference models.

    Raises:
        SafexplainError: something cannot be read, or does not fit the rest; the directory is not made then.
    """
    _check_target(given, pool, service)
    policy = policy_of(given.policy, given.policy_fpr, given.max_tpr, given.attacks)
    looks = references_of(given.references)
    of_tables = service is None and is_classifier_file(given.model)
    if of_tables and pool is not None:
        raise ConfigurationError("--pretraining-pool is for networks, which are trained in stages: leave it out")
    tabular = Tabular.of(given, public) if of_tables else None
    chosen = given.explainer or (tabular.default[0] if tabular else "IG")
    methods = parse_methods(chosen, given.output, given.option or [])
    check_public(methods[0], public, given.data)
    statement = None if given.privacy is None else PrivacyStatement.load(given.privacy)
    place, (accuracy, examples) = device_of(given.device), stated(given.recipe)
    recipe: Any
    recipe, stages, caveats = read_recipe(
        None if of_tables else given.recipe, pool, given.seed, statement if looks[0] else None
    )
    folder = choose_folder(given.run_dir, given.resume)
    once = nullcontext() if given.plan else resumable(folder, kept)
    with once, shown(given.quiet) as progress:
        if tabular is None:
            subject = _read_subject(given, pool, service)
        else:
            recipe = tabular.training(given.recipe)
            subject = _read_tabular(given, tabular, recipe)
            check_methods(methods[0], tabular)
        read, loaded = subject.data, subject.loaded
        columns = tabular.read.columns if tabular else None
        rows = tabular.read.public if tabular else None if public is None else load_inputs(public)
        makers, arguments = with_public(*methods, rows, read, columns)
        dp, fresh, unavailable = None, loaded.fresh, loaded.fresh_unavailable
        if isinstance(recipe, Recipe) and (dp := recipe.dp) is not None and pool is None:
            fresh, unavailable = untrained(loaded, dp)
        trains = fresh is not None or tabular is not None or isinstance(recipe, TrainingFunction)
        references = looks[0] if trains else 0
        asked, dropped = _asked_about(given, pool, read, loaded)
        halves = len(read.x) // 2 if dp is None and pool is None else int(read.member.sum())
        if references:
            check_examples(examples, halves)
            if stages is not None and stages.recipe is not None:
                check_examples(stages.recipe.examples, len(asked.x) // 2)
        materials = {f"data {read.source} sha256": read.sha256}
        if public is not None:
            materials[f"public rows {public} sha256"] = file_sha256(public)
        two, notes = None, [*subject.notes, *dropped]
        if stages is not None and pool is not None:
            assert isinstance(recipe, Recipe)
            two = TwoStages(stages, read, asked, loaded, recipe, subject.outputs, references, given.seed)
            notes += two.notes()
            materials |= two.materials()
        else:
            notes += check_data(asked, num_classes=subject.outputs)
            notes += () if stages is None else stages.notes(references)
        if dp is not None and statement is not None and references:
            notes += [*caveats, *dp_notes(dp, statement, int(read.member.sum()))]
        says = []
        if not trains:
            says.append(f"Reference models cannot be trained: {unavailable}.")
            notes += says
        elif given.recipe is None and looks[0] and isinstance(recipe, Recipe):
            notes.append(no_recipe(recipe, "--recipe", "trained" if two is None else "fine-tuned"))
        if references and examples is None and dp is None and pool is None:
            says.append(
                f"References train on {halves:,} rows, half of --data, of which the model was trained on"
                f" {int(read.member.sum()):,}; if it was trained on more, give all of them."
            )
        if service is not None and given.arch is None and references:
            notes.append(PERCEPTRONS)
        name, subjects = "", dict[str, dict[str, str]]()
        if given.model is not None:
            name, digest = given.model.name, model_digest(loaded.model.to(place)).hex()
            subjects = {name: {"sha256": loaded.sha256, MODEL_DIGEST: digest}}
        population = Population.of(asked.x, asked.y, asked.groups)
        if service is None and two is None:
            with_channels_last(loaded.model.to(place), population.x)
        target = loaded.model if service is None else service.opened(subject.outputs, None)
        question = Question(
            target,
            population,
            recipe if two is None else two.pretraining if references else None,
            member=asked.member,
            explainer=makers[0] if len(makers) == 1 else makers,
            hardening=hardening,
            output=given.output,  # type: ignore[arg-type]
            arguments=arguments,
            build=fresh if two is None or not references else two.fresh,
            references=looks if references and grows and two is None else references,
            policy=policy,
            options=AuditOptions(
                slices=asked.slices,
                accuracy=accuracy,
                title=name,
                subject=subjects,
                materials=materials,
                notes=tuple(notes),
                privacy=statement,
                canaries=None if given.canaries is None else load_finding(given.canaries),
                subject_data="training" if stages is None else stages.subject,
                scored=scored,
                seconds=math.inf if given.references else HOUR,
            ),
            seed=given.seed,
            cache=folder / "models",
            device=place,
            progress=progress,
        )
        if service is not None:
            question = _opened(question, service, subject.outputs, folder, given)
        try:
            yield Begun(folder, question, read.feature_names or (), tuple(says), tabular, two, progress)
        except EndpointError as error:
            how = f"repeat the command with --run-dir {folder} --resume to continue"
            raise InputError(f"{error}. What it answered is kept: {how}") from None
        finally:
            if question.endpoint is not None:
                question.endpoint.close()


PERCEPTRONS = (
    f"No --arch: the reference models are perceptrons with {HIDDEN} hidden units. If the model behind the endpoint is"
    " another, a real attacker may do better than this audit: a leak found is a leak, a certificate says less."
)


class _Subject(NamedTuple):
    """The data as the model takes them, the model, the number of its outputs, and what was done to the data."""

    data: AuditData
    loaded: LoadedModel
    outputs: int
    notes: tuple[str, ...]


def _read_subject(given: Options, pool: Path | None, service: Service | None) -> _Subject:
    """The data and the model; of a service, a network like its model.

    Columns by which the report is sliced are features of a table, or are not, if the model only fits without them.

    Raises:
        InputError: one of them cannot be read, or they do not fit each other.
    """
    group, slices = (given.group_column, given.slice_by or []) if pool is None else (None, [])

    def read(drop_slices: bool) -> _Subject:
        data = load_data(given.data, group=group, slices=slices, drop_slices=drop_slices)
        if service is not None:
            loaded = service.like(data, given.arch)
        else:
            assert given.model is not None
            shape = tuple(data.x.shape[1:])
            loaded = load_model(given.model, arch=given.arch, trust_pickle=given.trust_pickle, input_shape=shape)
        data, notes = as_the_model_takes(data, loaded.preprocessing)
        return _Subject(data, loaded, check_model_fits(loaded.model, data), notes)

    try:
        return read(False)
    except InputError:
        if slices:
            with suppress(InputError):
                return read(True)
        raise


def _read_tabular(given: Options, tabular: Tabular, recipe: Any) -> _Subject:
    """Those of a classifier of tables, with what is said of its training and its default explainer."""
    notes = tabular.notes + (tabular.untold(recipe) if references_of(given.references)[0] else ())
    if given.explainer is None:
        notes += (tabular.default[1],)
        if not (given.quiet or given.json_):
            typer.echo(tabular.default[1], err=True)
    return _Subject(tabular.read.data, tabular.loaded, tabular.outputs, notes)


def _asked_about(
    given: Options, pool: Path | None, read: AuditData, loaded: LoadedModel
) -> tuple[AuditData, tuple[str, ...]]:
    """The examples whose membership is attacked, and what was left out of them."""
    asked = read
    if pool is not None:
        pretraining = load_data(pool, group=given.group_column, slices=given.slice_by or [])
        asked, _ = as_the_model_takes(pretraining, loaded.preprocessing)
    return without_copies(asked) if given.drop_copies else (asked, ())


def _opened(question: Question, service: Service, outputs: int, folder: Path, given: Options) -> Question:
    """With answers that are kept in the run directory, which is made once the endpoint's budget is seen to suffice."""
    assert question.endpoint is not None
    asks = len(question.scored_rows), question.policy.patience
    with closing(question.endpoint):
        if not (folder / ANSWERS).exists():
            question.endpoint.plan(*asks)
    if not given.plan:
        make_folder(folder)
    target = service.opened(outputs, folder if folder.exists() else None)
    if not (given.quiet or given.plan):
        typer.echo(f"{target.url} will be asked {target.plan(*asks)}.", err=True)
    return replace(question, model=target)


def _check_target(given: Options, pool: Path | None, service: Service | None) -> None:
    """There is a model or a service, and nothing that only the other has."""
    if service is None:
        if given.model is None:
            raise ConfigurationError("expected a MODEL file (or, for audit, --endpoint URL), got none")
        return
    if given.model is not None:
        raise ConfigurationError(
            f"expected a model file or --endpoint, got both ({given.model} and --endpoint); leave one out"
        )
    if pool is not None:
        raise ConfigurationError("--pretraining-pool is for model files: leave it out with --endpoint")
    if given.privacy is not None:
        raise ConfigurationError("--privacy is about the weights of a model, of which --endpoint shows none")


def without_copies(data: AuditData) -> tuple[AuditData, tuple[str, ...]]:
    """The data without members that are exact copies of non-members, and without these; a note says how many."""
    _, which = np.unique(hash_examples(data.x), return_inverse=True)
    mixed = ((np.bincount(which, data.member) > 0) & (np.bincount(which, ~data.member) > 0))[which]
    inside, outside = int((mixed & data.member).sum()), int((mixed & ~data.member).sum())
    said = f"{inside} members and {outside} non-members that are exact copies of each other were left out."
    return (data.rows(~mixed), (said,)) if mixed.any() else (data, ())


def references_of(text: str) -> tuple[int, ...]:
    """How many reference models at each look: "16", or "8,16,32"; "": as `LOOKS`.

    Raises:
        ConfigurationError: something else.
    """
    try:
        found = tuple(int(number) for number in text.split(",")) if text else LOOKS
    except ValueError:
        found = (-1,)
    if min(found) < 0 or list(found) != sorted(set(found)) or (len(found) > 1 and not found[0]):
        raise ConfigurationError(
            f"--references: expected a number, as 16, or several that grow, as 8,16,32; got {text!r}"
        )
    return found


def parse_methods(names: str, output: str, options: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """The explainers and the arguments of `attribute`, of several by their names, from the command line's words.

    Raises:
        ConfigurationError: an unknown method or output, or an option that is not NAME=VALUE.
    """
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if len(listed) <= 1:
        method, arguments = parse_method(names.strip(), output, options)
        return [method], arguments
    if len(set(listed)) < len(listed):
        raise ConfigurationError(f"--explainer: each is released once, got {', '.join(listed)}")
    owners = {name: [o.partition(".")[2] for o in options if o.partition(".")[0] == name] for name in listed}
    if stray := [o for o in options if o.partition(".")[0] not in owners]:
        raise ConfigurationError(
            f"--option of several explainers takes METHOD.NAME=VALUE, as IG.n_steps=25; got {stray}"
        )
    parsed = {name: parse_method(name, output, own) for name, own in owners.items()}
    rows = {name: find_row(name).name for name in parsed}
    return [method for method, _ in parsed.values()], {rows[name]: a for name, (_, a) in parsed.items() if a}


def parse_method(name: str, output: str, options: list[str]) -> tuple[Any, dict[str, Any]]:
    """One hardened class, and the options of its explainer and its calls.

    Raises:
        ConfigurationError: an unknown method or output, or an option that is not NAME=VALUE.
    """
    if output not in ("probability", "logit"):
        raise ConfigurationError(
            f"--output: expected probability or logit, got {output!r}{near(output, ('probability', 'logit'))}"
        )
    values: dict[str, Any] = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigurationError(f"--option: expected NAME=VALUE, as n_steps=25; got {text!r}")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[key] = tuple(parsed) if isinstance(parsed, list) else parsed
    try:
        row = find_row(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"--explainer: {error}") from None
    return (HARDENED[row.name] if row.entry == "attribute" else OF_ROWS[row.name]), values


def parse_hardening(text: str) -> Hardening:
    """From "recommended", "none", "deepleak", JSON, or the path of a JSON file such as hardening.json of a search.

    Raises:
        ConfigurationError: none of these.
    """
    named = {"recommended": Hardening.recommended, "none": Hardening.none, "deepleak": Hardening.deepleak}
    stripped = text.strip()
    if stripped in named:
        return named[stripped]()
    if stripped.startswith("{"):
        return Hardening.from_json(stripped)
    path = Path(text)
    if not path.is_file():
        raise ConfigurationError(
            f"--hardening: expected {', '.join(named)}, JSON, or a JSON file; got {text!r}{near(text, named)}"
        )
    try:
        return Hardening.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigurationError(f"--hardening: expected a hardening as JSON in {path}, which is no text") from None
