"""Compact encoding of sessions. One Redis may hold a million of them in memory.

An entry is a MessagePack array. The scripts read its elements at the positions named in
``scripts/prelude.lua``, except ``details``: the other fields, as bytes that only this module reads. Ids
take 16 bytes and default values are omitted. Unknown field names and additional elements at the end
are ignored, so that two versions can share a directory.
"""

from __future__ import annotations

from dataclasses import astuple

import msgspec

from sandlot.domain.callers.limits import use_of
from sandlot.domain.capacity.limits import Limits
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import is_sandbox_id, is_session_id, is_workspace_id
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.session import (
    DEFAULT_HIBERNATION_S,
    DEFAULT_IDLE_TIMEOUT_S,
    DEFAULT_LIFETIME_S,
    EndReason,
    LossReport,
    OnIdle,
    Predecessor,
    Session,
    SessionState,
)
from sandlot.domain.volumes.volume import SessionVolume
from sandlot.domain.workspaces.workspace import Workspace
from sandlot.fleet.directory.contract import Room, SessionEntry, WorkerReport

_DEFAULT_LIMITS = Limits()


class _Workspace(msgspec.Struct, frozen=True, array_like=True):
    id: bytes | None
    quota_bytes: int | None = None
    snapshot: str | None = None
    # Set instead of ``id`` if the provider's ids have another format.
    name: str | None = None


class _Details(
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
        "record": "v",
        "network": "n",
        "workspace": "w",
        "hibernated": "h",
        "on_idle": "q",
        "hibernation_s": "t",
        "woken_at": "u",
        "artifacts": "f",
        "volumes": "b",
    },
):
    environment: str
    created_at: float
    last_active_at: float
    state: SessionState = SessionState.ACTIVE
    sandbox: bytes | None = None
    # Set instead of ``sandbox`` if the provider's sandbox ids have another format.
    sandbox_name: str | None = None
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    lifetime_s: float | None = DEFAULT_LIFETIME_S
    # In the order of the fields of Limits. None: the defaults.
    limits: tuple[float, ...] | None = None
    metadata: dict[str, str] = {}
    loss: LossReport | None = None
    predecessor: Predecessor | None = None
    end_reason: EndReason | None = None
    ended_at: float | None = None
    record: bool = False
    network: EgressPolicy | None = None
    workspace: _Workspace | None = None
    # Set beside the state ``active``: members of earlier versions know no hibernation, and send the session's
    # calls to its worker, which wakes it.
    hibernated: bool = False
    on_idle: OnIdle = OnIdle.END
    hibernation_s: float = DEFAULT_HIBERNATION_S
    woken_at: float | None = None
    artifacts: tuple[str, ...] = ()
    volumes: tuple[SessionVolume, ...] = ()


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    worker: str
    generation: int
    ended: bool
    tenant: str
    thread: str | None
    key: str | None
    # Rounded as in the cursor of a page.
    created: float
    details: msgspec.Raw
    # What counts towards limits: the key that created the session, cores in thousandths, MiB of memory.
    counts: tuple[str, int, int] | None = None


_ENCODER = msgspec.msgpack.Encoder()
_ENTRIES = msgspec.msgpack.Decoder(_Entry)
_DETAILS = msgspec.msgpack.Decoder(_Details)
_REPORTS = msgspec.msgpack.Decoder(WorkerReport)


def as_text(data: bytes) -> msgspec.Raw:
    """Encode bytes as a MessagePack string. Redis's Lua decoder does not know the binary type."""
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
        raise InvalidRequest(f"{session_id!r:.80} is not a session id.")
    return bytes.fromhex(session_id[4:])


def unpack_id(raw: bytes) -> str:
    return "ses_" + raw.hex()


def pack_entry(worker_id: str, entry: SessionEntry) -> bytes:
    session = entry.session
    sandbox, use = session.sandbox_id, use_of(session.limits)
    hibernated = session.state is SessionState.HIBERNATED
    details = _Details(
        environment=session.environment,
        created_at=session.created_at,
        last_active_at=session.last_active_at,
        state=SessionState.ACTIVE if hibernated else session.state,
        hibernated=hibernated,
        sandbox=bytes.fromhex(sandbox[4:]) if sandbox is not None and is_sandbox_id(sandbox) else None,
        sandbox_name=sandbox if sandbox is not None and not is_sandbox_id(sandbox) else None,
        idle_timeout_s=session.idle_timeout_s,
        lifetime_s=session.lifetime_s,
        limits=None if session.limits == _DEFAULT_LIMITS else astuple(session.limits),
        metadata=dict(session.metadata),
        loss=session.loss,
        predecessor=session.predecessor,
        end_reason=session.end_reason,
        ended_at=session.ended_at,
        record=session.record,
        network=session.network,
        workspace=None if session.workspace is None else _pack_workspace(session.workspace),
        on_idle=session.on_idle,
        hibernation_s=session.hibernation_s,
        woken_at=session.woken_at,
        artifacts=session.artifacts,
        volumes=session.volumes,
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
            details=as_text(_ENCODER.encode(details)),
            counts=(session.created_by, use.millicpus, use.memory_mb),
        )
    )


def unpack_session(raw_id: bytes, value: bytes) -> Session:
    entry = _ENTRIES.decode(value)
    details = _DETAILS.decode(_bytes_of(entry.details))
    return Session(
        id=unpack_id(raw_id),
        environment=details.environment,
        created_at=details.created_at,
        last_active_at=details.last_active_at,
        tenant=entry.tenant,
        thread=entry.thread,
        state=SessionState.HIBERNATED if details.hibernated else details.state,
        generation=entry.generation,
        sandbox_id=details.sandbox_name if details.sandbox is None else "sbx_" + details.sandbox.hex(),
        idle_timeout_s=details.idle_timeout_s,
        lifetime_s=details.lifetime_s,
        limits=_limits(details.limits),
        metadata=details.metadata,
        loss=details.loss,
        predecessor=details.predecessor,
        end_reason=details.end_reason,
        ended_at=details.ended_at,
        created_by="" if entry.counts is None else entry.counts[0],
        record=details.record,
        network=details.network,
        workspace=None if details.workspace is None else _unpack_workspace(details.workspace),
        on_idle=details.on_idle,
        hibernation_s=details.hibernation_s,
        woken_at=details.woken_at,
        artifacts=details.artifacts,
        volumes=details.volumes,
    )


def _pack_workspace(workspace: Workspace) -> _Workspace:
    whole = is_workspace_id(workspace.id)
    return _Workspace(
        bytes.fromhex(workspace.id[4:]) if whole else None,
        workspace.quota_bytes,
        workspace.snapshot,
        None if whole else workspace.id,
    )


def _unpack_workspace(packed: _Workspace) -> Workspace:
    name = packed.name or "" if packed.id is None else "wsp_" + packed.id.hex()
    return Workspace(name, packed.quota_bytes, packed.snapshot)


def _limits(values: tuple[float, ...] | None) -> Limits:
    if values is None:
        return _DEFAULT_LIMITS
    memory, cpus, pids, tmp, shm, files = values[:6]
    return Limits(int(memory), cpus, int(pids), int(tmp), int(shm), int(files))


def pack_report(report: WorkerReport) -> bytes:
    return _ENCODER.encode(report)


def unpack_report(raw: bytes) -> WorkerReport | None:
    return _REPORTS.decode(raw) if raw else None


def pack_room(room: dict[str, Room]) -> dict[str, tuple[int, int]]:
    return {name: (offer.warm, offer.free) for name, offer in room.items()}
