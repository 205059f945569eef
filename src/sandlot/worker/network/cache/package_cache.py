"""The package cache: answers from the disk, and asks a registry once for however many want the same.

Files are kept as they are. Pages are kept with their links rewritten, and asked for again after a minute. If
the registry does not answer then, the page that is there is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from sandlot.domain.errors import SandlotError
from sandlot.domain.packages.pages import rewritten
from sandlot.domain.packages.registries import Registry, Wanted
from sandlot.worker.network.cache.disk import Disk
from sandlot.worker.network.cache.downloads import Blob, Download, Source, too_large
from sandlot.worker.network.cache.fetching import NOT_MODIFIED, OK, Answer, Fetcher
from sandlot.worker.network.cache.options import CacheOptions
from sandlot.worker.network.cache.sharing import Shared
from sandlot.worker.network.cache.store import Entry, PackageStore
from sandlot.worker.network.dialer import Dialer
from sandlot.worker.network.streams import HostProblem

THREADS: Final = 8
NOT_FOUND: Final = (404, 410, 451)
T = TypeVar("T")
How = Literal["hit", "miss", "stale"]


@dataclass(frozen=True, slots=True)
class Content:
    """``how``: from the disk, from the registry, or from the disk because the registry does not answer.
    ``etag``: of a page. The receiver closes ``source``."""

    source: Source
    type: str
    how: How
    etag: str = ""


class PackageCache:
    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        registries: Iterable[Registry],
        dialer: Dialer,
        options: CacheOptions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registries = {registry.name: registry for registry in registries}
        self._options = options or CacheOptions()
        self._store = PackageStore(folder, max_bytes, clock)
        # Half, so that one file does not push out everything else.
        self._max_file_bytes = max_bytes // 2
        self._fetcher = Fetcher(dialer, self._options)
        self._disk = Disk(THREADS)
        self._clock = clock
        self._slots = asyncio.Semaphore(self._options.at_once)
        self._page_slots = asyncio.Semaphore(self._options.pages_at_once)
        self._pages: dict[str, Shared[None]] = {}
        self._files: dict[str, Shared[Download]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept_count = 0

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()
        self._disk.close()

    async def get(self, registry: Registry, wanted: Wanted) -> Content:
        """Raises ``HostProblem``."""
        try:
            return await (self._file(wanted) if wanted.is_file else self._page(registry, wanted))
        except SandlotError as error:
            raise _cannot_keep(error) from None

    # --- pages --------------------------------------------------------------------------------

    async def _page(self, registry: Registry, wanted: Wanted) -> Content:
        known = await self._kept(wanted)
        if known is not None and self._clock() - known[0].checked_at < self._options.fresh_s:
            return _page_content(*known, "hit")
        try:
            await self._refreshed(registry, wanted, "" if known is None else known[0].etag)
        except HostProblem as error:
            if known is not None and error.status not in NOT_FOUND:
                return _page_content(*known, "stale")
            _close(known)
            raise
        except BaseException:
            _close(known)
            raise
        _close(known)
        fresh = await self._kept(wanted)
        if fresh is None:
            raise too_large(self._store.max_bytes)
        return _page_content(*fresh, "miss")

    async def _refreshed(self, registry: Registry, wanted: Wanted, etag: str) -> None:
        """Asks once for all that want the page now."""
        shared = self._pages.get(wanted.key)
        if shared is None:
            running = self._start(self._refresh(registry, wanted, etag))
            shared = self._share(self._pages, wanted, running, running)
            running.add_done_callback(lambda _: _forget(self._pages, wanted, running))
        await shared.wait()

    async def _refresh(self, registry: Registry, wanted: Wanted, etag: str) -> None:
        with self._in_time(wanted):
            async with self._page_slots, asyncio.timeout(self._options.page_s):
                async with self._fetcher.get(wanted, etag) as answer:
                    if etag and answer.status == NOT_MODIFIED:
                        await self._store.checked(wanted.key, self._clock())
                        return
                    _check_status(answer, wanted)
                    body = await self._read_page(answer)
                await self._keep_page(registry, wanted, answer, body)

    async def _read_page(self, answer: Answer) -> bytes:
        body = bytearray()
        async for data in answer.body():
            body += data
            if len(body) > self._options.max_page_bytes:
                raise too_large(self._options.max_page_bytes)
        return bytes(body)

    async def _keep_page(self, registry: Registry, wanted: Wanted, answer: Answer, body: bytes) -> None:
        def work() -> tuple[Path, bytes]:
            page = rewritten(registry, wanted, answer.type, body)
            path, file = self._store.new_file()
            with os.fdopen(file, "wb") as writing:
                writing.write(page)
                writing.flush()
                os.fsync(writing.fileno())
            return path, page

        try:
            path, page = await self._disk.run(work)
        except OSError as error:
            raise _cannot_write(error) from None
        digest = hashlib.sha256(page).hexdigest()
        entry = Entry(digest, len(page), answer.type, answer.etag, self._clock())
        await self._keep(wanted, path, entry)

    # --- files --------------------------------------------------------------------------------

    async def _file(self, wanted: Wanted) -> Content:
        while True:
            known = await self._kept(wanted)
            if known is not None:
                return Content(known[1], known[0].type, "hit")
            shared = self._files.get(wanted.key)
            if shared is None:
                begun: asyncio.Future[Download] = asyncio.get_running_loop().create_future()
                running = self._start(self._download(wanted, begun))
                shared = self._share(self._files, wanted, begun, running)
            download = await shared.wait()
            if (source := download.follow()) is not None:
                return Content(source, download.type, "miss")

    async def _download(self, wanted: Wanted, begun: asyncio.Future[Download]) -> None:
        download: Download | None = None
        task = asyncio.current_task()
        assert task is not None

        def abandon() -> None:
            _forget(self._files, wanted, begun)
            task.cancel()

        try:
            with self._in_time(wanted):
                async with (
                    self._slots,
                    asyncio.timeout(self._options.total_s),
                    self._fetcher.get(wanted) as answer,
                ):
                    _check_status(answer, wanted)
                    if (answer.length or 0) > self._max_file_bytes:
                        raise too_large(self._max_file_bytes)
                    download = await self._new_download(answer, abandon)
                    begun.set_result(download)
                    await download.fill(self._max_file_bytes)
                entry = Entry(download.sha256, download.written, download.type, "", self._clock())
                await self._keep(wanted, download.path, entry)
            _forget(self._files, wanted, begun)
            download.end()
        except BaseException as error:
            _forget(self._files, wanted, begun)
            problem = _problem_of(error)
            if download is None:
                begun.set_exception(problem)
                begun.exception()  # whoever waited for it may be gone
            else:
                download.path.unlink(missing_ok=True)
                download.end(problem)
            if problem is not error:
                raise

    async def _new_download(self, answer: Answer, abandon: Callable[[], object]) -> Download:
        made: list[tuple[Path, int]] = []
        try:
            await self._disk.run(lambda: made.append(self._store.new_file()))
        except OSError as error:
            raise _cannot_write(error) from None
        except asyncio.CancelledError:
            for path, file in made:
                os.close(file)
                path.unlink()
            raise
        return Download(self._disk, *made[0], answer, abandon, self._options.linger_s)

    # --- both ---------------------------------------------------------------------------------

    async def _keep(self, wanted: Wanted, path: Path, entry: Entry) -> None:
        await self._store.add(wanted.key, path, entry)
        self._kept_count += 1

    async def _kept(self, wanted: Wanted) -> tuple[Entry, Blob] | None:
        """If it is None, whoever fetches it now is in ``_files`` or ``_pages``."""
        while True:
            kept_before = self._kept_count
            found = await self._find(wanted)
            # A fetch may have ended between the look-up and now. It would be fetched twice.
            if found is not None or self._kept_count == kept_before:
                return found

    async def _find(self, wanted: Wanted) -> tuple[Entry, Blob] | None:
        finding = asyncio.create_task(self._store.find(wanted.key))
        try:
            found = await asyncio.shield(finding)
        except asyncio.CancelledError:
            finding.add_done_callback(_close_found)  # the file may be opened all the same
            raise
        return None if found is None else (found[0], Blob(self._disk, found[1], found[0].size))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="package cache")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it, or is gone

    def _share(
        self,
        under_way: dict[str, Shared[T]],
        wanted: Wanted,
        result: asyncio.Future[T],
        running: asyncio.Task[None],
    ) -> Shared[T]:
        def abandon() -> None:
            _forget(under_way, wanted, result)
            running.cancel()

        shared = under_way[wanted.key] = Shared(result, abandon)
        return shared

    @contextlib.contextmanager
    def _in_time(self, wanted: Wanted) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise HostProblem(504, f"{wanted.target} takes too long.") from None


def _forget(under_way: dict[str, Shared[T]], wanted: Wanted, result: asyncio.Future[T]) -> None:
    """Those who come from now on ask anew."""
    known = under_way.get(wanted.key)
    if known is not None and known.result is result:
        del under_way[wanted.key]


def _check_status(answer: Answer, wanted: Wanted) -> None:
    if answer.status in NOT_FOUND:
        raise HostProblem(404, f"{wanted.url} does not exist.")
    if answer.status != OK:
        raise HostProblem(502, f"{wanted.target} answers with status {answer.status}.")


def _page_content(entry: Entry, blob: Blob, how: How) -> Content:
    return Content(blob, entry.type, how, f'"{entry.sha256}"')


def _close_found(finding: asyncio.Task[tuple[Entry, int] | None]) -> None:
    if not finding.cancelled() and finding.exception() is None and (found := finding.result()) is not None:
        os.close(found[1])


def _close(known: tuple[Entry, Blob] | None) -> None:
    if known is not None:
        known[1].close()


def _problem_of(error: BaseException) -> HostProblem:
    if isinstance(error, HostProblem):
        return error
    if isinstance(error, SandlotError):
        return _cannot_keep(error)
    return HostProblem(502, "The download was given up.")


def _cannot_keep(error: SandlotError) -> HostProblem:
    return HostProblem(507, f"The package cache cannot keep it. {error.message}")


def _cannot_write(error: OSError) -> HostProblem:
    return HostProblem(507, f"The package cache cannot write to its disk: {os.strerror(error.errno or 0)}.")
