"""A directory in Redis. Each operation is one script, whose cost does not grow with the fleet.

Needs Redis 7 or Valkey. ``contract.py`` says which failures it must survive,
``scripts/prelude.lua`` describes the keys.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from sandlot.domain.callers.limits import Allowance, Use, limit_reached, too_many_creates, use_of
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_name, is_session_id
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.paging import check_page, parse_place, place_of
from sandlot.domain.session import Session
from sandlot.domain.session_states import no_session_error
from sandlot.fleet.directory import rules
from sandlot.fleet.directory.contract import (
    DirectoryStatus,
    FoundPage,
    FoundSession,
    HeldPage,
    LostPlace,
    Place,
    PlacementRequest,
    ReportReply,
    SessionEntry,
    Timings,
    WorkerCard,
    WorkerRef,
    WorkerReport,
    WorkerState,
    WorkerStatus,
)
from sandlot.fleet.directory.encoding import (
    as_text,
    pack_entry,
    pack_id,
    pack_report,
    pack_room,
    unpack_id,
    unpack_report,
    unpack_session,
)
from sandlot.fleet.directory.lease import Lease
from sandlot.fleet.directory.redis_volumes import RedisVolumeNames
from sandlot.fleet.redis.calls import ScriptCalls
from sandlot.fleet.redis.connections import connect
from sandlot.fleet.redis.lua import GCRA, load_scripts, pack_rate

_SCRIPTS: Final = Path(__file__).parent / "scripts"
# A full Redis refuses only new places. Scripts that keep the fleet alive, free memory or record
# existing sessions still run: if Redis refused reports, full memory would make workers look dead.
_REFUSED_WHEN_FULL: Final = frozenset({"place"})
DEFAULT_DEADLINE_S = 1.0
# Sessions per call. Redis serves no other call while a script runs, about 1 ms for this many.
RECORDS_AT_ONCE = 50


class RedisDirectory(RedisVolumeNames):
    """A ``Directory`` in Redis.

    ``cell`` names the fleet, because several fleets may share one Redis. ``deadline_s`` bounds each
    call in total.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        cell: str = "default",
        timings: Timings | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        figures: Figures | None = None,
    ) -> None:
        if not is_name(cell):
            raise InvalidRequest(
                f"Invalid SANDLOT_CELL {cell!r:.80}. Use 1-63 lowercase letters, digits and . _ -, starting "
                "with a letter or digit."
            )
        self._timings = timings or Timings()
        self._scripts = load_scripts(_SCRIPTS, before=GCRA, refused_when_full=_REFUSED_WHEN_FULL)
        self.calls = ScriptCalls(
            redis,
            "sandlot:{" + cell + "}:",
            deadline_s,
            {
                "lease": _ms(self._timings.lease_s),
                "lost_after": _ms(self._timings.lost_after_s),
                "max_settling": _ms(self._timings.lease_s * rules.MAX_SETTLING_LEASES),
            },
            figures,
        )
        # The highest acknowledged count of writes, by worker and epoch. A lower count in the reply
        # to a report means that Redis has lost writes.
        self._writes: dict[tuple[str, int], int] = {}
        # Leases for which the count did not grow with a write. Redis lost the writes in between,
        # even if later writes have brought the count back to where it was.
        self._rolled_back: set[tuple[str, int]] = set()
        # Numbers all writes, so that Redis can tell that one has been overtaken by a forget.
        self._numbers = itertools.count(1)

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
        figures: Figures | None = None,
    ) -> RedisDirectory:
        redis = connect(url, deadline_s, sentinels, sentinel_name, sentinel_password)
        return cls(redis, cell=cell, timings=timings, deadline_s=deadline_s, figures=figures)

    @property
    def timings(self) -> Timings:
        return self._timings

    async def close(self) -> None:
        await self.calls.close()

    # --- workers ------------------------------------------------------------------------------

    async def join(self, card: WorkerCard, token: str, *, last_epoch: int = 0) -> Lease:
        rules.check_worker_id(card.id)
        outcome, *answer = await self._run(
            "join", worker=card.id, url=card.url, version=card.version, token=token, last_epoch=last_epoch
        )
        if outcome == b"taken":
            raise rules.taken_id(card.id, answer[0].decode(), answer[1] / 1000)
        if outcome == b"evicting":
            raise rules.evicting(answer[0].decode())
        epoch, generation = answer
        return Lease(card.id, epoch, token, generation.decode())

    async def report(self, lease: Lease, report: WorkerReport) -> ReportReply:
        lease_key = (lease.worker_id, lease.epoch)
        acknowledged = self._writes.get(lease_key, 0)
        generation, writes = await self._run_fenced(
            "report",
            lease,
            room=pack_room(dict(report.room)),
            draining=report.draining,
            complete=report.complete,
            report=as_text(pack_report(report)),
        )
        intact = writes >= acknowledged and lease_key not in self._rolled_back
        if not intact:
            self._writes[lease_key] = writes
            self._rolled_back.discard(lease_key)
        return ReportReply(generation.decode(), intact)

    async def leave(self, lease: Lease) -> None:
        await self._run_fenced("leave", lease)
        lease_key = (lease.worker_id, lease.epoch)
        self._writes.pop(lease_key, None)
        self._rolled_back.discard(lease_key)

    async def workers(self) -> Sequence[WorkerStatus]:
        _, *rows = await self._run("workers")
        found = [
            WorkerStatus(_worker_ref(*row[:5]), row[6].decode(), row[5] / 1000, unpack_report(row[7]), row[8])
            for row in rows
        ]
        return sorted(found, key=lambda status: status.ref.id)

    # --- placing ------------------------------------------------------------------------------

    async def place(self, want: PlacementRequest) -> Place | LostPlace:
        if want.takes_over is not None and not is_session_id(want.takes_over):
            raise no_session_error(want.takes_over)
        optional = {
            "thread": want.thread,
            "key": want.idempotency_key,
            "allowances": [_pack_allowance(allowance) for allowance in want.allowances] or None,
            "avoid": want.avoid or None,
            "only": want.only,
            "units": want.units if want.units > 1 else None,
            "takes_over": None if want.takes_over is None else as_text(pack_id(want.takes_over)),
        }
        use = use_of(want.limits)
        outcome, *answer = await self._run(
            "place",
            tenant=want.tenant,
            by=want.created_by,
            cpus=use.millicpus,
            memory=use.memory_mb,
            environment=want.environment,
            reservation=secrets.token_hex(16),
            reservation_time=_ms(self._timings.reservation_s),
            **{name: value for name, value in optional.items() if value is not None},
        )
        match outcome:
            case b"late":
                raise rules.late(answer[0].decode(), answer[1] / 1000)
            case b"opening":
                raise rules.opening()
            case b"full":
                raise rules.no_room(want.environment, offered=answer[0] > 0)
            case b"only":
                assert want.only is not None
                state, offered = WorkerState(answer[0].decode()), bool(answer[1])
                raise rules.only_one(want.only, state, want.environment, offered=offered)
            case b"limit":
                raise limit_reached(want.allowances[answer[0] - 1], answer[1].decode(), use)
            case b"rate":
                raise too_many_creates(want.allowances[answer[0] - 1], answer[1] / 1e6)
            case b"nothing":
                assert want.takes_over is not None
                raise no_session_error(want.takes_over)
        worker = _worker_ref(*answer[:5])
        reservation, before, lost = answer[5:]
        if outcome == b"lost":
            session = _session(lost)
            assert session is not None
            return LostPlace(session, worker)
        return Place(
            worker,
            known=outcome == b"known",
            reservation=reservation.decode() or None,
            previous=_session(before),
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

    async def find(self, session_id: str) -> FoundSession | None:
        if not is_session_id(session_id):
            return None
        outcome, *answer = await self._run("find", id=as_text(pack_id(session_id)))
        return None if outcome == b"nothing" else _found(answer[0])

    async def page(
        self, tenant: str, *, thread: str | None = None, after: str | None = None, limit: int = 100
    ) -> FoundPage:
        check_page(limit)
        arguments: dict[str, Any] = {"tenant": tenant, "limit": limit}
        if thread is not None:
            arguments["thread"] = thread
        if after is not None:
            created, session_id = parse_place(after, "ses")
            arguments |= {"after": created, "after_id": as_text(pack_id(session_id))}
        _, more, *rows = await self._run("page", **arguments)
        found = tuple(map(_found, rows))
        return FoundPage(found, place_of(found[-1].session) if more else None)

    async def bury(self, ended: Session) -> bool:
        outcome, answer = await self._run(
            "bury",
            id=as_text(pack_id(ended.id)),
            ended=as_text(pack_entry(rules.NO_WORKER, SessionEntry(ended))),
            remember=_ms(self._timings.remember_lost_s),
        )
        if outcome == b"not_gone":
            raise rules.not_gone(ended.id, answer.decode())
        return bool(answer)

    # --- the directory itself -----------------------------------------------------------------

    async def status(self, tenant: str | None = None) -> DirectoryStatus:
        arguments = {} if tenant is None else {"tenant": tenant}
        _, generation, settled, sessions, reservations = await self._run("status", **arguments)
        return DirectoryStatus(generation.decode(), bool(settled), sessions, reservations)

    async def use(self, holder: str) -> Use:
        _, *use = await self._run("use", holder=holder)
        return Use(*use)

    async def sweep(self, limit: int = 100) -> int:
        _, swept = await self._run("sweep", limit=limit, remember_lost=_ms(self._timings.remember_lost_s))
        return int(swept)

    async def _write(self, name: str, lease: Lease, **arguments: Any) -> list[Any]:
        """Run a script that Redis counts as a write of this worker."""
        lease_key = (lease.worker_id, lease.epoch)
        acknowledged = self._writes.get(lease_key, 0)
        while True:
            with contextlib.suppress(_Overtaken):
                writes, *answer = await self._run_fenced(name, lease, number=next(self._numbers), **arguments)
                break
        if writes <= acknowledged:
            self._rolled_back.add(lease_key)
        self._writes[lease_key] = max(writes, self._writes.get(lease_key, 0))
        return answer

    async def _run(self, name: str, **arguments: Any) -> list[Any]:
        # ``fresh`` becomes the generation if this call finds the directory empty.
        answer = await self.calls(self._scripts[name], {"fresh": secrets.token_hex(8), **arguments})
        if answer[0] == b"unsettled":
            raise rules.unsettled(answer[1] / 1000)
        return answer

    async def _run_fenced(self, name: str, lease: Lease, **arguments: Any) -> list[Any]:
        outcome, *answer = await self._run(
            name, worker=lease.worker_id, epoch=lease.epoch, token=lease.token, **arguments
        )
        if outcome == b"replaced":
            raise rules.replaced(lease.worker_id, lease.epoch)
        if outcome == b"unknown":
            raise rules.unknown_lease(lease.worker_id, lease.epoch)
        if outcome == b"late":
            raise _Overtaken
        return answer


class _Overtaken(Exception):
    """A forget that was sent after this write has reached Redis before it."""


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _worker_ref(worker_id: bytes, url: bytes, epoch: int, state: bytes, over: int) -> WorkerRef:
    return WorkerRef(worker_id.decode(), url.decode(), epoch, WorkerState(state.decode()), over / 1000)


def _found(row: list[Any]) -> FoundSession:
    return FoundSession(unpack_session(row[0], row[1]), _worker_ref(*row[2:]))


def _session(pair: list[bytes]) -> Session | None:
    return unpack_session(*pair) if pair else None


def _pack_allowance(allowance: Allowance) -> tuple[Any, ...]:
    limits, rate = allowance.limits, allowance.creates
    return (
        allowance.holder,
        False if limits.sessions is None else limits.sessions,
        False if limits.cpus is None else int(limits.cpus * 1000 + 1e-6),
        False if limits.memory_mb is None else limits.memory_mb,
        False if rate is None else pack_rate(rate),
    )
