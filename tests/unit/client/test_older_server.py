"""What is sent to a server that is older than this program: it refuses members that it does not know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sandlot.client.http import HttpService
from sandlot.domain.errors import SandlotError
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession

OF_OLD = {
    *("command", "argv", "exec_id", "cwd", "env", "input", "input_base64", "stdin", "timeout_s"),
    *("output_limit", "on_limit", "pty", "shell", "background"),
}


async def sent_bodies(request: ExecRequest) -> list[dict[str, Any]]:
    """Those of a command by itself and of one in a thread; nobody runs them."""
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
            await service.execute("ses_1", request)
        with pytest.raises(SandlotError):
            await service.execute_in_thread(CreateSession(thread="t"), request)
    finally:
        await service.close()
        server.close()
        await server.wait_closed()
    own, in_thread = bodies
    return [own, in_thread["exec"]]


async def test_it_meets_no_member_that_was_not_asked_for() -> None:
    for body in await sent_bodies(ExecRequest(command="true")):
        assert set(body) == OF_OLD


async def test_one_that_was_asked_for_is_named() -> None:
    for body in await sent_bodies(ExecRequest(command="true", merge_output=True)):
        assert set(body) == {*OF_OLD, "merge_output"}
        assert body["merge_output"] is True
