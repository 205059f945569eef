"""A running server reads its registry again: on request, on SIGHUP, and never half of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from structlog.typing import EventDict
from tests.owned import OwnWorker
from tests.service.served import served
from tests.unit.worker.scripted import Engine

from sandlot.api.edge.key_ring import KeyRing
from sandlot.config.packaged import packaged_folder
from sandlot.config.registry.loading import load_registry
from sandlot.config.settings import ServerSettings
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.testing.eventually import eventually
from sandlot.wiring import reloading
from sandlot.wiring.reloading import worker_reloader
from sandlot.worker.options import WorkerOptions
from sandlot.worker.store.keys import SqliteKeys

KEY = "key-of-the-administrator"


class Server:
    def __init__(self, folder: Path) -> None:
        self.registry = folder / "registry"
        (self.registry / "environments").mkdir(parents=True)
        self.settings = ServerSettings(
            registry_dir=self.registry, data_dir=folder, pool_size=0, pool_min=0, worker_id="w1"
        )
        registry = load_registry(self.registry, defaults=self.settings.recipe_defaults)
        self.worker = OwnWorker(
            Engine().provider(),
            database=folder / "worker.db",
            recipes=registry.recipes,
            catalogue=registry.catalogue,
            options=WorkerOptions(worker_id="w1"),
            tenant_policies=TenantPolicies(dict(registry.policies)),
        )
        self.reloader = worker_reloader(self.settings, self.worker)

    def write(self, name: str, text: str | None = None) -> None:
        default = f"name: {name}\ndescription: A test.\nimage: my-{name}:1\n"
        (self.registry / "environments" / f"{name}.yaml").write_text(text or default)

    @property
    def names(self) -> set[str]:
        return set(self.worker.room())


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    await server.worker.open()
    yield server
    await server.worker.close()


@pytest_asyncio.fixture
async def client(server: Server, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncExitStack() as stack:
        store = SqliteKeys(tmp_path)
        await store.open()
        stack.push_async_callback(store.close)
        ring = KeyRing(store)
        await ring.open()
        stack.push_async_callback(ring.close)
        url = await stack.enter_async_context(
            served(server.worker, api_key=KEY, keys=ring, reload=server.reloader)
        )
        headers = {"Authorization": f"Bearer {KEY}"}
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=headers, timeout=20))


async def test_a_reload_over_http(server: Server, client: httpx.AsyncClient) -> None:
    shipped = server.names
    server.write("data")
    answer = await client.post("/v1/environments/reload")
    assert answer.json() == {
        "servers": [
            {"server": "w1", "changes": {"added": ["data"], "changed": [], "removed": []}, "problem": None}
        ]
    }
    assert (await client.post("/v1/sessions", json={"environment": "data"})).status_code == 201
    offered = (await client.get("/v1/environments")).json()["environments"]
    assert {environment["name"] for environment in offered} == shipped | {"data"}


async def test_a_broken_file_leaves_what_was_there(server: Server, client: httpx.AsyncClient) -> None:
    server.write("data")
    await client.post("/v1/environments/reload")
    before = server.names
    server.write("other")
    server.write("data", "name: data\ndescription: A test.\nimage: my-data:2\nmemroy: 1g\n")
    answer = await client.post("/v1/environments/reload")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert "environments/data.yaml" in answer.json()["detail"]
    assert "memroy" in answer.json()["detail"]
    assert server.names == before
    shown = (await client.get("/v1/environments")).json()["environments"]
    assert {environment["image"] for environment in shown if environment["name"] == "data"} == {"my-data:1"}


async def test_only_an_operator_reloads(server: Server, client: httpx.AsyncClient) -> None:
    server.write("data")
    for scopes, status in ((["admin"], 403), (["sessions:write"], 403), (["fleet:operate"], 200)):
        made = await client.post("/v1/keys", json={"name": "a", "tenant": "acme", "scopes": scopes})
        headers = {"Authorization": f"Bearer {made.json()['secret']}"}
        assert ("data" in server.names) is False
        answer = await client.post("/v1/environments/reload", headers=headers)
        assert answer.status_code == status, answer.text
    assert "data" in server.names


async def test_tenants_can_be_given_a_new_policy(server: Server) -> None:
    (server.registry / "policies").mkdir()
    policy = (packaged_folder("registry") / "policies/validation.yaml").read_text()
    strict = policy.replace("name: validation", "name: strict")
    (server.registry / "policies/strict.yaml").write_text(strict)
    assert "strict" not in server.worker.policy_names
    await server.reloader()
    assert "strict" in server.worker.policy_names


async def test_sighup_reloads(
    server: Server, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "_has_terminal", lambda: False)
    with server.reloader.on_hangup():
        server.write("data")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: "data" in server.names)
        server.write("broken", "name: [")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: len(logged) == 2, what=lambda: f"two events: {logged}")
    assert (logged[0]["event"], logged[0]["added"]) == ("registry reloaded", "data")
    assert "not reloaded" in logged[1]["event"]
    assert "broken.yaml" in logged[1]["error"]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


async def test_in_a_terminal_a_hangup_ends_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "_has_terminal", lambda: True)
    with server.reloader.on_hangup():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


async def test_one_reload_at_a_time(server: Server) -> None:
    server.write("data")
    first, second = await asyncio.gather(server.reloader(), server.reloader())
    assert (first.servers[0].changes.added, second.servers[0].changes.added) == (("data",), ())


async def test_a_folder_that_is_gone(server: Server) -> None:
    before = server.names
    for path in sorted(server.registry.rglob("*"), reverse=True):
        path.rmdir()
    server.registry.rmdir()
    with pytest.raises(InvalidRequest, match="does not exist"):
        await server.reloader()
    assert server.names == before
