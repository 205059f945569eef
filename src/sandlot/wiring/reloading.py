"""Reads the registry of a running server again: on a request of its operator, and on SIGHUP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import structlog

from sandlot.config.registry.built import BuiltEnvironments, built_folder
from sandlot.config.registry.loading import Registry, load_registry
from sandlot.config.settings import ServerSettings
from sandlot.domain.environment import EnvironmentChanges, Reload, ServerReload
from sandlot.domain.errors import SandlotError
from sandlot.worker.host import WorkerHost

log = structlog.get_logger("sandlot.server")

Apply = Callable[[Registry], Awaitable[Reload]]


class Reloader:
    """``apply`` puts a registry without errors into use. One reload runs at a time."""

    def __init__(self, settings: ServerSettings, apply: Apply) -> None:
        self._settings = settings
        self._apply = apply
        self._turn = asyncio.Lock()

    async def __call__(self) -> Reload:
        """Raises ``InvalidRequest`` if the registry has an error. Nothing has changed then."""
        async with self._turn:
            registry = await asyncio.to_thread(
                load_registry,
                self._settings.registry_dir,
                defaults=self._settings.recipe_defaults,
                built=built_folder(self._settings.data_dir.absolute()),
            )
            reload = await self._apply(registry)
        for server in reload.servers:
            if server.problem is not None:
                log.warning("registry not reloaded", server=server.server, error=server.problem)
            else:
                log.info("registry reloaded", server=server.server, **_listed(server.changes))
        return reload

    @contextlib.contextmanager
    def on_hangup(self) -> Iterator[None]:
        """Reload on SIGHUP.

        Not in a terminal: there, the signal means that the terminal is closed, and the server ends with it.
        """
        if _has_terminal():
            yield
            return
        loop, running = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def start() -> None:
            running.add(task := asyncio.create_task(self._reload_and_log(), name="reload the registry"))
            task.add_done_callback(running.discard)

        loop.add_signal_handler(signal.SIGHUP, start)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            for task in running:
                task.cancel()

    async def _reload_and_log(self) -> None:
        try:
            await self()
        except SandlotError as error:
            log.warning("registry not reloaded; the server keeps what it has", error=error.message)
        except Exception:
            log.exception("registry not reloaded; the server keeps what it has")


def worker_reloader(
    settings: ServerSettings, worker: WorkerHost, built: BuiltEnvironments | None = None
) -> Reloader:
    async def apply(registry: Registry) -> Reload:
        if built is not None:
            built.use(registry)
        changes = await worker.reload(registry.recipes, registry.catalogue, registry.policies)
        return Reload((ServerReload(settings.worker_id, changes),))

    return Reloader(settings, apply)


def _listed(changes: EnvironmentChanges) -> dict[str, str]:
    kinds = {"added": changes.added, "changed": changes.changed, "removed": changes.removed}
    return {kind: ", ".join(names) or "none" for kind, names in kinds.items()}


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
