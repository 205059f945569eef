"""Archives that want out of their folder, or more than they may have. Nothing outside is touched."""

from __future__ import annotations

import os
import struct
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.archives.made import archive_of, member, pieces_of, tar_of, unpack_into, zstd

from sandlot.domain.errors import InvalidRequest, SandlotError, TooLarge
from sandlot.domain.workspaces.objects.limits import MIB
from sandlot.providers.archives.compression import compressed
from sandlot.providers.archives.limits import Limits
from sandlot.providers.archives.unpacking import unpack

DIR, SYM, LNK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    return tmp_path / "inside"


def check_untouched(inside: Path) -> None:
    outside = inside.parent / "outside"
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert (outside / "secret").stat().st_nlink == 1


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([member("../out")], '"../out" leads out'),
        ([member("a/../../out")], '"a/../../out" leads out'),
        ([member("/etc/out")], '"/etc/out" is an absolute path'),
        ([member("l", SYM, "OUT"), member("l/out")], '"l" is a folder, and something else'),
        ([member("l", SYM, "OUT"), member("l")], '"l" is in it twice'),
        ([member("l", SYM, "OUT"), member("l", DIR)], '"l" is a folder, and something else'),
        ([member("d/x"), member("d", SYM, "OUT")], '"d" is in it twice'),
        ([member("h", LNK, "../outside/secret")], '"../outside/secret" leads out'),
        ([member("h", LNK, "/etc/passwd")], '"/etc/passwd" is an absolute path'),
        ([member("h", LNK, "later"), member("later")], '"h" is a hard link to "later", which is no file'),
        ([member("d", DIR), member("h", LNK, "d")], '"h" is a hard link to "d"'),
        ([member("h", LNK, ".")], '"h" is a hard link to ""'),
        ([member("l", SYM, "OUT"), member("h", LNK, "l/secret")], '"h" is a hard link|"l" is a folder'),
        ([member("a"), member("a/b")], '"a" is a folder, and something else'),
        ([member("a"), member("a")], '"a" is in it twice'),
        ([member("d", DIR), member("d", DIR)], '"d" is in it twice'),
        ([member("null", tarfile.CHRTYPE)], '"null" is a device'),
        ([member("sda", tarfile.BLKTYPE)], '"sda" is a device'),
        ([member("pipe", tarfile.FIFOTYPE)], '"pipe" is a named pipe'),
        ([member("odd", b"Z")], '"odd" is of an unknown type'),
        ([member("x" * 300)], "is too long"),
        ([member("/".join(["x" * 200] * 25))], "is too long"),
        ([member("l", SYM, "x" * 5000)], '"l" is a symbolic link without'),
        ([member(".")], '"." has no name'),
    ],
)  # fmt: skip
def test_a_member_that_is_refused_is_named(inside: Path, members: list[tarfile.TarInfo], named: str) -> None:
    for one in members:
        one.linkname = one.linkname.replace("OUT", str(inside.parent / "outside"))
    with pytest.raises(InvalidRequest, match=named):
        unpack_into(inside, zstd(tar_of(members)))
    check_untouched(inside)


def test_folders_without_entries_are_made(inside: Path) -> None:
    """As in an archive of some paths of a tree. An entry may come later."""
    later = member("a/b", DIR)
    later.mode = 0o700
    unpack_into(inside, zstd(tar_of([member("a/b/c"), later, member("./x//y")])))
    assert (inside / "a").stat().st_mode & 0o7777 == 0o755
    assert (inside / "a" / "b").stat().st_mode & 0o7777 == 0o700
    assert (inside / "x" / "y").read_text() == "x"


# --- limits -----------------------------------------------------------------------------------


def test_too_many_bytes(inside: Path) -> None:
    content = zstd(tar_of([member("a", size=MIB)]))
    unpack_into(inside, content, Limits(max_bytes=2 * MIB))
    (inside / "a").unlink()
    with pytest.raises(TooLarge, match="more than 100,000 bytes"):
        unpack_into(inside, content, Limits(max_bytes=100_000))


def test_too_many_entries(inside: Path) -> None:
    with pytest.raises(TooLarge, match="more than 5 entries"):
        unpack_into(inside, zstd(tar_of([member(str(n)) for n in range(6)])), Limits(max_entries=5))


def test_too_slow(inside: Path) -> None:
    with pytest.raises(TooLarge, match="more than 0 s"):
        unpack_into(inside, zstd(tar_of([member("a")])), Limits(max_s=0))


def test_the_room_is_looked_at_while_it_is_unpacked(inside: Path) -> None:
    def full() -> None:
        raise TooLarge("full")

    content = zstd(tar_of([member("a", size=80 * MIB)]))
    with pytest.raises(TooLarge, match="full"):
        unpack_into(inside, content, Limits(check=full))


def _with_pax(size: int) -> bytes:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, size
    return header.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    "head",
    [
        _with_pax(2 * MIB) + bytes(2 * MIB),
        _with_pax(8 * 1024**3 - 1),
        b"".join(_with_pax(512) + b"11 a=bcdefg\n".ljust(512, b"\0") for _ in range(2000)),
    ],
    ids=["large", "huge", "chain"],
)
def test_headers_are_bounded(inside: Path, head: bytes) -> None:
    with pytest.raises(InvalidRequest, match="damaged"):
        unpack_into(inside, zstd(head + tar_of([member("a")])))
    assert os.listdir(inside) == []


def test_a_sparse_file_costs_what_it_has(inside: Path) -> None:
    """Terabytes of nothing need no room, and a map that lies is refused."""
    where = b"1\n0\n1\n".ljust(512, b"\0")
    sparse = member("GNUSparseFile.0/a", size=len(where) + 1)

    def packed(start: int) -> bytes:
        sparse.pax_headers = {
            "GNU.sparse.major": "1", "GNU.sparse.minor": "0",
            "GNU.sparse.name": "a", "GNU.sparse.realsize": str(2**40),
        }  # fmt: skip
        head = sparse.tobuf(tarfile.PAX_FORMAT)
        where = f"1\n{start}\n1\n".encode().ljust(512, b"\0")
        return zstd(head + where + b"x".ljust(512, b"\0") + bytes(1024))

    unpack_into(inside, packed(5), Limits(max_bytes=10_000))
    assert (inside / "a").stat().st_size == 2**40
    (inside / "a").unlink()
    with pytest.raises(InvalidRequest, match='"a" has data outside'):
        unpack_into(inside, packed(2**40))


def test_zeros_cost_no_room(inside: Path) -> None:
    content = b"".join(compressed([member("a", size=64 * MIB).tobuf(), bytes(64 * MIB + 1024)]))
    assert len(content) < 10_000
    unpack_into(inside, content, Limits(max_bytes=MIB))
    assert (inside / "a").stat().st_size == 64 * MIB


# --- damage -----------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"file{number}").write_bytes(os.urandom(3000) + bytes(3000))
    return archive_of(tree)


def test_every_cut_is_found(inside: Path, whole: bytes) -> None:
    for place in (*range(0, len(whole), 997), *range(len(whole) - 12, len(whole))):
        target = inside / str(place)
        target.mkdir()
        with pytest.raises(InvalidRequest, match=r"damaged|empty"):
            unpack_into(target, whole[:place])


def test_every_flipped_bit_is_found(inside: Path, whole: bytes) -> None:
    for place in (*range(0, len(whole), 1499), *range(len(whole) - 5, len(whole))):
        target = inside / str(place)
        target.mkdir()
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        with pytest.raises(InvalidRequest):
            unpack_into(target, bytes(broken))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"hello, this is no archive", "not compressed with zstd"),
        (zstd(b""), "no valid tar|without an end"),
        (zstd(b"hello"), "no valid tar"),
        (zstd(tar_of([member("a")])[:512]), "ends too early"),
        (zstd(tar_of([member("a")])[:1024]), "without an end mark"),
        (zstd(tar_of([member("a")]) + b"x"), "follows the end"),
        (zstd(tar_of([member("a")])) + b"x", "damaged"),
        (zstd(tar_of([member("a")])[:1024] + b"broken".ljust(512, b"\0") + bytes(1024)), "header in it is broken"),
    ],
)  # fmt: skip
def test_what_is_no_whole_archive(inside: Path, content: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        unpack_into(inside, content)


def test_a_window_that_is_too_large(inside: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = compressor.compress(tar_of([member("a")])) + compressor.flush()
    with pytest.raises(InvalidRequest, match="without --long"):
        unpack_into(inside, content)


def test_frames_one_after_another(inside: Path) -> None:
    """As parallel compressors write them, with frames that hold nothing."""
    tar = tar_of([member("a", size=5000)])
    skipped = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    content = zstd(tar[:700]) + skipped + zstd(b"") + zstd(tar[700:])
    for size in (1, 7, 70_000):
        target = inside / str(size)
        target.mkdir()

        unpack(pieces_of(content, size), target, Limits())
        assert (target / "a").stat().st_size == 5000


# --- anything ---------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["a", "b", "a/b", "a/b/c", "../out", "/tmp/out", ".", "./a", "a/..", "a//b", "l", "l/secret", "l/new", "\udcff"]
)  # fmt: skip
LINKS = st.sampled_from(
    ["OUT", "OUT/secret", "..", "../outside", "/", "a", "a/b", "l", "l/secret", "../outside/secret"]
)
MEMBERS = st.builds(
    member,
    NAMES,
    st.sampled_from([tarfile.REGTYPE, DIR, SYM, LNK, SYM, LNK, tarfile.CHRTYPE, tarfile.FIFOTYPE]),
    LINKS,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MEMBERS, max_size=8))
def test_no_archive_reaches_out(
    tmp_path_factory: pytest.TempPathFactory, members: list[tarfile.TarInfo]
) -> None:
    root = tmp_path_factory.mktemp("any")
    inside, outside = root / "inside", root / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    made = []
    for one in members:
        copy = member(one.name, one.type, one.linkname.replace("OUT", str(outside)))
        made.append(copy)
    try:
        unpack_into(inside, zstd(tar_of_any(made)))
    except SandlotError as error:
        assert "Nothing of it was kept" in error.message
    check_untouched(inside)
    assert sorted(os.listdir(root)) == ["inside", "outside"]
    for path in inside.rglob("*"):
        assert path.is_symlink() or path.is_dir() or path.is_file()


def tar_of_any(members: list[tarfile.TarInfo]) -> bytes:
    blocks = []
    for one in members:
        blocks.append(one.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if one.isreg():
            blocks.append(b"x".ljust(512, b"\0"))
    return b"".join(blocks) + bytes(1024)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Headers with any bytes in them: an error of ours, or members."""
    content = bytearray(tar_of([member("a"), member("b", SYM, "x"), member("x" * 150, DIR)]))
    for _ in range(data.draw(st.integers(0, 12))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    inside = tmp_path_factory.mktemp("any")
    try:
        unpack_into(inside, zstd(bytes(content)), Limits(max_bytes=MIB))
    except SandlotError as error:
        assert "Nothing of it was kept" in error.message
