"""DeepLeak (arXiv 2601.03429): two steps of its attack evaluation that show a leak where there is none.

The released code of "DeepLeak" explains members through RandomCrop(32, padding 4) and a random flip, non-members as
they are, and its section V-A picks the best of 20 attack seeds on the very examples that are reported. Both are run
here where membership means nothing, so that whatever an attack finds was made by the evaluation:

1. the maps come from networks that were NEVER TRAINED. An attack classifier learns "member" against "non-member" on one
   of them and is evaluated on other images, through the same network and through another one.
2. membership is a coin flip: simulated scores, and real classifiers trained on maps with shuffled membership.

    python -m audit.suites.paper_d [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from safexplain.verdict.stats import auc_interval, roc, tpr_at_fpr

from ...shared.run import Progress, Run, load

Floats = NDArray[np.float64]
Images = NDArray[np.uint8]

RATES = (0.001, 0.01)
TRANSFORMS = {"members only": (True, False), "neither": (False, False), "both": (True, True)}
"""Which side is cropped and flipped: (members, non-members). The first is what the released code does."""
THEIRS = "members only"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BEST_OF = {1_500: 0.0046, 10_000: 0.0021}
"""Examples on each side: expected mean of the best of 20 seeds at 0.1 %, when nothing leaks."""

FINDING = (
    "Networks that were never trained leak {0:.1%} of their InputXGradient members at 0.1 % false positives (AUC"
    " {1:.3f}) to an attack that learned on the same network and {2:.1%} (AUC {3:.3f}) to one that learned on another,"
    " as soon as only the members are cropped and flipped, as in the released code; with equal transforms the same"
    " attacks are at chance ({4:.2%}, AUC {5:.3f})."
    " Where nothing leaks, the best of {6} attack seeds, chosen on the examples that are reported, shows {7:.2%} at"
    " 0.1 % on {8:,} examples a side and {9:.2%} on {10:,} (in one of 40 cases above {11:.2%} and {12:.2%}); the chosen"
    " seed shows {13:.2%} and {14:.2%} on fresh ones."
)


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    pairs: int = 3  # pairs of random networks
    side: int = 4_000  # members, and as many non-members, for training the attack; the same again for evaluating it
    epochs: int = 8  # of an attack classifier
    seeds: int = 20  # among which the best is chosen
    repeats: int = 2_000  # evaluations without leakage
    sides: tuple[int, ...] = (1_500, 5_000, 10_000)  # members, and as many non-members, of such an evaluation


QUICK = Size(pairs=1, side=250, epochs=2, seeds=4, repeats=100, sides=(300, 600))


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a 1 x 1 one, halving the image (a ResNet's basic block)."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.main = nn.Sequential(*_conv(width_in, width, 2), nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width))
        self.side = nn.Conv2d(width_in, width, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(n, width_in, h, w) -> (n, width, h / 2, w / 2)."""
        return F.relu(self.main(x) + self.side(x))


def _conv(width_in: int, width: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(width_in, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU()]


def untrained(seed: int) -> nn.Module:
    """A small residual network for 32 x 32 images and 10 classes as it is initialised, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        return nn.Sequential(*_conv(3, 16, 1), Block(16, 32), Block(32, 64), *head).eval().requires_grad_(False)


def crop_and_flip(images: Images, rng: np.random.Generator) -> Images:
    """RandomCrop(32, padding=4) with black borders, then a horizontal flip of every other image: (n, 32, 32, 3)."""
    n = np.arange(len(images))
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    down, right = rng.integers(0, 9, (2, len(images), 1)) + np.arange(32)
    cropped = padded[n[:, None, None], down[:, :, None], right[:, None, :]]
    flip = rng.random(len(images)) < 0.5
    cropped[flip] = cropped[flip, :, ::-1]
    return cropped


def explain(model: nn.Module, images: Images, labels: NDArray[Any]) -> dict[str, Tensor]:
    """InputXGradient and Saliency of the true label, as the released code asks for: (n, 3, 32, 32) each."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    found: dict[str, list[Tensor]] = {"InputXGradient": [], "Saliency": []}
    for start in range(0, len(images), 250):
        some = torch.from_numpy(images[start : start + 250]).permute(0, 3, 1, 2)
        x = ((some / 255 - mean) / std).contiguous().requires_grad_()
        label = torch.from_numpy(labels[start : start + 250]).long()
        (gradient,) = torch.autograd.grad(model(x).gather(1, label[:, None]).sum(), x)
        found["InputXGradient"].append(gradient * x.detach())
        found["Saliency"].append(gradient.abs())
    return {name: torch.cat(parts) for name, parts in found.items()}


def convolutional() -> nn.Module:
    """The attack on maps: (n, 3, 32, 32) -> (n, 1) logits of "member"."""
    body = [*_conv(3, 16, 2), *_conv(16, 32, 2), *_conv(32, 64, 2)]
    return nn.Sequential(nn.BatchNorm2d(3), *body, nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * 16, 1))


def perceptron() -> nn.Module:
    """A cheap one, on maps pooled to 16 x 16, of which 20 are trained."""
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 1))


class Attack:
    """A classifier trained on maps and membership; maps are divided by one number, the spread of the training maps."""

    def __init__(self, build: Any, maps: Tensor, member: NDArray[np.bool_], seed: int, epochs: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.spread, self.net = maps.std().clamp_min(1e-12), build().train()
            answer, batch = torch.from_numpy(member).float(), min(128, len(maps))
            orders = [torch.randperm(len(maps))[: len(maps) // batch * batch] for _ in range(epochs)]
            batches = torch.cat(orders).split(batch)
            adam = torch.optim.Adam(self.net.parameters(), weight_decay=1e-4)
            schedule = torch.optim.lr_scheduler.OneCycleLR(adam, 3e-3, total_steps=len(batches))
            for chosen in batches:
                logits = self.net(maps[chosen] / self.spread)[:, 0]
                adam.zero_grad()
                F.binary_cross_entropy_with_logits(logits, answer[chosen]).backward()
                adam.step()
                schedule.step()
        self.net.eval()

    @torch.no_grad()
    def __call__(self, maps: Tensor) -> Floats:
        """(n,) scores, higher for "members"."""
        found = [self.net(m / self.spread)[:, 0] for m in maps.split(500)]
        return torch.cat(found).double().numpy()


def figures(scores: Floats, member: NDArray[np.bool_]) -> dict[str, list[float]]:
    """AUC and the rates of RATES, each with its 95 % interval: (value, low, high)."""
    curve = roc(scores, member)
    rates = {f"at {r:.1%}": tpr_at_fpr(curve, fpr=r) for r in RATES}
    return {"AUC": [curve.auc, *auc_interval(curve)], **{k: [v.tpr, v.low, v.high] for k, v in rates.items()}}


def confound(images: Images, labels: NDArray[Any], pair: int, size: Size) -> dict[str, Any]:
    """One pair of random networks: {explainer: {transforms: {evaluated on: figures}}}."""
    rng, n = np.random.default_rng([4, pair]), size.side
    learn, judge = rng.permutation(len(images))[: 4 * n].reshape(2, 2 * n)
    first, second = untrained(2 * pair), untrained(2 * pair + 1)
    member = np.arange(2 * n) < n
    maps = {}
    for name, model, rows in (("learn", first, learn), ("same", first, judge), ("another", second, judge)):
        for moved in (False, True):
            maps[name, moved] = explain(
                model, crop_and_flip(images[rows], rng) if moved else images[rows], labels[rows]
            )
    found: dict[str, Any] = {}
    for explainer in ("InputXGradient", "Saliency"):
        found[explainer] = {}
        for name, (moved, others) in TRANSFORMS.items():
            views = {k: torch.cat([maps[k, moved][explainer][:n], maps[k, others][explainer][n:]])
                     for k in ("learn", "same", "another")}  # fmt: skip
            attack = Attack(convolutional, views["learn"], member, pair, size.epochs)
            found[explainer][name] = {k: figures(attack(views[k]), member) for k in ("same", "another")}
    return found


def chance_rates(n: int, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """TPR at 0.1 % of scores that know nothing, n on each side, as `tpr_at_fpr` reads it.

    The lowest threshold that keeps to the rate lies just above the non-member of rank k + 1, k = floor(n / 1000). The
    share of the population above it is Beta(k + 1, n - k), and each member is above it with that probability.
    """
    k = int(n * RATES[0])
    return rng.binomial(n, rng.beta(k + 1, n - k, shape)) / n


def reshuffled_rates(scores: Floats, n: int, repeats: int, rng: np.random.Generator) -> Floats:
    """TPR at 0.1 % of each seed's scores (seeds, examples), n members and n others drawn anew: (repeats, seeds)."""
    k = int(n * RATES[0])
    seeds, examples = scores.shape
    ranked = np.argsort(-scores, axis=1)[:, : min(examples, 100 * (k + 1) * examples // (2 * n))]
    rates = np.empty((repeats, seeds))
    for repeat in range(repeats):
        side = np.zeros(examples, dtype=np.int8)
        side[rng.permutation(examples)[: 2 * n]] = np.repeat([1, 2], n)
        sides = side[ranked]
        rates[repeat] = ((sides == 1) & ((sides == 2).cumsum(1) <= k)).sum(1) / n
    return rates


def selection(rates: Floats) -> dict[str, float]:
    """What the best seed of each repeat (row) shows there, and in the next repeat, which did not choose it."""
    best = rates.argmax(1)
    fresh = np.roll(rates, -1, axis=0)[np.arange(len(rates)), best]
    quantile = float(np.quantile(rates.max(1), 0.975))
    return {"best": float(rates.max(1).mean()), "best, 97.5 %": quantile, "fresh": float(fresh.mean())}


def real_seeds(images: Images, labels: NDArray[Any], size: Size) -> Floats:
    """Scores (seeds, 2 * largest side) of classifiers that learned shuffled membership from maps of another network."""
    rng, judged = np.random.default_rng(5), 2 * max(size.sides)
    rows = rng.permutation(len(images))[: judged + 2 * size.side]
    judge, learn = rows[:judged], rows[judged:]
    maps = explain(untrained(0), images[learn], labels[learn])["InputXGradient"]
    others = explain(untrained(1), images[judge], labels[judge])["InputXGradient"]
    member = rng.permutation(np.arange(len(learn)) % 2 == 0)
    return np.stack([Attack(perceptron, maps, member, seed, size.epochs)(others) for seed in range(size.seeds)])


def best_seed(images: Images, labels: NDArray[Any], size: Size) -> dict[str, Any]:
    """{number on each side: {scores: selection}} for simulated scores and for real classifiers."""
    scores, rng = real_seeds(images, labels, size), np.random.default_rng(6)
    return {
        str(n): {
            "simulated": selection(chance_rates(n, (size.repeats, size.seeds), rng)),
            "classifiers": selection(reshuffled_rates(scores, n, size.repeats, rng)),
        }
        for n in size.sides
    }


def summary(pairs: list[dict[str, Any]], explainer: str, name: str, network: str) -> dict[str, list[float]]:
    """Mean over pairs of networks, and from the lowest to the highest end of the pairs' intervals."""
    each = [pair[explainer][name][network] for pair in pairs]
    return {k: [float(f([e[k][i] for e in each])) for i, f in enumerate((np.mean, min, max))] for k in each[0]}


def failures(rows: dict[str, dict[str, dict[str, dict[str, list[float]]]]], best: dict[str, Any]) -> list[str]:
    """The targets that are missed, in words."""
    missed = []
    for explainer, network, auc, rate in (
        ("InputXGradient", "same", 0.95, 0.1),
        ("InputXGradient", "another", 0.7, 0.01),
        ("Saliency", "same", 0.8, 0.05),
    ):
        got = rows[explainer][THEIRS][network]
        if got["AUC"][0] < auc or got["at 0.1%"][0] < rate:
            missed.append(f"{explainer}, {THEIRS}, {network} network: expected {auc} and {rate}, got {got}")
    for explainer, by_transform in rows.items():
        for name in ("neither", "both"):
            for network, got in by_transform[name].items():
                if abs(got["AUC"][0] - 0.5) > 0.02 or got["at 0.1%"][0] > 0.0035 or got["at 1.0%"][0] > 0.018:
                    missed.append(f"{explainer}, {name}, {network} network: expected chance, got {got}")
    for n, expected in BEST_OF.items():
        if abs(best[str(n)]["simulated"]["best"] / expected - 1) > 0.05:
            missed.append(f"best of 20 seeds, {n} a side: expected {expected}, got {best[str(n)]['simulated']}")
    for n, kinds in best.items():
        if kinds["classifiers"]["best"] < 1.25 * kinds["classifiers"]["fresh"]:
            missed.append(f"best real seed, {n} a side: expected 1.25 times the fresh rate, got {kinds['classifiers']}")
    return missed


def off_chance(pairs: list[dict[str, Any]]) -> list[int]:
    """How many of the AUC intervals under equal transforms miss 1/2, and of how many; 1 in 20 is expected to."""
    fair = [pair[e][t][k]["AUC"] for pair in pairs for e in pair for t in ("neither", "both") for k in pair[e][t]]
    return [sum(not low <= 0.5 <= high for _, low, high in fair), len(fair)]


def sentences(rows: dict[str, Any], best: dict[str, Any], seeds: int) -> str:
    """The finding, with its figures."""
    maps = rows["InputXGradient"]
    said = [maps[THEIRS][k][v][0] for k in ("same", "another") for v in ("at 0.1%", "AUC")]
    said += [float(np.mean([maps[t][k][v][0] for t in ("neither", "both") for k in ("same", "another")]))
             for v in ("at 0.1%", "AUC")]  # fmt: skip
    small, large = min(best, key=int), max(best, key=int)
    low, high = best[small]["simulated"], best[large]["simulated"]
    said += [seeds, low["best"], int(small), high["best"], int(large), low["best, 97.5 %"], high["best, 97.5 %"]]
    return FINDING.format(*said, low["fresh"], high["fresh"])


def main(argv: list[str] | None = None) -> int:
    """Run both artefacts; 0 when every target is met, 1 otherwise. Finished pairs of networks are kept."""
    run = Run("paper_d", __doc__, argv)
    torch.set_num_threads(1)
    size, parts = QUICK if run.quick else Size(), run.parts(__package__)
    arrays, source = load(run.options.data, "cifar10", ("x_train", "y_train", "x_test", "y_test"))
    images = np.concatenate([arrays["x_train"], arrays["x_test"]])
    labels = np.concatenate([arrays["y_train"], arrays["y_test"]])
    progress, pairs = Progress(), []
    made = [source["sha256"], size.side, size.epochs]
    for pair in range(size.pairs):
        pairs.append(parts.get(["confound", pair, *made], lambda p=pair: confound(images, labels, p, size)))
        progress("pairs of untrained networks", pair + 1, size.pairs)
    key = ["best seed", size.seeds, size.repeats, size.sides, *made]
    best = parts.get(key, lambda: best_seed(images, labels, size))
    rows = {e: {t: {k: summary(pairs, e, t, k) for k in ("same", "another")} for t in TRANSFORMS} for e in pairs[0]}
    said, missed = sentences(rows, best, size.seeds), [] if run.quick else failures(rows, best)
    print(said)
    untrained_networks = {
        "mean_and_hull_of_intervals": rows,
        "auc_intervals_off_chance_under_equal_transforms": off_chance(pairs),
        "pairs": pairs,
    }
    evaluation = {
        "size": vars(size), "untrained_networks": untrained_networks, "no_leak_tpr_at_0.1%": best, "finding": said,
        "data": source, "run": run.provenance(),
    }  # fmt: skip
    run.write(targets_missed=missed, results={"evaluation": evaluation})
    return run.end(missed)
