"""A page for each row of the catalog, and the overview."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from functools import cache
from typing import Any

import safexplain
from safexplain.errors import MissingExtraError
from safexplain.explain import CATALOG
from safexplain.explain.catalog import EXTRAS, Row
from safexplain.explain.hardened import HARDENED, build
from safexplain.explain.served import TABLE_METHODS

from ...shared.run import markdown
from .parts import ReferencePage, cited, facts, in_points, percent, picture, pictures, result, signature, with_interval

LIBRARIES = {"captum": "Captum", "alibi": "Alibi", "aix360": "AIX360", "lime": "LIME", "shap": "SHAP",
             "safexplain": "safexplain"}  # fmt: skip
OF = {
    "input": "Explains the input: one number for each feature, or for each group of features.",
    "layer": "Explains a layer of the network: one number for each of its outputs.",
    "neuron": "Explains a neuron of the network: one number for each feature of the input.",
}
GUIDES = {"alibi": ("Alibi", "libraries.md#alibi"), "aix360": ("ProtoDash", "libraries.md#protodash"),
          "lime": ("LIME", "libraries.md#lime"), "shap": ("shap", "libraries.md#shap")}  # fmt: skip
ELSEWHERE = {
    "releases": ("What may be released", "asked once and many times, in every format"),
    "attack_table": ("Which attacks earn a row", "all attacks, with and without each"),
    "paper_d": ("DeepLeak", "what carries the leak, and what hardening leaves of it"),
}
"""Suites that measured some of the methods too."""


def explainer_pages() -> list[ReferencePage]:
    """The overview and a page for each row."""
    return [_overview(), *(ReferencePage(row.name, row.name, page(row)) for row in CATALOG.values())]


def page(row: Row) -> str:
    """The page of a row."""
    parts = [
        f"# {row.hardened_name}",
        f"{row.summary} {OF[row.of]}" if row.name not in TABLE_METHODS else f"{row.summary} Explains rows of a table.",
        _picture(row),
        "## Use it",
        _imports(row),
        _calls(row),
        "## At a glance",
        facts(_facts(row)),
        "## What it leaks",
        _measured(row),
        "## What is refused",
        "\n".join(f"- {line}" for line in _refused(row)),
    ]
    if row.search_space:
        parts += [
            "## Options that a search tries",
            "[`safexplain tune`](../../tune.md) looks for the options that leak least. Ranges are given by their ends.",
            markdown(("option", "values"), [(f"`{k}`", _values(v)) for k, v in row.search_space.items()], left=2),
        ]
    parts += ["## More", "\n".join(f"- {line}" for line in _more(row))]
    return "\n\n".join(parts) + "\n"


def _picture(row: Row) -> str:
    words = f"Native and hardened answer of {row.name}"
    bars = pictures().get(row.name, {}).get("file", "").endswith(".svg")
    if found := picture(row.name, words, share="100%" if bars else "66%"):
        shows = pictures()[row.name]["shows"]
        side = "Native answer on the left, hardened answer on the right"
        if bars:
            return f"{found}\n\n*{side}: {shows}. A name without a bar was not released.*"
        photo = picture("photo", "The explained image", 215, "32%")
        kind = "a layer's map, added up over its channels, " if row.of == "layer" else ""
        side = "The explained image, its native answer, and its hardened answer"
        return f"{photo} {found}\n\n*{side}: {kind}for {shows}. {_colours(row)}*"
    return "*No picture yet: `python docs/figures/make_pictures.py` draws it.*"


def _colours(row: Row) -> str:
    if row.of == "neuron":
        return "Red raises the neuron, blue lowers it; maps of magnitudes are purple."
    return "Red counts for the class, blue against it; maps of magnitudes are purple."


def _class(row: Row) -> Any:
    """The hardened class; None where its library is not installed."""
    try:
        found = getattr(safexplain, row.hardened_name, None) or HARDENED.get(row.name) or TABLE_METHODS.get(row.name)
        native = row.native
    except MissingExtraError:
        return None
    return found or (build(row) if row.in_base and native else None)


def _imports(row: Row) -> str:
    lines = []
    if row.hardened_name in safexplain.__all__:
        lines.append(f"from safexplain import {row.hardened_name}")
    if named := _named_as_natively(row):
        lines.append(f"from {named[0]} import {named[1]}{'  # the same class' if lines else ''}")
    if not lines:
        kind = _class(row)
        module = kind.__module__ if kind is not None else "safexplain.explain"
        lines.append(f"from {module} import {kind.__name__ if kind is not None else row.hardened_name}")
    return "```python\n" + "\n".join(lines) + "\n```"


def _named_as_natively(row: Row) -> tuple[str, str] | None:
    """Module and name under which the library's own name is imported."""
    if row.nt_type:
        return None
    name = row.source.rpartition(":")[2] if isinstance(row.source, str) else row.source.__name__
    for library in dict.fromkeys((row.library, *(["aix360"] if row.library == "lime" else []))):
        try:
            module = importlib.import_module(f"safexplain.{library}")
        except ImportError:
            continue
        if name in getattr(module, "__all__", ()):
            return module.__name__, name
    return None


def _calls(row: Row) -> str:
    kind = _class(row)
    if kind is None:
        return f"The signature is shown where the extra `{EXTRAS[row.library]}` is installed."
    native = row.native
    entry = getattr(kind, row.entry)
    parts = [signature(kind.__init__, kind.__name__)]
    if row.name in TABLE_METHODS and _passes_on(kind.__init__):
        parts.append(f"The arguments are those of {LIBRARIES[row.library]}'s class:")
        parts.append(signature(native.__init__, native.__name__))
    parts.append(signature(entry if not _passes_on(entry) else getattr(native, row.entry), f"explainer.{row.entry}"))
    if row.name in TABLE_METHODS:
        parts += ["For an audit or a service, with a background of public rows:",
                  signature(TABLE_METHODS[row.name].catalogued, f"{kind.__name__}.catalogued")]  # fmt: skip
    parts.append("`hardening=None` is the default hardening. Everything else is as in the native class.")
    return "\n\n".join(parts)


def _passes_on(call: Any) -> bool:
    kinds = [p.kind for name, p in inspect.signature(call).parameters.items() if name != "self"]
    return inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds


def _facts(row: Row) -> list[tuple[str, str]]:
    native = row.source.rpartition(":")[2] if isinstance(row.source, str) else row.source.__name__
    runs = []
    if row.hooks:
        runs.append("on a private copy of the model" + (", weights included" if row.writes else ""))
    if row.stochastic:
        runs.append("with random draws, as natively")
    if row.mixes_batch:
        runs.append("on the whole batch: an answer depends on the other examples in it")
    extra = f"; `pip install 'safexplain[{EXTRAS[row.library]}]'`" if row.library in EXTRAS else ""
    return [
        ("Published in", cited(row.citation)),
        ("Family", f"{row.family} ([DeepLeak's families](../../explainers.md#all-methods))"),
        ("Native class", f"`{native}` of {LIBRARIES.get(row.library, row.library)}{extra}"),
        ("Licence of the native code", row.licence),
        ("Runs", "; ".join(runs) or "on the model itself, without hooks"),
    ]


def _measured(row: Row) -> str:
    found = result("explainers")
    measured = found.get("results", {}).get("methods", {}).get(row.name)
    if measured is None:
        return "*Not measured yet: `python -m audit.suites.explainers` does it.*"
    if "reason" in measured:
        return f"Not measured: {measured['reason']}."
    about = found["results"]["tasks"][measured["task"]]
    n = measured.get("examples", about["examples"])
    rows = [
        (who, with_interval(r["tpr"]), f"{r['auc']['value']:.2f}")
        for who, r in (
            ("the predicted label alone", measured["labels"]),
            ("the label and the native answer", measured["native"]["stack"]),
            ("the label and the hardened answer", measured["hardened"]["stack"]),
        )
    ]
    used = measured["utility"]
    hardened = measured["hardened"]
    sentences = [
        f"The native answer adds {in_points(measured['native']['adds']['tpr'])} to what the label tells, the"
        f" hardened one {in_points(hardened['adds']['tpr'])}. Of all attacks that were run on the hardened answer, none"
        f" adds more than {100 * max(hardened['at_most'], 0.0):.1f} points (upper 95 % bound).",
        f"What the hardened answer is still worth: it names {percent(used['overlap'])} of the native top features, and"
        f" its rank correlation with the native answer is {used['rank_correlation']:.2f}.",
    ]
    if "deletion_native" in used:
        sentences.append(
            f"Removing the features that it names lowers the explained probability by {used['deletion_hardened']:.2f};"
            f" removing the native top features, by {used['deletion_native']:.2f}."
        )
    task = {"digits": "handwritten digits and a small CNN", "heloc": "loans (HELOC) and an MLP",
            "trees": "loans (HELOC) and a random forest",
            "linear": "loans (HELOC) and a logistic regression"}[measured["task"]]  # fmt: skip
    how = (
        f"Measured on {task}: {n} examples, half of them members; {about['models']} models, of which"
        f" {about['targets']} take turns as the target and the others are the attacker's references; one question an"
        f" example, about the {measured['explains']}. Released: `{measured['hardening']}`."
        " [All explainers beside each other](../../evidence/explainers.md)."
    )
    return "\n\n".join(
        [
            "Members found at 1 % false positives, with 95 % intervals:",
            markdown(("the attacker reads", "members found", "AUC"), rows),
            *sentences,
            how,
        ]
    )


def _refused(row: Row) -> list[str]:
    lines = []
    if row.delta:
        lines.append("`return_convergence_delta=True`: with the released map it gives away sums that hardening hides.")
    if row.needs_relu:
        lines.append("Models without `nn.ReLU` modules: the method would silently be the plain gradient.")
    if "DeepLift" in row.name:
        lines.append("Models with parts that DeepLift has no rule for, such as a functional ReLU: the values would be"
                     " wrong.")  # fmt: skip
    if row.name.endswith("LRP"):
        lines.append("Modules without a propagation rule, unless they are given one (`module.rule`).")
    if row.mixes_batch:
        lines.append("A batch of one example: there is nothing to shuffle with.")
    if row.nt_type:
        lines.append(f"Any `nt_type` but `{row.nt_type!r}`; `harden(NoiseTunnel(...))` takes every one.")
    if row.name == "KernelShap":
        lines.append("A `feature_mask` with fewer than two groups.")
    if row.name in TABLE_METHODS:
        lines.append("Rows with another number of features than the public background.")
        lines.append("Once loaded from a certificate: any option, background or model that was not audited.")
    else:
        lines.append("To be wrapped in another explainer (`NoiseTunnel`, layer wrappers): hardening comes last.")
        lines.append("Models in training mode, and inputs that are not tensors of shape (batch, ...).")
    return lines


def _values(values: Any) -> str:
    if isinstance(values, list):
        return f"{values[0]:g} to {values[1]:g}"
    return ", ".join(f"`{value!r}`" for value in values)


def _more(row: Row) -> list[str]:
    anchor = {"layer": "#layers-of-a-network-and-its-neurons", "neuron": "#layers-of-a-network-and-its-neurons"}
    lines = [f"[Explainers](../../explainers.md{anchor.get(row.of, '')}): how to call them, and which to choose"]
    if row.library in GUIDES:
        title, file = GUIDES[row.library]
        lines.append(f"[{title}](../../{file})")
    for name, (title, what) in ELSEWHERE.items():
        if re.search(rf'"{row.name}[" ]', _text(name)):
            lines.append(f"[{title}](../../evidence/{name}.md): measured there too, {what}")
    lines.append("[Choosing a hardening](../../hardening.md), and [what each mechanism does](../mechanisms/index.md)")
    return lines


@cache
def _text(name: str) -> str:
    return json.dumps(result(name))


def _overview() -> ReferencePage:
    measured = result("explainers").get("results", {}).get("methods", {})
    groups = {
        "For inputs": [r for r in CATALOG.values() if r.of == "input" and r.name not in TABLE_METHODS],
        "For rows of a table": [r for r in CATALOG.values() if r.name in TABLE_METHODS],
        "For layers": [r for r in CATALOG.values() if r.of == "layer" and r.name not in TABLE_METHODS],
        "For neurons": [r for r in CATALOG.values() if r.of == "neuron"],
    }
    seen: set[str] = set()
    parts = [
        "# Explainers, one by one",
        "A page for each explanation method, with what it needs, what it leaks natively and hardened, and what the"
        " hardened answer is worth. [Pictures of all of them](../../gallery.md); [how to choose](../../explainers.md).",
        "“Native” and “hardened”: members that an attacker finds at 1 % false positives from the label and the answer"
        " together. The label alone is what any prediction service gives away.",
    ]
    for title, rows in groups.items():
        lines = []
        for row in rows:
            if row.name in seen:
                continue
            seen.add(row.name)
            m = measured.get(row.name, {})
            rates = [percent(r["tpr"]["value"]) for r in (m["labels"], m["native"]["stack"], m["hardened"]["stack"])
                     ] if "labels" in m else ["", "", ""]  # fmt: skip
            lines.append((f"[{row.hardened_name}]({row.name}.md)", row.summary, *rates))
        parts += [f"## {title}", markdown(("class", "answer", "label alone", "native", "hardened"), lines, left=2)]
    return ReferencePage("index", "Explainers", "\n\n".join(parts) + "\n")


def thumbnails() -> str:
    """The pictures of all explainers as links to their pages, for docs/gallery.md."""
    cards = []
    for row in CATALOG.values():
        if row.name not in pictures():
            continue
        file = pictures()[row.name]["file"]
        style = "image-rendering: pixelated" if file.endswith(".png") else ""
        cards.append(
            f'<div markdown>\n\n[![{row.name}, native and hardened](figures/reference/{file}){{ style="width: 100%;'
            f' max-width: 100%; {style}" }}](reference/explainers/{row.name}.md)<br>[{row.name}]'
            f"(reference/explainers/{row.name}.md)\n\n</div>"
        )
    grid = "display: grid; grid-template-columns: repeat(auto-fill, minmax(8.2rem, 1fr)); gap: 0 0.8rem"
    return f'<div style="{grid}" markdown>\n\n' + "\n\n".join(cards) + "\n\n</div>"
