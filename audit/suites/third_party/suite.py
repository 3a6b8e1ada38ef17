"""Audits of networks that nobody here trained: public CIFAR-10 ResNets, whose training set is known.

Members are rows of the CIFAR-10 training set, non-members rows of the test set, both as JPEG copies, so that a member
is not quite the image that the network saw. Members are not chosen by coin flips here: whether the two sets can be told
apart without a model is checked by the blind baseline, also by a larger one, fitted to rows that are not scored.

1. Without any training: Threshold on every summary of the explanation, and on the loss. A leak can be proven this way,
   but nothing can be certified.
2. With reference models: ResNet-8s trained on coin-flip halves of the pool (images of both sets). Their architecture,
   number of examples, augmentation and length of training are not the target's, whose recipe nobody here can repeat at
   this size. Two more attacks are made for this mismatch: signals are replaced by their normal scores within each model
   (an attacker can do so), and `Calibrated` subtracts what models without the example say (Watson et al., 2111.08440).
3. What the blind baseline is for: members that are pixel-exact originals, non-members JPEG copies.

    python -m audit.suites.third_party [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

import hashlib
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata
from torch import Tensor, nn

from safexplain._digest import model_digest
from safexplain.audit import ModelCache, Policy, Population, Recipe, Shadows, Signals, collect_signals, train_shadows
from safexplain.audit.asked import SUMMARIES
from safexplain.audit.attacks import JointLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.certify import certify
from safexplain.audit.controls.differences import blind_baseline

from ...shared.cells import FPRS, HARDENINGS, auc, failed, found_by, rates, written
from ...shared.run import (
    Parts,
    Progress,
    Unusable,
    destination,
    load,
    module_at,
    parser,
    provenance,
    rounded,
    table,
    write_json,
)
from ..attack_table.tasks import RANKS, accuracy, hardening_of, release

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]

POLICY = Policy(fpr=0.05, max_tpr=0.10, patience=(1,))
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
"""What the networks were trained with."""


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


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        nets: names of weight files.
        explainers: names in the catalogue.
        side: members, and as many non-members.
        blind: further rows a side that the larger blind baseline is fitted to.
        references: models trained.
        epochs: of each.
    """

    nets: tuple[str, ...] = ("resnet20_cifar10", "resnet56_cifar10")
    explainers: tuple[str, ...] = ("InputXGradient", "Saliency")
    side: int = 1500
    blind: int = 6000
    references: int = 8
    epochs: int = 20


QUICK = Size(nets=("resnet20_cifar10",), explainers=("InputXGradient",), side=80, blind=100, references=5, epochs=2)


@dataclass(frozen=True)
class Calibrated:
    """Mean of the models without the example, less the target: low for its difficulty says "member"."""

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """(n,) scores from (n,), (m, n) and (m, n); 0 where every model was trained with the example."""
        without = (~membership).sum(0)
        mean = (shadows * ~membership).sum(0) / np.maximum(without, 1)
        return np.where(without > 0, mean - target, 0.0)


NORMAL = ("l1", "loss")
"""Signals that are also read as normal scores within each model."""

MISMATCH = (
    SuiteRow("LikelihoodRatio", LikelihoodRatio("identity"), "l1_normal", "explanation"),
    SuiteRow("Calibrated", Calibrated(), "l1_normal", "explanation"),
    SuiteRow("LikelihoodRatio", LikelihoodRatio("identity"), "loss_normal", "loss"),
    SuiteRow("Calibrated", Calibrated(), "loss_normal", "loss"),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio("identity"), "l1_normal+loss_normal", "explanation+loss"),
)

THRESHOLDS = (
    *(SuiteRow("Threshold", Threshold(), s, "explanation") for s in SUMMARIES),
    SuiteRow("Threshold", Threshold(), "loss", "loss"),
)


@dataclass(frozen=True, eq=False)
class Pool:
    """Scored images and rows that only the larger blind baseline is fitted to.

    Args:
        population: members and non-members in one random order.
        member: (n,) of the third-party networks.
        others: images of further rows.
        others_member: whether they are training rows.
        exact: the pool with pixel-exact members, where they are there.
    """

    population: Population
    member: Bools
    others: Floats
    others_member: Bools
    exact: Population | None
    source: dict[str, Any]


def images(rows: NDArray[np.uint8]) -> Floats:
    """(n, 3, 32, 32), as the networks take them."""
    found: Floats = (((rows / 255.0) - MEAN) / STD).transpose(0, 3, 1, 2).astype(np.float32)
    return found


def pool(size: Size, folder: Path) -> Pool:
    arrays, source = load(folder, "cifar10", ("x_train", "y_train", "x_test", "y_test"))
    sides, side, rest = ("train", "test"), slice(0, size.side), slice(size.side, size.side + size.blind)
    member = np.repeat([True, False], size.side)
    order = np.random.default_rng(0).permutation(len(member))
    x = images(np.concatenate([arrays[f"x_{s}"][side] for s in sides]))
    y = np.concatenate([arrays[f"y_{s}"][side] for s in sides])
    others = [images(arrays[f"x_{s}"][rest]) for s in sides]
    exact, sources = None, {"cifar10": source}
    if (folder / "cifar10_lossless4k.npz").is_file():
        original, sources["cifar10_lossless4k"] = load(folder, "cifar10_lossless4k", ("x", "y"))
        xe, ye = x.copy(), y.copy()
        xe[: size.side], ye[: size.side] = images(original["x"][: size.side]), original["y"][: size.side]
        exact = Population.of(xe[order], ye[order])
    return Pool(
        Population.of(x[order], y[order]),
        member[order],
        np.concatenate(others),
        np.repeat([True, False], [len(o) for o in others]),
        exact,
        sources,
    )


def third_party(folder: Path, names: Sequence[str]) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The networks in eval mode, and the digests of their files."""
    weights = folder / "weights"
    path = weights / "nets.py"
    if missing := [p.name for p in (path, *(weights / f"{n}.npz" for n in names)) if not p.is_file()]:
        raise Unusable(f"{', '.join(missing)} not found in {weights}; give the data folder with --data DIR")
    module = module_at(path)
    digests = {n: hashlib.sha256((weights / f"{n}.npz").read_bytes()).hexdigest() for n in names}
    return {n: module.load(n)[0].eval() for n in names}, digests


def collect(
    models: Sequence[nn.Module], membership: Bools, population: Population, explainer: str, hardening: str,
    subject: str, progress: Progress,
) -> Signals:  # fmt: skip
    """What the target (model 0) and the others release, each under its own noise key, and normal scores of it."""
    shadows = Shadows(tuple(models), membership)
    releases = [release(explainer, hardening_of(hardening, i)) for i in range(len(models))]
    meta = {"subject": subject, "explainer": explainer}
    null = tuple(int(i) for i in np.flatnonzero(~membership.any(1)))
    found = collect_signals(
        shadows, population, releases, patience=POLICY.patience, targets=(0,), null=null, keep_inputs=True, meta=meta,
        batch_size=200,
        progress=progress,
    )  # fmt: skip
    return replace(found, values={**found.values, **{f"{s}_normal": normal_scores(found.values[s]) for s in NORMAL}})


def normal_scores(values: Floats) -> NDArray[np.float64]:
    """(m, n): the normal quantile of each number's rank among those of its model."""
    ranks = rankdata(values, axis=1)
    scores: NDArray[np.float64] = ndtri((ranks - 0.5) / values.shape[1])
    return scores


def only(signals: Signals, models: Sequence[int]) -> Signals:
    """Some of the models, without maps; untrained ones stay null models."""
    rows = list(models)
    meta = {**signals.meta, "null": [i for i, m in enumerate(rows) if m in signals.null]}
    values = {k: v[rows] for k, v in signals.values.items()}
    return Signals(signals.membership[rows], values, None, meta, signals.inputs)


def measure(
    size: Size, target: nn.Module, name: str, references: Shadows, pool: Pool, explainer: str, hardening: str,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """One cell: attacks without training, and those with reference models."""
    untrained = fresh(0)
    nobody = np.zeros(len(pool.member), dtype=bool)
    membership = np.stack([pool.member, nobody, *references.membership])
    signals = collect(
        [target, untrained, *references.models], membership, pool.population, explainer, hardening, name, progress
    )
    simple = certify(only(signals, (0, 1)), POLICY, suite=THRESHOLDS, progress=progress)
    trained = [i for i in range(len(membership)) if i != 1]
    whole = only(signals, trained)
    assert signals.attributions is not None
    whole = replace(whole, attributions=signals.attributions[trained])
    rows = [r for r in fitting(whole) if not any(s.name.endswith("_normal") for s in r.reads)]
    full = certify(whole, POLICY, suite=[*rows, *MISMATCH], progress=progress)
    return {"without_training": written(simple), "with_references": written(full)}


def fresh(seed: int) -> nn.Module:
    """An untrained ResNet-8."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return resnet8(seed).eval()


def exact_members(target: nn.Module, name: str, pool: Pool, progress: Progress) -> dict[str, Any] | None:
    """The thresholds where members are originals and non-members copies: what the control has to notice."""
    if pool.exact is None:
        return None
    membership = np.stack([pool.member, np.zeros_like(pool.member)])
    signals = collect(
        [target, fresh(0)], membership, pool.exact, "InputXGradient", "native", f"{name}, exact", progress
    )
    return written(certify(only(signals, (0, 1)), POLICY, suite=THRESHOLDS, progress=progress))


def blind(pool: Pool) -> dict[str, Any]:
    """The blind baseline, fitted to many rows that are not scored."""
    inputs = np.concatenate([pool.others, pool.population.x.numpy()])
    member = np.concatenate([pool.others_member, pool.member])
    training = np.arange(len(member)) < len(pool.others)
    found = blind_baseline(inputs, member, training, ~training, POLICY, 0)
    return {"trained_on": int(training.sum()), **found.to_dict()}


def shown(part: dict[str, Any]) -> str:
    rows = []
    for a in part["attacks"]:
        rows.append((f"{a['attack']} on {a['signal']}{'' if a['judged'] else ' *'}", auc(a), *rates(a),
                     f"{a['bounds'][0]:.1%} - {a['bounds'][1]:.1%}"))  # fmt: skip
    header = ("attack (* not judged)", "AUC", *(f"TPR at {f:.1%}" for f in FPRS), f"bounds at {POLICY.fpr:.0%}")
    controls = [f"{'FAILED: ' if failed(c) else ''}{c['name']}: {c['says']}" for c in part["controls"]]
    return "\n".join([table(header, rows), *controls, part["sentence"]])


def conclude(report: dict[str, Any]) -> list[str]:
    """What was found, in sentences."""
    b = report["blind_baseline"]
    found = [
        f"Inputs alone: a blind classifier fitted to {b['trained_on']:,} other rows"
        f" {'tells' if failed(b) else 'does not tell'} train rows from test rows (AUC {b['numbers']['auc']:.3f}, lower"
        f" limit {b['numbers']['auc_low']:.3f}). An attack with an AUC near that has shown nothing about a network."
    ]
    for name, net in report["nets"].items():
        for explainer in dict.fromkeys(cell.split()[0] for cell in net["cells"]):
            native, hard = (net["cells"][f"{explainer} {h}"] for h in HARDENINGS)
            ones, full = native["without_training"], native["with_references"]
            explained = [a for a in full["attacks"] if a["role"] == "explanation"]
            best = max(explained, key=lambda a: a["auc"])
            after = [a for p in hard.values() for a in p["attacks"] if a["role"] == "explanation"]
            worst = max(after, key=lambda a: a["auc"])
            found.append(
                f"{name}, {explainer}: a threshold on the L1 norm of the native map has an AUC of"
                f" {auc(found_by(ones, 'Threshold on l1'))}, one on the loss"
                f" {auc(found_by(ones, 'Threshold on loss'))}; verdict without training: {ones['verdict']}."
                " With reference models of another recipe the likelihood ratio of L1 has"
                f" {auc(found_by(full, 'LikelihoodRatio on l1'))}, calibrated normal scores of L1"
                f" {auc(found_by(full, 'Calibrated on l1_normal'))}, and the highest of {len(explained)} attacks on"
                f" the explanation {auc(best)} ({best['attack']} on {best['signal']}); verdict: {full['verdict']}."
                f" Under ranks with noise the highest of {len(after)} is {auc(worst)} ({worst['attack']} on"
                f" {worst['signal']}); verdicts: {hard['without_training']['verdict']} and"
                f" {hard['with_references']['verdict']}."
            )
        if (exact := net.get("exact_members")) is not None:
            control = next(c for c in exact["controls"] if c["name"] == "blind baseline")
            found.append(
                f"{name}, pixel-exact members against JPEG non-members: the threshold on L1 has an AUC of"
                f" {auc(found_by(exact, 'Threshold on l1'))}, but the blind baseline"
                f" {'fails' if failed(control) else 'passes'} (AUC {control['numbers'].get('auc', 0.5):.3f}),"
                f" and the verdict is {exact['verdict']}."
            )
    return found


def run(size: Size, options: Namespace, parts: Parts, keep: Callable[[dict[str, Any]], None]) -> None:
    """Everything, {"nets": {name: {"cells": ...}}, "blind_baseline": ...}; `keep` is told after each explainer."""
    nets, digests = third_party(options.data, size.nets)
    data = pool(size, options.data)
    progress = Progress("references: ")
    recipe = Recipe(optimizer="sgd", lr=0.1, weight_decay=5e-4, epochs=size.epochs, batch_size=100, schedule="cosine")
    references = train_shadows(
        data.population, recipe, build=resnet8, models=size.references, cache=ModelCache(options.cache / "models"),
        progress=progress,
    )  # fmt: skip
    trained = [model_digest(m).hex() for m in references.models]
    key = [data.population.digest(), trained, digests, asdict(size)["blind"]]

    def part(what: list[str], make: Callable[[], Any]) -> Any:
        return parts.get([*key, *what], make)

    head = {"recipe_of_references": asdict(recipe), "data": data.source}
    report: dict[str, Any] = {"nets": {}, "blind_baseline": part(["blind"], lambda: blind(data))}
    for name, net in nets.items():
        right = accuracy(Shadows((net,), data.member[None]), data.population)
        right = {k: right[k] for k in ("members", "non_members")}
        found = {"accuracy": right, "weights_sha256": digests[name], "cells": {}}
        report["nets"][name] = found
        if name == size.nets[0]:
            found["exact_members"] = part([name, "exact"], lambda n=name, t=net: exact_members(t, n, data, progress))
    for explainer in size.explainers:
        for name, net in nets.items():
            cells = {}
            for h in HARDENINGS:
                progress.prefix = f"{name} {explainer} {h}: "
                arguments = (size, net, name, references, data, explainer, h, progress)
                cells[f"{explainer} {h}"] = part([name, explainer, h], lambda a=arguments: measure(*a))
                for kind, one in cells[f"{explainer} {h}"].items():
                    print(f"\n{name}, {explainer}, {h}, {kind}\n{shown(one)}", flush=True)
            report["nets"][name]["cells"] |= cells
            keep(head | report)


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when it is done."""
    p = parser("third_party", __doc__)
    p.add_argument("--side", type=int, help="members, and as many non-members (default 1500)")
    options = p.parse_args(argv)
    warnings.filterwarnings("ignore", module="captum")
    torch.set_num_threads(1)
    start, size = time.perf_counter(), QUICK if options.quick else Size()
    size = replace(size, side=options.side or size.side)
    parts = Parts(options.cache / "third_party", __package__)
    head = {
        "suite": "third_party",
        "quick": options.quick,
        "size": asdict(size),
        "policy": POLICY.to_dict(),
        "hardening": RANKS.to_dict(),
    }
    out, sentences = destination(options), [""]

    def keep(report: dict[str, Any]) -> None:
        sentences[:] = conclude(report)
        whole = rounded(head | report | {"sentences": sentences})
        write_json(out, whole | provenance(time.perf_counter() - start))

    run(size, options, parts, keep)
    print("\n" + "\n".join(sentences) + f"\nwritten to {out}", flush=True)
    return 0
