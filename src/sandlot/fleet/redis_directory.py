"""The directory in Redis: every operation is one script, whose cost does not grow with the fleet.

Needs Redis 7 or Valkey. What it must survive is written down in ``directory``; how the keys look, in
``scripts/prelude.lua``.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_name, is_session_id
from sandlot.domain.paging import check_page, cursor, parse_cursor
from sandlot.domain.session import Session, no_session
from sandlot.fleet import rules
from sandlot.fleet.connecting import connect, connect_by_sentinels
from sandlot.fleet.directory import (
    Beat,
    DirectoryStatus,
    Found,
    FoundPage,
    HeldPage,
    Lease,
    LostPlace,
    Place,
    SessionEntry,
    Timings,
    Want,
    WorkerAt,
    WorkerCard,
    WorkerReport,
    WorkerState,
    WorkerStatus,
)
from sandlot.fleet.encoding import (
    as_text,
    pack_entry,
    pack_id,
    pack_report,
    pack_room,
    unpack_id,
    unpack_report,
    unpack_session,
)
from sandlot.fleet.redis_calls import ScriptCalls
from sandlot.fleet.scripts import load

DEFAULT_DEADLINE_S = 1.0
# Sessions in one call: a script holds up everybody while it runs, about a millisecond for so many.
RECORDS_AT_ONCE = 50


class RedisDirectory:
    """``cell`` names the fleet: several may share one Redis. ``deadline_s`` bounds every call in all."""

    def __init__(
        self,
        redis: Redis,
        *,
        cell: str = "default",
        timings: Timings | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        if not is_name(cell):
            raise InvalidRequest(f"{cell!r:.80} cannot be a cell's name")
        self._timings = timings or Timings()
        self._scripts = load()
        self._calls = ScriptCalls(
            redis,
            "sandlot:{" + cell + "}:",
            deadline_s,
            {
                "lease": _ms(self._timings.lease_s),
                "lost_after": _ms(self._timings.lost_after_s),
                "max_settling": _ms(self._timings.lease_s * rules.MAX_SETTLING_LEASES),
            },
        )
        # The highest count of a worker's writes that was answered, by worker and epoch. A lower one in a
        # report means that Redis has lost some.
        self._writes: dict[tuple[str, int], int] = {}
        # Lives of which a write was counted no higher than one before it: what lay between is lost, although
        # later writes may have brought the count to where it was.
        self._went_back: set[tuple[str, int]] = set()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        sentinels: Sequence[str] = (),
        sentinel_name: str = "sandlot",
        sentinel_password: str | None = None,
        cell: str = "default",
        timings: Timings | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> RedisDirectory:
        redis = (
            connect_by_sentinels(sentinels, sentinel_name, sentinel_password, url, deadline_s)
            if sentinels
            else connect(url, deadline_s)
        )
        return cls(redis, cell=cell, timings=timings, deadline_s=deadline_s)

    @property
    def timings(self) -> Timings:
        return self._timings

    async def close(self) -> None:
        await self._calls.close()

    # --- workers ------------------------------------------------------------------------------

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        rules.check_worker_id(card.id)
        word, *answer = await self._run(
            "join", worker=card.id, url=card.url, version=card.version, token=token, last_epoch=last_epoch
        )
        if word == b"taken":
            raise rules.taken_id(card.id, answer[0].decode(), answer[1] / 1000)
        if word == b"evicting":
            raise rules.evicting(answer[0].decode())
        epoch, generation = answer
        return Lease(card.id, epoch, token, generation.decode())

    async def report(self, lease: Lease, report: WorkerReport) -> Beat:
        life = (lease.worker_id, lease.epoch)
        answered_before = self._writes.get(life, 0)
        generation, writes = await self._run_fenced(
            "report",
            lease,
            room=pack_room(dict(report.room)),
            draining=report.draining,
            complete=report.complete,
            report=as_text(pack_report(report)),
        )
        intact = writes >= answered_before and life not in self._went_back
        if not intact:
            self._writes[life] = writes
            self._went_back.discard(life)
        return Beat(generation.decode(), intact)

    async def leave(self, lease: Lease) -> None:
        await self._run_fenced("leave", lease)
        life = (lease.worker_id, lease.epoch)
        self._writes.pop(life, None)
        self._went_back.discard(life)

    async def workers(self) -> Sequence[WorkerStatus]:
        _, *rows = await self._run("workers")
        found = [
            WorkerStatus(_at(*row[:5]), row[6].decode(), row[5] / 1000, unpack_report(row[7]), row[8])
            for row in rows
        ]
        return sorted(found, key=lambda status: status.at.id)

    # --- placing ------------------------------------------------------------------------------

    async def place(self, want: Want) -> Place | LostPlace:
        if want.takes_over is not None and not is_session_id(want.takes_over):
            raise no_session(want.takes_over)
        asked = {
            "thread": want.thread,
            "key": want.idempotency_key,
            "max": want.max_sessions,
            "avoid": want.avoid or None,
            "units": want.units if want.units > 1 else None,
            "takes_over": None if want.takes_over is None else as_text(pack_id(want.takes_over)),
        }
        word, *answer = await self._run(
            "place",
            tenant=want.tenant,
            environment=want.environment,
            reservation=secrets.token_hex(16),
            reservation_time=_ms(self._timings.reservation_s),
            **{name: value for name, value in asked.items() if value is not None},
        )
        match word:
            case b"late":
                raise rules.late(answer[0].decode(), answer[1] / 1000)
            case b"full":
                raise rules.no_room(want.environment, offered=answer[0] > 0)
            case b"quota":
                assert want.max_sessions is not None
                raise rules.quota_reached(want.tenant, want.max_sessions)
            case b"nothing":
                assert want.takes_over is not None
                raise no_session(want.takes_over)
        worker = _at(*answer[:5])
        reservation, before, lost = answer[5:]
        if word == b"lost":
            session = _session(lost)
            assert session is not None
            return LostPlace(session, worker)
        return Place(
            worker,
            known=word == b"known",
            reservation=reservation.decode() or None,
            before=_session(before),
            lost=_session(lost),
        )

    async def give_back(self, reservation: str) -> bool:
        _, freed = await self._run("give_back", reservation=reservation)
        return bool(freed)

    # --- sessions -----------------------------------------------------------------------------

    async def record(self, lease: Lease, entries: Sequence[SessionEntry]) -> frozenset[str]:
        taken: set[str] = set()
        for begin in range(0, len(entries), RECORDS_AT_ONCE):
            packed = [
                (
                    as_text(pack_id(entry.session.id)),
                    as_text(pack_entry(lease.worker_id, entry)),
                    entry.reservation or False,
                )
                for entry in entries[begin : begin + RECORDS_AT_ONCE]
            ]
            ids = await self._write(
                "record", lease, entries=packed, remember_ended=_ms(self._timings.remember_ended_s)
            )
            taken.update(map(unpack_id, ids))
        return frozenset(taken)

    async def forget(self, lease: Lease, session_ids: Sequence[str]) -> None:
        for begin in range(0, len(session_ids), RECORDS_AT_ONCE):
            ids = [
                as_text(pack_id(session_id)) for session_id in session_ids[begin : begin + RECORDS_AT_ONCE]
            ]
            await self._write("forget", lease, ids=ids)

    async def held(self, worker_id: str, *, after: str | None = None) -> HeldPage:
        _, cursor, ids = await self._run("held", worker=worker_id, after=after or "0")
        return HeldPage(tuple(map(unpack_id, ids)), None if cursor == b"0" else cursor.decode())

    async def find(self, session_id: str) -> Found | None:
        if not is_session_id(session_id):
            return None
        word, *answer = await self._run("find", id=as_text(pack_id(session_id)))
        return None if word == b"nothing" else _found(answer[0])

    async def page(
        self, tenant: str, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> FoundPage:
        check_page(limit)
        arguments: dict[str, Any] = {"tenant": tenant, "limit": limit}
        if thread is not None:
            arguments["thread"] = thread
        if after is not None:
            created, session_id = parse_cursor(after)
            arguments |= {"after": created, "after_id": as_text(pack_id(session_id))}
        _, more, *rows = await self._run("page", **arguments)
        found = tuple(map(_found, rows))
        return FoundPage(found, cursor(found[-1].session) if more else None)

    async def bury(self, ended: Session) -> bool:
        word, answer = await self._run(
            "bury",
            id=as_text(pack_id(ended.id)),
            ended=as_text(pack_entry(rules.NOBODY, SessionEntry(ended))),
            remember=_ms(self._timings.remember_lost_s),
        )
        if word == b"not_gone":
            raise rules.not_gone(ended.id, answer.decode())
        return bool(answer)

    # --- the directory itself -----------------------------------------------------------------

    async def status(self) -> DirectoryStatus:
        _, generation, settled, sessions, reservations = await self._run("status")
        return DirectoryStatus(generation.decode(), bool(settled), sessions, reservations)

    async def sweep(self, limit: int = 100) -> int:
        _, swept = await self._run("sweep", limit=limit, remember_lost=_ms(self._timings.remember_lost_s))
        return int(swept)

    async def _write(self, name: str, lease: Lease, **arguments: Any) -> list[Any]:
        """What Redis counts as a write of this worker."""
        life = (lease.worker_id, lease.epoch)
        answered_before = self._writes.get(life, 0)
        writes, *answer = await self._run_fenced(name, lease, **arguments)
        if writes <= answered_before:
            self._went_back.add(life)
        self._writes[life] = max(writes, self._writes.get(life, 0))
        return answer

    async def _run(self, name: str, **arguments: Any) -> list[Any]:
        # A generation in case that this call finds the directory empty and gives birth to it.
        answer = await self._calls(self._scripts[name], {"fresh": secrets.token_hex(8), **arguments})
        if answer[0] == b"unsettled":
            raise rules.unsettled(answer[1] / 1000)
        return answer

    async def _run_fenced(self, name: str, lease: Lease, **arguments: Any) -> list[Any]:
        word, *answer = await self._run(
            name, worker=lease.worker_id, epoch=lease.epoch, token=lease.token, **arguments
        )
        if word == b"replaced":
            raise rules.replaced(lease.worker_id, lease.epoch)
        if word == b"unknown":
            raise rules.unknown_lease(lease.worker_id, lease.epoch)
        return answer


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _at(worker_id: bytes, url: bytes, epoch: int, state: bytes, over: int) -> WorkerAt:
    return WorkerAt(worker_id.decode(), url.decode(), epoch, WorkerState(state.decode()), over / 1000)


def _found(row: list[Any]) -> Found:
    return Found(unpack_session(row[0], row[1]), _at(*row[2:]))


def _session(pair: list[bytes]) -> Session | None:
    return unpack_session(*pair) if pair else None
