"""Audits of a model that was pre-trained and fine-tuned.

An audit of the pre-training data has two sets of data: the pool, part of which was in the pre-training, and the data of
the fine-tuning. Its reference models are trained likewise: pre-trained on random halves of the pool, then fine-tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from safexplain._digest import sha256
from safexplain._progress import Progress, named
from safexplain.audit import FineTune, Population, Recipe, Shadows, fine_tune, train_shadows
from safexplain.audit.controls.splits import refuse_copies
from safexplain.audit.question import FEWEST_REFERENCES, SubjectData
from safexplain.audit.references.fine_tuning import Trainable, replace_head
from safexplain.audit.run import hardly_better_than_guessing
from safexplain.audit.signals import hash_examples
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData, check_data, check_model_fits
from safexplain.loading.models.exported import ExportedModel
from safexplain.loading.models.load import LoadedModel


@dataclass(frozen=True)
class Stages:
    """How a model was pre-trained and fine-tuned, as far as it was said."""

    subject: SubjectData  # whose membership is attacked
    recipe: Recipe | None  # of the pre-training, if it was given
    trainable: Trainable  # what was fine-tuned

    def notes(self, references: int) -> tuple[str, ...]:
        """Caveats of an audit of the fine-tuning data."""
        if not references:
            return ()
        return (
            "Reference models started from new weights, not from the pre-trained ones, unless --arch gives them these:"
            " an attacker who has the pre-trained weights may do better than this audit.",
        )


@dataclass(frozen=True)
class TwoStages:
    """An audit of the pre-training data; making it raises InputError if the data or the model cannot be used."""

    stages: Stages
    downstream: AuditData  # of the fine-tuning, its members what the model was fine-tuned on
    pool: AuditData  # of the pre-training
    loaded: LoadedModel
    tuning: Recipe
    outputs: int  # of the model
    references: int
    seed: int

    def __post_init__(self) -> None:
        check_data(self.downstream, num_classes=self.outputs, both_sides=False)
        check_model_fits(self.loaded.model, self.pool)
        if 0 < self.references < FEWEST_REFERENCES:
            raise InputError(f"--references: expected 0 or at least {FEWEST_REFERENCES}, got {self.references}")
        refuse_copies(hash_examples(self.pool.x), self.pool.member)
        if self.references:
            fresh = self.fresh(self.seed)
            try:
                self.how.check(fresh)
            except InputError as error:
                raise InputError(f"reference models cannot be fine-tuned: {error}") from None

    @cached_property
    def pretraining(self) -> Recipe:
        """Recipe of the pre-training."""
        return self.stages.recipe or Recipe(seed=self.seed)

    @cached_property
    def how(self) -> FineTune:
        """The fine-tuning, on as many rows as the model was fine-tuned on."""
        member, private = self.downstream.member, self.tuning.dp
        dp: dict[str, Any] | None = None if private is None else private.arguments()
        if private is not None and dp is not None and private.sample_rate is not None:
            dp["batch_size"] = private.sample_rate * int(member.sum())
        return FineTune(
            Population.of(self.downstream.x, self.downstream.y),
            replace(self.tuning, dp=None),
            self.stages.trainable,
            sample=float(member.mean()),
            dp=dp,
            outputs=self.outputs,
        )

    def notes(self) -> tuple[str, ...]:
        """Caveats, and what the reader must know of the fine-tuning."""
        found = check_data(self.pool, num_classes=None)
        model, x = self.loaded.model, torch.from_numpy(self.downstream.x)
        device = next((p.device for p in model.parameters()), x.device)
        with torch.no_grad():
            predicted = torch.cat([model(rows.to(device)).argmax(1).cpu() for rows in torch.split(x, 256)])
        member, hit = self.downstream.member, predicted.numpy() == self.downstream.y
        others = "" if member.all() else f", {hit[~member].mean():.1%} on others"
        found += (
            "Accuracy of the model on the fine-tuning data:"
            f" {hit[member].mean():.1%} on the rows that it was fine-tuned on{others}.",
        )
        if hardly_better_than_guessing(float(hit[member].mean()), len(np.unique(self.downstream.y))):
            found += ("It is hardly better than guessing there: are the labels and the scaling of x right?",)
        both = np.isin(hash_examples(self.downstream.x), hash_examples(self.pool.x)) & member
        if both.any():
            found += (
                f"{int(both.sum())} of the rows that the model was fine-tuned on are in the pool, too: the audit cannot"
                " tell which of the two stages reveals these.",
            )
        if self.references:
            count, n = int(member.sum()), len(member)
            found += (
                f"Reference models were pre-trained on random halves of the pool ({len(self.pool.y):,} examples), then"
                f" fine-tuned ({_in_words(self.stages.trainable)}) on {count:,} of the {n:,} rows of the fine-tuning"
                " data each.",
            )
            found += tuple({caveat for recipe in (self.pretraining, self.tuning) if (caveat := recipe.caveat())})
            if self.stages.recipe is None:
                found += (no_recipe(self.pretraining, "[pretraining] in the recipe", "pre-trained"),)
        return found

    def materials(self) -> dict[str, str]:
        """Digests of the pool and of the pre-training's recipe."""
        recipe = {"pre-training recipe sha256": sha256(self.pretraining.to_toml())} if self.references else {}
        return {f"pre-training pool {self.pool.source} sha256": self.pool.sha256, **recipe}

    def train(self, population: Population, device: torch.device, cache: Path, progress: Progress) -> Shadows | None:
        """The reference models, if there are to be any."""
        if not self.references:
            return None
        pretrained = train_shadows(
            population,
            self.pretraining,
            build=self.fresh,
            models=self.references,
            seed=self.seed,
            device=device,
            cache=cache,
            progress=named(progress, "pre-training reference models"),
        )
        progress = named(progress, "fine-tuning reference models")
        return fine_tune(pretrained, self.how, seed=self.seed, device=device, cache=cache, progress=progress)

    def fresh(self, seed: int) -> nn.Module:
        """An untrained model with a head for the pool's classes."""
        assert self.loaded.fresh is not None
        fresh = self.loaded.fresh(seed)
        if isinstance(fresh, ExportedModel):
            raise InputError(
                "reference models cannot be pre-trained from an exported graph, whose head cannot be replaced; say with"
                " --arch how the network is built, beside the same file"
            )
        try:
            return replace_head(fresh, int(self.pool.y.max()) + 1, seed=seed)
        except InputError as error:
            raise InputError(f"reference models cannot be pre-trained: {error}") from None


def _in_words(trainable: Trainable) -> str:
    if isinstance(trainable, int):
        return f"the last {'block' if trainable == 1 else f'{trainable} blocks'} and the head"
    return {"head": "the head", "all": "all layers", "lora": "low-rank adapters and the head"}[trainable]


def no_recipe(recipe: Recipe, missing: str, trained: str) -> str:
    """The caveat of a model without a recipe."""
    return (
        f"No {missing}: reference models were {trained} by a default ({recipe.optimizer}, learning rate {recipe.lr:g},"
        f" {recipe.epochs} epochs, batch {recipe.batch_size}). If the model was {trained} differently, a real"
        " attacker may do better than this audit: a leak found is a leak, a certificate says less."
    )
