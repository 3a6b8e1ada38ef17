"""Audits of a classifier of tables: what explains it, how its data are read, and how reference models repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from safexplain.cli.options import Options
from safexplain.cli.run.recipes import TrainingFunction
from safexplain.columns import Columns
from safexplain.errors import ConfigurationError, MissingExtraError
from safexplain.explain import CATALOG
from safexplain.explain.row import Row
from safexplain.explain.served import OF_ROWS
from safexplain.explain.shap.pipelines import MixedColumnsError
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data.checks import AuditData, check_model_fits
from safexplain.loading.data.frames import ClassifierData, load_for_classifier
from safexplain.loading.files import one_line, read_bytes
from safexplain.loading.models.estimators import FittedClassifier, SkopsKeeper, identify_estimator, load_estimator
from safexplain.loading.models.load import LoadedModel
from safexplain.outputs import EstimatorModule, are_places

READS, ASKS = ("TreeExplainer", "LinearExplainer"), "FeatureAblation"
"""The default explainers: the first that reads the classifier exactly, else the one that works with all of them."""

COLUMNS = "columns.json"
"""File of the run directory that says what the numbers of a row stand for."""


@dataclass(frozen=True, eq=False)
class Tabular:
    """A classifier and its data, ready to be audited."""

    found: FittedClassifier
    read: ClassifierData  # with the public rows
    loaded: LoadedModel
    outputs: int

    @classmethod
    def of(cls, given: Options, public: Path | None) -> Tabular:
        """The classifier that the command line names, and its data; SafexplainError if they do not fit each other."""
        assert given.model is not None
        if given.arch is not None:
            raise ConfigurationError(f"--arch builds a network, but {given.model} holds a classifier; leave it out")
        if given.output == "logit":
            raise ConfigurationError("--output logit: the probability of a classifier is explained; leave --output out")
        found = load_estimator(given.model, trust_pickle=given.trust_pickle, trust_types=given.trust_type or ())
        slices = tuple(given.slice_by or ())
        read = load_for_classifier(found, given.data, public=public, group=given.group_column, slices=slices)
        loaded = LoadedModel.of_classifier(found, read.columns)
        return cls(found, read, loaded, check_model_fits(loaded.model, read.data))

    @cached_property
    def default(self) -> tuple[str, str]:
        """What explains the classifier without --explainer, and a sentence that says so."""
        name, why = ASKS, "which works with every classifier"
        for method in READS:
            try:
                if adds_up(method, self.loaded.model, self.read.data.x):
                    name, why = method, "which reads the model and is exact"
                    break
            except MixedColumnsError as error:
                why = str(error)
            except MissingExtraError:
                why = 'as shap, exact for trees and linear models, is not installed: pip install "safexplain[shap]"'
            except Exception:  # any error of a library that cannot read this kind of model
                continue
        return name, f"No --explainer: {name}, {why}. Name the explainer that you serve; the verdict is only about it."

    @property
    def notes(self) -> tuple[str, ...]:
        """How model and data were read, for readers of the audit."""
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
            InputError, ConfigurationError: the recipe cannot be read, or names what there is not.
        """
        found, columns = self.found, self.read.columns
        labels = None if are_places(found.classes) else found.classes
        written: dict[str, Any] = {} if recipe is None else read_toml(recipe, "recipe")
        what = f"recipe {recipe}"
        for name in ("accuracy", "examples"):
            written.pop(name, None)  # see `recipes.stated`
        if "function" in written:
            names = getattr(found.estimator, "feature_names_in_", None)
            return EstimatorFunction(TrainingFunction.of(written, what), self.outputs, labels, columns, names)
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
        """The caveat about hyper-parameters that are neither in the file nor in the recipe."""
        if not isinstance(training, EstimatorTraining):
            return ()
        if not (missing := [name for name in self.found.untold if name not in training.given]):
            return ()
        return (
            f"Neither the model's file nor --recipe says {', '.join(missing)}: reference models have the library's"
            " defaults. If the model was trained differently, a real attacker may do better than this audit: a leak"
            " found is a leak, a certificate says less.",
        )


@dataclass(frozen=True, eq=False)
class EstimatorFunction:
    """A training function of the user's: (rows, labels, generator) -> a fitted classifier. Rows are what the classifier
    takes: a frame if it was fitted with names, else an array."""

    function: TrainingFunction
    classes: int
    labels: NDArray[Any] | None  # of the outputs; None: 0, 1, ...
    columns: Columns | None
    names: Any  # of the columns

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
        fitted = self.function.fit(rows, y.numpy() if self.labels is None else self.labels[y.numpy()], generator)
        return EstimatorModule(fitted, self.classes, columns=self.columns, labels=self.labels)

    def __str__(self) -> str:
        return str(self.function)


def is_classifier_file(path: Path | None) -> bool:
    """Whether a file holds a classifier of tables; a missing file is reported when it is loaded."""
    return path is not None and path.is_file() and identify_estimator(read_bytes(path, "model")) is not None


def check_methods(methods: list[Any], tabular: Tabular) -> None:
    """Raise ConfigurationError for a method that needs gradients, listing those that do not."""
    fitting = [
        row.name
        for row in CATALOG.values()
        if row.name in OF_ROWS or (row.of == "input" and row.family in ("perturbation", "approximation"))
    ]
    for name in [method._row.name for method in methods if method._row.name not in fitting]:
        raise ConfigurationError(
            f"{name} follows gradients, and a {type(tabular.found.estimator).__name__} has none; expected one of"
            f" {', '.join(fitting)}"
        )


def adds_up(name: str, model: nn.Module, x: NDArray[np.float32]) -> bool:
    """Whether a method that reads a model reads it rightly: on a few rows of x (n, d), values of the two most likely
    classes differ as the outputs do, up to a constant. Raises if it cannot read it at all."""
    explainer = OF_ROWS[name].catalogued()
    asked, rows = explainer(model, hardening=Hardening.none()), torch.from_numpy(x[:64])
    p = model(rows).double()
    order = p.mean(0).argsort(descending=True)
    first, second = (torch.full((len(rows),), int(c)) for c in order[:2])
    explained = (asked.attribute(rows, target=first) - asked.attribute(rows, target=second)).sum(1).double()
    known = (p[:, order[:2]] > 1e-3).all(1)  # logarithms of the others are not exact in float32
    outputs = p if explainer.explains(model) is None else p.clamp(min=1e-30).log() * (2 if p.shape[1] == 2 else 1)
    off = (explained - outputs[:, order[0]] + outputs[:, order[1]])[known]
    return len(off) < 2 or bool(off.max() - off.min() < 0.01 * (1 + explained.abs().max()))


def check_public(methods: list[Any], public: Path | None, data: Path) -> None:
    """Raise ConfigurationError for an explainer that lacks public rows, and for public rows that none needs."""
    of_rows = [method for method in methods if method._row.entry != "attribute"]
    if public is None and (needing := [method for method in of_rows if method._needs]):
        raise ConfigurationError(
            f"{needing[0]._row.name} is made from public rows: expected --public FILE, rows that anybody may know and"
            f" that were not trained on, in the form of {data.name}, without label and member"
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
    """What makes each explainer, with public rows (n, d) and the options of its constructor, and the options that are
    left for its calls; those of several methods are given by their names."""
    made, left = [], dict(given)
    for method in methods:
        row: Row = method._row
        if row.entry == "attribute":
            made.append(method)
            continue
        own: dict[str, Any] = dict(left if len(methods) == 1 else left.get(row.name, {}))
        known: dict[str, Any] = {}  # from the data
        if read.feature_names is not None:
            known["feature_names"] = list(read.feature_names)
        if columns is not None and (categories := columns.categorical_names):
            known["categorical_features"] = sorted(categories)
            known["categorical_names"] = {str(place): names for place, names in categories.items()}
        chosen = {name: value for name, value in {**known, **own}.items() if name in method._makes}
        made.append(method.catalogued(public=public, **chosen))
        rest = {name: value for name, value in own.items() if name not in method._makes}
        if len(methods) == 1:
            left = rest
        elif row.name in left:
            left[row.name] = rest
    return made, left


def _flat(written: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Tables as scikit-learn names the parameters of steps: [model] max_depth -> model__max_depth."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        found |= _flat(value, f"{before}{name}__") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found
