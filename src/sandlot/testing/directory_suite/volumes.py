"""The names of volumes: one volume has one, and an unsettled directory never says that there is none."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import Conflict
from sandlot.fleet.directory.contract import Fenced
from sandlot.fleet.directory.volume_names import VolumeEntry
from sandlot.testing.directory_suite.harness import MARGIN_S, TIMINGS, Cases, Fleet, refused

ONE = VolumeEntry("acme", "data", "vol_" + "1" * 32)
OTHER = VolumeEntry("acme", "data", "vol_" + "2" * 32)
FOREIGN = VolumeEntry("other", "data", "vol_" + "3" * 32)
GONE = TIMINGS.lease_s + TIMINGS.lost_after_s + 2 * MARGIN_S


class VolumeNameCases(Cases):
    async def test_a_name_leads_to_its_volume(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        assert await fleet.directory.find_volume("acme", "data") is None
        assert await fleet.directory.record_volumes(lease, [ONE, FOREIGN]) == frozenset()
        assert await fleet.directory.record_volumes(lease, [ONE]) == frozenset()
        for client in (fleet.directory, fleet.harness.other):
            assert await client.find_volume("acme", "data") == ONE.id
            assert await client.find_volume("other", "data") == FOREIGN.id
        await fleet.directory.forget_volume(lease, ONE)
        await fleet.directory.forget_volume(lease, ONE)
        assert await fleet.directory.find_volume("acme", "data") is None
        assert await fleet.directory.find_volume("other", "data") == FOREIGN.id

    async def test_the_first_one_has_the_name(self, fleet: Fleet) -> None:
        first, second = await fleet.offer("w1"), await fleet.offer("w2")
        await fleet.settle()
        taken = await asyncio.gather(
            fleet.directory.record_volumes(first, [ONE]),
            fleet.harness.other.record_volumes(second, [OTHER]),
        )
        found = await fleet.directory.find_volume("acme", "data")
        assert found in (ONE.id, OTHER.id)
        assert frozenset().union(*taken) == {ONE.id, OTHER.id} - {found}
        loser, lease = (OTHER, second) if found == ONE.id else (ONE, first)
        await fleet.directory.forget_volume(lease, loser)
        assert await fleet.directory.find_volume("acme", "data") == found

    async def test_many_at_once(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        entries = [VolumeEntry("acme", f"data-{number}", f"vol_{number:032x}") for number in range(120)]
        assert await fleet.directory.record_volumes(lease, entries) == frozenset()
        assert await fleet.directory.record_volumes(lease, []) == frozenset()
        assert await fleet.directory.find_volume("acme", "data-119") == entries[-1].id

    async def test_an_emptied_directory_does_not_say_that_there_is_none(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.settle()
        await fleet.directory.record_volumes(lease, [ONE])
        await fleet.harness.empty()
        await refused(fleet.directory.find_volume("acme", "data"), "unsettled")
        lease = await fleet.join("w1", last_epoch=lease.epoch)
        await fleet.directory.record_volumes(lease, [ONE])
        assert await fleet.directory.find_volume("acme", "data") == ONE.id
        await refused(fleet.directory.find_volume("acme", "more"), "unsettled")

    async def test_only_the_holder_of_a_lease_writes(self, fleet: Fleet) -> None:
        old = await fleet.offer("w1")
        await fleet.settle()
        await fleet.directory.record_volumes(old, [ONE])
        await fleet.harness.pass_time(TIMINGS.lease_s + MARGIN_S)
        await fleet.join("w1", token="another process")
        with pytest.raises(Fenced):
            await fleet.directory.record_volumes(old, [OTHER])
        with pytest.raises(Fenced):
            await fleet.directory.forget_volume(old, ONE)
        assert await fleet.directory.find_volume("acme", "data") == ONE.id

    async def test_the_name_of_a_lost_volume_can_be_freed(self, fleet: Fleet) -> None:
        lease = await fleet.offer("w1")
        await fleet.offer("w2")
        await fleet.settle()
        await fleet.directory.record_volumes(lease, [ONE])
        with pytest.raises(Conflict):
            await fleet.directory.bury_volume(ONE, "w1")
        await fleet.run_for(GONE, dead=("w1",))
        assert await fleet.directory.find_volume("acme", "data") == ONE.id
        await fleet.directory.bury_volume(OTHER, "w1")
        assert await fleet.directory.find_volume("acme", "data") == ONE.id
        await fleet.directory.bury_volume(ONE, "w1")
        assert await fleet.directory.find_volume("acme", "data") is None
        await fleet.directory.bury_volume(ONE, "never-there")
        assert await fleet.directory.record_volumes(fleet.leases["w2"], [OTHER]) == frozenset()
        # The worker comes back with its volume, whose name another one has by now.
        lease = await fleet.join("w1", last_epoch=lease.epoch)
        assert await fleet.directory.record_volumes(lease, [ONE]) == {ONE.id}
