"""The protocol's own client, of the version that we serve with, over both transports; and one made of bare lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

ENDED_WITHIN_S = 60.0  # its sandbox goes first, which is the engine's to do


def command(url: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "sandlot", "--url", url, "mcp", *options]


def environ(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")} | more


@contextlib.asynccontextmanager
async def over_stdio(url: str, *options: str) -> AsyncIterator[Client]:
    program, *arguments = command(url, *options)
    parameters = StdioServerParameters(command=program, args=arguments, env=environ())
    async with Client(stdio_client(parameters)) as client:
        yield client


@contextlib.asynccontextmanager
async def over_http(url: str, thread: str | None, **headers: str) -> AsyncIterator[Client]:
    named = {} if thread is None else {"X-Thread-Id": thread}
    async with (
        httpx2.AsyncClient(headers=named | headers, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def in_a_task_of_its_own(opening: AbstractAsyncContextManager[Client]) -> AsyncIterator[Client]:
    """For fixtures, which pytest enters in one task and leaves in another; this client allows that to nobody."""
    opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def hold() -> None:
        try:
            async with opening as client:
                opened.set_result(client)
                await over.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    holding = asyncio.create_task(hold())
    try:
        yield await opened
    finally:
        over.set()
        await holding


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def run(client: Client, script: str, **options: Any) -> str:
    """A command's text; it has to have run."""
    result = await client.call_tool("execute", {"command": script, **options})
    assert not result.is_error, text_of(result)
    return text_of(result)


async def progress_before_the_end(client: Client) -> list[str]:
    """What was told of a command that ends only once something was told of it."""
    told: list[str] = []
    seen = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(str(message))
        seen.set()

    waiting = "echo first; until [ -e /workspace/go ]; do sleep 0.05; done; echo last"
    call = asyncio.create_task(
        client.call_tool("execute", {"command": waiting, "timeout_s": 60}, progress_callback=on_progress)
    )
    await asyncio.wait({call, asyncio.ensure_future(seen.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not call.done()
    await client.call_tool("write_file", {"path": "go", "content": ""})
    result = await call
    assert result.structured_content is not None
    assert result.structured_content["stdout"] == "first\nlast\n"
    return told


class BareLines:
    """A client that does nothing but write and read lines, and so can end as badly as it likes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._id = 0

    @classmethod
    def start(cls, url: str, *options: str, **variables: str) -> Self:
        process = subprocess.Popen(
            command(url, *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ(**variables),
        )
        client = cls(process)
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "bare", "version": "1"},
        }
        client.ask("initialize", hello)
        client.send({"method": "notifications/initialized"})
        return client

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, params: dict[str, Any]) -> int:
        self._id += 1
        self.send({"id": self._id, "method": method, "params": params})
        return self._id

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        asked = self.begin(method, params)
        while True:
            answer = self.line()
            if answer.get("id") == asked:
                return answer["result"]

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def line(self) -> Any:
        """Whatever is on the output has to be the protocol."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read().decode()
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def ended(self) -> tuple[int, bytes, str]:
        """Its code, what was left on its output, and what it said beside."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        code = self.process.wait(ENDED_WITHIN_S)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with self.process.stdout as out, self.process.stderr as said:
            return code, out.read(), said.read().decode()
