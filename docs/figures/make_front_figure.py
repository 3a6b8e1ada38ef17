"""The figure of README.md and of the home page, and every number that is quoted about `safexplain demo`.

    python docs/figures/make_front_figure.py [--run-dir RUN]

Left, what the strongest judged attack finds in native and in hardened explanations; right, the same images explained
both ways. It is the run of `safexplain demo`: with --run-dir, that of a demo which has been run already. front.json
holds the numbers, from which README.md, the pages and docs/outputs/demo.txt are checked. front-narrow is for phones.
Other verdicts on these digits would count as earlier uses: set SAFEXPLAIN_USES to a new file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from make_figures import GREEN, MAPS, ORANGE, PURPLE, SCHEMES, style
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap

from safexplain._progress import show_progress
from safexplain.audit.controls.splits import counted_in
from safexplain.audit.report.outcome import AuditRun
from safexplain.cli.run.preview import digits, run_demo
from safexplain.verdict.result import AttackResult, AuditResult

HERE = Path(__file__).parent
EXAMPLES = (14, 9)
"""Members of the first pool that are shown."""


def label_alone(result: AuditResult) -> AttackResult:
    """What the labels of the same queries tell, to which the strongest attack is compared."""
    level = result.strongest.level
    return next(a for a in result.attacks if a.is_baseline and a.level == level)


def numbers(found: AuditRun) -> dict[str, Any]:
    """What is quoted, as the tables of the demo have it."""

    def told(result: AuditResult) -> dict[str, Any]:
        best = result.strongest
        added = result.added(best)
        assert added is not None
        return {
            "verdict": result.verdict,
            "strongest": best.title,
            "adds": round(result.estimate(best), 4),
            "adds_bounds": [round(b, 4) for b in added],
            "asked": best.level,
            "found": round(best.found / result.members, 4),
            "auc": round(best.auc, 3),
        }

    labels = {str(line["patience"]): round(line["labels"]["tpr"], 4) for line in found.result.levels if line["labels"]}
    kept = found.utility
    assert kept is not None
    return {
        "fpr": found.result.policy.fpr,
        "limit": found.result.limit,
        "native": told(found.native),
        "recommended": {**told(found.result), "top_overlap": round(kept.top_overlap, 3)},
        "labels": labels,
    }


def figure(found: AuditRun, *, narrow: bool = False) -> plt.Figure:
    """Curves on the left, two images on the right; for a phone, the images below the curves."""
    whole = plt.figure(figsize=(4.2, 6.0) if narrow else (8.4, 3.3), layout="constrained")
    if narrow:
        left, right = whole.subfigures(2, 1, height_ratios=(1, 1))
    else:
        left, right = whole.subfigures(1, 2, width_ratios=(1.15, 1))
    axis = left.subplots()
    fpr = found.result.policy.fpr
    for attack, colour, dashes, name in (
        (found.native.strongest, ORANGE, "-", "label and native explanation"),
        (found.result.strongest, GREEN, "-", "label and hardened explanation"),
        (label_alone(found.result), PURPLE, "--", "label alone"),
    ):
        rate = attack.curve.tpr[np.searchsorted(attack.curve.fpr, fpr, side="right") - 1]
        label = f"{name}: {rate:.0%}"
        axis.step(attack.curve.fpr, attack.curve.tpr, where="post", color=colour, ls=dashes, lw=1.8, label=label)
    axis.plot([0.003, 1], [0.003, 1], ":", color="#8b949e", lw=1)
    axis.axvline(fpr, color="#8b949e", lw=0.8)
    axis.set(xscale="log", yscale="log", xlim=(0.003, 1), ylim=(0.003, 1))
    axis.set_xticks([0.01, 0.05, 0.1, 1], ["1 %", "5 %", "10 %", "100 %"], minor=False)
    axis.set_yticks([0.01, 0.1, 1], ["1 %", "10 %", "100 %"], minor=False)
    axis.minorticks_off()
    axis.set(xlabel="false-positive rate", ylabel="members found", title="What a membership attack finds")
    axis.legend(frameon=False, loc="lower right", fontsize=8, title=f"at {fpr:.0%} false positives", title_fontsize=8)

    population = digits()
    member = np.flatnonzero(found.signals["native"].membership[0, : len(population.y)])
    axes = right.subplots(len(EXAMPLES), 3)
    text = mpl.rcParams["text.color"]
    for row, at in zip(axes, member[list(EXAMPLES)], strict=True):
        image = population.x[at, 0].numpy()
        kept = [found.signals[c.name].attributions for c in found.configurations]
        maps = [np.asarray(k[0, at]).reshape(image.shape) for k in kept if k is not None]
        largest = np.abs(maps[0]).max()
        row[0].imshow(image, cmap="gray_r")
        row[1].imshow(maps[0], cmap=MAPS, vmin=-largest, vmax=largest)
        row[2].imshow(image, cmap="gray_r", alpha=0.25)
        row[2].imshow(np.ma.masked_equal(maps[-1] > 0, False), cmap=ListedColormap([GREEN]), alpha=0.9)
        for panel in row:
            panel.set(xticks=[], yticks=[])
            for side in panel.spines.values():
                side.set(visible=True, color="#8b949e", linewidth=0.6)
    for panel, title in zip(axes[0], ("image", "native", "hardened"), strict=True):
        panel.set_title(title, color=text)
    return whole


def main() -> None:
    """Run or resume the demo, draw it for both schemes, and write its numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run-dir", type=Path, help="of a demo: its models are not trained again")
    run_dir = parser.parse_args().run_dir
    mpl.use("Agg")
    with (
        tempfile.TemporaryDirectory() as folder,
        show_progress(False) as progress,
        counted_in(Path(folder) / "uses.sqlite"),
    ):
        found = run_demo((run_dir or Path(folder)) / "models", seed=0, device="cpu", progress=progress)
    for scheme in SCHEMES:
        with mpl.rc_context(style(scheme)):
            for kind, narrow in (("front", False), ("front-narrow", True)):
                made = figure(found, narrow=narrow)
                made.savefig(HERE / f"{kind}-{scheme}.svg", metadata={"Date": None})
                plt.close(made)
    (HERE / "front.json").write_text(json.dumps(numbers(found), indent=2) + "\n")


if __name__ == "__main__":
    main()
