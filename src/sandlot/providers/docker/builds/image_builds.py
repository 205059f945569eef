"""Builds an image with the engine's own builder, and passes on what it writes.

It is the builder behind the engine's API, not BuildKit: it needs no program beside the engine, and takes
limits for each step.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from sandlot.domain.errors import EngineTimeout, ImageMissing, NotFound, SandlotError
from sandlot.domain.templates.build import BUILD_CPUS, BUILD_MEMORY_BYTES, BuildFailed, Step
from sandlot.providers.docker.builds.context import write_context
from sandlot.providers.docker.builds.dockerfile import LABEL_TEMPLATE, dockerfile
from sandlot.providers.docker.engine import Engine

REPOSITORY: Final = "sandlot-template"
# How long one build may take, with its downloads.
BUILD_SECONDS: Final = 1800.0
_STEP: Final = re.compile(r"Step (\d{1,5})/\d{1,5} : ")
_PERIOD_US: Final = 100_000


class ImageBuilds:
    """``folder``: for contexts while they are written. ``max_bytes``: of one build's files, unpacked."""

    def __init__(
        self, engine: Engine, folder: Path, max_bytes: int, *, seconds: float = BUILD_SECONDS
    ) -> None:
        self._engine = engine
        self._folder = folder
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def build(
        self,
        name: str,
        image: str,
        steps: tuple[Step, ...],
        archives: Mapping[str, Path],
        write: Callable[[str], None],
        *,
        fresh: bool = False,
    ) -> str:
        """Build the image, and return what it is called. Raises ``BuildFailed`` or a ``SandlotError``."""
        file = dockerfile(image, steps)
        reference = f"{REPOSITORY}:{name}"
        instruction = 0

        def follow(message: Mapping[str, Any]) -> None:
            nonlocal instruction
            text = str(message.get("stream") or message.get("status") or "")
            if (began := _STEP.match(text)) is not None:
                instruction = int(began[1])
            for line in text.splitlines():
                if line.strip():
                    write(line)
            if "error" in message:
                # What comes before the first step of the client is about the image.
                step = file.step_of.get(instruction, 0)
                problem = str(message["error"])[:2000]
                raise BuildFailed(problem if instruction > 1 else _no_image(image, problem), step)

        with tempfile.TemporaryFile(dir=self._folder) as context:
            await asyncio.to_thread(write_context, context, file.text, steps, archives, self._max_bytes)
            context.seek(0)
            try:
                parameters = _parameters(reference, name, fresh=fresh)
                async with aclosing(
                    self._engine.build(context, parameters, seconds=self._seconds)
                ) as messages:
                    async for message in messages:
                        follow(message)
            except EngineTimeout as error:
                raise BuildFailed(
                    f"The build took longer than {self._seconds:g} s and was ended.",
                    file.step_of.get(instruction, 0),
                ) from error
            except SandlotError as error:
                if instruction > 1:
                    raise
                raise BuildFailed(_no_image(image, error.message), 0) from error
        return reference

    async def remove(self, name: str) -> None:
        """Remove the image's name. Sandboxes that run have a copy of their own."""
        try:
            await self._engine.remove_image(f"{REPOSITORY}:{name}")
        except (ImageMissing, NotFound):
            return

    async def close(self) -> None:
        await self._engine.close()


def _no_image(image: str, why: str) -> str:
    return f"The image {image} is not on the server's machine and could not be pulled: {why}"


def _parameters(reference: str, name: str, *, fresh: bool) -> dict[str, str]:
    return {
        "t": reference,
        "labels": f'{{"{LABEL_TEMPLATE}":"{name}"}}',
        "nocache": "true" if fresh else "false",
        "rm": "true",
        "forcerm": "true",
        "memory": str(BUILD_MEMORY_BYTES),
        "memswap": str(BUILD_MEMORY_BYTES),
        "cpuperiod": str(_PERIOD_US),
        "cpuquota": str(int(BUILD_CPUS * _PERIOD_US)),
        "version": "1",
    }
