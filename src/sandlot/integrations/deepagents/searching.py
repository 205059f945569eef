"""Searches for file names by glob and for lines by literal text, with limits on time and size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from deepagents.backends.protocol import FileInfo, GlobResult, GrepMatch, GrepResult

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, SandlotError
from sandlot.domain.files import FileType, Search
from sandlot.integrations.deepagents.artifacts import WORKSPACE, framework_path, sandbox_path
from sandlot.integrations.deepagents.globs import PSEUDO_FOLDERS, compile_matcher, superset_glob
from sandlot.integrations.deepagents.operation import Operation, file_error, normalized_path

SEARCH_TIMEOUT_S: Final = 30.0
MAX_FILES: Final = 10_000
MAX_WALKED_FILES: Final = 50_000  # matches of the superset glob
MAX_MATCHES: Final = 10_000  # the most that the sandbox returns from one search


def glob(pattern: str, path: str | None) -> Operation[GlobResult]:
    root = path or WORKSPACE

    async def work(session: AsyncSession) -> GlobResult:
        matches = compile_matcher(pattern)
        base = sandbox_path(normalized_path(root))
        async with _time_limit("glob"):
            walk = await session.files.walk(base, glob=superset_glob(pattern), limit=MAX_WALKED_FILES)
        found = [
            FileInfo(path=framework_path(entry.path, root), is_dir=False, size=entry.size)
            for entry in walk.entries
            if entry.type is FileType.FILE
            and matches(rel := _relative(entry.path, base))
            and _is_real_file(rel, base)
        ]
        found.sort(key=lambda info: info["path"])
        truncated = walk.truncated or len(found) > MAX_FILES
        return GlobResult(
            matches=found[:MAX_FILES],
            truncated=truncated,
            truncation_reason="budget" if truncated else None,
        )

    return Operation(work, lambda error: GlobResult(error=_path_error(root, error)))


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
            raise InvalidRequest("grep matches one line at a time. Search for a single line of the pattern.")
        base = sandbox_path(normalized_path(root))
        wanted = _path_filter(base, include, exclude_dirs)
        max_matches = MAX_MATCHES if max_count is None else min(max_count, MAX_MATCHES)

        async def search_once(limit: int) -> tuple[Search, list[GrepMatch]]:
            glob = superset_glob(include) if include else None
            search = await session.files.search(base, pattern, glob=glob, limit=limit)
            return search, [
                GrepMatch(path=framework_path(match.path, root), line=match.line, text=match.text)
                for match in search.matches
                if match.path == base or wanted(_relative(match.path, base))
            ]

        async with _time_limit("grep"):
            search, found = await search_once(max_matches)
            if search.truncated and len(found) < max_matches < MAX_MATCHES:
                # Lines that were filtered out had used up the limit.
                search, found = await search_once(MAX_MATCHES)
        return GrepResult(matches=found[:max_matches], truncated=search.truncated or len(found) > max_matches)

    return Operation(work, lambda error: GrepResult(error=_path_error(root, error)))


def _path_filter(base: str, include: str | None, exclude_dirs: Sequence[str]) -> Callable[[str], bool]:
    matches = compile_matcher(include) if include else None
    # A search that starts in an excluded folder is meant to search it.
    excluded = set(exclude_dirs) - {base.rstrip("/").rpartition("/")[2]}

    def wanted(rel: str) -> bool:
        return (
            (matches is None or matches(rel))
            and excluded.isdisjoint(rel.split("/")[:-1])
            and _is_real_file(rel, base)
        )

    return wanted


def _relative(path: str, base: str) -> str:
    return path[len(base.rstrip("/")) + 1 :]


def _is_real_file(rel: str, base: str) -> bool:
    return base != "/" or rel.partition("/")[0] not in PSEUDO_FOLDERS


@asynccontextmanager
async def _time_limit(operation: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT_S):
            yield
    except TimeoutError:
        raise InvalidRequest(
            f"{operation} took more than {SEARCH_TIMEOUT_S:.0f} s. Use a more specific pattern or a "
            "narrower path."
        ) from None


def _path_error(root: str, error: SandlotError) -> str:
    return f"Path '{root}': {file_error(error)}"
