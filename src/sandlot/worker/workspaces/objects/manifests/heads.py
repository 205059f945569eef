"""Reads and writes manifests' heads. Writing one publishes its snapshot."""

from __future__ import annotations

import msgspec

from sandlot.domain.errors import NotFound, StorageProblem
from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore
from sandlot.worker.workspaces.objects.manifests.records import VERSION, Head, encoder, head_decoder


def write_head(store: ChunkStore, head: Head) -> int:
    return store.write_object(_name(head.snapshot), encoder.encode(head))


def read_head(store: ChunkStore, snapshot_id: str) -> Head:
    found = find_head(store, snapshot_id)
    if found is None:
        raise NotFound(f"Snapshot {snapshot_id[:64]!r} is not in the object storage. It may be deleted.")
    return found


def find_head(store: ChunkStore, snapshot_id: str) -> Head | None:
    content = store.read_object(_name(snapshot_id))
    if content is None:
        return None
    try:
        head = head_decoder.decode(content)
    except msgspec.MsgspecError:
        raise damaged(f"the manifest of {snapshot_id} has no valid content") from None
    if head.version != VERSION:
        raise StorageProblem(
            f"Snapshot {snapshot_id} was saved by a newer version of Sandlot. Upgrade this worker."
        )
    if head.snapshot != snapshot_id:
        raise damaged(f"the manifest of {snapshot_id} is another one's")
    return head


def head_path(store: ChunkStore, snapshot_id: str) -> str:
    return f"{store.keys.folder}/{_name(snapshot_id)}"


def _name(snapshot_id: str) -> str:
    return f"snapshots/{snapshot_id}"
