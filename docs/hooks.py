"""For `mkdocs build`: the reference pages, and examples in docstrings as code blocks.

A page for each explainer, attack and mechanism is made from the code and from audit/results (`audit.pages.reference`);
where mkdocs.yml names the overview of such a folder, the navigation gets all of its pages. Examples in docstrings
(`>>> ...`) become code blocks; Markdown would quote them three times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
THUMBNAILS = "<!-- thumbnails -->"
NAMED = r"^\| `Hardened(\w+)` \|"
"""How the tables of docs/explainers.md begin a row: on the site, with a link to the page of the class."""


class _Doctests(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        text = "\n".join(lines)
        fenced = re.sub(r"(?:^|(?<=\n))>>> (?:.|\n(?!\n))*", lambda m: f"```pycon\n{m[0].rstrip()}\n```", text)
        return fenced.split("\n")


class _DoctestExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(_Doctests(md), "doctests", 200)  # before fenced code is looked for


@cache
def _reference() -> Any:
    if str(ROOT) not in sys.path:  # audit/ is no installed package
        sys.path.insert(0, str(ROOT))
    from audit.pages import reference

    return reference


@cache
def _sections() -> Any:
    return _reference().sections()


def on_startup(**_: Any) -> None:
    """Write the stubs, which are not in git: mkdocstrings reads the hardened classes there."""
    writer = ROOT / "docs" / "make_stubs.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, writer], env=environment, stdout=subprocess.DEVNULL, check=True)


def on_config(config: Any) -> Any:
    """Add the extension, which mkdocstrings takes for docstrings too, and the reference pages to the navigation."""
    config["markdown_extensions"].append(_DoctestExtension())
    config["nav"] = _with_pages(config["nav"])
    return config


def _with_pages(nav: Any) -> Any:
    if isinstance(nav, list):
        return [_with_pages(item) for item in nav]
    if isinstance(nav, dict):
        return {title: _with_pages(item) for title, item in nav.items()}
    if found := re.fullmatch(r"reference/(\w+)/index\.md", nav):
        _, *pages = _sections()[found[1]]
        return [nav, *({page.title: f"reference/{found[1]}/{page.name}.md"} for page in pages)]
    return nav


def on_files(files: Any, config: Any) -> Any:
    """Add the reference pages."""
    for folder, pages in _sections().items():
        for page in pages:
            files.append(File.generated(config, f"reference/{folder}/{page.name}.md", content=page.text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Thumbnails for the gallery, and links from the tables of methods to their pages."""
    if page.file.src_uri == "explainers.md":
        return re.sub(NAMED, r"| [`Hardened\1`](reference/explainers/\1.md) |", markdown, flags=re.MULTILINE)
    return markdown.replace(THUMBNAILS, _reference().thumbnails()) if THUMBNAILS in markdown else markdown
