"""What is sent to a server that is older than this program: it refuses members that it does not know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from sandlot.client.http import HttpService
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import Assignment, CreateSession, OnIdle
from sandlot.wire.fleet_bodies import AssignedCreateBody

OF_OLD = {
    *("command", "argv", "exec_id", "cwd", "env", "input", "input_base64", "stdin", "timeout_s"),
    *("output_limit", "on_limit", "pty", "shell", "background"),
}
SESSION_OF_OLD = {
    *("environment", "thread", "env", "limits", "idle_timeout_s", "lifetime_s", "metadata", "recreate_lost"),
}


async def sent_bodies(request: ExecRequest, create: CreateSession) -> list[dict[str, Any]]:
    """Of a create, a command by itself and one in a thread; nobody runs them."""
    bodies = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(size)))
        writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    service = HttpService(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(SandlotError):
            await service.create_session(create)
        with pytest.raises(SandlotError):
            await service.execute("ses_1", request)
        with pytest.raises(SandlotError):
            await service.execute_in_thread(create, request)
    finally:
        await service.close()
        server.close()
        await server.wait_closed()
    return bodies


def assigned(create: CreateSession) -> dict[str, Any]:
    """What a coordinator sends to a worker."""
    body: dict[str, Any] = json.loads(
        msgspec.json.encode(AssignedCreateBody.of(create, Assignment()).to_wire())
    )
    return body


async def test_it_meets_no_member_that_was_not_asked_for() -> None:
    create = CreateSession(thread="t")
    made, ran, in_thread = await sent_bodies(ExecRequest(command="true"), create)
    assert set(ran) == set(in_thread["exec"]) == OF_OLD
    assert set(made) == set(in_thread["session"]) == set(assigned(create)["create"]) == SESSION_OF_OLD


async def test_a_snapshot_and_an_end_that_were_asked_for_are_named() -> None:
    snapshot = "snp_" + "0" * 32
    create = CreateSession(thread="t", snapshot=snapshot, on_idle=OnIdle.END)
    made, _, in_thread = await sent_bodies(ExecRequest(command="true"), create)
    for body in (made, in_thread["session"], assigned(create)["create"]):
        assert set(body) == {*SESSION_OF_OLD, "snapshot", "on_idle"}
        assert (body["snapshot"], body["on_idle"]) == (snapshot, "end")


async def test_one_that_was_asked_for_is_named() -> None:
    create = CreateSession(thread="t", if_different="keep")
    made, ran, in_thread = await sent_bodies(ExecRequest(command="true", merge_output=True), create)
    for body in (ran, in_thread["exec"]):
        assert set(body) == {*OF_OLD, "merge_output"}
        assert body["merge_output"] is True
    for body in (made, in_thread["session"], assigned(create)["create"]):
        assert set(body) == {*SESSION_OF_OLD, "if_different"}
        assert body["if_different"] == "keep"
