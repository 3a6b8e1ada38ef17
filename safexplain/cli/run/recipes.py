"""recipe.toml of `audit` and `tune`: a recipe, with differential privacy, of two stages, or the name of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from safexplain._validate import check_whole, read_toml
from safexplain.audit import Recipe
from safexplain.audit.question import SubjectData
from safexplain.audit.references.dp_recipe import DPTraining, check_records, overruled
from safexplain.audit.references.fine_tuning import Trainable, check_trainable, replace_head
from safexplain.audit.references.shadows import Build
from safexplain.cli.run.stages import STARTED_ELSEWHERE, Stages
from safexplain.errors import ConfigurationError, InputError, SafexplainError
from safexplain.loading.files import one_line
from safexplain.loading.models.architectures import current_directory_importable, imported
from safexplain.loading.models.exported import frozen_operation
from safexplain.loading.models.layers import with_layers, without_layer
from safexplain.loading.models.load import LoadedModel
from safexplain.verdict.privacy_statement import PrivacyStatement

BY_BOTH = ("head", "all", "lora")
"""What both a recipe's `trainable` and `[dp]` have words for."""


@dataclass(frozen=True)
class TrainingFunction:
    """The user's `function = "module:train"` in a recipe: (x, y, generator) -> a trained model."""

    name: str  # as in the recipe
    train: Callable[..., Any] = field(repr=False)

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
        """A model trained on (x, y), without what Opacus wrapped it in, or InputError."""
        try:
            with current_directory_importable():
                model = self.train(x, y, generator)
        except SafexplainError:
            raise
        except Exception as error:  # any error of a stranger's code
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


class Read(NamedTuple):
    """How the model was trained, the other stage if there were two, and caveats."""

    recipe: Recipe | TrainingFunction
    stages: Stages | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeFile:
    """What the file of --recipe says."""

    path: Path | None  # None: there is no file
    values: Mapping[str, Any]  # how the model was trained
    accuracy: float | None = None  # of the model on examples that it was not trained on; `AuditOptions` checks it
    examples: int | None = None  # rows that the model was trained on

    @classmethod
    def read(cls, path: Path | None) -> RecipeFile:
        """The file, or InputError."""
        values = {} if path is None else read_toml(path, "recipe")
        accuracy, examples = values.pop("accuracy", None), values.get("examples")
        if examples is not None:
            check_whole(f"recipe {path}: examples", examples, 1)
        return cls(path, values, accuracy, examples)

    @property
    def what(self) -> str:
        """As messages call it."""
        return "recipe" if self.path is None else f"recipe {self.path}"

    def function(self) -> TrainingFunction | None:
        """The function that it names instead of all else, found from the current directory."""
        if (name := self.values.get("function")) is None:
            return None
        if others := sorted(self.values.keys() - {"function", "examples"}):
            raise ConfigurationError(
                f"{self.what}: function trains by itself, leave out {', '.join(others)}; or leave function out"
            )
        if not isinstance(name, str):
            raise ConfigurationError(f'{self.what}: function is a text, "module:train", got {name!r:.60}')
        train = imported(name, f"{self.what}: function", '"package.module:function"')
        try:
            inspect.signature(train).bind(None, None, None)
        except TypeError:
            raise InputError(
                f"{self.what}: function {name} does not take three arguments: it is called as train(x, y, generator),"
                " with the inputs and labels of the members and a torch.Generator, and returns a trained model"
            ) from None
        return TrainingFunction(name, train)

    def training(self, pool: Path | None, seed: int, statement: PrivacyStatement | None = None) -> Read:
        """How a network was trained. With the `pool` of a pre-training, membership in that is audited; `seed` is for a
        recipe that is not given, and a `statement` fills `[dp]`."""
        if (function := self.function()) is not None:
            if pool is not None:
                raise ConfigurationError(
                    f"{self.what}: function is for one stage of training; leave it out with a pool"
                )
            return Read(function, None)
        values: dict[str, Any] = {"seed": seed} if self.path is None else dict(self.values)
        part, before = values.pop("trainable", None), values.pop("pretraining", None)
        private: Any = values.get("dp", None if statement is None else {})
        if part in BY_BOTH and isinstance(private, dict):
            values["dp"] = {"trainable": part, **private}
        recipe = Recipe.of(values, self.what, statement)
        notes = () if statement is None else tuple(filter(None, [overruled(values, statement, self.what)]))
        if pool is None and part is None and before is None:
            return Read(recipe, None, notes)
        trained = None if recipe.dp is None else recipe.dp.trainable
        if part is not None and trained is not None and (trained != part if part in BY_BOTH else trained == "all"):
            raise ConfigurationError(
                f"{self.what}: trainable = {part!r} contradicts [dp], where it is {trained!r}: write there what"
                ' trained, as trainable = "last-block"'
            )
        if before is not None and not isinstance(before, dict):
            raise ConfigurationError(f"{self.what}: pretraining must be a table, got {before!r:.60}")
        try:
            check_trainable(found := trained or "head" if part is None else part)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.what}: {error}") from None
        pretraining = None if before is None else Recipe.of(before, f"{self.what}: pretraining")
        subject: SubjectData = "fine-tuning" if pool is None else "pre-training"
        return Read(recipe, Stages(subject, pretraining, cast("Trainable", found)), notes)


def untrained(loaded: LoadedModel, dp: DPTraining) -> tuple[Build | None, str]:
    """What builds reference models that can train with differential privacy, an exported graph with layers again; or
    None and the reason."""
    fresh, layered = loaded.fresh, with_layers(loaded.model)
    frozen = frozen_operation(loaded.model, training=False)
    if fresh is None or frozen is not None:
        if dp.trainable == "head":
            return lambda seed: replace_head(layered, seed=seed), ""
        mixes = f"the exported graph holds {frozen}, which differential privacy does not allow; pass --arch"
        return None, loaded.fresh_unavailable or mixes
    if dp.trainable != "head" and fresh.__class__ is partial and (bare := without_layer(layered)):
        return None, (
            f"{len(bare)} of the exported graph's parameters are used in bare operations ({', '.join(bare[:3])}), whose"
            " gradients cannot be split by example; pass --arch, how the network is built"
        )
    return partial(_layered, fresh), ""


def _layered(fresh: Build, seed: int) -> nn.Module:
    return with_layers(fresh(seed))


def dp_notes(dp: DPTraining, statement: PrivacyStatement, members: int) -> tuple[str, ...]:
    """Caveats of references that repeat a statement, or InputError if the members are not its records."""
    check_records(statement, members)
    notes = (STARTED_ELSEWHERE,) if statement.pretrained and dp.trainable != "head" else ()
    if statement.records == members or statement.count_noised:
        return notes
    return (
        f"The privacy statement is about {statement.records:,} records, and the data marks {members:,} members;"
        " reference models see as many.",
        *notes,
    )
