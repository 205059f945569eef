"""Artifacts: files that are kept, listed, downloaded and deleted, and outlive their sessions."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.errors import FileProblem, InvalidRequest, NotFound, SandlotError, SessionEnded
from sandlot.domain.ids import new_session_id
from sandlot.domain.session import SessionState
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import (
    Cases,
    ServiceHarness,
    check_three_fields,
    deleted_afterwards,
    ok,
    unique,
)

# Seconds by which an idle session has ended or hibernates, and its files are kept.
GONE_WITHIN_S = 30.0


def unknown_artifact(like: str = "") -> str:
    """The id of an artifact that does not exist, on the same worker as ``like``."""
    tag = like[4:12] or secrets.token_hex(4)
    return f"art_{tag}{secrets.token_hex(12)}"


async def kept_one(session: AsyncSession, path: str, data: bytes) -> Artifact:
    await session.files.write(path, data)
    kept = await session.artifacts.keep(path)
    assert len(kept.kept) == 1, kept
    return kept.kept[0]


async def paths_of(session: AsyncSession) -> list[str]:
    return [artifact.path async for artifact in session.artifacts.list()]


class ArtifactCases(Cases):
    async def test_files_are_kept_by_pattern(self, fresh: AsyncSession) -> None:
        for path in ("out/a.png", "out/b.png", "out/deep/c.png", "out/notes.txt", "top.png"):
            await fresh.files.write(path, path.encode())
        done = await fresh.artifacts.keep("out/*.png", "none/*", "/workspace/top.png")
        assert [artifact.path for artifact in done.kept] == ["out/a.png", "out/b.png", "top.png"]
        assert (done.unmatched, done.refused) == (("none/*",), ())
        artifact = done.kept[0]
        info = fresh.info
        assert (artifact.session_id, artifact.tenant, artifact.thread) == (fresh.id, info.tenant, None)
        assert (artifact.size, artifact.media_type) == (9, "image/png")
        assert artifact.sha256 == hashlib.sha256(b"out/a.png").hexdigest()
        assert artifact.created_at >= info.created_at
        deep = await fresh.artifacts.keep("**/*.png")
        assert sorted(artifact.path for artifact in deep.kept) == [
            "out/a.png",
            "out/b.png",
            "out/deep/c.png",
            "top.png",
        ]

    async def test_a_folder_means_all_files_below_it(self, fresh: AsyncSession) -> None:
        for path in ("out/a", "out/deep/b", "other"):
            await fresh.files.write(path, b"x")
        done = await fresh.artifacts.keep("out/")
        assert [artifact.path for artifact in done.kept] == ["out/a", "out/deep/b"]

    async def test_they_stay_after_the_sessions_end(self, client: AsyncClient, tmp_path: Path) -> None:
        async with deleted_afterwards(client.thread(thread := unique())) as session:
            artifact = await kept_one(session, "report.txt", b"final\n")
        with pytest.raises(SessionEnded):
            await client.get(session.id)
        assert await client.artifacts.get(artifact.id) == artifact
        assert await client.artifacts.read(artifact) == b"final\n"
        listed = [found async for found in client.artifacts.list(session.id)]
        assert listed == [artifact] == [found async for found in client.artifacts.list(thread=thread)]
        assert artifact.thread == thread
        await client.artifacts.download(artifact.id, tmp_path)
        assert (tmp_path / "report.txt").read_bytes() == b"final\n"
        await client.artifacts.download(artifact, tmp_path / "new" / "name")
        assert (tmp_path / "new" / "name").read_bytes() == b"final\n"
        assert sorted(os.listdir(tmp_path)) == ["new", "report.txt"]

    async def test_what_has_not_changed_is_kept_once(self, fresh: AsyncSession, tmp_path: Path) -> None:
        first = await kept_one(fresh, "a", b"1")
        assert (await fresh.artifacts.keep("a")).kept == (first,)
        second = await kept_one(fresh, "a", b"2")
        assert second.id != first.id
        assert await paths_of(fresh) == ["a", "a"]
        for asked, data in (("a", b"2"), (first, b"1"), (second.id, b"2")):
            await fresh.artifacts.download(asked, tmp_path / "a")
            assert (tmp_path / "a").read_bytes() == data
        with pytest.raises(NotFound, match="has kept no file 'b'"):
            await fresh.artifacts.download("b", tmp_path)

    async def test_an_artifact_never_changes(self, client: AsyncClient, fresh: AsyncSession) -> None:
        artifact = await kept_one(fresh, "a", b"before")
        await fresh.files.write("a", b"after!")
        await fresh.files.remove("a")
        assert await client.artifacts.read(artifact) == b"before"

    async def test_deleted_artifacts_are_gone(self, client: AsyncClient, fresh: AsyncSession) -> None:
        # Two artifacts with one content: the other one's stays.
        artifact, twin = await kept_one(fresh, "a", b"same"), await kept_one(fresh, "b", b"same")
        await client.artifacts.delete(artifact)
        await client.artifacts.delete(artifact.id)
        for call in (client.artifacts.get, client.artifacts.read):
            with pytest.raises(NotFound) as caught:
                await call(artifact.id)
            check_three_fields(caught.value)
        assert await paths_of(fresh) == ["b"]
        assert await client.artifacts.read(twin) == b"same"
        again = (await fresh.artifacts.keep("a")).kept[0]
        assert again.id != artifact.id

    async def test_large_and_empty_files(self, client: AsyncClient, fresh: AsyncSession) -> None:
        data = secrets.token_bytes(1024 * 1024) * 5
        artifact = await kept_one(fresh, "large.bin", data)
        assert (artifact.size, artifact.media_type) == (len(data), "application/octet-stream")
        pieces = [piece async for piece in client.artifacts.stream(artifact)]
        assert b"".join(pieces) == data
        with pytest.raises(FileProblem, match="exceeds"):
            await client.artifacts.read(artifact, max_bytes=1000)
        empty = await kept_one(fresh, "empty", b"")
        assert (empty.size, await client.artifacts.read(empty)) == (0, b"")

    async def test_links_are_not_followed(self, fresh: AsyncSession) -> None:
        await fresh.files.write("real/a", b"x")
        await ok(fresh, "ln -s /etc outside; ln -s real inside; ln -s /etc/hostname file")
        done = await fresh.artifacts.keep("outside/*", "outside/hostname", "inside/a", "file", "**")
        assert [artifact.path for artifact in done.kept] == ["real/a"]
        assert done.unmatched == ("outside/*", "outside/hostname", "inside/a", "file")

    async def test_pages_of_artifacts(self, service_harness: ServiceHarness, fresh: AsyncSession) -> None:
        service = service_harness.service
        if service is None:
            pytest.skip("the sync client shows no pages")
        kept = [(await kept_one(fresh, str(number), b"x")).id for number in range(5)]
        found, after = [], None
        while True:
            page = await service.list_artifacts(session_id=fresh.id, after=after, limit=2)
            found += [artifact.id for artifact in page.artifacts]
            assert page.missing == ()
            if (after := page.next) is None:
                break
        assert found == kept
        for wrong in ("x", "../..", f"{0:020.6f}-{new_session_id()}"):
            with pytest.raises(InvalidRequest, match="not a page cursor"):
                await service.list_artifacts(after=wrong)
        for limit in (0, 1001):
            with pytest.raises(InvalidRequest, match="limit"):
                await service.list_artifacts(limit=limit)

    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b", "", "x" * 1025, "/workspacex/a"])
    async def test_paths_that_cannot_be_kept(
        self, client: AsyncClient, session: AsyncSession, path: str
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await session.artifacts.keep(path)
        check_three_fields(caught.value)
        with pytest.raises(InvalidRequest):
            await client.create(artifacts=[path])

    async def test_too_many_and_no_paths(self, session: AsyncSession) -> None:
        with pytest.raises(InvalidRequest):
            await session.artifacts.keep()
        with pytest.raises(InvalidRequest, match="At most 100"):
            await session.artifacts.keep(*(f"f{number}" for number in range(101)))

    @pytest.mark.parametrize("artifact_id", ["x", "art_", "../..", "art_" + "g" * 32, "x" * 1000, "a b"])
    async def test_malformed_artifact_id(self, client: AsyncClient, artifact_id: str) -> None:
        calls: tuple[Callable[[str], Awaitable[object]], ...] = (
            client.artifacts.get,
            client.artifacts.read,
            client.artifacts.delete,
        )
        for call in calls:
            with pytest.raises(NotFound) as caught:
                await call(artifact_id)
            assert type(caught.value) is NotFound

    async def test_files_of_a_lost_session_are_not_there_to_keep(
        self, client: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        async with await client.create() as session:
            artifact = await kept_one(session, "a", b"x")
            await service_harness.lose(session.id)

            async def refused() -> bool:
                try:
                    await session.artifacts.keep("a")
                except SandlotError:
                    return True
                return False

            await eventually(refused, GONE_WITHIN_S, "the loss is seen")
            assert await client.artifacts.read(artifact) == b"x"


class DeclaredArtifactCases(Cases):
    async def test_declared_files_are_kept_when_the_session_is_deleted(self, client: AsyncClient) -> None:
        session = await client.create(artifacts=["out/*.txt", "/workspace/none"])
        assert session.info.artifacts == ("out/*.txt", "none")
        assert (await client.get(session.id)).info.artifacts == ("out/*.txt", "none")
        await session.files.write("out/a.txt", b"last words")
        await session.files.write("out/b.bin", b"not declared")
        await session.delete()
        kept = [artifact async for artifact in client.artifacts.list(session.id)]
        assert [artifact.path for artifact in kept] == ["out/a.txt"]
        assert await client.artifacts.read(kept[0]) == b"last words"

    async def test_declared_files_are_kept_when_the_session_expires(
        self, client: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        session = await client.create(artifacts=["a"], idle_timeout_s=service_harness.short_s, on_idle="end")
        await session.files.write("a", b"x")

        async def ended() -> bool:
            try:
                return (await client.get(session.id)).state is SessionState.ENDED
            except SessionEnded:
                return True

        await eventually(ended, GONE_WITHIN_S, "the session ends")
        assert [artifact.path async for artifact in client.artifacts.list(session.id)] == ["a"]

    async def test_declared_files_are_kept_when_the_session_hibernates(self, client: AsyncClient) -> None:
        async with await client.create(artifacts=["a"]) as session:
            await session.files.write("a", b"x")
            await session.hibernate()
            assert await paths_of(session) == ["a"]

    async def test_declared_files_are_kept_once(self, client: AsyncClient) -> None:
        session = await client.create(artifacts=["a"])
        artifact = await kept_one(session, "a", b"x")
        await asyncio.gather(*(session.delete() for _ in range(3)))
        assert [found async for found in client.artifacts.list(session.id)] == [artifact]


class ForeignArtifactCases(Cases):
    async def test_another_tenant_has_no_part_in_them(
        self, client: AsyncClient, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        if (stranger := service_harness.stranger) is None:
            pytest.skip("this service has one caller in these tests")
        artifact = await kept_one(fresh, "a", b"mine")
        unknown = unknown_artifact(artifact.id)
        for call in (stranger.artifacts.get, stranger.artifacts.read):
            errors = []
            for artifact_id in (artifact.id, unknown):
                with pytest.raises(NotFound) as caught:
                    await call(artifact_id)
                errors.append(caught.value.message.replace(artifact_id, "ID"))
            assert errors[0] == errors[1]
        await stranger.artifacts.delete(artifact.id)
        assert await client.artifacts.read(artifact) == b"mine"
        assert artifact.id not in {found.id async for found in stranger.artifacts.list()}
        assert [found async for found in stranger.artifacts.list(fresh.id)] == []
        with pytest.raises(NotFound):
            await stranger.service.keep_artifacts(fresh.id, ["a"])
