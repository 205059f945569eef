"""The engine's API as the worker uses it: never exec, never archive on a container that has run."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.domain.environment import Environment, Tier
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.provider import DockerProvider
from tests.docker.conftest import BASE

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

REQUEST = re.compile(rb"(?:^|\r\n|\n|\})(GET|POST|PUT|DELETE|HEAD) (\S+) HTTP/1\.1\r\n")


@asynccontextmanager
async def spy(path: Path) -> AsyncIterator[list[str]]:
    """Passes everything on to the engine and writes down what was asked."""
    asked: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: bool) -> None:
        try:
            while piece := await reader.read(65536):
                if note:
                    asked.extend(f"{m[1].decode()} {m[2].decode()}" for m in REQUEST.finditer(piece))
                writer.write(piece)
                await writer.drain()
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection("/var/run/docker.sock")
        for work in (carry(reader, engine_writer, True), carry(engine_reader, writer, False)):
            task = asyncio.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield asked
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("tier", [Tier.RUNC, Tier.RUNSC])
async def test_no_exec_and_no_archive_after_start(short_tmp: Path, tier: Tier) -> None:
    runc = Path("/usr/bin/runc")
    program = hashlib.sha256(runc.read_bytes()).hexdigest() if runc.exists() else ""
    async with spy(short_tmp / "spy.sock") as asked:
        engine = Engine(f"unix://{short_tmp / 'spy.sock'}")
        provider = DockerProvider(
            owner=f"test-{secrets.token_hex(4)}", data_dir=short_tmp / "d", engine=engine
        )
        spec = SandboxSpec(id=new_sandbox_id(), environment=Environment(name="spy", image=BASE, tier=tier))
        sandbox = await provider.create(spec)
        await sandbox.run(ExecRequest(command="echo hi"))
        await sandbox.run(ExecRequest(command="echo hi", shell="s"))
        await sandbox.files.write("f", b"x" * 100_000)
        await sandbox.files.read_bytes("f")
        assert [piece async for piece in sandbox.files.read_archive(".")]
        await provider.pause(spec.id)
        await provider.unpause(spec.id)
        await provider.stats(spec.id)
        await provider.destroy(spec.id)
        await provider.close()
    assert any("/containers/create" in request for request in asked), asked
    assert any(f"/containers/sandlot-{spec.id}/start" in request for request in asked), asked
    # Where the image was not prepared yet, its layer is uploaded: into a container that is never started.
    forbidden = [
        request
        for request in asked
        if re.search(r"/exec\b|/archive\b|/attach\b|/copy\b", request) and "sandlot-preparing-" not in request
    ]
    assert forbidden == []
    if program:
        assert hashlib.sha256(runc.read_bytes()).hexdigest() == program
