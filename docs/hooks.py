"""For `mkdocs build`: examples in docstrings (`>>> ...`) become code blocks; Markdown would quote them three times."""

from __future__ import annotations

import re
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor


class _Doctests(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        fenced = re.sub(r"(?:^|(?<=\n))>>> (?:.|\n(?!\n))*", lambda m: f"```pycon\n{m[0].rstrip()}\n```", text)
        return fenced.split("\n")


class _DoctestExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Doctests(md), "doctests", 200)  # before fenced code is looked for


def on_config(config: Any) -> Any:
    """Add the extension; mkdocstrings takes the site's extensions for docstrings, too."""
    config["markdown_extensions"].append(_DoctestExtension())
    return config
