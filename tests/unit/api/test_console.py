"""How the console is served: to everybody, with a policy that lets nothing in, and with the API as closed as before."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY, Live, living
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sandlot.api.console import pages
from sandlot.api.console.files import read_files

CONSOLE = Path(__file__).parents[3] / "console/src"
SCRIPT = b"console.log('here')\n" * 100


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A console as the build leaves it, of two files."""
    (tmp_path / "dist/assets").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("not of the console")
    (tmp_path / "dist/index.html").write_text("<!doctype html><title>Sandlot</title>")
    (tmp_path / "dist/assets/index-abc123.js").write_bytes(SCRIPT)
    (tmp_path / "dist/assets/index-abc123.js.gz").write_bytes(gzip.compress(SCRIPT))
    monkeypatch.setattr(pages.ConsolePages.__init__, "__defaults__", (tmp_path / "dist",))
    return tmp_path / "dist"


@pytest_asyncio.fixture
async def console(dist: Path) -> AsyncIterator[Live]:
    # The folder's name keeps this app apart from that of another test: equal apps are one app.
    async with living(console=True, worker_id=dist.parent.name) as live:
        live.client.headers.pop("Authorization")
        live.client.headers["Accept-Encoding"] = "identity"
        yield live


async def test_everybody_gets_the_page_and_nobody_the_api(console: Live) -> None:
    for path in ("/console", "/console/", "/console/sessions/ses_1/terminal", "/console/threads/a%2Fb"):
        answer = await console.client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
    assert (await console.client.get("/v1/sessions")).status_code == 401
    assert (await console.client.get("/consoles")).status_code == 401


async def test_the_servers_address_leads_a_browser_to_the_page(console: Live) -> None:
    """A program still gets the API's answer there."""
    answer = await console.client.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (307, "/console/")
    assert (await console.client.get("/", headers={"Accept": "*/*"})).status_code == 401
    assert (await console.client.post("/", headers={"Accept": "text/html"})).status_code == 401


async def test_the_policy_lets_in_nothing(console: Live) -> None:
    for path in ("/console/", "/console/assets/index-abc123.js"):
        headers = (await console.client.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        for part in ("frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"):
            assert part in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["x-request-id"]


async def test_files_last_and_are_compressed(console: Live) -> None:
    path = "/console/assets/index-abc123.js"
    plain = await console.client.get(path)
    assert plain.content == SCRIPT
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    packed = await console.client.get(path, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == SCRIPT
    assert int(packed.headers["content-length"]) < len(SCRIPT)
    again = await console.client.get(path, headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = await console.client.head(path)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/console/../../secret.txt",
        "/console/assets/../../secret.txt",
        "/console/assets/%2e%2e/%2e%2e/secret.txt",
        "/console/assets/..%2f..%2fsecret.txt",
        "/console/assets//etc/passwd",
        "/console//etc/passwd",
        "/console/assets/index-abc123.js/",
        "/console/assets/index-abc123.js.gz",
        "/console/assets/",
        "/console/assets/\\..\\..\\secret.txt",
    ],
)
async def test_no_path_leads_out(console: Live, path: str) -> None:
    answer = await console.raw(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    assert b"not of the console" not in answer
    assert b"root:" not in answer
    status = int(answer.split()[1])
    assert status == 404 or (status == 200 and b"<title>Sandlot</title>" in answer)


async def test_it_only_answers_readers(console: Live) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = await console.client.request(method, "/console/")
        assert answer.status_code == 405, method
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        # A link to the console, on another site: it opens a page that holds no secret.
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
async def test_which_pages_may_use_it(console: Live, headers: dict[str, str], status: int) -> None:
    assert (await console.client.get("/console/", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        ("same", "same-origin", 200),
        ("same", "cross-site", 403),
        ("http://127.0.0.1:1", "same-site", 403),
        ("https://evil.example", "cross-site", 403),
        ("null", "cross-site", 403),
    ],
)
async def test_the_api_answers_pages_of_its_own_origin_only(
    console: Live, origin: str, site: str, status: int
) -> None:
    origin = console.url if origin == "same" else origin
    headers = {"Authorization": f"Bearer {KEY}", "Origin": origin, "Sec-Fetch-Site": site}
    answer = await console.client.get("/v1/sessions", headers=headers)
    assert answer.status_code == status
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_server_without_the_bundle_says_how_to_build_it(tmp_path: Path, dist: Path) -> None:
    (dist / "index.html").unlink()
    async with living(console=True, worker_id=f"empty-{tmp_path.name}") as live:
        answer = await live.client.get("/console/")
        assert answer.status_code == 404
        assert "make console" in answer.text
        assert (await live.client.get("/v1/sessions")).status_code == 200


async def test_switched_off(live: Live) -> None:
    assert (await live.client.get("/console/")).status_code == 404


# --- WebSockets of a page -------------------------------------------------------------------------


def _name_of(key: str) -> str:
    return "sandlot.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


async def _attach(live: Live, names: list[str], **options: Any) -> str | None:
    session = await live.client.post("/v1/sessions", json={}, headers={"Authorization": f"Bearer {KEY}"})
    url = f"ws://127.0.0.1:{live.port}/v1/sessions/{session.json()['id']}/execs/none/attach"
    async with connect(url, subprotocols=names, **options) as socket:  # type: ignore[arg-type]
        return socket.subprotocol


async def test_a_websocket_brings_its_key_as_a_subprotocol(console: Live) -> None:
    assert await _attach(console, ["sandlot", _name_of(KEY)], origin=console.url) == "sandlot"


@pytest.mark.parametrize(
    ("names", "origin", "status"),
    [
        (["sandlot"], None, 401),
        (["sandlot", _name_of(KEY + "x")], None, 401),
        (["sandlot", _name_of(KEY), _name_of(KEY)], None, 401),
        (["sandlot", "sandlot.key.!!!"], None, 401),
        (["sandlot", "sandlot.key."], None, 401),
        (["sandlot", _name_of(KEY)], "https://evil.example", 403),
    ],
)
async def test_which_subprotocols_open_nothing(
    console: Live, names: list[str], origin: str | None, status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await _attach(console, names, origin=origin)
    assert refused.value.response.status_code == status
    assert KEY.encode() not in (refused.value.response.body or b"")


async def test_a_request_does_not_bring_its_key_so(console: Live) -> None:
    headers = {"Sec-WebSocket-Protocol": _name_of(KEY)}
    assert (await console.client.get("/v1/sessions", headers=headers)).status_code == 401


# --- the console's own code -----------------------------------------------------------------------


def test_no_code_of_the_console_makes_html() -> None:
    """React shows all text as text. These would be ways around it; the page's policy is the second wall."""
    ways = re.compile(
        r"dangerouslySetInnerHTML|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|<iframe"
    )
    sources = [path for path in CONSOLE.rglob("*") if path.suffix in (".ts", ".tsx")]
    assert len(sources) > 40
    for path in sources:
        assert not ways.search(path.read_text()), path


def test_no_file_of_the_console_is_long() -> None:
    for path in CONSOLE.rglob("*.ts*"):
        assert len(path.read_text().splitlines()) < 300, path


def test_compressed_files_are_not_served_by_name(dist: Path) -> None:
    assert set(read_files(dist)) == {"index.html", "assets/index-abc123.js"}
