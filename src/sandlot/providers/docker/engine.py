"""The engine's API as this project uses it: every call has a deadline, and errors say what to do.

Only plain dictionaries leave this module, never aiodocker's types. Where aiodocker has no public
call, or one without types (update, one-shot stats, export, archive upload, volumes, an event stream
that can be reopened), this module uses its request function directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import aiodocker
import aiohttp
from aiodocker.exceptions import DockerError

from sandlot.domain.errors import (
    Conflict,
    EngineProblem,
    EngineTimeout,
    InvalidRequest,
    NotFound,
    SandlotError,
)
from sandlot.providers.docker.engine_errors import translate
from sandlot.providers.docker.host.users import uses_user_namespaces
from sandlot.providers.docker.spec import LABEL_SANDBOX
from sandlot.providers.waiting import run_to_completion

DEFAULT_HOST = "unix:///var/run/docker.sock"
SCHEMES = ("unix://", "tcp://", "http://", "https://")

# Deadlines in seconds, one per call. A healthy engine needs a small part, a loaded one the rest.
READ_SECONDS = 15.0  # inspect, info, version, stats: reads from the engine's memory
LIST_SECONDS = 30.0  # grows with the number of containers
CREATE_SECONDS = 60.0  # mounts, and copies the image's workspace into the volume
START_SECONDS = 60.0  # one start takes 0.15-0.3 s; several queue inside the engine
REMOVE_SECONDS = 60.0  # kills, unmounts, and removes the workspace's files
CHANGE_SECONDS = 30.0  # pause, unpause, update: one write to the cgroup
PULL_SECONDS = 600.0
COPY_SECONDS = 600.0  # reads an image of several gigabytes, or writes a layer
# The engine starts containers one core at a time. More at once only makes each start slower.
MAX_STARTS = 8
# Pauses before reopening the event stream. The last one repeats.
RECONNECT_SECONDS = (0.05, 0.2, 0.5, 1.0)
EVENTS_OVERLAP_SECONDS = 5.0
# An event carries all labels of its container. A longer line is not an event.
MAX_EVENT_BYTES = 4 * 1024 * 1024
UPLOAD_CHUNK_BYTES = 256 * 1024
TAR_TYPE = "application/x-tar"

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineEvent:
    action: str
    sandbox_id: str
    container_id: str
    exit_code: str


class Engine:
    """One connection pool to one engine."""

    def __init__(self, host: str | None = None) -> None:
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        if not self.host.startswith(SCHEMES):
            raise InvalidRequest(
                f"{self.host!r:.200} is not the address of a Docker engine. Set DOCKER_HOST to an "
                f"address such as {DEFAULT_HOST}, or unset it to use that one."
            )
        self._docker_client: aiodocker.Docker | None = None
        self._start_slots = asyncio.Semaphore(MAX_STARTS)

    @property
    def _docker(self) -> aiodocker.Docker:
        # Created at the first call, because aiohttp needs a running loop.
        if self._docker_client is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
            self._docker_client = aiodocker.Docker(url=self.host, timeout=timeout)
        return self._docker_client

    async def close(self) -> None:
        if self._docker_client is not None:
            await self._docker_client.close()
            self._docker_client = None
            await asyncio.sleep(0)  # gives the loop one turn to release the closed connections

    # --- the engine itself --------------------------------------------------------------------

    async def version(self) -> Json:
        async with _engine_call("version", READ_SECONDS):
            return dict(await self._docker.version())

    async def info(self) -> Json:
        async with _engine_call("info", READ_SECONDS):
            return dict(await self._docker.system.info())

    async def runtimes(self) -> frozenset[str]:
        return frozenset((await self.info()).get("Runtimes") or {})

    async def remaps_users(self) -> bool:
        """Whether containers get a user namespace (userns-remap, or an engine that is not root)."""
        return uses_user_namespaces(await self.info())

    # --- containers ---------------------------------------------------------------------------

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Creates a container and returns its id. Raises ``Conflict`` if the name is taken."""
        return await run_to_completion(self._create(name, body))

    async def _create(self, name: str, body: Mapping[str, Any]) -> str:
        async with self._start_slots, _engine_call(f"create container {name}", CREATE_SECONDS):
            container = await self._docker.containers.create(dict(body), name=name)
            return str(container.id)

    async def start(self, name: str) -> None:
        async with self._start_slots, _engine_call(f"start container {name}", START_SECONDS):
            await self._docker.containers.container(name).start()

    async def inspect(self, name: str) -> Json:
        async with _engine_call(f"inspect container {name}", READ_SECONDS):
            return dict(await self._docker.containers.container(name).show())

    async def list(self, labels: Mapping[str, str | None], volume: str | None = None) -> Sequence[Json]:
        """Lists containers in every state that have all these labels, and this volume. None matches any."""
        async with _engine_call("list containers", LIST_SECONDS):
            filters = {"label": _label_filters(labels)}
            if volume is not None:  # an empty list would match no container
                filters["volume"] = [volume]
            query = {"all": "1", "filters": json.dumps(filters)}
            return list(await self._request_json("GET", "containers/json", query))

    async def remove(self, name: str) -> None:
        """Removes a container and its anonymous volumes, running or not. Succeeds if it is gone."""
        try:
            async with _engine_call(f"remove container {name}", REMOVE_SECONDS):
                await self._docker.containers.container(name).delete(force=True, v=True)
        except NotFound:
            return
        except Conflict as error:
            if "already in progress" not in error.message:
                raise
            await self._wait_removed(name)

    async def _wait_removed(self, name: str) -> None:
        """Waits for a removal that another caller started, until the container is gone."""
        async with _engine_call(f"remove container {name}", REMOVE_SECONDS):
            while True:
                try:
                    await self._docker.containers.container(name).show()
                except DockerError as error:
                    if error.status == 404:
                        return
                    raise
                await asyncio.sleep(0.1)

    async def pause(self, name: str) -> None:
        async with _engine_call(f"pause container {name}", CHANGE_SECONDS):
            await self._docker.containers.container(name).pause()

    async def unpause(self, name: str) -> None:
        async with _engine_call(f"unpause container {name}", CHANGE_SECONDS):
            await self._docker.containers.container(name).unpause()

    async def update(self, name: str, limits: Mapping[str, Any]) -> None:
        async with _engine_call(f"update container {name}", CHANGE_SECONDS):
            await self._request_json("POST", f"containers/{name}/update", {}, dict(limits))

    async def stats(self, name: str) -> Json:
        """Returns one sample. Skips the second that the engine otherwise waits to compare two."""
        async with _engine_call(f"stats of container {name}", READ_SECONDS):
            parameters = {"stream": "false", "one-shot": "true"}
            return dict(await self._request_json("GET", f"containers/{name}/stats", parameters))

    # --- images -------------------------------------------------------------------------------

    async def inspect_image(self, reference: str) -> Json:
        async with _engine_call(f"inspect image {reference}", READ_SECONDS):
            return dict(await self._docker.images.inspect(reference))

    async def pull(self, reference: str, *, seconds: float = PULL_SECONDS) -> None:
        async with _engine_call(f"pull image {reference}", seconds):
            async for _ in self._docker.images.pull(reference, stream=True):
                pass

    async def build(
        self, context: IO[bytes], parameters: Mapping[str, str], *, seconds: float
    ) -> AsyncGenerator[Json, None]:
        """Builds an image from a tar, and yields what the engine says. A closed generator ends the build."""
        async with (
            _engine_call("build image", seconds),
            self._request("POST", "build", parameters, _read_chunks(context), TAR_TYPE) as response,
        ):
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                if len(pending) > MAX_EVENT_BYTES:
                    raise EngineProblem("build image: Docker sent a message that is too long.")
                for line in lines:
                    if line.strip():
                        yield dict(json.loads(line))

    async def remove_image(self, reference: str) -> None:
        async with _engine_call(f"remove image {reference}", REMOVE_SECONDS):
            await self._docker.images.delete(reference)

    async def commit(self, name: str, *, repository: str, tag: str, config: Mapping[str, Any]) -> str:
        async with _engine_call(f"commit container {name}", COPY_SECONDS):
            container = self._docker.containers.container(name)
            image = await container.commit(repository=repository, tag=tag, config=dict(config), pause=False)
            return str(image["Id"])

    @asynccontextmanager
    async def export(self, name: str, folder: str | None = None) -> AsyncIterator[aiohttp.StreamReader]:
        """Opens the container's file system, or one folder of it, as a tar stream."""
        path, parameters = ("export", None) if folder is None else ("archive", {"path": folder})
        async with (
            _engine_call(f"export container {name}", COPY_SECONDS),
            self._request("GET", f"containers/{name}/{path}", parameters) as response,
        ):
            yield response.content

    async def upload(self, name: str, tar: IO[bytes]) -> None:
        """Unpacks a tar at the root of a container. Use it only on one that was never started."""
        parameters = {"path": "/", "noOverwriteDirNonDir": "false"}
        async with (
            _engine_call(f"upload to container {name}", COPY_SECONDS),
            self._request("PUT", f"containers/{name}/archive", parameters, _read_chunks(tar), TAR_TYPE),
        ):
            pass

    # --- volumes ------------------------------------------------------------------------------

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        async def create() -> None:
            async with _engine_call(f"create volume {name}", READ_SECONDS):
                await self._request_json("POST", "volumes/create", {}, {"Name": name, "Labels": dict(labels)})

        await run_to_completion(create())

    async def inspect_volume(self, name: str) -> Json:
        async with _engine_call(f"inspect volume {name}", READ_SECONDS):
            return dict(await self._request_json("GET", f"volumes/{name}", {}))

    async def remove_volume(self, name: str) -> None:
        try:
            async with (
                _engine_call(f"remove volume {name}", REMOVE_SECONDS),
                self._request("DELETE", f"volumes/{name}"),
            ):
                pass
        except NotFound:
            return

    async def list_volumes(self, labels: Mapping[str, str | None]) -> Sequence[Json]:
        async with _engine_call("list volumes", LIST_SECONDS):
            filters = json.dumps({"label": _label_filters(labels)})
            return list(
                (await self._request_json("GET", "volumes", {"filters": filters})).get("Volumes") or ()
            )

    # --- events -------------------------------------------------------------------------------

    async def events(self, labels: Mapping[str, str | None]) -> AsyncGenerator[EngineEvent | None, None]:
        """Yields the ends of containers with these labels, for ever.

        Yields None each time the stream is opened or reopened: events may be missing, so check all.
        """
        failures = 0
        while True:
            try:
                async with aclosing(self._events_once(labels)) as events:
                    async for event in events:
                        failures = 0
                        yield event
            except (DockerError, aiohttp.ClientError, OSError, ValueError, TimeoutError):
                pass  # the engine restarts or is gone; the next None tells the reader to check all
            await asyncio.sleep(RECONNECT_SECONDS[min(failures, len(RECONNECT_SECONDS) - 1)])
            failures += 1

    async def _events_once(
        self, labels: Mapping[str, str | None]
    ) -> AsyncGenerator[EngineEvent | None, None]:
        filters = {
            "type": ["container"],
            "event": ["die", "oom", "destroy"],
            "label": _label_filters(labels),
        }
        # The engine answers this request before it subscribes to events. The reader lists all
        # containers on that answer. Without "since", a container that ends between the list and the
        # subscription would be missed. An event that arrives twice does no harm.
        since = f"{time.time() - EVENTS_OVERLAP_SECONDS:.3f}"
        parameters = {"filters": json.dumps(filters), "since": since}
        async with self._request("GET", "events", parameters) as response:
            yield None
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                if len(pending) > MAX_EVENT_BYTES:
                    raise ValueError("Docker sent an event that is too long.")
                for line in lines:
                    if line.strip():
                        yield _parse_event(json.loads(line))

    # --- requests that aiodocker has no call for ----------------------------------------------

    async def _request_json(
        self, method: str, path: str, parameters: Mapping[str, str], body: Json | None = None
    ) -> Any:
        query = self._docker._query_json  # noqa: SLF001
        return await query(path, method, params=dict(parameters), data=body)

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        data: AsyncIterator[bytes] | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._docker._query(  # noqa: SLF001
            path, method, params=dict(parameters or {}), data=data, headers={"Content-Type": content_type}
        ) as response:
            try:
                yield response
            finally:
                response.close()


def _parse_event(data: Mapping[str, Any]) -> EngineEvent:
    actor = data.get("Actor") or {}
    attributes = actor.get("Attributes") or {}
    return EngineEvent(
        action=str(data.get("Action", "")),
        sandbox_id=str(attributes.get(LABEL_SANDBOX, "")),
        container_id=str(actor.get("ID", "")),
        exit_code=str(attributes.get("exitCode", "")),
    )


def _label_filters(labels: Mapping[str, str | None]) -> list[str]:
    return [name if value is None else f"{name}={value}" for name, value in labels.items()]


async def _read_chunks(source: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(source.read, UPLOAD_CHUNK_BYTES):
        yield chunk


@asynccontextmanager
async def _engine_call(call: str, seconds: float) -> AsyncIterator[None]:
    """Sets a deadline for a call to the engine, and translates its errors into domain errors."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            yield
    except SandlotError:
        raise
    except TimeoutError as error:
        if not deadline.expired():
            raise EngineProblem(f"{call}: cannot reach Docker in time.", retryable=True) from error
        raise EngineTimeout(f"{call}: Docker did not answer within {seconds:g} s.") from error
    except DockerError as error:
        raise translate(call, error.status, error.message) from error
    except (aiohttp.ClientError, OSError) as error:
        reason = str(error) or type(error).__name__  # some errors have no text
        raise EngineProblem(f"{call}: lost the connection to Docker: {reason}", retryable=True) from error
