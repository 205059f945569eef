"""A folder or an S3 bucket: the few calls on objects that everything else here is made of.

The calls block; they run in threads.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from sandlot.domain.errors import StorageFull, StorageProblem
from sandlot.domain.workspaces.objects.entry_names import damaged
from sandlot.domain.workspaces.objects.limits import MAX_OBJECT_BYTES
from sandlot.worker.workspaces.objects.options import ObjectOptions

T = TypeVar("T")

# One request, and a request with its repetitions.
REQUEST_S: Final = 60
RETRY_S: Final = 120
DELETE_AT_ONCE: Final = 500
# What an interrupted write leaves in a folder, beside the object's own name.
_LEFTOVER: Final = re.compile(r".+#\d+")


@dataclass(frozen=True, slots=True)
class Listed:
    path: str
    size: int
    age_s: float


class Bucket:
    def __init__(self, options: ObjectOptions) -> None:
        self._shown = str(options.location)
        self._folder = Path(options.location.folder) if options.location.folder else None
        self._store = self._guard(lambda: self._open(options))

    def _open(self, options: ObjectOptions) -> ObjectStore:
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return LocalStore(self._folder)
        given: dict[str, Any] = {
            "endpoint": options.endpoint,
            "region": options.region,
            "access_key_id": options.access_key_id,
            "secret_access_key": options.secret_access_key,
        }
        return S3Store(
            options.location.bucket,
            prefix=options.location.prefix or None,
            client_options={
                "timeout": f"{REQUEST_S}s",
                "connect_timeout": "10s",
                "allow_http": (options.endpoint or "").startswith("http://"),
            },
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_S)},
            **{name: value for name, value in given.items() if value is not None},
        )

    def put(self, path: str, content: bytes) -> None:
        """Write an object as a whole, or not at all."""
        self._guard(lambda: obstore.put(self._store, path, content, use_multipart=False))
        if self._folder is not None:
            # A manifest must not survive a power cut that its chunks do not.
            _sync(self._folder / path)

    def get(self, path: str) -> bytes | None:
        """``None`` if there is no such object."""

        def work() -> bytes | None:
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            if found.meta["size"] > MAX_OBJECT_BYTES:
                raise damaged(f"{path} is too large")
            return bytes(found.bytes())

        return self._guard(work)

    def find(self, path: str) -> Listed | None:
        def work() -> Listed | None:
            try:
                return _listed(obstore.head(self._store, path))
            except FileNotFoundError:
                return None

        return self._guard(work)

    def list(self, folder: str) -> Iterator[Listed]:
        """Everything below a folder, in no order."""
        pages = self._guard(lambda: iter(obstore.list(self._store, folder, chunk_size=1000)))
        while (page := self._guard(lambda: next(pages, None))) is not None:
            yield from map(_listed, page)

    def folders(self, folder: str) -> Sequence[str]:
        """The names of the folders in a folder."""
        found = self._guard(lambda: obstore.list_with_delimiter(self._store, folder))
        return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    def delete(self, paths: Sequence[str]) -> None:
        """What is gone already stays gone."""
        for start in range(0, len(paths), DELETE_AT_ONCE):
            batch = list(paths[start : start + DELETE_AT_ONCE])
            try:
                self._guard(lambda batch=batch: obstore.delete(self._store, batch))  # type: ignore[misc]
            except StorageProblem:
                # One that is gone can end a batch. Alone, each says what is wrong.
                for path in batch:
                    self._guard(lambda path=path: self._delete(path))  # type: ignore[misc]

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def remove_leftovers(self, folder: str, older_than_s: float) -> None:
        """Remove what interrupted writes left in a folder. S3 keeps nothing of those."""
        if self._folder is None:
            return
        before = time.time() - older_than_s
        for path in (self._folder / folder).rglob("*#*"):
            with contextlib.suppress(FileNotFoundError):
                if _LEFTOVER.fullmatch(path.name) and path.is_file() and path.stat().st_mtime < before:
                    path.unlink()

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (BaseError, OSError, ValueError) as error:
            # Only the first line: what follows is for the library's developers. No credentials are in it.
            reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
            full = getattr(error, "errno", None) == 28 or "os error 28" in reason
            kind = StorageFull if full else StorageProblem
            raise kind(
                f"The object storage {self._shown} failed: {reason}. Check SANDLOT_OBJECTS_URL and its "
                "credentials.",
                retryable=True,
            ) from error


def _listed(meta: Any) -> Listed:
    return Listed(meta["path"], meta["size"], time.time() - meta["last_modified"].timestamp())


def _sync(path: Path) -> None:
    for place, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        try:
            opened = os.open(place, flags)
        except FileNotFoundError:  # a collection or a deletion was faster
            return
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
