"""Every explainer, attack and mechanism has a page of its own: with source, picture, figures, and no empty place."""

import json
import re
from functools import cache
from pathlib import Path

from audit.pages.reference import mechanisms, parts, sections, thumbnails
from safexplain.audit import attacks as public_attacks
from safexplain.explain import CATALOG
from safexplain.hardening.hardening import SLOTS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MEASURED = ROOT / "audit" / "results" / "explainers.json"
EMPTY = r"\{\{|\bnan\b|>None<|\*\* *$|Not measured yet|No picture yet|^None\b|\(\)$"
"""What stands where something was not filled in."""


@cache
def pages() -> dict[str, str]:
    """Path below docs -> text, of all reference pages."""
    return {f"reference/{folder}/{p.name}.md": p.text for folder, found in sections().items() for p in found}


def prose(text: str) -> str:
    return re.sub(r"```.*?```|<svg.*?</svg>", "", text, flags=re.DOTALL)


def test_an_explainer_has_a_page_with_imports_signature_source_picture_and_figures():
    for name in CATALOG:
        row, text = CATALOG[name], pages()[f"reference/explainers/{name}.md"]
        assert text.startswith(f"# {row.hardened_name}\n\n{row.summary}")
        assert re.search(r"from safexplain[\w.]* import \w+", text)
        assert f"{row.entry}(" in text or "The signature is shown where the extra" in text
        assert row.licence in text
        assert f"**Family:** {row.family}" in text
        assert "](https://" in text.partition("**Published in:**")[2].partition("\n")[0] or row.citation.startswith(
            "none"
        )
        picture = DOCS / "figures" / "reference" / parts.pictures()[name]["file"]
        assert f"figures/reference/{picture.name}" in text
        assert picture.stat().st_size < 15_000
        leaks = text.partition("## What it leaks")[2].partition("\n## ")[0]
        assert "members found" in leaks or "Not measured: " in leaks
        assert all(f"`{option}`" in text for option in row.search_space)


def test_figures_of_a_page_are_those_of_the_committed_result():
    found = json.loads(MEASURED.read_text())
    assert set(found["results"]["methods"]) >= set(CATALOG)
    for name, m in found["results"]["methods"].items():
        if "reason" not in m:
            text = pages()[f"reference/explainers/{name}.md"]
            for rate in (m["labels"], m["native"]["stack"], m["hardened"]["stack"]):
                assert f"{100 * rate['tpr']['value']:.1f} % [" in text, name


def test_a_public_attack_has_a_page():
    for name in set(public_attacks.__all__) - {"Attack"}:
        text = pages()[f"reference/attacks/{name}.md"]
        assert f"from safexplain.audit.attacks import {name}" in text
        for needed in ("**Reads:**", "**Source:**", "## When it is judged", "## Definition", "## Measured power"):
            assert needed in text
        source = text.partition("**Source:**")[2].partition("\n")[0]
        assert "https://arxiv.org/abs/" in source or "no paper" in source


def test_a_part_of_a_hardening_has_a_page_with_what_it_costs_and_leaves_open_and_a_picture():
    for name in mechanisms.hardening_parts():
        text = pages()[f"reference/mechanisms/{name}.md"]
        assert "not differential privacy" in text
        for needed in ("**Costs:**", "**Does not protect against:**", "**Source:**", "## Definition", "## Measured"):
            assert needed in text
        picture = parts.pictures().get(name, {"file": "make_pictures.py"})["file"]
        assert picture in text


def test_every_class_of_a_slot_is_a_mechanism():
    assert {kind.__name__ for kinds in SLOTS.values() for kind in kinds} <= set(mechanisms.hardening_parts())


def test_a_mechanism_with_a_guarantee_has_a_page_and_says_why_it_has_no_picture():
    for name in mechanisms.private_mechanisms():
        text = pages()[f"reference/mechanisms/{name}.md"]
        assert "*No picture: " in text
        assert "](https://" in text.partition("**Source:**")[2].partition("\n")[0]
        assert f"import {name}" in text


def test_no_place_of_a_page_is_empty():
    found = {path: re.findall(EMPTY, prose(text), re.MULTILINE) for path, text in pages().items()}
    assert {path: what for path, what in found.items() if what} == {}


def test_links_and_pictures_of_reference_pages_exist():
    made = set(pages())
    for path, text in {**pages(), "gallery.md": thumbnails()}.items():
        for link in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
            if not link.startswith("https://"):
                target = (DOCS / path).parent.joinpath(link).resolve()
                assert target.is_file() or target.relative_to(DOCS).as_posix() in made, f"{path}: {link}"


def test_the_gallery_links_each_picture_to_its_page():
    shown = re.findall(r"\]\(reference/explainers/(\w+)\.md\)", thumbnails())
    assert list(dict.fromkeys(shown)) == list(CATALOG)
