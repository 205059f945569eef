"""Prepares images for sandboxes: adds one thin layer to any image, without ever running the image.

The preparer creates a container from the image and never starts it. It reads the container's file
system as a stream, uploads the layer, and commits the result. The tag comes from the image's id and
the preparer's version. So each image is prepared once per machine, a new version of either is
prepared again, and two processes that race only make the same image twice.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import secrets
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import EngineProblem, ImageMissing, InvalidRequest, NotFound
from sandlot.providers.docker.engine import PULL_SECONDS, Engine
from sandlot.providers.docker.images.layer import GROUP, PASSWD, READ_BYTES, Survey, survey, write_layer
from sandlot.providers.docker.images.pinned import find_image
from sandlot.providers.docker.spec import (
    LABEL_CALLER,
    LABEL_ENVIRONMENT,
    LABEL_GROUP,
    LABEL_OWNER,
    LABEL_PASSWD,
    LABEL_SANDBOX,
    LABEL_TIER,
    VOLUME_TARGET,
)
from sandlot.providers.waiting import run_to_completion, wait_shared

# Raise it when the layer's content changes: every image is then prepared again.
PREPARER_VERSION = "4"
REPOSITORY = "sandlot-prepared"
LABEL_PREPARED_FROM = "sandlot.prepared-from"
LABEL_PREPARER = "sandlot.preparer"
LABEL_USER = "sandlot.user"
LABEL_HOME = "sandlot.home"
LABEL_BASH = "sandlot.bash"
# Followed by the name of a variable that holds in sandboxes, and not in builds that start from the image.
# A PATH is put in front of the image's own.
LABEL_VARIABLE = "sandlot.variable."

# Containers inherit their image's labels, so with these labels any container could pass for a
# sandbox.
_SANDBOX_LABELS = (LABEL_OWNER, LABEL_SANDBOX, LABEL_ENVIRONMENT, LABEL_TIER)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the engine's
_NEVER_STARTED = ["/never/started"]  # the engine refuses a container that has no command
_SCRATCH_PREFIX = "sandlot-preparing-"
# A preparation ends long before this. An older container was left by a process that died.
_SCRATCH_SECONDS = 3600.0
MAX_LAYER_BYTES = 2048 * MIB
_SPOOL_BYTES = 8 * MIB

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image that is ready for sandboxes.

    ``source_id``: the image that it was made from.
    ``user``, ``home``: the entry for uid 1000 in /etc/passwd, from the image or the added layer.
    ``passwd``, ``group``: the files' contents, or None if they are not plain small files.
    """

    id: str
    source_id: str
    user: str
    home: str
    has_bash: bool
    passwd: bytes | None
    group: bytes | None


class ImagePreparer:
    def __init__(self, engine: Engine, *, pull: bool = False, pull_seconds: float = PULL_SECONDS) -> None:
        self._engine = engine
        self._pull = pull
        self._pull_seconds = pull_seconds
        self._under_way: dict[str, asyncio.Task[PreparedImage]] = {}

    async def prepare(self, reference: str) -> PreparedImage:
        """Returns the prepared image, and makes it if it is missing.

        Concurrent callers share the work.
        """
        task = self._under_way.get(reference)
        if task is None:
            task = asyncio.create_task(self._prepare(reference), name=f"prepare {reference}")
            self._under_way[reference] = task
            task.add_done_callback(lambda _: self._under_way.pop(reference, None))
        return await wait_shared(task)

    async def find(self, reference: str) -> dict[str, Any]:
        """The engine's description of an image. Raises ``ImageMissing`` if it is not on this machine."""
        try:
            return await find_image(self._engine, reference)
        except (ImageMissing, NotFound) as error:
            if "image_id" in error.details:  # the error already names the image found here
                raise
            advice = "The first sandbox fetches it." if self._pull else _how_to_get(reference)
            raise ImageMissing(f"Image {reference} is not on this machine. {advice}") from error

    async def forget_rebuilt(self, images: dict[str, PreparedImage]) -> list[str]:
        """Removes the images whose names now mean another one, and returns these names.

        An image that is gone stays: its prepared copy still works.
        """
        rebuilt = []
        for reference, prepared in list(images.items()):
            with suppress(ImageMissing, NotFound):
                if (await find_image(self._engine, reference))["Id"] != prepared.source_id:
                    rebuilt.append(reference)
        for reference in rebuilt:
            images.pop(reference, None)
        return rebuilt

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def remove_leftovers(self) -> None:
        """Removes containers of preparations whose process died.

        Finds them by name and age, because a label would become part of the image.
        """
        for container in await self._engine.list({}):
            named = any(name.startswith("/" + _SCRATCH_PREFIX) for name in container.get("Names") or ())
            if (
                named
                and container["State"] == "created"
                and container["Created"] < time.time() - _SCRATCH_SECONDS
            ):
                await self._engine.remove(container["Id"])

    async def _prepare(self, reference: str) -> PreparedImage:
        source = await self._find_or_pull(reference)
        tag = prepared_tag(source["Id"])
        try:
            return _parse_prepared(await self._engine.inspect_image(f"{REPOSITORY}:{tag}"), source["Id"])
        except (ImageMissing, NotFound):
            pass
        _check_usable(reference, source.get("Config") or {})
        await self._build(source, tag)
        return _parse_prepared(await self._engine.inspect_image(f"{REPOSITORY}:{tag}"), source["Id"])

    async def _find_or_pull(self, reference: str) -> dict[str, Any]:
        try:
            return await self.find(reference)
        except ImageMissing:
            if not self._pull:
                raise
        try:
            await self._engine.pull(reference, seconds=self._pull_seconds)
        except EngineProblem as error:
            raise ImageMissing(
                f"Image {reference} is not on this machine and could not be pulled: "
                f"{error.message.removesuffix('.')}. {_how_to_get(reference)}"
            ) from error
        return await find_image(self._engine, reference)

    async def read_sandbox_folder(self, image_id: str) -> AsyncIterator[bytes]:
        """Yields a prepared image's /sandbox as a tar: the files that new workspaces begin with."""
        scratch = f"{_SCRATCH_PREFIX}{prepared_tag(image_id)}-{secrets.token_hex(4)}"
        try:
            await self._engine.create(scratch, {**_scratch_body(image_id), "Cmd": _NEVER_STARTED})
            async with self._engine.export(scratch, VOLUME_TARGET) as content:
                async for piece in content.iter_chunked(READ_BYTES):
                    yield piece
        finally:
            await run_to_completion(self._engine.remove(scratch))

    async def _build(self, source: Mapping[str, Any], tag: str) -> None:
        config = dict(source.get("Config") or {})
        body = _scratch_body(source["Id"])
        if not config.get("Cmd") and not config.get("Entrypoint"):
            body["Cmd"] = _NEVER_STARTED
        scratch = f"{_SCRATCH_PREFIX}{tag}-{secrets.token_hex(4)}"
        try:
            await self._engine.create(scratch, body)
            async with self._engine.export(scratch) as content:
                found = await _run_in_thread(content, survey)
            with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as layer:
                async with self._engine.export(scratch) as content:
                    await _run_in_thread(
                        content, lambda stream: write_layer(stream, found, layer, max_bytes=MAX_LAYER_BYTES)
                    )
                layer.seek(0)
                await self._engine.upload(scratch, layer)
            config["Env"] = _sandbox_variables(config)
            config["Labels"] = {**(config.get("Labels") or {}), **_labels(source["Id"], found)}
            await run_to_completion(
                self._engine.commit(scratch, repository=REPOSITORY, tag=tag, config=config)
            )
        except tarfile.TarError as error:
            raise EngineProblem(f"Cannot read Docker's export of {source['Id']}: {error}") from error
        finally:
            await run_to_completion(self._engine.remove(scratch))


def _scratch_body(image_id: str) -> dict[str, Any]:
    return {
        "Image": image_id,
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none", "Config": {}}},
    }


def prepared_tag(image_id: str) -> str:
    return hashlib.sha256(f"{image_id} {PREPARER_VERSION}".encode()).hexdigest()[:24]


def _how_to_get(reference: str) -> str:
    if reference.startswith("sandlot/") and "@" not in reference:  # one that Sandlot ships
        return f"Run `sandlot images build {reference.removeprefix('sandlot/').partition(':')[0]}`."
    return f"Build it, or run `docker pull {reference}`."


def _sandbox_variables(config: Mapping[str, Any]) -> list[str]:
    """The variables that the image sets in sandboxes: its ENV, and what its labels add.

    The ENV wins, because a build that starts from an image inherits the labels and can only set ENV.
    """
    variables = dict(setting.partition("=")[::2] for setting in config.get("Env") or ())
    for label, value in (config.get("Labels") or {}).items():
        if label == LABEL_VARIABLE + "PATH":
            variables["PATH"] = f"{value}:{variables.get('PATH') or _DEFAULT_PATH}"
        elif label.startswith(LABEL_VARIABLE):
            variables.setdefault(label.removeprefix(LABEL_VARIABLE), value)
    return [f"{name}={value}" for name, value in variables.items()]


def _labels(source_id: str, found: Survey) -> dict[str, str]:
    return {
        LABEL_PREPARED_FROM: source_id,
        LABEL_PREPARER: PREPARER_VERSION,
        LABEL_USER: found.user,
        LABEL_HOME: found.home,
        LABEL_BASH: "1" if found.has_bash else "0",
        LABEL_PASSWD: base64.b64encode(found.accounts.get(PASSWD, b"")).decode(),
        LABEL_GROUP: base64.b64encode(found.accounts.get(GROUP, b"")).decode(),
    }


def _parse_prepared(image: Mapping[str, Any], source_id: str) -> PreparedImage:
    labels = (image.get("Config") or {}).get("Labels") or {}
    if labels.get(LABEL_PREPARED_FROM) != source_id or labels.get(LABEL_PREPARER) != PREPARER_VERSION:
        raise EngineProblem(
            f"{REPOSITORY}:{prepared_tag(source_id)} does not match its tag. Remove that image."
        )
    return PreparedImage(
        id=image["Id"],
        source_id=source_id,
        user=labels[LABEL_USER],
        home=labels[LABEL_HOME],
        has_bash=labels[LABEL_BASH] == "1",
        passwd=base64.b64decode(labels[LABEL_PASSWD]) or None,
        group=base64.b64decode(labels[LABEL_GROUP]) or None,
    )


def _check_usable(reference: str, config: Mapping[str, Any]) -> None:
    if volumes := config.get("Volumes"):
        # No limit would cover these writable volumes, and a commit cannot remove them.
        raise InvalidRequest(
            f"Image {reference} declares VOLUME {', '.join(sorted(volumes))}. Build it without a volume."
        )
    for label in config.get("Labels") or {}:
        if label.startswith(LABEL_VARIABLE) and not _VARIABLE_NAME.fullmatch(
            label.removeprefix(LABEL_VARIABLE)
        ):
            raise InvalidRequest(
                f"Image {reference} has the label {label}, which does not end in the name of a variable. "
                f"Correct it, as in {LABEL_VARIABLE}PIP_INDEX_URL."
            )
        if label in _SANDBOX_LABELS or label.startswith(LABEL_CALLER):
            raise InvalidRequest(
                f"Image {reference} has the label {label}, which is reserved for sandboxes. Remove the label."
            )


class _BlockingReader:
    """Makes an asynchronous stream readable as a file in a thread.

    Reads only what the thread asks for.
    """

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Task[Any] | None = None
        self._closed = False

    def read(self, size: int) -> bytes:
        return asyncio.run_coroutine_threadsafe(self._read(size), self._loop).result()

    async def _read(self, size: int) -> bytes:
        # Check on the loop, which also sets it: after a check in the thread it could still change.
        if self._closed:
            raise OSError("the stream is closed")
        self._reading = asyncio.current_task()
        chunks: list[bytes] = []
        while size > 0 and (chunk := await self._content.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()


async def _run_in_thread(content: aiohttp.StreamReader, work: Callable[[Any], T]) -> T:
    """Runs blocking work on a stream in a thread.

    If cancelled, makes the thread end before it returns.
    """
    reader = _BlockingReader(content)
    task = asyncio.ensure_future(asyncio.to_thread(work, reader))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        reader.close()
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the caller gets the cancellation instead
        raise
