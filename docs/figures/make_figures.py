"""The figures of the documentation, each from a real run on the handwritten digits that scikit-learn brings.

    python docs/figures/make_figures.py [--out docs/figures] [--cache DIR] [name ...]

Every figure is written twice, for the light and the dark scheme of the site. The models are like that of `safexplain
demo`, for three pools of 599 digits, a target and 32 reference models each, whose examples are shown together;
figures.json holds the numbers that the text quotes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from safexplain import (
    HardenedInputXGradient,
    Hardening,
    Probability,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    UnitNorm,
)
from safexplain.audit import Policy, Population, Recipe, Shadows, Signals, certify, collect_signals, utility
from safexplain.audit import train_shadows as train
from safexplain.cli.run.preview import DEMO_POLICY, digits, digits_network
from safexplain.verdict.result import AuditResult
from safexplain.verdict.stats import auc_interval

KEY = bytes(32)
POOLS, POOL_SIZE, REFERENCES = 3, 599, 32
RECIPE = Recipe(optimizer="adam", lr=3e-3, epochs=60, batch_size=32)
POLICY = replace(DEMO_POLICY, patience=(1,))
"""The figures show what is told to whoever asks once."""
RECOMMENDED, RANKED = Hardening.recommended(), Hardening.ranked(KEY)
SCHEMES = {
    "light": {"text": "#24292f", "grid": "#d0d7de", "back": "white"},
    "dark": {"text": "#d7dae0", "grid": "#4b505c", "back": "#1e2129"},
}
ORANGE, BLUE, GREEN, PURPLE = "#e8743b", "#3f8fd2", "#3aa676", "#9a6fd0"
MAPS = mpl.colors.LinearSegmentedColormap.from_list("signed", ["#2166ac", "#67a9cf", "#f7f7f7", "#ef8a62", "#b2182b"])

Figure = Callable[["Run"], plt.Figure]


@dataclass
class Run:
    """The trained models and what they release."""

    cache: str | None
    numbers: dict[str, Any]

    @cached_property
    def trained(self) -> list[tuple[Population, Shadows]]:
        """Disjoint pools of the digits, each with its target and reference models."""
        whole = digits()
        order = np.random.default_rng(0).permutation(len(whole))
        parts = [whole.part(order[i * POOL_SIZE : (i + 1) * POOL_SIZE]) for i in range(POOLS)]
        return [(p, train(p, RECIPE, build=digits_network, models=1 + REFERENCES, seed=i, cache=self.cache))
                for i, p in enumerate(parts)]  # fmt: skip

    def signals(self, hardening: Hardening, *, logit: bool = False) -> Signals:
        """Of `HardenedInputXGradient` of the predicted probability, or its logit; model 0 of each pool is attacked."""

        def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
            explained = model if logit else Probability(model)
            maps: Tensor = HardenedInputXGradient(explained, hardening=hardening).attribute(x, target=target)
            return maps

        found = [collect_signals(s, p, explain, patience=(1,), targets=(0,)) for p, s in self.trained]
        return Signals(
            np.concatenate([s.membership for s in found], axis=1),
            {name: np.concatenate([s.values[name] for s in found], axis=1) for name in found[0].values},
            np.concatenate([np.asarray(s.attributions) for s in found], axis=1),
            found[0].meta,
            slices={"class": np.concatenate([s.slices["class"] for s in found])},
        )

    @cached_property
    def native(self) -> Signals:
        """Signals of the native explanations."""
        return self.signals(Hardening.none())

    def audit(self, hardening: Hardening, policy: Policy = POLICY) -> AuditResult:
        """All attacks under a hardening."""
        return certify(self.signals(hardening), policy)


def norms(run: Run) -> plt.Figure:
    """Size of the explanations of members and non-members, of the probability and of the logit."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
    found = {}
    for axis, (name, logit) in zip(axes, (("probability", False), ("logit", True)), strict=True):
        signals = run.signals(Hardening.none(), logit=True) if logit else run.native
        member, sizes = signals.membership[0], np.log10(np.maximum(signals.values["l1"][0], 1e-12))
        bins = np.linspace(*np.quantile(sizes, (0.002, 0.998)), 34)
        for which, colour, label in ((member, ORANGE, "members"), (~member, BLUE, "non-members")):
            axis.hist(sizes[which], bins, color=colour, alpha=0.55, label=label)
        result = certify(signals, POLICY)
        best = next(a for a in result.attacks if (a.attack, a.signal) == ("LikelihoodRatio", "l1"))
        found[name] = {"auc": round(best.auc, 3), "tpr_at_5": round(best.at(0.05).tpr, 3)}
        axis.set(title=f"gradient of the {name}", xlabel="L1 norm of the explanation (log10)")
    axes[0].set_ylabel("examples")
    axes[0].legend(frameon=False, loc="upper left")
    run.numbers["norms"] = found
    return figure


def steps(run: Run) -> plt.Figure:
    """One real map through single steps and through whole hardenings."""
    population, shadows = run.trained[0]
    model = Probability(shadows.models[0])
    at = int(np.flatnonzero(shadows.membership[0])[3])
    x = population.x[at : at + 1]
    target = model(x).argmax(1)
    bound = float(np.median(np.abs(run.native.attributions[0, at])))  # type: ignore[index]
    clip, rank = RangeClip(-4 * bound, 4 * bound), RankNorm()
    shown = {
        "native": Hardening.none(),
        "clip\nRangeClip": Hardening(clip=clip),
        "clip\nRankNorm": Hardening(clip=rank),
        "+ mask\nThresholdMask": Hardening(clip=rank, mask=ThresholdMask(Relative(1.0))),
        "+ noise\nRelative(0.3)": RANKED,
        "recommended\n": RECOMMENDED,
    }
    figure, axes = plt.subplots(1, 1 + len(shown), figsize=(9, 1.85), layout="constrained")
    axes[0].imshow(x[0, 0], cmap="gray_r")
    axes[0].set_title("input\n", fontsize=8)
    for axis, (name, hardening) in zip(axes[1:], shown.items(), strict=True):
        explainer = HardenedInputXGradient(model, hardening=hardening)
        released = explainer.attribute(x, target=target)[0, 0]
        largest = float(released.abs().max())
        axis.imshow(released, cmap=MAPS, vmin=-largest, vmax=largest)
        axis.set_title(name, fontsize=8)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    return figure


def averaging(run: Run) -> plt.Figure:
    """Mean of many answers to one query against the map without noise: fresh noise against keyed noise."""
    population, shadows = run.trained[0]
    model = Probability(shadows.models[0])
    x = population.x[:32]
    target = model(x).argmax(1)
    some = (
        HardenedInputXGradient(model, hardening=Hardening.none()).attribute(x, target=target) != 0
    )  # zeros: see RankNorm
    clean = HardenedInputXGradient(model, hardening=Hardening(clip=RankNorm())).attribute(x, target=target)
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    figure, axis = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
    errors: dict[str, list[float]] = {}
    for name, keyed, colour in (("fresh noise in every answer", False, ORANGE), ("keyed noise", True, GREEN)):
        total, errors[name] = torch.zeros_like(clean), []
        for asked in range(1, counts[-1] + 1):
            key = KEY if keyed else asked.to_bytes(32, "big")
            hardening = Hardening.ranked(key)
            total += HardenedInputXGradient(model, hardening=hardening).attribute(x, target=target)
            if asked in counts:
                errors[name].append(float((total / asked - clean)[some].pow(2).mean().sqrt()))
        axis.plot(counts, errors[name], "o-", color=colour, label=name, markersize=4)
    axis.set(xscale="log", yscale="log", xlabel="times the same query is asked", ylabel="error of the mean answer")
    axis.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"], minor=False)
    axis.set_yticks([0.002, 0.005, 0.01, 0.02], ["0.002", "0.005", "0.01", "0.02"], minor=False)
    axis.minorticks_off()
    axis.legend(frameon=False)
    run.numbers["averaging"] = {"asked": counts, **{k: [round(e, 5) for e in v] for k, v in errors.items()}}
    return figure


def roc(run: Run) -> plt.Figure:
    """Log-log ROC of the strongest attack before and after, beside the attack on the label alone."""
    figure, axis = plt.subplots(figsize=(5.4, 4.2), layout="constrained")
    before, after = run.audit(Hardening.none()), run.audit(RECOMMENDED)
    label = next(a for a in after.attacks if a.role == "label")
    lines = (
        (before.strongest, ORANGE, "native: "),
        (after.strongest, GREEN, "recommended: "),
        (label, PURPLE, "beside, label alone: "),
    )
    for attack, colour, name in lines:
        read = attack.title.partition(" on the ")[2] or attack.title.partition(" of the ")[2]
        text = f"{name}{read}, AUC {attack.auc:.2f}"
        axis.step(attack.curve.fpr, attack.curve.tpr, where="post", color=colour, label=text, lw=1.6)
    axis.plot([1e-3, 1], [1e-3, 1], ":", color="#8b949e", label="guessing")
    axis.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1))
    axis.set(xlabel="non-members falsely identified as members (FPR)", ylabel="members found (TPR)")
    axis.legend(frameon=False, loc="lower right", fontsize=8)
    rows = (("native", before.strongest), ("recommended", after.strongest), ("label", label))
    run.numbers["roc"] = {
        name: {"attack": a.title, "auc": round(a.auc, 3), "tpr_at_5": round(a.at(0.05).tpr, 3)} for name, a in rows
    }
    return figure


def alternatives(run: Run) -> plt.Figure:
    """What each attack still finds under several hardenings."""
    shown = {
        "native": Hardening.none(),
        "UnitNorm": Hardening(clip=UnitNorm()),
        "UnitNorm\n+ noise": Hardening(clip=UnitNorm(), noise=RANKED.noise),
        "RankNorm": Hardening(clip=RankNorm()),
        "RankNorm\n+ noise": RANKED,
        "recommended": RECOMMENDED,
    }
    wanted = {"l1": ("L1 norm", ORANGE), "variance": ("variance", BLUE), "attributions": ("whole map", GREEN)}
    figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    table: dict[str, Any] = {}
    assert run.native.attributions is not None
    for column, (name, hardening) in enumerate(shown.items()):
        signals = run.native if hardening.is_none else run.signals(hardening)
        result = certify(signals, POLICY)
        row: dict[str, Any] = {}
        for shift, (signal, (label, colour)) in enumerate(wanted.items()):
            named = [a for a in result.attacks if (a.attack, a.signal) == ("LikelihoodRatio", signal)]
            if not named:  # the same number for every map
                row[signal] = [0.5, 0.5, 0.5]
                continue
            attack = named[0]
            low, high = auc_interval(attack.curve)
            at = column + 0.18 * (shift - 1)
            axis.errorbar(at, attack.auc, [[attack.auc - low], [high - attack.auc]], fmt="o", color=colour,
                          label=label if column == 0 else None, markersize=5)  # fmt: skip
            row[signal] = [round(v, 3) for v in (attack.auc, low, high)]
        assert signals.attributions is not None
        row["top_overlap"] = round(utility(run.native.attributions[0], signals.attributions[0]).top_overlap, 3)
        table[name.replace("\n", " ")] = row
    alone = next(a for a in result.attacks if a.role == "label")
    axis.axhline(alone.auc, color=PURPLE, ls="--", lw=1.2, label="label alone")
    axis.axhline(0.5, color="#8b949e", ls=":", lw=1.2, label="guessing")
    axis.set(ylabel="AUC of the likelihood ratio", xticks=range(len(shown)))
    axis.set_xticklabels(list(shown))
    axis.legend(frameon=False, ncols=2, loc="upper right")
    run.numbers["alternatives"] = {**table, "label": round(alone.auc, 3)}
    return figure


FIGURES: tuple[tuple[Figure, str], ...] = (
    (norms, "svg"),
    (steps, "png"),
    (averaging, "svg"),
    (roc, "svg"),
    (alternatives, "svg"),
)


def style(scheme: str) -> dict[str, Any]:
    """Matplotlib settings of a scheme: transparent, without frames."""
    colours = SCHEMES[scheme]
    edges = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), colours["text"])
    return {
        **edges,
        "axes.edgecolor": colours["grid"],
        "grid.color": colours["grid"],
        "axes.grid": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.transparent": True,
        "font.size": 9,
        "axes.titlesize": 10,
        "svg.fonttype": "path",
        "svg.hashsalt": "safexplain",
        "path.simplify_threshold": 0.5,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the named figures, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="figures to make; default: all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--cache", help="folder of finished models")
    options = parser.parse_args(arguments)
    mpl.use("Agg")
    numbers = options.out / "figures.json"
    run = Run(options.cache, json.loads(numbers.read_text()) if numbers.is_file() else {})
    for make, kind in FIGURES:
        if options.names and make.__name__ not in options.names:
            continue
        for scheme in SCHEMES:
            with mpl.rc_context(style(scheme)):
                figure = make(run)
                path = options.out / f"{make.__name__}-{scheme}.{kind}"
                figure.savefig(path, dpi=170, metadata={"Date": None} if kind == "svg" else None)
                plt.close(figure)
                print(f"{path}: {path.stat().st_size / 1024:.0f} KB", flush=True)
    numbers.write_text(json.dumps(run.numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
