"""The history over HTTP: pages, filters, and events as they happen."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.api.conftest import Live
from tests.unit.api.keyed import bearer, code, keyed_server

from sandlot.domain.ids import new_session_id

STREAM = {"Accept": "text/event-stream"}


async def run(live: Live, session: str, command: str) -> None:
    answer = await live.client.post(f"/v1/sessions/{session}/exec", json={"command": command})
    assert answer.status_code == 200, answer.text


async def test_a_sessions_history_stays_after_its_end(live: Live) -> None:
    session = await live.session(thread="t1")
    await run(live, session, "echo hello")
    await live.client.delete(f"/v1/sessions/{session}")
    page = (await live.client.get(f"/v1/sessions/{session}/history")).json()
    assert [event["kind"] for event in page["events"]] == [
        "session.created",
        "session.claimed",
        "exec.started",
        "exec.ended",
        "session.ended",
    ]
    assert (page["more"], page["missing"]) == (False, [])
    assert page["events"][2]["details"]["command"] == "echo hello"
    by_thread = await live.client.get("/v1/events", params={"thread": "t1"})
    assert by_thread.json()["events"] == page["events"]


async def test_pages_and_filters(live: Live) -> None:
    session = await live.session()
    for number in range(4):
        await run(live, session, f"echo {number}")
    params: dict[str, Any] = {"session": session, "kind": ["exec.started", "exec.ended"], "limit": 3}
    seen: list[str] = []
    while True:
        page = (await live.client.get("/v1/events", params=params)).json()
        seen += [event["kind"] for event in page["events"]]
        assert len(page["events"]) <= 3
        if not page["more"]:
            break
        params["after"] = page["next"]
    assert seen == ["exec.started", "exec.ended"] * 4


async def test_an_unknown_session_is_not_found(live: Live) -> None:
    for unknown in (new_session_id(), "nonsense"):
        assert code(await live.client.get(f"/v1/sessions/{unknown}/history")) == (404, "not_found")
    quiet = await live.session()
    page = await live.client.get(f"/v1/sessions/{quiet}/history", params={"kind": "exec.started"})
    assert (page.status_code, page.json()["events"]) == (200, [])


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"sesion": "x"}, "Did you mean 'session'?"),
        ({"kind": "exec.start"}, "Did you mean 'exec.started'?"),
        ({"session": "x"}, "not a session's id"),
        ({"after": "x"}, "not a page cursor"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"wait_s": "61"}, "wait_s"),
        ({"since": "nan"}, "since"),
        ({"since": "inf"}, "since"),
        ({"thread": "a b"}, "thread"),
    ],
)
async def test_wrong_parameters_are_refused(live: Live, params: dict[str, str], says: str) -> None:
    answer = await live.client.get("/v1/events", params=params)
    assert answer.status_code == 422, answer.text
    assert says in answer.text


async def sse(live: Live, path: str, until: str, headers: dict[str, str]) -> list[tuple[str, str, Any]]:
    """The server-sent events up to the one whose data has this text: name, id, data."""
    found: list[tuple[str, str, Any]] = []
    async with live.client.stream("GET", path, headers={**STREAM, **headers}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            if "data" in fields:
                found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
                if until in fields["data"]:
                    return found
            fields = {}
    return found


async def test_events_are_followed_and_a_broken_stream_goes_on(live: Live) -> None:
    session = await live.session()
    path = f"/v1/sessions/{session}/history"
    following = asyncio.create_task(sse(live, path, "echo 1", {}))
    await run(live, session, "echo 0")
    await run(live, session, "echo 1")
    first = await asyncio.wait_for(following, 20)
    assert {name for name, _, _ in first} == {"event"}
    await run(live, session, "echo 2")
    rest = await asyncio.wait_for(sse(live, path, "echo 2", {"Last-Event-ID": first[-1][1]}), 20)
    ids = [data["id"] for _, _, data in (*first, *rest)]
    everything = (await live.client.get(path)).json()["events"]
    assert ids == [event["id"] for event in everything][: len(ids)]
    assert [data["kind"] for _, _, data in rest] == ["exec.ended", "exec.started"]


async def test_a_stream_with_an_end_ends(live: Live) -> None:
    await live.session()
    now = (await live.client.get("/v1/events")).json()["events"][-1]["at"] + 0.001
    found = await asyncio.wait_for(sse(live, f"/v1/events?until={now}", "never", {}), 20)
    assert found
    refused = await live.client.get("/v1/events", headers={**STREAM, "Last-Event-ID": "17"})
    assert (refused.status_code, "Last-Event-ID" in refused.text) == (422, True)


async def test_a_long_poll_waits_for_an_event(live: Live) -> None:
    session = await live.session()
    page = (await live.client.get("/v1/events")).json()
    waiting = asyncio.create_task(
        live.client.get("/v1/events", params={"after": page["next"], "wait_s": 20}, timeout=30)
    )
    await run(live, session, "echo now")
    assert (await waiting).json()["events"][0]["kind"] == "exec.started"


async def test_scopes_decide_what_an_event_shows(tmp_path: Path) -> None:
    async with keyed_server(tmp_path) as server:

        async def holder(*scopes: str) -> str:
            return str((await server.create(tenant="acme", scopes=list(scopes)))["secret"])

        user = await holder("sessions:read", "sessions:write", "exec", "files", "network")
        session = (await server.post("/v1/sessions", user, {})).json()["id"]
        await server.post(f"/v1/sessions/{session}/exec", user, {"command": "echo shown"})
        path = f"/v1/sessions/{session}/history"

        async def commands(key: str) -> list[Any]:
            page = (await server.get(path, key)).json()
            started = [event for event in page["events"] if event["kind"] == "exec.started"]
            assert len(started) == 1
            return [event["details"].get("command") for event in started]

        assert await commands(user) == ["echo shown"]
        assert await commands(await holder("sessions:read")) == [None]
        assert code(await server.get(path, await holder("exec"))) == (403, "forbidden")
        assert code(await server.get("/v1/events?server=true", user)) == (403, "forbidden")
        other = str((await server.create(tenant="other"))["secret"])
        assert code(await server.get(path, other)) == (404, "not_found")
        answer: httpx.Response = await server.live.client.get(
            "/v1/events", headers={**bearer(other), **STREAM}, params={"until": 1}
        )
        assert answer.text == ""
