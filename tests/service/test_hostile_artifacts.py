"""Artifacts of sandboxes that do what they can against their being kept, on both tiers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession
from sandlot.domain.artifacts.artifact import NotKept
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1024 * 1024
MAX_BYTES = 4 * MIB


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[ServerProcess]:
    process = ServerProcess(artifact_max_bytes=str(MAX_BYTES))
    await process.start()
    try:
        yield process
    finally:
        await process.clean()


@pytest_asyncio.fixture(loop_scope="session", params=["base", "gvisor"])
async def session(server: ServerProcess, request: pytest.FixtureRequest) -> AsyncIterator[AsyncSession]:
    async with AsyncClient(server.url) as client, client.create(request.param) as session:
        yield session


async def run(session: AsyncSession, script: str) -> None:
    result = await session.run(["python3", "-c", script], timeout_s=60)
    assert result.exit_code == 0, result.output


def incoming(server: ServerProcess) -> list[Path]:
    return list((server.data_dir / "artifacts" / "incoming").iterdir())


@pytest.mark.asyncio(loop_scope="session")
async def test_only_regular_files_inside_are_kept(session: AsyncSession, server: ServerProcess) -> None:
    await run(
        session,
        "import os, socket; os.mkdir('out'); os.chdir('out'); open('real', 'w').write('x');"
        "os.mkfifo('fifo'); os.symlink('/etc/passwd', 'secret'); os.symlink('real', 'link');"
        "os.symlink('/etc', 'folder'); os.symlink('/proc/self/environ', 'proc');"
        "socket.socket(socket.AF_UNIX).bind('socket'); open('unreadable', 'w').write('x');"
        "os.chmod('unreadable', 0)",
    )
    done = await session.artifacts.keep("out", "out/fifo", "out/secret", "out/folder/passwd", "out/proc")
    assert [artifact.path for artifact in done.kept] == ["out/real"]
    assert done.unmatched == ("out/fifo", "out/secret", "out/folder/passwd", "out/proc")
    assert [(file.path, file.reason) for file in done.refused] == [("out/unreadable", NotKept.UNREADABLE)]


@pytest.mark.asyncio(loop_scope="session")
async def test_huge_and_sparse_files_are_refused_early(session: AsyncSession, server: ServerProcess) -> None:
    await run(
        session,
        f"import os; os.truncate(os.open('huge', 66), 1 << 40); os.truncate(os.open('fits', 66), {MAX_BYTES})",
    )
    done = await session.artifacts.keep("huge", "fits")
    assert [(file.path, file.reason) for file in done.refused] == [("huge", NotKept.TOO_LARGE)]
    assert [artifact.size for artifact in done.kept] == [MAX_BYTES]
    assert incoming(server) == []


@pytest.mark.asyncio(loop_scope="session")
async def test_files_that_change_while_they_are_read(session: AsyncSession, server: ServerProcess) -> None:
    """Some are swapped for links and pipes, some grow and shrink: each answer is a file's content or a refusal."""
    churn = """
import itertools, os
open('secret', 'w').write('inside')
for turn in itertools.count():
    path = 'churn/%d' % (turn % 8)
    kind = turn % 5
    try:
        if kind == 0: os.replace('churn', 'moved'); os.symlink('/etc', 'churn'); os.remove('churn'); os.replace('moved', 'churn')
        elif kind == 1: open(path, 'wb').write(b'x' * (turn % 300000))
        elif kind == 2: os.symlink('/etc/hostname', path + 'l'); os.replace(path + 'l', path)
        elif kind == 3: os.mkfifo(path + 'f'); os.replace(path + 'f', path)
        else: os.truncate(path, turn % 1000)
    except OSError:
        pass
"""
    await session.run("mkdir churn")
    churning = await session.start(["python3", "-c", churn])
    try:
        for _ in range(20):
            done = await asyncio.wait_for(session.artifacts.keep("churn"), 60)
            assert all(artifact.path.startswith("churn/") for artifact in done.kept)
            assert all(artifact.size <= MAX_BYTES for artifact in done.kept)
    finally:
        await churning.kill()
    assert incoming(server) == []
    assert (await session.run("echo well")).output == "well\n"


@pytest.mark.asyncio(loop_scope="session")
async def test_names_made_to_harm(session: AsyncSession, tmp_path: Path) -> None:
    await run(
        session,
        "import os; os.mkdir('n'); [open(b'n/' + name, 'w').write('x') for name in"
        " (b'\\xff\\xfe', b'a\\nb', b'..x', b'\\x1b[31mred', b'*', b'x' * 255, '\\u202egnp.exe'.encode())]",
    )
    done = await session.artifacts.keep("n")
    assert [file.reason for file in done.refused] == [NotKept.NAME]
    assert len(done.kept) == 6
    for artifact in done.kept:
        copy = await session.artifacts.download(artifact, tmp_path)
        assert copy.parent == tmp_path
        assert copy.read_bytes() == b"x"
