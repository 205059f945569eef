"""A tree comes back from its archive as it was, and GNU tar understands what we write and the other way."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from tests.unit.archives.made import archive_of, described, unpack_into

from sandlot.domain.workspaces.objects.limits import MIB
from sandlot.providers.archives import packing
from sandlot.testing.workspace_suite.harness import MAKE_FILES

# Beside MAKE_FILES: bytes that are no UTF-8, links to links, long paths, times before 1970 and of nanoseconds.
_MORE = r"""
printf x >"$(printf 'bad\377name')"; ln -s "$(printf 't\377')" soft; ln soft soft2; printf y >./-dash
truncate -s 30M big; printf mid | dd of=big bs=1 seek=20000000 conv=notrunc 2>/dev/null
cp --sparse=always big "$(printf 'sparse\376')"; long=$(printf 'n%.0s' $(seq 200)); mkdir -p $long/$long; touch $long/$long/f
touch -d '1960-01-01 00:00:00.25 UTC' -- -dash; touch -h -d '2020-02-02 02:02:02.123456789 UTC' soft
mkfifo pipe; chmod 4711 big
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    subprocess.run(["bash", "-c", MAKE_FILES + _MORE], cwd=folder, check=True)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_a_tree_comes_back_as_it_was(tree: Path, target: Path) -> None:
    os.chmod(tree, 0o2751)
    os.utime(tree, ns=(1, 1_234_567_891))
    content = archive_of(tree)
    (tree / "pipe").unlink()  # it is left out
    os.utime(tree, ns=(1, 1_234_567_891))
    unpack_into(target, content)
    assert described(target) == described(tree)
    assert stat.S_IMODE(target.stat().st_mode) == 0o2751
    assert target.stat().st_mtime_ns == 1_234_567_891
    assert (target / "one").stat().st_ino == (target / "deep" / "hard").stat().st_ino
    assert (target / "soft").lstat().st_ino == (target / "soft2").lstat().st_ino
    assert len(content) < MIB / 4, "holes cost nothing"
    assert (target / "big").stat().st_blocks * 512 < MIB, "and stay holes"


def test_gnu_tar_reads_it(tree: Path, target: Path) -> None:
    (tree / "pipe").unlink()
    (target.parent / "a.tar.zst").write_bytes(archive_of(tree))
    unpacking = ["tar", "-C", str(target), "--zstd", "-xpf", str(target.parent / "a.tar.zst")]
    subprocess.run(unpacking, check=True, capture_output=True)
    assert described(target) == described(tree)


@pytest.mark.parametrize("options", [["--format=posix"], ["--format=posix", "--sparse"]])
def test_it_reads_gnu_tar(tree: Path, target: Path, options: list[str]) -> None:
    (tree / "pipe").unlink()
    archive = target.parent / "a.tar.zst"
    subprocess.run(["tar", *options, "-C", str(tree), "--zstd", "-cf", str(archive), "."], check=True)
    unpack_into(target, archive.read_bytes())
    assert described(target) == described(tree)


@pytest.mark.parametrize("options", [[], ["--sparse"], ["--format=v7"], ["--format=ustar"]])
def test_formats_that_round_times(tmp_path: Path, target: Path, options: list[str]) -> None:
    tree = tmp_path / "tree"
    make = "printf a >a; ln a hard; ln -s a soft; mkdir d; truncate -s 1M d/hole; chmod 640 a; touch -h -d @1000000000 a soft d/hole d"
    subprocess.run(["bash", "-c", f"mkdir {tree}; cd {tree}; {make}"], check=True)
    archive = target.parent / "a.tar.zst"
    subprocess.run(["tar", *options, "-C", str(tree), "--zstd", "-cf", str(archive), "."], check=True)
    unpack_into(target, archive.read_bytes())
    assert described(target) == described(tree)


def test_attributes_of_users(tmp_path: Path, target: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_text("a")
    try:
        os.setxattr(tree / "a", "user.a=b%", b"\0\xff\n=")
    except OSError:
        pytest.skip("this file system keeps no attributes of users")
    os.setxattr(tree, "user.of", b"folder")
    unpack_into(target, archive_of(tree))
    assert os.getxattr(target / "a", "user.a=b%") == b"\0\xff\n="
    assert os.getxattr(target, "user.of") == b"folder"


def test_many_holes_stay_within_a_header(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are too many, short ones are written as zeros."""
    monkeypatch.setattr(packing, "MAX_PARTS", 8)
    tree = tmp_path / "tree"
    tree.mkdir()
    with (tree / "a").open("wb") as file:
        for number in range(64):
            file.seek(number * 256 * 1024)
            file.write(b"x" * 4096)
        file.truncate(100 * MIB)
    content = archive_of(tree)
    unpack_into(target, content)
    assert (target / "a").read_bytes() == (tree / "a").read_bytes()
    assert (target / "a").stat().st_blocks < 100 * MIB / 512


def test_an_empty_tree(tmp_path: Path, target: Path) -> None:
    (tmp_path / "tree").mkdir()
    unpack_into(target, archive_of(tmp_path / "tree"))
    assert os.listdir(target) == []
