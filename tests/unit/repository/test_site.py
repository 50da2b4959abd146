"""The site of the documentation: it builds without a warning, and loads nothing from outside."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from megalith.schema.optimizers import Optimizer
from support.pages import ROOT

# What a browser fetches to show a page; a link that a reader may click is none of it.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
    "image": "href",
}
OUTSIDE = re.compile(r"\s*(https?:)?//")
API = (
    "megalith.client",
    "megalith.serving",
    "megalith.torch",
    "megalith.control",
    "megalith.errors",
)


class Fetches(HTMLParser):
    """Addresses of other hosts that a page has a browser fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        address = given.get(FETCHED.get(tag, ""), "") or ""
        if OUTSIDE.match(address):
            self.found.append(address)
        self.found += from_style(given.get("style") or "")


def from_style(text):
    """Addresses of other hosts that a style fetches, as a font or image."""
    urls = re.findall(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)", text)
    return [url for pair in urls for url in pair if OUTSIDE.match(url)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed; run make install")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_fetches_anything_from_another_host(site):
    found = {}
    for path in site.rglob("*.html"):
        page = Fetches()
        page.feed(path.read_text())
        if page.found:
            found[path.name] = page.found
    assert found == {}


def test_no_style_fetches_anything_from_another_host(site):
    found = {}
    for path in site.rglob("*.css"):
        outside = from_style(path.read_text())
        if outside:
            found[path.name] = outside
    assert found == {}


def test_every_page_of_the_repository_is_a_page_of_the_site(site):
    ours = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in pages_in_docs()}
    beside = {Path(f"{name}.html") for name in ("readme", "architecture", "changelog")}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert built == ours | beside | {Path("404.html")}


def test_a_link_from_a_page_in_docs_to_one_beside_it_leads_to_its_page_in_the_site(site):
    assert 'href="readme.html' in (site / "index.html").read_text()
    assert 'href="architecture.html' in (site / "index.html").read_text()


def test_outside_addresses_are_found():
    page = Fetches()
    page.feed('<script src="//cdn.example/x.js"></script><a href="https://example.org">x</a>')
    page.feed('<link rel="stylesheet" href="https://fonts.example/css">')
    assert page.found == ["//cdn.example/x.js", "https://fonts.example/css"]
    assert from_style('@import "https://a.example/b"; p {background: url(http://c)}') == [
        "https://a.example/b",
        "http://c",
    ]
    assert from_style("p {background: url(data:image/svg+xml;x)}") == []


@pytest.mark.parametrize("module", API)
def test_every_public_name_is_on_the_page_of_its_module(module):
    page = ROOT / "docs" / "api" / f"{module.rpartition('.')[2]}.md"
    listed = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    if module in listed:
        return  # the whole of it
    imported = importlib.import_module(module)
    public = {
        f"{module}.{name}"
        for name, value in vars(imported).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    public &= {f"{module}.{name}" for name in getattr(imported, "__all__", vars(imported))}
    assert sorted(listed) == sorted(public)


def test_every_optimizer_of_rows_is_in_the_page_of_the_sdk():
    page = (ROOT / "docs" / "sdk.md").read_text()
    choices = re.search(r"^\| optimizer \| (.*) \|$", page, re.MULTILINE)[1]
    named = re.findall(r"`(\w+)`", choices)
    assert sorted(named) == sorted(kind.__name__ for kind in Optimizer.kinds.values())


def pages_in_docs():
    return list((ROOT / "docs").rglob("*.md"))
