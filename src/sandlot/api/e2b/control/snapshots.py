"""Snapshots and forks. What they keep is files: a new sandbox has no process of the old one."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import Any, Final

from starlette.responses import Response

from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.control.bodies import Fork, SnapshotBody, TakeSnapshotBody
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.control.creating import check_memory, snapshot_in
from sandlot.api.e2b.control.listing import NEXT_HEADER, limit_of
from sandlot.api.e2b.errors import error_body
from sandlot.api.e2b.options import DEFAULT_TIMEOUT_S
from sandlot.api.responses.json import json_response
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.e2b.names import session_id_of
from sandlot.domain.errors import SandlotError
from sandlot.domain.paging import MAX_PAGE, place_of
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.volumes.volume import VolumeMode, VolumeUse
from sandlot.domain.workspaces.snapshots import (
    AUTOMATIC_LABEL,
    BASE_LABEL,
    Snapshot,
    TakeSnapshot,
)

# Snapshots that the server took for itself. A program that deletes all of its own must not find them.
_HIDDEN: Final = (AUTOMATIC_LABEL, BASE_LABEL)


async def take_snapshot(call: ControlCall) -> Response:
    body = read_body(await call.request.body(), TakeSnapshotBody)
    check_memory(body.memory, call.user_agent)
    snapshot = await call.service.take_snapshot(call.session_id, TakeSnapshot(name=body.name))
    return json_response(_body(snapshot), 201)


async def list_snapshots(call: ControlCall) -> Response:
    """Oldest first."""
    query = call.query("sandboxID", "name", "limit", "nextToken")
    limit, name = limit_of(query), query.get("name") or None
    if name is not None:
        name = snapshot_in(name) or name
    session_id = session_id_of(query["sandboxID"]) if query.get("sandboxID") else None
    after, more = query.get("nextToken") or None, True
    found: list[Snapshot] = []
    while more and len(found) <= limit:
        page = await call.service.list_snapshots(session_id=session_id, after=after, limit=MAX_PAGE)
        found += [
            each
            for each in page.snapshots
            if name in (None, each.name, each.id) and not any(label in each.labels for label in _HIDDEN)
        ]
        after, more = page.next, page.next is not None
    headers = {NEXT_HEADER: place_of(found[limit - 1])} if len(found) > limit else {}
    return json_response([_body(snapshot) for snapshot in found[:limit]], headers=headers)


def _body(snapshot: Snapshot) -> SnapshotBody:
    return SnapshotBody(snapshot.id, [snapshot.name] if snapshot.name else [])


async def fork(call: ControlCall) -> Response:
    """New sandboxes with the files of one. Each is created or fails by itself."""
    body = read_body(await call.request.body(), Fork)
    parent = await call.service.get_session(call.session_id)
    snapshot = await call.service.take_snapshot(parent.id, TakeSnapshot())
    try:
        request = _fork_request(parent, snapshot.id, float(body.timeout or DEFAULT_TIMEOUT_S))
        results = await asyncio.gather(*(_create(call, request) for _ in range(body.count)))
    finally:
        # If this fails, its age deletes the snapshot: the forks must not be lost for it.
        with contextlib.suppress(SandlotError):
            await call.service.delete_snapshot(snapshot.id)
    return json_response(results, 201)


async def _create(call: ControlCall, request: CreateSession) -> dict[str, Any]:
    try:
        opened = await call.service.create_session(request)
    except SandlotError as error:
        return {"error": error_body(error)}
    return {"sandbox": call.sandbox_body(opened.session)}


def _fork_request(parent: Session, snapshot_id: str, timeout_s: float) -> CreateSession:
    return CreateSession(
        environment=parent.environment,
        snapshot=snapshot_id,
        limits=LimitChange(**asdict(parent.limits)),
        metadata=parent.metadata,
        lifetime_s=timeout_s,
        idle_timeout_s=timeout_s,
        on_idle=parent.on_idle,
        record=parent.record,
        network=parent.network,
        # Only one session can write to a volume.
        volumes=tuple(VolumeUse(volume.id, VolumeMode.RO) for volume in parent.volumes),
    )
