"""A page for each attack of `safexplain.audit.attacks`, and the overview."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from safexplain.audit import attacks
from safexplain.audit.attacks import suite

from ...shared.run import markdown
from .parts import ReferencePage, cited, docstring, facts, first_paragraph, percent, result, signature

READS = {
    "explanation": "the explanation",
    "explanation+label": "the explanation and the predicted label",
    "label": "the predicted label",
    "loss": "the probabilities, or the loss",
}
SIGNALS = {
    "variance": "the variance of the map",
    "label+shares": "the labels of many queries, each one's own",
    "kept": "the share of queries that keep the label",
    "shares": "the share of queries that get each label",
    "l1": "the L1 norm of the map",
    "l2": "the L2 norm of the map",
    "mean": "the balance of the signs",
    "positive": "the share of positive numbers",
    "support": "the share of numbers that are not zero",
    "sparsity": "how evenly the map is spread",
    "peak": "the largest number over the typical one",
    "class_l1": "the L1 norms of the maps of several classes",
    "class_l2": "the L2 norms of the maps of several classes",
    "class_mean": "the balance of the signs for several classes",
    "averaged_distance": "the distance of many recourse answers, averaged",
    "score": "a released score",
    "recovered_margin": "the margin read from the directions of recourse",
    "regressed_margin": "the margin read from released scores",
    "attributions": "the whole map",
    "attributions:sign": "the signs of the map",
    "attributions:rank": "the ranks of the map",
    "l1+mean+positive+sparsity+peak": "five summary numbers of the map together",
    "distance": "the distance of a recourse answer",
    "signed_distance": "the signed distance of a recourse answer",
    "prediction": "the log odds of all classes",
    "loss": "the loss",
    "margin": "the margin of the logits",
    "label": "the predicted label",
}
OUTSIDE = {
    "Boosted": "the numbers of one signal or of several, and the label beside them",
    "Stacked": "the scores of other attacks",
    "OwnLabelRatio": "the labels of many queries about one example",
    "PooledDensityRatio": "margins that recourse gives away",
}
"""Attacks that the suite makes for each level, or puts around others."""
SOURCES = {
    "LikelihoodRatio": "Carlini, Chien, Nasr, Song, Terzis, Tramer: Membership Inference Attacks From First Principles,"
    " arXiv 2112.03570",
    "Learned": "Li et al.: DeepLeak, arXiv 2601.03429",
    "Boosted": "no paper: histogram gradient boosting on what references say, after arXiv 2112.03570",
    "Stacked": "no paper: logistic regression on the log ratios of other attacks",
    "OwnLabelRatio": "Choquette-Choo, Tramer, Carlini, Papernot: Label-Only Membership Inference Attacks,"
    " arXiv 2007.14321",
    "LabelLikelihoodRatio": "no paper: the likelihood ratio of arXiv 2112.03570 for a label instead of a number",
    "JointLikelihoodRatio": "no paper: the likelihood ratio of arXiv 2112.03570 for several numbers together",
    "PooledDensityRatio": "no paper: the likelihood ratio of arXiv 2112.03570 with densities pooled over examples",
}
"""Where the docstring of the class names no paper, or not the first one."""


EVERY = "In every audit with four reference models or more, at each level of patience"
JUDGED = {
    "Stacked": f"{EVERY}: all attacks on the explanation together with the labels of the same queries. What the stack"
    " finds beyond the labels is what the verdict is about.",
    "Boosted": f"{EVERY}, as a column of the stack: on the summary numbers of the explanation beside the label.",
}
"""When attacks are judged that the suite makes for each level."""


@cache
def found_attacks() -> dict[str, Any]:
    """Name -> every public dataclass below `safexplain.audit.attacks` that is called with target and references."""
    out = {}
    for module in pkgutil.walk_packages(attacks.__path__, f"{attacks.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(kind) and is_dataclass(kind) and not name.startswith("_") and name in kind.__name__:
                call = inspect.signature(kind.__call__).parameters
                if list(call)[1:4] == ["target", "shadows", "membership"]:
                    out[name] = kind
    return dict(sorted(out.items()))


def source_of(kind: Any) -> str:
    """Where an attack comes from: what `SOURCES` says, or the arXiv numbers in its docstring."""
    if kind.__name__ in SOURCES:
        return cited(SOURCES[kind.__name__])
    texts = (inspect.getdoc(kind) or "", inspect.getdoc(inspect.getmodule(kind)) or "")
    numbers = dict.fromkeys(number for text in texts for number in re.findall(r"arXiv (\d{4}\.\d{5})", text))
    return ", ".join(cited(f"arXiv {number}") for number in numbers) or "no paper"


def attack_pages() -> list[ReferencePage]:
    """The overview and a page for each attack."""
    return [_overview(), *(ReferencePage(name, name, page(kind)) for name, kind in found_attacks().items())]


def page(kind: Any) -> str:
    """The page of an attack."""
    name = kind.__name__
    public = hasattr(attacks, name)
    module = attacks.__name__ if public else kind.__module__
    parts = [
        f"# {name}",
        first_paragraph(kind),
        "## At a glance",
        facts([
            ("Reads", _reads(name)),
            ("Source", source_of(kind)),
            ("Needs reference models", "no" if _alone(kind) else "yes"),
            ("Higher score", "the example was in the training set"),
        ]),
        "## When it is judged",
        _judged(name),
        "## Use it",
        f"```python\nfrom {module} import {name}\n```",
        signature(kind, name),
        signature(kind.__call__, f"{name}(...)"),
        "`target` holds what the target released about each example, `shadows` the same of the reference models, and"
        " `membership` says which example each of these was trained on.",
        "## Definition",
        docstring(f"{kind.__module__}.{name}"),
        "## Measured power",
        *_power(name),
        "## More",
        "- [Which attacks earn a row](../../evidence/attack_table.md)\n"
        "- [What share of the possible the attacks find](../../evidence/benchmarks.md)\n"
        "- To add one, see CONTRIBUTING.md, “Add an attack”",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _alone(kind: Any) -> bool:
    default = inspect.signature(kind.__call__).parameters["shadows"].default
    return default is not inspect.Parameter.empty


def _lines(name: str) -> Iterator[suite.Line]:
    return (line for line in suite.SUITE if type(line.attack).__name__ == name)


def _signal(signal: str) -> str:
    return SIGNALS.get(signal) or f"`{signal}`"


def _reads(name: str) -> str:
    signals = list(dict.fromkeys(_signal(line.signal) for line in _lines(name)))
    if len(signals) > 6:
        signals = [*signals[:6], f"and {len(signals) - 6} more, below"]
    return ", ".join(signals) or OUTSIDE.get(name, "one number an example, or several: whatever it is given")


def _judged(name: str) -> str:
    lines = list(_lines(name))
    if not lines:
        return JUDGED.get(
            name, "Only where you ask for it: give it to `safexplain attack`, or call it on your signals."
        )
    found = []
    for line in lines:
        level = "asked once, and averaged over many queries"
        if line.once:
            level = "asked once"
        if line in suite.WITHOUT_REFERENCES:
            level = "where there are no references"
        if line.role == "loss":
            level = "where the service releases probabilities"
        if line in suite.RECOURSE:
            level = "where recourse is released"
        found.append((_signal(line.signal), READS[line.role], level))
    text = "In the fixed suite of every audit whose signals it can read:"
    return text + "\n\n" + markdown(("signal", "read from", "when"), list(dict.fromkeys(found)), left=3)


def _power(name: str) -> list[str]:
    parts = []
    problems = result("attack_power").get("problems", {})
    shares = {problem: found["share"][name] for problem, found in problems.items() if name in found["share"]}
    if shares:
        parts += [
            "On simulated problems whose best possible test is known, the share of what that test finds at 1 % false"
            f" positives ({result('attack_power')['references']} reference models):",
            _bars(shares, f"Share of the best possible test's finds, by {name}"),
        ]
    rows = []
    for cell, found in result("attack_table").get("results", {}).get("confirm", {}).items():
        for attack, (tpr, _, auc, *_) in found["figures"]["1"]["alone"].items():
            what, _, signal = attack.partition(" on ")
            if what == name:
                rows.append((cell, _signal(signal), f"{auc:.2f}", percent(tpr)))
    if rows:
        parts += [
            "Asked once, with eight references:",
            markdown(("explanation", "signal", "AUC", "members found at 1 % false positives"), rows, left=2),
        ]
    if not parts:
        parts.append(_elsewhere(name))
    return parts


def _elsewhere(name: str) -> str:
    pages = {
        "CounterfactualDistance": ("paper_b_recourse", "Recourse"),
        "CounterfactualLRT": ("paper_b_recourse", "Recourse"),
        "PooledDensityRatio": ("paper_b_recourse", "Recourse"),
        "OwnLabelRatio": ("releases", "What may be released"),
    }
    if name in pages:
        file, title = pages[name]
        return f"[{title}](../../evidence/{file}.md) has what it finds."
    return "Not measured by itself yet."


def _bars(shares: dict[str, float], label: str) -> str:
    """A small bar chart in the colours of the page."""
    row, left, width = 24, 150, 520
    scale = (width - left - 60) / max(1.0, *shares.values())
    parts = [f'<line x1="{left + scale:.1f}" y1="0" x2="{left + scale:.1f}" y2="{row * len(shares)}"'
             ' stroke="currentColor" stroke-dasharray="3 3" opacity="0.6"/>']  # fmt: skip
    for i, (problem, share) in enumerate(shares.items()):
        y = i * row
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{problem}</text>')
        parts.append(f'<rect x="{left}" y="{y + 5}" width="{share * scale:.1f}" height="14" fill="#9970ab"/>')
        parts.append(f'<text x="{left + share * scale + 6:.1f}" y="{y + 16}">{100 * share:.0f} %</text>')
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {row * len(shares)}" style="max-width: {width}px;'
        f' width: 100%" font-size="12" font-family="sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def _overview() -> ReferencePage:
    rows = [(f"[{name}]({name}.md)", first_paragraph(kind), _reads(name)) for name, kind in found_attacks().items()]
    text = "\n\n".join([
        "# Attacks, one by one",
        "An attack scores every example; a higher score says “member”. An audit runs all that can read what a service"
        " releases, alone and stacked with what the labels tell, and fixes them before anything is measured. [How the"
        " scores become a verdict](../../statistics.md).",
        markdown(("attack", "idea", "reads"), rows, left=3),
    ])  # fmt: skip
    return ReferencePage("index", "Attacks", text + "\n")
