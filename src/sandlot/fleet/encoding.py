"""A session in few bytes. A fleet may hold a million of them, in the memory of one Redis.

An entry is a MessagePack array: first what the scripts must know (their positions are named in
``scripts/prelude.lua``), then the rest of the session as bytes that only this module reads. Ids are 16
bytes, what is as usual is left out, and unknown names in the rest are passed over, so that two versions can
share a directory.
"""

from __future__ import annotations

from dataclasses import astuple

import msgspec

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_sandbox_id, is_session_id
from sandlot.domain.limits import Limits
from sandlot.domain.session import (
    DEFAULT_IDLE_TIMEOUT_S,
    DEFAULT_LIFETIME_S,
    EndReason,
    LossReport,
    Predecessor,
    Session,
    SessionState,
)
from sandlot.fleet.directory import Room, SessionEntry, WorkerReport

_USUAL_LIMITS = Limits()


class _Rest(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={
        "environment": "e",
        "created_at": "c",
        "last_active_at": "a",
        "state": "s",
        "sandbox": "x",
        "sandbox_name": "y",
        "idle_timeout_s": "i",
        "lifetime_s": "l",
        "limits": "m",
        "metadata": "d",
        "loss": "o",
        "predecessor": "p",
        "end_reason": "r",
        "ended_at": "z",
    },
):
    environment: str
    created_at: float
    last_active_at: float
    state: SessionState = SessionState.ACTIVE
    sandbox: bytes | None = None
    # Where a provider names them otherwise.
    sandbox_name: str | None = None
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    lifetime_s: float | None = DEFAULT_LIFETIME_S
    # In the order of Limits's fields; None: the usual ones.
    limits: tuple[float, ...] | None = None
    metadata: dict[str, str] = {}
    loss: LossReport | None = None
    predecessor: Predecessor | None = None
    end_reason: EndReason | None = None
    ended_at: float | None = None


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    worker: str
    generation: int
    ended: bool
    tenant: str
    thread: str | None
    key: str | None
    # As the cursor of a page writes it.
    created: float
    rest: msgspec.Raw


_ENCODER = msgspec.msgpack.Encoder()
_ENTRIES = msgspec.msgpack.Decoder(_Entry)
_RESTS = msgspec.msgpack.Decoder(_Rest)
_REPORTS = msgspec.msgpack.Decoder(WorkerReport)


def as_text(data: bytes) -> msgspec.Raw:
    """Bytes in MessagePack's older form, as text of any content: the scripts' reader knows no other."""
    size = len(data)
    if size < 32:
        head = bytes([0xA0 | size])
    elif size < 1 << 8:
        head = bytes([0xD9, size])
    elif size < 1 << 16:
        head = b"\xda" + size.to_bytes(2, "big")
    else:
        head = b"\xdb" + size.to_bytes(4, "big")
    return msgspec.Raw(head + data)


def _bytes_of(text: msgspec.Raw) -> bytes:
    data = bytes(text)
    return data[{0xD9: 2, 0xDA: 3, 0xDB: 5}.get(data[0], 1) :]


def pack_id(session_id: str) -> bytes:
    if not is_session_id(session_id):
        raise InvalidRequest(f"{session_id!r:.80} is not a session's id")
    return bytes.fromhex(session_id[4:])


def unpack_id(raw: bytes) -> str:
    return "ses_" + raw.hex()


def pack_entry(worker_id: str, entry: SessionEntry) -> bytes:
    session = entry.session
    sandbox = session.sandbox_id
    rest = _Rest(
        environment=session.environment,
        created_at=session.created_at,
        last_active_at=session.last_active_at,
        state=session.state,
        sandbox=bytes.fromhex(sandbox[4:]) if sandbox is not None and is_sandbox_id(sandbox) else None,
        sandbox_name=sandbox if sandbox is not None and not is_sandbox_id(sandbox) else None,
        idle_timeout_s=session.idle_timeout_s,
        lifetime_s=session.lifetime_s,
        limits=None if session.limits == _USUAL_LIMITS else astuple(session.limits),
        metadata=dict(session.metadata),
        loss=session.loss,
        predecessor=session.predecessor,
        end_reason=session.end_reason,
        ended_at=session.ended_at,
    )
    return _ENCODER.encode(
        _Entry(
            worker=worker_id,
            generation=session.generation,
            ended=session.state is SessionState.ENDED,
            tenant=session.tenant,
            thread=session.thread,
            key=entry.idempotency_key,
            created=round(session.created_at, 6),
            rest=as_text(_ENCODER.encode(rest)),
        )
    )


def unpack_session(raw_id: bytes, value: bytes) -> Session:
    entry = _ENTRIES.decode(value)
    rest = _RESTS.decode(_bytes_of(entry.rest))
    return Session(
        id=unpack_id(raw_id),
        environment=rest.environment,
        created_at=rest.created_at,
        last_active_at=rest.last_active_at,
        tenant=entry.tenant,
        thread=entry.thread,
        state=rest.state,
        generation=entry.generation,
        sandbox_id=rest.sandbox_name if rest.sandbox is None else "sbx_" + rest.sandbox.hex(),
        idle_timeout_s=rest.idle_timeout_s,
        lifetime_s=rest.lifetime_s,
        limits=_limits(rest.limits),
        metadata=rest.metadata,
        loss=rest.loss,
        predecessor=rest.predecessor,
        end_reason=rest.end_reason,
        ended_at=rest.ended_at,
    )


def _limits(values: tuple[float, ...] | None) -> Limits:
    if values is None:
        return _USUAL_LIMITS
    memory, cpus, pids, tmp, shm, files = values[:6]
    return Limits(int(memory), cpus, int(pids), int(tmp), int(shm), int(files))


def pack_report(report: WorkerReport) -> bytes:
    return _ENCODER.encode(report)


def unpack_report(raw: bytes) -> WorkerReport | None:
    return _REPORTS.decode(raw) if raw else None


def pack_room(room: dict[str, Room]) -> dict[str, tuple[int, int]]:
    return {name: (offer.warm, offer.free) for name, offer in room.items()}
