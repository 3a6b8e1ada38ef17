"""recipe.toml of `audit` and `tune`: a recipe, with differential privacy, of two stages, or the name of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
from safexplain.audit.references.fine_tuning import Trainable, check_trainable
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
    """A training of the user's, `function = "module:train"` in a recipe: (x, y, generator) -> a trained model.

    Args:
        name: as the recipe has it.
        train: the function.
    """

    name: str
    train: Callable[..., Any] = field(repr=False)

    @classmethod
    def of(cls, name: Any, what: str) -> TrainingFunction:
        """By its name, found from the current directory.

        Raises:
            InputError: there is none, or it cannot be called with three arguments.
            ConfigurationError: no text.
        """
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

    def __call__(self, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
        """A model trained on (x, y).

        Raises:
            InputError: the function fails, or returns no model that takes x.
        """
        try:
            with current_directory_importable():
                model = self.train(x, y, generator)
            if callable(plain := getattr(model, "to_standard_module", None)):
                model = plain()  # of Opacus' wrapper, whose hooks nobody needs any more
        except SafexplainError:
            raise
        except Exception as error:  # any error of a stranger's code
            raise InputError(
                f"function {self.name} failed on {len(y):,} examples of shape {tuple(x.shape[1:])}:"
                f" {type(error).__name__}: {one_line(error)}"
            ) from error
        if not isinstance(model, nn.Module):
            raise InputError(f"function {self.name} must return a torch.nn.Module, got {type(model).__name__}")
        return model

    def __str__(self) -> str:
        return f'function = "{self.name}"\n'


class Read(NamedTuple):
    """How the model was trained, what else is said about a training in two stages, and caveats."""

    recipe: Recipe | TrainingFunction
    stages: Stages | None
    notes: tuple[str, ...] = ()


def stated(path: Path | None) -> tuple[float | None, int | None]:
    """What a recipe states of the model: its accuracy on examples that it was not trained on, and the number of rows
    that it was trained on; None where it states none.

    Raises:
        InputError: the file cannot be read or is not TOML.
        ConfigurationError: no share, or no number of rows.
    """
    written = {} if path is None else read_toml(path, "recipe")
    accuracy, examples = written.get("accuracy"), written.get("examples")
    if examples is not None:
        check_whole(f"recipe {path}: examples", examples, 1)
    if accuracy is None:
        return None, examples
    if isinstance(accuracy, bool) or not isinstance(accuracy, int | float) or not 0 < accuracy <= 1:
        raise ConfigurationError(
            f"recipe {path}: accuracy is a share of the examples that the model was not trained on, in (0, 1], got"
            f" {accuracy!r:.60}"
        )
    return float(accuracy), examples


def read_recipe(path: Path | None, pool: Path | None, seed: int, statement: PrivacyStatement | None = None) -> Read:
    """How the model was trained, and, where that was in two stages, the rest that is said about these.

    The file is a recipe; of a model that was fine-tuned, that of the fine-tuning. There it may also say `trainable`,
    and in a table `pretraining` the recipe of the pre-training. Or it names a `function`, and nothing else.

    Args:
        path: of the file; None: by default.
        pool: data of the pre-training, which is then asked about; None: `--data` is.
        seed: of recipes that are not given.
        statement: of the training, from which `[dp]` is filled; None: there is none.

    Raises:
        InputError: the file cannot be read or is not TOML, the function is not found, or the statement is about a
            training that cannot be repeated from it.
        ConfigurationError: an unknown name, a value out of range, or one that contradicts another.
    """
    what = "recipe" if path is None else f"recipe {path}"
    written: dict[str, Any] = {"seed": seed} if path is None else read_toml(path, "recipe")
    written.pop("accuracy", None)  # see `stated`
    if "function" in written:
        if others := sorted(written.keys() - {"function", "examples"}):
            raise ConfigurationError(
                f"{what}: function trains by itself, leave out {', '.join(others)}; or leave function out"
            )
        if pool is not None:
            raise ConfigurationError(f"{what}: function is for one stage of training; leave it out with a pool")
        return Read(TrainingFunction.of(written["function"], what), None)
    trainable, before = written.pop("trainable", None), written.pop("pretraining", None)
    own = written.get("dp", {})
    if trainable is not None and isinstance(own, dict) and ("dp" in written or statement is not None):
        written["dp"] = _one_trainable(own, trainable, what)
    recipe = Recipe.of(written, what, statement)
    said = "" if statement is None else overruled(written, statement, what)
    notes = (said,) if said else ()
    if pool is None and trainable is None and before is None:
        return Read(recipe, None, notes)
    pretraining = None if before is None else Recipe.of(_table(before, what), f"{what}: pretraining")
    trained = None if recipe.dp is None else recipe.dp.trainable
    if trainable is None and pool is not None and trained not in (None, *BY_BOTH):
        raise ConfigurationError(
            f"{what}: [dp] trainable = {as_toml(trained)} cannot be repeated after a pre-training; it is one of"
            f" {', '.join(BY_BOTH)} there, or trainable is a number of blocks above [dp]"
        )
    chosen: Any = trained if trainable is None and trained is not None else "head" if trainable is None else trainable
    found: Trainable = chosen
    try:
        check_trainable(found)
    except ConfigurationError:
        raise ConfigurationError(
            f'{what}: trainable is "head", "all", "lora", or a number of blocks of at least 1; got {found!r}'
        ) from None
    return Read(recipe, Stages("fine-tuning" if pool is None else "pre-training", pretraining, found), notes)


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{what}: pretraining must be a table, got {value!r:.60}")
    return value


def _one_trainable(own: dict[str, Any], trainable: Any, what: str) -> dict[str, Any]:
    """`[dp]`, with the recipe's `trainable` where it has none of its own."""
    said = own.get("trainable", trainable)
    if trainable in BY_BOTH and said == trainable:
        return {**own, "trainable": trainable}
    if trainable not in BY_BOTH and "trainable" in own:
        return own
    raise ConfigurationError(
        f"{what}: trainable = {trainable!r} says nothing of [dp], or another thing than it: say in [dp] what trained,"
        ' as trainable = "last-block"'
    )


def untrained(loaded: LoadedModel, dp: DPTraining) -> tuple[Build | None, str]:
    """What builds reference models that can train with differential privacy; None, and why, where nothing does.

    Args:
        loaded: the target. An exported graph is given layers again.
        dp: how references train.
    """
    fresh, layered = loaded.fresh, with_layers(loaded.model)
    frozen = frozen_operation(loaded.model, training=False)
    if fresh is None or frozen is not None:
        if dp.trainable == "head":
            return HeadRedrawn(layered), ""
        mixes = f"the exported graph holds {frozen}, which differential privacy does not allow; pass --arch"
        return None, loaded.fresh_unavailable or mixes
    if dp.trainable != "head" and fresh.__class__ is partial and (bare := without_layer(layered)):
        return None, (
            f"of the exported graph's parameters, {len(bare)} are used in bare operations ({', '.join(bare[:3])}), of"
            " which nobody can tell one example's part in a gradient; pass --arch, how the network is built"
        )
    return partial(_layered, fresh), ""


def _layered(fresh: Build, seed: int) -> nn.Module:
    return with_layers(fresh(seed))


def dp_notes(dp: DPTraining, statement: PrivacyStatement, members: int) -> tuple[str, ...]:
    """What is to be said of references that repeat a statement.

    Raises:
        InputError: the members are not the records of the statement.
    """
    check_records(statement, members)
    notes: tuple[str, ...] = ()
    if statement.records != members and not statement.count_noised:
        notes += (
            f"The privacy statement is about {statement.records:,} records, and the data marks {members:,} members, of"
            " whom reference models see as many.",
        )
    if statement.pretrained and dp.trainable != "head":
        notes += (
            "The model started from weights that had seen other data; reference models started from new weights, unless"
            " --arch gives them these: an attacker who has them may do better than this audit.",
        )
    return notes
