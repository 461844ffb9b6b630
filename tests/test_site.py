"""The documentation site: pages build without a warning, need nothing from outside, and open in a browser."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import jointenergy
from jointenergy.training.advice import PAGE, REMEDIES
from tests.test_report_page import CHROMES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}
WIDTHS = (1200, 400)


class Html(HTMLParser):
    """What a page loads, what it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.ids |= {of[k] or "" for k in ("id", "name") if k in of}
        if tag in LOADED and of.get(LOADED[tag]) and of.get("rel") != "canonical":
            self.loaded.append(of[LOADED[tag]] or "")
        if tag == "a" and of.get("href"):
            self.links.append(of["href"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=250, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_pages_load_nothing_from_outside_and_links_resolve(site):
    """Fails for a font or a script of another host, and for a link to a file or a heading that is not there."""
    pages = {path: Html(path.read_text()) for path in sorted(site.rglob("*.html"))}
    assert len(pages) > 50
    for path, page in pages.items():
        assert [x for x in page.loaded if re.match(r"(https?:)?//", x)] == [], path.name
        if path.name == "404.html":  # links from the root of a server
            continue
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path.name, link)
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].ids, (path.name, link)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", style.read_text()), style.name


@pytest.mark.slow
def test_reference_pages_show_docstrings(site):
    """Fails where a page has signatures alone, or the first line of a module, which is for developers."""
    page = (site / "reference/kernels.html").read_text()
    for said in ("Move x by unadjusted Langevin dynamics", "The standard deviation of the noise", "Run a chain: "):
        assert said in page
    assert "kernels: " not in page


@pytest.mark.slow
def test_formulas_are_mathml(site):
    page = (site / "concepts" / "energy.html").read_text()
    assert page.count("<math") > 10
    assert "arithmatex" not in page


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not any(map(shutil.which, CHROMES)), reason="no browser: no Chromium to open the site in")
def test_a_browser_opens_every_page_at_two_widths(site):
    """Fails if a page is wider than the window, reports an error, or asks for anything outside its folder."""
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []
    asked: list[str] = []
    failed: list[tuple[str, str]] = []
    with sync_playwright() as playwright:
        chrome = next(c for c in map(shutil.which, CHROMES) if c)
        browser = playwright.chromium.launch(executable_path=chrome, args=["--no-sandbox", "--disable-gpu"])
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("requestfailed", lambda request: failed.append((request.url, request.failure or "")))
            page.on("request", lambda request: asked.append(request.url))
            for path in sorted(site.rglob("*.html")):
                if path.name == "404.html":
                    continue
                page.goto(path.as_uri(), wait_until="load")
                across = page.evaluate("document.documentElement.scrollWidth")
                if across > width:
                    wrong.append(f"{path.relative_to(site)} is {across} pixels wide in a window of {width}")
            page.close()
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto((site / "index.html").as_uri())
        page.get_by_placeholder("Search").first.click()
        page.keyboard.type("preconditioned", delay=20)
        page.wait_for_selector(".md-search-result__item", timeout=20_000)
        browser.close()
    assert wrong == []
    assert [url for url, why in failed if "ABORTED" not in why] == []  # not those cut short by the next page
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def test_every_public_name_is_in_the_reference():
    """Fails for a name of the package or of its public rooms that no page of the reference shows."""
    shown = set(re.findall(r"^::: (\S+)", "\n".join(p.read_text() for p in (DOCS / "reference").glob("*.md")), re.M))
    for name in jointenergy.__all__:
        home = getattr(getattr(jointenergy, name), "__module__", f"jointenergy.{name}")
        rooms = {f"jointenergy.{name}", home, *(f"jointenergy.{room}" for room in home.split(".")[1:2])}
        assert name in ("__version__", "MISSING") or rooms & shown, name
    for room in shown:
        parent, _, name = room.rpartition(".")
        assert hasattr(importlib.import_module(parent), name) or importlib.import_module(room)


def test_the_page_of_the_verdict_has_every_sign_and_its_settings():
    page = (ROOT / PAGE).read_text()
    for meaning, first, then in REMEDIES.values():
        row = f"| {meaning} | {first.verb} `{first.recipe}` | {then.verb} `{then.recipe}` |"
        assert row in page
