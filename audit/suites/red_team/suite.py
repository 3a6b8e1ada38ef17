"""What attacks on safexplain itself gained in earlier versions, and what they gain now.

Each row is an attack that a security team made on version 0.1: what it did, what it gained then (a figure that was
measured at that time and is quoted here), and what the same attack gains with the code as it is, which is measured by
this script. Rows on verdicts use simulated signals of which the truth is known, rows on noise small networks. Attacks
on running services are tests (`tests/serve`).

    python -m audit.suites.red_team [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain import HardenedGradientShap, HardenedInputXGradient, HardenedSaliency, Hardening, Probability
from safexplain._digest import model_digest
from safexplain.audit import Policy, Signals, certify
from safexplain.audit.controls.splits import VARIABLE, Uses, uses_of
from safexplain.cli.run.preview import run_demo
from safexplain.errors import InputError
from safexplain.hardening.clips import RankNorm
from safexplain.verdict.result import AuditResult

from ...shared.run import Progress, Run, peak_bytes

ONCE = Policy(fpr=0.05, max_tpr=0.15, patience=(1,), training=0.0, uncounted=True)
"""Judged by one query, so that each row is about one thing."""

KEY = bytes(range(32))

Gained = tuple[str, dict[str, Any], bool]
"""What an attack gains now, in words; the numbers behind it; whether it fails as it must."""


# ------------------------------------------------------------------------------------------- signals of known truth


def simulated(
    leak: float = 0.0,
    *,
    examples: int = 2000,
    models: int = 33,
    effect: float = 1.0,
    seed: int = 0,
    targets: tuple[int, ...] = (0,),
) -> Signals:
    """A label that members keep more often, and an L1 norm that is lower on members by `leak` standard deviations."""
    rng = np.random.default_rng(seed)
    member = rng.random((models, examples)) < 0.5
    level = rng.normal(size=examples)
    by = np.full((models, 1), effect * leak)
    by[0] = leak
    norm = level + rng.normal(0, 0.6, member.shape) - by * 0.6 * member
    label = (level + 1.2 + 0.5 * member + rng.normal(0, 0.5, member.shape) > 0).astype(float)
    values = {"l1": np.exp(norm), "label": label}
    inputs = rng.normal(size=(examples, 8)).astype(np.float32)
    return Signals(member, values, meta={"targets": list(targets)}, inputs=inputs)


def said(result: AuditResult) -> str:
    """Verdict and exit code."""
    return f"{result.verdict}, exit {result.exit_code}"


def weak_suite(quick: bool) -> Gained:
    """Only weak attacks are run on a release that leaks."""
    leaking = simulated(leak=1.5, examples=400 if quick else 2000)
    weak = certify(leaking, replace(ONCE, suite=("Threshold", "RMIA")))
    full = certify(leaking, ONCE)
    text = f"{said(weak)}: {len(weak.omitted)} kinds of attacks were left out; the complete suite: {full.verdict}"
    return text, {"weak": weak.verdict, "full": full.verdict}, weak.verdict != "certified"


def few_references(quick: bool) -> Gained:
    """A release that leaks, audited with four reference models."""
    result = certify(simulated(leak=0.3, examples=400 if quick else 4000, models=5), ONCE)
    return said(result), {"verdict": result.verdict, "references": result.references}, result.verdict != "certified"


def one_of_many(quick: bool) -> Gained:
    """One of 17 models leaks."""
    n = 4 if quick else 17
    signals = simulated(leak=2.5, examples=400 if quick else 1500, models=33, targets=tuple(range(n)), effect=0.2)
    result = certify(signals, replace(ONCE, suite=("LikelihoodRatio", "Stacked")))
    low = max(low for low, _ in result.decisive.values())
    text = f"{said(result)}: model {result.target} adds at least {low:+.1%}"
    return text, {"verdict": result.verdict, "model": result.target, "low": low}, result.verdict == "leak"


def uses_dodged(quick: bool) -> Gained:
    """A second configuration on the same examples, dressed up as new ones."""
    signals = simulated(examples=400)
    policy = replace(ONCE, uncounted=False)
    order = np.random.default_rng(1).permutation(len(signals))

    def chosen(at: NDArray[np.int64], models: slice = slice(None), **meta: Any) -> Signals:
        assert signals.inputs is not None
        values = {name: a[models][:, at] for name, a in signals.values.items()}
        about = {**signals.meta, **meta}
        return Signals(signals.membership[models][:, at], values, meta=about, inputs=signals.inputs[at])

    dressed = {
        "rows permuted": (chosen(order), 0),
        "a row dropped": (chosen(np.arange(1, len(signals))), 0),
        "a reference dropped": (chosen(np.arange(len(signals)), slice(0, -1)), 0),
        "another subject": (chosen(np.arange(len(signals)), subject="another"), 0),
        "another seed": (chosen(np.arange(len(signals))), 1),
    }
    counts = {}
    with TemporaryDirectory() as folder:
        for name, (other, seed) in dressed.items():
            path = Path(folder) / f"{len(counts)}.sqlite"
            for number, (one, s) in enumerate(((signals, 0), (other, seed))):
                named = replace(one, meta={**one.meta, "explainer": "IG", "hardening": f"configuration {number}"})
                use = uses_of(named, policy, ["LikelihoodRatio on l1"], s)
                assert use is not None
                everyone = np.ones(len(named), dtype=bool)
                counts[name] = Uses(path, use.configuration).record(named, everyone)
    worst = min(counts.values())
    return f"counted as use {worst} in each of {len(counts)} disguises", counts, worst == 2


def weak_references(quick: bool) -> Gained:
    """Reference models whose effect is 70 % of the target's."""
    repeats = 3 if quick else 20
    found = []
    for seed in range(repeats):
        signals = simulated(leak=1.0, examples=2000, effect=0.7, seed=seed)
        result = certify(signals, replace(ONCE, suite=("LikelihoodRatio",)), seed=seed)
        found.append(next(c.failed for c in result.controls if c.name == "recipe"))
    share = float(np.mean(found))
    return f"the recipe control fails in {share:.0%} of {repeats} audits", {"share": share}, share >= 0.9


def near_copies(quick: bool) -> Gained:
    """Groups of 50 near-copies that are in or out together; nothing leaks, and the examples are not independent."""
    repeats, groups, size = (10 if quick else 200), 60, 50
    wrong = {"with groups": 0, "without": 0}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(groups), size)
        member = (rng.random((1, groups)) < 0.5)[:, group]
        if member.all() or not member.any():
            continue
        norm = rng.normal(size=groups)[group] + 0.05 * rng.normal(size=len(group))
        values = {"l1": np.exp(norm)[None]}
        strict = Policy(fpr=0.1, max_tpr=0.1001, claim="whole", patience=(1,), training=0.0, uncounted=True)
        for name, of in (("with groups", group), ("without", None)):
            result = certify(Signals(member, values, groups=of), strict)
            wrong[name] += result.verdict == "leak"
    shares = {name: count / repeats for name, count in wrong.items()}
    text = f"{shares['with groups']:.1%} false leaks with `groups` ({shares['without']:.1%} without)"
    return text, shares, shares["with groups"] <= 0.05


# ------------------------------------------------------------------------------------------- attackers


def swamped(quick: bool) -> Gained:
    """A random map beside the label: whoever reads both must not find less than who reads the label."""
    lost = []
    for seed in range(2 if quick else 8):
        signals = simulated(examples=600 if quick else 3000, seed=seed)
        maps = np.random.default_rng(seed).normal(size=(*signals.membership.shape, 32)).astype(np.float32)
        result = certify(replace(signals, attributions=maps), replace(ONCE, suite=("LikelihoodRatio",)))
        both = next(e for e in result.evidence if e.signal == "explanation+label")
        base = result.baseline(1)
        assert base is not None
        lost.append((both.found - base.found) / result.members)
    mean = float(np.mean(lost))
    return f"{100 * mean:+.2f} points", {"points": 100 * mean}, abs(mean) < 0.005


def patient(quick: bool) -> Gained:
    """200 dithered questions about each example of the demo, averaged: the audit must find what such a client finds."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        if quick:
            stack.enter_context(mock.patch("safexplain.cli.run.preview.DEMO_REFERENCES", 6))
        stack.enter_context(mock.patch.dict(os.environ, {VARIABLE: str(Path(folder) / "uses.sqlite")}))
        found = run_demo(Path(folder) / "models", seed=0, device="cpu", progress=lambda *told: None)
    last = found.result.levels[-1]
    whole, added, labels = last["whole"], last["added"], last["labels"]
    text = (
        f"{found.verdict}; at 200 questions the audit finds {whole['low']:.1%} to {whole['high']:.1%}, of which the"
        f" labels alone {labels['tpr']:.1%}; explanations add {added['low']:+.1%} to {added['high']:+.1%}"
    )
    return text, {"verdict": found.verdict, "level": last}, quick or whole["high"] >= 0.228


# ------------------------------------------------------------------------------------------- noise


class Net(nn.Module):
    """A small classifier that flattens what it gets."""

    def __init__(self, features: int = 64, hidden: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(n, classes) logits."""
        return self.layers(x)  # type: ignore[no-any-return]


def network(seed: int = 0, **sizes: int) -> nn.Module:
    """In evaluation mode."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return Net(**sizes).eval()


def averaged_error(answers: list[Tensor], truth: Tensor) -> tuple[float, float]:
    """Root mean square error of one answer, and of the mean of all."""
    flat = torch.stack([a.reshape(-1) for a in answers])
    one = (flat[0] - truth.reshape(-1)).square().mean().sqrt().item()
    mean = (flat.mean(0) - truth.reshape(-1)).square().mean().sqrt().item()
    return one, mean


def explainers(kind: Any, model: nn.Module) -> tuple[Any, Any]:
    """With noise, and with the clip alone."""
    return (
        kind(model, hardening=Hardening.ranked(key=KEY)),
        kind(model, hardening=Hardening(clip=RankNorm())),
    )


def spellings(quick: bool) -> Gained:
    """One question in other shapes, with other values that mean true, with its class written in other ways, and with
    numbers in an empty pixel that are too small to change anything."""
    model, x = Probability(network()), torch.rand(1, 64, generator=torch.Generator().manual_seed(3))
    x[0, 5] = 0.0
    sizes = [(1,) * i + (64,) + (1,) * j for i in range(4) for j in range(4)]
    sizes += [(a, 64 // a) for a in (2, 4, 8, 16, 32)] + [(2, a, 32 // a) for a in (2, 4, 8, 16)]
    classes: list[Any] = [3, -7, [3], torch.tensor([3]), torch.tensor(3), torch.tensor([-7]), [(3,)], (3,)]
    pixel = torch.eye(64)[5]
    (hardened, exact), (saliency, its) = (explainers(k, model) for k in (HardenedInputXGradient, HardenedSaliency))
    answers = {
        "shapes": [hardened.attribute(x.reshape(1, *size), target=3) for size in sizes],
        "classes": [hardened.attribute(x, target=written) for written in classes],
        "denormals": [hardened.attribute(x + k * 1.4e-45 * pixel, target=3) for k in range(100)],
        "values of abs": [saliency.attribute(x, target=3, abs=value) for value in (True, *range(1, 300))],
    }
    found = {}
    for what, given in answers.items():
        found[what] = averaged_error(
            given, (its if given is answers["values of abs"] else exact).attribute(x, target=3)
        )
    said = ", ".join(f"{one:.3f} → {mean:.3f} over {len(answers[what])} {what}" for what, (one, mean) in found.items())
    return f"error {said}", found, all(mean >= 0.99 * one for one, mean in found.values())


def baselines(quick: bool) -> Gained:
    """The same set of baselines of GradientShap in other orders."""
    model, x = Probability(network()), torch.rand(1, 64, generator=torch.Generator().manual_seed(3))
    chosen = torch.rand(16, 64, generator=torch.Generator().manual_seed(4))
    hardened, _ = explainers(HardenedGradientShap, model)
    noise = []
    for seed in range(8 if quick else 64):
        order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
        both = []
        for explainer in (hardened, HardenedGradientShap(model, hardening=Hardening(clip=RankNorm()))):
            torch.manual_seed(0)
            both.append(explainer.attribute(x, baselines=chosen[order], target=3, n_samples=1000))
        noise.append(both[0] - both[1])
    one, mean = averaged_error(noise, torch.zeros_like(noise[0]))
    text = f"noise {one:.3f} → {mean:.3f} over {len(noise)} orders; another set is another question"
    return text, {"one": one, "averaged": mean}, mean >= 0.9 * one


def wrappers(quick: bool) -> Gained:
    """One model behind wrappers that change nothing."""
    model = network()
    behind = {
        "itself": model,
        "DataParallel": nn.DataParallel(model),
        "compiled": torch.compile(model, backend="eager"),
        "DataParallel twice": nn.DataParallel(nn.DataParallel(model)),
    }
    digests = {name: model_digest(m).hex()[:16] for name, m in behind.items()}
    noises = len(set(digests.values()))
    return f"{noises} noise for {len(behind)} ways to call it", digests, noises == 1


def quantised(quick: bool) -> Gained:
    """Two int8 versions of one network: with one digest their noise cancels in the difference."""
    found = []
    for seed in (0, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.ao.quantization.quantize_dynamic(network(seed), {nn.Linear}, dtype=torch.qint8)
        found.append(model_digest(made).hex())
    return f"{len(set(found))} digests of 2 models", {"digests": len(set(found))}, len(set(found)) == 2


# ------------------------------------------------------------------------------------------- files


def zip_bomb(quick: bool) -> Gained:
    """An array that nobody asks for, which is large only when it is unpacked."""
    with TemporaryDirectory() as folder:
        path, mib = Path(folder) / "signals.npz", 64 if quick else 1024
        simulated(examples=400).save(path)
        with ZipFile(path, "a", ZIP_DEFLATED) as archive, archive.open("unused.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
                file, {"descr": "<f8", "fortran_order": False, "shape": (mib * 2**17,)}
            )
            for _ in range(mib):
                file.write(bytes(2**20))
        refused = ""

        def read() -> None:
            nonlocal refused
            try:
                Signals.load(path)
            except InputError as error:
                refused = str(error)

        peak = peak_bytes(read) or 0
    text = f"{peak / 2**20:.0f} MiB of memory for {mib:,} MiB claimed; {'refused' if refused else 'read'}"
    return text, {"peak": peak, "claimed": mib * 2**20, "refused": bool(refused)}, peak < mib * 2**20 / 4


ROWS: tuple[tuple[str, str, str, Callable[[bool], Gained]], ...] = (
    ("verdict", "judge a leak by weak attacks only (`--attacks Threshold,RMIA`)", "certified, exit 0", weak_suite),
    ("verdict", "audit with four reference models", "certified, where attacks had 33–85 % of an oracle's power",
     few_references),
    ("verdict", "hide one leaking model among 17", "certified at 2.7 %; alone, a leak of 6.5–11.3 %", one_of_many),
    ("verdict", "permute rows, drop one, change seed or subject: a second look that counts as the first",
     "counted as use 1", uses_dodged),
    ("verdict", "train references that memorise 70 % as much as the target",
     "certified at 2.9 %, where right ones find 5.0 %", weak_references),
    ("verdict", "groups of 50 near-copies as if they were independent", "29.5 % false leaks", near_copies),
    ("attackers", "a random map beside the label", "the attack on both found 3 points less than the label alone",
     swamped),
    ("attackers", "200 dithered questions about each example of the demo, answers averaged",
     "22.8 % of the members at 5 % false positives, where the certificate said at most 17.3 %", patient),
    ("noise",
     "one question in other shapes, with `abs=1`, `2`, …, its class as 3, −7, [3], …, denormals in an empty pixel",
     "a noise for each: error .315 → .016 over 400 shapes", spellings),
    ("noise", "one set of baselines of GradientShap, in other orders",
     "baselines were no part of the key: .318 → .049 over 64 sets", baselines),
    ("noise", "DataParallel, torch.compile, a wrapper", "five noises for one model", wrappers),
    ("noise", "two int8 versions of one network, subtracted", "one digest for both: error .0008 instead of .053",
     quantised),
    ("files", "a zip bomb in an array that nobody asks for", "unpacked whole", zip_bomb),
)  # fmt: skip
"""Area, what is done, what it gained in version 0.1 as measured then, and the function that makes it again."""


def main(argv: list[str] | None = None) -> int:
    """Measure every row and write the table; 1 where an attack gains what it must not."""
    run = Run("red_team", __doc__, argv)
    parts, progress, found = run.parts(__package__), Progress(), list[dict[str, Any]]()
    for i, (area, attack, before, measure) in enumerate(ROWS):

        def make(measure: Callable[[bool], Gained] = measure) -> dict[str, Any]:
            after, numbers, held = measure(run.quick)
            return {"after": after, "numbers": numbers, "held": bool(held)}

        found.append({"area": area, "attack": attack, "before": before, **parts.get([attack, run.quick], make)})
        progress("attacking", i + 1, len(ROWS))
    run.write(results={"attacks": found}, run=run.provenance())
    missed = [f"{row['attack']}: {row['after']}" for row in found if not row["held"]]
    return run.end(missed)
