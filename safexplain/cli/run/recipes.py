"""How reference models repeat a training, by recipe.toml or as a classifier's file states it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import sha256
from safexplain._progress import as_stage
from safexplain._validate import check_whole, read_toml
from safexplain.audit import FineTune, Population, Recipe, Shadows, fine_tune, train_shadows
from safexplain.audit.answers import predict
from safexplain.audit.controls.splits import copies_of, refuse_copies
from safexplain.audit.question import Question, SubjectData
from safexplain.audit.references.fine_tuning import Trainable, check_trainable, replace_head
from safexplain.audit.references.recipe import DPTraining, check_examples, check_records, overruled
from safexplain.audit.references.shadows import Build, EstimatorTraining
from safexplain.audit.run import hardly_better_than_guessing
from safexplain.audit.signals import hash_examples
from safexplain.cli.options import Options
from safexplain.errors import ConfigurationError, InputError, MissingExtraError, SafexplainError
from safexplain.explain import CATALOG
from safexplain.explain.served import TABLE_METHODS
from safexplain.explain.shap import MixedColumnsError
from safexplain.explain.tables import TableExplainerFactory
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data import AuditData, ClassifierData, check_data, check_model_fits, load_for_classifier
from safexplain.loading.estimators import FittedClassifier, SkopsSerializer, identify_estimator
from safexplain.loading.exported import ExportedModel, frozen_operation, with_layers, without_layer
from safexplain.loading.files import current_directory_importable, imported, one_line, read_bytes
from safexplain.loading.models import LoadedModel, load_model
from safexplain.outputs import EstimatorModule, are_places
from safexplain.verdict.privacy_statement import PrivacyStatement

STARTED_ELSEWHERE = (
    "The model started from weights that had seen other data, but reference models start from new weights unless --arch"
    " gives them the same: an attacker who has those weights may do better than this audit."
)

WEAKER = "a real attacker may do better than this audit: a proven leak still counts, but a certificate is weaker."
SHARED_PARTS = ("head", "all", "lora")  # of both a recipe's `trainable` and its `[dp]`


@dataclass(frozen=True)
class TrainingFunction:
    """The user's `function = "module:train"` in a recipe: (x, y, generator) -> a trained model."""

    name: str  # as in the recipe
    train: Callable[..., Any] = field(repr=False)

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
        """A model trained on (x, y), without the wrapper of Opacus."""
        try:
            with current_directory_importable():
                model = self.train(x, y, generator)
        except SafexplainError:
            raise
        except Exception as error:  # any error of the user's code
            raise InputError(
                f"function {self.name} failed on {len(y):,} examples of shape {tuple(x.shape[1:])}:"
                f" {type(error).__name__}: {one_line(error)}"
            ) from error
        if callable(plain := getattr(model, "to_standard_module", None)):
            model = plain()
        if not isinstance(model, nn.Module):
            raise InputError(f"function {self.name} must return a torch.nn.Module, got {type(model).__name__}")
        return model

    def __str__(self) -> str:
        return f'function = "{self.name}"\n'


@dataclass(frozen=True)
class Stages:
    """How a model was pre-trained and fine-tuned."""

    subject: SubjectData  # whose membership is attacked
    recipe: Recipe | None  # of the pre-training, if stated
    trainable: Trainable  # what was fine-tuned


class ParsedRecipe(NamedTuple):
    """How the model was trained, and caveats."""

    recipe: Recipe | TrainingFunction
    stages: Stages | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeFile:
    """The contents of --recipe."""

    path: Path | None  # None: there is no file
    values: Mapping[str, Any]  # how the model was trained
    accuracy: float | None = None  # of the model on examples that it was not trained on; `AuditOptions` checks it
    examples: int | None = None  # rows that the model was trained on

    @classmethod
    def read(cls, path: Path | None) -> RecipeFile:
        """Read the file."""
        values = {} if path is None else read_toml(path, "recipe")
        accuracy, examples = values.pop("accuracy", None), values.get("examples")
        if examples is not None:
            check_whole(f"recipe {path}: examples", examples, 1)
        return cls(path, values, accuracy, examples)

    @property
    def label(self) -> str:
        """The name of the recipe in messages."""
        return "recipe" if self.path is None else f"recipe {self.path}"

    def function(self) -> TrainingFunction | None:
        """The training function that the recipe names."""
        if (name := self.values.get("function")) is None:
            return None
        if others := ", ".join(sorted(self.values.keys() - {"function", "examples"})):
            raise ConfigurationError(f"{self.label}: a function replaces the rest of the recipe; leave out {others}")
        if not isinstance(name, str):
            raise ConfigurationError(f'{self.label}: function: expected text such as "module:train", got {name!r:.60}')
        train = imported(name, f"{self.label}: function", '"package.module:function"')
        try:
            inspect.signature(train).bind(None, None, None)
        except TypeError:
            raise InputError(
                f"{self.label}: function {name} must take three arguments, train(x, y, generator): the members'"
                " inputs and labels, and a torch.Generator"
            ) from None
        return TrainingFunction(name, train)

    def training(self, pool: Path | None, seed: int, statement: PrivacyStatement | None = None) -> ParsedRecipe:
        """How a network was trained: `pool` is the audited data of a pre-training, `seed` that of the default recipe;
        `statement` fills in `[dp]`."""
        if (function := self.function()) is not None:
            if pool is not None:
                raise ConfigurationError(f"{self.label}: with --pretraining-pool, a recipe cannot name a function")
            return ParsedRecipe(function, None)
        values: dict[str, Any] = {"seed": seed} if self.path is None else dict(self.values)
        part, before = values.pop("trainable", None), values.pop("pretraining", None)
        private: Any = values.get("dp", None if statement is None else {})
        if part in SHARED_PARTS and isinstance(private, dict):
            values["dp"] = {"trainable": part, **private}
        recipe = Recipe.of(values, self.label, statement)
        notes = () if statement is None else tuple(filter(None, [overruled(values, statement, self.label)]))
        if pool is None and part is None and before is None:
            return ParsedRecipe(recipe, None, notes)
        trained = None if recipe.dp is None else recipe.dp.trainable
        if part is not None and trained is not None and (trained != part if part in SHARED_PARTS else trained == "all"):
            raise ConfigurationError(
                f"{self.label}: trainable = {part!r} contradicts [dp], where it is {trained!r}: state it once, in [dp]"
            )
        if before is not None and not isinstance(before, dict):
            raise ConfigurationError(f"{self.label}: pretraining must be a table, got {before!r:.60}")
        try:
            check_trainable(found := trained or "head" if part is None else part)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.label}: {error}") from None
        pretraining = None if before is None else Recipe.of(before, f"{self.label}: pretraining")
        subject: SubjectData = "fine-tuning" if pool is None else "pre-training"
        return ParsedRecipe(recipe, Stages(subject, pretraining, cast("Trainable", found)), notes)


def dp_builder(loaded: LoadedModel, dp: DPTraining) -> tuple[Build | None, str]:
    """A builder of reference models for training with DP, or None and the reason."""
    fresh, layered = loaded.fresh, with_layers(loaded.model)
    frozen = frozen_operation(loaded.model, training=False)
    if fresh is None or frozen is not None:
        if dp.trainable == "head":
            return lambda seed: replace_head(layered, seed=seed), ""
        mixes = f"the exported graph contains {frozen}, which differential privacy does not allow; pass --arch"
        return None, loaded.fresh_unavailable or mixes
    if dp.trainable != "head" and fresh.__class__ is partial and (bare := without_layer(layered)):
        return None, (
            f"{len(bare)} of the exported graph's parameters belong to no layer ({', '.join(bare[:3])}), so that their"
            " gradients cannot be split by example; pass --arch, how the network is built"
        )
    return partial(_layered, fresh), ""


def _layered(fresh: Build, seed: int) -> nn.Module:
    return with_layers(fresh(seed))


def dp_notes(dp: DPTraining, statement: PrivacyStatement, members: int) -> tuple[str, ...]:
    """Caveats of references that repeat a privacy statement."""
    check_records(statement, members)
    notes = (STARTED_ELSEWHERE,) if statement.pretrained and dp.trainable != "head" else ()
    if statement.records == members or statement.count_noised:
        return notes
    return (
        f"The privacy statement is about {statement.records:,} records, but the data marks {members:,} members;"
        f" reference models train on {members:,}.",
        *notes,
    )


# --- two stages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoStages:
    """An audit of pre-training data: references are pre-trained on random halves of the pool, then fine-tuned."""

    stages: Stages
    downstream: AuditData  # of the fine-tuning; the model was fine-tuned on its members
    pool: AuditData  # of the pre-training
    loaded: LoadedModel
    tuning: Recipe
    outputs: int  # of the model
    trains: bool  # whether reference models are trained
    seed: int

    def __post_init__(self) -> None:
        check_data(self.downstream, num_classes=self.outputs, both_sides=False)
        check_model_fits(self.loaded.model, self.pool)
        refuse_copies(copies_of(hash_examples(self.pool.x), self.pool.x), self.pool.member)
        if self.trains:
            check_examples(self.pretraining.examples, len(self.pool.x) // 2)
            fresh = self.fresh(self.seed)
            try:
                self.fine_tuning.check(fresh)
            except InputError as error:
                raise InputError(f"reference models cannot be fine-tuned: {error}") from None

    @cached_property
    def pretraining(self) -> Recipe:
        """Recipe of the pre-training."""
        return self.stages.recipe or Recipe(seed=self.seed)

    @cached_property
    def fine_tuning(self) -> FineTune:
        """The fine-tuning, on as many rows as that of the model."""
        data, share = Population.of(self.downstream.x, self.downstream.y), float(self.downstream.member.mean())
        return FineTune(data, self.tuning, self.stages.trainable, sample=share, outputs=self.outputs)

    def notes(self) -> tuple[str, ...]:
        """Caveats, and facts about the fine-tuning."""
        found = check_data(self.pool, num_classes=None)
        member, data = self.downstream.member, self.fine_tuning.downstream
        predicted = predict(Shadows((self.loaded.model,), member[None]), data, patience=(1,)).label[0]
        hit = predicted == self.downstream.y
        others = "" if member.all() else f", {hit[~member].mean():.1%} on others"
        found += (
            "Accuracy of the model on the fine-tuning data:"
            f" {hit[member].mean():.1%} on the rows that it was fine-tuned on{others}.",
        )
        if hardly_better_than_guessing(float(hit[member].mean()), len(np.unique(self.downstream.y))):
            found += ("That is hardly better than guessing: check the labels and the scaling of x.",)
        both = np.isin(hash_examples(self.downstream.x), hash_examples(self.pool.x)) & member
        if both.any():
            found += (
                f"{int(both.sum())} of the rows that the model was fine-tuned on are also in the pool: the audit cannot"
                " tell which of the two stages reveals them.",
            )
        if not self.trains:
            return found
        part = self.stages.trainable
        blocks = f"the last {'block' if part == 1 else f'{part} blocks'} and the head"
        known = {"head": "the head", "all": "all layers", "lora": "low-rank adapters and the head"}
        stated = self.stages.recipe or no_recipe(self.pretraining, "[pretraining] in the recipe", "pre-trained")
        return (
            *found,
            f"Reference models were pre-trained on random halves of the pool ({len(self.pool.y):,} examples), then"
            f" fine-tuned ({known.get(str(part), blocks)}) on {int(member.sum()):,} of the {len(member):,} rows of"
            " the fine-tuning data each.",
            *{caveat for recipe in (self.pretraining, self.tuning) if (caveat := recipe.caveat())},
            *([stated] if isinstance(stated, str) else []),
        )

    def materials(self) -> dict[str, str]:
        """Digests of the pool and of the recipe of the pre-training."""
        recipe = {"pre-training recipe sha256": sha256(self.pretraining.to_toml())} if self.trains else {}
        return {f"pre-training pool {self.pool.source} sha256": self.pool.sha256, **recipe}

    def with_references(self, question: Question) -> Question:
        """The question with trained reference models."""
        assert isinstance(question.references, int)
        common: dict[str, Any] = {"seed": self.seed, "device": question.place, "cache": question.cache}
        pretrained = train_shadows(
            question.population,
            self.pretraining,
            build=self.fresh,
            models=question.references,
            progress=as_stage(question.progress, "pre-training reference models"),
            **common,
        )
        progress = as_stage(question.progress, "fine-tuning reference models")
        shadows = fine_tune(pretrained, self.fine_tuning, progress=progress, **common)
        return replace(question, shadows=shadows, recipe=self.tuning, build=self.loaded.fresh)

    def fresh(self, seed: int) -> nn.Module:
        """An untrained model with a head for the pool's classes."""
        assert self.loaded.fresh is not None
        fresh = self.loaded.fresh(seed)
        try:
            return replace_head(fresh, int(self.pool.y.max()) + 1, seed=seed)
        except InputError as error:
            graph = "; pass --arch, how the network is built, together with the same file"
            advice = graph if isinstance(fresh, ExportedModel) else ""
            raise InputError(f"reference models cannot be pre-trained: {error}{advice}") from None


def no_recipe(recipe: Recipe, missing: str, trained: str) -> str:
    """The caveat about a model without a recipe."""
    return (
        f"No {missing}: reference models were {trained} by a default ({recipe.optimizer}, learning rate {recipe.lr:g},"
        f" {recipe.epochs} epochs, batch {recipe.batch_size}). If the model was {trained} differently, {WEAKER}"
    )


EXACT, BY_QUERIES = ("TreeExplainer", "LinearExplainer"), "FeatureAblation"  # the default explainers
COLUMNS = "columns.json"  # in the run directory: the meaning of the numbers in a row


@dataclass(frozen=True, eq=False)
class Tabular:
    """A classifier and its data, ready to be audited."""

    found: FittedClassifier
    read: ClassifierData  # with the public rows
    loaded: LoadedModel
    outputs: int

    @classmethod
    def of(cls, given: Options, public: Path | None) -> Tabular:
        """The classifier that the options name, and its data."""
        assert given.model is not None
        if given.output == "logit":
            raise ConfigurationError("--output logit: of a classifier, only probabilities can be explained")
        types = given.trust_type or ()
        found = load_model(given.model, arch=given.arch, trust_pickle=given.trust_pickle, trust_types=types).classifier
        assert found is not None
        slices = tuple(given.slice_by or ())
        read = load_for_classifier(found, given.data, public=public, group=given.group_column, slices=slices)
        loaded = LoadedModel.of_classifier(found, read.columns)
        return cls(found, read, loaded, check_model_fits(loaded.model, read.data))

    @cached_property
    def default(self) -> tuple[str, str]:
        """The explainer used without --explainer, and a sentence about it."""
        name, why = BY_QUERIES, "it works with every classifier"
        for method in EXACT:
            try:
                if _adds_up(method, self.loaded.model, self.read.data.x):
                    name, why = method, "it reads the model and is exact"
                    break
            except MixedColumnsError as error:
                why = str(error)
            except MissingExtraError:
                why = 'shap, exact for trees and linear models, is not installed: pip install "safexplain[shap]"'
            except Exception:  # any error of a library that cannot read this kind of model
                continue
        return (
            name,
            f"No --explainer: {name} is used ({why}). Name the one you serve: the verdict only covers that.",
        )

    def notes(self, training: EstimatorTraining | TrainingFunction | None) -> tuple[str, ...]:
        """How model and data were read, and which hyper-parameters are unknown."""
        notes = (*self.found.notes, *self.read.notes)
        known = training.given if isinstance(training, EstimatorTraining) else self.found.unrecorded
        if missing := [name for name in self.found.unrecorded if name not in known]:
            notes += (
                f"Neither the model file nor --recipe states {', '.join(missing)}: reference models use the library's"
                f" defaults. If the model was trained differently, {WEAKER}",
            )
        if self.read.columns is not None:
            coded = [c.name for c in self.read.columns.columns if not c.plain]
            notes += (
                f"Explainers see {len(coded)} column{'s' if len(coded) > 1 else ''} with texts or missing values"
                f" ({', '.join(coded[:5])}{', ...' if len(coded) > 5 else ''}) as codes, which the model decodes:"
                f" {COLUMNS} has them.",
            )
        return notes

    def training(self, file: RecipeFile) -> EstimatorTraining | TrainingFunction:
        """How reference models are trained."""
        found, columns = self.found, self.read.columns
        labels = None if are_places(found.classes) else found.classes
        if (function := file.function()) is not None:
            names, outputs = getattr(found.estimator, "feature_names_in_", None), self.outputs

            def train(x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
                """The function's model, fitted to a frame if the classifier was fitted to names."""
                rows: Any = x.flatten(1).numpy()
                if columns is not None:
                    rows = columns.decode(rows)
                elif names is not None:
                    rows = import_module("pandas").DataFrame(rows.astype(np.float64), columns=list(names))
                fitted = function.train(rows, y.numpy() if labels is None else labels[y.numpy()], generator)
                return EstimatorModule(fitted, outputs, columns=columns, labels=labels)

            return replace(function, train=train)
        given = _flattened({name: value for name, value in file.values.items() if name != "examples"})
        known = found.template.get_params()
        if unknown := sorted(given.keys() - known.keys()):
            plain = sorted(name for name, value in known.items() if not hasattr(value, "get_params"))
            raise ConfigurationError(
                f"{file.label}: {type(found.template).__name__} has no hyper-parameter {', '.join(unknown)}; expected"
                f" among {', '.join(plain[:40])}{', ...' if len(plain) > 40 else ''}, or function"
            )
        try:
            training = EstimatorTraining(found.template, labels, columns, SkopsSerializer.of(found.trusted), given)
            str(training)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{file.label}: {one_line(error)}") from None
        return training

    def check(self, makers: Sequence[Any]) -> None:
        """Raise ConfigurationError for a method that needs gradients."""
        queries = {row.name for row in CATALOG.values() if row.family in ("perturbation", "approximation")}
        fitting = [n for n, row in CATALOG.items() if n in TABLE_METHODS or (row.of == "input" and n in queries)]
        names = [make.method if isinstance(make, TableExplainerFactory) else make._row.name for make in makers]
        if refused := [name for name in names if name not in fitting]:
            raise ConfigurationError(
                f"{refused[0]} needs gradients, which a {type(self.found.estimator).__name__} does not have; expected"
                f" one of {', '.join(fitting)}"
            )


def is_classifier_file(path: Path | None) -> bool:
    """Whether a file holds a classifier of tables."""
    return path is not None and path.is_file() and identify_estimator(read_bytes(path, "model")) is not None


def _adds_up(name: str, model: nn.Module, x: NDArray[np.float32]) -> bool:
    """Whether a method's attributions of two classes differ as the outputs do, up to a constant."""
    explainer = TABLE_METHODS[name].catalogued()
    hardened, rows = explainer(model, hardening=Hardening.none()), torch.from_numpy(x[:64])
    p = model(rows).double()
    order = p.mean(0).argsort(descending=True)
    first, second = (torch.full((len(rows),), int(c)) for c in order[:2])
    explained = (hardened.attribute(rows, target=first) - hardened.attribute(rows, target=second)).sum(1).double()
    known = (p[:, order[:2]] > 1e-3).all(1)  # logarithms of the others are not exact in float32
    outputs = p if explainer.explains(model) is None else p.clamp(min=1e-30).log() * (2 if p.shape[1] == 2 else 1)
    off = (explained - outputs[:, order[0]] + outputs[:, order[1]])[known]
    return len(off) < 2 or bool(off.max() - off.min() < 0.01 * (1 + explained.abs().max()))


def _flattened(written: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables by scikit-learn's names of parameters: [model] max_depth -> model__max_depth."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        found |= _flattened(value, f"{before}{name}__") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found
