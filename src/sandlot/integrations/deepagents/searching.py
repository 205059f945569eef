"""Finding: names by glob, lines by literal text. One question to the sandbox, bounded in time and in size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from deepagents.backends.protocol import FileInfo, GlobResult, GrepMatch, GrepResult

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.domain.files import FileType, Search
from sandlot.integrations.deepagents.artifacts import WORKSPACE, real_path, shown_path
from sandlot.integrations.deepagents.globs import PSEUDO_FOLDERS, matcher, wider
from sandlot.integrations.deepagents.operation import Operation, absolute, file_error

SEARCHED_S: Final = 30.0
FOUND_FILES: Final = 10_000
LOOKED_AT_FILES: Final = 50_000  # of what the wider glob finds
FOUND_LINES: Final = 10_000  # as many as the sandbox tells of one search


def glob(pattern: str, path: str | None) -> Operation[GlobResult]:
    root = path or WORKSPACE

    async def work(session: AsyncSession) -> GlobResult:
        matches = matcher(pattern)
        below = real_path(absolute(root))
        async with _in_time("glob"):
            walk = await session.files.walk(below, glob=wider(pattern), limit=LOOKED_AT_FILES)
        found = [
            FileInfo(path=shown_path(entry.path, root), is_dir=False, size=entry.size)
            for entry in walk.entries
            if entry.type is FileType.FILE
            and matches(rel := _relative(entry.path, below))
            and _real(rel, below)
        ]
        found.sort(key=lambda info: info["path"])
        truncated = walk.truncated or len(found) > FOUND_FILES
        return GlobResult(
            matches=found[:FOUND_FILES],
            truncated=truncated,
            truncation_reason="budget" if truncated else None,
        )

    return Operation(work, lambda error: GlobResult(error=_about(root, error)))


def grep(
    pattern: str,
    path: str | None,
    include: str | None,
    max_count: int | None,
    exclude_dirs: Sequence[str],
) -> Operation[GrepResult]:
    root = path or WORKSPACE

    async def work(session: AsyncSession) -> GrepResult:
        if "\n" in pattern:
            raise InvalidRequest("grep looks at one line at a time; search for one line of the pattern")
        below = real_path(absolute(root))
        wanted = _filter(below, include, exclude_dirs)
        most = FOUND_LINES if max_count is None else min(max_count, FOUND_LINES)

        async def ask(limit: int) -> tuple[Search, list[GrepMatch]]:
            glob = wider(include) if include else None
            search = await session.files.search(below, pattern, glob=glob, limit=limit)
            return search, [
                GrepMatch(path=shown_path(match.path, root), line=match.line, text=match.text)
                for match in search.matches
                if match.path == below or wanted(_relative(match.path, below))
            ]

        async with _in_time("grep"):
            search, found = await ask(most)
            if search.truncated and len(found) < most < FOUND_LINES:
                search, found = await ask(FOUND_LINES)  # lines that are not wanted had taken the places
        return GrepResult(matches=found[:most], truncated=search.truncated or len(found) > most)

    return Operation(work, lambda error: GrepResult(error=_about(root, error)))


def _filter(below: str, include: str | None, exclude_dirs: Sequence[str]) -> Callable[[str], bool]:
    matches = matcher(include) if include else None
    # A search that begins in such a folder is meant to search it.
    excluded = set(exclude_dirs) - {below.rstrip("/").rpartition("/")[2]}

    def wanted(rel: str) -> bool:
        return (
            (matches is None or matches(rel))
            and excluded.isdisjoint(rel.split("/")[:-1])
            and _real(rel, below)
        )

    return wanted


def _relative(path: str, below: str) -> str:
    return path[len(below.rstrip("/")) + 1 :]


def _real(rel: str, below: str) -> bool:
    return below != "/" or rel.partition("/")[0] not in PSEUDO_FOLDERS


@asynccontextmanager
async def _in_time(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(SEARCHED_S):
            yield
    except TimeoutError:
        raise InvalidRequest(
            f"{what} took more than {SEARCHED_S:.0f} s; give a more specific pattern or a narrower path"
        ) from None


def _about(root: str, error: SandlotError) -> str:
    return f"Path '{root}': {file_error(error)}"
