"""Audits of a classifier of tables: what explains it, how its data are read, and how reference models repeat it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._validate import read_toml
from safexplain.audit.references.training import EstimatorTraining
from safexplain.cli.options import Question
from safexplain.cli.run.recipes import TrainingFunction
from safexplain.columns import Columns
from safexplain.errors import ConfigurationError, InputError, MissingExtraError, SafexplainError
from safexplain.explain import CATALOG
from safexplain.explain.row import Row
from safexplain.explain.served import OF_ROWS
from safexplain.explain.shap.pipelines import MixedColumnsError
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data.checks import AuditData, check_model_fits
from safexplain.loading.data.frames import ClassifierData, load_for_classifier
from safexplain.loading.files import one_line, read_bytes
from safexplain.loading.models.architectures import current_directory_importable
from safexplain.loading.models.estimators import FittedClassifier, SkopsKeeper, identify_estimator, load_estimator
from safexplain.loading.models.load import LoadedModel
from safexplain.outputs import EstimatorModule, are_places

ASKS = "FeatureAblation"
"""What explains a classifier that nothing reads: it needs no gradient, no public rows and no other package."""

READS = ("TreeExplainer", "LinearExplainer")
"""What explains a classifier by reading it, exactly: each is tried where nothing else is said."""

COLUMNS = "columns.json"
"""File of the run directory that says what the numbers of a row stand for."""


@dataclass(frozen=True, eq=False)
class Tabular:
    """A classifier and its data, ready to be audited.

    Args:
        found: the classifier.
        read: its data, and public rows.
        loaded: the classifier as a model.
        outputs: of it.
    """

    found: FittedClassifier
    read: ClassifierData
    loaded: LoadedModel
    outputs: int

    @classmethod
    def of(cls, question: Question, public: Path | None) -> Tabular:
        """The classifier that the command line names, and its data.

        Raises:
            SafexplainError: one cannot be read, or they do not fit each other.
        """
        assert question.model is not None
        if question.arch is not None:
            raise ConfigurationError(
                f"--arch is how a network is built, and {question.model} holds a classifier; leave it out"
            )
        if question.output == "logit":
            raise ConfigurationError("--output logit: the probability of a classifier is explained; leave --output out")
        found = load_estimator(
            question.model, trust_pickle=question.trust_pickle, trust_types=question.trust_type or ()
        )
        slices = tuple(question.slice_by or ())
        read = load_for_classifier(found, question.data, public=public, group=question.group_column, slices=slices)
        loaded = LoadedModel.of_classifier(found, read.columns)
        return cls(found, read, loaded, check_model_fits(loaded.model, read.data))

    @cached_property
    def default(self) -> tuple[str, str]:
        """What explains the classifier where nothing is said, and a sentence that says so."""
        name, why = ASKS, "which works with every classifier"
        for method in READS:
            try:
                if adds_up(method, self.loaded.model, self.read.data.x):
                    name, why = method, "which reads the model and is exact"
                    break
            except MixedColumnsError as error:
                why = str(error)
            except MissingExtraError:
                why = 'for want of shap, which is exact for trees and linear models: pip install "safexplain[shap]"'
            except Exception:  # of a library, which does not read this kind of model
                continue
        served = "Name the explainer that is served: a verdict is about the one that was audited."
        return name, f"No --explainer: {name}, {why}. {served}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the audit must know of how model and data were read."""
        notes = (*self.found.notes, *self.read.notes)
        if self.read.columns is not None:
            coded = [c.name for c in self.read.columns.columns if not c.plain]
            notes += (
                f"Explainers see {len(coded)} column{'s' if len(coded) > 1 else ''} with texts or missing values"
                f" ({', '.join(coded[:5])}{', ...' if len(coded) > 5 else ''}) as codes, which the model decodes:"
                f" {COLUMNS} has them.",
            )
        return notes

    def training(self, recipe: Path | None) -> EstimatorTraining | EstimatorFunction:
        """How reference models are trained: with the classifier's own hyper-parameters, or as a recipe says.

        Raises:
            InputError: the recipe cannot be read, or its function is not found.
            ConfigurationError: it names a hyper-parameter that the classifier does not have.
        """
        found, columns = self.found, self.read.columns
        labels = None if are_places(found.classes) else found.classes
        written: dict[str, Any] = {} if recipe is None else read_toml(recipe, "recipe")
        what = f"recipe {recipe}"
        for name in ("accuracy", "examples"):
            written.pop(name, None)  # see `recipes.stated`
        if "function" in written:
            if others := sorted(written.keys() - {"function"}):
                raise ConfigurationError(
                    f"{what}: function trains by itself, leave out {', '.join(others)}; or leave function out"
                )
            function = TrainingFunction.of(written["function"], what)
            names = getattr(found.estimator, "feature_names_in_", None)
            return EstimatorFunction(function.name, function.train, self.outputs, labels, columns, names)
        given = _flat(written)
        known = found.again.get_params()
        if unknown := sorted(given.keys() - known.keys()):
            plain = sorted(name for name, value in known.items() if not hasattr(value, "get_params"))
            raise ConfigurationError(
                f"{what}: {type(found.again).__name__} has no hyper-parameter {', '.join(unknown)}; expected among"
                f" {', '.join(plain[:40])}{', ...' if len(plain) > 40 else ''}, or function"
            )
        try:
            training = EstimatorTraining(found.again, labels, columns, SkopsKeeper.of(found.trusted), given)
            str(training)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{what}: {one_line(error)}") from None
        return training

    def untold(self, training: Any) -> tuple[str, ...]:
        """The caveat of hyper-parameters that neither the file nor the recipe tells."""
        if not self.found.untold or not isinstance(training, EstimatorTraining):
            return ()
        missing = [name for name in self.found.untold if name not in training.given]
        if not missing:
            return ()
        return (
            f"Neither the model's file nor --recipe says {', '.join(missing)}: reference models have the library's"
            " defaults. If the model was trained differently, a real attacker may do better than this audit: a leak"
            " found is a leak, a certificate says less.",
        )


@dataclass(frozen=True, eq=False)
class EstimatorFunction:
    """A training of the user's: (rows, labels, generator) -> a fitted classifier.

    Args:
        name: as the recipe has it.
        train: the function. Rows are what the classifier takes: a frame where it was fitted with names, else an array.
        classes: outputs of the models.
        labels: of the outputs; None: 0, 1, ...
        columns: what the numbers of a row stand for.
        names: of the columns.
    """

    name: str
    train: Callable[..., Any] = field(repr=False)
    classes: int
    labels: NDArray[Any] | None
    columns: Columns | None
    names: Any

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
        """A classifier trained on (x, y), as a module.

        Raises:
            InputError: the function fails, or returns no fitted classifier.
        """
        rows: Any = x.flatten(1).numpy()
        if self.columns is not None:
            rows = self.columns.decode(rows)
        elif self.names is not None:
            rows = import_module("pandas").DataFrame(rows.astype(np.float64), columns=list(self.names))
        labels = y.numpy() if self.labels is None else self.labels[y.numpy()]
        try:
            with current_directory_importable():
                fitted = self.train(rows, labels, generator)
            if isinstance(fitted, nn.Module):
                return fitted
            return EstimatorModule(fitted, self.classes, columns=self.columns, labels=self.labels)
        except SafexplainError:
            raise
        except Exception as error:  # any error of a stranger's code
            raise InputError(
                f"function {self.name} failed on {len(y):,} rows: {type(error).__name__}: {one_line(error)}"
            ) from error

    def __str__(self) -> str:
        return f'function = "{self.name}"\n'


def is_classifier_file(path: Path | None) -> bool:
    """Whether a file holds a classifier of tables; a missing one is said to be missing where it is loaded."""
    if path is None or not path.is_file():
        return False
    return identify_estimator(read_bytes(path, "model")) is not None


def can_explain(row: Row) -> bool:
    """Whether a method works where a model has no gradient."""
    if row.entry != "attribute":
        return row.name in OF_ROWS
    return row.of == "input" and row.family in ("perturbation", "approximation")


def check_methods(methods: list[Any], tabular: Tabular) -> None:
    """Refuse what cannot explain this classifier.

    Raises:
        ConfigurationError: such a method; the message lists those that can.
    """
    fitting = [row.name for row in CATALOG.values() if can_explain(row)]
    name = type(tabular.found.estimator).__name__
    for method in methods:
        row: Row = method._row
        if not can_explain(row):
            raise ConfigurationError(
                f"{row.name} follows gradients, and a {name} has none; expected one of {', '.join(fitting)}"
            )
        if row.entry == "attribute" or method._needs:
            continue
        try:
            method.catalogued()(tabular.loaded.model, hardening=Hardening.none())
        except MissingExtraError:
            raise
        except Exception as error:  # of a library, which does not read this model
            others = ", ".join(other for other in fitting if other != row.name)
            raise ConfigurationError(f"--explainer {row.name}: {one_line(error, 300)}; or one of {others}") from None


def adds_up(name: str, model: nn.Module, x: NDArray[np.float32]) -> bool:
    """Whether what reads a model reads it rightly: values of two classes differ as the outputs do, up to a constant.

    Args:
        name: of the method.
        model: the classifier.
        x: (n, d) rows, of which a few are looked at.

    Raises:
        InputError: it reads no such model. MissingExtraError: its library is not installed.
    """
    explainer = OF_ROWS[name].catalogued()
    asked, rows = explainer(model, hardening=Hardening.none()), torch.from_numpy(x[:64])
    p = model(rows).double()
    order = p.mean(0).argsort(descending=True)
    first, second = (torch.full((len(rows),), int(c)) for c in order[:2])
    explained = (asked.attribute(rows, target=first) - asked.attribute(rows, target=second)).sum(1).double()
    known = (p[:, order[:2]] > 1e-3).all(1)  # of others, the logarithm is no more exact than float32
    outputs = p if explainer.explains(model) is None else p.clamp(min=1e-30).log() * (2 if p.shape[1] == 2 else 1)
    off = (explained - outputs[:, order[0]] + outputs[:, order[1]])[known]
    return len(off) < 2 or bool(off.max() - off.min() < 0.01 * (1 + explained.abs().max()))


def check_public(methods: list[Any], public: Path | None, data: Path) -> None:
    """Refuse explainers of rows without public rows, and public rows of which nothing is made.

    Raises:
        ConfigurationError: either.
    """
    of_rows = [method for method in methods if method._row.entry != "attribute"]
    if public is None and (needing := [method for method in of_rows if method._needs]):
        raise ConfigurationError(
            f"{needing[0]._row.name} is made from public rows: expected --public FILE, rows that may be known to"
            f" everybody and were not trained on, in the form of {data.name}, without label and member"
        )
    if public is not None and not of_rows:
        raise ConfigurationError(
            f"--public is for explainers that are made from public rows ({', '.join(OF_ROWS)}); leave it out"
        )


def with_public(
    methods: list[Any],
    given: Mapping[str, Any],
    public: NDArray[np.float32] | None,
    read: AuditData,
    columns: Columns | None,
) -> tuple[list[Any], dict[str, Any]]:
    """Explainers of rows as they are made: with public rows, and with what of the options they are made with.

    Args:
        methods: hardened classes.
        given: options, of several methods by their names.
        public: (rows, d).
        read: the data, for the names of the columns.
        columns: which of them are codes.

    Returns:
        What makes each explainer, and the options that are left for its calls.
    """
    made, left = [], dict(given)
    for method in methods:
        row: Row = method._row
        if row.entry == "attribute":
            made.append(method)
            continue
        own: dict[str, Any] = dict(left if len(methods) == 1 else left.get(row.name, {}))
        chosen = {**_known(method._makes, read, columns), **{k: v for k, v in own.items() if k in method._makes}}
        made.append(method.catalogued(public=public, **chosen))
        rest = {name: value for name, value in own.items() if name not in method._makes}
        if len(methods) == 1:
            left = rest
        elif row.name in left:
            left[row.name] = rest
    return made, left


def _known(makes: frozenset[str], read: AuditData, columns: Columns | None) -> dict[str, Any]:
    """What the data say of an explainer's arguments: names of columns, and which of them are categories."""
    known: dict[str, Any] = {}
    if "feature_names" in makes and read.feature_names is not None:
        known["feature_names"] = list(read.feature_names)
    categories = {} if columns is None else columns.categorical_names
    if categories and "categorical_features" in makes:
        known["categorical_features"] = sorted(categories)
    if categories and "categorical_names" in makes:
        known["categorical_names"] = {str(place): names for place, names in categories.items()}
    return known


def _flat(written: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Tables as scikit-learn names the parameters of steps: [model] max_depth -> model__max_depth."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}__")
        else:
            found[f"{before}{name}"] = value
    return found
