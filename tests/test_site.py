"""The site of docs/: it is whole, and its pages ask for nothing from outside."""

import re
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

import afield
from afield.analysis.glossary import GLOSSARY

ROOT = Path(__file__).parents[1]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
LINKED = {"canonical", "next", "prev"}  # a link that is followed, not fetched
OUTSIDE = re.compile(r"(?:https?:)?//")


def build_site(folder, **others):
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder), **others))
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        yield build_site(tmp_path_factory.mktemp("site"))


class Fetched(HTMLParser):
    """What a browser fetches to show a page, and the page's anchors."""

    def __init__(self, page):
        super().__init__()
        self.addresses, self.anchors = [], set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.add(given.get("id"))
        if tag in FETCHED and given.get(FETCHED[tag]):
            self.addresses.append(given[FETCHED[tag]])
        if tag == "link" and not LINKED & set(given.get("rel", "").split()):
            self.addresses.append(given["href"])


def test_every_document_and_tutorial_is_a_page(site):
    documents = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(documents) > 15
    for document in documents:
        assert (site / document).with_suffix(".html").is_file(), document
    assert (site / "tutorials/first-run.ipynb").is_file()
    assert not list(site.rglob("*.py")), "scripts that write documents are no part of the site"


def test_the_reference_has_every_public_name(site):
    assert {f"afield.{name}" for name in afield.__all__} <= Fetched(site / "api.html").anchors


def test_the_glossary_has_every_word_of_a_report(site):
    text = (site / "glossary.html").read_text("utf-8")
    for word in GLOSSARY:
        assert f"<strong>{word}</strong>" in text, word


def test_a_page_names_nothing_from_outside_to_be_fetched(site):
    fetched = [address for page in site.rglob("*.html") for address in Fetched(page).addresses]
    assert len(fetched) > 50
    assert [address for address in fetched if OUTSIDE.match(address)] == []
    for sheet in site.rglob("*.css"):
        named = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", sheet.read_text("utf-8"))
        assert [address for address in named if OUTSIDE.match(address)] == [], sheet.name


def test_a_browser_asks_only_where_the_site_lies(browser, site):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        home, asked, complaints = f"http://127.0.0.1:{server.server_port}/", [], []
        page = browser.new_page()
        page.set_default_timeout(120_000)  # a busy machine is no failure
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for name in ("index.html", "api.html", "tutorials/own-images.html", "results.html"):
            page.goto(home + name)
        page.get_by_role("textbox", name="Search").fill("selector")
        page.locator(".md-search-result__item").first.wait_for()
        page.close()
        server.shutdown()
    assert complaints == []
    assert [url for url in asked if not url.startswith((home, "data:", "blob:" + home))] == []
    assert any(url.startswith(home) for url in asked)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without writing a line for each."""

    def log_message(self, *_):
        pass


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("[nowhere](nowhere.md)\n", "utf-8")
    with pytest.raises(Abort):
        build_site(tmp_path / "site", docs_dir=str(docs), nav=[{"Home": "index.md"}])
