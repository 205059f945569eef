"""Records of edits, so that a repeated step of a run does not apply its edit twice.

Before the file is written, the digest of its new content is saved in the sandbox. If the file
matches the digest, the edit was applied. After a crash in between, the file does not match, and the
edit is still to be applied.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.integrations.toolbox.retention import write_and_prune

EDITS_FOLDER: Final = "/tmp/.sandlot-edits"  # noqa: S108  in the sandbox, which has one user
MAX_RECORDS: Final = 100
MAX_RECORD_BYTES: Final = 100


class EditRecord:
    """The record of one edit. ``parts`` identify the edit: the call, the path and the texts."""

    def __init__(self, session: AsyncSession, *parts: str) -> None:
        self._session = session
        digests = b"".join(hashlib.sha256(part.encode("utf-8", "replace")).digest() for part in parts)
        self._name = "edit-" + hashlib.sha256(digests).hexdigest()[:32]

    async def replaced_count(self, content: bytes) -> int | None:
        """How many places the edit replaced; None if the file is not as the edit left it."""
        try:
            record = await self._session.files.read(
                f"{EDITS_FOLDER}/{self._name}", max_bytes=MAX_RECORD_BYTES
            )
        except SandlotError:
            return None
        digest, _, count = record.partition(b" ")
        return int(count) if digest == _digest(content) and count.isdigit() else None

    async def save(self, after: bytes, count: int) -> None:
        """Save the record. If there is no space, a repeated step may apply the edit twice."""
        with contextlib.suppress(SandlotError):
            await write_and_prune(
                self._session, EDITS_FOLDER, self._name, b"%s %d" % (_digest(after), count), MAX_RECORDS
            )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
