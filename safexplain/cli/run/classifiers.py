"""Audits of a classifier of tables: its default explainer, its data, and how reference models repeat its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit.references.shadows import EstimatorTraining
from safexplain.cli.options import Options
from safexplain.cli.run.recipes import WEAKER, RecipeFile, TrainingFunction
from safexplain.errors import ConfigurationError, MissingExtraError
from safexplain.explain import CATALOG
from safexplain.explain.served import TABLE_METHODS
from safexplain.explain.shap.pipelines import MixedColumnsError
from safexplain.explain.tables import TableExplainerFactory
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data import ClassifierData, check_model_fits, load_for_classifier
from safexplain.loading.estimators import FittedClassifier, SkopsSerializer, identify_estimator
from safexplain.loading.files import one_line, read_bytes
from safexplain.loading.models import LoadedModel, load_model
from safexplain.outputs import EstimatorModule, are_places

EXACT, BY_QUERIES = ("TreeExplainer", "LinearExplainer"), "FeatureAblation"
"""The default explainers: the first that is exact for the classifier, else the one that works with every classifier."""

COLUMNS = "columns.json"
"""File of the run directory with the meaning of the numbers in a row."""


@dataclass(frozen=True, eq=False)
class Tabular:
    """A classifier and its data, ready to be audited."""

    found: FittedClassifier
    read: ClassifierData  # with the public rows
    loaded: LoadedModel
    outputs: int

    @classmethod
    def of(cls, given: Options, public: Path | None) -> Tabular:
        """The classifier that the options name, and its data; SafexplainError if they do not fit each other."""
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
                if adds_up(method, self.loaded.model, self.read.data.x):
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
        """How model and data were read, and which hyper-parameters of reference models are unknown."""
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
        """How reference models are trained: with the hyper-parameters of the classifier, or by the recipe."""
        found, columns = self.found, self.read.columns
        labels = None if are_places(found.classes) else found.classes
        if (function := file.function()) is not None:
            names, outputs = getattr(found.estimator, "feature_names_in_", None), self.outputs

            def train(x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
                """The function's model, fitted to a frame if the classifier was fitted to names, else to an array."""
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
        """Raise ConfigurationError for a method that needs gradients, and list those that do not."""
        queries = {row.name for row in CATALOG.values() if row.family in ("perturbation", "approximation")}
        fitting = [n for n, row in CATALOG.items() if n in TABLE_METHODS or (row.of == "input" and n in queries)]
        names = [make.method if isinstance(make, TableExplainerFactory) else make._row.name for make in makers]
        if refused := [name for name in names if name not in fitting]:
            raise ConfigurationError(
                f"{refused[0]} needs gradients, which a {type(self.found.estimator).__name__} does not have; expected"
                f" one of {', '.join(fitting)}"
            )


def is_classifier_file(path: Path | None) -> bool:
    """Whether a file holds a classifier of tables; a missing file is reported when it is loaded."""
    return path is not None and path.is_file() and identify_estimator(read_bytes(path, "model")) is not None


def adds_up(name: str, model: nn.Module, x: NDArray[np.float32]) -> bool:
    """Whether, on rows x (n, d), a method's attributions of two classes differ as the outputs do, up to a constant."""
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
    """Nested tables by scikit-learn's names for parameters of steps: [model] max_depth -> model__max_depth."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        found |= _flattened(value, f"{before}{name}__") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found
