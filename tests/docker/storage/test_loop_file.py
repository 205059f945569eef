"""A btrfs in a file: made, mounted, grown, and finished by the next run if one is killed anywhere."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.domain.errors import Conflict, EngineProblem, InvalidRequest, StorageFull
from sandlot.providers.docker.workspaces.storage import boot_mount, loop_file, status
from sandlot.providers.docker.workspaces.storage.file_system import Quotas, quotas_of
from sandlot.providers.docker.workspaces.storage.loop_file import MIB, LoopFile
from tests.docker.storage.conftest import SMALL, Place

# Sets storage up, and kills itself with -9 before the step of a given number. A step is what changes
# something: a command, a rename, a truncation, an ioctl.
KILLED = """
import os, signal, sys
from pathlib import Path
from sandlot.providers.docker.workspaces.storage import boot_mount, loop_file
folder, fstab, size, fatal = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
steps = {"subprocess.Popen", "os.rename", "os.truncate", "os.mkdir", "os.chmod", "os.remove", "fcntl.ioctl"}
count = 0
def die(event, arguments):
    global count
    if event in steps:
        count += 1
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
storage = loop_file.LoopFile(folder)
sys.addaudithook(die)
loop_file.set_up(storage, size, say=lambda _: None)
boot_mount.mount_at_boot(storage, fstab)
print(count)
"""


def quiet(_: str) -> None:
    pass


def set_up(place: Place, size: int | None = SMALL) -> None:
    loop_file.set_up(place.storage, size, say=quiet)
    boot_mount.mount_at_boot(place.storage, place.fstab)


def size_of(folder: Path) -> int:
    total = status.examine(folder).size
    assert total is not None
    return total


def test_storage_is_made_mounted_and_limits_its_users(place: Place) -> None:
    assert status.examine(place.storage.folder, place.fstab).kind == "none"
    set_up(place)
    found = status.examine(place.storage.folder, place.fstab)
    assert (found.kind, found.mounted, found.boot_mount, found.problems) == ("loop file", True, True, ())
    assert (found.size, found.quotas) == (SMALL, Quotas.SIMPLE)
    assert found.file_taken is not None
    assert found.file_taken < SMALL / 2, "the file is not sparse"
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    options = next(line for line in mounts if f" {place.storage.folder} " in line).split()[5]
    assert {"nosuid", "nodev", "noatime"} <= set(options.split(","))
    assert place.storage.folder.stat().st_mode & 0o777 == 0o700
    assert place.storage.file.stat().st_mode & 0o777 == 0o600


def test_a_repeated_set_up_changes_nothing(place: Place) -> None:
    set_up(place)
    (place.storage.folder / "kept").write_text("kept")
    fstab = place.fstab.read_bytes()
    for size in (None, SMALL):
        set_up(place, size)
    assert (place.storage.folder / "kept").read_text() == "kept"
    assert place.fstab.read_bytes() == fstab
    assert len(place.devices()) == 1
    place.unmount()
    set_up(place, None)
    assert (place.storage.folder / "kept").read_text() == "kept"


def test_it_grows_while_it_is_used_and_never_shrinks(place: Place) -> None:
    set_up(place)
    with (place.storage.folder / "open").open("w") as file:
        set_up(place, 2 * SMALL)
        assert size_of(place.storage.folder) == 2 * SMALL
        file.write("still open")
    with pytest.raises(InvalidRequest, match="cannot shrink"):
        set_up(place, SMALL)
    # An unmounted one grows too.
    place.unmount()
    set_up(place, 3 * SMALL)
    assert size_of(place.storage.folder) == 3 * SMALL
    assert (place.storage.folder / "open").read_text() == "still open"


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True], ids=["made", "grown"])
def test_a_set_up_that_is_killed_anywhere_is_finished_by_the_next(place: Place, grows: bool) -> None:
    fatal = 0
    size = SMALL
    while True:
        fatal += 1
        if grows:
            set_up(place, size)
            size += 16 * MIB
            (place.storage.folder / "kept").write_text("kept")
        arguments = [str(place.storage.folder), str(place.fstab), str(size), str(fatal)]
        ran = subprocess.run(
            [sys.executable, "-c", KILLED, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if ran.returncode == 0:
            assert int(ran.stdout) == fatal - 1
            break
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        set_up(place, size)
        found = status.examine(place.storage.folder, place.fstab)
        assert (found.size, found.quotas, found.mounted) == (size, Quotas.SIMPLE, True), fatal
        assert (found.boot_mount, found.problems) == (True, ()), fatal
        assert len(place.devices()) == 1, fatal
        assert place.fstab.read_text().count("btrfs loop") == 1
        assert not place.storage.part.exists()
        if grows:
            assert (place.storage.folder / "kept").read_text() == "kept"
        else:
            place.unmount()
            place.storage.file.unlink()
            place.storage.folder.rmdir()
            place.fstab.unlink()
    assert fatal > (3 if grows else 7)


def test_what_is_in_the_way_is_left_alone(place: Place) -> None:
    place.storage.folder.mkdir()
    (place.storage.folder / "somebody's").write_text("precious")
    with pytest.raises(Conflict, match="not empty"):
        set_up(place)
    assert (place.storage.folder / "somebody's").read_text() == "precious"
    (place.storage.folder / "somebody's").unlink()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(place.storage.folder)], check=True)
    with pytest.raises(Conflict, match="is mounted at"):
        set_up(place)
    assert [*place.storage.folder.iterdir()] == []
    place.unmount()
    place.fstab.write_text(f"/dev/sdz {place.storage.folder} ext4 defaults 0 0\n")
    with pytest.raises(Conflict, match="already mounts /dev/sdz"):
        set_up(place)


def test_a_file_that_is_no_file_system_is_not_overwritten(place: Place) -> None:
    place.storage.file.write_bytes(b"precious" + bytes(SMALL))
    with pytest.raises(EngineProblem, match="mount failed"):
        set_up(place, None)
    assert place.storage.file.read_bytes()[:8] == b"precious"


def test_sizes_that_do_not_fit_are_refused(place: Place) -> None:
    with pytest.raises(InvalidRequest, match="--size 50G"):
        set_up(place, None)
    with pytest.raises(InvalidRequest, match="at least 256 MiB"):
        set_up(place, MIB)
    with pytest.raises(StorageFull, match=r"has room for a storage file of .* --overcommit"):
        set_up(place, 1024**5)
    assert not place.storage.file.exists()
    loop_file.set_up(place.storage, 1024**4 * 3, overcommit=True, say=quiet)
    problems = status.examine(place.storage.folder, place.fstab).problems
    assert any("is too small for it" in problem for problem in problems)


def test_a_workspace_cannot_fill_more_than_the_file(place: Place) -> None:
    set_up(place)
    fill = place.storage.folder / "fill"
    with pytest.raises(OSError, match="No space left") as full:
        fill.write_bytes(bytes(2 * SMALL))
    assert full.value.errno == errno.ENOSPC
    fill.unlink()
    assert place.storage.file.stat().st_size == SMALL


def test_paths_with_blanks(place: Place) -> None:
    storage = LoopFile(place.folder / "a b\\c")
    try:
        loop_file.set_up(storage, SMALL, say=quiet)
        assert boot_mount.mount_at_boot(storage, place.fstab)
        assert not boot_mount.mount_at_boot(storage, place.fstab)
        assert quotas_of(storage.folder) is Quotas.SIMPLE
        # What mount itself reads in the line.
        subprocess.run(["umount", str(storage.folder)], check=True)
        subprocess.run(["mount", "-T", str(place.fstab), str(storage.folder)], check=True)
        assert status.examine(storage.folder, place.fstab).problems == ()
    finally:
        subprocess.run(["umount", str(storage.folder)], check=False, capture_output=True)
