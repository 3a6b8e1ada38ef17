"""The built site: every link leads somewhere, nothing comes from elsewhere, and a phone at night can show it."""

import importlib
import inspect
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np
import pytest
from browser import LOOK, Chromium, find_chromium, serving
from html_page import Page
from PIL import Image

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[2]
SEEN = """
quick-start/ choose/ concepts/ explainers/ text/ cli/ threat-model/ evidence/releases/ gallery/ reference/explainers/IG/
notebooks/images/ api/hardening/Hardening/
"""
"""The pages that are looked at in a browser beside the home page, one of each kind."""
KEPT = """
hardening tune explainers surrogates libraries testing pretraining differential-privacy canaries recourse ledger
serving platforms endpoint-audit scale cli threat-model statistics certificate quick-start concepts api/hardening
api/explain api/audit api/tune api/attacks api/stats api/dp api/canaries api/recourse api/ledger api/serve api/errors
evidence/paper_a evidence/releases evidence/red_team evidence/benchmarks evidence/peers evidence/verdict_errors
"""
"""Addresses that people have bookmarked."""
PARTS = """
safexplain safexplain.hardening safexplain.audit safexplain.audit.attacks safexplain.audit.canaries safexplain.dp
safexplain.recourse safexplain.ledger safexplain.testing safexplain.captum
"""
"""Modules whose `__all__` is public."""
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
"""Tags that fetch something by themselves, and the attribute that says what; `link` is one, too."""


class Html(Page):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.source = source
        named = [(tag, {name: value or "" for name, value in given.items()}) for tag, given in self.tags]
        self.links = [a["href"] for tag, a in named if tag == "a" and "href" in a]
        self.loads = [a[LOADED[tag]] for tag, a in named if LOADED.get(tag) in a]
        elsewhere = ("prev", "next", "canonical")
        self.loads += [a["href"] for tag, a in named if tag == "link" and a.get("rel") not in elsewhere]
        self.anchors = {a[name] for _, a in named for name in ("id", "name") if a.get(name)}
        self.described = [a.get("content", "") for tag, a in named if tag == "meta" and a.get("name") == "description"]
        self.unnamed = [a.get("src", "") for tag, a in named if tag == "img" and not a.get("alt")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make check` builds it: any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Every page by its path from the root of the site, with a slash before it."""
    return {f"/{path.relative_to(site).as_posix()}": Html(path.read_text()) for path in sorted(site.rglob("*.html"))}


def where(page: str, link: str) -> tuple[str, str]:
    """Path and anchor that a link of a page leads to; a folder stands for its index."""
    path, _, anchor = urljoin(page, link).partition("#")
    path = unquote(path.partition("?")[0])
    return path + "index.html" if path.endswith("/") else path, unquote(anchor)


def outside(link: str) -> bool:
    return bool(urlsplit(link).scheme or urlsplit(link).netloc)


def broken(pages: dict[str, Html], files: set[str]) -> list[str]:
    """Links to what is not there, and to anchors that a page does not have."""
    found = []
    for page, html in pages.items():
        for link in html.links + html.loads:
            if outside(link) or not link:
                continue
            path, anchor = where(page, link)
            if path not in files:
                found.append(f"{page}: {link}: no such file")
            elif anchor and path in pages and anchor not in pages[path].anchors | {"__top"}:
                found.append(f"{page}: {link}: no such anchor")
    return found


@pytest.mark.slow
def test_every_link_and_every_anchor_of_the_site_leads_somewhere(site, pages):
    files = {f"/{path.relative_to(site).as_posix()}" for path in site.rglob("*") if path.is_file()}
    assert len(pages) > 50
    assert broken(pages, files) == []


@pytest.mark.slow
def test_no_page_loads_anything_from_another_server(site, pages):
    assert [f"{page}: {link}" for page, html in pages.items() for link in html.loads if outside(link)] == []
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]+", sheet.read_text()) == [], sheet.name


@pytest.mark.slow
def test_every_page_has_a_title_and_a_description_of_its_own(pages):
    named = {page: html for page, html in pages.items() if page != "/404.html"}
    assert [page for page, html in named.items() if not re.search(r"<title>[^<]+</title>", html.source)] == []
    assert [page for page, html in named.items() if len(html.described) != 1 or len(html.described[0]) < 20] == []


@pytest.mark.slow
def test_every_picture_says_in_words_what_it_shows(pages):
    assert [f"{page}: {src}" for page, html in pages.items() for src in html.unnamed] == []


@pytest.mark.slow
def test_the_pages_that_others_link_to_are_where_they_were(site):
    assert [name for name in KEPT.split() if not (site / name / "index.html").is_file()] == []


@pytest.mark.slow
def test_every_public_class_has_a_page_with_its_signature(site):
    missing = []
    for part in PARTS.split():
        module = importlib.import_module(part)
        for name in module.__all__:
            public = getattr(module, name)
            if not inspect.isclass(public):
                continue
            pages = [re.sub(r"<[^>]+>", "", path.read_text()) for path in site.glob(f"api/*/{name}/index.html")]
            takes_nothing = issubclass(public, Exception) or getattr(public, "_is_protocol", False)
            if not any(f"import {name}" in shown and (takes_nothing or f"{name}(" in shown) for shown in pages):
                missing.append(f"{part}.{name}")
    assert missing == []


def test_the_quick_start_says_of_the_demo_what_its_figure_shows():
    front = json.loads((ROOT / "docs" / "figures" / "front.json").read_text())
    text = " ".join((ROOT / "docs" / "quick-start.md").read_text().split())
    said = re.search(
        r"finds about (\d+) % of the members at 5 % false positives.*?about (\d+) %.*?about (\d+) points", text
    )
    assert said is not None
    labels = front["labels"]
    assert said.groups() == tuple(f"{100 * x:.0f}" for x in (labels["1"], labels["32"], front["native"]["adds"]))
    assert front["recommended"]["adds_bounds"][1] < 0.03  # "the three points that the policy allows"


browser_needed = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine: nothing was looked at"),
]


@pytest.fixture(scope="module")
def url(site):
    with serving(site) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


FOUND = """
new Promise((done) => {
  const links = () => [...document.querySelectorAll('.md-search-result__link')].map((a) => a.href);
  const look = () => (links().length ? done(links()) : setTimeout(look, 50));
  setTimeout(() => done([]), 30000);
  look();
})
"""
"""Links of the search's results, once there are any."""


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)], ids=["phone at night", "desk by day"])
@pytest.mark.parametrize("page", ["", *SEEN.split()], ids=lambda page: page.strip("/").replace("/", "-") or "home")
class TestInABrowser:
    pytestmark = browser_needed

    def test_a_page_fits_its_window_and_can_be_read(self, browser, url, page, width, dark):
        browser.open(url + page, width=width, dark=dark)
        seen: dict[str, Any] = browser.run(LOOK)
        assert seen["dark"] == dark
        assert seen["width"] == [width, width]
        assert seen["wide"] == []
        assert seen["blank"] == []
        assert seen["texts"] > 20
        assert seen["faint"] == []
        assert all(("-dark." in src) == dark for src in seen["figures"] if re.search(r"-(dark|light)\.\w+", src))
        assert browser.complaints() == []
        assert [asked for asked in browser.requests() if not asked.startswith((url, "about:"))] == []
        browser.run("document.fonts.ready.then(() => 1)")
        picture = np.asarray(Image.open(io.BytesIO(browser.screenshot())).convert("L"), dtype=float)
        assert picture.shape == (900, width)
        assert picture[200:].std() > 8, "it is blank"
        assert (picture[200:, :8].mean() < 110) == dark  # the margin: pictures of the page may be light


class TestSearch:
    pytestmark = browser_needed

    def test_the_search_finds_a_class_and_asks_no_other_server(self, browser, url):
        browser.open(f"{url}?q=GaussianNoise", width=1280)
        found = browser.run(FOUND)
        assert any("api/hardening/GaussianNoise/" in link for link in found)
        assert [asked for asked in browser.requests() if not asked.startswith((url, "about:"))] == []
