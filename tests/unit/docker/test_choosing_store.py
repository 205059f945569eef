"""Which store keeps workspaces, when a worker refuses to start, and the line in fstab."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.domain.errors import Conflict, EngineProblem
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.providers.docker.workspaces.choosing import (
    Choice,
    Findings,
    StoreMemory,
    decide,
    look_at,
    volume_note,
)
from sandlot.providers.docker.workspaces.storage.boot_mount import is_mounted_at_boot, mount_at_boot
from sandlot.providers.docker.workspaces.storage.file_system import Quotas
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.providers.docker.workspaces.storage.status import examine

FOLDER = Path("/var/lib/sandlot/storage")
USABLE = Findings(FOLDER, quotas=Quotas.SIMPLE)
UNUSABLE = Findings(FOLDER, problem="it is not on btrfs", fix="Run something.")


def test_auto_takes_btrfs_where_it_can() -> None:
    assert decide("auto", USABLE, None).kind is StoreKind.BTRFS
    assert decide("auto", UNUSABLE, None) == Choice(StoreKind.VOLUME, "it is not on btrfs", "Run something.")


def test_volumes_on_request() -> None:
    assert decide("volume", USABLE, None).kind is StoreKind.VOLUME
    lacking = decide("volume", USABLE, str(FOLDER))
    assert lacking.kind is StoreKind.VOLUME
    assert f"files of sessions in {FOLDER} cannot be reached" in lacking.why


def test_btrfs_on_request_or_not_at_all() -> None:
    assert decide("btrfs", USABLE, None).kind is StoreKind.BTRFS
    with pytest.raises(EngineProblem, match=r"is btrfs, but it cannot be used: it is not on btrfs\. Run"):
        decide("btrfs", UNUSABLE, None)


def test_a_worker_never_leaves_its_btrfs_by_itself() -> None:
    assert decide("auto", USABLE, str(FOLDER)).kind is StoreKind.BTRFS
    with pytest.raises(EngineProblem, match=r"it is not on btrfs\. Run something\. To start without"):
        decide("auto", UNUSABLE, str(FOLDER))
    with pytest.raises(EngineProblem, match="on btrfs in /elsewhere, but SANDLOT_STORAGE_DIR is"):
        decide("auto", USABLE, "/elsewhere")


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (Findings(FOLDER, quotas=Quotas.FULL), "full ones"),
        (Findings(FOLDER, can_have_quotas=False), "no simple quotas"),
    ],
)
def test_btrfs_without_quotas_says_what_to_do(found: Findings, what: str) -> None:
    choice = decide("auto", found, None)
    assert choice.kind is StoreKind.BTRFS
    assert what in choice.why
    assert choice.fix
    # The worker's start switches them on.
    assert decide("auto", Findings(FOLDER, quotas=Quotas.OFF), None).fix == ""


def test_a_worker_remembers_its_btrfs(tmp_path: Path) -> None:
    memory = StoreMemory(tmp_path / "data")
    assert memory.folder is None
    for folder in (FOLDER, FOLDER, Path("/other")):
        memory.note(folder)
        assert StoreMemory(tmp_path / "data").folder == str(folder)


def test_a_folder_that_is_not_on_btrfs(tmp_path: Path) -> None:
    found = look_at(tmp_path / "none")
    assert found.problem
    assert found.fix
    assert not (tmp_path / "none").exists(), "looking changes nothing"
    assert examine(tmp_path / "none").kind == "none"
    note = volume_note(decide("auto", found, None))
    assert note.startswith("Workspaces are Docker volumes. They have no quotas, ")
    assert "full copy" in note
    assert note.endswith(found.fix)


def test_a_file_that_is_not_mounted_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    folder.with_name("storage.btrfs").write_bytes(b"file")
    status = examine(folder, tmp_path / "fstab")
    assert (status.kind, status.mounted, status.boot_mount) == ("loop file", False, False)
    assert len(status.problems) == 2


# --- fstab ------------------------------------------------------------------------------------


def test_fstab_gets_one_line_and_keeps_the_others(tmp_path: Path) -> None:
    fstab, storage = tmp_path / "fstab", LoopFile(tmp_path / "storage")
    others = "# /dev/old /var/lib ext4\n/dev/vda / ext4 defaults 0 1"  # without an end of line
    fstab.write_text(others)
    fstab.chmod(0o664)
    assert not is_mounted_at_boot(storage, fstab)
    assert mount_at_boot(storage, fstab)
    assert is_mounted_at_boot(storage, fstab)
    written = fstab.read_text()
    assert written.startswith(f"{others}\n# Sandlot's workspaces\n")
    assert f"\n{storage.file} {storage.folder} btrfs loop,nosuid,nodev,noatime,nofail," in written
    assert fstab.stat().st_mode & 0o777 == 0o664
    assert not mount_at_boot(storage, fstab)
    assert fstab.read_text() == written
    assert [path.name for path in tmp_path.iterdir()] == ["fstab"], "a part of it is left"


def test_fstab_with_the_operators_own_line(tmp_path: Path) -> None:
    fstab, storage = tmp_path / "fstab", LoopFile(tmp_path / "storage")
    own = f"{storage.file}\t{storage.folder}/\tbtrfs\tloop,compress=zstd\t0 0\n"
    fstab.write_text(own)
    assert not mount_at_boot(storage, fstab)
    assert fstab.read_text() == own
    fstab.write_text(f"/dev/sdb {storage.folder} ext4 defaults 0 0\n")
    with pytest.raises(Conflict, match=r"already mounts /dev/sdb"):
        mount_at_boot(storage, fstab)


def test_fstab_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "fstab").symlink_to("real")
    assert mount_at_boot(LoopFile(tmp_path / "storage"), tmp_path / "fstab")
    assert (tmp_path / "fstab").is_symlink()
    assert "btrfs" in (tmp_path / "real").read_text()
