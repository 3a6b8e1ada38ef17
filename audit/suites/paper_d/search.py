"""DeepLeak's search as published, and the same search with what it is judged on kept apart from what it chose.

**As published** (section V-A, released code): one target and one shadow model, trained on some of the target's own
members; maps of the true label; members are cropped and flipped before they are explained, non-members are not; a
network learns members' from non-members' maps on the shadow model's; the best of several seeds on the target's examples
is kept, and so is, of the default and the trials, the one with the lowest TPR at .1 % on them (of equal ones that with
the lowest sensitivity_max). Utility is Captum's sensitivity_max, one perturbation.

**Split-honest**: the same trials; one pool, coin flips, maps of the predicted label, members and non-members treated
alike. A leak is what our attacks (`ATTACKS`), each stacked with the label, find more than the label does: mean of the
TPRs at .5, 1, 2 and 5 %, by the strongest. On one half of the examples (or tracks) are chosen the strongest attack on
each trial, and the trial with the lowest leak among those that keep the deletion faithfulness to 3.3 %, the paper's
bound; on the other half both are reported. Intervals come from resampling these examples.

Explained is the probability, of which explanations leak most; beside it stands what is found of the default's logits.
The ranges of Algorithm 2 are absolute, for maps of logits. So maps of probabilities are first multiplied by one number
an explainer, which makes their mean magnitude that of its maps of logits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from captum.metrics import sensitivity_max
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from torch import Tensor, nn

from safexplain import GaussianNoise, Hardening, Probability, RangeClip, ThresholdMask
from safexplain.audit import Policy, Population, Recipe, Shadows, Signals, train_shadows
from safexplain.audit.asked import summarise
from safexplain.audit.attacks import LabelLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.report.root_cause import root_cause, sentence
from safexplain.audit.usefulness import utility
from safexplain.explain import CATALOG
from safexplain.explain.feature_groups import superpixels
from safexplain.faithfulness import faithfulness
from safexplain.verdict.stats import roc

from ...shared.run import load
from .nothing_to_leak import Attack, crop_and_flip
from .settings import EXPLAINERS, HARDENING, Explainer

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Images = NDArray[np.uint8]

FPR = 0.001
RATES = (0.005, 0.01, 0.02, 0.05)
MOST_LOSS = 0.033
"""Utility that DeepLeak says is lost at most."""
PERTURBATION = 0.1
"""Standard deviation of its perturbation of a normalised input."""
ATTACKS = ("JointLikelihoodRatio", "Boosted", "LikelihoodRatio")
POLICY = Policy(fpr=0.01, max_tpr=0.05, claim="whole", patience=(1,), uncounted=True)
TASKS = ("cifar10", "gtsrb")
CAUSES_ON = 400
"""Examples that the ablation looks at."""
UNIT_ON = 100
"""Images on which the unit of maps is measured."""
LOGITS = ("Saliency", "InputXGradient", "IG")


@dataclass(frozen=True)
class Size:
    """How large a search is.

    Args:
        sides: members, and as many non-members, of the published evaluation; the shadow model has half of each. Three
            numbers, for explainers that are cheap, dear and very dear.
        copies, epochs: of the training images, original and cropped and flipped; and of the training on them.
        attack_epochs: of the attack's network.
        seeds: of which the published evaluation takes the best.
        trials: beside the default.
        pools: examples of the honest evaluation.
        models, targets: of it; the first models are targets, and the others of a target its references.
        model_epochs: of their training.
        sensitivity: images on which sensitivity_max is measured.
        resamples: of the reported half.
        mobilenet: the published attack is a MobileNetV2, as theirs; otherwise a small network.
    """

    sides: tuple[int, int, int] = (800, 600, 520)
    copies: int = 3
    epochs: int = 12
    attack_epochs: int = 3
    seeds: int = 4
    trials: tuple[int, int, int] = (7, 3, 2)
    pools: tuple[int, int, int] = (800, 400, 150)
    models: int = 6
    targets: int = 2
    model_epochs: int = 20
    sensitivity: int = 100
    resamples: int = 300
    mobilenet: bool = False


QUICK = Size((120, 80, 60), 2, 1, 1, 2, (2, 2, 1), (120, 100, 80), 6, 1, 2, 16, 20)
FULL = Size((5_000,) * 3, 5, 20, 10, 20, (20,) * 3, (5_000,) * 3, 17, 4, 30, 1_000, 1_000, True)
"""The published numbers: 5,000 a side (GTSRB: what 12,000 frames give), 20 seeds, 20 trials; the explained networks
stay small."""


def network(seed: int, classes: int) -> nn.Module:
    """Three convolutions, nn.ReLU modules: 16 thousand parameters for 10 classes, 33 thousand for 43."""
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 2), (16, 24, 2), (24, 32, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(512, classes))


def detector(channels: int, side: int) -> Callable[[], nn.Module]:
    """The attack on maps (n, channels, side, side): logits (n, 1) of "member". Theirs is a MobileNetV2."""

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.BatchNorm2d(channels)]
        for before, after in ((channels, 8), (8, 16), (16, 32)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(32 * (-(-side // 8)) ** 2, 1))

    return build


def mobilenet(channels: int) -> Callable[[], nn.Module]:
    """Their attack: a MobileNetV2 (arXiv 1801.04381) whose first stride is 1, dropout .5; needs torchvision."""

    def build() -> nn.Module:
        from torchvision.models import mobilenet_v2

        net: nn.Module = mobilenet_v2(num_classes=1, dropout=0.5)
        net.features[0][0] = nn.Conv2d(channels, 32, 3, 1, 1, bias=False)
        return net

    return build


@dataclass(frozen=True, eq=False)
class Data:
    """Images of a task, in a random order; those of one group (a track) are near-copies.

    Args:
        images: (n, 32, 32, 3).
        labels: (n,).
        groups: (n,).
        centre, spread: by which images are normalised.
        device: of the networks; images and maps stay in the processor's memory.
    """

    images: Images
    labels: NDArray[np.int64]
    groups: NDArray[np.int64]
    centre: float
    spread: float
    device: str = "cpu"

    @classmethod
    def of(cls, task: str, folder: Path, device: str = "cpu") -> tuple[Data, dict[str, str]]:
        """Read it, and what is recorded of the file."""
        if task == "cifar10":
            arrays, source = load(folder, task, ("x_train", "y_train"))
            images, labels, scale = arrays["x_train"], arrays["y_train"], (0.47, 0.25)
            groups = np.arange(len(labels))
        else:
            arrays, source = load(folder, task, ("x_train", "y_train", "track_train"))
            images, labels, groups = arrays["x_train"], arrays["y_train"], arrays["track_train"]
            scale = (0.33, 0.27)
        return cls(images, labels.astype(np.int64), groups.astype(np.int64), *scale, device), source

    @property
    def classes(self) -> int:
        """One more than the largest label."""
        return int(self.labels.max()) + 1

    def x(self, images: Images) -> Tensor:
        """(n, 3, 32, 32) as the networks take them."""
        scaled = (images.transpose(0, 3, 1, 2) / 255.0 - self.centre) / self.spread
        return torch.from_numpy(scaled.astype(np.float32))

    def parts(self, *sizes: int, seed: int) -> list[NDArray[np.int64]]:
        """Disjoint sets of rows of about these sizes, whole groups in each; smaller where there is too little."""
        rng = np.random.default_rng(seed)
        _, number = np.unique(self.groups, return_inverse=True)
        place = rng.permutation(number.max() + 1)[number]
        rows = np.lexsort((rng.permutation(len(place)), place))
        ends = np.floor(np.cumsum(sizes) * min(1.0, len(rows) / sum(sizes))).astype(int)
        cuts = np.searchsorted(place[rows], place[rows][np.minimum(ends, len(rows) - 1)])
        cuts[ends >= len(rows)] = len(rows)
        return [rows[a:b] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]

    def one_a_group(self, most: int) -> NDArray[np.int64]:
        """Rows of which no two are of one group."""
        return np.sort(np.random.default_rng(8).permutation(np.unique(self.groups, return_index=True)[1])[:most])


def explained(
    model: nn.Module, x: Tensor, target: Tensor, name: str, options: dict[str, Any], *, probability: bool = True,
    masks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Native maps (n, channels, height, width) of a method in the catalog; NaN and infinity are 0."""
    row, given = CATALOG[name], dict(options)
    slic = {k: given.pop(k) for k in ("n_segments", "compactness") if k in given}
    of_class = {k: given.pop(k) for k in ("multiply_by_inputs", "interpretable_model") if k in given}
    forward = Probability(model) if probability else model
    device = next(model.parameters()).device
    explainer = row.source(forward, **of_class) if of_class else row.explainer(forward)
    out = []
    for part in torch.arange(len(x)).split(128 if name != "Lime" else 1_000_000):
        some = x[part].clone().to(device).requires_grad_(row.leaf_inputs)
        if slic:
            given["feature_mask"] = superpixels(some, **slic) if masks is None else masks[part].to(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            maps: Tensor = explainer.attribute(some, target=target[part].to(device), **row.options(some, given))
        out.append(maps.detach().nan_to_num(0.0, 0.0, 0.0).cpu().contiguous())
    return torch.cat(out)


def unit_of(model: nn.Module, x: Tensor, target: Tensor, explainer: Explainer) -> float:
    """Mean magnitude of the maps of logits over that of the probability; 1 in Algorithm 1, without absolute ranges."""
    if explainer.draw is not None:
        return 1.0
    logit, probability = (
        float(explained(model, x, target, explainer.name, explainer.default, probability=p).abs().mean())
        for p in (False, True)
    )
    return logit / max(probability, 1e-30)


def hardened(maps: Tensor, hardening: Hardening, seed: int) -> Tensor:
    """Clip, mask, and fresh noise of a generator, as DeepLeak draws it; the same formats as a keyed release's."""
    if hardening.is_none:
        return maps
    quiet = replace(hardening, noise=None)(maps)
    std = hardening.noise_std(maps[0].numel())
    return quiet + std * torch.randn(maps.shape, generator=torch.Generator().manual_seed(seed))


def tpr_nearest(scores: Floats, member: Bools, fpr: float = FPR) -> float:
    """The TPR at the first point of scikit-learn's curve whose FPR is nearest, as the released code reads it.

    With 500 non-members or fewer that is the curve's start, and the TPR 0.
    """
    found, hit, _ = roc_curve(member, scores)
    return float(hit[np.argmin(np.abs(found - fpr))])


@dataclass(frozen=True, eq=False)
class Published:
    """The published evaluation of one task: target, shadow model and who is evaluated."""

    data: Data
    size: Size

    @cached_property
    def rows(self) -> list[NDArray[np.int64]]:
        """Members, non-members, and the shadow model's non-members."""
        return self.data.parts(*(self.size.sides[0] // part for part in (1, 1, 2)), seed=1)

    @cached_property
    def models(self) -> tuple[nn.Module, nn.Module]:
        """The target, trained on all members, and the shadow model, on the first half of them."""
        members = self.rows[0]
        return self._trained(members, 0), self._trained(members[: len(members) // 2], 1)

    def _trained(self, rows: NDArray[np.int64], seed: int) -> nn.Module:
        rng = np.random.default_rng([2, seed])
        images, labels = self.data.images[rows], self.data.labels[rows]
        versions = [images, *(crop_and_flip(images, rng) for _ in range(self.size.copies - 1))]
        pool = Population.of(self.data.x(np.concatenate(versions)), np.tile(labels, len(versions)))
        recipe = Recipe(lr=3e-3, epochs=self.size.epochs, batch_size=50, schedule="cosine")
        return train_on(pool, recipe, lambda s: network(s, self.data.classes).to(self.data.device), seed)

    @cached_property
    def accuracy(self) -> dict[str, float]:
        """The target's, on members as they are and on non-members."""
        return {
            name: float((predicted(self.models[0], self.data.x(self.data.images[rows])).numpy()
                         == self.data.labels[rows]).mean())
            for name, rows in zip(("members", "non_members"), self.rows, strict=False)
        }  # fmt: skip

    def views(self, cost: int, moved: bool) -> list[tuple[nn.Module, Tensor, Tensor, Bools]]:
        """For the shadow model and the target: model, inputs, true labels and who is a member."""
        most = self.size.sides[cost]
        members, others, shadows = self.rows
        sides = ((1, members[: min(most, len(members)) // 2], shadows[: most // 2]), (0, members[:most], others[:most]))
        found = []
        for model, inside, outside in sides:
            kept = self.data.images[inside]
            images = crop_and_flip(kept, np.random.default_rng([3, model])) if moved else kept
            x = self.data.x(np.concatenate([images, self.data.images[outside]]))
            y = torch.from_numpy(self.data.labels[np.concatenate([inside, outside])])
            found.append((self.models[model], x, y, np.arange(len(x)) < len(inside)))
        return found

    def cell(self, explainer: Explainer, full: bool, probability: bool = True) -> dict[str, Any]:
        """Default, trials, and which of them the published search would report."""
        trials = explainer.trials(self.size.trials[explainer.cost], 0, full)
        views, fair = self.views(explainer.cost, True), self.views(explainer.cost, False)
        native: dict[str, tuple[list[Tensor], Tensor, Tensor]] = {}
        found, seed, unit = [], 0, unit_of(views[0][0], *(v[-UNIT_ON:] for v in views[0][1:3]), explainer)
        for number, (options, hardening) in enumerate(trials):
            key = repr(options)
            if key not in native:
                of_shadow_and_target, *pair = self._maps(explainer, options, views, probability)
                native = {key: ([unit * m for m in of_shadow_and_target], unit * pair[0], unit * pair[1])}
            maps, plain, moved = native[key]
            released = [hardened(m, hardening, 10 * number + i) for i, m in enumerate(maps)]
            rates = [self._attacked(released, views, s) for s in (range(self.size.seeds) if number == 0 else [seed])]
            if number == 0:
                seed = int(np.argmax(rates))
            released_pair = [hardened(m, hardening, 10 * number + 7 + i) for i, m in enumerate((plain, moved))]
            found.append({
                "options": shown(options), "hardening": hardening.to_dict(), "tpr": max(rates),
                "sensitivity": float(relative_change(*released_pair).mean()),
            })  # fmt: skip
            if number == 0:
                alike = self._maps(explainer, options, fair, probability)[0]
                found[0]["tpr of each seed"] = rates
                found[0]["tpr without crops"] = [self._attacked(alike, fair, s) for s in range(self.size.seeds)]
        best = min(range(len(found)), key=lambda i: (found[i]["tpr"], found[i]["sensitivity"]))
        return {"members": int(views[1][3].sum()), "non_members": int((~views[1][3]).sum()), "trials": found,
                "best": best, "unit": unit}  # fmt: skip

    def _maps(
        self, explainer: Explainer, options: dict[str, Any], views: list[Any], probability: bool
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Maps of both models' examples; of some of the target's images, and of these perturbed."""
        maps = [explained(m, x, y, explainer.name, options, probability=probability) for m, x, y, _ in views]
        model, x, y, member = views[1]
        half = self.size.sensitivity // 2
        some = torch.from_numpy(np.concatenate([np.flatnonzero(member)[:half], np.flatnonzero(~member)[:half]]))
        noise = PERTURBATION * torch.randn(x[some].shape, generator=torch.Generator().manual_seed(4))
        moved = explained(model, x[some] + noise, y[some], explainer.name, options, probability=probability)
        return maps, maps[1][some], moved

    def _attacked(self, released: list[Tensor], views: list[Any], seed: int) -> float:
        """TPR at .1 % on the target of a network that learned on the shadow model."""
        build = mobilenet(released[0].shape[1]) if self.size.mobilenet else detector(*released[0].shape[1:3])
        attack = Attack(build, released[0], views[0][3], seed, self.size.attack_epochs, self.data.device)
        return tpr_nearest(attack(released[1]), views[1][3])


def relative_change(maps: Tensor, moved: Tensor) -> Floats:
    """(n,) what captum.metrics.sensitivity_max gives with one perturbation, of maps that are there already."""
    calls = iter((maps, moved))
    found: Tensor = sensitivity_max(lambda _: (next(calls),), torch.zeros(len(maps), 1), n_perturb_samples=1)
    return found.double().numpy()


@torch.no_grad()
def predicted(model: nn.Module, x: Tensor) -> Tensor:
    """(n,) classes."""
    device = next(model.parameters()).device
    return torch.cat([model(some.to(device)).argmax(1).cpu() for some in x.split(500)])


def train_on(pool: Population, recipe: Recipe, build: Callable[[int], nn.Module], seed: int) -> nn.Module:
    """A model trained on all of a pool."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(seed)
    return recipe.train(model, pool.x, pool.y, torch.Generator().manual_seed(seed))


def shown(options: dict[str, Any]) -> dict[str, Any]:
    """Options as plain JSON."""
    plain = (int, float, str, bool, tuple)
    return {k: v if isinstance(v, plain) else type(v).__name__ for k, v in options.items()}


@dataclass(frozen=True, eq=False)
class Honest:
    """The honest evaluation of one task: one pool, models by coin flips, one half to choose and one to report."""

    data: Data
    size: Size

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """One image of each track."""
        return self.data.one_a_group(self.size.pools[0])

    @cached_property
    def population(self) -> Population:
        """Its examples."""
        return Population.of(self.data.x(self.data.images[self.rows]), self.data.labels[self.rows])

    @cached_property
    def shadows(self) -> Shadows:
        """Its models, each trained on the examples that its coins chose."""
        recipe = Recipe(lr=3e-3, epochs=self.size.model_epochs, batch_size=50, schedule="cosine")
        return train_shadows(
            self.population,
            recipe,
            build=lambda s: network(s, self.data.classes),
            models=self.size.models,
            device=self.data.device,
        )

    @cached_property
    def labels(self) -> Tensor:
        """(models, n) predicted classes."""
        return torch.stack([predicted(m, self.population.x) for m in self.shadows.models])

    @cached_property
    def accuracy(self) -> dict[str, float]:
        """The models', on their members and on others."""
        right, member = (self.labels == self.population.y).numpy(), self.shadows.membership
        return {"members": float(right[member].mean()), "non_members": float(right[~member].mean())}

    def examples(self, cost: int) -> int:
        """How many are explained."""
        return min(self.size.pools[cost], len(self.rows))

    def halves(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """To choose on, and to report on."""
        order = np.random.default_rng(9).permutation(n)
        return np.sort(order[: n // 2]), np.sort(order[n // 2 :])

    def native(
        self, explainer: Explainer, options: dict[str, Any], models: range, probability: bool = True
    ) -> list[Tensor]:
        """Maps of the predicted label by each of these models."""
        n = self.examples(explainer.cost)
        x, masks = self.population.x[:n], None
        if "n_segments" in options:
            masks = superpixels(x, options["n_segments"], options["compactness"])
        return [
            explained(self.shadows.models[i], x, self.labels[i, :n], explainer.name, options, probability=probability,
                      masks=masks)
            for i in models
        ]  # fmt: skip

    def signals(self, maps: list[Tensor]) -> Signals:
        """What an attacker sees of released maps, with the labels."""
        m, n = len(maps), len(maps[0])
        flat = np.stack([a.reshape(n, -1).numpy() for a in maps])
        values = [summarise(a) for a in maps]
        scalars: dict[str, Any] = {name: np.stack([v[name].numpy() for v in values]) for name in values[0]}
        scalars["label"] = self.labels[:m, :n].numpy().astype(np.float64)
        return Signals(self.shadows.membership[:m, :n], scalars, flat, {"targets": list(range(self.size.targets))})

    def leak(self, maps: list[Tensor]) -> dict[str, Floats]:
        """Attack -> (targets, n) scores; "label" is that of the label alone."""
        signals = self.signals(maps)
        rows, found = rows_of(signals), dict[str, list[Floats]]()
        none = np.zeros(len(signals), dtype=bool)
        for t in range(self.size.targets):
            scorer = Scorer(signals, rows, target=t, training=none)
            for row, scores in zip(rows, scorer.scores(t), strict=True):
                found.setdefault("label" if row.baseline else f"{row.name} on {row.signal}", []).append(scores)
        return {name: np.stack(scores) for name, scores in found.items()}

    def kept(self, explainer: Explainer, maps: list[Tensor]) -> Floats:
        """(targets, n) deletion faithfulness."""
        n = len(maps[0])
        x = self.population.x[:n]
        return np.stack([
            faithfulness(self.shadows.models[t], x, self.labels[t, :n], maps[t]).deletion
            for t in range(self.size.targets)
        ])  # fmt: skip

    def cell(self, explainer: Explainer, full: bool, published: int) -> dict[str, Any]:
        """The search, what it chose, the published choice, and the default's logits and root cause."""
        models = range(self.size.models)
        trials = explainer.trials(self.size.trials[explainer.cost], 0, full)
        n = self.examples(explainer.cost)
        choose, report = self.halves(n)
        member = self.shadows.membership[: self.size.targets, :n]
        store: dict[str, list[Tensor]] = {}
        last, some = models[-1], self.population.x[:UNIT_ON]  # a reference model
        unit = unit_of(self.shadows.models[last], some, self.labels[last, :UNIT_ON], explainer)

        def released(number: int, who: range) -> list[Tensor]:
            options, hardening = trials[number]
            key = repr(options)
            if len(store.get(key, ())) < len(who):
                store.clear()
                store[key] = [unit * m for m in self.native(explainer, options, who)]
            return [hardened(store[key][i], hardening, 1000 * number + i) for i in who]

        judged: dict[int, dict[str, Any]] = {}
        told, least, lines = dict[int, dict[str, Floats]](), 0.0, []
        for number, (options, hardening) in enumerate(trials):
            kept = self.kept(explainer, released(number, range(self.size.targets)))
            line: dict[str, Any] = {"options": shown(options), "hardening": hardening.to_dict(),
                                    "deletion": float(kept[:, choose].mean())}  # fmt: skip
            least = least or (1 - MOST_LOSS) * line["deletion"]
            if line["deletion"] >= least or number in (0, published):
                told[number] = self.leak(released(number, models))
                leaks = excesses(told[number], member, choose)
                line["strongest"] = max(leaks, key=lambda k: leaks[k])
                line["leak"] = leaks[line["strongest"]]
                judged[number] = {"deletion": kept}
                if number == 0:
                    cause = self.causes(explainer, released(0, models))
            lines.append(line)
        allowed = [i for i in judged if i == 0 or lines[i]["deletion"] >= least]
        best = min(allowed, key=lambda i: (lines[i]["leak"], i))
        which = {"default": 0, "best": best, "published best": published}
        logits = self.native(explainer, trials[0][0], models, probability=False) if explainer.name in LOGITS else None
        found: dict[str, Any] = {
            "examples": n, "unit": unit, "models": len(models), "trials": lines, "which": which,
            **self.reported({name: (told[i], lines[i]["strongest"], judged[i]["deletion"])
                             for name, i in which.items()}, member, report),
            "root_cause": cause,
        }  # fmt: skip
        if logits is not None:
            scores = self.leak(logits)
            leaks = excesses(scores, member, choose)
            name = max(leaks, key=lambda k: leaks[k])
            found["logits"] = self.reported({"default": (scores, name, None)}, member, report)["default"]
        return found

    def reported(self, configurations: dict[str, Any], member: Bools, report: NDArray[np.int64]) -> dict[str, Any]:
        """Leak of each configuration on the reported half, and reductions against the default, with 95 % intervals."""
        rng, n = np.random.default_rng(10), len(report)
        draws = [np.arange(n), *(rng.integers(0, n, n) for _ in range(self.size.resamples))]
        leaks, kept, found = dict[str, Floats](), dict[str, Floats](), dict[str, Any]()
        for name, (scores, attack, deletion) in configurations.items():
            only = {k: scores[k] for k in ("label", attack)}
            leaks[name] = np.array([excesses(only, member, report[d])[attack] for d in draws])
            found[name] = {"strongest": attack, "leak": interval(leaks[name])}
            if deletion is not None:
                kept[name] = np.array([deletion[:, report[d]].mean() for d in draws])
                found[name]["deletion"] = interval(kept[name])
        for name in leaks:
            if name != "default":
                less = leaks["default"] - leaks[name]
                found[name]["reduction"] = interval(less)
                found[name]["share"] = interval(less / np.maximum(leaks["default"], 1e-9))
                found[name]["faithfulness lost"] = interval(1 - kept[name] / kept["default"])
        found["label"] = {"tpr": float(np.mean([rates(s, m[report]) for s, m in
                                                 zip(scores["label"][:, report], member, strict=True)]))}  # fmt: skip
        return found

    def causes(self, explainer: Explainer, maps: list[Tensor]) -> dict[str, Any]:
        """Our ablation of the default's maps, and the balance of their signs."""
        signals = self.signals(maps)
        rows = np.arange(len(signals)) < CAUSES_ON
        ablations = root_cause(signals, rows=rows, fpr=0.01)
        balance = {}
        for name in ("mean", "positive"):
            of = signals.values[name]
            balance[name] = float(np.mean([
                area(LikelihoodRatio()(of[t], np.delete(of, t, 0), np.delete(signals.membership, t, 0)),
                     signals.membership[t]) for t in range(self.size.targets)
            ]))  # fmt: skip
        return {
            "sentence": sentence(ablations),
            "auc": {a.name: [a.auc, a.auc_low, a.auc_high] for a in ablations},
            "balance": balance,
        }


def rows_of(signals: Signals) -> list[SuiteRow]:
    """The label, and every attack of the library's suite but classifiers of maps, signs and ranks, stacked with it."""
    label = SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label", baseline=True)
    found = [label]
    for row in fitting(signals, POLICY):
        if row.role != "explanation+label" or not row.columns:
            continue
        columns = [c for c in row.columns[1:] if wanted(c)]
        if columns and (len(columns) > 1 or row.name != "Stacked"):
            found.append(replace(row, columns=(label, *columns)))
    return found


def wanted(column: SuiteRow) -> bool:
    """Whether an attack is run here: what takes long and adds little is left out."""
    return column.name in ATTACKS and (column.name != "LikelihoodRatio" or column.signal == "attributions")


def rates(scores: Floats, member: Bools) -> float:
    """Mean of the TPRs at `RATES`: of each, the share of members above the highest allowed non-member."""
    others, found = np.sort(scores[~member])[::-1], np.sort(scores[member])
    cuts = [others[min(int(r * len(others)), len(others) - 1)] for r in RATES]
    return float(np.mean(1 - np.searchsorted(found, cuts, side="right") / max(len(found), 1)))


def excesses(scores: dict[str, Floats], member: Bools, rows: NDArray[np.int64]) -> dict[str, float]:
    """Attack -> mean over targets of its rate less the label's, on some of the examples."""
    found = {name: float(np.mean([rates(s[rows], m[rows]) for s, m in zip(each, member, strict=True)]))
             for name, each in scores.items()}  # fmt: skip
    return {name: value - found["label"] for name, value in found.items() if name != "label"}


def area(scores: Floats, member: Bools) -> float:
    """AUC."""
    return float(roc(scores, member).auc)


def interval(replicates: Floats) -> list[float]:
    """The value (the first one), and the middle 95 % of the others."""
    return [float(replicates[0]), *(float(q) for q in np.quantile(replicates[1:], [0.025, 0.975]))]


METRIC_OF = ("Saliency", "InputXGradient", "Deconvolution")
METRIC_ON = {
    "native": Hardening.none(),
    "clip to -1, 1": Hardening(clip=RangeClip(-1.0, 1.0)),
    "mask below .025": Hardening(mask=ThresholdMask(float(np.mean(HARDENING["mask"])))),
    **{f"noise {std:g}": Hardening(noise=GaussianNoise(std)) for std in (0.001, 0.01, 0.05, 0.2)},
    "DeepLeak's default": Hardening.deepleak(),
}


def metric(published: Published, name: str) -> list[dict[str, Any]]:
    """Their utility metric beside faithfulness: for noise, clip and mask alone, and for their default."""
    model, x, y, member = published.views(0, False)[1]
    half = published.size.sensitivity
    rows = torch.from_numpy(np.concatenate([np.flatnonzero(member)[:half], np.flatnonzero(~member)[:half]]))
    x, y = x[rows], y[rows]
    moved = x + PERTURBATION * torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
    unit = unit_of(model, x[-UNIT_ON:], y[-UNIT_ON:], EXPLAINERS[name])
    maps = [unit * explained(model, at, y, name, {}) for at in (x, moved)]
    found = []
    for said, hardening in METRIC_ON.items():
        for same in (False, True) if hardening.noise else (False,):
            released = [hardened(m, hardening, 0 if same else i) for i, m in enumerate(maps)]
            change = relative_change(*released)
            found.append({
                "configuration": said,
                "noise": None if hardening.noise is None else "the same in each call" if same else "fresh in each call",
                "sensitivity": float(change.mean()),
                "median": float(np.median(change)),
                **faithfulness(model, x, y, released[0]).to_dict(),
                "overlap": utility(maps[0].numpy(), released[0].numpy()).top_overlap,
            })  # fmt: skip
    return found


def timed(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it makes, with its processor seconds."""
    start = time.process_time()
    found = make()
    return {**found, "processor_seconds": round(time.process_time() - start, 1)}


__all__ = ["EXPLAINERS", "FULL", "QUICK", "TASKS", "Data", "Honest", "Published", "Size", "metric", "timed"]
