"""What stops a start is told with the folder that it is about."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandlot.config.reading import server_settings
from sandlot.domain.errors import EngineProblem, StorageFull
from sandlot.fleet.membership.identity import Identity
from sandlot.wiring.worker import starting


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_the_start_names_the_folder(code: int, tmp_path: Path) -> None:
    """O11: what the system says of a write that failed has no path in it."""
    settings = server_settings(data_dir=tmp_path / "data")
    for error in (OSError(code, os.strerror(code)), StorageFull(f"the epoch: {os.strerror(code)}")):
        with pytest.raises(StorageFull, match=os.strerror(code)) as told, starting(settings):
            raise error
        assert str(tmp_path / "data") in told.value.message
        assert "SANDLOT_DATA_DIR" in told.value.message


def test_other_trouble_names_it_too(tmp_path: Path) -> None:
    settings = server_settings(data_dir=tmp_path)
    with pytest.raises(EngineProblem, match=str(tmp_path)), starting(settings):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_member_that_cannot_write_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    identity = Identity(tmp_path / "w1")
    with pytest.raises(EngineProblem, match=str(tmp_path / "w1")):
        identity.claim()
    monkeypatch.undo()
    identity.claim()  # nothing was left behind
    identity.release()
