"""Snapshots, forks and volumes by E2B's SDK, on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.btrfs_storage import btrfs_storage
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.e2b.method_table import assert_all_called
from tests.faults.rig import ServerProcess

pytestmark = pytest.mark.docker

ONLY_ON = {"volumes": "btrfs", "volumes_by_the_async_sdk": "btrfs", "no_volumes": "volume"}
CASES = [
    (store, check)
    for store in ("btrfs", "volume")
    for check in checks_in("workspace_calls.py")
    if ONLY_ON.get(check, store) == store
]


@pytest.fixture(scope="module")
def on_btrfs() -> Iterator[Found]:
    with btrfs_storage() as folder:
        server = ServerProcess(api_key=SERVER_KEY, workspace_store="btrfs", storage_dir=str(folder))
        try:
            asyncio.run(server.start())
            yield run(NEWEST, "workspace_calls.py", server.url, E2B_KEY, "btrfs")
        finally:
            asyncio.run(server.clean())


@pytest.fixture(scope="module")
def on_volumes(e2b_server: ServerProcess) -> Found:
    return run(NEWEST, "workspace_calls.py", e2b_server.url, E2B_KEY, "volume")


@pytest.mark.parametrize(("store", "check"), CASES)
def test_workspaces(request: pytest.FixtureRequest, store: str, check: str) -> None:
    found: Found = request.getfixturevalue("on_btrfs" if store == "btrfs" else "on_volumes")
    found.assert_passed(check)


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_each_method_that_works_is_called(on_btrfs: Found, flavour: str) -> None:
    assert_all_called(__file__, flavour, [on_btrfs])
