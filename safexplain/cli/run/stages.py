"""Audits of a model that was pre-trained and fine-tuned.

An audit of the pre-training data has two sets of data: the pool, part of which was in the pre-training, and the data of
the fine-tuning. Its reference models are trained likewise: pre-trained on random halves of the pool, then fine-tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from safexplain._digest import sha256
from safexplain._progress import as_stage
from safexplain.audit import FineTune, Population, Recipe, Shadows, fine_tune, train_shadows
from safexplain.audit.asked import predict
from safexplain.audit.controls.splits import copies_of, refuse_copies
from safexplain.audit.question import Question, SubjectData
from safexplain.audit.references.fine_tuning import Trainable, replace_head
from safexplain.audit.references.recipe import check_examples
from safexplain.audit.run import hardly_better_than_guessing
from safexplain.audit.signals import hash_examples
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData, check_data, check_model_fits
from safexplain.loading.models.exported import ExportedModel
from safexplain.loading.models.load import LoadedModel

STARTED_ELSEWHERE = (
    "The model started from weights that had seen other data, and reference models from new ones, unless --arch gives"
    " them these: an attacker who has them may do better than this audit."
)


@dataclass(frozen=True)
class Stages:
    """How a model was pre-trained and fine-tuned, as far as it was said."""

    subject: SubjectData  # whose membership is attacked
    recipe: Recipe | None  # of the pre-training, if it was given
    trainable: Trainable  # what was fine-tuned


@dataclass(frozen=True)
class TwoStages:
    """An audit of the pre-training data; making it raises InputError if the data or the model cannot be used."""

    stages: Stages
    downstream: AuditData  # of the fine-tuning, its members what the model was fine-tuned on
    pool: AuditData  # of the pre-training
    loaded: LoadedModel
    tuning: Recipe
    outputs: int  # of the model
    trains: bool  # whether there will be reference models
    seed: int

    def __post_init__(self) -> None:
        check_data(self.downstream, num_classes=self.outputs, both_sides=False)
        check_model_fits(self.loaded.model, self.pool)
        refuse_copies(copies_of(hash_examples(self.pool.x), self.pool.x), self.pool.member)
        if self.trains:
            check_examples(self.pretraining.examples, len(self.pool.x) // 2)
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
        return FineTune(
            Population.of(self.downstream.x, self.downstream.y),
            self.tuning,
            self.stages.trainable,
            sample=float(self.downstream.member.mean()),
            outputs=self.outputs,
        )

    def notes(self) -> tuple[str, ...]:
        """Caveats, and what the reader must know of the fine-tuning."""
        found = check_data(self.pool, num_classes=None)
        member, data = self.downstream.member, self.how.downstream
        predicted = predict(Shadows((self.loaded.model,), member[None]), data, patience=(1,)).label[0]
        hit = predicted == self.downstream.y
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
        if not self.trains:
            return found
        part = self.stages.trainable
        blocks = f"the last {'block' if part == 1 else f'{part} blocks'} and the head"
        known = {"head": "the head", "all": "all layers", "lora": "low-rank adapters and the head"}
        told = self.stages.recipe or no_recipe(self.pretraining, "[pretraining] in the recipe", "pre-trained")
        return (
            *found,
            f"Reference models were pre-trained on random halves of the pool ({len(self.pool.y):,} examples), then"
            f" fine-tuned ({known.get(str(part), blocks)}) on {int(member.sum()):,} of the {len(member):,} rows of"
            " the fine-tuning data each.",
            *{caveat for recipe in (self.pretraining, self.tuning) if (caveat := recipe.caveat())},
            *([told] if isinstance(told, str) else []),
        )

    def materials(self) -> dict[str, str]:
        """Digests of the pool and of the pre-training's recipe."""
        recipe = {"pre-training recipe sha256": sha256(self.pretraining.to_toml())} if self.trains else {}
        return {f"pre-training pool {self.pool.source} sha256": self.pool.sha256, **recipe}

    def trained(self, question: Question) -> Question:
        """The question with reference models, which are pre-trained and fine-tuned first."""
        assert isinstance(question.references, int)
        how: dict[str, Any] = {"seed": self.seed, "device": question.place, "cache": question.cache}
        pretrained = train_shadows(
            question.population,
            self.pretraining,
            build=self.fresh,
            models=question.references,
            progress=as_stage(question.progress, "pre-training reference models"),
            **how,
        )
        progress = as_stage(question.progress, "fine-tuning reference models")
        shadows = fine_tune(pretrained, self.how, progress=progress, **how)
        return replace(question, shadows=shadows, recipe=self.tuning, build=self.loaded.fresh)

    def fresh(self, seed: int) -> nn.Module:
        """An untrained model with a head for the pool's classes."""
        assert self.loaded.fresh is not None
        fresh = self.loaded.fresh(seed)
        try:
            return replace_head(fresh, int(self.pool.y.max()) + 1, seed=seed)
        except InputError as error:
            graph = "; say with --arch how the network is built, beside the same file"
            how = graph if isinstance(fresh, ExportedModel) else ""
            raise InputError(f"reference models cannot be pre-trained: {error}{how}") from None


def no_recipe(recipe: Recipe, missing: str, trained: str) -> str:
    """The caveat of a model without a recipe."""
    return (
        f"No {missing}: reference models were {trained} by a default ({recipe.optimizer}, learning rate {recipe.lr:g},"
        f" {recipe.epochs} epochs, batch {recipe.batch_size}). If the model was {trained} differently, a real"
        " attacker may do better than this audit: a leak found is a leak, a certificate says less."
    )
