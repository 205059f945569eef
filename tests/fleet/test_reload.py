"""``sandlot env reload`` at a coordinator: it asks every worker, and says what each of them did."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sandlot.api.v1.catalogue import Reloader
from sandlot.domain.environment import Environment, EnvironmentChanges, Recipe, Reload, ServerReload
from sandlot.domain.errors import InvalidRequest, Unavailable
from sandlot.domain.service import Catalogue, EnvironmentInfo
from sandlot.fleet.access import TokenGate
from sandlot.fleet.directory.contract import Place, PlacementRequest, Timings, WorkerCard
from sandlot.fleet.directory.memory import MemoryDirectory
from sandlot.fleet.membership.membership import Membership
from sandlot.testing.eventually import eventually
from tests.fleet.fakes import SIGNING_KEY, TIMINGS, FleetFake, Scene, nobody
from tests.fleet.test_cli import KEY, sandlot
from tests.owned import OwnWorker
from tests.service.served import served
from tests.unit.worker.scripted import Engine

WIDER = Catalogue(
    tuple(EnvironmentInfo.of(Recipe(Environment(name, f"my-{name}:1"))) for name in ("base", "data"))
)


async def added() -> Reload:
    return Reload((ServerReload("its own name", EnvironmentChanges(added=("data",))),))


async def broken() -> Reload:
    raise InvalidRequest("registry/environments/data.yaml: line 3: not valid YAML")


@asynccontextmanager
async def fleet(workers: Mapping[str, Reloader | None]) -> AsyncIterator[Scene]:
    """Workers that reload so. None: as a worker of an earlier version, which cannot."""
    scene = Scene()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(scene.close)
        for name, reload in workers.items():
            fake = scene.workers[name] = FleetFake(scene.directory, name)
            gate = TokenGate(SIGNING_KEY.public, worker_id=name, generation_of=lambda _: None)
            url = await stack.enter_async_context(served(fake, tokens=gate, worker_id=name, reload=reload))
            await scene.join(name, url)
        await scene.pass_time(TIMINGS.lease_s)
        yield scene


async def test_every_worker_is_asked_and_then_the_coordinator_offers_it() -> None:
    async with fleet({"w1": added, "w2": broken, "w3": None}) as scene:
        await scene.join("w4", nobody())

        async def reload() -> Reload:
            workers = await scene.coordinator.reload(WIDER)
            return Reload((ServerReload("c1", EnvironmentChanges(added=("data",))), *workers))

        async with served(scene.coordinator, api_key=KEY, reload=reload) as url:
            at = {"SANDLOT_URL": url, "SANDLOT_API_KEY": KEY}
            out, _ = await sandlot("env", "reload", "--json", code=1, **at)
            servers = {server["server"]: server for server in json.loads(out)["servers"]}
            offered, _ = await sandlot("env", "list", "--json", **at)
    assert servers.keys() == {"c1", "w1", "w2", "w3", "w4"}
    assert [name for name, server in servers.items() if server["changes"]["added"]] == ["c1", "w1"]
    assert "data.yaml: line 3" in servers["w2"]["problem"]
    assert "no registry" in servers["w3"]["problem"]
    assert servers["w4"]["problem"]
    assert [environment["name"] for environment in json.loads(offered)] == ["base", "data"]


async def test_all_is_well() -> None:
    async with fleet({"w1": added, "w2": added}) as scene:

        async def reload() -> Reload:
            return Reload(tuple(await scene.coordinator.reload(WIDER)))

        async with served(scene.coordinator, api_key=KEY, reload=reload) as url:
            out, _ = await sandlot("env", "reload", SANDLOT_URL=url, SANDLOT_API_KEY=KEY)
    assert [line.split("\t") for line in out.splitlines()] == [
        ["SERVER", "ADDED", "CHANGED", "REMOVED", "PROBLEM"],
        ["w1", "data", "-", "-", "-"],
        ["w2", "data", "-", "-", "-"],
    ]


async def test_a_worker_announces_what_it_can_do_now(tmp_path: Path) -> None:
    directory = MemoryDirectory(timings=Timings(lease_s=1.5, lost_after_s=10))
    membership = Membership(directory, WorkerCard("w1", nobody(), "1"), tmp_path)
    recipes = {name: Recipe(Environment(name, f"my-{name}:1")) for name in ("base", "data")}
    worker = OwnWorker(
        Engine().provider(),
        database=tmp_path / "worker.db",
        recipes={"base": recipes["base"]},
        catalogue=Catalogue(()),
        registrar=membership,
    )

    async def placed(environment: str) -> bool:
        try:
            place = await directory.place(PlacementRequest("default", environment))
        except Unavailable:
            return False
        return isinstance(place, Place)

    membership.lock()
    await worker.open()
    try:
        await membership.start(worker)
        await eventually(
            lambda: placed("base"), 20
        )  # the directory is unsettled for one lease after its birth
        assert not await placed("data")
        await worker.reload(recipes, WIDER, {})
        await eventually(lambda: placed("data"), 20)
        await worker.reload({"base": recipes["base"]}, Catalogue(()), {})

        async def gone() -> bool:
            return not await placed("data")

        await eventually(gone, 20)
    finally:
        await worker.close()
        await membership.close()
