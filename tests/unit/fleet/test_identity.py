"""A worker's folder: one process at a time, whatever that process dies of, and an epoch that is never half."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandlot.domain.errors import Conflict
from sandlot.fleet.membership.identity import LOCK_FILE, STATE_FILE, Identity

HOLD = """
import sys, time
from pathlib import Path
from sandlot.fleet.membership.identity import Identity
identity = Identity(Path(sys.argv[1]))
identity.claim()
identity.save_epoch(7)
print(identity.token, flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield path / "data"
    shutil.rmtree(path)


def test_second_process_is_refused_until_the_first_is_dead(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        token = first.stdout.readline().decode().strip()
        second = Identity(folder)
        try:
            with pytest.raises(Conflict, match=rf"process {first.pid}\) uses"):
                second.claim()
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        second.claim()
        assert (second.token, second.epoch) == (token, 7)
        second.release()


def test_child_does_not_inherit_the_lock(folder: Path) -> None:
    """A program that the worker started may outlive it, and must not keep the next one from starting."""
    first, second = Identity(folder), Identity(folder)
    first.claim()
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        try:
            first.release()
            second.claim()
            second.release()
        finally:
            child.kill()


def test_damaged_memory_is_no_reason_not_to_start(folder: Path) -> None:
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(b'{"token": "a", "ep')
    identity = Identity(folder)
    identity.claim()
    assert identity.epoch == 0
    identity.save_epoch(3)
    identity.release()
    again = Identity(folder)
    again.claim()
    assert (again.epoch, again.token) == (3, identity.token)
    again.release()


def test_copy_of_a_folder_has_the_epoch_but_not_the_name(folder: Path) -> None:
    first = Identity(folder)
    first.claim()
    first.save_epoch(3)
    clone = folder.parent / "clone"
    shutil.copytree(folder, clone)
    second = Identity(clone)
    second.claim()
    assert second.epoch == 3
    assert second.token != first.token
    for identity in (first, second):
        identity.release()


def test_files_are_the_owners_alone(folder: Path) -> None:
    identity = Identity(folder)
    identity.claim()
    identity.save_epoch(1)
    modes = {name: os.stat(folder / name).st_mode & 0o777 for name in (LOCK_FILE, STATE_FILE)}
    assert modes == {LOCK_FILE: 0o600, STATE_FILE: 0o600}
    identity.release()


def test_release_waits_for_a_write_and_nothing_is_written_after_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing cancels the task that waits for a write, not the thread that writes."""
    identity = Identity(folder)
    identity.claim()
    writing, go_on, synced = threading.Event(), threading.Event(), os.fsync

    def slow_fsync(descriptor: int) -> None:
        writing.set()
        assert go_on.wait(20)
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", slow_fsync)
    with ThreadPoolExecutor() as threads:
        kept = threads.submit(identity.save_epoch, 3)
        assert writing.wait(20)
        released = threads.submit(identity.release)
        with pytest.raises(TimeoutError):
            released.result(0.2)
        go_on.set()
        released.result(20)
        kept.result(20)
    before = (folder / STATE_FILE).read_bytes()
    identity.save_epoch(4)
    assert (folder / STATE_FILE).read_bytes() == before
    assert not (folder / f"{STATE_FILE}.new").exists()
