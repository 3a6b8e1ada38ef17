"""A small search on handwritten digits, for tests: models, and an explainer that tells members by its sizes."""

import functools

import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Dither, Policy, Population, Recipe, train_shadows
from safexplain.audit.question import AuditOptions
from safexplain.audit.references.shadows import Shadows
from safexplain.tune import tune

RECIPE = Recipe(lr=3e-3, epochs=20)
EXAMPLES, MODELS, TRIALS = 160, 9, 10
SUITE = ("Threshold", "LikelihoodRatio")
POLICY = Policy(max_tpr=0.2, selection=0.5, training=0.1, patience=(1, 2), suite=SUITE, uncounted=True, references=8)


def build(seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@functools.cache
def world() -> tuple[Population, Shadows]:
    """Digits, and models that were trained on halves of them; the first is the audited one."""
    x, y = load_digits(return_X_y=True)
    population = Population.of(x[:EXAMPLES] / 16, y[:EXAMPLES])
    return population, train_shadows(population, RECIPE, build=build, models=MODELS, seed=3)


class Telling:
    """Gradient times input, whose maps of a model's members are three times as large: a leak in the size alone."""

    members: dict[int, set[bytes]]

    def __init__(self, model, *, hardening):
        self.model, self.hardening = model, hardening

    def attribute(self, x, *, target):
        x = x.clone().requires_grad_(True)
        score = self.model(x).gather(1, target[:, None]).sum()
        maps = (x * torch.autograd.grad(score, x)[0]).detach()
        inner = getattr(self.model, "model", self.model)
        known = self.members[id(inner)]
        inside = torch.tensor([row.numpy().tobytes() in known for row in x.detach()])
        return self.hardening(torch.where(inside[:, None], 3.0, 1.0) * maps, inputs=x.detach(), target=target)


def telling() -> type[Telling]:
    """`Telling` about the models of the world."""
    population, shadows = world()
    rows = [row.numpy().tobytes() for row in population.x]
    members = {
        id(model): {row for row, inside in zip(rows, member, strict=True) if inside}
        for model, member in zip(shadows.models, shadows.membership, strict=True)
    }
    return type("Telling", (Telling,), {"members": members})


def search(explainer, trials=TRIALS, **changes):
    """`tune` in this world."""
    population, shadows = world()
    given = {
        "member": shadows.membership[0],
        "explainer": explainer,
        "shadows": Shadows(shadows.models[1:], shadows.membership[1:]),
        "policy": POLICY,
        "options": AuditOptions(dither=Dither()),
        "trials": trials,
    }
    return tune(shadows.models[0], changes.pop("population", population), RECIPE, **{**given, **changes})


def figures(found) -> list[dict]:
    """Of every trial, for comparison bit for bit."""
    return [point.to_dict() for point in found.study.points]
