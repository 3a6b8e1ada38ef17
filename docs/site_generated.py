"""For `mkdocs build`: classes that the catalog makes when it is imported, for readers of source such as mkdocstrings.

Griffe reads source without running it, and the hardened classes of Captum stand in no source: each is made from a row.
Here they are made, and their signatures and docstrings are handed to griffe. A class that has a stub is left to it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

WRAP = "safexplain.explain.wrap"
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


def words(annotation: Any) -> str | None:
    """An annotation as people write it: `Tensor | None` for `typing.Union[NoneType, torch.Tensor]`."""
    if annotation is inspect.Parameter.empty:
        return None
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text.replace("~", "")).replace("OfTensorsGeneric", "OfTensors")
    return text.replace("NoneType", "None")


def function(name: str, made: Any, doc: str) -> griffe.Function:
    """Signature and docstring of what exists."""
    signature = inspect.signature(made)
    parameters = [
        griffe.Parameter(
            p.name,
            kind=KINDS[p.kind],
            annotation=words(p.annotation),
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in signature.parameters.values()
    ]
    return griffe.Function(
        name,
        parameters=griffe.Parameters(*parameters),
        returns=words(signature.return_annotation),
        docstring=griffe.Docstring(doc, parser="google") if doc else None,
    )


class Generated(griffe.Extension):
    """Adds the classes of the catalog where they are imported from."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once the source is read, before names that stand for others are looked up."""
        if pkg.path != "safexplain":
            return
        from safexplain.explain.wrap import HARDENED

        module = pkg["explain.wrap"]
        for made in HARDENED.values():
            if made.__module__ != WRAP or made.__name__ in module.members:
                continue
            doc = re.sub(r"^ +as \w+'s constructor\.\n", "", inspect.getdoc(made) or "", flags=re.MULTILINE)
            entry = griffe.Class(made.__name__, docstring=griffe.Docstring(doc, parser="google"))
            start = function("__init__", made, "")
            start.parameters = griffe.Parameters(
                griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword), *start.parameters
            )
            entry.set_member("__init__", start)
            said = (inspect.getdoc(made.attribute) or "").partition("The native documentation:")[0].strip()
            entry.set_member("attribute", function("attribute", made.attribute, said))
            module.set_member(made.__name__, entry)
