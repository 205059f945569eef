"""Files: operations run inside the sandbox as its user.

They are atomic, streamed and bounded, and safe from traps that user code sets.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator

import pytest

from sandlot.domain.errors import FileProblem, InvalidRequest
from sandlot.domain.files import FileChangeType, FileType
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, ok, require, run

MIB = 1024 * 1024


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def reason_of(call: object) -> str:
    with pytest.raises(FileProblem) as caught:
        await call  # type: ignore[misc]
    return caught.value.reason


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


class FileCases(Cases):
    async def test_write_and_read_back(self, sandbox: Sandbox) -> None:
        data = bytes(range(256)) * 5000
        written = await sandbox.files.write("deep/er/file.bin", data)
        user = int(await ok(sandbox, "id -u"))
        assert (written.size, written.type, written.uid) == (len(data), FileType.FILE, user)
        assert await sandbox.files.read_bytes("/workspace/deep/er/file.bin") == data
        digest = hashlib.sha256(data).hexdigest()
        assert (await ok(sandbox, "sha256sum deep/er/file.bin")).startswith(digest)

    async def test_ranges(self, sandbox: Sandbox) -> None:
        await sandbox.files.write("range.txt", b"0123456789")
        for offset, length, want in (
            (0, 4, b"0123"),
            (3, None, b"3456789"),
            (8, 100, b"89"),
            (50, 5, b""),
            (2, 0, b""),
        ):
            got = b"".join(
                [piece async for piece in sandbox.files.read("range.txt", offset=offset, length=length)]
            )
            assert got == want

    async def test_streamed_write(self, sandbox: Sandbox) -> None:
        data = b"0123456789abcdef" * (MIB // 2)
        await sandbox.files.write("big", pieces(data))
        assert (await ok(sandbox, "sha256sum big")).split()[0] == hashlib.sha256(data).hexdigest()
        digest = hashlib.sha256()
        async for piece in sandbox.files.read("big"):
            digest.update(piece)
        assert digest.hexdigest() == hashlib.sha256(data).hexdigest()

    async def test_write_is_atomic_and_a_broken_one_leaves_no_trace(self, sandbox: Sandbox) -> None:
        await sandbox.files.write("atomic/kept", b"old")

        async def failing_source() -> AsyncIterator[bytes]:
            yield b"new" * 100_000
            raise RuntimeError("the client is gone")

        with pytest.raises(RuntimeError, match="the client is gone"):
            await sandbox.files.write("atomic/kept", failing_source())
        assert await sandbox.files.read_bytes("atomic/kept") == b"old"

        async def no_trace() -> bool:
            return await ok(sandbox, "ls -A atomic") == "kept\n"

        await eventually(no_trace, 20, "what was written is removed")

    async def test_modes(self, sandbox: Sandbox) -> None:
        assert (await sandbox.files.write("m", b"#!/bin/sh\necho ran", mode=0o755)).mode & 0o777 == 0o755
        assert await ok(sandbox, "./m") == "ran\n"
        assert (await sandbox.files.write("m", b"#!/bin/sh\necho again")).mode & 0o777 == 0o755
        assert (await sandbox.files.write("suid", b"x", mode=0o4755)).mode & 0o7777 == 0o755

    async def test_exclusive(self, sandbox: Sandbox) -> None:
        await sandbox.files.write("only-once", b"1", exclusive=True)
        assert await reason_of(sandbox.files.write("only-once", b"2", exclusive=True)) == "exists"
        assert await sandbox.files.read_bytes("only-once") == b"1"

    async def test_too_large_to_hold(self, sandbox: Sandbox) -> None:
        await sandbox.files.write("large", b"x" * 1000)
        assert await reason_of(sandbox.files.read_bytes("large", max_bytes=999)) == "too_large"

    async def test_stat(self, sandbox: Sandbox) -> None:
        await ok(
            sandbox,
            "mkdir -p st; echo hello >st/f; ln -sf f st/l; ln -sf nowhere st/broken; mkfifo -m 600 st/p || :",
        )
        assert (await sandbox.files.stat("st/f")).size == 6
        assert (await sandbox.files.stat("st/l")).type is FileType.FILE
        link = await sandbox.files.stat("st/l", follow=False)
        assert (link.type, link.target) == (FileType.SYMLINK, "f")
        assert (await sandbox.files.stat("st/p")).type is FileType.FIFO
        assert await reason_of(sandbox.files.stat("st/broken")) == "not_found"

    async def test_list_in_pages(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "mkdir -p pages; cd pages; for i in $(seq 250); do : >f$i; done")
        names: list[str] = []
        after: str | None = None
        while True:
            page = await sandbox.files.list("pages", after=after, limit=100)
            names += [file.name for file in page.entries]
            after = page.next
            if after is None:
                break
        assert names == sorted(f"f{i}" for i in range(1, 251))

    async def test_walk_and_glob(self, sandbox: Sandbox) -> None:
        await ok(
            sandbox, "mkdir -p w/a/b w/c; touch w/a/1.py w/a/b/2.py w/c/3.txt w/.hidden.py; ln -sfn / w/root"
        )
        every = await sandbox.files.walk("w")
        assert {e.name for e in every.entries} == {
            "a",
            "b",
            "c",
            "1.py",
            "2.py",
            "3.txt",
            ".hidden.py",
            "root",
        }
        python = await sandbox.files.walk("w", glob="**/*.py")
        assert {e.path.rsplit("/w/", 1)[-1] for e in python.entries} == {"a/1.py", "a/b/2.py", ".hidden.py"}
        shallow = await sandbox.files.walk("w", depth=1)
        assert {e.name for e in shallow.entries} == {"a", "c", ".hidden.py", "root"}
        assert (await sandbox.files.walk("w", limit=3)).truncated

    async def test_names_that_are_not_utf8(self, sandbox: Sandbox) -> None:
        names = r"echo x >$(printf 'caf\351'); echo y >$(printf 'new\nline'); echo z >'日本'"
        await ok(sandbox, "mkdir -p odd; cd odd; " + names.replace(r"$(printf 'new\nline')", "'new\nline'"))
        page = await sandbox.files.list("odd")
        assert len(page.entries) == 3
        for file in page.entries:
            assert len(await sandbox.files.read_bytes(file.path)) == 2

    async def test_mkdir_move_remove(self, sandbox: Sandbox) -> None:
        await sandbox.files.mkdir("made/deep")
        await sandbox.files.write("made/deep/f", b"1")
        await sandbox.files.move("made/deep/f", "made/g")
        assert await reason_of(sandbox.files.stat("made/deep/f")) == "not_found"
        await sandbox.files.write("made/h", b"2")
        assert await reason_of(sandbox.files.move("made/g", "made/h")) == "exists"
        await sandbox.files.move("made/g", "made/h", overwrite=True)
        assert await sandbox.files.read_bytes("made/h") == b"1"
        assert await reason_of(sandbox.files.remove("made")) == "not_empty"
        assert await sandbox.files.remove("made", recursive=True) == 3
        assert await reason_of(sandbox.files.remove("made")) == "not_found"
        assert await sandbox.files.remove("made", missing_ok=True) == 0

    async def test_search(self, sandbox: Sandbox) -> None:
        await ok(
            sandbox,
            "mkdir -p s; printf 'a\\nneedle here\\nb' >s/1.txt; printf 'NEEDLE\\n' >s/2.md; printf 'needle\\0' >s/bin",
        )
        found = await sandbox.files.search("s", "needle")
        assert [(m.path.rsplit("/", 1)[-1], m.line, m.text) for m in found.matches] == [
            ("1.txt", 2, "needle here")
        ]
        assert len((await sandbox.files.search("s", "n..dle", regex=True, ignore_case=True)).matches) == 2
        assert len((await sandbox.files.search("s", "NEEDLE", glob="*.md")).matches) == 1

    async def test_watch(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "mkdir -p watched")
        seen: set[tuple[FileChangeType, str]] = set()
        wanted = {
            (FileChangeType.CREATE, "f"),
            (FileChangeType.REMOVE, "f"),
            (FileChangeType.CREATE, "inner"),
        }
        async with sandbox.files.watch("watched", recursive=True) as changes:
            await ok(
                sandbox, "cd watched; mkdir sub; sleep 0.3; echo x >f; echo y >sub/inner; sleep 0.1; rm f"
            )
            async with asyncio.timeout(30):
                async for change in changes:
                    seen.add((change.type, change.path.rsplit("/", 1)[-1]))
                    if wanted <= seen:
                        break
        assert wanted <= seen

    async def test_archive_round_trip(self, sandbox: Sandbox) -> None:
        members = [(entry(f"d{i % 10}/f{i}", mode=0o640), f"content {i}".encode()) for i in range(300)]
        summary = await sandbox.files.write_archive("unpacked", pieces(tar_of(*members)))
        assert summary.files == 300
        assert await ok(sandbox, "cat unpacked/d7/f17; stat -c %a unpacked/d7/f17") == "content 17640\n"
        await ok(sandbox, "cd unpacked; ln -s d0/f0 link; mkfifo pipe")
        raw = b"".join([piece async for piece in sandbox.files.read_archive("unpacked")])
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            names = {member.name.removeprefix("./").rstrip("/") for member in tar.getmembers()}
            link = next(member for member in tar.getmembers() if member.name.endswith("link"))
        assert {"d7/f17", "link"} <= names
        assert "pipe" not in names
        assert (link.issym(), link.linkname) == (True, "d0/f0")

    @pytest.mark.parametrize(
        ("info", "data"),
        [
            (entry("../escape"), b"x"),
            (entry("/etc/escape"), b"x"),
            (entry("a/../../escape"), b"x"),
            (entry("dev", tarfile.CHRTYPE), b""),
            (entry("hard", tarfile.LNKTYPE, link="/etc/passwd"), b""),
        ],
        ids=["dotdot", "absolute", "inner-dotdot", "device", "hardlink-out"],
    )
    async def test_hostile_archive_is_refused(
        self, sandbox: Sandbox, info: tarfile.TarInfo, data: bytes
    ) -> None:
        with pytest.raises(InvalidRequest, match=f'"{info.linkname or info.name}" in the archive'):
            await sandbox.files.write_archive("hostile", pieces(tar_of((info, data))))
        planted = await run(sandbox, "ls -d /workspace/escape /etc/escape 2>/dev/null; ls -A hostile")
        assert planted.stdout == b""

    async def test_archive_does_not_write_through_its_own_symlink(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "mkdir -p outside confined")
        tar = tar_of(
            (entry("way", tarfile.SYMTYPE, link="/workspace/outside"), b""), (entry("way/planted"), b"x")
        )
        with pytest.raises(InvalidRequest, match="leads out of the folder"):
            await sandbox.files.write_archive("confined", pieces(tar))
        assert await ok(sandbox, "ls outside") == ""

    async def test_archive_special_bits_are_stripped(self, sandbox: Sandbox) -> None:
        await sandbox.files.write_archive("bits", pieces(tar_of((entry("s", mode=0o6755), b"x"))))
        assert await ok(sandbox, "stat -c %a bits/s") == "755\n"

    @pytest.mark.parametrize(
        "path",
        [
            "../../etc/shadow",
            "/etc/shadow",
            "/workspace/../etc/shadow",
            "/proc/1/environ",
            "/proc/1/root/etc/shadow",
        ],
    )
    async def test_what_the_user_may_not_read_is_refused(self, sandbox: Sandbox, path: str) -> None:
        # File operations see only what the sandbox's user sees. On gVisor every user may read the
        # variables of process 1.
        own = await run(sandbox, f"cat {path}")
        assert b"root:" not in own.stdout
        if own.exit_code == 0:
            assert await sandbox.files.read_bytes(path) == own.stdout
        else:
            refused = b"Permission denied" in own.stderr
            why = "permission_denied" if refused else "not_found"
            assert await reason_of(sandbox.files.read_bytes(path)) == why, own.stderr

    async def test_bad_paths(self, sandbox: Sandbox) -> None:
        for path in ("nul\0byte", ""):
            assert await reason_of(sandbox.files.stat(path)) == "invalid_path"
        with pytest.raises(InvalidRequest, match="4096"):
            await sandbox.files.stat("x" * 5000)

    async def test_read_only_system(self, sandbox: Sandbox) -> None:
        for path in ("/etc/passwd", "/usr/bin/new", "/.sandlot/agent", "/new"):
            assert await reason_of(sandbox.files.write(path, b"x")) == "permission_denied"

    @pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory"])
    async def test_special_files_are_not_read(self, sandbox: Sandbox, kind: str) -> None:
        await ok(
            sandbox,
            "mkdir -p special; rm -rf special/*; mkfifo special/fifo; mkdir special/directory; ln -s /dev/zero special/device",
        )
        if kind == "socket":
            await require(sandbox, "python3")
            await ok(
                sandbox, "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('special/socket')\""
            )
        why = "is_a_directory" if kind == "directory" else "not_regular"
        async with asyncio.timeout(30):
            assert await reason_of(sandbox.files.read_bytes(f"special/{kind}")) == why
            assert await reason_of(sandbox.files.write(f"special/{kind}", b"x")) == why

    async def test_sparse_and_growing_files(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "truncate -s 1T sparse")
        got = b"".join([p async for p in sandbox.files.read("sparse", offset=10**11, length=5)])
        assert got == b"\0" * 5
        assert await reason_of(sandbox.files.read_bytes("sparse")) == "too_large"
        # The file grows until it is removed. A read still ends, with the content of when it began.
        await ok(sandbox, "seq 20000 >growing; while test -e growing; do echo more; done >>growing &")

        async def size() -> int:
            return (await sandbox.files.stat("growing")).size

        before = await size()
        async with asyncio.timeout(60):
            data = b"".join([piece async for piece in sandbox.files.read("growing")])
        assert before <= len(data) <= await size()
        begin = "".join(f"{i}\n" for i in range(1, 20_001)).encode()
        assert data == (begin + b"more\n" * len(data))[: len(data)]

        async def grown() -> bool:
            return await size() > len(data)

        await eventually(grown, 20, "it grows on after it was read")
        await ok(sandbox, "rm sparse growing")

    async def test_symlink_swapped_under_reads_and_writes(self, sandbox: Sandbox) -> None:
        await ok(sandbox, "mkdir -p sw/d; echo mine >sw/d/f")
        swap = "cd sw; while :; do mv d e; ln -sfn /etc d; rm -f d; mv e d; done"
        swapper = asyncio.create_task(run(sandbox, swap, timeout_s=6))
        await asyncio.sleep(0.5)
        while not swapper.done():
            try:
                data = await sandbox.files.read_bytes("sw/d/f")
                assert data.startswith((b"mine", b"ours"))
                await sandbox.files.write("sw/d/f", b"ours", parents=False)
            except FileProblem as problem:
                assert problem.reason in {"not_found", "permission_denied", "not_a_directory"}
        await swapper
        assert (await run(sandbox, "ls /etc/f")).exit_code != 0

    async def test_killing_every_process_only_interrupts(self, fresh: Sandbox) -> None:
        await fresh.files.write("before", b"1")
        await run(fresh, "kill -9 -1")
        assert await fresh.files.read_bytes("before") == b"1"
        assert await ok(fresh, "echo alive") == "alive\n"
