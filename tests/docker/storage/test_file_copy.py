"""A storage file is copied while it is frozen. Whatever happens to the copy, the storage thaws."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.domain.errors import StorageProblem
from sandlot.providers.docker.workspaces.btrfs.subvolumes import opened
from sandlot.providers.docker.workspaces.storage import loop_file
from sandlot.providers.docker.workspaces.storage.file_copy import copy_frozen
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
from sandlot.testing.eventually import eventually
from tests.docker.storage.conftest import SMALL, Place

pytestmark = pytest.mark.docker

WITHIN_S = 30.0
THAW = 0xC0045878
COPY = """
import resource, sys
from pathlib import Path
from sandlot.providers.docker.workspaces.storage.file_copy import copy_frozen
from sandlot.providers.docker.workspaces.storage.loop_file import LoopFile
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
copy_frozen(LoopFile(Path(sys.argv[1])), Path(sys.argv[2]))
"""


def thaws(folder: Path) -> bool:
    """Thaw a storage. False if it was not frozen."""
    with opened(folder) as descriptor:
        try:
            fcntl.ioctl(descriptor, THAW, 0)
        except OSError as error:
            assert error.errno == errno.EINVAL, error
            return False
    return True


@pytest.fixture
def storage(place: Place) -> Iterator[LoopFile]:
    loop_file.set_up(place.storage, SMALL, say=lambda _: None)
    try:
        yield place.storage
    finally:
        thaws(place.storage.folder)


@contextlib.contextmanager
def copying(storage: LoopFile, target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that copies the storage, in a process group of its own."""
    command = [sys.executable, "-c", COPY, str(storage.folder), str(target)]
    with subprocess.Popen(command, process_group=0, stderr=subprocess.DEVNULL) as program:
        try:
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


async def opening_cp(program: subprocess.Popen[bytes]) -> int:
    """The copy's process, once the program waits for it."""

    def child() -> bool:
        found = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        return bool(found) and Path(f"/proc/{found[0]}/comm").read_text() == "cp\n"

    await eventually(child, WITHIN_S, "it copies")
    return int(Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text())


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_signal_ends_the_copy_and_then_the_program(
    number: signal.Signals, storage: LoopFile, tmp_path: Path
) -> None:
    """Ctrl-Z before does nothing: a program that is stopped would end at no signal."""
    os.mkfifo(tmp_path / "copy")  # nobody reads it, so cp waits for ever
    with copying(storage, tmp_path / "copy") as program:
        cp = await opening_cp(program)
        os.killpg(program.pid, signal.SIGTSTP)
        program.send_signal(number)
        await eventually(lambda: program.poll() is not None, WITHIN_S, "it ends")
        assert not Path(f"/proc/{cp}").exists()
        # Python ends itself by SIGINT after an uncaught KeyboardInterrupt.
        assert program.returncode == -number
    assert not thaws(storage.folder)


def test_a_copy_that_fails(storage: LoopFile, tmp_path: Path) -> None:
    with pytest.raises(StorageProblem, match="No such file or directory"):
        copy_frozen(storage, tmp_path / "missing" / "copy")
    assert not thaws(storage.folder)


def test_signals_mean_what_they_did_before(storage: LoopFile, tmp_path: Path) -> None:
    """Outside of the main thread nobody can change that, and the copy is made all the same."""
    watched = (signal.SIGTSTP, signal.SIGQUIT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in watched]
    copy_frozen(storage, tmp_path / "one")
    assert [signal.getsignal(number) for number in watched] == before
    thread = threading.Thread(target=copy_frozen, args=(storage, tmp_path / "two"))
    thread.start()
    thread.join(WITHIN_S)
    assert (tmp_path / "one").stat().st_size == (tmp_path / "two").stat().st_size == SMALL
    assert not thaws(storage.folder)
