"""``sandlot fleet`` and the members' commands, as processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.domain.capacity.machine import GIB, Condition, MachineUse, Resources
from sandlot.domain.session import CreateSession
from tests.fleet.fakes import TIMINGS, Scene
from tests.service.served import served
from tests.unit.cli.conftest import SECONDS, environment

KEY = "a-key-for-the-tests"
FLEET_KEYS = "k1:" + "s" * 40


async def sandlot(*arguments: str, code: int = 0, **variables: str) -> tuple[str, str]:
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "sandlot", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == code, (ran.returncode, ran.stdout, ran.stderr)
    assert "Traceback" not in ran.stderr
    return ran.stdout, ran.stderr


@contextlib.asynccontextmanager
async def coordinating(scene: Scene) -> AsyncIterator[dict[str, str]]:
    """The variables that point a client at the scene's coordinator."""
    async with served(scene.coordinator, api_key=KEY, fleet=scene.coordinator.operations) as url:
        yield {"SANDLOT_URL": url, "SANDLOT_API_KEY": KEY}


async def test_workers_sessions_and_status(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession(thread="t"))
    scene.workers["w1"].condition = Condition(
        MachineUse(Resources(33 * GIB, 16.0, 4_192_256), Resources(GIB, 1.0, 512), 12 * GIB),
        ("the disk is full",),
    )
    await scene.report("w1", warm=3)
    await scene.pass_time(TIMINGS.lease_s + 1, silent=("w2",))
    async with coordinating(scene) as at:
        table, _ = await sandlot("fleet", "workers", **at)
        rows = [line.split("\t") for line in table.splitlines()]
        assert rows[0][:3] == ["WORKER", "STATE", "SESSIONS"]
        assert [row[:2] for row in rows[1:]] == [["w1", "alive"], ["w2", "late"]]
        workers = json.loads((await sandlot("fleet", "workers", "--json", **at))[0])
        assert [(worker["id"], worker["recorded"], worker["warm"]) for worker in workers] == [
            ("w1", 1, 5),
            ("w2", 0, 5),
        ]
        assert (
            dict(zip(rows[0], rows[1], strict=True)).items()
            >= {
                "MEMORY": "1 GiB of 33 GiB",
                "CORES": "1 of 16",
                "PROCESSES": "512 of 4192256",
                "DISK FREE": "12 GiB",
            }.items()
        )
        assert rows[2][5:9] == ["-"] * 4, "a worker of an earlier version says nothing of its machine"
        assert workers[0]["problems"] == ["the disk is full"]
        assert "the disk is full" in (await sandlot("fleet", "status", **at))[0]
        assert "1 alive, 1 late" in (await sandlot("fleet", "status", **at))[0]
        listed = json.loads((await sandlot("fleet", "sessions", "--worker", "w1", "--json", **at))[0])
        assert [(one["session"]["id"], one["worker"]) for one in listed] == [(opened.session.id, "w1")]
        assert json.loads((await sandlot("fleet", "sessions", "--worker", "w2", "--json", **at))[0]) == []


async def test_drain(scene: Scene) -> None:
    async with coordinating(scene) as at:
        await sandlot("fleet", "drain", "w2", **at)
        assert scene.workers["w2"].draining
        await sandlot("fleet", "undrain", "w2", **at)
        assert not scene.workers["w2"].draining
        _, told = await sandlot("fleet", "drain", "w9", code=1, **at)
        assert "Unknown worker 'w9'" in told


@pytest.mark.parametrize("words", [("status",), ("workers",), ("sessions",), ("drain", "w1")])
async def test_one_server_is_no_fleet(scene: Scene, words: tuple[str, ...]) -> None:
    async with served(scene.workers["w1"], api_key=KEY) as url:
        _, told = await sandlot("fleet", *words, code=1, SANDLOT_URL=url, SANDLOT_API_KEY=KEY)
        assert "is a single server, not a fleet coordinator" in told


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "SANDLOT_FLEET_KEYS"),
        ({"SANDLOT_FLEET_KEYS": "short"}, "Key 1 in SANDLOT_FLEET_KEYS"),
        (
            {"SANDLOT_FLEET_KEYS": FLEET_KEYS, "SANDLOT_LEASE_S": "9", "SANDLOT_LOST_AFTER_S": "3"},
            "SANDLOT_LOST_AFTER_S must not",
        ),
        ({"SANDLOT_FLEET_KEYS": FLEET_KEYS, "SANDLOT_LEASE_S": "0"}, "SANDLOT_LEASE_S"),
    ],
)
@pytest.mark.parametrize("member", ["worker", "coordinator"])
async def test_a_member_says_what_it_lacks(
    tmp_path: Path, member: str, variables: dict[str, str], words: str
) -> None:
    _, told = await sandlot(member, "--port", "1", code=1, SANDLOT_DATA_DIR=str(tmp_path), **variables)
    assert words in told
    assert "s" * 40 not in told
