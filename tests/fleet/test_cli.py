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

from sandlot.domain.callers.principal import Principal
from sandlot.domain.capacity.machine import GIB, Condition, MachineUse, Resources
from sandlot.domain.session import CreateSession
from sandlot.fleet.signing_keys import PublicKeys, SigningKey
from sandlot.testing.eventually import eventually
from tests.fleet.fakes import SIGNING_KEY, TIMINGS, Scene
from tests.service.served import served
from tests.unit.cli.conftest import SECONDS, environment

KEY = "a-key-for-the-tests"
SECRET = "s" * 43
KEYS = {
    "worker": ("SANDLOT_FLEET_PUBLIC_KEYS", f"k1:public.{SECRET}"),
    "coordinator": ("SANDLOT_FLEET_PRIVATE_KEY", f"k1:private.{SECRET}"),
}


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


async def test_drain_waits_for_the_sessions_of_every_tenant(scene: Scene) -> None:
    async with coordinating(scene) as at:
        acme = scene.coordinator.acting_for(Principal("acme"))
        of_another = await acme.create_session(CreateSession())
        draining = asyncio.create_task(sandlot("fleet", "drain", "w1", "--wait", **at))

        async def drains() -> bool:
            return scene.workers["w1"].draining

        await eventually(drains, SECONDS)
        await asyncio.sleep(1)
        assert not draining.done()
        await acme.delete_session(of_another.session.id)
        await scene.report("w1")
        out, told = await draining
        assert out == "w1 is draining\nw1 has no sessions left\n"
        assert "w1 has 1 session left" in told


@pytest.mark.parametrize("words", [("status",), ("workers",), ("sessions",), ("drain", "w1")])
async def test_one_server_is_no_fleet(scene: Scene, words: tuple[str, ...]) -> None:
    async with served(scene.workers["w1"], api_key=KEY) as url:
        _, told = await sandlot("fleet", *words, code=1, SANDLOT_URL=url, SANDLOT_API_KEY=KEY)
        assert "is a single server, not a fleet coordinator" in told


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"keys": ""}, "sandlot fleet keygen"),
        ({"keys": "short"}, "Key 1 in SANDLOT_FLEET_P"),
        ({"SANDLOT_LEASE_S": "9", "SANDLOT_LOST_AFTER_S": "3"}, "SANDLOT_LOST_AFTER_S must not"),
        ({"SANDLOT_LEASE_S": "0"}, "SANDLOT_LEASE_S"),
    ],
)
@pytest.mark.parametrize("member", ["worker", "coordinator"])
async def test_a_member_says_what_it_lacks(
    tmp_path: Path, member: str, variables: dict[str, str], words: str
) -> None:
    name, keys = KEYS[member]
    given = {name: keys, **variables}
    if "keys" in given:
        given[name] = given.pop("keys")
    _, told = await sandlot(member, "--port", "1", code=1, SANDLOT_DATA_DIR=str(tmp_path), **given)
    assert words in told
    assert SECRET not in told


async def test_a_worker_with_a_private_key_does_not_start(tmp_path: Path) -> None:
    for given in (
        {"SANDLOT_FLEET_PRIVATE_KEY": f"k1:private.{SECRET}"},
        {"SANDLOT_FLEET_PUBLIC_KEYS": f"k1:private.{SECRET}"},
    ):
        variables = dict([KEYS["worker"]]) | given | {"SANDLOT_DATA_DIR": str(tmp_path)}
        _, told = await sandlot("worker", "--port", "1", code=1, **variables)
        assert "only verifies tokens" in told
        assert SECRET not in told


async def test_keygen(tmp_path: Path) -> None:
    printed, _ = await sandlot("fleet", "keygen", "--id", "k7")
    made = dict(line.split("=") for line in printed.splitlines() if not line.startswith("#"))
    key = SigningKey.parse(made["SANDLOT_FLEET_PRIVATE_KEY"])
    assert key.kid == "k7"
    assert PublicKeys.parse(made["SANDLOT_FLEET_PUBLIC_KEYS"]).fingerprints == key.public.fingerprints
    await sandlot("fleet", "keygen", "--into", str(tmp_path))
    private, public = tmp_path / "fleet-private-key", tmp_path / "fleet-public-keys"
    assert SigningKey.parse(private.read_text()).public.text == public.read_text().strip()
    assert private.stat().st_mode & 0o077 == 0
    before = private.read_text()
    _, told = await sandlot("fleet", "keygen", "--into", str(tmp_path), code=1)
    assert "File exists" in told
    assert private.read_text() == before, "a fleet's only copy is not replaced"


async def test_a_worker_with_other_keys_is_shown_with_what_to_do(scene: Scene) -> None:
    mine, other = SIGNING_KEY.public.fingerprints, SigningKey.generate("k1").public.fingerprints
    await scene.report("w1", keys=mine)
    await scene.report("w2", keys=other)
    async with coordinating(scene) as at:
        table, _ = await sandlot("fleet", "workers", **at)
        assert [line.split("\t")[1] for line in table.splitlines()] == ["STATE", "alive", "wrong keys"]
        workers = json.loads((await sandlot("fleet", "workers", "--json", **at))[0])
        assert [worker["trusts"] for worker in workers] == [True, False]
        assert f"does not have the public key {mine[0]}" in workers[1]["problems"][0]
        status, _ = await sandlot("fleet", "status", **at)
        assert "1 alive, 1 wrong keys" in status
        assert "SANDLOT_FLEET_PUBLIC_KEYS" in status
