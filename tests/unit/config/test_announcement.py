"""An announcement is believed only if its writer can be trusted and still runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.config.announcement import MAX_BYTES, NAME, Announcement, announce, read_announcement, withdraw
from sandlot.config.data_folder import data_dir, default_data_dir
from sandlot.config.settings import ServerSettings

URL = "http://127.0.0.1:8000"


@pytest.fixture
def made(tmp_path: Path) -> Announcement:
    return announce(tmp_path, URL, "worker-1")


def change(folder: Path, **fields: object) -> None:
    path = folder / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_what_was_announced_is_read(tmp_path: Path, made: Announcement) -> None:
    assert read_announcement(tmp_path) == made
    assert (made.url, made.worker_id, made.pid) == (URL, "worker-1", os.getpid())
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_withdrawn_it_is_gone(tmp_path: Path, made: Announcement) -> None:
    withdraw(tmp_path, made)
    withdraw(tmp_path, made)
    assert read_announcement(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_the_announcement_of_a_later_server_stays(tmp_path: Path, made: Announcement) -> None:
    later = announce(tmp_path, "http://127.0.0.1:8001", "worker-1")
    withdraw(tmp_path, made)
    assert read_announcement(tmp_path) == later


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_ignored(tmp_path: Path, made: Announcement, mode: int) -> None:
    (tmp_path / NAME).chmod(mode)
    assert read_announcement(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_ignored(tmp_path: Path, made: Announcement) -> None:
    os.chown(tmp_path / NAME, 65534, 65534)
    assert read_announcement(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_roots_file_is_believed_by_other_users(tmp_path: Path, made: Announcement) -> None:
    (tmp_path / NAME).chmod(0o644)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from sandlot.config.announcement import read_announcement\n"
        "os.chdir(sys.argv[1]); os.setuid(65534); print(read_announcement(Path('.')).url)"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert ran.stdout.strip() == URL, ran.stderr


def test_a_link_or_a_pipe_is_ignored(tmp_path: Path, made: Announcement) -> None:
    (tmp_path / NAME).rename(tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to("elsewhere")
    assert read_announcement(tmp_path) is None
    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME, 0o600)
    assert read_announcement(tmp_path) is None


def test_an_ended_process_is_stale(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sandlot.config.announcement import announce\n"
        f"announce(Path(sys.argv[1]), {URL!r}, 'worker-1')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / NAME).exists()
    assert read_announcement(tmp_path) is None


def test_a_pid_that_another_process_has_now_is_stale(tmp_path: Path, made: Announcement) -> None:
    change(tmp_path, pid=os.getppid())
    assert read_announcement(tmp_path) is None
    boot, pid, began = made.process.split("/")
    for process in (f"{boot}/{pid}/{int(began) + 1}", f"another-boot/{pid}/{began}", ""):
        change(tmp_path, pid=made.pid, process=process)
        assert read_announcement(tmp_path) is None
    change(tmp_path, process=made.process)
    assert read_announcement(tmp_path) == made


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 10_000, b" " * (MAX_BYTES + 1) + b"{}"],
)
def test_nonsense_is_ignored(tmp_path: Path, made: Announcement, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert read_announcement(tmp_path) is None


@pytest.mark.parametrize(
    "fields", [{"pid": "1"}, {"pid": True}, {"pid": -1}, {"url": 1}, {"worker_id": None}, {"started_at": "x"}]
)
def test_wrong_types_are_ignored(tmp_path: Path, made: Announcement, fields: dict[str, object]) -> None:
    change(tmp_path, **fields)
    assert read_announcement(tmp_path) is None


def test_nothing_there(tmp_path: Path) -> None:
    assert read_announcement(tmp_path) is None
    assert read_announcement(tmp_path / "none") is None
    with pytest.raises(OSError, match="No such file"):
        announce(tmp_path / "none", URL, "worker-1")


@pytest.mark.parametrize("value", [None, "", "~/mine", "relative"])
def test_commands_look_where_the_server_writes(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("SANDLOT_DATA_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("SANDLOT_DATA_DIR", value)
    assert data_dir() == ServerSettings().data_dir.absolute()
    if not value:
        assert data_dir() == default_data_dir()
