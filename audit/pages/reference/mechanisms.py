"""A page for each part of a hardening and for each mechanism of differential privacy, and the overview."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from safexplain import dp, recourse
from safexplain.hardening.clips import Relative
from safexplain.hardening.hardening import SLOTS
from safexplain.recourse.mechanisms.mechanism import RecourseMechanism

from ...shared.run import markdown
from .parts import (
    ReferencePage,
    cited,
    docstring,
    facts,
    first_paragraph,
    percent,
    picture,
    pictures,
    result,
    signature,
)

SLOT = {
    "clip": "Clips come first. They bound how large an explanation can be, or replace its numbers by a fixed format.",
    "mask": "Masks come second. They set small numbers to zero.",
    "noise": "Noise comes last, on every number, masked ones too.",
}
NO_GUARANTEE = (
    "It is not differential privacy: one training example can change what is released. Whether it holds is measured by"
    " an [audit](../../quick-start.md), for your model and data."
)
BY_SLOT = {
    "clip": "What the clip keeps (order, signs, which features are on top) can still tell members.",
    "mask": "A mask alone leaves the size of the explanation, which is what attacks read first.",
    "noise": "Noise averages away: a patient client asks many slightly different questions.",
}


@dataclass(frozen=True)
class About:
    """What a page says beside the docstring."""

    costs: str  # what is lost
    leaves: str  # what it does not protect against
    releases: str = ""  # its name in releases.json, where it was measured there
    source: str = "no paper: safexplain's own, by measurement"  # the paper


PARTS: Mapping[str, About] = {
    "RangeClip": About(
        "Large values are cut off, so that the strongest features look equal.",
        "Values below the bound leave as they are, and so do sizes, signs and order. Alone it hides almost nothing.",
        "DeepLeak's default", "arXiv 2601.03429",
    ),
    "NormClip": About(
        "Nothing for short explanations; long ones are scaled down.",
        "Explanations below the bound keep their norm. Members tend to have small norms: this is the wrong end to cut.",
        source="arXiv 1607.00133 (the clipping of DP-SGD, here on explanations)",
    ),
    "UnitNorm": About(
        "The size of an explanation: users cannot tell a strong one from a weak one.",
        "Shape, signs and ranks stay. How an explanation is spread, and how its signs balance, still tells members.",
        "unit norm",
    ),
    "RankNorm": About(
        "Magnitudes: only order and sign are left. With `balanced_from`, some small entries change their sign.",
        "The order itself, and without `balanced_from` the balance of signs.",
        "rank norm 1.45, balanced",
    ),
    "TopKSet": About(
        "The order among the named features, everything that counts against the class, and all other features.",
        "Which features are named. A feature that stands out only for members would be named only for them.",
        "TopKSet(k=4, fraction=.1)",
    ),
    "Levels": About(
        "All differences within a step, and the half of the features that counts least.",
        "More than a set does: it failed the rule for integrated gradients and feature ablation on digits.",
        "Levels(3)",
    ),
    "ThresholdMask": About(
        "Features below the threshold.",
        "How many numbers are left is itself a signal, since members have smaller explanations.",
        "DeepLeak's default", "arXiv 2601.03429",
    ),
    "TopKMask": About(
        "All but the largest numbers.",
        "The values of the numbers that are kept.",
    ),
    "GaussianNoise": About(
        "Accuracy of each number; with few features, wrong signs (`Hardening.sign_error_rate` says how many).",
        "Patience. The same question always gets the same noise, but nearly equal questions get independent noise, and"
        " their average has little left of it. Release only what is safe with its noise averaged away.",
        "DeepLeak's default", "arXiv 2601.03429",
    ),
    "Relative": About(
        "Nothing by itself: it says how large a threshold or a noise is, in units of the clip's scale.",
        "See the mask or the noise that it is an amount of.",
    ),
}  # fmt: skip
"""Class in a slot of `Hardening` -> what its page says; one without an entry has what `BY_SLOT` says of its slot."""

DP_SGD = "Abadi et al., arXiv 1607.00133"
CHAUDHURI = "Chaudhuri, Monteleoni, Sarwate, arXiv 0912.0071"
LAPLACE = "Dwork, Roth: The Algorithmic Foundations of Differential Privacy, 2014"
PRIVATE = (
    "What anybody learns who never sees the model: properties of the whole population. The guarantee is about one"
    " record (or one group, where records are grouped), and weakens as epsilon grows."
)


@dataclass(frozen=True)
class Guaranteed:
    """What a page says of a mechanism of differential privacy."""

    does: str  # in a sentence
    costs: str  # what is lost
    source: str  # the paper
    named: str = ""  # how its rows in recourse_evidence.json begin, where it was measured there
    evidence: tuple[str, str] = ("dp_attacks", "Differential privacy against the attacks")  # page and title
    leaves: str = PRIVATE  # what it does not protect against


RECOURSE = ("paper_b_recourse", "Recourse: accuracy, validity and attacks")
EVERY_ANSWER = (
    "Answers beyond the budget: each answer costs epsilon, so that n answers cost up to n times as much. Charge them to"
    " a [ledger](../../ledger.md)."
)
DP: Mapping[str, Guaranteed] = {
    "DPFineTuner": Guaranteed(
        "Fine-tunes a network by DP-SGD: gradients of single examples are clipped, added up and noised.",
        "Accuracy, above all on few examples; time and memory for gradients of single examples.", DP_SGD),
    "statement_from": Guaranteed(
        "States what a training loop of your own guarantees that Opacus made private, under both adjacencies.",
        "As DPFineTuner. Of the loop only the accountant's history is known; the white box checks the rest.", DP_SGD),
    "DPLogisticRegression": Guaranteed(
        "Logistic regression by noisy gradient descent, as a scikit-learn classifier; or with noise on its objective or"
        " on its weights.",
        "Accuracy, above all on few records and many features.",
        f"Bassily, Smith, Thakurta, arXiv 1405.7085; {CHAUDHURI}; Wu et al., arXiv 1606.04722",
        evidence=RECOURSE),
    "FlatClipping": Guaranteed(
        "Clips the gradient of each example to one norm: g min(1, C / |g|).",
        "Large gradients, those of unusual examples, count for less.", DP_SGD),
    "PerLayerClipping": Guaranteed(
        "Clips the gradient of each example layer by layer.",
        "Layers with large gradients count for less; no second pass over the gradients is needed.",
        "McMahan et al., arXiv 1710.06963"),
    "AutoSClipping": Guaranteed(
        "Normalises the gradient of each example: C g / (|g| + gamma), so that no bound has to be tuned.",
        "Small gradients count as much as large ones.", "Bu et al., arXiv 2206.07136"),
    "DPModelRecourse": Guaranteed(
        "Answers recourse from a model that was trained with differential privacy: post-processing, so that answers"
        " cost nothing more.",
        "The accuracy that private training costs; recourse that the model without privacy would not accept.", DP_SGD,
        "DPModelRecourse", RECOURSE),
    "LaplaceScore": Guaranteed(
        "Releases the logit of each query with Laplace noise; the direction of the answer comes from public weights.",
        "A budget for each answer, and directions that are no better than the public weights.", LAPLACE, "LaplaceScore",
        RECOURSE, EVERY_ANSWER),
    "MeteredRecourse": Guaranteed(
        "Charges every answer of a mechanism to a ledger, and refuses when the budget is spent.",
        "Answers: whoever has spent his budget gets none.", LAPLACE, evidence=RECOURSE, leaves=EVERY_ANSWER),
}  # fmt: skip
"""Mechanism of differential privacy -> what its page says."""


def private_mechanisms() -> dict[str, Any]:
    """Every public mechanism: those of `DP`, and every `RecourseMechanism` that `safexplain.recourse` exports."""
    out = {name: getattr(dp, name, None) or getattr(recourse, name) for name in DP}
    for name in recourse.__all__:
        kind = getattr(recourse, name)
        if inspect.isclass(kind) and issubclass(kind, RecourseMechanism):
            out.setdefault(name, kind)
    return out


def hardening_parts() -> dict[str, tuple[str, Any]]:
    """Name -> slot and class, for everything that may stand in a slot, and the relative amount."""
    parts = {kind.__name__: (slot, kind) for slot, kinds in SLOTS.items() for kind in kinds}
    return {**parts, "Relative": ("amount", Relative)}


def mechanism_pages() -> list[ReferencePage]:
    """The overview and a page for each mechanism."""
    hardening = [ReferencePage(n, n, part_page(n, slot, kind)) for n, (slot, kind) in hardening_parts().items()]
    private = [ReferencePage(n, n, private_page(n, kind)) for n, kind in private_mechanisms().items()]
    return [_overview(), *hardening, *private]


def part_page(name: str, slot: str, kind: Any) -> str:
    """The page of what stands in a slot of a hardening."""
    about = PARTS.get(name) or About("What it takes away, see the definition.", BY_SLOT[slot])
    parts = [f"# {name}", first_paragraph(kind)]
    if found := picture(name, f"A map before and after {name}"):
        parts.append(
            f"{found}\n\n*Before and after: a native map of integrated gradients, and `{pictures()[name]['shows']}`.*"
        )
    else:
        parts.append("*No picture yet: `python docs/figures/make_pictures.py` draws it.*")
    module = "safexplain" if hasattr(importlib.import_module("safexplain"), name) else kind.__module__
    parts += [
        "## At a glance",
        facts([
            ("Slot", SLOT.get(slot, "An amount, for masks and noise.")),
            ("Costs", about.costs),
            ("Does not protect against", about.leaves),
            ("Source", cited(about.source)),
        ]),
        "## Use it",
        f"```python\nfrom {module} import {name}\n```",
        signature(kind, name),
        "## Definition",
        docstring(f"{kind.__module__}.{name}"),
        "## Measured",
        _released(name, about),
        "## No guarantee",
        NO_GUARANTEE,
        "## More",
        "- [Choosing a hardening](../../hardening.md)\n- [What may be released](../../evidence/releases.md)\n"
        "- [How fast it is](../../evidence/benchmarks.md)",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _released(name: str, about: About) -> str:
    rows = []
    for task, found in result("releases").get("results", {}).items():
        for explainer, cell in found["cells"].items():
            if about.releases in cell["releases"]:
                native, own = cell["releases"]["native"], cell["releases"][about.releases]
                adds = (_adds(r["judged"]["tpr"]) for r in (native, own))
                kept = (f"{own['overlap']:.2f}", f"{own['rank_correlation']:.2f}")
                rows.append((f"{task}, {explainer}", *adds, *kept, "yes" if own["judged"]["passes"] else "no"))
    if not rows:
        return f"`{name}` was not measured by itself: whole hardenings are audited, and none of those measured has it."
    return "\n\n".join([
        f"`{about.releases}`, beside the native map: what the strongest attack adds to the labels of the same queries,"
        " in points of members found at 1 % false positives, at the level of patience where it adds most (95 %"
        " intervals)."
        " “Passes”: adds at most 1 point and .02 of AUC, with upper bounds, and stays as faithful as the native map.",
        markdown(("task, explainer", "native adds", "this adds", "top features kept", "rank correlation", "passes"),
                 rows),
    ])  # fmt: skip


def _adds(found: Mapping[str, float]) -> str:
    half = 1.96 * found["se"]
    return f"{100 * found['value']:+.1f} ± {100 * half:.1f}"


def private_page(name: str, kind: Any) -> str:
    """The page of a mechanism of differential privacy."""
    about = DP.get(name) or Guaranteed(first_paragraph(kind), "Accuracy.", LAPLACE, name, RECOURSE)
    package = "safexplain.dp" if name in dp.__all__ else "safexplain.recourse"
    file, title = about.evidence
    where = (
        ("Differential privacy", "differential-privacy.md") if package.endswith("dp") else ("Recourse", "recourse.md")
    )
    parts = [
        f"# {name}",
        about.does,
        "*No picture: it changes how a model is trained or what is released of a score, not a map.*",
        "## At a glance",
        facts([
            ("Guarantee", "differential privacy; `PrivacyStatement` says which epsilon, under both adjacencies"),
            ("Costs", about.costs),
            ("Does not protect against", about.leaves),
            ("Source", cited(about.source)),
        ]),
        "## Use it",
        f"```python\nfrom {package} import {name}\n```",
        _signature(kind, name),
        "## Definition",
        docstring(f"{kind.__module__}.{name}"),
        "## Measured",
        _private(about) or f"[{title}](../../evidence/{file}.md).",
        "## More",
        f"- [{where[0]}](../../{where[1]})\n- [{title}](../../evidence/{file}.md)\n"
        "- [Lower bounds on epsilon](../../evidence/bound_errors.md)\n"
        "- [Bugs of trainers that canaries find](../../evidence/broken_trainers.md)",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _signature(kind: Callable[..., Any], name: str) -> str:
    return signature(kind, name)


def _private(about: Guaranteed) -> str:
    if not about.named:
        return ""
    rows = []
    for task, found in result("recourse_evidence").get("results", {}).items():
        if not isinstance(found, Mapping):
            continue
        for cell, measured in _cells(found):
            if cell.startswith(about.named):
                rows.append((task, cell.removeprefix(about.named).strip(", "), *measured))
    if not rows:
        return ""
    return "\n\n".join([
        "Accuracy of the decision on test data, the share of its recourse that the model without privacy accepts, and"
        " the AUC of the strongest of all attacks on recourse, chosen after the fact (.5 is chance):",
        markdown(("task", "budget", "accuracy", "accepted", "strongest attack"), rows, left=2),
    ])  # fmt: skip


def _strongest(cell: Mapping[str, Any]) -> float:
    return max(float(attack["auc"]) for attack in cell["attacks"])


def _cells(found: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (name, (percent(cell["test_accuracy"]), percent(cell["use"]["valid"]), f"{_strongest(cell):.2f}"))
        for name, cell in found.get("cells", {}).items()
    ]


def _overview() -> ReferencePage:
    parts = [f"[{name}]({name}.md)" for name in hardening_parts()]
    rows = [
        (part, slot, first_paragraph(kind))
        for part, (slot, kind) in zip(parts, hardening_parts().values(), strict=True)
    ]
    private = [(f"[{name}]({name}.md)", DP[name].does if name in DP else first_paragraph(kind))
               for name, kind in private_mechanisms().items()]  # fmt: skip
    text = "\n\n".join([
        "# Mechanisms, one by one",
        "What can happen to an explanation before it leaves, and what can be trained or released with a guarantee. A"
        " hardening has three slots in one order: clip, then mask, then noise. **It is not differential privacy.** The"
        " mechanisms of the second table are.",
        "## Parts of a hardening",
        markdown(("part", "slot", "what it does"), rows, left=3),
        "## Differential privacy",
        markdown(("mechanism", "what it does"), private, left=2),
    ])  # fmt: skip
    return ReferencePage("index", "Mechanisms", text + "\n")
