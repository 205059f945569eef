"""Copies the files of a volume out and in, in a container that has only that volume.

The container runs the agent's program, from an image that has nothing else. It never sees the network or the
host's files. Its output is the archive, and one line at the end that says how it went.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import (
    Conflict,
    EngineProblem,
    ImageMissing,
    InvalidRequest,
    NotFound,
    SandlotError,
    StorageFull,
)
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.engine_streams import Attached, attached, import_image
from sandlot.providers.docker.spec import VOLUME_TARGET, WORKSPACE_TARGET
from sandlot.providers.waiting import run_to_completion

REPOSITORY: Final = "sandlot-copier"
LABEL_COPIER: Final = "sandlot.copier"
_PROGRAM: Final = "sandlot-agent"
_READS: Final = ("DAC_READ_SEARCH",)
# Files get their owner, then their mode, which a change of the owner would take bits from.
_WRITES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
_MEMORY_BYTES: Final = 1024 * MIB  # the names of files with several names, and of folders to finish
_PIDS: Final = 64
_MAX_REPORT_BYTES: Final = 64 * 1024
_MAX_BYTES: Final = 2**62

Sink = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Report:
    """``mark``: what tells whether anything was written to the files later."""

    mark: str


class Copier:
    """``max_bytes``: how much a workspace may have to be copied; None for no limit."""

    def __init__(self, engine: Engine, owner: str, program: Path, max_bytes: int | None) -> None:
        self._engine = engine
        self._owner = owner
        self._program = program
        self._max_bytes = max_bytes
        self._image: str | None = None

    async def remove_leftovers(self) -> None:
        """Removes the containers of a process that died."""
        for container in await self._engine.list({LABEL_COPIER: self._owner}):
            await self._engine.remove(container["Id"])

    async def keep(self, volume: str, sink: Sink) -> Report:
        """Writes the workspace's files to the sink, as a tar."""
        return await self._run(volume, ["keep", WORKSPACE_TARGET, self._most], sink=sink)

    async def restore(self, volume: str, source: AsyncIterator[bytes], owner: int) -> Report:
        """Fills an empty volume from such a tar. All files get this owner."""
        arguments = ["restore", WORKSPACE_TARGET, self._most, str(owner)]
        return await self._run(volume, arguments, source=source)

    async def mark(self, volume: str) -> str:
        return (await self._run(volume, ["mark", WORKSPACE_TARGET])).mark

    @property
    def _most(self) -> str:
        return str(_MAX_BYTES if self._max_bytes is None else self._max_bytes)

    async def _run(
        self,
        volume: str,
        arguments: Sequence[str],
        sink: Sink | None = None,
        source: AsyncIterator[bytes] | None = None,
    ) -> Report:
        name = f"{REPOSITORY}-{secrets.token_hex(8)}"
        try:
            await self._create(name, volume, arguments, writes=source is not None)
            async with attached(self._engine, name, takes_input=source is not None) as stream:
                await self._engine.start(name)
                report = await _converse(stream, sink, source)
        finally:
            await run_to_completion(self._engine.remove(name))
        return self._read_report(report)

    async def _create(self, name: str, volume: str, arguments: Sequence[str], *, writes: bool) -> None:
        image = self._image or await self._find_image()
        try:
            await self._engine.create(name, self._body(image, volume, arguments, writes=writes))
        except (ImageMissing, NotFound):  # somebody has removed it
            await self._engine.create(
                name, self._body(await self._find_image(), volume, arguments, writes=writes)
            )

    def _body(self, image: str, volume: str, arguments: Sequence[str], *, writes: bool) -> dict[str, Any]:
        return {
            "Image": image,
            "Entrypoint": [f"/{_PROGRAM}", "copy"],
            "Cmd": list(arguments),
            "User": "0:0",
            "Labels": {LABEL_COPIER: self._owner},
            "AttachStdin": writes,
            "OpenStdin": writes,
            "StdinOnce": writes,
            "AttachStdout": True,
            "AttachStderr": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "CapDrop": ["ALL"],
                "CapAdd": list(_WRITES if writes else _READS),
                "SecurityOpt": ["no-new-privileges"],
                "ReadonlyRootfs": True,
                "NetworkMode": "none",
                "LogConfig": {"Type": "none", "Config": {}},
                "Memory": _MEMORY_BYTES,
                "MemorySwap": _MEMORY_BYTES,
                "PidsLimit": _PIDS,
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": volume,
                        "Target": VOLUME_TARGET,
                        "ReadOnly": not writes,
                        "VolumeOptions": {"NoCopy": True},
                    }
                ],
            },
        }

    async def _find_image(self) -> str:
        """The image with this version's program, which is made if it is missing."""
        program = await asyncio.to_thread(self._program.read_bytes)
        tag = hashlib.sha256(program).hexdigest()[:24]
        try:
            image = await self._engine.inspect_image(f"{REPOSITORY}:{tag}")
        except (ImageMissing, NotFound):
            await import_image(self._engine, _image_files(program), REPOSITORY, tag)
            image = await self._engine.inspect_image(f"{REPOSITORY}:{tag}")
        self._image = str(image["Id"])
        return self._image

    def _read_report(self, text: bytes) -> Report:
        try:
            found = json.loads(text)
            mark, code, message = (str(found.get(name, "")) for name in ("mark", "code", "message"))
        except (ValueError, AttributeError):
            raise EngineProblem(
                "The container that copies files ended before it had finished. Retry.", retryable=True
            ) from None
        if code:
            raise self._error(code, message)
        return Report(mark)

    def _error(self, code: str, message: str) -> SandlotError:
        """``message`` names paths of the sandbox's, so it is cut."""
        what = f"{message[:500]}"
        if code == "no_space":
            return StorageFull("Docker's disk is full. Delete snapshots or sessions, then retry.")
        if code == "too_large":
            return StorageFull(
                f"The workspace is too large for a snapshot: {what}. The server's limit is "
                "SANDLOT_WORKSPACE_QUOTA. Delete files, then retry."
            )
        if code == "bad_request":
            return InvalidRequest(f"Cannot copy the workspace's files: {what}.")
        if code == "conflict":
            return Conflict(f"Cannot copy the workspace's files: {what}. Retry.", retryable=True)
        return EngineProblem(f"Cannot copy the workspace's files: {what}.", retryable=True)


async def _converse(stream: Attached, sink: Sink | None, source: AsyncIterator[bytes] | None) -> bytes:
    """Passes both directions on until the container ends. Returns its report."""
    reading = asyncio.create_task(_read(stream, sink))
    feeding = asyncio.create_task(_feed(stream, source))
    try:
        await asyncio.wait({reading, feeding}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            await feeding  # raises if the archive cannot be read; then the container waits in vain
        return await reading
    finally:
        for task in (reading, feeding):
            task.cancel()
        await asyncio.gather(reading, feeding, return_exceptions=True)


async def _read(stream: Attached, sink: Sink | None) -> bytes:
    report = b""
    while (piece := await stream.read()) is not None:
        if piece.is_error:
            report = (report + piece.data)[:_MAX_REPORT_BYTES]
        elif sink is not None:
            await sink(piece.data)
    return report


async def _feed(stream: Attached, source: AsyncIterator[bytes] | None) -> None:
    if source is None:
        return
    async for piece in source:
        try:
            await stream.write(piece)
        except (OSError, RuntimeError):
            return  # the container has ended, and its report says why


def _image_files(program: bytes) -> io.BytesIO:
    content = io.BytesIO()
    with contextlib.closing(tarfile.open(fileobj=content, mode="w")) as tar:
        for folder in ("sandbox", "dev", "proc", "sys", "etc"):  # what the engine mounts on
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        member = tarfile.TarInfo(_PROGRAM)
        member.size, member.mode = len(program), 0o555
        tar.addfile(member, io.BytesIO(program))
    content.seek(0)
    return content
