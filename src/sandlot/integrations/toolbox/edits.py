"""Edits that are done once, although the step of a run that asks for them may be executed again.

What an edit will leave is noted in the sandbox before the file is written: if the file is as noted, it was
done; a crash in between is an edit that is still to be done.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.integrations.toolbox.keeping import keep_newest

FOLDER: Final = "/tmp/.sandlot-edits"  # noqa: S108  in the sandbox, which has one user
KEPT: Final = 100
NOTE_BYTES: Final = 100


class Edit:
    """``parts``: what makes it this edit and no other: the call, the path, the texts."""

    def __init__(self, session: AsyncSession, *parts: str) -> None:
        self._session = session
        digests = b"".join(hashlib.sha256(part.encode("utf-8", "replace")).digest() for part in parts)
        self._name = "edit-" + hashlib.sha256(digests).hexdigest()[:32]

    async def replaced(self, content: bytes) -> int | None:
        """How many places it has replaced, if the file is as it left it."""
        try:
            noted = await self._session.files.read(f"{FOLDER}/{self._name}", max_bytes=NOTE_BYTES)
        except SandlotError:
            return None
        digest, _, count = noted.partition(b" ")
        return int(count) if digest == _digest(content) and count.isdigit() else None

    async def note(self, after: bytes, count: int) -> None:
        """Without room for it the edit may be done twice, as anywhere."""
        with contextlib.suppress(SandlotError):
            await keep_newest(self._session, FOLDER, self._name, b"%s %d" % (_digest(after), count), KEPT)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
