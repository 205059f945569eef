"""Files: every operation runs as the sandbox's user and reports the file system's own errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable

import pytest

from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import FileType
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ok, unique

MIB = 1024 * 1024


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def reason_of(call: Awaitable[object]) -> str:
    with pytest.raises(FileProblem) as caught:
        await call
    return caught.value.reason


class FileCases(Cases):
    async def test_write_and_read_back(self, session: AsyncSession) -> None:
        data = bytes(range(256)) * 1000
        entry = await session.files.write("deep/er/file.bin", data)
        assert (entry.path, entry.name, entry.type) == (
            "/workspace/deep/er/file.bin",
            "file.bin",
            FileType.FILE,
        )
        user = int(await ok(session, "id -u"))
        assert (entry.size, entry.uid, entry.mode & 0o777) == (len(data), user, 0o644)
        assert await session.files.read("/workspace/deep/er/file.bin") == data
        assert await ok(session, "wc -c <deep/er/file.bin") == f"{len(data)}\n"

    async def test_text(self, session: AsyncSession) -> None:
        await session.files.write("text", "Grüße\n")
        assert await session.files.read_text("text") == "Grüße\n"
        assert await ok(session, "cat text") == "Grüße\n"

    async def test_empty_file(self, session: AsyncSession) -> None:
        assert (await session.files.write("empty", b"")).size == 0
        assert await session.files.read("empty") == b""

    async def test_streamed_write(self, session: AsyncSession) -> None:
        data = b"0123456789abcdef" * (2 * MIB // 16)
        assert (await session.files.write("streamed", pieces(data))).size == len(data)
        assert await session.files.read("streamed") == data

    async def test_streamed_read(self, session: AsyncSession) -> None:
        data = bytes(range(256)) * 2048
        await session.files.write("to-stream", data)
        read = [piece async for piece in session.files.stream("to-stream")]
        assert b"".join(read) == data

    @pytest.mark.parametrize(
        ("offset", "length", "want"),
        [
            (0, 4, b"0123"),
            (3, None, b"3456789"),
            (8, 100, b"89"),
            (50, 5, b""),
            (9, 1, b"9"),
            (0, None, b"0123456789"),
        ],
    )
    async def test_ranges(self, session: AsyncSession, offset: int, length: int | None, want: bytes) -> None:
        await session.files.write("range", b"0123456789")
        assert b"".join([piece async for piece in session.files.stream("range", offset, length)]) == want

    async def test_write_replaces(self, session: AsyncSession) -> None:
        await session.files.write("replaced", b"a long content")
        await session.files.write("replaced", b"short")
        assert await session.files.read("replaced") == b"short"

    async def test_broken_write_leaves_the_old(self, session: AsyncSession) -> None:
        await session.files.write("atomic/kept", b"old")

        async def failing_source() -> AsyncIterator[bytes]:
            yield b"new" * 100_000
            raise RuntimeError("the source is gone")

        with pytest.raises(RuntimeError, match="the source is gone"):
            await session.files.write("atomic/kept", failing_source())
        assert await session.files.read("atomic/kept") == b"old"

        async def no_trace() -> bool:
            return await ok(session, "ls -A atomic") == "kept\n"

        await eventually(no_trace, 20, "what was written is removed")

    async def test_modes(self, session: AsyncSession) -> None:
        assert (await session.files.write("mode", b"x", mode=0o750)).mode & 0o7777 == 0o750
        assert (await session.files.write("mode", b"y")).mode & 0o7777 == 0o750
        assert (await session.files.write("suid", b"x", mode=0o4755)).mode & 0o7777 == 0o755

    async def test_without_parents(self, session: AsyncSession) -> None:
        assert await reason_of(session.files.write("none/there/f", b"x", parents=False)) == "not_found"
        assert not await session.files.exists("none")

    async def test_exclusive(self, session: AsyncSession) -> None:
        path = unique()
        await session.files.write(path, b"1", exclusive=True)
        assert await reason_of(session.files.write(path, b"2", exclusive=True)) == "exists"
        assert await session.files.read(path) == b"1"

    async def test_stat(self, session: AsyncSession) -> None:
        await ok(session, "mkdir -p st; echo hello >st/f; rm -f st/l; ln -s f st/l")
        file = await session.files.stat("st/f")
        assert (file.size, file.type, file.name, file.path) == (6, FileType.FILE, "f", "/workspace/st/f")
        assert file.mtime_ms > 1_600_000_000_000
        assert (await session.files.stat("st")).type is FileType.DIRECTORY
        assert (await session.files.stat("st/l")).size == 6

    async def test_exists(self, session: AsyncSession) -> None:
        await session.files.write("there", b"")
        assert await session.files.exists("there")
        assert await session.files.exists("/workspace")
        assert not await session.files.exists("not-there")
        assert not await session.files.exists("there/below")

    async def test_list(self, session: AsyncSession) -> None:
        await ok(session, "mkdir -p ls/sub; touch ls/b ls/a ls/.hidden")
        entries = await session.files.list("ls")
        assert [entry.name for entry in entries] == [".hidden", "a", "b", "sub"]
        assert [entry.type for entry in entries][-1] is FileType.DIRECTORY
        assert entries[1].path == "/workspace/ls/a"

    async def test_list_of_the_workspace(self, fresh: AsyncSession) -> None:
        assert await fresh.files.list() == []
        await fresh.files.write("f", b"1")
        assert [entry.name for entry in await fresh.files.list()] == ["f"]

    async def test_list_takes_every_page(self, session: AsyncSession) -> None:
        names = " ".join(f"n{i}" for i in range(1500))
        await ok(session, f"mkdir -p many; cd many; touch {names}")
        listed = [entry.name for entry in await session.files.list("many")]
        assert listed == sorted(f"n{i}" for i in range(1500))

    async def test_walk(self, session: AsyncSession) -> None:
        await ok(session, "mkdir -p w/a/b w/c; touch w/a/1.py w/a/b/2.py w/c/3.txt w/.hidden.py")
        every = await session.files.walk("w")
        assert {entry.name for entry in every.entries} == {
            "a",
            "b",
            "c",
            "1.py",
            "2.py",
            "3.txt",
            ".hidden.py",
        }
        python = await session.files.walk("w", glob="**/*.py")
        assert {entry.path.removeprefix("/workspace/w/") for entry in python.entries} == {
            "a/1.py",
            "a/b/2.py",
            ".hidden.py",
        }
        shallow = await session.files.walk("w", depth=1)
        assert {entry.name for entry in shallow.entries} == {"a", "c", ".hidden.py"}
        cut = await session.files.walk("w", limit=3)
        assert (len(cut.entries), cut.truncated, every.truncated) == (3, True, False)

    async def test_mkdir(self, session: AsyncSession) -> None:
        folder = await session.files.mkdir("made/deep", mode=0o700)
        assert (folder.type, folder.mode & 0o777) == (FileType.DIRECTORY, 0o700)
        await session.files.mkdir("made/deep")
        assert await reason_of(session.files.mkdir("made/deep", parents=False)) == "exists"
        assert await reason_of(session.files.mkdir("not/here", parents=False)) == "not_found"

    async def test_move(self, session: AsyncSession) -> None:
        await session.files.write("mv/a", b"1")
        moved = await session.files.move("mv/a", "mv/b")
        assert moved.path == "/workspace/mv/b"
        assert not await session.files.exists("mv/a")
        await session.files.write("mv/c", b"2")
        assert await reason_of(session.files.move("mv/b", "mv/c")) == "exists"
        await session.files.move("mv/b", "mv/c", overwrite=True)
        assert await session.files.read("mv/c") == b"1"
        assert await reason_of(session.files.move("mv/none", "mv/x")) == "not_found"

    async def test_remove(self, session: AsyncSession) -> None:
        await ok(session, "mkdir -p rm/sub; touch rm/f rm/sub/g")
        assert await session.files.remove("rm/f") == 1
        assert await reason_of(session.files.remove("rm")) == "not_empty"
        assert await session.files.remove("rm", recursive=True) == 3
        assert await reason_of(session.files.remove("rm")) == "not_found"
        assert await session.files.remove("rm", missing_ok=True) == 0

    async def test_search(self, session: AsyncSession) -> None:
        await session.files.write("s/1.txt", "a\nneedle here\nb")
        await session.files.write("s/2.md", "NEEDLE\n")
        await session.files.write("s/bin", b"needle\0")
        found = await session.files.search("s", "needle")
        assert [(match.path, match.line, match.text) for match in found.matches] == [
            ("/workspace/s/1.txt", 2, "needle here")
        ]
        both = await session.files.search("s", "n..dle", regex=True, ignore_case=True)
        assert len(both.matches) == 2
        assert len((await session.files.search("s", "NEEDLE", glob="*.md")).matches) == 1
        cut = await session.files.search("s", "needle", ignore_case=True, limit=1)
        assert (len(cut.matches), cut.truncated) == (1, True)

    async def test_search_that_cannot_be(self, session: AsyncSession) -> None:
        with pytest.raises(InvalidRequest):
            await session.files.search(".", "")
        with pytest.raises(InvalidRequest):
            await session.files.search(".", "(", regex=True)

    async def test_names_of_every_kind(self, session: AsyncSession) -> None:
        for name in ("with space", "日本", "new\nline", "quote'\"", "per%cent", "plus+&=?#", "-dash"):
            path = f"odd/{name}"
            await session.files.write(path, name)
            assert await session.files.read_text(path) == name
        assert len(await session.files.list("odd")) == 7

    async def test_commands_and_files_see_the_same(self, session: AsyncSession) -> None:
        await ok(session, "echo from-command >shared")
        assert await session.files.read_text("shared") == "from-command\n"
        await session.files.write("/tmp/shared", "from-files\n")
        assert await ok(session, "cat /tmp/shared") == "from-files\n"


class FileProblemCases(Cases):
    async def test_missing_file(self, session: AsyncSession) -> None:
        with pytest.raises(FileProblem) as caught:
            await session.files.read("not/there")
        assert (caught.value.reason, caught.value.path) == ("not_found", "not/there")
        assert caught.value.details["reason"] == "not_found"
        for call in (session.files.stat("none"), session.files.list("none"), session.files.walk("none")):
            assert await reason_of(call) == "not_found"

    async def test_path_that_is_too_long(self, session: AsyncSession) -> None:
        for call in (session.files.stat("a/" * 2100), session.files.write("ä" * 2049, b"x")):
            with pytest.raises(InvalidRequest, match="4096 bytes"):
                await call

    async def test_wrong_kind(self, session: AsyncSession) -> None:
        await session.files.write("kind/file", b"x")
        await session.files.mkdir("kind/folder")
        assert await reason_of(session.files.read("kind/folder")) == "is_a_directory"
        assert await reason_of(session.files.write("kind/folder", b"x")) == "is_a_directory"
        assert await reason_of(session.files.list("kind/file")) == "not_a_directory"
        assert await reason_of(session.files.read("kind/file/below")) == "not_a_directory"
        assert await reason_of(session.files.mkdir("kind/file")) == "exists"

    @pytest.mark.parametrize("path", ["../../etc/shadow", "/etc/shadow", "/workspace/../etc/shadow"])
    async def test_traversal_is_harmless(self, session: AsyncSession, path: str) -> None:
        # The answer must match what a command finds: above a workspace that is a symlink lies
        # another folder.
        own = (await session.run(["cat", path])).stderr
        why = "permission_denied" if "Permission denied" in own else "not_found"
        assert await reason_of(session.files.read(path)) == why, own

    async def test_dots_stay_within_what_they_mean(self, session: AsyncSession) -> None:
        await session.files.write("dots/a", b"1")
        assert await session.files.read("dots/../dots/./a") == b"1"
        assert await session.files.read("../workspace/dots/a") == b"1"

    @pytest.mark.parametrize("path", ["/etc/passwd", "/etc/new", "/new"])
    async def test_the_system_is_read_only(self, session: AsyncSession, path: str) -> None:
        assert await reason_of(session.files.write(path, b"x")) == "permission_denied"

    async def test_symlink_leads_where_it_leads(self, session: AsyncSession) -> None:
        await ok(session, "rm -f way; ln -s /etc/shadow way; rm -f loop; ln -s loop loop")
        assert await reason_of(session.files.read("way")) == "permission_denied"
        with pytest.raises(InvalidRequest, match="many levels of symbolic links"):
            await session.files.read("loop")

    @pytest.mark.parametrize("path", ["nul\0byte", "x" * 5000, "y" * 300], ids=["nul", "path", "name"])
    async def test_paths_that_cannot_be(self, session: AsyncSession, path: str) -> None:
        # A path that no file system can hold is invalid. A path that is only too long for one
        # may raise either error.
        with pytest.raises((FileProblem, InvalidRequest)) as caught:
            await session.files.read(path)
        if "\0" in path or isinstance(caught.value, FileProblem):
            assert caught.value.details["reason"] == "invalid_path"
        assert not caught.value.retryable

    async def test_limits_that_cannot_be(self, session: AsyncSession) -> None:
        with pytest.raises(InvalidRequest):
            await session.files.walk(".", limit=0)
        with pytest.raises(InvalidRequest):
            await session.files.walk(".", depth=-1)
