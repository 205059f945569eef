"""The engine's API as this project uses it: a deadline on every call, and errors that say what to do.

Nothing of aiodocker leaves this module but plain dictionaries. Where aiodocker has no public call, or one
without types (update, one-shot stats, export, archive upload, volumes, a stream of events that can be
reopened), its request function is used directly.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
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
from sandlot.providers.docker.spec import LABEL_SANDBOX
from sandlot.providers.docker.users import remapped

DEFAULT_HOST = "unix:///var/run/docker.sock"

# Seconds. Each bounds one call; a healthy engine needs a small part of it, a loaded one the rest.
SCHEMES = ("unix://", "tcp://", "http://", "https://")
ASK_SECONDS = 15.0  # inspect, info, version, stats: reads of the engine's own memory
LIST_SECONDS = 30.0  # grows with the number of containers
CREATE_SECONDS = 60.0  # a mount and the copying of the image's workspace into the volume
START_SECONDS = 60.0  # 0.15-0.3 s alone; they queue inside the engine
REMOVE_SECONDS = 60.0  # kill, unmount, and removal of the workspace's files
CHANGE_SECONDS = 30.0  # pause, unpause, update: one write to the cgroup
PULL_SECONDS = 600.0
COPY_SECONDS = 600.0  # reading an image of some gigabytes, or writing a layer
# The engine starts containers one core at a time; more at once only makes each of them slower.
MAX_STARTS = 8
# The event stream is reopened after these pauses; the last one repeats.
RECONNECT_SECONDS = (0.05, 0.2, 0.5, 1.0)
EVENTS_AGAIN_SECONDS = 5.0
# An event carries all labels of its container; more than this in one line is not an event.
MAX_EVENT_BYTES = 4 * 1024 * 1024
UPLOAD_BYTES = 256 * 1024
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

    def __init__(self, host: str | None = None, *, max_starts: int = MAX_STARTS) -> None:
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        if not self.host.startswith(SCHEMES):
            raise InvalidRequest(
                f"{self.host!r:.200} is not the address of a Docker engine: set DOCKER_HOST to one such as "
                f"{DEFAULT_HOST}, or unset it for that one"
            )
        self._docker_client: aiodocker.Docker | None = None
        self._starts = asyncio.Semaphore(max_starts)

    @property
    def _docker(self) -> aiodocker.Docker:
        # Made at the first call: aiohttp wants a running loop.
        if self._docker_client is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
            self._docker_client = aiodocker.Docker(url=self.host, timeout=timeout)
        return self._docker_client

    async def close(self) -> None:
        if self._docker_client is not None:
            await self._docker_client.close()
            self._docker_client = None
            await asyncio.sleep(0)  # a turn of the loop, in which the closed connections are let go

    # --- the engine itself --------------------------------------------------------------------

    async def version(self) -> Json:
        async with _asked("version", ASK_SECONDS):
            return dict(await self._docker.version())

    async def info(self) -> Json:
        async with _asked("info", ASK_SECONDS):
            return dict(await self._docker.system.info())

    async def runtimes(self) -> frozenset[str]:
        return frozenset((await self.info()).get("Runtimes") or {})

    async def remaps_users(self) -> bool:
        """Whether containers have a user namespace, by userns-remap or because the engine is not root."""
        return remapped(await self.info())

    # --- containers ---------------------------------------------------------------------------

    async def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Returns the container's id; ``Conflict`` if the name is taken."""
        return await uncut(self._create(name, body))

    async def _create(self, name: str, body: Mapping[str, Any]) -> str:
        async with self._starts, _asked(f"create container {name}", CREATE_SECONDS):
            container = await self._docker.containers.create(dict(body), name=name)
            return str(container.id)

    async def start(self, name: str) -> None:
        async with self._starts, _asked(f"start container {name}", START_SECONDS):
            await self._docker.containers.container(name).start()

    async def inspect(self, name: str) -> Json:
        async with _asked(f"inspect container {name}", ASK_SECONDS):
            return dict(await self._docker.containers.container(name).show())

    async def list(self, labels: Mapping[str, str | None]) -> Sequence[Json]:
        """Containers with all these labels (None: whatever the value), in every state."""
        async with _asked("list containers", LIST_SECONDS):
            filters = json.dumps({"label": _label_filters(labels)})
            return list(await self._ask("GET", "containers/json", {"all": "1", "filters": filters}))

    async def remove(self, name: str) -> None:
        """With its anonymous volumes, running or not; nothing happens if it is gone."""
        try:
            async with _asked(f"remove container {name}", REMOVE_SECONDS):
                await self._docker.containers.container(name).delete(force=True, v=True)
        except NotFound:
            return
        except Conflict as error:
            if "already in progress" not in error.message:
                raise
            await self._wait_removed(name)

    async def _wait_removed(self, name: str) -> None:
        """Somebody else's removal is under way: it counts as ours once the container is gone."""
        async with _asked(f"remove container {name}", REMOVE_SECONDS):
            while True:
                try:
                    await self._docker.containers.container(name).show()
                except DockerError as error:
                    if error.status == 404:
                        return
                    raise
                await asyncio.sleep(0.1)

    async def pause(self, name: str) -> None:
        async with _asked(f"pause container {name}", CHANGE_SECONDS):
            await self._docker.containers.container(name).pause()

    async def unpause(self, name: str) -> None:
        async with _asked(f"unpause container {name}", CHANGE_SECONDS):
            await self._docker.containers.container(name).unpause()

    async def update(self, name: str, limits: Mapping[str, Any]) -> None:
        async with _asked(f"update container {name}", CHANGE_SECONDS):
            await self._ask("POST", f"containers/{name}/update", {}, dict(limits))

    async def stats(self, name: str) -> Json:
        """One sample, without the second that the engine otherwise waits for a difference."""
        async with _asked(f"stats of container {name}", ASK_SECONDS):
            parameters = {"stream": "false", "one-shot": "true"}
            return dict(await self._ask("GET", f"containers/{name}/stats", parameters))

    # --- images -------------------------------------------------------------------------------

    async def inspect_image(self, reference: str) -> Json:
        async with _asked(f"inspect image {reference}", ASK_SECONDS):
            return dict(await self._docker.images.inspect(reference))

    async def pull(self, reference: str, *, seconds: float = PULL_SECONDS) -> None:
        async with _asked(f"pull image {reference}", seconds):
            async for _ in self._docker.images.pull(reference, stream=True):
                pass

    async def commit(self, name: str, *, repository: str, tag: str, config: Mapping[str, Any]) -> str:
        async with _asked(f"commit container {name}", COPY_SECONDS):
            container = self._docker.containers.container(name)
            made = await container.commit(repository=repository, tag=tag, config=dict(config), pause=False)
            return str(made["Id"])

    @asynccontextmanager
    async def export(self, name: str) -> AsyncIterator[aiohttp.StreamReader]:
        """The container's file system as a tar stream."""
        async with (
            _asked(f"export container {name}", COPY_SECONDS),
            self._request("GET", f"containers/{name}/export") as response,
        ):
            yield response.content

    async def upload(self, name: str, tar: IO[bytes]) -> None:
        """Unpacks a tar at the root of a container. Only ever used on one that was never started."""
        parameters = {"path": "/", "noOverwriteDirNonDir": "false"}
        async with (
            _asked(f"upload to container {name}", COPY_SECONDS),
            self._request("PUT", f"containers/{name}/archive", parameters, _pieces(tar), TAR_TYPE),
        ):
            pass

    # --- volumes ------------------------------------------------------------------------------

    async def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        async def create() -> None:
            async with _asked(f"create volume {name}", ASK_SECONDS):
                await self._ask("POST", "volumes/create", {}, {"Name": name, "Labels": dict(labels)})

        await uncut(create())

    async def inspect_volume(self, name: str) -> Json:
        async with _asked(f"inspect volume {name}", ASK_SECONDS):
            return dict(await self._ask("GET", f"volumes/{name}", {}))

    async def remove_volume(self, name: str) -> None:
        try:
            async with (
                _asked(f"remove volume {name}", REMOVE_SECONDS),
                self._request("DELETE", f"volumes/{name}"),
            ):
                pass
        except NotFound:
            return

    async def list_volumes(self, labels: Mapping[str, str | None]) -> Sequence[Json]:
        async with _asked("list volumes", LIST_SECONDS):
            filters = json.dumps({"label": _label_filters(labels)})
            return list((await self._ask("GET", "volumes", {"filters": filters})).get("Volumes") or ())

    # --- events -------------------------------------------------------------------------------

    async def events(self, labels: Mapping[str, str | None]) -> AsyncGenerator[EngineEvent | None, None]:
        """Ends of containers with these labels, for ever. None: (re)opened, so look at everything."""
        failures = 0
        while True:
            try:
                async with aclosing(self._events_once(labels)) as events:
                    async for event in events:
                        failures = 0
                        yield event
            except (DockerError, aiohttp.ClientError, OSError, ValueError, TimeoutError):
                pass  # the engine restarts, or is gone: the reader learns from the None that follows
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
        # The engine answers before it listens. Without "since", what ends between the list read on that
        # answer and then would be told by nobody; what is told twice does no harm.
        since = f"{time.time() - EVENTS_AGAIN_SECONDS:.3f}"
        parameters = {"filters": json.dumps(filters), "since": since}
        async with self._request("GET", "events", parameters) as response:
            yield None
            pending = b""
            async for piece in response.content.iter_any():
                *lines, pending = (pending + piece).split(b"\n")
                if len(pending) > MAX_EVENT_BYTES:
                    raise ValueError("an event of the engine is too long")
                for line in lines:
                    if line.strip():
                        yield _event(json.loads(line))

    # --- requests that aiodocker has no call for ----------------------------------------------

    async def _ask(
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


def _event(data: Mapping[str, Any]) -> EngineEvent:
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


async def _pieces(source: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(source.read, UPLOAD_BYTES):
        yield piece


async def uncut(work: Coroutine[Any, Any, T]) -> T:
    """Work that makes something: when its caller is cancelled, it is first brought to its end.

    Given up half-way, it could be made after the caller has cleaned up. It has a deadline of its own.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the cancellation is the news
        raise


async def shared(task: asyncio.Task[T]) -> T:
    """Work that several callers wait for: one that gives up does not take it from the others.

    If the work itself is called off (its owner closes), that is an error to its callers, not their own
    cancellation.
    """
    # If nobody waits any more, its failure is nobody's news.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and not (caller and caller.cancelling()):
            raise EngineProblem(f"{task.get_name()}: the provider was closed") from None
        raise


@asynccontextmanager
async def _asked(what: str, seconds: float) -> AsyncIterator[None]:
    """A deadline, and the engine's errors as ours."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            yield
    except SandlotError:
        raise
    except TimeoutError as error:
        if not deadline.expired():
            raise EngineProblem(f"{what}: the engine could not be reached in time", retryable=True) from error
        raise EngineTimeout(f"{what}: no answer from the engine within {seconds:g} s") from error
    except DockerError as error:
        raise translate(what, error.status, error.message) from error
    except (aiohttp.ClientError, OSError) as error:
        why = str(error) or type(error).__name__  # some have no text of their own
        raise EngineProblem(f"{what}: the connection to the engine broke: {why}", retryable=True) from error
