"""The engine's calls that carry streams of bytes: what a container reads and writes, an image's files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

from aiodocker.stream import Stream

from sandlot.domain.errors import EngineProblem
from sandlot.providers.docker.engine import COPY_SECONDS, TAR_TYPE, Engine, _engine_call, _read_chunks

_STDERR = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """What a container wrote. ``is_error``: to its standard error."""

    data: bytes
    is_error: bool


class Attached:
    """A container's standard input and output. Neither holds more than some pieces."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def read(self) -> Piece | None:
        """None when the container has ended."""
        message = await self._stream.read_out()
        return None if message is None else Piece(message.data, message.stream == _STDERR)

    async def write(self, data: bytes) -> None:
        await self._stream.write_in(data)


@asynccontextmanager
async def attached(engine: Engine, name: str, *, takes_input: bool) -> AsyncIterator[Attached]:
    """Attaches to a container that is not started yet, so that nothing it writes is missed."""
    container = engine._docker.containers.container(name)  # noqa: SLF001
    async with (
        _engine_call(f"attach to container {name}", COPY_SECONDS),
        container.attach(stdin=takes_input, stdout=True, stderr=True) as stream,
    ):
        yield Attached(stream)


async def import_image(engine: Engine, tar: IO[bytes], repository: str, tag: str) -> None:
    """Makes an image with one layer, these files."""
    parameters = {"fromSrc": "-", "repo": repository, "tag": tag}
    async with (
        _engine_call(f"import image {repository}", COPY_SECONDS),
        engine._request(  # noqa: SLF001
            "POST", "images/create", parameters, _read_chunks(tar), TAR_TYPE
        ) as response,
    ):
        async for line in response.content:
            if line.strip() and (problem := json.loads(line).get("error")):
                raise EngineProblem(f"import image {repository}: {str(problem)[:300]}", retryable=True)
