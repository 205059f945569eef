"""A user of its own for each sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.docker.host.folder import HostFolder
from sandlot.providers.docker.host.users import (
    DEFAULT_USERS,
    NAMESPACED_USERS,
    SYSTEMD_CONTAINERS,
    UserRange,
    find_overlap,
    renumber_accounts,
)

USUAL_SUBUIDS = UserRange(100_000, 600_100_000)


def test_default_range_is_nobody_elses() -> None:
    assert not DEFAULT_USERS.overlaps(SYSTEMD_CONTAINERS)
    assert not DEFAULT_USERS.overlaps(USUAL_SUBUIDS)
    assert NAMESPACED_USERS.last < 65_536, "a user namespace has no more"


@pytest.mark.parametrize("text", ["", "5", "5-", "-5", "9-5", "0-5", "1-4294967296", "a-b", "1-2-3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        UserRange.parse(text)


def test_range_is_read_as_it_is_written() -> None:
    assert UserRange.parse(str(DEFAULT_USERS)) == DEFAULT_USERS


@given(st.sets(st.integers(100, 110)))
def test_no_number_is_given_twice(taken: set[int]) -> None:
    users = UserRange(100, 110)
    if len(taken) == 11:
        with pytest.raises(InvalidRequest, match="100-110"):
            users.choose(taken)
    else:
        assert users.choose(taken) in set(range(100, 111)) - taken


def test_accounts_name_the_sandboxes_user() -> None:
    passwd = b"root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash\nother:x:10001:1000::/:/bin/sh\n"
    assert renumber_accounts(passwd, 77) == (
        b"root:x:0:0:root:/root:/bin/bash\nnode:x:77:77::/home/node:/bin/bash\nother:x:10001:77::/:/bin/sh\n"
    )
    assert (
        renumber_accounts(b"root:x:0:\nnode:x:1000:\n1000:x:5:1000\n", 77)
        == b"root:x:0:\nnode:x:77:\n1000:x:5:1000\n"
    )


def test_user_is_kept_as_long_as_the_sandbox(short_tmp: Path) -> None:
    """S6: over a worker's lives, and not longer."""
    users = UserRange(100, 102)
    host = HostFolder(short_tmp / "d")
    host.open()
    ids = [new_sandbox_id() for _ in range(3)]
    made = [host.make(sandbox_id, users).uid for sandbox_id in ids]
    assert sorted(made) == [100, 101, 102]
    with pytest.raises(InvalidRequest):
        host.make(new_sandbox_id(), users)
    host.close()
    next_life = HostFolder(short_tmp / "d")
    next_life.open()
    assert [next_life.find(sandbox_id).uid for sandbox_id in ids] == made
    next_life.remove(ids[1])
    assert next_life.make(new_sandbox_id(), users).uid == made[1]
    next_life.close()


def test_sandbox_made_before_there_were_users_has_the_images(short_tmp: Path) -> None:
    host = HostFolder(short_tmp / "d")
    host.open()
    sandbox_id = new_sandbox_id()
    (host.make(sandbox_id).path / "uid").unlink()
    assert host.find(sandbox_id).uid == 1000
    host.close()


def test_who_else_has_these_users_is_found(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("me:100000:65536\nbroken\nyou:x:y\n")
    (tmp_path / "passwd").write_text("root:x:0:0::/:\nme:x:3000:3000::/:\n")
    assert find_overlap(DEFAULT_USERS, tmp_path) is None
    assert find_overlap(UserRange(165_535, 170_000), tmp_path) == f"{tmp_path}/subuid (me)"
    assert find_overlap(UserRange(165_536, 170_000), tmp_path) is None
    assert find_overlap(UserRange(2999, 3000), tmp_path) == f"{tmp_path}/passwd (me)"
    assert "systemd" in str(find_overlap(UserRange(600_000, 700_000), tmp_path))
    assert find_overlap(UserRange(70_000, 80_000), tmp_path / "missing") is None
