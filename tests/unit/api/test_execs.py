"""Execs over HTTP: results, idempotency, event streams, and clients that go away."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from tests.unit.api.conftest import Live

from sandlot.api.responses import streams
from sandlot.domain.errors import Unavailable
from sandlot.testing.eventually import eventually

EVENTS = {"Accept": "text/event-stream"}


def parsed(text: str) -> list[tuple[str, int | None, dict[str, Any]]]:
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append(
                (fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"]))
            )
    return found


async def test_result(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    body = {"command": "cat; echo no >&2; exit 3", "input": "in\n", "exec_id": "one"}
    result = (await live.client.post(path + "/exec", json=body)).json()
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "in\n", "no\n")
    assert (result["verdict"], result["exec_id"], result["generation"]) == ("nonzero", "one", 1)
    status = (await live.client.get(path + "/execs/one")).json()
    assert status["running"] is False
    assert status["result"]["exit_code"] == 3
    assert [listed["exec_id"] for listed in (await live.client.get(path + "/execs")).json()["execs"]] == [
        "one"
    ]


async def test_bytes_are_exact(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/exec"
    data = bytes(range(256))
    body = {"argv": ["cat"], "input_base64": base64.b64encode(data).decode()}
    result = (await live.client.post(path, json=body)).json()
    assert base64.b64decode(result["stdout_base64"]) == data


async def test_the_idempotency_key_is_the_exec_id(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/exec"
    for _ in range(2):
        ran = await live.client.post(
            path, json={"command": "echo x >> f; cat f"}, headers={"Idempotency-Key": "key-1"}
        )
        assert (ran.json()["exec_id"], ran.json()["stdout"]) == ("key-1", "x\n")


async def test_background_wait_and_kill(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    started = await live.client.post(
        path + "/exec", json={"command": "sleep 60", "background": True, "exec_id": "bg"}
    )
    assert (started.status_code, started.json()["running"]) == (202, True)
    assert (await live.client.get(path + "/execs/bg", params={"wait_s": 0.05})).json()["running"] is True
    assert (await live.client.post(path + "/execs/bg/signal", json={"signal": 0})).status_code == 422
    assert (await live.client.delete(path + "/execs/bg")).json()["processes"] >= 1
    ended = (await live.client.get(path + "/execs/bg", params={"wait_s": 20})).json()
    assert (ended["running"], ended["result"]["verdict"]) == (False, "killed")


async def test_background_says_that_it_may_run_when_it_cannot_say_how_it_is(live: Live) -> None:
    async def away(*arguments: Any, **options: Any) -> Any:
        raise Unavailable("the worker is late", retry_after_s=1.0)

    live.service.get_exec = away  # type: ignore[method-assign]
    path = f"/v1/sessions/{await live.session()}/exec"
    answer = await live.client.post(path, json={"command": "sleep 0.1", "background": True, "exec_id": "bg"})
    told = answer.json()
    assert (answer.status_code, told["may_have_executed"], told["details"]["exec_id"]) == (503, True, "bg")


async def test_background_with_input(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    body = {"command": "cat", "input": "x" * 300_000, "background": True, "exec_id": "bg"}
    assert (await live.client.post(path + "/exec", json=body)).status_code == 202
    ended = (await live.client.get(path + "/execs/bg", params={"wait_s": 20})).json()
    assert ended["result"]["stdout"] == "x" * 300_000


async def test_events(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    body = {"command": "cat; echo err >&2", "input": "hello", "exec_id": "s"}
    answer = await live.client.post(path + "/exec", json=body, headers=EVENTS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parsed(answer.text)
    assert events[0][0] == "started"
    assert events[-1][0] == "exited"
    assert events[-1][2]["verdict"] == "ok"
    output = "".join(data["text"] for name, _, data in events if name == "output")
    assert output == "helloerr\n"

    replay = parsed((await live.client.get(path + "/execs/s", headers={**EVENTS, "Last-Event-ID": "5"})).text)
    assert "".join(data["text"] for name, _, data in replay if name == "output") == "err\n"
    assert replay[-1][1] == 9, "the id is the offset to come back with"
    by_offset = parsed((await live.client.get(path + "/execs/s", params={"offset": 5}, headers=EVENTS)).text)
    assert by_offset == replay
    wrong = await live.client.get(path + "/execs/s", headers={**EVENTS, "Last-Event-ID": "-1"})
    assert wrong.status_code == 422


async def test_events_of_an_unknown_exec_are_an_error_at_once(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    assert (await live.client.get(path + "/execs/none", headers=EVENTS)).status_code == 404


async def test_a_silent_stream_is_kept_alive(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.with_pings, "__defaults__", (0.05,))
    path = f"/v1/sessions/{await live.session()}"
    answer = await live.client.post(path + "/exec", json={"command": "sleep 1"}, headers=EVENTS)
    assert answer.text.count(": ping\n\n") >= 2
    assert [name for name, _, _ in parsed(answer.text)] == ["started", "exited"]


async def test_a_client_that_leaves_a_stream_detaches_and_kills_nothing(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    body = {"command": "echo a; sleep 0.4; echo b", "exec_id": "left"}
    async with live.client.stream("POST", path + "/exec", json=body, headers=EVENTS) as answer:
        async for line in answer.aiter_lines():
            if "output" in line:
                break
    result = (await live.client.get(path + "/execs/left", params={"wait_s": 20})).json()["result"]
    assert (result["verdict"], result["stdout"]) == ("ok", "a\nb\n")


async def test_a_client_that_leaves_a_result_loses_nothing(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    body = {"command": "sleep 1.5; echo done", "exec_id": "left"}
    with pytest.raises(httpx.ReadTimeout):
        await live.client.post(path + "/exec", json=body, timeout=httpx.Timeout(20, read=0.7))
    result = (await live.client.get(path + "/execs/left", params={"wait_s": 20})).json()["result"]
    assert result["stdout"] == "done\n"


async def test_nothing_is_held_for_clients_that_left(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    before = len(asyncio.all_tasks())
    for number in range(5):
        body = {"command": "sleep 30", "exec_id": f"e{number}"}
        async with live.client.stream("POST", path + "/exec", json=body, headers=EVENTS) as answer:
            await anext(answer.aiter_lines())
    for number in range(5):
        await live.client.delete(path + f"/execs/e{number}")

    async def let_go() -> bool:
        return len(asyncio.all_tasks()) <= before + 2

    await eventually(let_go)


async def test_shells(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    await live.client.post(path + "/exec", json={"command": "cd /tmp", "shell": "main"})
    shells = (await live.client.get(path + "/shells")).json()["shells"]
    assert [(shell["name"], shell["cwd"]) for shell in shells] == [("main", "/tmp")]
    assert (await live.client.delete(path + "/shells/main")).status_code == 204
    assert (await live.client.get(path + "/shells")).json() == {"shells": []}
