"""The tables of docs/evidence/paper_e_tmi.md, from audit/results/paper_e_tmi.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...shared.run import markdown, table
from .evaluate import allowed, allowed_auc
from .tasks import ABLATED, DELTA, SETTINGS

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


def share(value: Sequence[float] | None) -> str:
    """A rate in percent with its interval; nothing where it is less than one image."""
    return "under one image" if value is None else f"{value[0]:.1%} [{max(value[1], 0):.1%}, {value[2]:.1%}]"


def area(value: Sequence[float]) -> str:
    """An AUC with its interval."""
    return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"


def paper(setting: str, attack: str) -> str:
    """AUC, TPR at .1 and at 1 % in the paper."""
    found = PUBLISHED.get(setting, {}).get(attack)
    if found is None:
        return ""
    auc, low, high = found
    return f"{'' if auc is None else f'{auc:g}, '}{100 * low:.3g}%, {100 * high:.3g}%"


def row(setting: str, attack: str, f: Mapping[str, Any]) -> tuple[str, ...]:
    """One attack: corrected, as published, and the paper."""
    naive = f["published"]
    return (
        attack,
        area(f["auc"]),
        share(f["tpr at 0.01"]),
        share(f["tpr at 0.001"]),
        area(naive["auc"]),
        share(naive["tpr at 0.01"]),
        share(naive["tpr at 0.001"]),
        paper(setting, attack),
        f"{f['targets']}, {f['points']:,}",
    )


HEADER = ("attack", "AUC", "TPR at 1 %", "at .1 %", "as published: AUC", "TPR at 1 %", "at .1 %",
          "the paper: AUC, TPR at .1 and 1 %", "targets, images")  # fmt: skip


def attacked(setting: str, found: Mapping[str, Any]) -> str:
    """All attacks of a setting."""
    return markdown(HEADER, [row(setting, name, f) for name, f in found.items()])


def of_settings(*wanted: str) -> Callable[[dict[str, Any]], str]:
    """The tables of several settings, one under the other."""

    def make(found: dict[str, Any]) -> str:
        cells, text = found["results"]["cells"], []
        for name in wanted:
            if name not in cells:
                text.append(f"**{name}**: *not run.*")
                continue
            cell = cells[name]
            text += [
                f"**{name}**: {cell['models']} models, right on {cell['accuracy']:.1%} of test images.",
                attacked(name, cell["attacks"]),
            ]
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
    for epsilon, printed in ((1.0, (0.042, 0.126)), (0.5, (0.025, 0.085))):
        cell = found["results"]["cells"].get(f"coarse, head, epsilon {epsilon:g}, overlap")
        if cell is None:
            continue
        best = max(cell["attacks"].values(), key=lambda f: float(f["auc"][0]))
        name = next(n for n, f in cell["attacks"].items() if f is best)
        rows.append((f"{epsilon:g}", name, area(best["auc"]), f"{allowed_auc(epsilon, DELTA):.3f}",
                     share(best["tpr at 0.01"]), f"{allowed(epsilon, DELTA, 0.01):.2%}",
                     f"{printed[1]:.1%}"))  # fmt: skip
    header = ("epsilon", "attack", "AUC", "allowed", "TPR at 1 %", "allowed", "the paper's TPR at 1 %")
    return markdown(header, rows, left=2)


def ablation(which: str, first: str) -> Callable[[dict[str, Any]], str]:
    """B.1 or B.3: the same attacks under several conditions."""

    def make(found: dict[str, Any]) -> str:
        parts = found["results"]["cells"][ABLATED.name]["ablations"][which]
        rows = [
            (condition, attack, area(f["auc"]), share(f["tpr at 0.01"]), f"{f['targets']}, {f['points']:,}")
            for condition, each in parts.items()
            for attack, f in each.items()
        ]
        return markdown((first, "attack", "AUC", "TPR at 1 %", "targets, images"), rows, left=2)

    return make


def simply(rows: Mapping[str, Any]) -> str:
    """Attacks with AUC and TPR."""
    return markdown(
        ("attack", "AUC", "TPR at 1 %", "targets, examples"),
        [(n, area(f["auc"]), share(f["tpr at 0.01"]), f"{f['targets']}, {f['points']:,}") for n, f in rows.items()],
    )


def classifiers(found: dict[str, Any]) -> str:
    """B.2."""
    return simply(found["results"]["cells"][ABLATED.name]["ablations"]["classifiers"])


def explanations(found: dict[str, Any]) -> str:
    """Explanations beside prediction and label."""
    if not found["results"]["explanations"]:
        return "*Not run.*"
    return simply(found["results"]["explanations"]["attacks"])


def text(found: dict[str, Any]) -> str:
    """Tables 4 and 5."""
    parts = found["results"]["text"]
    if not parts:
        return "*Not run.*"
    right = parts["pretraining"]["accuracy"]
    lira = parts["pretraining"]["attacks"]["LiRA"]
    out = [
        f"{parts['pretraining']['models']} models pre-trained on halves of {parts['pretraining']['examples']:,}"
        " abstracts,"
        f" right on {right['members']:.1%} of their members and {right['others']:.1%} of the others; LiRA on them:"
        f" AUC {area(lira['auc'])}."
    ]
    for name, part in parts.items():
        if name not in ("pretraining", "data"):
            out += [f"**{name}**: right on {part['accuracy']:.1%} of test texts.", simply(part["attacks"])]
    return "\n\n".join(out)


def linear(found: dict[str, Any]) -> str:
    """Figure 3."""
    rows = []
    for shift, f in found["results"]["linear"].items():
        played = [area([f[k]["auc"], f[k]["low"], f[k]["high"]]) for k in ("known means", "ratio")]
        rows.append((shift, f"{f['alpha']:.3f}", f"{f['published']['alpha']:g}", f"{f['auc']:.3f}",
                     f"{f['published']['auc']:g}", f"{f['auc_as_printed']:.2f}", *played))  # fmt: skip
    header = ("length of nu", "best alpha", "the paper's", "AUC (Lemma 4.2)", "the paper's", "with exp (Lemma A.3)",
              "played, known means", "played, likelihood ratio")  # fmt: skip
    return markdown(header, rows)


def shown(report: dict[str, Any]) -> str:
    """For a terminal."""
    rows = [
        (name, attack, f"{f['auc'][0]:.3f}", share(f["tpr at 0.01"]))
        for name, cell in report["results"]["cells"].items()
        for attack, f in cell["attacks"].items()
    ]
    return table(("setting", "attack", "AUC", "TPR at 1 %"), rows)


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
    "tmi: B.1": ablation("top k", "released classes"),
    "tmi: B.2": classifiers,
    "tmi: B.3": ablation("queries", "queries"),
    "tmi: explanations": explanations,
    "tmi: text": text,
    "tmi: linear": linear,
}
"""Name in the page's prose -> what makes the table."""
