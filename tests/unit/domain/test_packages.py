"""What paths of the package cache mean, and where the links of its pages lead."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.packages.pages import rewritten
from sandlot.domain.packages.registries import NPM_FULL, NPM_SHORT, PYPI_HTML, PYPI_JSON, Npm, Pypi
from sandlot.domain.secrets.gateways import parse_upstream

PYPI = Pypi(parse_upstream("https://pypi.org/simple"))
MIRROR = Pypi(parse_upstream("http://mirror.test:3141/root/pypi/simple"))
NPM = Npm(parse_upstream("https://registry.npmjs.org"))
WHEEL = "/packages/ab/cd/pandas-2.0-cp312-manylinux_2_17_x86_64.whl"


@pytest.mark.parametrize(
    ("path", "accept", "url", "form"),
    [
        ("/simple/pandas/", "", "https://pypi.org/simple/pandas/", PYPI_HTML),
        ("/simple/Pandas.Core_x", "", "https://pypi.org/simple/pandas-core-x/", PYPI_HTML),
        ("/simple/pandas/", f"{PYPI_JSON}, text/html", "https://pypi.org/simple/pandas/", PYPI_JSON),
        (f"/files/files.pythonhosted.org{WHEEL}", "*/*", f"https://files.pythonhosted.org{WHEEL}", ""),
        (f"/files/pypi.org{WHEEL}.metadata", "", f"https://pypi.org{WHEEL}.metadata", ""),
    ],
)
def test_what_pypi_is_asked_for(path: str, accept: str, url: str, form: str) -> None:
    wanted = PYPI.wanted(path, accept)
    assert wanted is not None
    assert (wanted.url, wanted.accept, wanted.is_file) == (url, form, form == "")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "/",
            "/simple",
            "/simple/",
            "/simple/../x/",
            "/simple/a/b/",
            "/simple/%70andas/",
            "/simple/-a/",
        ),
        *(
            "/files/",
            "/files/evil.test/x.whl",
            "/files/files.pythonhosted.org",
            "/files/files.pythonhosted.org/",
        ),
        *(
            "/files/files.pythonhosted.org/../x",
            "/files/files.pythonhosted.org/%2e%2e/x",
            "/legacy/",
            "/pypi/a/json",
        ),
        *("/files/files.pythonhosted.org:444/x", "/files/u@files.pythonhosted.org/x", "/files//x"),
        *("/files/files.pythonhosted.org/a b", "/files/files.pythonhosted.org/x\r\ny", "/files/127.0.0.1/x"),
        "/files/files.pythonhosted.org/" + "x" * 1000,
    ],
)
def test_what_pypi_is_not_asked_for(path: str) -> None:
    assert PYPI.wanted(path, "") is None


@pytest.mark.parametrize(
    ("path", "accept", "url", "form"),
    [
        ("/lodash", "application/json", "https://registry.npmjs.org/lodash", NPM_FULL),
        ("/lodash", f"{NPM_SHORT}; q=1.0, */*", "https://registry.npmjs.org/lodash", NPM_SHORT),
        ("/@types%2fnode", "", "https://registry.npmjs.org/@types%2fnode", NPM_FULL),
        ("/@types/node", "", "https://registry.npmjs.org/@types%2fnode", NPM_FULL),
        ("/lodash/latest", "", "https://registry.npmjs.org/lodash/latest", NPM_FULL),
        ("/lodash/-/lodash-4.17.21.tgz", "", "https://registry.npmjs.org/lodash/-/lodash-4.17.21.tgz", ""),
        (
            "/@types/node/-/node-22.1.0.tgz",
            "",
            "https://registry.npmjs.org/@types/node/-/node-22.1.0.tgz",
            "",
        ),
    ],
)
def test_what_npm_is_asked_for(path: str, accept: str, url: str, form: str) -> None:
    wanted = NPM.wanted(path, accept)
    assert wanted is not None
    assert (wanted.url, wanted.accept, wanted.is_file) == (url, form, form == "")


@pytest.mark.parametrize(
    "path",
    ["", "/", "/-/v1/search", "/-/ping", "/../x", "/a/../b", "/@a/..", "/a/-/..", "/a/-/x.zip", "/a//b"],
)
def test_what_npm_is_not_asked_for(path: str) -> None:
    assert NPM.wanted(path, "") is None


@given(
    st.text(),
    st.sampled_from([PYPI, NPM, MIRROR]),
    st.sampled_from(["", "/simple/", "/files/pypi.org/", "/@a/"]),
)
def test_no_path_leads_elsewhere(path: str, registry: Pypi | Npm, begin: str) -> None:
    wanted = registry.wanted(begin + path, "")
    if wanted is not None:
        split = urlsplit(wanted.url)
        assert split.hostname in ("pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "mirror.test")
        assert not set(wanted.url) & set("\r\n \\?#")
        assert ".." not in split.path.split("/")


# --- pages ----------------------------------------------------------------------------------------


class Links(HTMLParser):
    """What pip sees of a page."""

    def __init__(self, page: bytes, url: str) -> None:
        super().__init__()
        self.url = url
        self.found: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [urljoin(self.url, value or "") for name, value in attrs if name == "href"]


def test_links_of_a_page_of_pypi() -> None:
    page = PYPI.wanted("/simple/pandas/", "")
    assert page is not None
    body = (
        f'<!DOCTYPE html><a href="https://files.pythonhosted.org{WHEEL}#sha256=00" '
        'data-requires-python="&gt;=3.9" data-core-metadata="sha256=11">one</a>\n'
        "<A class='x' HREF = '../../packages/ef/x.tar.gz'>two</A>"
        '<a href="https://evil.test/x.whl">three</a><a href="http://files.pythonhosted.org/x.whl">four</a>'
    ).encode()
    answer = rewritten(PYPI, page, "text/html", body)
    assert Links(answer, "http://gateway.sandlot/pypi/simple/pandas/").found == [
        f"http://gateway.sandlot/pypi/files/files.pythonhosted.org{WHEEL}#sha256=00",
        "http://gateway.sandlot/pypi/files/pypi.org/packages/ef/x.tar.gz",
        "https://evil.test/x.whl",
        "http://files.pythonhosted.org/x.whl",
    ]
    assert b'data-requires-python="&gt;=3.9" data-core-metadata="sha256=11"' in answer
    with_base = b'<base href="https://x.test/">' + body
    assert rewritten(PYPI, page, "text/html", with_base) == with_base


def test_links_of_a_mirror_with_a_port() -> None:
    page = MIRROR.wanted("/simple/a/", "")
    assert page is not None
    answer = rewritten(MIRROR, page, "text/html", b'<a href="../../f/ab/a-1.whl#sha256=0">a</a>')
    [link] = Links(answer, "http://gateway.sandlot/pypi/simple/a/").found
    assert link == "http://gateway.sandlot/pypi/files/mirror.test:3141/root/pypi/f/ab/a-1.whl#sha256=0"
    for path in (urlsplit(link).path, urlsplit(link).path.replace(":", "%3A")):
        back = MIRROR.wanted(path.removeprefix("/pypi"), "")
        assert back is not None
        assert back.url == "http://mirror.test:3141/root/pypi/f/ab/a-1.whl"


def test_links_of_json_pages() -> None:
    page = PYPI.wanted("/simple/pandas/", PYPI_JSON)
    assert page is not None
    document = {"name": "pandas", "files": [{"url": f"https://files.pythonhosted.org{WHEEL}", "size": 1}, 7]}
    answer = json.loads(rewritten(PYPI, page, PYPI_JSON, json.dumps(document).encode()))
    assert answer["files"] == [{"url": f"/pypi/files/files.pythonhosted.org{WHEEL}", "size": 1}, 7]

    page = NPM.wanted("/lodash", "")
    assert page is not None
    tarball = "https://registry.npmjs.org/lodash/-/lodash-1.0.0.tgz"
    other = "https://evil.test/lodash/-/lodash-1.0.0.tgz"
    document = {
        "versions": {"1": {"dist": {"tarball": tarball, "integrity": "x"}}, "2": {"dist": {"tarball": other}}}
    }
    answer = json.loads(rewritten(NPM, page, "application/json", json.dumps(document).encode()))
    assert answer["versions"] == {
        "1": {"dist": {"tarball": "http://gateway.sandlot/npm/lodash/-/lodash-1.0.0.tgz", "integrity": "x"}},
        "2": {"dist": {"tarball": other}},
    }
    one = json.loads(
        rewritten(NPM, page, "application/json", json.dumps({"dist": {"tarball": tarball}}).encode())
    )
    assert one["dist"]["tarball"].startswith("http://gateway.sandlot/npm/")


LINKS = st.binary() | st.sampled_from([b"//[", b"http://[::1", b"http://a:b:c", b"\\u002f", b"#x"])


@given(LINKS, st.sampled_from(["text/html", PYPI_JSON, ""]), st.sampled_from([PYPI, NPM]))
def test_any_page_is_rewritten(body: bytes, content_type: str, registry: Pypi | Npm) -> None:
    page = registry.wanted("/simple/a/", "") or registry.wanted("/a", "")
    assert page is not None
    for whole in (body, b'<a href="' + body + b'">', b'{"url":"' + body + b'"}'):
        answer = rewritten(registry, page, content_type, whole)
        assert whole in answer or b"/pypi/" in answer or b"/npm/" in answer


FIELDS = st.sampled_from(["files", "versions", "dist", "url", "tarball", 'x"url', "x\\"])
FILE = "https://files.pythonhosted.org/packages/x-1.whl"
TARBALL = "https://registry.npmjs.org/x/-/x-1.tgz"
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from([FILE, TARBALL, f'"url":"{FILE}"']),
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
    max_leaves=20,
)


@given(json_values, st.sampled_from([PYPI, NPM]), st.booleans())
def test_json_of_any_shape_keeps_its_shape(document: object, registry: Pypi | Npm, slashes: bool) -> None:
    """Only the links in their own field are others, however the JSON is written."""

    def expected(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {key: expected(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [expected(each) for each in value]
        linked = isinstance(value, str) and name == registry.link_field
        return (registry.link(page, value) or value) if linked and isinstance(value, str) else value

    page = registry.wanted("/simple/a/", "") or registry.wanted("/a", "")
    assert page is not None
    text = json.dumps(document)
    answer = rewritten(
        registry, page, "application/json", (text.replace("/", "\\/") if slashes else text).encode()
    )
    assert json.loads(answer) == expected(document)


def test_a_hostile_page_takes_no_longer_than_a_long_one() -> None:
    page = PYPI.wanted("/simple/a/", "")
    assert page is not None
    for piece in (b"<a ", b'<a "', b"<a href", b"<a href=", b"<a '\""):
        began = time.monotonic()
        rewritten(PYPI, page, "text/html", piece * 50_000)
        rewritten(PYPI, page, PYPI_JSON, b'"url":"' * 50_000)
        assert time.monotonic() - began < 30  # tells linear from quadratic
