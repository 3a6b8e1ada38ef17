"""For `mkdocs build`: what the stubs of hardened classes leave out, for mkdocstrings.

The classes of `safexplain.captum`, `.alibi`, `.aix360`, `.lime` and `.shap` are made when they are imported.
mkdocstrings reads their stubs: these have every signature, and a docstring for each class, but none for its methods.
"""

from __future__ import annotations

from typing import Any

import griffe

STUBBED = ("captum", "alibi", "aix360", "lime", "shap")
METHOD = """Takes what the native method takes, and releases hardened answers only.

See [`Hardened`][safexplain.explain.hardened.Hardened].
"""


class Documented(griffe.Extension):
    """Methods of stubbed classes say that they are hardened; without a docstring mkdocstrings would leave them out."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once all source and stubs are read."""
        if pkg.path != "safexplain":
            return
        modules = [pkg, *(pkg[name] for name in STUBBED if name in pkg.members)]
        classes = (c for module in modules for c in module.members.values() if not c.is_alias and c.is_class)
        for method in (m for c in classes for m in c.members.values() if not m.is_alias and m.is_function):
            if not method.name.startswith("_") and not method.docstring:
                method.docstring = griffe.Docstring(METHOD)
