"""Volumes in a fleet.

A volume is on the worker that made it, and its id says which one that is. The directory knows the id that
belongs to a name. So a create that names a volume costs one look, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandlot.domain.errors import Conflict, SandlotError, Unavailable, Unsupported
from sandlot.domain.history.positions import worker_tag
from sandlot.domain.ids import volume_tag
from sandlot.domain.volumes.listing import check_listing, merged
from sandlot.domain.volumes.volume import (
    CreateVolume,
    Volume,
    VolumePage,
    VolumeUse,
    no_volume_error,
    taken_name,
)
from sandlot.fleet.coordinator.asked_workers import share_of
from sandlot.fleet.coordinator.calls.forwarded import ENGINE_CALL_S, ForwardedCalls
from sandlot.fleet.coordinator.worker_links import WorkerLink, as_client_error, watched
from sandlot.fleet.directory.contract import WorkerRef, WorkerState, WorkerStatus
from sandlot.fleet.directory.volume_names import VolumeEntry


class VolumeCalls(ForwardedCalls):
    async def create_volume(self, request: CreateVolume) -> Volume:
        """On the worker with the most room, so that the sessions that use it find some there."""
        known = await self._directory.find_volume(self._tenant, request.name)
        if known is not None:
            await self._check_back(known, request.name)
            raise taken_name(request.name)
        refusal: SandlotError | None = None
        for worker in _by_room(await self._directory.workers()):
            try:
                link = await self._links.to(worker, self._principal)
                async with watched(link, ENGINE_CALL_S):
                    return await link.create_volume(request)
            except (Unsupported, Unavailable) as error:
                if error.may_have_executed:
                    raise as_client_error(worker.id, error) from error
                refusal = error  # another one may keep volumes, or have time
            except SandlotError as error:
                raise as_client_error(worker.id, error) from error
        raise refusal or Unavailable(
            "No worker of the fleet takes new volumes now. Retry.",
            retry_after_s=2.0,
            details={"reason": "capacity"},
        )

    async def get_volume(self, volume: str) -> Volume:
        volume_id, worker = await self._located(volume)
        try:
            link = await self._links.to(worker, self._principal)
            async with watched(link, self._options.call_timeout_s):
                return await link.get_volume(volume_id)
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def list_volumes(self, *, after: str | None = None, limit: int = 100) -> VolumePage:
        check_listing(after, limit)
        asked = self._parts.asked
        workers = await asked.all()
        each = share_of(limit, workers)

        async def of_one(link: WorkerLink) -> VolumePage:
            try:
                return await link.list_volumes(after=after, limit=each)
            except Unsupported:
                return VolumePage(())  # the worker runs an older version, which keeps none

        return merged(await asked.ask(workers, self._principal, of_one), limit)

    async def delete_volume(self, volume: str) -> None:
        volume_id = await self._id_of(volume)
        if volume_id is None:
            return
        worker = await self._worker_of_volume(volume_id)
        if (worker is None or worker.state is WorkerState.GONE) and volume != volume_id:
            # Its files are where the worker is. Its name is free from now on.
            entry = VolumeEntry(self._tenant, volume, volume_id)
            await self._directory.bury_volume(entry, "" if worker is None else worker.id)
            return
        if worker is None:
            return
        _check_present(worker, volume)
        try:
            link = await self._links.to(worker, self._principal)
            async with watched(link, ENGINE_CALL_S):
                await link.delete_volume(volume_id)
        except SandlotError as error:
            raise as_client_error(worker.id, error) from error

    async def _worker_with_volumes(self, uses: Sequence[VolumeUse], only: str | None) -> str:
        """The worker that a session with these volumes must be on. ``only``: if it must be on this one."""
        workers = {use.volume: (await self._located(use.volume))[1] for use in uses}
        ids = {worker.id for worker in workers.values()} | ({only} if only is not None else set())
        if len(ids) > 1:
            where = ", ".join(f"volume {name} on {worker.id}" for name, worker in sorted(workers.items()))
            also = "" if only is None else f", and the snapshot on {only}"
            raise Unsupported(
                f"What the session needs is on different workers: {where}{also}. A fleet does not move files "
                "between workers."
            )
        return ids.pop()

    async def _located(self, volume: str) -> tuple[str, WorkerRef]:
        """The id of a volume, and the worker that has it. Raises if there is none, or that one is away."""
        volume_id = await self._id_of(volume)
        worker = None if volume_id is None else await self._worker_of_volume(volume_id)
        if volume_id is None:
            raise no_volume_error(volume)
        if worker is None:
            if volume == volume_id:  # an id that nobody has made up a worker for
                raise no_volume_error(volume)
            raise _gone(volume, "a worker that no longer exists")
        _check_present(worker, volume)
        return volume_id, worker

    async def _id_of(self, volume: str) -> str | None:
        if volume_tag(volume) is not None:
            return volume
        return await self._directory.find_volume(self._tenant, volume)

    async def _worker_of_volume(self, volume_id: str) -> WorkerRef | None:
        tag = volume_tag(volume_id)
        assert tag is not None
        return await self._parts.asked.tagged(tag)

    async def _check_back(self, volume_id: str, name: str) -> None:
        """Raise ``Conflict`` with more to say if the worker with this volume is gone."""
        worker = await self._worker_of_volume(volume_id)
        if worker is None or worker.state is WorkerState.GONE:
            where = "that no longer exists" if worker is None else f"{worker.id}, which is gone"
            raise Conflict(
                f"You already have a volume {name}, on worker {where}. If you do not need its files, delete "
                "it to free the name."
            )


def _by_room(workers: Sequence[WorkerStatus]) -> list[WorkerRef]:
    """Workers that may take a volume, the one with the most room first."""
    takes = [
        (max((room.free for room in status.report.room.values()), default=0), status.ref)
        for status in workers
        if status.report is not None and not status.report.draining and status.ref.state is WorkerState.ALIVE
    ]
    return [ref for _, ref in sorted(takes, key=lambda each: (-each[0], worker_tag(each[1].id)))]


def _check_present(worker: WorkerRef, volume: str) -> None:
    if worker.state is WorkerState.GONE:
        raise _gone(volume, worker.id)


def _gone(volume: str, worker: str) -> Unavailable:
    return Unavailable(
        f"Volume {volume[:64]} is on {worker}, which is gone. Once it is back, retry. If its machine is "
        "lost, its files are too: delete the volume to free its name.",
        retryable=False,
        details={"reason": "worker_gone", "worker_id": worker},
    )
