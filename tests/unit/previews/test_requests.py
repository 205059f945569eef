"""HTTP through a preview: by a path on the server, and by a host of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from tests.unit.previews.rig import DOMAIN, KEY, PORT, SECONDS, Rig, rigged

from sandlot.domain.network.ports import PUBLIC, ExposePort
from sandlot.domain.network.preview_links import Link, PreviewDomain
from sandlot.testing.eventually import eventually

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged() as rig:
        yield rig


@pytest_asyncio.fixture
async def hosted() -> AsyncIterator[Rig]:
    async with rigged(domain=DOMAIN) as rig:
        yield rig


async def cookie_of(rig: Rig, **how: object) -> str:
    """What a browser sends after its first visit."""
    preview = await rig.expose(**how)
    first = await rig.visit("/" + preview.url.partition("/?")[2].join(["?", ""]))
    assert first.status_code == 307
    return first.headers["set-cookie"].partition(";")[0]


# --- by path ------------------------------------------------------------------------------------


async def test_a_request_reaches_the_program(rig: Rig) -> None:
    preview = await rig.expose()
    answer = await rig.client.get(f"{preview.url}a/b%2Fc?q=1&r=%20", headers={"X-Own": "kept"})
    assert (answer.status_code, answer.text) == (200, "hi")
    head = rig.program.heads[-1]
    assert (head.method, head.target) == (b"GET", b"/a/b%2Fc?q=1&r=%20")
    assert rig.program.last["host"] == f"localhost:{PORT}"
    assert rig.program.last["x-forwarded-prefix"] == preview.prefix
    assert rig.program.last["x-forwarded-host"] == rig.url.removeprefix("http://")
    assert rig.program.last["x-forwarded-proto"] == "http"
    assert rig.program.last["x-own"] == "kept"


async def test_a_program_may_keep_its_prefix(rig: Rig) -> None:
    preview = await rig.expose(keep_prefix=True)
    assert (await rig.client.get(preview.url + "x?y")).status_code == 200
    assert rig.program.heads[-1].target.decode() == preview.prefix + "/x?y"


async def test_the_slash_is_added(rig: Rig) -> None:
    preview = await rig.expose()
    answer = await rig.client.get(preview.url.removesuffix("/") + "?a=b")
    assert (answer.status_code, answer.headers["location"]) == (307, preview.prefix + "/?a=b")


async def test_bodies_stream_both_ways(rig: Rig) -> None:
    """The program answers each piece of the request before the next one is sent."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while (size := int(await reader.readline(), 16)) > 0:
            piece = (await reader.readexactly(size + 2))[:-2]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    rig.program.script = echo
    preview = await rig.expose()
    answered = asyncio.Queue[bytes]()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        async with asyncio.timeout(SECONDS):
            assert await answered.get() == b"first"
        yield b"second"

    # httpx does not read an answer before it has sent everything, so the request is written by hand.
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {preview.prefix}/ HTTP/1.1\r\nHost: {host}:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    async with asyncio.timeout(SECONDS):
        writer.write(b"5\r\nfirst\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readuntil(b"first\r\n") == b"5\r\nfirst\r\n"
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == b"6\r\nsecond\r\n0\r\n\r\n"
    writer.close()


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"])
async def test_every_method(rig: Rig, method: str) -> None:
    preview = await rig.expose()
    answer = await rig.client.request(method, preview.url, content=b"x" * 100_000)
    assert answer.status_code == 200
    assert answer.content == (b"" if method == "HEAD" else b"hi")
    assert rig.program.heads[-1].method == method.encode()
    assert rig.program.bodies[-1] == b"x" * 100_000


async def test_an_answer_without_a_length(rig: Rig) -> None:
    rig.program.answer = b"HTTP/1.0 200 OK\r\n\r\nuntil the end"
    preview = await rig.expose()
    assert (await rig.client.get(preview.url)).text == "until the end"


@pytest.mark.parametrize("status", [b"304 Not Modified", b"204 No Content"])
async def test_an_answer_without_a_body(rig: Rig, status: bytes) -> None:
    rig.program.answer = b"HTTP/1.1 %s\r\ncontent-length: 1234\r\netag: x\r\n\r\n" % status
    preview = await rig.expose()
    for _ in range(2):  # the second one on the same connection
        answer = await rig.client.get(preview.url)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (int(status[:3]), b"", "x")


async def test_by_path_nothing_acts_on_the_apis_host(rig: Rig) -> None:
    rig.program.answer = (
        b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: a=b; Path=/\r\nClear-Site-Data: "*"\r\n'
        b'Strict-Transport-Security: max-age=9\r\nService-Worker-Allowed: /\r\nAlt-Svc: h3=":1"\r\n'
        b"WWW-Authenticate: Basic\r\nX-Accel-Redirect: /etc/passwd\r\nX-Sendfile: /etc/passwd\r\n"
        b"Access-Control-Allow-Origin: https://evil.example\r\nAccess-Control-Allow-Credentials: true\r\n"
        b"Content-Security-Policy: sandbox allow-same-origin\r\nReferrer-Policy: unsafe-url\r\nX-Own: kept\r\n"
        b"NEL: {}\r\nReport-To: {}\r\nConnection: X-Hop\r\nX-Hop: dropped\r\nKeep-Alive: timeout=5\r\n\r\n"
    )
    preview = await rig.expose()
    headers = (await rig.client.get(preview.url)).headers
    for name in (
        *(
            "set-cookie",
            "clear-site-data",
            "strict-transport-security",
            "service-worker-allowed",
            "alt-svc",
            "nel",
        ),
        *("www-authenticate", "x-accel-redirect", "x-sendfile", "access-control-allow-credentials", "x-hop"),
        *("report-to", "keep-alive"),
    ):
        assert name not in headers, name
    assert headers["access-control-allow-origin"] == "*"
    policies = headers.get_list("content-security-policy")
    assert any(
        policy.startswith("sandbox allow-scripts") and "same-origin" not in policy for policy in policies
    )
    assert headers["referrer-policy"] == "no-referrer"
    assert "private" in headers.get_list("cache-control", split_commas=True)
    assert headers["x-own"] == "kept"


async def test_by_path_the_program_sees_no_credential(rig: Rig) -> None:
    preview = await rig.expose()
    sent = {
        "Authorization": "Basic of-the-api",
        "X-API-Key": KEY,
        "Cookie": "of=the-api",
        "Referer": preview.url,
        "Origin": "null",
        "Sec-Fetch-Site": "cross-site",
        "X-Forwarded-For": "1.2.3.4",
        "Forwarded": "for=1.2.3.4",
        "X-Forwarded-Prefix": "/evil",
    }
    assert (await rig.client.get(preview.url, headers=sent)).status_code == 200
    got = rig.program.last
    for name in (
        "authorization",
        "x-api-key",
        "cookie",
        "referer",
        "sec-fetch-site",
        "x-forwarded-for",
        "forwarded",
    ):
        assert name not in got
    assert got["origin"] == f"http://localhost:{PORT}"
    assert got["x-forwarded-prefix"] == preview.prefix


async def test_a_page_without_an_origin_may_ask_for_its_own(rig: Rig) -> None:
    preview = await rig.expose()
    asked = {
        "Origin": "null",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    answer = await rig.client.options(preview.url + "api", headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-headers"]) == (204, "content-type")
    assert rig.program.heads == []


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("/login?a", "{prefix}/login?a"),
        ("http://localhost:7000/x", "{prefix}/x"),
        ("http://127.0.0.1:7000", "{prefix}/"),
        ("http://localhost:70001/x", "http://localhost:70001/x"),
        ("{prefix}/x", "{prefix}/x"),
        ("x/y", "x/y"),
        ("https://example.com/x", "https://example.com/x"),
    ],
)
async def test_redirects_stay_in_the_preview(rig: Rig, said: str, seen: str) -> None:
    preview = await rig.expose()
    location = said.format(prefix=preview.prefix).encode()
    rig.program.answer = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: %s\r\n\r\n" % location
    answer = await rig.client.get(preview.url)
    assert answer.headers["location"] == seen.format(prefix=preview.prefix)


# --- by host ------------------------------------------------------------------------------------


async def test_the_first_visit_sets_a_cookie(hosted: Rig) -> None:
    preview = await hosted.expose()
    assert preview.url.startswith(f"http://{hosted.host}/?sandlot_link=")
    token = preview.url.partition("=")[2]
    first = await hosted.visit(f"/a?b=1&sandlot_link={token}&c=2")
    assert (first.status_code, first.headers["location"]) == (307, f"http://{hosted.host}/a?b=1&c=2")
    assert first.headers["set-cookie"] == f"sandlot-preview={token}; Path=/; HttpOnly; SameSite=Lax"
    assert hosted.program.heads == []
    cookie = first.headers["set-cookie"].partition(";")[0]
    answer = await hosted.visit("/a?b=1", headers={"Cookie": f"own=1; {cookie}; other=2"})
    assert (answer.status_code, answer.text) == (200, "hi")
    assert hosted.program.last["cookie"] == "own=1; other=2"
    assert "x-forwarded-prefix" not in hosted.program.last
    assert token not in str(hosted.program.raw)


async def test_by_https_the_cookie_is_bound_to_its_host() -> None:
    domain = type(DOMAIN)("https", DOMAIN.suffix)
    async with rigged(domain=domain) as rig:
        preview = await rig.expose()
        first = await rig.visit("/?" + preview.url.partition("?")[2])
        assert first.headers["set-cookie"].startswith("__Host-sandlot-preview=")
        assert first.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Lax; Secure")
        assert first.headers["location"].startswith("https://")


async def test_by_host_a_program_has_cookies_of_its_own_host(hosted: Rig) -> None:
    hosted.program.answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: a=b; Domain=preview.test; Path=/x\r\n"
        b"Set-Cookie: sandlot-preview=evil\r\nSet-Cookie: Sandlot-Preview=evil\r\nSet-Cookie: c=d\r\n"
        b"WWW-Authenticate: Basic\r\nX-Accel-Redirect: /x\r\nStrict-Transport-Security: max-age=9\r\n"
        b'Clear-Site-Data: "cookies"\r\n\r\n'
    )
    headers = (await hosted.visit(headers={"Cookie": await cookie_of(hosted)})).headers
    assert headers.get_list("set-cookie") == ["a=b; Path=/x", "c=d"]
    assert headers["www-authenticate"] == "Basic"
    assert "x-accel-redirect" not in headers
    assert "strict-transport-security" not in headers
    assert "clear-site-data" not in headers
    assert headers.get_list("content-security-policy") == ["frame-ancestors 'self'"]


async def test_by_host_the_program_sees_its_own_authorization_and_never_the_apis(hosted: Rig) -> None:
    cookie = await cookie_of(hosted)
    for said, seen in (("Bearer of-the-app", True), ("Basic eDp5", True), (f"Bearer {KEY}", False)):
        answer = await hosted.visit(headers={"Cookie": cookie, "Authorization": said, "X-API-Key": KEY})
        assert answer.status_code == 200
        assert ("authorization" in hosted.program.last) is seen
        assert "x-api-key" not in hosted.program.last


async def test_a_preview_of_its_own_host_needs_no_link_if_it_is_public(hosted: Rig) -> None:
    assert (await hosted.visit()).status_code == 404
    preview = await hosted.expose(public=True)
    assert preview.url == f"http://{hosted.host}/"
    answer = await hosted.visit()
    assert answer.status_code == 200
    assert "content-security-policy" not in answer.headers
    await hosted.expose()
    assert (await hosted.visit()).status_code == 404


async def test_another_site_cannot_use_a_private_preview(hosted: Rig) -> None:
    """Other previews are of the same site, so their requests carry its cookie."""
    cookie, opened = await cookie_of(hosted), {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    origin = f"http://{hosted.host}"
    allowed: list[tuple[str, dict[str, str]]] = [
        ("GET", {"Sec-Fetch-Site": "same-origin"}),
        ("GET", {"Sec-Fetch-Site": "none", **opened}),
        ("GET", {"Sec-Fetch-Site": "cross-site", **opened}),
        ("POST", {"Sec-Fetch-Site": "same-origin", "Origin": origin}),
        ("POST", {}),
    ]
    refused: list[tuple[str, dict[str, str]]] = [
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
        ("POST", {"Sec-Fetch-Site": "same-site", "Origin": "http://8000-x.preview.test", **opened}),
        ("POST", {"Origin": "http://evil.example"}),
        ("POST", {"Origin": "null"}),
    ]
    for method, headers in allowed:
        answer = await hosted.visit(method=method, headers={"Cookie": cookie, **headers})
        assert answer.status_code == 200, headers
    for method, headers in refused:
        answer = await hosted.visit(method=method, headers={"Cookie": cookie, **headers})
        assert answer.status_code == 403, headers
    assert len(hosted.program.heads) == len(allowed)


async def test_nothing_of_the_api_is_on_the_host_of_a_preview(hosted: Rig) -> None:
    for path in ("/v1/sessions", "/health", "/openapi.json", "/metrics"):
        answer = await hosted.visit(path, headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 404
        assert "Sandlot preview" in answer.text
    other = {"Host": "anything.preview.test", "Authorization": f"Bearer {KEY}"}
    assert (await hosted.client.get(f"{hosted.url}/v1/sessions", headers=other)).status_code == 404
    assert (await hosted.client.get(f"{hosted.url}/health")).status_code == 200


# --- what is refused ----------------------------------------------------------------------------


async def test_wrong_expired_and_foreign_links() -> None:
    now = 1_800_000_000.0
    async with rigged(domain=DOMAIN, clock=lambda: now) as rig:
        preview = await rig.expose(expires_s=60)
        link = rig.options.tokens.read(preview.url.partition("=")[2])
        sign = rig.options.tokens.sign
        foreign_session = sign(Link("ses_" + "1" * 32, PORT, link.exposure, link.expires_at))
        foreign_port = sign(Link(link.session_id, PORT + 1, link.exposure, link.expires_at))
        foreign_exposure = sign(Link(link.session_id, PORT, "0" * 16, link.expires_at))
        cookie = f"sandlot-preview={sign(link)}"
        assert (await rig.visit(headers={"Cookie": cookie})).status_code == 200
        for token in (foreign_session, foreign_port, sign(link)[:-2], "x"):
            assert (await rig.visit(f"/?sandlot_link={token}")).status_code == 403
            assert (await rig.visit(headers={"Cookie": f"sandlot-preview={token}"})).status_code == 404
        assert (await rig.visit(headers={"Cookie": f"sandlot-preview={foreign_exposure}"})).status_code == 404
        # A cookie that another preview has set beside ours changes nothing.
        both = f"sandlot-preview={foreign_session}; {cookie}"
        assert (await rig.visit(headers={"Cookie": both})).status_code == 200
        now += 62
        expired = await rig.visit(f"/?sandlot_link={sign(link)}")
        assert (expired.status_code, "has expired" in expired.text) == (403, True)
        assert (await rig.visit(headers={"Cookie": cookie})).status_code == 404


async def test_links_by_path(rig: Rig) -> None:
    preview = await rig.expose()
    token = preview.prefix.removeprefix("/preview/")
    link, sign = rig.options.tokens.read(token), rig.options.tokens.sign
    expired = sign(Link(link.session_id, PORT, link.exposure, 1))
    for wrong in ("x", token[:-2] + "AA", expired, token[:40], ""):
        answer = await rig.client.get(f"{rig.url}/preview/{wrong}/")
        assert answer.status_code == 403, wrong
    for gone in (
        sign(Link("ses_" + "1" * 32, PORT, link.exposure)),
        sign(Link(link.session_id, PORT + 1, link.exposure)),
        sign(Link(link.session_id, PORT, "0" * 16)),
    ):
        assert (await rig.client.get(f"{rig.url}/preview/{gone}/")).status_code == 404
    assert rig.program.heads == []


async def test_unexposing_and_the_sessions_end_revoke_all_links(rig: Rig) -> None:
    first, second = await rig.expose(), await rig.expose(expires_s=60)
    assert first.url != second.url
    for preview in (first, second):
        assert (await rig.client.get(preview.url)).status_code == 200
    await rig.service.unexpose_port(rig.session_id, PORT)
    again = await rig.expose()
    for preview in (first, second):
        assert (await rig.client.get(preview.url)).status_code == 404
    assert (await rig.client.get(again.url)).status_code == 200
    await rig.service.delete_session(rig.session_id)
    assert (await rig.client.get(again.url)).status_code == 404


async def test_an_open_answer_ends_when_its_port_is_unexposed(rig: Rig) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nfirst")
        await reader.read()

    rig.program.script = endless
    preview = await rig.expose()
    async with rig.client.stream("GET", preview.url) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"first"
        await rig.service.unexpose_port(rig.session_id, PORT)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)


async def test_nothing_listens_is_said_with_what_to_do(rig: Rig) -> None:
    preview = await rig.expose(7001)
    answer = await rig.client.get(preview.url)
    assert answer.status_code == 502
    assert "Nothing listens on port 7001" in answer.text
    assert "python3 -m http.server 7001" in answer.text
    assert answer.headers["content-security-policy"].startswith("sandbox;")
    assert answer.headers["cache-control"] == "no-store"


async def test_service_workers_are_refused(rig: Rig) -> None:
    preview = await rig.expose()
    answer = await rig.client.get(preview.url + "sw.js", headers={"Service-Worker": "script"})
    assert answer.status_code == 403
    assert rig.program.heads == []


async def test_an_unknown_host_has_no_paths_of_previews() -> None:
    async with rigged(allowed_hosts=("127.0.0.1",)) as rig:
        preview = await rig.expose()
        assert (await rig.client.get(preview.url)).status_code == 200
        answer = await rig.client.get(preview.url, headers={"Host": "evil.example"})
        assert answer.status_code == 403


async def test_a_host_is_a_name_and_a_port(hosted: Rig) -> None:
    preview = await hosted.expose()
    query = preview.url.partition("/?")[2]
    for wrong in (
        f"{hosted.host}:80@evil.example",
        f"{hosted.host}:x",
        f"{hosted.host}/",
        f"a@{hosted.host}",
        "",
    ):
        line = f"GET /?{query} HTTP/1.1\r\nHost: {wrong}\r\nConnection: close\r\n\r\n"
        answer = await hosted.raw(line.encode())
        assert b"evil" not in answer
        assert b"set-cookie" not in answer, wrong


async def test_a_server_may_allow_no_public_previews() -> None:
    async with rigged(public=False) as rig:
        answer = await rig.client.put(
            f"{rig.url}/v1/sessions/{rig.session_id}/ports/{PORT}",
            json={"public": True},
            headers={"Authorization": f"Bearer {KEY}"},
        )
        assert (answer.status_code, "SANDLOT_PREVIEWS=private" in answer.text) == (422, True)
        assert await rig.service.list_exposed(rig.session_id) == ()


@pytest.mark.parametrize("domain", [None, DOMAIN])
async def test_a_port_that_was_public_before_has_no_visitors(domain: PreviewDomain | None) -> None:
    """A worker of a fleet exposes ports too, and knows nothing of what the coordinators show."""
    async with rigged(public=False, domain=domain) as rig:
        exposure = (await rig.service.expose_port(rig.session_id, ExposePort(PORT, public=True))).exposure
        token = rig.options.tokens.sign(Link(rig.session_id, PORT, PUBLIC))
        assert (await rig.client.get(f"{rig.url}/preview/{token}/")).status_code == 404
        assert domain is None or (await rig.visit()).status_code == 404
        assert rig.program.heads == []
        link = rig.options.tokens.sign(Link(rig.session_id, PORT, exposure.id))
        assert (await rig.client.get(f"{rig.url}/preview/{link}/")).status_code == 200


async def test_a_visitor_that_leaves_ends_the_connection(rig: Rig) -> None:
    started = asyncio.Event()

    async def waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        started.set()
        await reader.read()

    rig.program.script = waiting
    preview = await rig.expose()
    asking = asyncio.create_task(rig.client.get(preview.url))
    async with asyncio.timeout(SECONDS):
        await started.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    async def ended() -> bool:
        return rig.program.open == 0

    await eventually(ended, SECONDS, "the program's connection has ended")


async def test_a_preview_counts_as_use_of_its_session(rig: Rig) -> None:
    preview = await rig.service.expose_port(rig.session_id, ExposePort(PORT))
    before = (await rig.service.get_session(rig.session_id)).last_active_at
    link = Link(rig.session_id, PORT, preview.exposure.id)

    async def used() -> bool:
        await rig.client.get(f"{rig.url}/preview/{rig.options.tokens.sign(link)}/")
        return (await rig.service.get_session(rig.session_id)).last_active_at > before

    await eventually(used, SECONDS, "the session counts as used")
