"""The volumes of a worker: making, listing and deleting them, and giving them to sessions.

Which session writes to a volume is nowhere on record twice: it is the active session that has it, or is about
to. The store knows which sandbox has the files. It takes them back once the sandbox is gone, so for a moment
after a session's end the next writer waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, SandlotError, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import new_volume_id
from sandlot.domain.session import Session, SessionState
from sandlot.domain.volumes.listing import check_listing, volume_page
from sandlot.domain.volumes.volume import (
    CreateVolume,
    SessionVolume,
    Volume,
    VolumeMode,
    VolumePage,
    VolumeUse,
    check_room,
    no_volume_error,
    still_used,
    written_by,
)
from sandlot.providers.workspaces import WorkspaceStore
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.registrar import Registrar
from sandlot.worker.sessions.table import SessionTable
from sandlot.worker.volumes.options import VolumeOptions
from sandlot.worker.volumes.records import RecordState, VolumeRecords

log = structlog.get_logger("sandlot.volumes")

# Seconds that a writer waits until the sandbox of the last one is gone.
FREE_WITHIN_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.05


class Volumes:
    def __init__(
        self,
        store: WorkspaceStore,
        folder: Path,
        options: VolumeOptions,
        table: SessionTable,
        registrar: Registrar,
        worker_id: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._records = VolumeRecords(folder)
        self._options = options
        self._table = table
        self._registrar = registrar
        self._tag = worker_tag(worker_id)
        self._clock = clock
        self._room = asyncio.Lock()  # one volume at a time is counted and recorded
        self._claims: dict[str, tuple[SessionVolume, ...]] = {}  # of sessions that get a sandbox now
        self._making: set[str] = set()
        self._deleting: set[str] = set()

    async def open(self) -> None:
        """What a dead worker left half done is for ``sweep``: a fleet must hear of it, too."""
        await self._records.open()

    async def close(self) -> None:
        await self._records.close()

    # --- making, listing, deleting ------------------------------------------------------------

    async def create(self, tenant: str, request: CreateVolume) -> Volume:
        self._check_kept()
        quota = request.quota_bytes or self._options.quota_bytes
        volume = Volume(new_volume_id(self._tag), request.name, tenant, quota, self._clock())
        await self._free_name(tenant, request.name)
        async with self._room:
            count, size = await self._records.use_of(tenant)
            check_room(count, size, quota, self._options.max_count, self._options.max_tenant_bytes)
            self._making.add(volume.id)  # before it is on record, or the sweep would take it for a failed one
            await self._records.add(volume)
        reached(Step.VOLUME_RECORDED)
        try:
            await self._store.create_volume(volume.id, quota)
            reached(Step.VOLUME_STORED)
            await self._registrar.name_volume(volume)
            reached(Step.VOLUME_NAMED)
            await self._records.set_state(volume.id, RecordState.KEPT)
        except BaseException:
            await asyncio.shield(self._finish_deletion(volume))
            raise
        finally:
            self._making.discard(volume.id)
        return replace(volume, used_bytes=0)

    async def get(self, tenant: str, name: str) -> Volume:
        return await self._described(await self._find(tenant, name), self._writers())

    async def page(self, tenant: str, after: str | None, limit: int) -> VolumePage:
        begin = check_listing(after, limit)
        page = volume_page(await self._records.page(tenant, begin, limit + 1), limit)
        writers = self._writers()
        return replace(
            page, volumes=tuple([await self._described(volume, writers) for volume in page.volumes])
        )

    async def delete(self, tenant: str, name: str) -> None:
        volume = await self._records.find(tenant, name)
        if volume is None or volume.id in self._deleting:
            return
        # Nothing is awaited between the check and the mark, so no session can get it in between.
        if users := self._users(volume.id):
            raise still_used(volume, users)
        self._deleting.add(volume.id)
        try:
            await self._registrar.forget_volume(volume)
            await self._records.set_state(volume.id, RecordState.DELETING)
            reached(Step.VOLUME_FORGOTTEN)
            # A sandbox that is being removed may still have it. Its removal does not depend on us.
            await self._once_free(lambda: self._store.delete(volume.id), volume.name)
            await self._records.remove(volume.id)
        finally:
            self._deleting.discard(volume.id)

    async def sweep(self) -> None:
        """Delete what an earlier delete or create could not."""
        if not self._store.abilities.volumes:
            return  # another store has the files
        for volume in await self._records.unfinished():
            if await self._is_left_behind(volume):
                await self._finish_deletion(volume)

    async def all(self) -> Sequence[Volume]:
        """Those of all tenants, for the fleet's record of names."""
        return await self._records.all()

    # --- for sessions -------------------------------------------------------------------------

    async def resolve(self, tenant: str, uses: Sequence[VolumeUse]) -> tuple[SessionVolume, ...]:
        """The volumes that a new session asks for. ``NotFound`` if one does not exist."""
        if not uses:
            return ()
        self._check_kept()
        found = [(await self._find(tenant, use.volume), use.mode) for use in uses]
        if len({volume.id for volume, _ in found}) < len(found):
            raise InvalidRequest("A session can have each volume only once.")
        return tuple(SessionVolume(volume.id, volume.name, mode) for volume, mode in found)

    @contextlib.contextmanager
    def claimed(self, session: Session) -> Iterator[None]:
        """A context in which a session gets a sandbox with its volumes, which then count as the session's.

        Raises ``Conflict`` if another session writes to one that this session wants to write to.
        """
        if not session.volumes:
            yield
            return
        writers = self._writers()
        for volume in session.volumes:
            if volume.id in self._deleting:
                raise no_volume_error(volume.name)
            writer = writers.get(volume.id, session.id)
            if volume.mode is VolumeMode.RW and writer != session.id:
                raise written_by(volume, writer)
        self._claims[session.id] = session.volumes
        try:
            yield
        finally:
            del self._claims[session.id]

    async def give(self, sandbox_id: str, session: Session) -> None:
        """Show a new sandbox the volumes of its session."""
        try:
            await self.attach(sandbox_id, session)
        except NotFound as error:  # their records are here, so this is no mistake of the caller's
            raise Unavailable(
                f"A volume's files are gone from the server's storage: {error.message} Ask the operator.",
                retryable=False,
                details={"reason": "volume_gone"},
            ) from error

    async def attach(self, sandbox_id: str, session: Session) -> None:
        """Show a sandbox the volumes of its session. Those that it has already stay as they are."""
        for volume in session.volumes:
            await self._attach(sandbox_id, volume)
            reached(Step.VOLUME_ATTACHED)

    async def _attach(self, sandbox_id: str, volume: SessionVolume) -> None:
        writable = volume.mode is VolumeMode.RW
        await self._once_free(
            lambda: self._store.attach_volume(sandbox_id, volume.id, volume.name, writable=writable),
            volume.name,
        )

    async def _once_free(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Do what needs a volume that no sandbox writes to. The last writer's may still be on its way out."""
        deadline = time.monotonic() + FREE_WITHIN_S
        while True:
            try:
                await work()
                return
            except Conflict as error:
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"Volume {name} is still with the sandbox of a session that has ended. It is being "
                        "removed: retry.",
                        retry_after_s=1.0,
                        details={"reason": "volume_busy"},
                    ) from error
            await asyncio.sleep(LOOK_AGAIN_S)

    # --- who has what -------------------------------------------------------------------------

    def _writers(self) -> Mapping[str, str]:
        """The sessions that write, by volume."""
        of_sessions = {
            live_session.session.id: live_session.session.volumes
            for live_session in self._table
            if live_session.session.state is SessionState.ACTIVE and live_session.session.volumes
        }
        return {
            volume.id: session_id
            for session_id, volumes in (of_sessions | self._claims).items()
            for volume in volumes
            if volume.mode is VolumeMode.RW
        }

    def _users(self, volume_id: str) -> list[str]:
        """All sessions that have not ended and have it, even if they have no sandbox now."""
        of_sessions = {
            live_session.session.id: live_session.session.volumes for live_session in self._table
        } | self._claims
        return [
            session_id
            for session_id, volumes in of_sessions.items()
            if any(volume.id == volume_id for volume in volumes)
        ]

    async def _described(self, volume: Volume, writers: Mapping[str, str]) -> Volume:
        used = await self._store.used_bytes(volume.id)
        return replace(volume, used_bytes=used, writer=writers.get(volume.id))

    async def _find(self, tenant: str, name: str) -> Volume:
        self._check_kept()
        found = await self._records.find(tenant, name)
        if found is None:
            raise no_volume_error(name)
        return found

    async def _free_name(self, tenant: str, name: str) -> None:
        """Delete what an earlier delete or create of this name left half done, which nobody can see."""
        left = await self._records.unfinished_named(tenant, name)
        if left is None:
            return
        if await self._is_left_behind(left):
            gone = await self._finish_deletion(left)
        else:
            gone = left.id not in self._deleting
        if not gone:
            raise Unavailable(
                f"An earlier volume {name} is still being deleted. Retry.",
                retry_after_s=1.0,
                details={"reason": "volume_busy"},
            )

    async def _is_left_behind(self, volume: Volume) -> bool:
        """Whether nobody is making or deleting a volume that was unfinished when its record was read.

        That was a moment ago, and its create may have ended since. So the record is read again now that
        nobody is at it: a volume is made once, so if it is unfinished still, it stays so.
        """
        if volume.id in self._deleting | self._making:
            return False
        return await self._records.is_unfinished(volume.id)

    async def _finish_deletion(self, volume: Volume) -> bool:
        """Return False if that fails. The failure is logged, and the sweep tries again."""
        try:
            await self._registrar.forget_volume(volume)
            await self._store.delete(volume.id)
            await self._records.remove(volume.id)
        except SandlotError as error:
            log.warning("cannot delete a volume yet; will retry", volume=volume.id, error=error.message)
            return False
        return True

    def _check_kept(self) -> None:
        if not self._store.abilities.volumes:
            raise Unsupported(f"This server cannot keep volumes. {self._store.abilities.note}")
