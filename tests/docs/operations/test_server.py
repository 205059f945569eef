"""The steps of docs/operations/procedures.md for one server, as they stand on the page."""

from __future__ import annotations

import sys
from functools import partial

import httpx
import pytest

from tests.docs.operations.host import host, section
from tests.docs.test_tutorial import ROOT
from tests.faults.rig import SERVE, ServerProcess
from tests.fleet_faults.waiting import works_again

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PAGE = "operations/procedures.md"
KEY = "a-key-for-the-tests-alone"
NEXT = "99.1.0"
NEXT_VERSION = f"{sys.executable} {ROOT / 'tests/fleet_faults/other_version.py'} {NEXT} serve"
# tests/test_package.py builds the wheel and installs it; here, only when they do so matters.
PIP = """#!/bin/bash
case $* in
  'wheel --wheel-dir wheels .[server]') mkdir wheels && touch wheels/sandlot.whl ;;
  'install --force-reinstall --no-index --find-links wheels sandlot[server]') mv wheels/sandlot.whl installed ;;
  *) exit 1 ;;
esac
"""


async def version_of(server: ServerProcess) -> str:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as http:
        return str((await http.get(f"{server.url}/v1/health", timeout=20)).json()["version"])


async def test_a_server_is_upgraded_under_its_users() -> None:
    server = ServerProcess(api_key=KEY, pool_size="0", min_pool_size="0")
    (upgrade,) = section(PAGE, "Upgrade a server")
    shell = {"SANDLOT_URL": server.url, "SANDLOT_API_KEY": KEY}
    async with host(shell, sandlot=[server]) as here:
        here.program("pip", PIP)
        here.names = {"/opt/sandlot/bin/pip": "pip"}
        either = f"[ -e {here.folder}/installed ] && exec {NEXT_VERSION}; exec {' '.join(SERVE)}"
        server.command = ["bash", "-c", either]
        try:
            await server.start()
            assert await version_of(server) != NEXT
            async with server.client() as client:
                session = await client.create()
                begun = await session.start("sleep 3; echo done", exec_id="across")
                listed = await here.run(upgrade)
                assert session.id in listed
                assert await version_of(server) == NEXT
                await works_again(partial(session.run, "echo on"), "on\n")
                assert (await begun.wait(timeout_s=60)).output == "done\n"
                assert (await session.refresh()).generation == 1
                await session.delete()
            await server.settle()
        finally:
            await server.clean()
