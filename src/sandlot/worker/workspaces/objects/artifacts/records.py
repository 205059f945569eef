"""The records of saved artifacts. Writing one publishes its artifact; its content is in the tenant's chunks.

    artifacts/<artifact id>                       the artifact, and the chunks of its content in order
    kept/<worker's tag>/<place>-<session>-…       an empty mark, by which it is listed
    deleted/<worker's tag>/<artifact id>          at the root: the worker was away when it was deleted

The mark is written before the record and deleted after it. So what is published is listed, and a mark whose
record is missing says nothing.
"""

from __future__ import annotations

import hmac
from typing import Final

import msgspec

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.artifacts.saved import NO_THREAD, SavedMark
from sandlot.domain.errors import StorageProblem
from sandlot.domain.ids import artifact_tag, is_session_id
from sandlot.domain.paging import place_of
from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.worker.workspaces.objects.bucket.chunks import NAME_BYTES, ChunkStore, length_of
from sandlot.worker.workspaces.objects.bucket.keys import TenantKeys

RECORDS: Final = "artifacts"
MARKS: Final = "kept"
DELETED: Final = "deleted"
VERSION: Final = 1
# Of one artifact: their names fit in an object. At the smallest size of a chunk, those of 24 GiB.
MAX_CHUNKS: Final = 200_000


class SavedArtifact(msgspec.Struct, frozen=True):
    version: int
    artifact: Artifact
    chunks: list[bytes]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedArtifact)


def record_name(artifact_id: str) -> str:
    assert artifact_tag(artifact_id) is not None
    return f"{RECORDS}/{artifact_id}"


def thread_hash(keys: TenantKeys, thread: str | None) -> str:
    """What stands for a conversation in a mark's name, so that the storage does not show its id."""
    if thread is None:
        return NO_THREAD
    return hmac.digest(keys.seal, b"thread\0" + thread.encode(), "sha256")[:8].hex()


def mark_name(keys: TenantKeys, artifact: Artifact) -> str:
    assert is_session_id(artifact.session_id)
    thread = thread_hash(keys, artifact.thread)
    mark = SavedMark(place_of(artifact), artifact.id, artifact.session_id, thread)
    return f"{MARKS}/{artifact_tag(artifact.id)}/{mark.name}"


def publish(store: ChunkStore, artifact: Artifact, chunks: list[bytes]) -> int:
    """Returns how many bytes were sent."""
    marked = store.write_object(mark_name(store.keys, artifact), b"")
    record = _ENCODER.encode(SavedArtifact(VERSION, artifact, chunks))
    return marked + store.write_object(record_name(artifact.id), record)


def find_saved(store: ChunkStore, artifact_id: str, tenant: str | None = None) -> SavedArtifact | None:
    """``tenant``: whose it must be. ``None``: whoever's keys these are."""
    content = store.read_object(record_name(artifact_id))
    if content is None:
        return None
    try:
        saved = _DECODER.decode(content)
    except msgspec.MsgspecError:
        raise damaged(f"the record of {artifact_id} has no valid content") from None
    if saved.version != VERSION:
        raise StorageProblem(
            f"Artifact {artifact_id} was saved by a newer version of Sandlot. Upgrade this worker."
        )
    if saved.artifact.id != artifact_id or tenant not in (None, saved.artifact.tenant):
        raise damaged(f"the record of {artifact_id} is another one's")
    if any(len(name) != NAME_BYTES for name in saved.chunks):
        raise damaged(f"the record of {artifact_id} names no valid chunks")
    if sum(map(length_of, saved.chunks)) != saved.artifact.size:
        raise damaged(f"the content of {artifact_id} has the wrong size")
    return saved
