"""The archives that clients upload for builds: in one folder, bounded, and gone when they are not needed."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from sandlot.domain.errors import Busy, StorageFull, TooLarge

# All archives together may be this many times as large as the largest upload.
_TOTAL_UPLOADS: Final = 4
_MAX_FILES: Final = 200


class Uploads:
    """``max_bytes``: of one archive."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def open(self) -> None:
        """Remove what an earlier process left: its builds are over."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)

    def path(self, template: str, files: str) -> Path:
        return self._of(template) / files

    def has(self, template: str, files: str) -> bool:
        return self.path(template, files).is_file()

    async def receive(self, template: str, files: str, content: AsyncIterator[bytes]) -> None:
        used, count = await asyncio.to_thread(self._used)
        if count >= _MAX_FILES:
            raise Busy("Too many files wait for builds. Start the builds that have theirs.", retry_after_s=30)
        limit = min(self._max_bytes, _TOTAL_UPLOADS * self._max_bytes - used)
        folder = self._of(template)
        folder.mkdir(mode=0o700, exist_ok=True)
        new = folder / f"{files}.{secrets.token_hex(8)}.new"
        size = 0
        try:
            with new.open("xb") as out:
                async for chunk in content:
                    size += len(chunk)
                    if size > limit:
                        raise TooLarge(
                            f"The files of this COPY have more than {limit} bytes. Leave some out with "
                            ".dockerignore.",
                            details={"max_bytes": limit},
                        )
                    await asyncio.to_thread(out.write, chunk)
            new.replace(folder / files)
        except OSError as error:
            raise StorageFull(f"The files could not be kept: {error.strerror}. Try again later.") from error
        finally:
            new.unlink(missing_ok=True)

    def remove(self, template: str) -> None:
        shutil.rmtree(self._of(template), ignore_errors=True)

    def _of(self, template: str) -> Path:
        return self._folder / hashlib.sha256(template.encode()).hexdigest()[:32]

    def _used(self) -> tuple[int, int]:
        sizes = [each.stat().st_size for each in self._folder.glob("*/*")]
        return sum(sizes), len(sizes)
