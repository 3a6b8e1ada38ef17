"""`safexplain audit`: a stranger's model and data, from files to a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from safexplain._digest import model_digest, weights_digest
from safexplain._progress import Progress, named
from safexplain.audit import Policy, Population, Queries, Recipe, Shadows, train_shadows
from safexplain.audit.attacks.scoring import FEWEST_FOR_NULL
from safexplain.audit.references.cache import ModelCache
from safexplain.cli.folders import make_folder
from safexplain.cli.pipeline import run_pipeline
from safexplain.cli.plan import QUERIES, Outcome, Plan, Pool
from safexplain.cli.release import Method
from safexplain.errors import InputError
from safexplain.hardening.hardening import Hardening
from safexplain.loading.data.checks import AuditData, check_data
from safexplain.loading.data.load import load_data
from safexplain.loading.model_checks import check_model_fits
from safexplain.loading.models.load import LoadedModel, load_model
from safexplain.verdict.canaries.finding import Finding
from safexplain.verdict.canaries.result import load_finding
from safexplain.verdict.certificate.write import MODEL_DIGEST
from safexplain.verdict.privacy_statement import PrivacyStatement

FEWEST_REFERENCES = 4
"""Fewer reference models leave many examples without one on each side."""


ENOUGH_REFERENCES = 16
"""From here on, more reference models strengthen the likelihood ratio slowly."""


@dataclass(frozen=True)
class Source:
    """Where model and data come from, as the options of the command line say it."""

    model: Path
    data: Path | None
    arch: str | None = None
    num_classes: int | None = None
    trust_pickle: bool = False
    label: str | None = None
    members: Path | None = None
    non_members: Path | None = None
    member_column: str = "member"
    image_size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class Effort:
    """How hard the audit tries: reference models, their recipe, sizes, device, adaptive queries, classes beside the
    predicted one (None: all); and whether examples that were used for another verdict may be used again."""

    references: int
    recipe: Recipe | None
    seed: int
    device: torch.device
    batch_size: int = 256
    queries: Queries = QUERIES
    classes: tuple[int, ...] | None = ()
    force: bool = False
    notes: tuple[str, ...] = field(default=())
    privacy: Path | None = None
    canaries: Path | None = None


def audit_model(
    source: Source,
    method: Method,
    hardening: tuple[str, Hardening],
    policy: Policy,
    effort: Effort,
    folder: Path,
    progress: Progress,
) -> Outcome:
    """Load, check, train reference models, attack, and write the files.

    Raises:
        InputError: anything about the model, the data or the options that cannot be used.
    """
    if effort.references and effort.references < FEWEST_REFERENCES:
        raise InputError(f"--references is 0 or at least {FEWEST_REFERENCES}, got {effort.references}")
    data = load_data(
        source.data,
        label=source.label,
        members=source.members,
        non_members=source.non_members,
        member_column=source.member_column,
        image_size=source.image_size,
    )
    data = _normalised(data, source.mean, source.std)
    loaded = load_model(
        source.model,
        arch=source.arch,
        num_classes=source.num_classes,
        trust_pickle=source.trust_pickle,
        input_shape=tuple(data.x.shape[1:]),
    )
    classes = check_model_fits(loaded.model, data)
    notes = [*effort.notes, *check_data(data, num_classes=classes)]
    make_folder(folder)
    population = Population.of(data.x, data.y)
    target = loaded.model.to(effort.device)
    privacy = _privacy(effort.privacy, target)
    canaries = _canaries(effort.canaries, privacy)
    notes += _fit_notes(target, population, data, effort)
    shadows = _references(loaded, population, effort, folder, notes, progress).behind(target, data.member)
    plan = Plan(
        title=source.model.name,
        method=method,
        name=hardening[0],
        hardening=hardening[1],
        policy=policy,
        seed=effort.seed,
        batch_size=effort.batch_size,
        queries=effort.queries,
        classes=tuple(range(classes)) if effort.classes is None else effort.classes,
        recipe=(effort.recipe or Recipe(seed=effort.seed)).to_toml(),
        force=effort.force,
        subject={source.model.name: {"sha256": loaded.sha256, MODEL_DIGEST: model_digest(target).hex()}},
        materials={f"data {data.source} sha256": data.sha256},
        notes=tuple(notes),
        privacy=privacy,
        canaries=canaries,
    )
    untrained = None
    if len(shadows.models) < FEWEST_FOR_NULL and loaded.fresh is not None:
        untrained = loaded.fresh(effort.seed).to(effort.device).eval()
    return run_pipeline([Pool(population, shadows, untrained)], plan, folder, progress)


def _privacy(path: Path | None, target: nn.Module) -> PrivacyStatement | None:
    """The statement of this very model's training."""
    if path is None:
        return None
    stated = PrivacyStatement.load(path)
    if stated.weights and stated.weights != weights_digest(target):
        raise InputError(
            f"the privacy statement {path} is about other weights than the model's: {stated.weights[:16]}... stated,"
            f" {weights_digest(target)[:16]}... found; give the statement that the training of this model wrote"
        )
    return stated


def _canaries(path: Path | None, privacy: PrivacyStatement | None) -> Finding | None:
    """What canaries found, about the training that the statement is about, and not against it."""
    if path is None:
        return None
    found = load_finding(path)
    if privacy is not None and found.claim.mechanism not in privacy.phases:
        raise InputError(
            f"the canaries {path} are about another training than the privacy statement: {found.claim.mechanism},"
            f" not {', '.join(map(str, privacy.phases))}; audit the training that was stated"
        )
    if privacy is not None and found.keeps_claim is False:
        raise InputError(f"the canaries {path} refute the privacy statement, which cannot be certified: {found}")
    return found


def _normalised(data: AuditData, mean: tuple[float, ...], std: tuple[float, ...]) -> AuditData:
    """Images as (x - mean) / std per channel, members and non-members alike."""
    if not mean and not std:
        return data
    channels = data.x.shape[1] if data.is_image else 0
    if not data.is_image or {len(mean), len(std)} - {1, channels} or min(std, default=0) <= 0:
        raise InputError(
            f"--mean and --std normalise images, one number or one a channel ({channels}), std above 0;"
            f" got mean {list(mean)}, std {list(std)} for x of shape {data.x.shape}"
        )
    shape = (1, -1, 1, 1)
    x = (data.x - np.array(mean).reshape(shape)) / np.array(std).reshape(shape)
    return replace(data, x=x.astype(np.float32))


def _references(
    loaded: LoadedModel,
    population: Population,
    effort: Effort,
    folder: Path,
    notes: list[str],
    progress: Progress,
) -> Shadows:
    """Reference models, as many as can be had; what stands in the way goes into the notes."""
    none = Shadows((), np.zeros((0, len(population)), dtype=bool))
    if effort.references == 0:
        notes.append("No reference models (--references 0): only threshold attacks ran, so nothing can be certified.")
        return none
    if loaded.fresh is None:
        notes.append(f"No reference models: {loaded.fresh_unavailable}. Only threshold attacks ran.")
        return none
    if effort.references < ENOUGH_REFERENCES:
        notes.append(f"Only {effort.references} reference models: a real attacker may train more and find more.")
    recipe = effort.recipe or Recipe(seed=effort.seed)
    if effort.recipe is None:
        notes.append(
            f"No --recipe: reference models were trained by a default ({recipe.optimizer}, learning rate {recipe.lr:g},"
            f" {recipe.epochs} epochs, batch {recipe.batch_size}). If the model was trained differently, a real"
            " attacker may do better than this audit: a leak found is a leak, a certificate says less."
        )
    return train_shadows(
        population,
        recipe,
        build=loaded.fresh,
        models=effort.references,
        seed=effort.seed,
        device=effort.device,
        cache=ModelCache(folder / "models"),
        progress=named(progress, "training reference models"),
    )


def _fit_notes(target: nn.Module, population: Population, data: AuditData, effort: Effort) -> list[str]:
    """Accuracy on members and non-members, and what it says about the files."""
    hits = []
    with torch.no_grad():
        for start in range(0, len(population), effort.batch_size):
            part = slice(start, start + effort.batch_size)
            predicted = target(population.x[part].to(effort.device)).argmax(1).cpu()
            hits.append((predicted == population.y[part]).numpy())
    hit = np.concatenate(hits)
    inside, outside = float(hit[data.member].mean()), float(hit[~data.member].mean())
    notes = [f"Accuracy of the model: {inside:.1%} on members, {outside:.1%} on non-members."]
    if inside < 1.5 / len(torch.unique(population.y)):
        notes.append("It is hardly better than guessing on its members: are the labels and the scaling of x right?")
    return notes
