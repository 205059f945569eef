"""The worker's folder on the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandlot.domain.environment import Tier
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.docker.host.folder import HostFolder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_epochs_grow_and_one_life_at_a_time(short_tmp: Path) -> None:
    first, second = HostFolder(short_tmp / "d"), HostFolder(short_tmp / "d")
    assert first.open() == 1
    assert mode(short_tmp / "d") == 0o700
    with pytest.raises(Conflict, match="Another worker is using the data folder"):
        second.open()
    first.close()
    assert second.open() == 2
    second.close()


def test_an_open_that_fails_can_be_repeated(short_tmp: Path) -> None:
    """It had the lock already."""
    host = HostFolder(short_tmp / "d")
    (short_tmp / "d").mkdir()
    (short_tmp / "d/epoch").write_text("damaged")
    with pytest.raises(ValueError, match="damaged"):
        host.open()
    (short_tmp / "d/epoch").write_text("3")
    assert host.open() == 4
    host.close()


def test_a_sandboxs_folder(short_tmp: Path) -> None:
    host = HostFolder(short_tmp / "d")
    host.open()
    sandbox_id = new_sandbox_id()
    old_mask = os.umask(0o077)
    try:
        made = host.make(sandbox_id)
    finally:
        os.umask(old_mask)
    assert (mode(made.path), mode(made.link), mode(made.path / "secret")) == (0o700, 0o755, 0o600)
    assert host.find(sandbox_id) == made
    assert len(made.secret) == 32
    with pytest.raises(Conflict):
        host.make(sandbox_id)
    host.remove(sandbox_id)
    host.remove(sandbox_id)
    with pytest.raises(NotFound):
        host.find(sandbox_id)
    host.close()


def test_a_half_written_secret_is_none(short_tmp: Path) -> None:
    host = HostFolder(short_tmp / "d")
    host.open()
    sandbox_id = new_sandbox_id()
    (host.make(sandbox_id).path / "secret").write_text("abcd")
    with pytest.raises(NotFound):
        host.find(sandbox_id)
    host.close()


def test_too_long_a_path_is_refused_at_once(short_tmp: Path) -> None:
    with pytest.raises(InvalidRequest, match="bytes too long"):
        HostFolder(short_tmp / ("x" * 100))


@pytest.mark.parametrize("sandbox_id", ["", "../../etc", "sbx_..", "sbx_" + "g" * 32, "sbx_" + "0" * 33])
def test_only_ids_become_paths(short_tmp: Path, sandbox_id: str) -> None:
    with pytest.raises(InvalidRequest):
        HostFolder(short_tmp).make(sandbox_id)


def test_the_agents_copy_can_be_executed(short_tmp: Path) -> None:
    host = HostFolder(short_tmp / "d")
    host.open()
    program = short_tmp / "agent"
    program.write_bytes(b"elf")
    program.chmod(0o600)
    copies = host.install_agent(program)
    assert {tier: mode(copy) for tier, copy in copies.items()} == {Tier.RUNC: 0o111, Tier.RUNSC: 0o555}
    assert {copy.read_bytes() for copy in copies.values()} == {b"elf"}
    assert host.install_agent(program) == copies
    program.write_bytes(b"newer")
    assert not copies.items() & host.install_agent(program).items()
    host.close()
