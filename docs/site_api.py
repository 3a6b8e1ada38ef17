"""For `mkdocs build`: a page for each public class, and tables of them, from what the package lists in `__all__`.

A page of docs/api names in its head (`api:`) the modules whose `__all__` it is about, or names of theirs. Each class of
these gets a page of its own below it, with the line that imports it; functions stand on the page itself. The page of a
class is written nowhere, so that none can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files
from mkdocs.utils import meta

ROOT = Path(__file__).parents[1]
PACKAGE = "safexplain"
DROP_IN = tuple(f"{PACKAGE}.{library}" for library in ("captum", "alibi", "aix360", "lime", "shap"))
"""Modules with other libraries' names for classes that have a page already."""
MARK = "<!-- api -->"
"""Where the tables go on a page of docs/api."""


@dataclass(frozen=True)
class Name:
    """A public name.

    Args:
        name: as it is imported.
        home: the module that it is imported from.
        path: where it is defined.
        is_class: whether it gets a page.
        summary: the first sentence of its docstring.
    """

    name: str
    home: str
    path: str
    is_class: bool
    summary: str


@dataclass
class Topic:
    """A page of docs/api, and the names on it."""

    page: str
    title: str
    names: list[Name] = field(default_factory=list)

    @property
    def classes(self) -> list[Name]:
        """Each has a page below this one."""
        return [n for n in self.names if n.is_class]

    @property
    def functions(self) -> list[Name]:
        """These stand on this page."""
        return [n for n in self.names if not n.is_class]

    def page_of(self, name: Name) -> str:
        """Source of a class's page."""
        return f"{self.page.removesuffix('.md')}/{name.name}.md"


def first_sentence(docstring: griffe.Docstring | None) -> str:
    """For a cell of a table."""
    paragraph = " ".join((docstring.value if docstring else "").strip().partition("\n\n")[0].split())
    paragraph = re.sub(r"^Hardened \w+\. (?=[A-Z])", "", paragraph)  # says no more than the name
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])|:$", paragraph)[0]
    return sentence.replace("|", "\\|")


def find(package: griffe.Module, path: str) -> griffe.Object | None:
    """What stands behind a name, or None where only the running program knows."""
    try:
        found = package[path.removeprefix(f"{PACKAGE}.")]
        if found.is_module:  # a function that has the name of its module, such as `roc`
            found = found[found.name]
        return found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None


def public_names(package: griffe.Module, entry: str | dict[str, list[str]]) -> list[tuple[str, str]]:
    """(module, name) of all names that a module lists in `__all__`, or of those that the page lists itself."""
    if isinstance(entry, dict):
        return [(module, name) for module, names in entry.items() for name in names]
    within = entry.removeprefix(PACKAGE).lstrip(".")
    if within and within.partition(".")[0] not in package.members:
        return []
    listed = (package[within] if within else package).exports or ()
    names = [n if isinstance(n, str) else n.name for n in listed]
    return [(entry, n) for n in names if not n.startswith("_")]


def _entries(package: griffe.Module, listed: list[str | dict[str, list[str]]]) -> Iterator[str | dict[str, list[str]]]:
    """Entries of a page; "folder.*" stands for the modules of a folder that have `__all__` and no other entry."""
    named = {entry if isinstance(entry, str) else next(iter(entry)) for entry in listed}
    for entry in listed:
        if not isinstance(entry, str) or not entry.endswith(".*"):
            yield entry
            continue
        folder = package[entry.removeprefix(f"{PACKAGE}.").removesuffix(".*")]
        modules = (m for m in folder.members.values() if not m.is_alias and m.is_module and m.exports)
        yield from (m.path for m in modules if m.path not in named)


def topics() -> list[Topic]:
    """Every page of docs/api with its names; a name that several pages could have is on the first."""
    extensions = griffe.load_extensions(str(ROOT / "docs" / "site_generated.py"))
    package = griffe.load(
        PACKAGE, search_paths=[str(ROOT)], extensions=extensions, resolve_aliases=True, resolve_external=False
    )
    assert isinstance(package, griffe.Module)
    at_top = {name for _, name in public_names(package, PACKAGE)}
    seen: set[tuple[str, str]] = set()
    made = []
    pages = {s: meta.get_data(s.read_text()) for s in sorted((ROOT / "docs" / "api").glob("*.md"))}
    for source in sorted(pages, key=lambda s: PACKAGE in pages[s][1].get("api", ())):  # the package itself comes last
        text, head = pages[source]
        if "api" not in head:
            continue
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        topic = Topic(f"api/{source.name}", title[1] if title else source.stem)
        for module, name in (pair for entry in _entries(package, head["api"]) for pair in public_names(package, entry)):
            found = find(package, f"{module}.{name}")
            known = (found.path if found and module not in DROP_IN else module, name)
            if found is None or found.is_module or known in seen:
                continue
            seen.add(known)
            home = PACKAGE if name in at_top else module
            path = found.path if found.name == name else f"{module}.{name}"  # one of several names of a class
            topic.names.append(Name(name, home, path, found.is_class, first_sentence(found.docstring)))
        made.append(topic)
    return made


def class_page(name: Name) -> str:
    """A page of its own: everything that its docstrings say."""
    summary = name.summary.replace("`", "").replace('"', "'")
    return (
        f'---\ntitle: {name.name}\ndescription: "{name.name} of {name.home}: {summary}"\n---\n\n'
        f"::: {name.path}\n    options: {{heading_level: 1, show_root_toc_entry: false}}\n"
    )


def tables(topic: Topic) -> str:
    """The classes as links, then the functions in full."""
    lines: list[str] = []
    if topic.classes:
        lines += ["| Class | |", "|---|---|"]
        here = Path(topic.page).stem
        lines += [f"| [`{n.name}`]({here}/{n.name}.md) | {n.summary} |" for n in topic.classes]
    for n in topic.functions:
        lines += ["", f"::: {n.path}"]
    return "\n".join(lines) + "\n"


def index(made: list[Topic]) -> str:
    """All public names by topic."""
    lines = []
    for topic in sorted(made, key=lambda t: t.title):
        here = Path(topic.page).name
        lines += [f"## [{topic.title}]({here})", ""]
        lines += [
            ", ".join(
                f"[`{n.name}`]({topic.page_of(n).removeprefix('api/')})"
                if n.is_class
                else f"[`{n.name}`]({here}#{n.path})"
                for n in sorted(topic.names, key=lambda n: n.name.lower())
            ),
            "",
        ]
    return "\n".join(lines)


_made: list[Topic] = []


def _expand(nav: Any) -> Any:
    """The navigation with the pages of classes below their topic's."""
    by_page = {t.page: t for t in _made}
    if isinstance(nav, list):
        return [_expand(item) for item in nav]
    if isinstance(nav, dict):
        return {title: _expand(below) for title, below in nav.items()}
    topic = by_page.get(nav)
    return [nav, *({n.name: topic.page_of(n)} for n in topic.classes)] if topic and topic.classes else nav


def on_config(config: Any) -> Any:
    """Read the package anew (`mkdocs serve` builds more than once), and give its classes places in the navigation."""
    _made[:] = topics()
    config["nav"] = _expand(config["nav"])
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of classes."""
    for topic in _made:
        for name in topic.classes:
            files.append(File.generated(config, topic.page_of(name), content=class_page(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the tables; give every page a description of its own, for search engines and link previews."""
    if page.file.src_uri == "api/index.md":
        markdown = markdown.replace(MARK, index(_made))
    for topic in _made:
        if topic.page == page.file.src_uri:
            markdown = markdown.replace(MARK, tables(topic))
    if "description" not in page.meta:
        page.meta["description"] = description(markdown)
    return markdown


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """How a class is imported, below its name."""
    for topic in _made:
        for name in topic.classes:
            if topic.page_of(name) == page.file.src_uri:
                line = f'<p class="sx-import"><code>from {name.home} import {name.name}</code></p>'
                return html.replace("</h1>", f"</h1>\n{line}", 1)
    return html


def description(markdown: str) -> str:
    """The first plain paragraph, as plain text, at most 160 characters, cut at a word."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)):
        text = " ".join(paragraph.split())
        if re.match(r"[A-Za-z*`\[]", text) and len(text) > 40:
            text = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])(\{[^}]*\})?", r"\1", text)
            text = re.sub(r"[*`\"]|<[^>]+>", "", text)
            return text if len(text) <= 160 else text[:158].rpartition(" ")[0] + " …"
    return ""
