"""Files and folders to and from this machine, and archives that want to go elsewhere."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSession
from sandlot.client import unpacking
from sandlot.client.packing import pack
from sandlot.client.unpacking import Downloaded, unpack
from sandlot.domain.errors import FileProblem
from sandlot.domain.files import ArchiveSummary, FileChangeType, FileEntry


def tree_of(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Six hundred files, long names, a link, an empty folder, an empty file, one of several pieces."""
    folder = tmp_path / "project"
    for n in range(600):
        file = folder / f"d{n % 12}" / f"file-{n}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"content {n}".encode() * (n % 5))
    (folder / "empty").mkdir()
    (folder / ("n" * 200)).write_text("a long name")
    (folder / "ünï").write_text("x")
    (folder / "big").write_bytes(os.urandom(700_001))
    (folder / "link").symlink_to("d1/file-1.txt")
    (folder / "d1" / "up").symlink_to("../big")
    script = folder / "run.sh"
    script.write_text("true")
    script.chmod(0o755)
    return folder


async def test_a_folder_there_and_back(session: AsyncSession, project: Path, tmp_path: Path) -> None:
    summary = await session.files.upload(project)
    assert isinstance(summary, ArchiveSummary)
    assert summary.files >= 605
    assert await session.files.read_text("project/d7/file-7.txt") == "content 7" * 2
    back = await session.files.download("project", tmp_path / "back")
    assert tree_of(tmp_path / "back") == tree_of(project)
    assert back.skipped == ()
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o755
    again = await session.files.download("project", tmp_path / "back")
    assert again == back
    assert tree_of(tmp_path / "back") == tree_of(project)


async def test_a_file_there_and_back(session: AsyncSession, tmp_path: Path) -> None:
    data = os.urandom(1_500_000)
    (tmp_path / "a.bin").write_bytes(data)
    entry = await session.files.upload(tmp_path / "a.bin")
    assert isinstance(entry, FileEntry)
    assert (entry.size, entry.name) == (len(data), "a.bin")
    await session.files.upload(tmp_path / "a.bin", "deep/er/b.bin")
    assert await session.files.download("deep/er/b.bin", tmp_path / "new" / "c.bin") == Downloaded(
        1, len(data)
    )
    assert (tmp_path / "new" / "c.bin").read_bytes() == data
    await session.files.download("a.bin", tmp_path / "new")
    assert sorted(os.listdir(tmp_path / "new")) == ["a.bin", "c.bin"]
    with pytest.raises(FileProblem, match="max_bytes"):
        await session.files.download("a.bin", tmp_path / "new" / "c.bin", max_bytes=1000)
    assert (tmp_path / "new" / "c.bin").read_bytes() == data
    assert sorted(os.listdir(tmp_path / "new")) == ["a.bin", "c.bin"]
    with pytest.raises(FileNotFoundError):
        await session.files.upload(tmp_path / "nowhere")


async def test_contents(session: AsyncSession) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(100):
            yield b"%03d" % n

    files = session.files
    entry = await files.write("a/b", pieces(), mode=0o600)
    assert (entry.size, entry.mode & 0o777) == (300, 0o600)
    assert await files.read("a/b") == b"".join([b"%03d" % n for n in range(100)])

    async def part(**options: int) -> bytes:
        return b"".join([piece async for piece in files.stream("a/b", **options)])

    assert await part(offset=3, length=6) == b"001002"
    assert await part(offset=294) == b"098099"
    assert await part(length=3) == b"000"
    assert await part(length=0) == await part(offset=300) == await part(offset=9999, length=5) == b""
    with pytest.raises(FileProblem) as large:
        await files.read("a/b", max_bytes=299)
    assert large.value.reason == "too_large"
    await files.write("a/b", (bytes([n]) for n in (104, 105)))
    assert await files.read_text("a/b") == "hi"
    with pytest.raises(FileProblem) as there:
        await files.write("a/b", "x", exclusive=True)
    assert there.value.reason == "exists"
    await files.write("a/empty", "")
    assert await files.read("a/empty") == b""


@pytest.mark.slow
async def test_names(session: AsyncSession) -> None:
    files = session.files
    await files.mkdir("m/n")
    for n in range(1100):
        await session.client.service.files(session.id).write(f"m/f{n:04}", b"line\nneedle %d\n" % n)
    assert len(await files.list("m")) == 1101
    assert (await files.stat("m/f0001")).name == "f0001"
    assert (await files.exists("m"), await files.exists("m/f0001/x"), await files.exists("no")) == (
        True,
        False,
        False,
    )
    assert (await files.move("m/f0001", "m/moved")).name == "moved"
    found = await files.search("m", "needle 7", glob="f000*")
    assert [(match.line, match.text) for match in found.matches] == [(2, "needle 7")]
    assert len((await files.walk("m", glob="f00*")).entries) == 99
    assert await files.remove("m", recursive=True) == 1102
    assert await files.remove("m", missing_ok=True) == 0
    strange = "a b&c=d#e?f%41+ü"
    await files.write(strange, "x")
    assert [entry.name for entry in await files.list()] == [strange]
    assert await files.read(strange) == b"x"


async def test_watch(session: AsyncSession) -> None:
    async with session.files.watch() as changes:
        await session.files.write("seen", "x")
        change = await anext(changes)
        assert (change.type, change.path) == (FileChangeType.CREATE, "/workspace/seen")


def test_packing_is_bounded_and_valid(project: Path) -> None:
    pieces = list(pack(project))
    assert max(map(len, pieces)) < 1024 * 1024
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        names = {member.name for member in tar}
    assert names == set(tree_of(project))


# --- hostile archives -----------------------------------------------------------------------------


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def tar_of(*entries: tarfile.TarInfo, data: bytes = b"planted") -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info in entries:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    out.seek(0)
    return out


def unpack_in(tmp_path: Path, archive: io.BytesIO, **bounds: int) -> Downloaded:
    return unpack(archive, tmp_path / "in", **{"max_bytes": 10**6, "max_files": 1000, **bounds})


def outside(tmp_path: Path) -> dict[str, Any]:
    return {name: data for name, data in tree_of(tmp_path).items() if not name.startswith("in")}


@pytest.mark.parametrize("name", ["../planted", "/tmp/sandlot-planted", "a/../../planted", "a/../b", ".."])
def test_names_that_lead_outside_are_refused(tmp_path: Path, name: str) -> None:
    for kind in (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE):
        with pytest.raises(FileProblem, match="leads outside"):
            unpack_in(tmp_path, tar_of(entry(name, kind, "x")))
    assert outside(tmp_path) == {}
    assert not Path("/tmp/sandlot-planted").exists()


@pytest.mark.parametrize(
    "links",
    [
        [("l", "..")],
        [("l", "/etc/passwd")],
        [("l", "/")],
        [("l", "../in")],
        [("d/l", "../../x")],
        [("d/l", "../..")],
        [("l", "l")],
        [("a", "b"), ("b", "a")],
        [("d/e/root", "../.."), ("m", "d/e/root/..")],
        [("d/e/root", "../.."), ("m", "d/e/root/../../x")],
        [("a", "d"), ("b", "a/../.."), ("c", "b/x")],
    ],
)
def test_links_that_lead_outside_are_left_out(tmp_path: Path, links: list[tuple[str, str]]) -> None:
    archive = tar_of(entry("d/e/f"), *(entry(name, tarfile.SYMTYPE, target) for name, target in links))
    done = unpack_in(tmp_path, archive)
    assert done.skipped
    for path in (tmp_path / "in").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "in")
    assert links[-1][0] in done.skipped


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    links = {
        "d/up": "../top",
        "around": "d/./e/../e/f",
        "chain": "around",
        "d/e/root": "../..",
        "dangling": "nothing",
    }
    archive = tar_of(
        entry("d/e/f"),
        entry("top"),
        *(entry(name, tarfile.SYMTYPE, target) for name, target in links.items()),
    )
    assert unpack_in(tmp_path, archive) == Downloaded(7, 14)
    assert {name: os.readlink(tmp_path / "in" / name) for name in links} == links
    assert (tmp_path / "in" / "chain").read_bytes() == b"planted"


@pytest.mark.parametrize("target", ["..", "d"])
def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path, target: str) -> None:
    """A link that leads out is left out. For one that does not there is no place: a folder has its name."""
    (tmp_path / "in" / "d").mkdir(parents=True)
    archive = tar_of(entry("way", tarfile.SYMTYPE, target), entry("way/planted"))
    if target == "..":
        assert unpack_in(tmp_path, archive) == Downloaded(1, 7, ("way",))
    else:
        with pytest.raises(FileProblem) as refused:
            unpack_in(tmp_path, archive)
        assert refused.value.reason == "is_a_directory"
    assert not (tmp_path / "in" / "way").is_symlink()
    assert outside(tmp_path) == {}
    assert not (tmp_path / "in" / "d" / "planted").exists()


def test_nothing_is_written_through_a_link_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "way").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "file").symlink_to(tmp_path / "elsewhere" / "file")
    with pytest.raises(FileProblem):
        unpack_in(tmp_path, tar_of(entry("way/planted")))
    assert unpack_in(tmp_path, tar_of(entry("m", tarfile.SYMTYPE, "way/x"))).skipped == ("m",)
    unpack_in(tmp_path, tar_of(entry("file")))
    assert not (tmp_path / "in" / "file").is_symlink()
    assert outside(tmp_path) == {"elsewhere": None}


def test_special_things_are_left_out_and_bits_stripped(tmp_path: Path) -> None:
    archive = tar_of(
        entry("dev", tarfile.CHRTYPE),
        entry("pipe", tarfile.FIFOTYPE),
        entry("hard", tarfile.LNKTYPE, "/etc/passwd"),
        entry("s", mode=0o6777),
    )
    assert unpack_in(tmp_path, archive).skipped == ("dev", "pipe", "hard")
    assert (tmp_path / "in" / "s").stat().st_mode & 0o7000 == 0


@pytest.mark.slow
def test_the_ways_of_links_are_bounded(tmp_path: Path) -> None:
    """Links through links, each many steps: without a bound, a small archive is hours of walking."""
    around = "d/../" * 800
    links = [entry(f"l{n}", tarfile.SYMTYPE, f"{around}l{n + 1}") for n in range(20)]
    begun = time.monotonic()
    done = unpack_in(tmp_path, tar_of(entry("d/f"), *links, entry("fine", tarfile.SYMTYPE, "d/f")))
    assert time.monotonic() - begun < 30
    assert "l0" in done.skipped
    assert "l19" not in done.skipped
    too_long = tar_of(entry("l", tarfile.SYMTYPE, "x/" * 2048), entry("m", tarfile.SYMTYPE, "y" * 300))
    assert unpack_in(tmp_path / "long", too_long).skipped == ("l", "m")


def test_all_links_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_TOTAL_STEPS", 10)
    links = [entry(f"l{n}", tarfile.SYMTYPE, "d/f") for n in range(6)]
    assert unpack_in(tmp_path, tar_of(entry("d/f"), *links)).skipped == ("l5",)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, b"?", tarfile.XHDTYPE])
@pytest.mark.parametrize("size", [-512, -(10**9), 1 << 80])
def test_impossible_sizes_are_refused(tmp_path: Path, kind: bytes, size: int) -> None:
    info = entry("liar", kind, "d/f")
    info.size = size
    header = info.tobuf(tarfile.GNU_FORMAT)
    archive = io.BytesIO(header + tar_of(entry("d/f")).getvalue())
    if size > 0 and kind in {tarfile.DIRTYPE, tarfile.SYMTYPE}:
        # A folder or link has no content, whatever its size says.
        assert unpack_in(tmp_path, archive) == Downloaded(1 + (kind == tarfile.SYMTYPE), 7)
    else:
        with pytest.raises(FileProblem, match=r"broken|more than 1000 entries or 1000000 bytes"):
            unpack_in(tmp_path, archive)


def test_archives_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="more than"):
        unpack_in(tmp_path, tar_of(*(entry(f"f{n}") for n in range(11))), max_files=10)
    with pytest.raises(FileProblem, match="more than"):
        unpack_in(tmp_path, tar_of(entry("big"), data=b"x" * 2000), max_bytes=1999)
    header = entry("x" * 300)
    raw = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    liar = tarfile.TarInfo("liar")
    liar.type, liar.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    for broken in (liar.tobuf(tarfile.GNU_FORMAT) + raw, bytes(raw[:700]), b"not a tar" * 100):
        with pytest.raises(FileProblem, match="broken"):
            unpack_in(tmp_path, io.BytesIO(broken))
