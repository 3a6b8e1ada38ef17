"""Every attack on every explainer, native and hardened, on two real tasks: CIFAR-10 and traffic signs (GTSRB).

Models are trained on the half of a pool that their own coin flips chose: a ResNet-8 (16, 32 and 64 channels, BatchNorm,
first convolution of stride 2) on 2,000 CIFAR-10 images, and a small convolutional network on one frame of each of the
1,307 tracks of GTSRB, so that a coin flip decides about a whole track and no near-duplicate lies on the other side.
Explained is the predicted probability. Each model releases under a noise key of its own: reference models never share
the target's. Every attacker asks once.

The first `--targets` models take turns as the target, all others are its references; each example is scored once
(`safexplain.audit.certify.certify`). Beside the suite of the library run the attacks as they were published:

    Shokri, Strobel & Zick (1907.00164)    Threshold on the variance
    Huang et al. (paper A)                 LikelihoodRatio on variance, L1, L2; no logarithm, one variance for all
    DeepLeak (2601.03429)                  Learned on the whole map (here with all reference models, which is more)
    Yeom et al. (1709.01604)               Threshold on the loss
    LiRA (2112.03570), fixed variance      the margin, one variance for all under each hypothesis
    RMIA (2312.03262)                      the loss

Which attack is called ours was fixed before anything was measured: LikelihoodRatio on l1 for an explanation (logarithm,
shrunk variances), JointLikelihoodRatio on l1+loss for an explanation with its prediction. The best published attack is
chosen in each cell after the fact by its AUC (its TPR), which favours it. Both are scored against every target on the
same examples; the interval of the difference of the means over targets comes from resampling EXAMPLES, with all their
scores (normal, 95 %, 1,000 resamples). It does not cover other draws of the models.

    python -m audit.suites.attack_table [--task cifar10|gtsrb|all] [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

import hashlib
import time
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn

from safexplain import GaussianNoise, Hardening, Probability, RankNorm, Relative
from safexplain._digest import model_digest
from safexplain.audit import ModelCache, Policy, Population, Recipe, Shadows, Signals, collect_signals, train_shadows
from safexplain.audit.attacks import GlobalVariance, JointLikelihoodRatio, Learned, LikelihoodRatio
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.certify import certify
from safexplain.audit.splits import Splits
from safexplain.explain import CATALOG
from safexplain.explain.wrap import HARDENED
from safexplain.verdict.judgement import AuditResult

from ...shared.cells import FPRS, HARDENINGS, auc, failed, rates, written
from ...shared.resampling import interval, resampled_rates
from ...shared.run import Parts, Progress, destination, load, parser, provenance, rounded, table, write_json

Bools = NDArray[np.bool_]
Array = NDArray[np.float64]

POLICY = Policy(fpr=0.05, max_tpr=0.15, claim="whole", patience=(1,), uncounted=True)
OPTIONS: dict[str, dict[str, Any]] = {"IG": {"n_steps": 10}}
EXPLAINERS = ("InputXGradient", "Saliency", "IG")
PAIRED_FPR = 0.01
Z = float(ndtri(0.975))

HUANG, LIRA = "LRT (Huang et al.)", "LiRA"
EXTRA = (
    *(
        SuiteRow(HUANG, LikelihoodRatio("identity", GlobalVariance()), s, "explanation")
        for s in ("variance", "l1", "l2")
    ),
    SuiteRow(LIRA, LikelihoodRatio("identity", GlobalVariance(separate=True)), "margin", "loss"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1+loss", "explanation+loss"),
)
"""Published attacks that are not rows of the library's suite."""

OURS = {
    "explanation": ("LikelihoodRatio", "l1"),
    "explanation+prediction": ("JointLikelihoodRatio", "l1+loss"),
}
OF_EXPLANATIONS = (
    ("Threshold", "variance"),
    *((HUANG, s) for s in ("variance", "l1", "l2")),
    ("Learned", "attributions"),
)
PUBLISHED = {
    "explanation": OF_EXPLANATIONS,
    "explanation+prediction": (*OF_EXPLANATIONS, ("Threshold", "loss"), (LIRA, "margin"), ("RMIA", "loss")),
}


@dataclass(frozen=True)
class Size:
    """How large a run is; a pool of None is all there is.

    Args:
        models: trained.
        targets: of them, that take turns as the target.
        pool: most examples.
        epochs: of each model; None: the task's.
        explainers: names in the catalogue.
        resamples: of examples, for paired differences.
    """

    models: int = 17
    targets: int = 5
    pool: int | None = None
    epochs: int | None = None
    explainers: tuple[str, ...] = EXPLAINERS
    resamples: int = 1000


QUICK = Size(models=6, targets=2, pool=160, epochs=2, explainers=("InputXGradient",), resamples=20)


@dataclass(frozen=True)
class Task:
    """Data and the models that learn it."""

    name: str
    population: Population
    build: Callable[[int], nn.Module]
    recipe: Recipe
    source: dict[str, str]


class Block(nn.Module):
    """Basic block of a ResNet (He et al., 1512.03385)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        same = stride == 1 and channels == out
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = nn.Identity() if same else shortcut
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) -> (b, out, h / stride, w / stride)."""
        out: Tensor = self.relu(self.second(self.first(x)) + self.shortcut(x))
        return out


def resnet8(seed: int) -> nn.Module:
    """16, 32 and 64 channels on 16 x 16, 8 x 8 and 4 x 4 positions."""
    stem = (nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def sign_net(seed: int) -> nn.Module:
    """Three convolutions of stride 2 and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 43))


def cifar10(size: Size, folder: Path) -> Task:
    arrays, source = load(folder, "cifar10", ("x_train", "y_train"))
    rows = slice(0, size.pool or 2000)
    x = (arrays["x_train"][rows].transpose(0, 3, 1, 2) / 255.0 - 0.47) / 0.25
    recipe = Recipe(
        optimizer="sgd", lr=0.1, weight_decay=5e-4, epochs=size.epochs or 30, batch_size=50, schedule="cosine"
    )
    return Task("cifar10", Population.of(x, arrays["y_train"][rows]), resnet8, recipe, source)


def gtsrb(size: Size, folder: Path) -> Task:
    """One frame a track, the one nearest to the middle of its 30."""
    arrays, source = load(folder, "gtsrb", ("x_train", "y_train", "track_train", "frame_train"))
    off_middle = np.abs(arrays["frame_train"].astype(int) - 15)
    order = np.lexsort((off_middle, arrays["track_train"]))
    rows = order[np.unique(arrays["track_train"][order], return_index=True)[1]]
    rows = np.random.default_rng(0).permutation(rows)[: size.pool]
    x = arrays["x_train"][rows].transpose(0, 3, 1, 2) / 255.0
    recipe = Recipe(lr=2e-3, epochs=size.epochs or 40, batch_size=50, schedule="cosine")
    pool = Population.of((x - 0.33) / 0.27, arrays["y_train"][rows])
    return Task("gtsrb", pool, sign_net, recipe, source)


TASKS = {"gtsrb": gtsrb, "cifar10": cifar10}


def noise_key(model: int) -> bytes:
    """Fixed, so that results can be repeated; another for every model."""
    # The name is the file's old one: another name would be other noise than that of the committed results.
    return hashlib.sha256(f"safexplain audit/suites/attack_table.py model {model}".encode()).digest()


def release(explainer: str, hardening: Hardening) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """What a service gives away: the public hardened class, which without hardening is the native one."""
    kind, options = HARDENED[explainer], OPTIONS.get(explainer, {})

    def call(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        maps: Tensor = kind(Probability(model), hardening=hardening).attribute(x, target=target, **options)
        return maps

    return call


RANKS = Hardening(clip=RankNorm(balanced_from=1024), noise=GaussianNoise(Relative(0.3)))
"""What was recommended before sets were measured to tell less: ranks with noise, balanced in maps of pixels."""


def hardening_of(name: str, model: int) -> Hardening:
    return Hardening.none() if name == "native" else RANKS.with_key(noise_key(model))


@dataclass(frozen=True)
class Kept(Learned):
    """Learned that remembers what it fitted, since the same classifiers also score the other examples."""

    fitted: dict[bytes, Any] = field(default_factory=dict, repr=False, compare=False)

    def fit(self, shadows: Any, membership: Any, rows: Any = None, out_of_distribution: Any = None) -> Any:
        """As `Learned.fit`, once for each choice of reference models."""
        key = np.packbits(membership).tobytes()
        if key not in self.fitted:
            self.fitted[key] = super().fit(shadows, membership, rows, out_of_distribution)
        return self.fitted[key]


def measure(task: Task, size: Size, shadows: Shadows, explainer: str, name: str, progress: Progress) -> dict[str, Any]:
    """One cell of the table: all attacks on one release, the verdict, and ours against the published ones."""
    releases = [release(explainer, hardening_of(name, i)) for i in range(size.models)]
    signals = collect_signals(
        shadows, task.population, releases, patience=POLICY.patience, targets=tuple(range(size.targets)),
        keep_inputs=True, meta={"explainer": explainer}, progress=progress,
    )  # fmt: skip
    learned = Kept()
    rows = [replace(r, attack=learned) if type(r.attack) is Learned else r for r in (*fitting(signals, POLICY), *EXTRA)]
    result = certify(signals, POLICY, suite=rows, progress=progress)
    return summary(result) | {"compared": compare(signals, rows, size.resamples)}


def summary(result: AuditResult) -> dict[str, Any]:
    """What `written` says, the verdict on the excess over the label, and how far each attack is above the label."""
    label = next(a for a in result.attacks if a.role == "label").at(POLICY.fpr).tpr
    pairs = {(a.attack, a.signal): result.added(a) for a in result.attacks}
    cell = written(result)
    for a, plain in zip(result.attacks, cell["attacks"], strict=True):
        beside = pairs.get((a.attack, a.signal))
        plain["over_label"] = a.at(POLICY.fpr).tpr - label
        plain["over_label_bounds"] = beside and list(beside)
    excess = replace(result, policy=replace(POLICY, claim="excess"))
    return cell | {
        "splits": result.sizes,
        "verdict_on_excess": excess.verdict,
        "sentence_on_excess": excess.sentence,
    }


def compare(signals: Signals, rows: Sequence[SuiteRow], resamples: int) -> dict[str, Any]:
    """Ours against each published attack, means over targets, on the examples that nothing was trained on."""
    splits = Splits.of(signals, POLICY, trains=True)
    where = splits.certification
    n = int(where.sum())
    drawn = np.random.default_rng(0xA77A).multinomial(n, np.full(n, 1 / n), size=resamples).T
    weights = np.concatenate([np.ones((n, 1)), drawn], axis=1).astype(np.float32)
    member = signals.membership[list(signals.targets)][:, where]
    named = {(r.name, r.title_signal): r for r in rows}
    wanted = {*OURS.values(), *(p for listed in PUBLISHED.values() for p in listed)}
    found: dict[tuple[str, str], tuple[Array, Array]] = {}
    for code in sorted(wanted & named.keys()):
        scores = against_every_target(signals, named[code], splits.training)[:, where]
        each = [resampled_rates(s, m, weights, PAIRED_FPR) for s, m in zip(scores, member, strict=True)]
        found[code] = (np.mean([e[0] for e in each], axis=0), np.mean([e[1] for e in each], axis=0))
    compared: dict[str, Any] = {"examples": n, "targets": len(signals.targets)}
    for what, ours in OURS.items():
        published = [p for p in PUBLISHED[what] if p in found]
        compared[what] = {
            "ours": " on ".join(ours),
            "attacks": {" on ".join(c): {"auc": estimate(found[c][0]), "tpr": estimate(found[c][1])}
                        for c in (ours, *published)},
        }  # fmt: skip
        for i, kind in enumerate(("auc", "tpr")):
            best = max(published, key=lambda c: found[c][i][0])
            compared[what][kind] = {"best": " on ".join(best), **estimate(found[ours][i] - found[best][i])}
    return compared


def estimate(replicates: Array) -> dict[str, float]:
    """The value (the first one) and its interval from the others."""
    value, se = float(replicates[0]), float(replicates[1:].std(ddof=1))
    low, high = interval({"value": value, "se": se}, Z)
    return {"value": value, "low": low, "high": high}


def against_every_target(signals: Signals, row: SuiteRow, training: Bools) -> Array:
    """(targets, n) scores; attacks that learn use the classifiers that `certify` fitted, by the same seed."""
    scorers = (Scorer(signals, [row], target=t, training=training) for t in signals.targets)
    return np.stack([scorer.scores(scorer.target)[0] for scorer in scorers])


def accuracy(shadows: Shadows, population: Population) -> dict[str, Any]:
    """On members and on non-members, mean over models; and of each model on its members."""
    right = []
    with torch.no_grad():
        for model in shadows.models:
            device = next(model.parameters()).device
            found = [model(x.to(device)).argmax(1).cpu() for x in population.x.split(500)]
            right.append((torch.cat(found) == population.y).numpy())
    correct, member = np.array(right), shadows.membership
    return {
        "members": float(correct[member].mean()),
        "non_members": float(correct[~member].mean()),
        "members_by_model": [float(c[m].mean()) for c, m in zip(correct, member, strict=True)],
    }


@dataclass(frozen=True, eq=False)
class Trained:
    """A task with its models."""

    task: Task
    shadows: Shadows
    right: dict[str, float]

    @classmethod
    def of(cls, task: Task, size: Size, options: Namespace) -> Trained:
        """Train them, or load those that are stored."""
        shadows = train_shadows(
            task.population, task.recipe, build=task.build, models=size.models, device=options.device,
            cache=ModelCache(options.cache / "models"), progress=Progress(f"{task.name}: "),
        )  # fmt: skip
        right = accuracy(shadows, task.population)
        print(f"{task.name}: {len(task.population)} examples, {size.models} models, right on {right['members']:.1%} of"
              f" members and {right['non_members']:.1%} of non-members", flush=True)  # fmt: skip
        return cls(task, shadows, right)

    def cell(self, size: Size, explainer: str, name: str, parts: Parts) -> dict[str, Any]:
        """One cell, from the stored parts where it is there."""
        task = self.task
        weights = [model_digest(m).hex() for m in self.shadows.models]
        what = [task.name, task.population.digest(), weights, size.targets, size.resamples, explainer, name]
        progress = Progress(f"{task.name} {explainer} {name}: ")
        found: dict[str, Any] = parts.get(what, lambda: measure(task, size, self.shadows, explainer, name, progress))
        print(f"\n{task.name}, {explainer}, {name}\n{shown(found)}", flush=True)
        return found


def shown(cell: dict[str, Any]) -> str:
    rows = []
    for a in cell["attacks"]:
        bounds = f"{a['bounds'][0]:.1%} - {a['bounds'][1]:.1%}{'' if a['judged'] else ' *'}"
        rows.append((f"{a['attack']} on {a['signal']}", auc(a), *rates(a), bounds, f"{a['over_label']:+.1%}"))
    header = ("attack", "AUC", *(f"TPR at {f:.1%}" for f in FPRS), f"bounds at {POLICY.fpr:.0%}", "over label")
    wrong = [f"control failed: {c['says']}" for c in cell["controls"] if failed(c)]
    lines = [table(header, rows), "* not judged under this policy", *wrong]
    lines += [cell["sentence"], cell["sentence_on_excess"]]
    for what, ours in OURS.items():
        compared = cell["compared"][what]
        lines += [f"{what}: {' on '.join(ours)} against the best published: {difference(compared)}"]
    return "\n".join(lines)


def difference(compared: dict[str, Any]) -> str:
    area, tpr = compared["auc"], compared["tpr"]
    return (
        f"AUC {area['value']:+.3f} [{area['low']:+.3f}, {area['high']:+.3f}] over {area['best']},"
        f" TPR at 1 % {tpr['value']:+.1%} [{tpr['low']:+.1%}, {tpr['high']:+.1%}] over {tpr['best']}"
    )


def conclude(results: dict[str, Any]) -> dict[str, Any]:
    """What the cells say together, in numbers and sentences."""
    cells = {f"{task} {name}": c for task, r in results.items() for name, c in r["cells"].items()}
    found: dict[str, Any] = {"verdicts": {}, "paired": {}, "controls_fired": {}, "sentences": []}
    for hardening in HARDENINGS:
        mine = {k: c for k, c in cells.items() if k.endswith(hardening)}
        found["verdicts"][hardening] = tally(c["verdict"] for c in mine.values())
        for what in OURS:
            for kind in ("auc", "tpr"):
                each = {k: c["compared"][what][kind] for k, c in mine.items()}
                made = {
                    "cells": len(each),
                    "better": sum(d["low"] > 0 for d in each.values()),
                    "worse": sum(d["high"] < 0 for d in each.values()),
                    "best_published": tally(d["best"] for d in each.values()),
                    "difference": [f([d["value"] for d in each.values()]) for f in (min, max)],
                }
                found["paired"][f"{hardening}, {what}, {kind}"] = made
                found["sentences"].append(paired_sentence(hardening, what, kind, made))
        found["sentences"].append(highest_sentence(hardening, mine))
    for k, c in cells.items():
        if names := [x["name"] for x in c["controls"] if failed(x)]:
            found["controls_fired"][k] = names
    return found


def tally(names: Iterable[str]) -> dict[str, int]:
    """How often each occurs."""
    return dict(Counter(names).most_common())


def paired_sentence(hardening: str, what: str, kind: str, made: dict[str, Any]) -> str:
    low, high = made["difference"]
    unit, span = ("AUC", f"{low:+.3f} to {high:+.3f}") if kind == "auc" else (
        "TPR at 1 % FPR", f"{100 * low:+.1f} to {100 * high:+.1f} points")  # fmt: skip
    best = ", ".join(f"{name} in {n}" for name, n in made["best_published"].items())
    equal = made["cells"] - made["better"] - made["worse"]
    return (
        f"{hardening}, {what}: {' on '.join(OURS[what])} has a higher {unit} than the best published attack in"
        f" {made['better']} of {made['cells']} cells, a lower one in {made['worse']}, and cannot be told from it in"
        f" {equal} (differences {span}; the best published is {best})."
    )


def highest_sentence(hardening: str, cells: dict[str, dict[str, Any]]) -> str:
    """Which attack on the explanation alone finds most in each cell, chosen after the fact, beside the label."""
    said = []
    for cell, c in cells.items():
        best = max((a for a in c["attacks"] if a["role"] == "explanation"), key=lambda a: a["auc"])
        label = next(a for a in c["attacks"] if a["role"] == "label")
        said.append(f"{cell.removesuffix(hardening).strip()} {best['attack']} on {best['signal']} {best['auc']:.3f}"
                    f" (label {label['auc']:.3f})")  # fmt: skip
    return f"{hardening}: the highest AUC of all attacks on the explanation, chosen after the fact: {'; '.join(said)}."


def pick_size(options: Namespace) -> Size:
    given = {
        k: v for k in ("models", "targets", "pool", "epochs", "explainers") if (v := getattr(options, k)) is not None
    }
    return replace(QUICK if options.quick else Size(), **given)


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it is done."""
    p = parser("attack_table", __doc__)
    p.add_argument("--task", choices=(*TASKS, "all"), default="all")
    p.add_argument("--stage", choices=("train", "all"), default="all", help="train: only the models")
    p.add_argument("--device", default="auto", help="auto: cuda when there")
    p.add_argument("--explainers", nargs="+", choices=sorted(CATALOG), help=f"default: {' '.join(EXPLAINERS)}")
    p.add_argument("--models", type=int, help="trained (default 17)")
    p.add_argument("--targets", type=int, help="models that take turns as the target (default 5)")
    p.add_argument("--pool", type=int, help="examples (default 2000 of CIFAR-10, all tracks of GTSRB)")
    p.add_argument("--epochs", type=int, help="default 30 on CIFAR-10, 40 on GTSRB")
    options = p.parse_args(argv)
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    warnings.filterwarnings("ignore", module="captum")
    start, size = time.perf_counter(), pick_size(options)
    torch.set_num_threads(1)
    parts = Parts(options.cache / "attack_table", __package__)
    tasks = [make(size, options.data) for name, make in TASKS.items() if options.task in (name, "all")]
    trained = [Trained.of(task, size, options) for task in tasks]
    if options.stage == "train":
        return 0
    out = destination(options)
    head = {
        "suite": "attack_table",
        "quick": options.quick,
        "size": asdict(size),
        "policy": POLICY.to_dict(),
        "hardening": RANKS.to_dict(),
        "ours": {k: " on ".join(v) for k, v in OURS.items()},
        "published": {k: [" on ".join(c) for c in v] for k, v in PUBLISHED.items()},
    }
    results: dict[str, Any] = {
        t.task.name: {"recipe": asdict(t.task.recipe), "accuracy": t.right, "data": t.task.source, "cells": {}}
        for t in trained
    }
    found: dict[str, Any] = {}
    for explainer in size.explainers:
        for t in trained:
            results[t.task.name]["cells"] |= {f"{explainer} {h}": t.cell(size, explainer, h, parts) for h in HARDENINGS}
            found = conclude(results)
            run = provenance(time.perf_counter() - start, options.device)
            write_json(out, rounded(head | {"summary": found, "results": results}) | run)
    print("\n" + "\n".join(found["sentences"]) + f"\nwritten to {out}", flush=True)
    return 0
