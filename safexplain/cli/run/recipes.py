"""recipe.toml of `audit` and `tune`: a recipe, with differential privacy, of two stages, or the name of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from safexplain._validate import check_whole, read_toml
from safexplain.audit import Recipe
from safexplain.audit.references.dp_recipe import DPTraining, as_toml, check_records, overruled
from safexplain.audit.references.dp_training import HeadRedrawn
from safexplain.audit.references.fine_tuning import check_trainable
from safexplain.audit.references.shadows import Build
from safexplain.cli.run.stages import Stages
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

    @classmethod
    def of(cls, written: Mapping[str, Any], what: str) -> TrainingFunction:
        """That of a recipe, which says nothing else; found from the current directory.

        Raises:
            InputError, ConfigurationError: there is none, or it cannot be called with three arguments.
        """
        name = written["function"]
        if others := sorted(written.keys() - {"function", "examples"}):
            raise ConfigurationError(
                f"{what}: function trains by itself, leave out {', '.join(others)}; or leave function out"
            )
        if not isinstance(name, str):
            raise ConfigurationError(f'{what}: function is a text, "module:train", got {name!r:.60}')
        train = imported(name, f"{what}: function", '"package.module:function"')
        try:
            inspect.signature(train).bind(None, None, None)
        except TypeError:
            raise InputError(
                f"{what}: function {name} does not take three arguments: it is called as train(x, y, generator), with"
                " the inputs and labels of the members and a torch.Generator, and returns a trained model"
            ) from None
        return cls(name, train)

    def fit(self, x: Any, y: Any, generator: torch.Generator) -> Any:
        """What the function returns, or InputError if it fails."""
        try:
            with current_directory_importable():
                return self.train(x, y, generator)
        except SafexplainError:
            raise
        except Exception as error:  # any error of a stranger's code
            raise InputError(
                f"function {self.name} failed on {len(y):,} examples of shape {tuple(x.shape[1:])}:"
                f" {type(error).__name__}: {one_line(error)}"
            ) from error

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
        """A model trained on (x, y), without what Opacus wrapped it in, or InputError."""
        model = self.fit(x, y, generator)
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


def stated(path: Path | None) -> tuple[float | None, int | None]:
    """What a recipe says of the model, or None: its accuracy on examples that it was not trained on, which
    `AuditOptions` checks, and the number of rows that it was trained on."""
    written = {} if path is None else read_toml(path, "recipe")
    if (examples := written.get("examples")) is not None:
        check_whole(f"recipe {path}: examples", examples, 1)
    return written.get("accuracy"), examples


def read_recipe(path: Path | None, pool: Path | None, seed: int, statement: PrivacyStatement | None = None) -> Read:
    """How the model was trained, in one stage or two.

    The file is a recipe; for a fine-tuned model, that of the fine-tuning. It may then also have `trainable`, and in a
    table `pretraining` the recipe of the pre-training. Or it names a `function`, and nothing else. With the `pool` of a
    pre-training, membership in that is audited. `seed` is for recipes that are not given; `statement` fills `[dp]`.

    Raises:
        InputError, ConfigurationError: the file, its function or a training as in the statement cannot be used.
    """
    what = "recipe" if path is None else f"recipe {path}"
    written: dict[str, Any] = {"seed": seed} if path is None else read_toml(path, "recipe")
    written.pop("accuracy", None)  # see `stated`
    if "function" in written:
        if pool is not None:
            raise ConfigurationError(f"{what}: function is for one stage of training; leave it out with a pool")
        return Read(TrainingFunction.of(written, what), None)
    trainable, before = written.pop("trainable", None), written.pop("pretraining", None)
    own = written.get("dp", {})
    if trainable is not None and isinstance(own, dict) and ("dp" in written or statement is not None):
        own = {"trainable": trainable, **own} if trainable in BY_BOTH else own
        if "trainable" not in own or (trainable in BY_BOTH and own["trainable"] != trainable):
            raise ConfigurationError(
                f"{what}: trainable = {trainable!r} says nothing of [dp], or contradicts it: write what trained in"
                ' [dp], as trainable = "last-block"'
            )
        written["dp"] = own
    recipe = Recipe.of(written, what, statement)
    notes = () if statement is None else tuple(filter(None, [overruled(written, statement, what)]))
    if pool is None and trainable is None and before is None:
        return Read(recipe, None, notes)
    if before is not None and not isinstance(before, dict):
        raise ConfigurationError(f"{what}: pretraining must be a table, got {before!r:.60}")
    pretraining = None if before is None else Recipe.of(before, f"{what}: pretraining")
    trained = None if recipe.dp is None else recipe.dp.trainable
    if trainable is None and pool is not None and trained not in (None, *BY_BOTH):
        raise ConfigurationError(
            f"{what}: [dp] trainable = {as_toml(trained)} cannot be repeated after a pre-training; it is one of"
            f" {', '.join(BY_BOTH)} there, or trainable is a number of blocks above [dp]"
        )
    found: Any = trainable if trainable is not None else trained or "head"
    try:
        check_trainable(found)
    except ConfigurationError:
        raise ConfigurationError(
            f'{what}: trainable is "head", "all", "lora", or a number of blocks of at least 1; got {found!r}'
        ) from None
    return Read(recipe, Stages("fine-tuning" if pool is None else "pre-training", pretraining, found), notes)


def untrained(loaded: LoadedModel, dp: DPTraining) -> tuple[Build | None, str]:
    """What builds reference models that can train with differential privacy, an exported graph with layers again; or
    None and the reason."""
    fresh, layered = loaded.fresh, with_layers(loaded.model)
    frozen = frozen_operation(loaded.model, training=False)
    if fresh is None or frozen is not None:
        if dp.trainable == "head":
            return HeadRedrawn(layered), ""
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
    notes: tuple[str, ...] = ()
    if statement.records != members and not statement.count_noised:
        notes += (
            f"The privacy statement is about {statement.records:,} records, and the data marks {members:,} members;"
            " reference models see as many.",
        )
    if statement.pretrained and dp.trainable != "head":
        notes += (
            "The model started from weights that had seen other data; reference models started from new weights, unless"
            " --arch gives them these: an attacker who has them may do better than this audit.",
        )
    return notes
