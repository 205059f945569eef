"""Saves an artifact: the chunks of its content that are not there yet, then its record."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.errors import StorageProblem
from sandlot.domain.workspaces.objects.limits import MAX_CHUNK_BYTES
from sandlot.worker.workspaces.objects.artifacts.records import MAX_CHUNKS, publish
from sandlot.worker.workspaces.objects.bucket.chunks import ChunkStore, Sending
from sandlot.worker.workspaces.objects.bucket.transfers import Transfers
from sandlot.worker.workspaces.objects.trees.contents import FileReader


@dataclass(slots=True)
class ArtifactSave:
    """One save. ``run`` blocks until it is done, and returns how many bytes were sent.

    ``file``: has the content. ``limit_s``: how long it may take.
    """

    store: ChunkStore
    transfers: Transfers
    artifact: Artifact
    file: Path
    limit_s: float

    def run(self) -> int:
        began = time.monotonic()
        # First of all: what is condemned later is deleted after this save has ended.
        sending = Sending(self.store, self.store.condemned())
        try:
            chunks = self._send(sending)
            self.transfers.finish()
        except BaseException:
            self.transfers.abandon()
            raise
        if time.monotonic() - began > self.limit_s:
            raise StorageProblem(
                f"Saving artifact {self.artifact.id} took longer than {self.limit_s:,.0f} s."
            )
        return sending.bytes_sent + publish(self.store, self.artifact, chunks)

    def _send(self, sending: Sending) -> list[bytes]:
        digest = hashlib.sha256()
        chunks: list[bytes] = []
        for data in self._blocks():
            self.transfers.check()
            digest.update(data)
            name = sending.name(data)
            if sending.is_new(name):
                self.transfers.send(lambda name=name, data=data: sending.send(name, data))  # type: ignore[misc]
            chunks.append(name)
            if len(chunks) > MAX_CHUNKS:
                raise StorageProblem(f"Artifact {self.artifact.id} is too large for the object storage.")
        if digest.hexdigest() != self.artifact.sha256:
            raise StorageProblem(
                f"The content of artifact {self.artifact.id} is damaged on the worker's disk."
            )
        return chunks

    def _blocks(self) -> Iterator[bytes]:
        """Cut as the files of snapshots are, so that both share what is equal."""
        reader = FileReader(self.store.keys.cuts)
        with self.file.open("rb") as opened:
            for data, length in reader.cuts(opened.fileno(), self.artifact.size):
                if data is not None:
                    yield data
                else:  # a file system has left out zeros
                    for start in range(0, length, MAX_CHUNK_BYTES):
                        yield bytes(min(MAX_CHUNK_BYTES, length - start))
