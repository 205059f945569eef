"""Notices when a sandbox's container ends, for whatever reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from sandlot.domain.errors import SandlotError
from sandlot.providers.docker.containers import LIVE_STATES
from sandlot.providers.docker.engine import Engine, EngineEvent
from sandlot.providers.docker.sandbox import DockerSandbox
from sandlot.providers.docker.spec import LABEL_OWNER, LABEL_SANDBOX

# Seconds before asking again when the engine could not list its containers.
COMPARE_RETRY_SECONDS = 1.0


class EndWatcher:
    """Watches the engine's events and marks sandboxes as lost when their containers end.

    ``sandboxes`` are those in use now, by id. The provider adds and removes them.
    """

    def __init__(self, engine: Engine, owner: str, sandboxes: Mapping[str, DockerSandbox]) -> None:
        self._engine = engine
        self._owner = owner
        self._sandboxes = sandboxes

    async def run(self) -> None:
        labels = {LABEL_OWNER: self._owner, LABEL_SANDBOX: None}
        async with contextlib.aclosing(self._engine.events(labels)) as events:
            async for event in events:
                if event is None:
                    # Repeat until it succeeds: the event stream may work although the list failed.
                    while not await self._compare_with_engine():  # noqa: ASYNC110  # nothing to wait for
                        await asyncio.sleep(COMPARE_RETRY_SECONDS)
                elif event.action in ("die", "destroy"):
                    self._on_end(event)

    def _on_end(self, event: EngineEvent) -> None:
        sandbox = self._sandboxes.get(event.sandbox_id)
        if sandbox is not None and sandbox.container_id == event.container_id:
            code = f" with exit code {event.exit_code}" if event.exit_code else ""
            sandbox.mark_lost(f"the sandbox's container ended{code}")

    async def _compare_with_engine(self) -> bool:
        """After a gap in the events, finds the missed ends by listing the containers.

        Returns False if the engine could not list them.
        """
        before = {name for name, sandbox in self._sandboxes.items() if sandbox.started}
        try:
            containers = await self._engine.list({LABEL_OWNER: self._owner, LABEL_SANDBOX: None})
        except SandlotError:
            return False
        live = {
            container["Labels"][LABEL_SANDBOX]
            for container in containers
            if container["State"] in LIVE_STATES
        }
        for sandbox_id in before - live:
            if (sandbox := self._sandboxes.get(sandbox_id)) is not None:
                sandbox.mark_lost("the sandbox's container is gone")
        return True
