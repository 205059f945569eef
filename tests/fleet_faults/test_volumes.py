"""Volumes of a real fleet: an emptied directory learns their names again, and a machine is lost with its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot import errors
from sandlot.testing.eventually import eventually
from tests.faults.rig import created_at_last
from tests.fleet_faults.test_lost_machines import machines, objects, ok
from tests.fleet_faults.waiting import given_up

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600)]
__all__ = ["objects"]

WITHIN_S = 60.0


async def test_names_and_losses(objects: Path) -> None:
    async with machines(objects) as rig:
        (first,) = rig.fleet.workers
        async with rig.fleet.client() as client:
            volume = await client.volumes.create("data", size="64m")
            asked = {"thread": "t", "volumes": {"data": "rw"}, "artifacts": ["out/*"]}
            session = await created_at_last(client, certain=False, **asked)
            await ok(session, "echo one >/volumes/data/a")
            async with rig.fleet.directory() as directory:
                await directory.calls._redis.flushall()

            async def found() -> bool:
                try:
                    return (await client.volumes.get("data")).id == volume.id
                except errors.Unavailable:  # the directory is not settled yet, and says so
                    return False

            await eventually(found, WITHIN_S, "the worker has recorded its volumes again")
            with pytest.raises(errors.Conflict):
                await client.volumes.create("data")
            second = await rig.add()
            other = await created_at_last(client, volumes={"data": "ro"}, certain=False)
            assert await ok(other, "cat /volumes/data/a") == "one\n"
            assert other.info.sandbox_id in first.containers()
            await rig.lose(first)
            lost = await given_up(client, "t")
            assert lost.info.loss is not None
            assert {"volume data", "exposed ports"} <= set(lost.info.loss.lost)
            assert lost.info.artifacts == ("out/*",)
            await lost.recreate()
            assert lost.info.sandbox_id in second.containers()
            assert lost.info.volumes == ()
            assert (await lost.run("ls /volumes/data")).exit_code != 0
            with pytest.raises(errors.Unavailable) as gone:
                await client.create(volumes={"data": "ro"})
            assert gone.value.details["reason"] == "worker_gone"
            await client.volumes.delete("data")
            again = await client.volumes.create("data", size="64m")
            async with await client.create(volumes={"data": "rw"}) as writer:
                assert await ok(writer, "ls -A /volumes/data") == ""
            await client.volumes.delete(again)
            await lost.delete()
            await other.delete()
