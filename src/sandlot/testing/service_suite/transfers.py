"""Uploads, downloads and archives of whole folders, and watching for changes."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import ArchiveSummary, FileChangeType, FileEntry
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, ok, unique


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 50_000):
        yield data[at : at + 50_000]


def tar_of(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


class TransferCases(Cases):
    async def test_upload_and_download_a_file(self, session: AsyncSession, tmp_path: Path) -> None:
        data = bytes(range(256)) * 3000
        (tmp_path / "local.bin").write_bytes(data)
        entry = await session.files.upload(tmp_path / "local.bin", "up/remote.bin")
        assert isinstance(entry, FileEntry)
        assert entry.size == len(data)
        assert await session.files.read("up/remote.bin") == data
        await session.files.download("up/remote.bin", tmp_path / "back.bin")
        assert (tmp_path / "back.bin").read_bytes() == data

    async def test_upload_under_its_own_name(self, session: AsyncSession, tmp_path: Path) -> None:
        name = unique() + ".txt"
        (tmp_path / name).write_text("here")
        await session.files.upload(tmp_path / name)
        assert await session.files.read_text(name) == "here"

    async def test_upload_and_download_a_folder(self, session: AsyncSession, tmp_path: Path) -> None:
        source = tmp_path / "source"
        for i in range(30):
            file = source / f"d{i % 3}" / f"f{i}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"content {i}")
        (source / "empty").mkdir()
        summary = await session.files.upload(source, "folder")
        assert isinstance(summary, ArchiveSummary)
        assert await ok(session, "cat folder/d1/f16; ls folder") == "content 16d0\nd1\nd2\nempty\n"
        await session.files.download("folder", tmp_path / "back")
        found = {
            str(path.relative_to(tmp_path / "back")): path.read_text()
            for path in (tmp_path / "back").rglob("*")
            if path.is_file()
        }
        assert found == {f"d{i % 3}/f{i}": f"content {i}" for i in range(30)}
        assert (tmp_path / "back" / "empty").is_dir()

    async def test_download_of_what_is_missing(self, session: AsyncSession, tmp_path: Path) -> None:
        with pytest.raises(FileProblem) as caught:
            await session.files.download("not-there", tmp_path / "x")
        assert caught.value.reason == "not_found"
        assert not (tmp_path / "x").exists()

    async def test_upload_of_what_is_missing(self, session: AsyncSession, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            await session.files.upload(tmp_path / "not-there", "x")
        assert not await session.files.exists("x")

    async def test_hostile_link_stays_inside(self, session: AsyncSession, tmp_path: Path) -> None:
        """Links that lead out of a folder must not make the client leave its target."""
        await ok(
            session,
            "mkdir -p hostile; cd hostile; rm -f out up; ln -s /etc out; ln -s ../../up up; echo x >ok",
        )
        target = tmp_path / "target"
        done = await session.files.download("hostile", target)
        assert (done.files, sorted(done.skipped)) == (1, ["out", "up"])
        assert [(path.name, path.is_symlink()) for path in target.rglob("*")] == [("ok", False)]

    async def test_archive_round_trip(self, service_harness: ServiceHarness, session: AsyncSession) -> None:
        files = _contract_files(service_harness, session)
        summary = await files.write_archive("unpacked", pieces(tar_of(("a/one", b"1"), ("a/two", b"22"))))
        assert (summary.files, summary.bytes) == (2, 3)
        raw = b"".join([piece async for piece in files.read_archive("unpacked")])
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            member = tar.extractfile("a/two")
            assert member is not None
            assert member.read() == b"22"
            assert {name.rstrip("/") for name in tar.getnames()} == {"a", "a/one", "a/two"}

    @pytest.mark.parametrize("name", ["../escape", "/workspace/escape", "a/../../escape"])
    async def test_hostile_archive(
        self, service_harness: ServiceHarness, session: AsyncSession, name: str
    ) -> None:
        files = _contract_files(service_harness, session)
        with pytest.raises(InvalidRequest, match=f"{name}. in the archive"):
            await files.write_archive("hostile-in", pieces(tar_of((name, b"x"))))
        assert not await session.files.exists("escape")
        assert await session.files.list("hostile-in") == []

    async def test_archive_bounds(self, service_harness: ServiceHarness, session: AsyncSession) -> None:
        files = _contract_files(service_harness, session)
        many = tar_of(*((f"f{i}", b"xxx") for i in range(5)))
        for bound in ({"max_files": 3}, {"max_bytes": 11}):
            with pytest.raises(FileProblem) as caught:
                await files.write_archive("bounded", pieces(many), **bound)
            assert (caught.value.reason, caught.value.path) == ("too_large", "bounded")
            kept = {entry.name for entry in await session.files.list("bounded")}
            assert kept <= {"f0", "f1", "f2"}, "what came before the bound"

    async def test_broken_archive(self, service_harness: ServiceHarness, session: AsyncSession) -> None:
        files = _contract_files(service_harness, session)
        with pytest.raises(InvalidRequest, match="the archive is broken"):
            await files.write_archive("broken", pieces(b"this is not a tar archive" * 100))


def _contract_files(harness: ServiceHarness, session: AsyncSession):  # type: ignore[no-untyped-def]
    """The contract's file operations: the client offers folders instead of archives."""
    if harness.service is None:
        pytest.skip("this client's service lives on an event loop of its own")
    return harness.service.files(session.id)


class WatchCases(Cases):
    async def test_watched_changes(self, session: AsyncSession) -> None:
        await ok(session, "mkdir -p watched/sub")
        seen: set[tuple[FileChangeType, str]] = set()
        wanted = {
            (FileChangeType.CREATE, "/workspace/watched/f"),
            (FileChangeType.WRITE, "/workspace/watched/f"),
            (FileChangeType.REMOVE, "/workspace/watched/f"),
            (FileChangeType.CREATE, "/workspace/watched/sub/inner"),
        }
        async with session.files.watch("watched", recursive=True) as changes:
            await ok(session, "cd watched; echo x >f; echo y >sub/inner; sleep 0.1; rm f")
            async with asyncio.timeout(30):
                async for change in changes:
                    seen.add((change.type, change.path))
                    if wanted <= seen:
                        break
        assert wanted <= seen

    async def test_watch_that_is_not_recursive(self, session: AsyncSession) -> None:
        await ok(session, "mkdir -p flat/sub")
        async with session.files.watch("flat") as changes:
            await ok(session, "cd flat; echo y >sub/inner; sleep 0.1; echo x >f")
            async with asyncio.timeout(30):
                change = await anext(changes)
        assert (change.type, change.path) == (FileChangeType.CREATE, "/workspace/flat/f")

    async def test_watch_of_what_is_missing(self, session: AsyncSession) -> None:
        with pytest.raises(FileProblem) as caught:
            async with session.files.watch("not-there") as changes:
                await anext(changes)
        assert caught.value.reason == "not_found"
