"""What the reference pages share: results, pictures, signatures, citations."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...shared.run import RESULTS, ROOT

PICTURES = ROOT / "docs" / "figures" / "reference"

SOURCES: Mapping[str, str] = {
    "On Pixel-Wise Explanations": "https://doi.org/10.1371/journal.pone.0130140",
    "Random Forests": "https://doi.org/10.1023/A:1010933404324",
    "Polynomial calculation of the Shapley value": "https://doi.org/10.1016/j.cor.2008.04.004",
    "A Value for n-Person Games": "https://doi.org/10.1515/9781400881970-018",
    "The Algorithmic Foundations of Differential Privacy": "https://doi.org/10.1561/0400000042",
    "Anchors, AAAI": "https://doi.org/10.1609/aaai.v32i1.11491",
}
"""Words of a citation without an arXiv number -> where it is."""


@dataclass(frozen=True)
class ReferencePage:
    """A page."""

    name: str  # of its file, without the ending
    title: str  # in the navigation
    text: str  # Markdown


@cache
def result(name: str) -> dict[str, Any]:
    """A committed result; empty where there is none yet."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


@cache
def pictures() -> dict[str, dict[str, str]]:
    """Name -> file and what it shows."""
    found: dict[str, dict[str, str]] = json.loads((PICTURES / "pictures.json").read_text())
    return found


def picture(name: str, words: str, width: int = 440, share: str = "100%") -> str | None:
    """The picture of a page in docs/reference/FOLDER, at most this share of the page wide; None where there is none."""
    if name not in pictures():
        return None
    file = pictures()[name]["file"]
    png = file.endswith(".png")
    style = (
        f"width: {width if png else width + 240}px; max-width: {share}{'; image-rendering: pixelated' if png else ''}"
    )
    return f'![{words}](../../figures/reference/{file}){{ style="{style}" }}'


def cited(citation: str) -> str:
    """A citation with a link: to arXiv where it has a number there, else as `SOURCES` knows."""
    linked = re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", citation)
    for words, address in SOURCES.items():
        linked = linked.replace(words, f"[{words}]({address})")
    return linked


def signature(call: Callable[..., Any], name: str) -> str:
    """The call as Python code, a parameter a line where it is long."""
    found = inspect.signature(call)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    words, seen_keyword = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not seen_keyword and not any(q.kind is q.VAR_POSITIONAL for q in parameters):
            words.append("*")
        seen_keyword |= p.kind is p.KEYWORD_ONLY
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        typed = "" if p.annotation is p.empty else f": {annotation(p.annotation)}"
        default = "" if p.default is p.empty else f" = {_default(p.default)}" if typed else f"={_default(p.default)}"
        words.append(f"{star}{p.name}{typed}{default}")
    line = f"{name}({', '.join(words)})"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + ")"
    returned = found.return_annotation
    arrow = "" if returned in (found.empty, None, "None") else f" -> {annotation(returned)}"
    return f"```python\n{line}{arrow}\n```"


def _default(value: Any) -> str:
    if inspect.isclass(value) or inspect.isfunction(value):
        return str(value.__name__)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def annotation(value: Any) -> str:
    """A type in short: without modules, unions as `|`."""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)
    text = text.replace("~TensorOrTupleOfTensorsGeneric", "Tensor | tuple[Tensor, ...]").replace("NoneType", "None")
    text = re.sub(r"\b(Tuple|List|Dict|Type)\[", lambda m: f"{m[1].lower()}[", text)
    return _unions(text)


def _unions(text: str) -> str:
    """Union[a, b] and Optional[a] as a | b and a | None."""
    while found := re.search(r"\b(Union|Optional)\[", text):
        depth, parts, start, i = 1, [], found.end(), found.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(text[i], 0)
            if (depth == 1 and text[i] == ",") or depth == 0:
                parts.append(text[start:i].strip())
                start = i + 1
            i += 1
        parts += ["None"] if found[1] == "Optional" else []
        parts = sorted(dict.fromkeys(parts), key=lambda part: part == "None")
        text = text[: found.start()] + " | ".join(parts) + text[i:]
    return text


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Name and value of each, as a list."""
    return "\n".join(f"- **{name}:** {value}" for name, value in pairs)


def percent(value: float, signed: bool = False) -> str:
    """A share."""
    return f"{100 * value:{'+' if signed else ''}.1f} %"


def with_interval(estimate: Mapping[str, float]) -> str:
    """A share with its 95 % interval, which ends at 0 and 1."""
    low, high = (min(max(estimate["value"] + z * estimate["se"], 0.0), 1.0) for z in (-1.96, 1.96))
    return f"{percent(estimate['value'])} [{100 * low:.1f}, {100 * high:.1f}]"


def in_points(difference: Mapping[str, float]) -> str:
    """A difference of shares with its 95 % interval, in percentage points."""
    low, value, high = (100 * (difference["value"] + z * difference["se"]) + 0.0 for z in (-1.96, 0, 1.96))
    return f"{value:.1f} points [{low:.1f}, {high:.1f}]".replace("-0.0", "0.0")


def docstring(identifier: str) -> str:
    """The docstring of an object, as the API pages show it."""
    shown = "{show_root_heading: false, show_root_toc_entry: false, members: false, show_bases: false}"
    return f"::: {identifier}\n    options: {shown}"


def first_paragraph(thing: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
