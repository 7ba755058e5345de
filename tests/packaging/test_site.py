"""Is `docs/` a site that `mdbook` builds without a warning, is each row part of a table, and does each link lead somewhere?

Links are followed in the pages that mdbook wrote, because it makes other addresses and anchors than a forge does. Links to the repository must lead to a
file of it, and other hosts are not asked.
"""

import html.parser
import pathlib
import posixpath
import re
import shutil
import subprocess
import tomllib
import urllib.parse

import pytest
import setup_linters

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MDBOOK = setup_linters.FOLDER / "bin" / "mdbook"
REPOSITORY = tomllib.loads((ROOT / "book.toml").read_text())["preprocessor"]["book_links"]["repository"]
# Its links begin at the root of the host that serves the site.
NOT_FOUND = "404.html"

pytestmark = pytest.mark.skipif(not setup_linters.is_there(), reason="python3 tests/packaging/setup_linters.py installs mdbook")


class Page(html.parser.HTMLParser):
    """The anchors of a page, where its links lead, and what a browser loads with it."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        # Shown large and small, a picture is in the page twice.
        self.resources: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href") is not None:
            self.links.append(attributes["href"])
        elif tag == "link" and attributes.get("href"):
            self.resources.add(attributes["href"])
        elif attributes.get("src"):
            self.resources.add(attributes["src"])


def build(folder: pathlib.Path, site: pathlib.Path) -> list[str]:
    """Builds the book that lies in the folder, and returns what mdbook warns of."""
    done = subprocess.run([MDBOOK, "build", "--dest-dir", site, folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.strip() for line in (done.stdout + done.stderr).splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]


def faults(site: pathlib.Path) -> list[str]:
    """The links and resources of all pages that lead nowhere."""
    pages = {path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for name, page in pages.items():
        if name != NOT_FOUND:
            found += [f"{name}: {link}" for link in page.links if not leads_somewhere(link, name, pages, site)]
            found += [f"{name} loads {one}" for one in sorted(page.resources) if not is_own(one, name, site)]
    return found


def leads_somewhere(link: str, name: str, pages: dict[str, Page], site: pathlib.Path) -> bool:
    if link.startswith(f"{REPOSITORY}/"):
        return (ROOT / link.removeprefix(f"{REPOSITORY}/").partition("#")[0]).exists()
    parts = urllib.parse.urlsplit(link)
    if parts.scheme:
        return parts.scheme in ("http", "https", "mailto")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.unquote(parts.path))) if parts.path else name
    if target not in pages:
        return not parts.fragment and (site / target).is_file()
    return not parts.fragment or urllib.parse.unquote(parts.fragment) in pages[target].anchors


def is_own(resource: str, name: str, site: pathlib.Path) -> bool:
    """Whether a resource is a file of the site, or data in the page itself."""
    parts = urllib.parse.urlsplit(resource)
    return parts.scheme == "data" or (not parts.scheme and not parts.netloc and (site / name).parent.joinpath(parts.path).is_file())


def stray_rows(page: str) -> list[str]:
    """The lines that look like rows of a table and belong to none, so that a reader sees them as plain text."""
    found, rows, is_code = [], [], False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        is_code ^= line.startswith("```")
        if line.startswith("|") and not is_code:
            rows.append((number, line))
            continue
        # The second line of a table parts its header from its rows.
        if rows and not (len(rows) > 1 and re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", rows[1][1])):
            found += [f"line {at}: {row}" for at, row in rows]
        rows = []
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("site")
    assert build(ROOT, made) == []
    return made


def test_each_page_of_docs_is_in_the_site_and_in_its_contents(site):
    docs = ROOT / "docs"
    expected = {page.relative_to(docs).with_suffix(".html").as_posix() for page in docs.rglob("*.md") if page.stem != "SUMMARY"}
    assert len(expected) > 20
    assert all((site / page).is_file() for page in expected)
    assert expected <= set(Page((site / "toc.html").read_text()).links)


def test_each_link_leads_somewhere_and_nothing_comes_from_other_hosts(site):
    assert faults(site) == []


def test_the_site_shows_a_page_as_it_is_written(site):
    """What stands in angle brackets is text and no element of HTML."""
    assert "summary_quantiles=&lt;quantile&gt;" in (site / "flags.html").read_text()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.stem)
def test_each_row_belongs_to_a_table(page):
    assert stray_rows(page.read_text()) == []


@pytest.mark.parametrize(
    ("page", "expect"),
    [
        ("| a |\n|---|\n| 1 |", []),
        ("| | b |\n|---|--:|\n| 1 | 2 |\n\ntext\n", []),
        ("| a |\n|---|\n| 1 |\n\ntext\n| 2 |", ["line 6: | 2 |"]),
        ("| a |\n| 1 |", ["line 1: | a |", "line 2: | 1 |"]),
        ("```text\n| 1 |\n```", []),
    ],
)
def test_a_row_outside_of_a_table_is_found(page, expect):
    assert stray_rows(page) == expect


@pytest.mark.parametrize(
    ("added", "expect"),
    [
        ("[a](no-such.md)", "page.html: no-such.html"),
        ("[a](gpu.md#no-such-heading)", "page.html: gpu.html#no-such-heading"),
        ("[a](#no-such-heading)", "page.html: #no-such-heading"),
        ("[a](../no/such.rs)", f"page.html: {REPOSITORY}/no/such.rs"),
        ("![a](pictures/no-such.svg)", "page.html loads pictures/no-such.svg"),
        ("![a](https://example.com/a.svg)", "page.html loads https://example.com/a.svg"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path, added, expect):
    book = copied(tmp_path)
    page = book / "docs" / "page.md"
    page.write_text(f"{page.read_text()}\n{added}\n")
    build(book, tmp_path / "site")
    assert faults(tmp_path / "site") == [expect]


def test_a_page_with_an_unclosed_element_is_warned_of(tmp_path):
    book = copied(tmp_path)
    page = book / "docs" / "page.md"
    page.write_text(f"{page.read_text()}\n| a |\n|---|\n| <value> |\n")
    assert any("<value>" in line for line in build(book, tmp_path / "site"))


def copied(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the book, with the program that rewrites its links."""
    book = folder / "book"
    shutil.copytree(ROOT / "docs", book / "docs")
    shutil.copy(ROOT / "book.toml", book)
    (book / "packaging").symlink_to(ROOT / "packaging")
    return book
