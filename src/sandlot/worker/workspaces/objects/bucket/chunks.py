"""The chunks of one tenant: content under names that are keyed hashes of it."""

from __future__ import annotations

import hmac
import os
import threading
from typing import Final

import msgspec

from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.worker.workspaces.objects.bucket.bucket import Bucket
from sandlot.worker.workspaces.objects.bucket.keys import TenantKeys
from sandlot.worker.workspaces.objects.bucket.sealing import MIN_SEALED_BYTES, seal, unseal

_ID_BYTES: Final = 32
# Of the variant and of the length.
_NUMBER_BYTES: Final = 4
NAME_BYTES: Final = _ID_BYTES + 2 * _NUMBER_BYTES
_PLAIN: Final = bytes(_NUMBER_BYTES)


class ChunkStore:
    """A chunk's name: the keyed hash of its content, a variant, its length.

    The variant is zero, unless the chunk was condemned when it was saved. Then it was sent again, under a
    name that no collection deletes.
    """

    def __init__(self, bucket: Bucket, keys: TenantKeys) -> None:
        self.bucket = bucket
        self.keys = keys

    def id_of(self, content: bytes, *, part: bool) -> bytes:
        return hmac.digest(self.keys.parts if part else self.keys.chunks, content, "sha256")

    def path_of(self, name: bytes) -> str:
        return f"{self.keys.folder}/{place_of(name)}"

    def get(self, name: bytes, *, part: bool = False) -> bytes:
        path = self.path_of(name)
        sealed = self.bucket.get(path)
        if sealed is None:
            raise damaged(f"{path} is missing")
        content = unseal(sealed, self.keys.seal, path, encrypted=self.keys.encrypts)
        if len(content) != length_of(name) or self.id_of(content, part=part) != name[:_ID_BYTES]:
            raise damaged(f"{path} holds something else")
        return content

    def condemned(self) -> dict[str, float]:
        """Chunks that a collection is about to delete, and since when."""
        found = self.read_object("condemned")
        if found is None:
            return {}
        try:
            return msgspec.msgpack.decode(found, type=dict[str, float])
        except msgspec.MsgspecError:
            raise damaged(f"{self.keys.folder}/condemned has no valid content") from None

    def write_object(self, name: str, content: bytes) -> int:
        """Returns how many bytes were sent."""
        path = f"{self.keys.folder}/{name}"
        sealed = seal(content, self.keys.seal, path, encrypt=self.keys.encrypts)
        self.bucket.put(path, sealed)
        return len(sealed)

    def read_object(self, name: str) -> bytes | None:
        path = f"{self.keys.folder}/{name}"
        sealed = self.bucket.get(path)
        return None if sealed is None else unseal(sealed, self.keys.seal, path, encrypted=self.keys.encrypts)


class Sending:
    """Sends the chunks of one save, each once. It is used from several threads.

    ``condemned``: the chunks not to rely on. ``trusts``: whether a chunk that is there is taken as good.
    After damage was seen, everything is sent again, and so repaired.
    """

    def __init__(self, store: ChunkStore, condemned: dict[str, float]) -> None:
        self.store = store
        self.trusts = True
        self.bytes_sent = 0
        self._condemned = condemned
        self._variant = os.urandom(_NUMBER_BYTES)
        self._known: set[bytes] = set()
        self._lock = threading.Lock()

    def name(self, content: bytes, *, part: bool = False) -> bytes:
        chunk_id = self.store.id_of(content, part=part)
        name = chunk_id + _PLAIN + len(content).to_bytes(_NUMBER_BYTES)
        if place_of(name) in self._condemned:
            return chunk_id + self._variant + name[-_NUMBER_BYTES:]
        return name

    def is_new(self, name: bytes) -> bool:
        """Whether it has to be sent, as far as this save knows. It is asked once for each chunk."""
        with self._lock:
            if name in self._known:
                return False
            self._known.add(name)
            return True

    def rely_on(self, name: bytes) -> None:
        """A manifest that is being read has this chunk."""
        if self.trusts:
            with self._lock:
                self._known.add(name)

    def send(self, name: bytes, content: bytes) -> None:
        path = self.store.path_of(name)
        if self.trusts:
            found = self.store.bucket.find(path)
            if found is not None and found.size >= MIN_SEALED_BYTES:
                return
        keys = self.store.keys
        sealed = seal(content, keys.seal, path, encrypt=keys.encrypts)
        self.store.bucket.put(path, sealed)
        self.count(len(sealed))

    def count(self, sent_bytes: int) -> None:
        with self._lock:
            self.bytes_sent += sent_bytes


def place_of(name: bytes) -> str:
    """Where a chunk is in its tenant's folder."""
    chunk_id, variant = name[:_ID_BYTES].hex(), name[_ID_BYTES:-_NUMBER_BYTES]
    return f"chunks/{chunk_id[:2]}/{chunk_id[2:]}" + ("" if variant == _PLAIN else f"-{variant.hex()}")


def length_of(name: bytes) -> int:
    return int.from_bytes(name[-_NUMBER_BYTES:])
