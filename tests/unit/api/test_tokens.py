"""A server that takes tokens, keeps a gate, hands out access, and has routes of others beside its own."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import Response
from tests.unit.api.conftest import KEY, living
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sandlot.api import create_app
from sandlot.api.edge.admission import Admission, Refusal
from sandlot.domain.callers.principal import OWNER, Principal
from sandlot.domain.errors import NotFound, SandlotError, Unauthorized, Unavailable
from sandlot.domain.service import Access
from sandlot.domain.session import Session
from sandlot.testing import FakeService

HOST = [(b"host", b"localhost")]


class Checked:
    """Takes one token, for the paths that are named."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths
        self.asked: list[tuple[bytes, str]] = []

    def admit(self, token: bytes, path: str) -> Principal | SandlotError:
        self.asked.append((token, path))
        if token != b"token":
            return Unauthorized("no token of mine")
        return OWNER if path in self.paths else NotFound("not for that")


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


@pytest.mark.parametrize("api_key", [None, "key"])
@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ([(b"authorization", b"Bearer token")], "/v1/sessions", None),
        ([(b"authorization", b"bearer  token ")], "/v1/sessions", None),
        ([(b"authorization", b"Bearer token")], "/mcp", 404),
        ([(b"authorization", b"Bearer other")], "/v1/sessions", 401),
        ([(b"authorization", b"Basic token")], "/v1/sessions", 401),
        ([(b"x-api-key", b"token")], "/v1/sessions", 401),
        ([], "/v1/sessions", 401),
        ([], "/mcp", 401),
        ([], "/metrics", 401),
        ([], "/health", None),
        ([], "/ready", None),
        ([], "/openapi.json", None),
        ([(b"x-api-key", b"key")], "/v1/sessions", 401),
        ([(b"authorization", b"Bearer key")], "/mcp", 401),
        ([(b"authorization", b"Bearer key")], "/metrics", "key"),
        ([(b"x-api-key", b"key")], "/v1/health", "key"),
        ([(b"authorization", b"Bearer token")], "/metrics", 404),
        ([(b"x-api-key", b"key"), (b"authorization", b"Bearer other")], "/metrics", 401),
        ([(b"authorization", b"Bearer other"), (b"x-api-key", b"key")], "/metrics", "key"),
    ],
)
def test_who_comes_in(
    api_key: str | None, headers: list[tuple[bytes, bytes]], path: str, status: int | str | None
) -> None:
    """``key``: only where there is one. Of several headers the last counts, as without tokens."""
    admission = Admission(api_key, None, Checked("/v1/sessions"))
    admitted = admission.admit("GET", path, [*HOST, *headers])
    if status == "key":
        status = None if api_key else 401
    assert (admitted.status if isinstance(admitted, Refusal) else None) == status


async def test_a_token_instead_of_a_key() -> None:
    tokens = Checked("/v1/sessions")
    async with living(api_key=None, tokens=tokens) as live:
        for key in (KEY, "toke"):
            refused = await live.client.get("/v1/sessions", headers=bearer(key))
            assert refused.status_code == 401
            problem = refused.json()
            assert (problem["code"], problem["retryable"]) == ("unauthorized", False)
            assert refused.headers["www-authenticate"] == "Bearer"
        assert (await live.client.get("/v1/sessions", headers=bearer("token"))).status_code == 200
        assert (await live.client.get("/v1/catalogue", headers=bearer("token"))).status_code == 404
        del live.client.headers["Authorization"]
        assert (await live.client.get("/health")).status_code == 200


async def test_paths_are_checked_as_routes_see_them() -> None:
    tokens = Checked()
    async with living(api_key=None, tokens=tokens) as live:
        sent = b"GET /v1/sessions/%73es_1/..%2Fx?y=%2e HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        await live.raw(sent + b"Authorization: Bearer token\r\n\r\n")
    assert tokens.asked == [(b"token", "/v1/sessions/ses_1/../x")]


# --- the gate -----------------------------------------------------------------------------------


class Gate:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.passed = 0

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.passed += 1


async def test_what_the_gate_raises_is_the_answer() -> None:
    gate = Gate()
    async with living(gate=gate) as live:
        session = await live.session()
        assert gate.passed == 1
        gate.error = Unavailable("fenced", retry_after_s=2.0, details={"reason": "fenced"})
        refused = await live.client.post(f"/v1/sessions/{session}/exec", json={"command": "echo no"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "2"
        problem = refused.json()
        assert problem["details"] == {"reason": "fenced"}
        assert problem["may_have_executed"] is False
        assert problem["request_id"] == refused.headers["x-request-id"]
        assert live.service.calls == []
        for path in ("/health", "/ready", "/openapi.json"):
            assert (await live.client.get(path)).status_code == 200
        with pytest.raises(InvalidStatus) as closed:
            await connect(f"ws://127.0.0.1:{live.port}/v1/sessions/{session}/execs/e/attach", **ws_key())
        assert closed.value.response.status_code == 503
        assert b"fenced" in bytes(closed.value.response.body or b"")


async def test_who_is_not_admitted_does_not_come_to_the_gate() -> None:
    gate = Gate()
    async with living(gate=gate) as live:
        assert (await live.client.get("/v1/sessions", headers=bearer("wrong"))).status_code == 401
        with pytest.raises(InvalidStatus):
            await connect(f"ws://127.0.0.1:{live.port}/v1/sessions/s/execs/e/attach")
        assert gate.passed == 0


async def test_a_gate_that_fails_tells_nothing() -> None:
    gate = Gate()
    gate.error = RuntimeError("with a secret")
    async with living(gate=gate) as live:
        failed = await live.client.get("/v1/sessions")
        assert failed.status_code == 500
        assert failed.json()["code"] == "internal"
        assert "secret" not in failed.text


def ws_key() -> dict[str, Any]:
    return {"additional_headers": bearer(KEY)}


# --- routes of others, and access ---------------------------------------------------------------

router = APIRouter(prefix="/v1/fleet")


@router.get("/{name}")
async def fleet_thing(name: str) -> Response:
    return Response(name)


async def test_routes_of_others_are_behind_the_same_edge() -> None:
    app = create_app(FakeService(), api_key=KEY, routers=[router])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=bearer(KEY)
    ) as client:
        found = await client.get("/v1/fleet/thing")
        assert (found.status_code, found.text) == (200, "thing")
        assert found.headers["x-request-id"]
        assert (await client.get("/v1/fleet/thing", headers=bearer("wrong"))).status_code == 401
        assert 'route="/v1/fleet/{name}"' in (await client.get("/metrics")).text
        assert "/v1/fleet/{name}" in (await client.get("/openapi.json")).json()["paths"]
    async with living() as live:
        assert (await live.client.get("/v1/fleet/thing")).status_code == 404


def access(caller: Principal, session: Session) -> Access | None:
    return Access("http://worker", f"for {session.id} {session.generation}", 1000.5, "w1")


async def test_answers_about_one_session_carry_access() -> None:
    async with living(access=access) as live:
        made = (await live.client.post("/v1/sessions", json={"thread": "t"})).json()
        path = f"/v1/sessions/{made['id']}"
        expected = {
            "url": "http://worker",
            "token": f"for {made['id']} 1",
            "expires_at": 1000.5,
            "worker": "w1",
        }
        body = {"exec": {"command": "true"}}
        run = (await live.client.post("/v1/threads/t/exec", json=body)).json()
        told = [
            made,
            (await live.client.post("/v1/sessions", json={"thread": "t"})).json(),
            (await live.client.get(path)).json(),
            (await live.client.patch(path, json={"metadata": {}})).json(),
            (await live.client.get("/v1/threads/t")).json(),
            run["session"],
        ]
        assert [answer["access"] for answer in told] == [expected] * 6
        live.service.lose(made["id"])
        anew = (await live.client.post(path + "/recreate")).json()
        assert anew["access"]["token"] == f"for {made['id']} 2"
        listed = (await live.client.get("/v1/sessions")).json()["sessions"]
        assert [answer["access"] for answer in listed] == [None]


async def test_one_server_gives_none() -> None:
    async with living() as live:
        made = (await live.client.post("/v1/sessions", json={})).json()
        assert made["access"] is None
