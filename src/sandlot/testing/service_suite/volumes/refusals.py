"""Volumes: what is refused, whose they are, and services that keep none."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound, Unsupported
from sandlot.testing.service_suite.harness import NEEDS_VOLUMES, Cases, ServiceHarness, unique
from sandlot.testing.service_suite.volumes.sharing import a_volume

UNKNOWN = "vol_" + "0" * 32


class VolumeStrictnessCases(Cases):
    @NEEDS_VOLUMES
    @pytest.mark.parametrize("name", ["", "Data", "a/b", "..", ".hidden", "a b", "x" * 64, UNKNOWN, "vol_x"])
    async def test_a_name_that_is_none(self, client: AsyncClient, name: str) -> None:
        with pytest.raises(InvalidRequest):
            await client.volumes.create(name)

    @NEEDS_VOLUMES
    @pytest.mark.parametrize("size", [0, -1, 1024, 2**60, "16x", ""])
    async def test_a_size_that_is_none(self, client: AsyncClient, size: int | str) -> None:
        with pytest.raises(InvalidRequest):
            await client.volumes.create(unique("data"), size=size)

    @NEEDS_VOLUMES
    async def test_a_volume_that_is_not_there(self, client: AsyncClient) -> None:
        sessions = {session.id async for session in client.sessions()}
        for name in ("no-such-volume", UNKNOWN):
            with pytest.raises(NotFound):
                await client.volumes.get(name)
            with pytest.raises(NotFound):
                await client.create(volumes={name: "ro"})
            await client.volumes.delete(name)
        assert {session.id async for session in client.sessions()} == sessions

    @NEEDS_VOLUMES
    @pytest.mark.parametrize(
        "volumes", [{"data": "w"}, {"data": None}, {"../data": "ro"}, {"": "rw"}, ["data"], {"a" * 64: "ro"}]
    )
    async def test_a_wish_that_is_none(self, client: AsyncClient, volumes: Any) -> None:
        with pytest.raises(InvalidRequest):
            await client.create(volumes=volumes)

    @NEEDS_VOLUMES
    async def test_the_same_volume_twice(self, client: AsyncClient) -> None:
        async with a_volume(client) as volume:
            with pytest.raises(InvalidRequest):
                await client.create(volumes={volume.name: "rw", volume.id: "ro"})
            async with await client.create(volumes={volume.name: "rw"}):
                pass  # the refused create holds nothing

    @NEEDS_VOLUMES
    async def test_too_many_volumes(self, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="at most 16"):
            await client.create(volumes={f"data-{number}": "ro" for number in range(17)})


class ForeignVolumeCases(Cases):
    @NEEDS_VOLUMES
    async def test_nobody_sees_those_of_others(self, client: AsyncClient, stranger: AsyncClient) -> None:
        async with a_volume(client) as volume:
            assert volume.id not in [each.id async for each in stranger.volumes.list()]
            for name in (volume.name, volume.id):
                with pytest.raises(NotFound):
                    await stranger.volumes.get(name)
                for mode in ("rw", "ro"):
                    with pytest.raises(NotFound):
                        await stranger.create(volumes={name: mode})
                await stranger.volumes.delete(name)
            assert (await client.volumes.get(volume)).id == volume.id

    @NEEDS_VOLUMES
    async def test_each_has_its_own_names(self, client: AsyncClient, stranger: AsyncClient) -> None:
        async with a_volume(client) as mine:
            theirs = await stranger.volumes.create(mine.name, size="64m")
            assert theirs.id != mine.id
            async with (
                await client.create(volumes={mine.name: "rw"}) as own,
                await stranger.create(volumes={mine.name: "rw"}) as other,
            ):
                await own.files.write(f"/volumes/{mine.name}/a", b"mine")
                assert not await other.files.exists(f"/volumes/{mine.name}/a")
                with pytest.raises(Conflict):
                    await stranger.volumes.delete(theirs)
            await stranger.volumes.delete(theirs)


class NoVolumeCases(Cases):
    async def test_a_store_without_volumes_says_so(
        self, client: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        if service_harness.abilities.volumes:
            pytest.skip("this service keeps volumes")
        with pytest.raises(Unsupported) as caught:
            await client.volumes.create("data")
        assert "cannot keep volumes" in caught.value.message
        # A coordinator knows the names of volumes, and not what the workers' stores can do.
        for call in (
            lambda: client.volumes.get("data"),
            lambda: client.create(volumes={"data": "rw"}),
        ):
            with pytest.raises((Unsupported, NotFound)):
                await call()
        assert [volume async for volume in client.volumes.list()] == []
