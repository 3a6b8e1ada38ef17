"""The tables of docs/evidence/paper_e_tmi.md, from audit/results/paper_e_tmi.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...shared.tables import Column, interval, table
from .evaluate import allowed, allowed_auc
from .tasks import DELTA, SETTINGS

PUBLISHED: dict[str, dict[str, tuple[float | None, float, float]]] = {
    "coarse, head": {"network": (0.78, 0.057, 0.161), "adapted LiRA": (None, 0.007, 0.031)},
    "cifar10, head": {"network": (0.684, 0.020, 0.080), "adapted LiRA": (None, 0.003, 0.015)},
    "pre-trained": {"LiRA": (0.83, 0.156, 0.229)},
    "cifar10, last 1": {"network": (None, 0.011, 0.056)},
    "cifar10, last 2": {"network": (None, 0.011, 0.047)},
    "gtsrb, all": {"network": (0.55, 0.005, 0.026), "adapted LiRA": (None, 0.0008, 0.010)},
    "coarse, head, epsilon 1": {"network": (None, 0.032, 0.106)},
    "coarse, head, epsilon 0.5": {"network": (None, 0.033, 0.107)},
    "cifar10, head, epsilon 1": {"network": (None, 0.016, 0.066)},
    "cifar10, head, epsilon 0.5": {"network": (None, 0.021, 0.066)},
    "coarse, head, epsilon 1, overlap": {"network": (None, 0.042, 0.126)},
    "coarse, head, epsilon 0.5, overlap": {"network": (None, 0.025, 0.085)},
}
"""The paper's AUC and TPR at .1 and 1 % of what stands for the same: CIFAR-100 -> coarse classes and CIFAR-10, its
"last 2 layers" (one stage of a ResNet and the head) and "last 3", Oxford-IIIT Pet for GTSRB."""


def share(value: Sequence[float] | str) -> str:
    """A rate in percent with its interval; what was less than one image is a word."""
    if isinstance(value, str):
        return value
    return f"{value[0]:.1%} [{max(value[1], 0):.1%}, {value[2]:.1%}]"


def rate(path: str) -> Column:
    """The column of a rate, which is not there where it would be less than one image."""
    *up, last = path.split("/")
    title = "TPR at 1 %" if last.endswith("0.01") else "at .1 %"

    def of(f: Mapping[str, Any]) -> Any:
        for key in up:
            f = f[key]
        return "under one image" if f[last] is None else f[last]

    return title, of, share


area = interval(".3f")
ATTACK: Column = ("attack", "attack")
SIZE: Column = ("targets, images", lambda f: f"{f['targets']}, {f['points']:,}")


def attacked(setting: str, found: Mapping[str, Any]) -> str:
    """All attacks of a setting: corrected, as published, and in the paper."""

    def paper(f: Mapping[str, Any]) -> str | None:
        if (known := PUBLISHED.get(setting, {}).get(f["attack"])) is None:
            return None
        auc, low, high = known
        return f"{'' if auc is None else f'{auc:g}, '}{100 * low:.3g}%, {100 * high:.3g}%"

    return table(
        [{**f, "attack": name} for name, f in found.items()], ATTACK, ("AUC", "auc", area), rate("tpr at 0.01"),
        rate("tpr at 0.001"), ("as published: AUC", "published/auc", area), rate("published/tpr at 0.01"),
        rate("published/tpr at 0.001"), ("the paper: AUC, TPR at .1 and 1 %", paper), SIZE,
    )  # fmt: skip


def of_settings(*wanted: str) -> Callable[[dict[str, Any]], str]:
    """The tables of several settings, one under the other."""

    def make(found: dict[str, Any]) -> str:
        cells, text = found["results"]["cells"], []
        for name in wanted:
            if cell := cells.get(name):
                right = f"{cell['models']} models, right on {cell['accuracy']:.1%} of test images."
                text += [f"**{name}**: {right}", attacked(name, cell["attacks"])]
            else:
                text.append(f"**{name}**: *not run.*")
        return "\n\n".join(text)

    return make


def controls(found: dict[str, Any]) -> str:
    """What the networks learned, and LiRA on them."""
    made = found["results"]["pretraining"]
    right = made["accuracy"]
    said = f"Right on {right['members']:.1%} of their members and {right['others']:.1%} of the others."
    return f"{said}\n\n{attacked('pre-trained', made['attacks'])}"


def overlap(found: dict[str, Any]) -> str:
    """Table 7: the strongest attack beside what (epsilon, delta) of the fine-tuning alone would allow."""
    rows = []
    for epsilon in (1.0, 0.5):
        name = f"coarse, head, epsilon {epsilon:g}, overlap"
        if cell := found["results"]["cells"].get(name):
            best = max(cell["attacks"], key=lambda attack: float(cell["attacks"][attack]["auc"][0]))
            rows.append({**cell["attacks"][best], "attack": best, "epsilon": epsilon,
                         "printed": PUBLISHED[name]["network"][2]})  # fmt: skip
    return table(
        rows, ("epsilon", "epsilon", "g"), ATTACK, ("AUC", "auc", area),
        ("allowed", lambda r: allowed_auc(r["epsilon"], DELTA), ".3f"), rate("tpr at 0.01"),
        ("allowed", lambda r: allowed(r["epsilon"], DELTA, 0.01), ".2%"), ("the paper's TPR at 1 %", "printed", ".1%"),
        left=2,
    )  # fmt: skip


def explanations(found: dict[str, Any]) -> str:
    """Explanations beside prediction and label."""
    rows = [{**f, "attack": name} for name, f in found["results"]["explanations"]["attacks"].items()]
    size: Column = ("targets, examples", SIZE[1])
    return table(rows, ATTACK, ("AUC", "auc", area), rate("tpr at 0.01"), size)


NAMES = [s.name for s in SETTINGS]

TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "tmi: controls": controls,
    "tmi: table 1": of_settings("coarse, head", "cifar10, head", "gtsrb, head, fewer models"),
    "tmi: table 2": of_settings("cifar10, head, fewer models", "cifar10, last 1", "cifar10, last 2", "cifar10, all"),
    "tmi: table 3": of_settings("gtsrb, all"),
    "tmi: table 6": of_settings(
        "coarse, head, fewer models", *(n for n in NAMES if "epsilon" in n and "overlap" not in n)
    ),
    "tmi: table 7": overlap,
    "tmi: overlap": of_settings(*(n for n in NAMES if "overlap" in n)),
    "tmi: null": of_settings(*(n for n in NAMES if "untrained" in n)),
    "tmi: other": of_settings(*(n for n in NAMES if "other" in n)),
    "tmi: explanations": explanations,
}
"""Name in the page's prose -> what makes the table."""
