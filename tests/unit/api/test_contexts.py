"""Code contexts and cells over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.unit.api.conftest import Live, living
from tests.unit.api.test_artifacts import problem

from sandlot.api.edge.stream_limits import StreamLimits
from sandlot.testing.fake.code.cells import CellReply


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_cell_streams_lines(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/contexts/python/cells"
    body = {"code": "print('hi')\n6 * 7", "exec_id": "one"}
    first = lines(await live.client.post(path, json=body))
    started, *events, end = first
    assert started == {"type": "started", "exec_id": "one", "existing": False}
    assert events[0] == {"type": "count", "execution_count": 1}
    assert events[1] == {"type": "stdout", "text": "hi\n"}
    assert events[2]["data"] == {"text/plain": "42"}
    assert events[2]["main"] is True
    assert (end["type"], end["exec_id"], end["exit_code"], end["verdict"]) == ("end", "one", 0, "ok")
    assert end["truncated"] is False
    again = lines(await live.client.post(path, json=body))
    assert again == [{**started, "existing": True}, *events, end]
    other = await live.client.post(path, json={**body, "code": "other"})
    assert problem(other) == (409, "conflict")


async def test_a_key_is_the_id_of_a_cell(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/contexts/python/cells"
    answer = await live.client.post(path, json={"code": "1"}, headers={"Idempotency-Key": "key-1"})
    assert lines(answer)[-1]["exec_id"] == "key-1"


async def test_failed_code_ends_with_its_error(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/contexts/python/cells"
    *_, error, end = lines(await live.client.post(path, json={"code": "1 / 0"}))
    assert (error["type"], error["name"], error["value"]) == (
        "error",
        "ZeroDivisionError",
        "division by zero",
    )
    assert (end["exit_code"], end["verdict"]) == (1, "nonzero")


async def test_what_a_sandbox_writes_between_its_events_is_dropped(live: Live) -> None:
    """Only events leave: a line that is none could be anything, such as an end that never came."""
    session = await live.session()
    path = f"/v1/sessions/{session}/contexts/python/cells"
    live.service.scripts.cells.add("forge", lambda call: CellReply(value="x"))
    computer = live.service._computer(session)
    honest = computer.contexts.run

    async def forging(cell: Any, env: Any, write: Any) -> int:
        for line in (
            b'{"type":"end","exit_code":0}',
            b"not json",
            b"[]",
            b'"text"',
            b"\xff\xfe",
            b"{" * 5000,
        ):
            await write(line + b"\n")
        return await honest(cell, env, write)

    computer.contexts.run = forging  # type: ignore[method-assign]
    types = [line["type"] for line in lines(await live.client.post(path, json={"code": "forge"}))]
    assert types == ["started", "count", "data", "end"]


async def test_a_broken_stream_ends_with_the_problem(live: Live) -> None:
    session = await live.session()
    path = f"/v1/sessions/{session}/contexts/python/cells"
    body = {"code": "import time\nprint('on')\ntime.sleep(60)"}
    seen: list[dict[str, Any]] = []
    async with live.client.stream("POST", path, json=body) as answer:
        async for line in answer.aiter_lines():
            seen.append(json.loads(line))
            if seen[-1]["type"] == "stdout":
                live.service.lose(session, "the test took it")
    assert seen[-1]["type"] == "problem"
    assert seen[-1]["problem"]["code"] == "sandbox_lost"
    assert seen[-1]["problem"]["may_have_executed"] is True


async def test_contexts_are_made_listed_interrupted_restarted_and_deleted(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/contexts"
    assert (await live.client.get(path)).json() == {"contexts": []}
    made = await live.client.post(path, json={"id": "mine", "cwd": "/tmp"})
    assert made.status_code == 201, made.text
    context = {
        "id": "mine",
        "language": "python",
        "cwd": "/tmp",
        "busy": False,
        "executions": 0,
        "restarts": 0,
    }
    assert made.json() == context
    assert (await live.client.get(path)).json() == {"contexts": [context]}
    running = asyncio.ensure_future(
        live.client.post(f"{path}/mine/cells", json={"code": "import time\ntime.sleep(60)"})
    )
    while not (await live.client.get(path)).json()["contexts"][0]["busy"]:
        await asyncio.sleep(0.01)
    assert (await live.client.post(f"{path}/mine/interrupt")).status_code == 204
    assert lines(await running)[-2]["name"] == "KeyboardInterrupt"
    restarted = await live.client.post(f"{path}/mine/restart")
    assert (restarted.status_code, restarted.json()["restarts"]) == (200, 1)
    for _ in range(2):
        assert (await live.client.delete(f"{path}/mine")).status_code == 204
    assert problem(await live.client.post(f"{path}/mine/restart")) == (404, "not_found")
    assert problem(await live.client.post(f"{path}/mine/cells", json={"code": "1"})) == (404, "not_found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 1},
        {"code": "1", "timeout": 5},
        {"code": "1", "timeout_s": 0},
        {"code": "1", "stdin": True},
    ],
)
async def test_a_cell_that_is_none(live: Live, body: dict[str, object]) -> None:
    path = f"/v1/sessions/{await live.session()}/contexts/python/cells"
    assert problem(await live.client.post(path, json=body)) == (422, "invalid_request")


@pytest.mark.parametrize("body", [{"language": "pyton"}, {"id": "No Id"}, {"name": "x"}, {"id": "r"}])
async def test_a_context_that_is_none(live: Live, body: dict[str, object]) -> None:
    path = f"/v1/sessions/{await live.session()}/contexts"
    assert problem(await live.client.post(path, json=body)) == (422, "invalid_request")


async def test_an_exec_takes_a_cell(live: Live) -> None:
    """With everything that execs have: results, background, events, threads."""
    session = await live.session()
    path = f"/v1/sessions/{session}/exec"
    body = {"cell": {"code": "6 * 7"}, "exec_id": "cell"}
    result = (await live.client.post(path, json=body)).json()
    events = [json.loads(line) for line in result["stdout"].splitlines()]
    assert [event["type"] for event in events] == ["count", "data"]
    listed = (await live.client.get(f"/v1/sessions/{session}/execs")).json()["execs"]
    assert [each["command"] for each in listed] == ["6 * 7"]
    in_thread = await live.client.post(
        "/v1/threads/talk/exec", json={"exec": {"cell": {"code": "1 + 1", "context": "python"}}}
    )
    assert '"text/plain": "2"' in in_thread.json()["result"]["stdout"]
    for wrong in (
        {"cell": {"code": "1"}, "command": "true"},
        {"cell": {"code": "1", "language": "r"}},
        {"cell": {"context": "python"}},
        {"cell": {"code": "1"}, "shell": "main"},
        {"cell": {"code": "1"}, "input": "text"},
        {"cell": "1"},
    ):
        assert problem(await live.client.post(path, json=wrong)) == (422, "invalid_request")


async def test_cells_count_as_streams() -> None:
    async with living(streams=StreamLimits(per_key=1)) as live:
        path = f"/v1/sessions/{await live.session()}/contexts/python/cells"
        slow = {"code": "import time\nprint('on')\ntime.sleep(60)"}
        async with live.client.stream("POST", path, json=slow) as answer:
            await anext(answer.aiter_lines())
            assert problem(await live.client.post(path, json={"code": "1"})) == (429, "busy")


async def test_history_names_the_code(live: Live) -> None:
    session = await live.session(env={"TOKEN": "a-long-secret-value"})
    path = f"/v1/sessions/{session}/contexts/python/cells"
    await live.client.post(path, json={"code": "len('a-long-secret-value')"})
    events = (await live.client.get("/v1/events", params={"session": session})).json()["events"]
    (started,) = [event for event in events if event["kind"] == "exec.started"]
    assert "len(" in started["details"]["command"]
    assert "a-long-secret-value" not in json.dumps(events)
