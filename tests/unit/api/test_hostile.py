"""What a hostile client sends: it gets its 4xx soon, costs little, and learns nothing."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.api.conftest import KEY, Live, living

from sandlot.api.edge.admission import host_name
from sandlot.api.openapi import schema

pytestmark = pytest.mark.slow  # hundreds of requests to a real server

JSON = {"Content-Type": "application/json"}


def _routes() -> list[tuple[str, str]]:
    """All, also those that only a coordinator serves."""
    return [(method.upper(), path) for path, methods in schema()["paths"].items() for method in methods]


# --- who may come in ------------------------------------------------------------------------------


async def test_every_route_needs_the_key_but_a_named_few(live: Live) -> None:
    live.client.headers.pop("Authorization")
    open_to_all = set()
    routes = [
        *_routes(),
        ("OPTIONS", "/v1/sessions"),
        ("HEAD", "/v1/sessions"),
        ("GET", "/none"),
        ("PUT", "/"),
    ]
    for method, path in routes:
        answer = await live.client.request(method, path)
        if answer.status_code == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
        else:
            open_to_all.add(path)
    assert open_to_all == {"/health", "/ready"}
    for path in ("/health", "/openapi.json"):
        assert (await live.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"X-API-Key": KEY}, 200),
        ({"X-API-Key": KEY + "x"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer x y"}, 401),
        ({"Authorization": KEY}, 401),
        ({"X-API-Key": ""}, 401),
    ],
)
async def test_the_key(live: Live, headers: dict[str, str], status: int) -> None:
    live.client.headers.pop("Authorization")
    assert (await live.client.get("/v1/sessions", headers=headers)).status_code == status


async def test_without_a_key_all_is_open() -> None:
    async with living(api_key=None) as live:
        live.client.headers.pop("Authorization")
        assert (await live.client.get("/v1/sessions")).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "[::1].evil",
        "[::1].evil:80",
        "",
    ],
)
async def test_a_foreign_host_is_refused(live: Live, host: str) -> None:
    for path in ("/v1/sessions", "/health"):
        answer = await live.client.get(path, headers={"Host": host})
        assert answer.status_code == 403
    body = await live.client.post("/create_session", headers={"Host": host})
    assert body.status_code == 403


async def test_two_hosts_are_refused(live: Live) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await live.raw(request)).split(b" ")[1] == b"403"


async def test_hosts_of_ones_own() -> None:
    async with living(allowed_hosts=("Sandbox.example",)) as live:
        assert (await live.client.get("/health", headers={"Host": "sandbox.EXAMPLE.:80"})).status_code == 200
        assert (await live.client.get("/health")).status_code == 403
    async with living(allowed_hosts=None) as live:
        assert (await live.client.get("/health", headers={"Host": "any.example"})).status_code == 200
        created = await live.client.post("/create_session", headers={"Host": "evil.example"})
        assert "evil" not in created.text, "what a client calls the server is not repeated"


def test_host_names() -> None:
    assert host_name(b"[::1]:8000") == "[::1]"
    assert host_name(b"LOCALHOST.:1") == "localhost"
    assert host_name(b"[::1]") == "[::1]"
    assert host_name(b"[::1].evil") == "[::1].evil"  # S10


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
@pytest.mark.parametrize("path", ["/v1/sessions", "/create_session", "/execute"])
async def test_a_foreign_page_causes_nothing(live: Live, origin: str, path: str) -> None:
    answer = await live.client.post(
        path, content="{}", headers={"Origin": origin, "Content-Type": "text/plain"}
    )
    assert answer.status_code == 403
    assert (await live.service.list_sessions()).sessions == ()
    read = await live.client.get("/v1/sessions", headers={"Origin": origin})
    assert read.status_code == 403  # S10
    assert not [name for name in read.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/sessions"), ("POST", "/create_session")])
async def test_s10_a_browser_that_says_it_comes_from_elsewhere(
    live: Live, site: str, method: str, path: str
) -> None:
    """S10: also without an Origin, which a browser leaves out of simple requests."""
    assert (await live.client.request(method, path, headers={"Sec-Fetch-Site": site})).status_code == 403
    for own in ("same-origin", "none"):
        assert (await live.client.get("/health", headers={"Sec-Fetch-Site": own})).status_code == 200


@pytest.mark.parametrize("path", ["/create_session", "/execute", "/api/sessions", "/cleanup"])
async def test_s10_older_routes_take_no_plain_text(live: Live, path: str) -> None:
    headers = {"Content-Type": "text/plain;charset=UTF-8"}
    answer = await live.client.post(path, content=b"{}", headers=headers)
    assert answer.status_code == 422
    assert "application/json" in answer.json()["detail"]
    assert (await live.service.list_sessions()).sessions == ()


async def test_the_servers_own_page_may(live: Live) -> None:
    assert (await live.client.post("/v1/sessions", headers={"Origin": live.url})).status_code == 201


# --- bodies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
async def test_v1_takes_json_alone(live: Live, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await live.client.post("/v1/sessions", content=b'{"thread": "x"}', headers=headers)
    assert answer.status_code == 422
    assert "application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"thread": "\\ud800"}',
        b'{"metadata": {"\\ud800": "x"}}',
        b'{"lifetime_s": NaN}',
        b'{"lifetime_s": 1e999}',
        b'{"limits": {"pids": ' + b"9" * 10_000 + b"}}",
        b'{"thread": "a\\u0000b"}',
        b'{"thread": "' + b"x" * 10_000 + b'"}',
        b'{"env": {"A=B": "x"}}',
        b'{"env": {"A": "' + b"x" * 200_000 + b'"}}',
        b'{"metadata": {"a": 1}}',
        b"\xff\xfe{}",
        b'{"privileged": true}',
        b'{"image": "alpine"}',
        b'{"tenant": "other"}',
        b'{"id": "ses_x"}',
        b'{"limits": {"cpu": 1e9}}',
        b'{"limits": {"cpus": 1e9}}',
    ],
)
async def test_wrong_sessions(live: Live, body: bytes) -> None:
    async with asyncio.timeout(15):
        answer = await live.client.post("/v1/sessions", content=body, headers=JSON)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid_request"
    assert len(answer.content) < 3000
    assert (await live.service.list_sessions()).sessions == ()


async def test_a_wrong_field_is_named(live: Live) -> None:
    answer = await live.client.post("/v1/sessions", json={"limits": {"cpu": 1}, "thread": 5})
    places = {found["place"] for found in answer.json()["details"]["places"]}
    assert places == {"body.limits.cpu", "body.thread"}


@pytest.mark.parametrize(
    "body",
    [
        {"argv": ["x" * 1000] * 3500},
        {"command": "true", "env": {f"V{number}": "x" * 1000 for number in range(3500)}},
        {"command": "a\0b"},
        {"command": "true", "argv": ["true"]},
        {},
        {"argv": []},
        {"command": "true", "exec_id": "x" * 65},
        {"command": "true", "exec_id": "a/b"},
        {"command": "true", "timeout_s": -1},
        {"command": "true", "output_limit": 10**12},
        {"command": "true", "pty": {"rows": 10**30, "cols": 1}},
        {"command": "true", "input_base64": "%%%"},
        {"command": "true", "user": "root"},
    ],
)
async def test_wrong_execs(live: Live, body: dict[str, Any]) -> None:
    path = f"/v1/sessions/{await live.session()}/exec"
    answer = await live.client.post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_json_over_its_bound(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/exec"
    answer = await live.client.post(path, json={"command": "x" * 5 * 1024 * 1024})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"command": "'
        for _ in range(100):
            yield b"x" * 100_000

    answer = await live.client.post(path, content=endless(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


class Swallowing:
    """Files that keep nothing, so that what is measured is the way there."""

    async def write(self, path: str, content: AsyncIterator[bytes], **options: object) -> None:
        async for _ in content:
            pass


async def test_an_endless_upload_costs_no_memory() -> None:
    async with living(max_upload_bytes=64 * 1024 * 1024) as live:
        live.service.files = lambda session_id: Swallowing()  # type: ignore[assignment,method-assign,return-value]
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        path = "/v1/sessions/x/files/content?path=x"
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        answering = asyncio.create_task(reader.readline())
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        sent = 0
        while not answering.done() and sent < 10_000:
            writer.write(chunk)
            await asyncio.wait_for(writer.drain(), 20)
            sent += 1
        assert b" 413 " in await answering
        writer.close()
        assert sent < 100, "the server stops reading soon after the limit"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


async def test_a_slow_body_is_cut_off() -> None:
    async with living(body_timeout_s=0.3) as live:
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: 100\r\n"
        began = time.monotonic()
        answer = await live.raw(head.encode() + b"Content-Type: application/json\r\n\r\n{", timeout=20)
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"connection: close" in answer.lower()
        assert time.monotonic() - began < 15


async def test_a_body_byte_by_byte_is_cut_off() -> None:
    async with living(body_timeout_s=0.4) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        path = f"/v1/sessions/{await live.session()}/files/content?path=x"
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: 100000\r\n\r\n"
        writer.write(head.encode())
        # The first line alone: a byte that left with the answer resets the connection after it.
        reading = asyncio.create_task(reader.readline())
        for _ in range(40):
            if reading.done():
                break
            writer.write(b"x")
            await asyncio.sleep(0.05)
        assert b" 408 " in await asyncio.wait_for(reading, 20)
        writer.close()


def _form(parts: bytes) -> bytes:
    return parts.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    "body",
    [
        b"no form at all" * 1000,
        _form(b"--b\n" * 100_000),
        _form(b"--b\nContent-Disposition: form-data; name=a\n\nx\n" * 10_000 + b"--b--\n"),
        _form(b'--b\nContent-Disposition: form-data; name=f; filename="a"\n\nx\n' * 10_000 + b"--b--\n"),
        _form(b"--b\n" + b"X: y\n" * 100_000 + b"\nx\n--b--\n"),
        _form(b"--b\nX: " + b"y" * 3_000_000 + b"\n\nx\n--b--\n"),
        _form(b"--b\nContent-Disposition: form-data; name=session_id\n\n") + b"x" * 3_000_000,
        _form(b"--b\nContent-Disposition: form-data; name=session_id"),
        b"\r" * 3_000_000,
    ],
)
async def test_hostile_forms(live: Live, body: bytes) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with asyncio.timeout(15):
        answer = await live.client.post("/upload_file", content=body, headers=headers)
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=" + "b" * 10_000, "text/plain"]
)
async def test_forms_that_are_none(live: Live, kind: str) -> None:
    answer = await live.client.post("/upload_file", content=b"x", headers={"Content-Type": kind})
    assert 400 <= answer.status_code < 500


# --- ids, names and the unforeseen ------------------------------------------------------------------


@pytest.mark.parametrize(
    "session_id", ["x", "ses_" + "0" * 32, "a" * 5000, "%00", "%FF", "..%2F..%2Fetc", "ses_%0d%0a"]
)
async def test_wrong_ids_are_one_404(live: Live, session_id: str) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/recreate"),
        ("GET", "/execs"),
        ("GET", "/execs/x"),
        ("GET", "/shells"),
        ("GET", "/files?path=."),
        ("GET", "/files/content?path=x"),
        ("GET", "/files/archive?path=."),
        ("GET", "/files/watch?path=."),
    ):
        answer = await live.client.request(method, f"/v1/sessions/{session_id}{path}")
        assert answer.status_code == 404, (method, path)
        assert answer.json()["code"] == "not_found"


async def test_unknown_routes_and_methods_are_problems(live: Live) -> None:
    for method, path, status in (
        ("GET", "/none", 404),
        ("PUT", "/v1/sessions", 405),
        ("GET", "/v1/sessions/", 404),
    ):
        answer = await live.client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["request_id"]


async def test_an_unforeseen_error_says_nothing_of_the_server(live: Live) -> None:
    async def broken(session_id: str) -> None:
        raise RuntimeError("secret /home/me/sandlot.db")

    live.service.get_session = broken  # type: ignore[assignment,method-assign]
    answer = await live.client.get("/v1/sessions/x", headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "mine-1"
    body = answer.json()
    assert (body["code"], body["request_id"]) == ("internal", "mine-1")
    for leaked in ("secret", "/home", "RuntimeError", "Traceback", ".py"):
        assert leaked not in answer.text


async def test_a_request_id_is_not_taken_from_just_anyone(live: Live) -> None:
    answer = await live.client.get("/health", headers={"X-Request-Id": "<script>"})
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_body_of_nothing_but_values(live: Live) -> None:
    """Validation would complain of each of them, and hold up everybody else."""
    body = b"{" + b",".join(b'"k%d":1' % number for number in range(250_000)) + b"}"
    answer = await live.client.post(
        "/v1/sessions", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    assert "values" in answer.json()["detail"]
