"""Folders and archives made to harm, over HTTP: answers are bounded, the server stays, and cleaning up works."""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession, LimitChange
from sandlot.domain.errors import EngineTimeout, FileProblem, InvalidRequest, LinkInterrupted, TooLarge
from sandlot.domain.execution import MIB
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]
GONE_WITHIN_S = 180.0  # a million files, on a disk that others use too
MANY = 1_000_000
DEEP = 5_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[ServerProcess]:
    process = ServerProcess(max_upload_bytes=str(64 * 1024 * 1024))
    await process.start()
    try:
        yield process
    finally:
        await process.clean()


@pytest_asyncio.fixture(loop_scope="session")
async def session(server: ServerProcess) -> AsyncIterator[AsyncSession]:
    async with AsyncClient(server.url) as client:
        # What the kernel knows of a million new files counts, and cannot be let go of before the disk has it.
        session = await client.create(limits=LimitChange(cpus=2, memory_bytes=2048 * MIB))
        yield session
        began = time.monotonic()
        with contextlib.suppress(EngineTimeout, LinkInterrupted):  # told so, while the engine goes on
            await session.delete()

        def gone() -> bool:
            return session.info.sandbox_id not in server.containers()

        await eventually(gone, GONE_WITHIN_S - (time.monotonic() - began), "it can be removed")


@pytest.mark.alone  # the engine makes and removes no other volume while it removes this one
@pytest.mark.asyncio(loop_scope="session")
async def test_a_folder_of_a_million(session: AsyncSession, server: ServerProcess) -> None:
    script = f"import os; os.mkdir('big'); os.chdir('big'); [os.close(os.open(str(i), os.O_CREAT)) for i in range({MANY})]"
    result = await session.run(["python3", "-c", script], timeout_s=120)
    assert result.exit_code == 0, result.output
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        first = await http.get(f"/v1/sessions/{session.id}/files", params={"path": "big", "limit": 1000})
        assert first.status_code == 200, first.text
        assert len(first.json()["entries"]) == 1000
        after = first.json()["next"]
        second = await http.get(
            f"/v1/sessions/{session.id}/files", params={"path": "big", "limit": 1000, "after": after}
        )
        assert second.json()["entries"][0]["name"] > after
    assert (await session.files.walk("big", limit=5000)).truncated
    assert (await session.run("echo well")).output == "well\n"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_folder_five_thousand_deep(session: AsyncSession) -> None:
    script = f"import os\nfor i in range({DEEP}):\n    os.mkdir('d'); os.chdir('d')"
    assert (await session.run(["python3", "-c", script], timeout_s=60)).exit_code == 0
    walked = await session.files.walk(".", limit=1000)
    assert (len(walked.entries), walked.truncated) == (1000, True)
    assert await session.files.remove("d", recursive=True) == DEEP
    assert not await session.files.exists("d")
    assert (await session.run("echo well")).output == "well\n"


def bomb(files: int, size: int) -> bytes:
    """A tar whose heads promise much; the content of the last one is missing."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(files):
            info = tarfile.TarInfo(f"f{number}")
            info.size = 0
            tar.addfile(info)
        info = tarfile.TarInfo("huge")
        info.size = size
        buffer.write(info.tobuf())
    return buffer.getvalue()


@pytest.mark.asyncio(loop_scope="session")
async def test_an_archive_that_promises_a_terabyte(session: AsyncSession) -> None:
    files = session.client.service.files(session.id)
    with pytest.raises(FileProblem, match="unpacks to more than 10737418240 bytes"):
        await files.write_archive("in", _pieces(bomb(3, 1 << 40)))
    with pytest.raises(InvalidRequest, match="the archive is broken: huge"):
        await files.write_archive("in", _pieces(bomb(3, 1 << 40)), max_bytes=1 << 41)
    assert (await session.run("ls -A in")).output == "f0\nf1\nf2\n", (
        "what came whole stays, and half a file is none"
    )


@pytest.mark.asyncio(loop_scope="session")
async def test_an_archive_of_too_many(session: AsyncSession) -> None:
    files = session.client.service.files(session.id)
    with pytest.raises(FileProblem, match="more than 100 entries") as raised:
        await files.write_archive("in", _pieces(bomb(2000, 0)), max_files=100)
    assert raised.value.reason == "too_large"
    assert int((await session.run("ls in | wc -l")).output) == 100


def oversized(megabytes: int) -> AsyncIterator[bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        info = tarfile.TarInfo("huge")
        info.size = megabytes << 20
        yield info.tobuf()
        for _ in range(megabytes):
            yield bytes(1 << 20)

    return pieces()


@pytest.mark.asyncio(loop_scope="session")
async def test_an_archive_larger_than_the_server_takes(session: AsyncSession) -> None:
    files = session.client.service.files(session.id)
    with pytest.raises(TooLarge):
        await files.write_archive("in", oversized(66))  # the rest is soon read, so that the answer is, too
    # One that goes on and on is cut off: the sender is told so much, or finds the connection gone.
    with pytest.raises((TooLarge, LinkInterrupted)):
        await files.write_archive("in", oversized(4096))

    async def nothing_left() -> bool:
        return (await session.run("ls -A in")).output == ""

    await eventually(nothing_left, 20, "half a file is none")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 65_536):
        yield data[begin : begin + 65_536]
