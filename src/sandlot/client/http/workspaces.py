"""The workspace methods of ``HttpService``.

Calls about one session's files may go straight to its worker. What changes a session's sandbox goes to the
server: the access in its answer is for the new one. So do calls about a snapshot alone, because only the
server knows which worker has it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sandlot.client.http.calls import EXECUTE_READ_S, ServiceCalls
from sandlot.client.http.paths import session_path, snapshot_path
from sandlot.client.http.transport.request import encode, query
from sandlot.domain.errors import NotFound, Unsupported
from sandlot.domain.session import Session
from sandlot.domain.workspaces.snapshots import (
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import WorkspaceStatus
from sandlot.wire.workspaces.snapshot_bodies import RestoreBody, RestoredBody, TakeSnapshotBody

# Seconds to wait for an answer: a store may have to copy every file, and an engine may be busy.
STORE_READ_S: Final = EXECUTE_READ_S

_STATUS: Final = msgspec.json.Decoder(WorkspaceStatus)
_SNAPSHOT: Final = msgspec.json.Decoder(Snapshot)
_SNAPSHOTS: Final = msgspec.json.Decoder(SnapshotPage)
_DIFFERENCE: Final = msgspec.json.Decoder(Difference)
_RESTORED: Final = msgspec.json.Decoder(RestoredBody)


class WorkspaceOperations(ServiceCalls):
    async def get_workspace(self, session_id: str) -> WorkspaceStatus:
        status: WorkspaceStatus = await self._read(
            session_id, _STATUS, session_path(session_id) + "/workspace"
        )
        return status

    async def hibernate_session(self, session_id: str) -> Session:
        path = session_path(session_id) + "/hibernate"
        return self._session(await self._store_call("POST", path, repeatable=True))

    async def take_snapshot(self, session_id: str, request: TakeSnapshot) -> Snapshot:
        calls = self._calls_to(session_id)
        answer = await calls.call(
            "POST",
            session_path(session_id) + "/snapshots",
            encode(TakeSnapshotBody.of(request)),
            # A second snapshot at the end of a step is the first one, if nothing has changed since.
            repeatable=bool(request.step),
            read_timeout_s=STORE_READ_S,
        )
        snapshot: Snapshot = calls.decode(_SNAPSHOT, answer)
        return snapshot

    async def list_snapshots(
        self, *, session_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> SnapshotPage:
        path = "/v1/snapshots" + query(session=session_id, after=after, limit=limit)
        try:
            answer = await self._get(path)
        except NotFound as error:
            raise Unsupported(
                f"The server at {self.url} is an older version, which has no snapshots. Update it."
            ) from error
        page: SnapshotPage = self._connection.decode(_SNAPSHOTS, answer)
        return page

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._call("DELETE", snapshot_path(snapshot_id), repeatable=True)

    async def compare_snapshot(self, snapshot_id: str, *, to: str | None = None) -> Difference:
        path = snapshot_path(snapshot_id) + "/diff" + query(to=to)
        answer = await self._store_call("GET", path, repeatable=True)
        difference: Difference = self._connection.decode(_DIFFERENCE, answer)
        return difference

    async def restore_snapshot(self, session_id: str, request: RestoreSnapshot) -> Restored:
        body = encode(RestoreBody.of(request))
        path = session_path(session_id) + "/restore"
        # Twice gives the same files as once. Nothing of the caller's ran in between: it still waits.
        answer = await self._store_call("POST", path, body, repeatable=True)
        decoded: RestoredBody = self._connection.decode(_RESTORED, answer)
        self._record_decoded(decoded.session)
        return decoded.to_domain()

    async def _store_call(
        self, method: str, path: str, body: bytes | None = None, *, repeatable: bool
    ) -> bytes:
        _, answer = await self._connection.call(
            method, path, body, repeatable=repeatable, read_timeout_s=STORE_READ_S
        )
        return answer
