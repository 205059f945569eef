"""The live API against its own description: no 5xx, and no answer that is not documented.

Each generated request is sent twice: as it is, and aimed at a session or a worker that exists. The server has
a fleet behind it, of two workers, so that it serves every route of docs/reference/openapi.json.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.fleet.fakes import two_workers
from tests.unit.api.conftest import KEY, living, serving
from tests.unit.webhooks.receiver import rig_in

from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.openapi import schema as published
from sandlot.testing.fake import FakeService
from sandlot.worker.store.keys import SqliteKeys

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
HEADERS = {"X-API-Key": KEY}


@dataclass
class Server:
    url: str

    def session(self) -> str:
        created = requests.post(f"{self.url}/v1/sessions", headers=HEADERS, timeout=60)
        session_id: str = created.json()["id"]
        return session_id

    def snapshot(self) -> str:
        path = f"{self.url}/v1/sessions/{self.session()}/snapshots"
        taken = requests.post(path, headers=HEADERS, timeout=60)
        snapshot_id: str = taken.json()["id"]
        return snapshot_id

    def key(self) -> str:
        created = requests.post(f"{self.url}/v1/keys", json={"name": "x"}, headers=HEADERS, timeout=60)
        key_id: str = created.json()["key"]["id"]
        return key_id

    def webhook(self) -> str:
        """The same one, as long as it is there: a tenant may have only a few."""
        found = requests.get(f"{self.url}/v1/webhooks", headers=HEADERS, timeout=60).json()["webhooks"]
        if found:
            return str(found[0]["id"])
        body = {"url": "https://example.invalid/", "events": ["key.used"]}
        created = requests.post(f"{self.url}/v1/webhooks", json=body, headers=HEADERS, timeout=60)
        return str(created.json()["webhook"]["id"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In a thread: schemathesis waits for its answers."""
    ports: list[int] = []
    started, ending = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        service, keys = FakeService(), SqliteKeys(tmp_path_factory.mktemp("keys"))
        await keys.open()
        ring = KeyRing(keys)
        await ring.open()
        async with (
            two_workers() as scene,
            rig_in(tmp_path_factory.mktemp("webhooks")) as rig,
            serving(service, fleet=scene.coordinator.operations, keys=ring, webhooks=rig.webhooks) as port,
        ):
            ports.append(port)
            started.set()
            await ending.wait()
        await service.close()
        await ring.close()
        await keys.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(20)
    yield Server(f"http://127.0.0.1:{ports[0]}")
    loop.call_soon_threadsafe(ending.set)
    thread.join(20)
    loop.close()


schemathesis.openapi.media_type("application/x-tar", st.binary())


def described() -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(published())
    schema.config.phases.coverage.unexpected_methods = set()
    return schema.exclude(path_regex="/watch$")  # has no end; test_files.py watches


schema = described()


@schema.parametrize()
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_documented(case: schemathesis.Case, server: Server) -> None:
    case.call_and_validate(base_url=server.url, checks=CHECKS, headers=HEADERS, timeout=60)
    aimed = False
    for part in (case.path_parameters, case.query, case.body):
        if isinstance(part, dict) and "session_id" in part:
            part["session_id"] = server.session()
            aimed = True
        elif isinstance(part, dict) and "snapshot_id" in part:
            part["snapshot_id"] = server.snapshot()
            aimed = True
        elif isinstance(part, dict) and "key_id" in part:
            part["key_id"] = server.key()
            aimed = True
        elif isinstance(part, dict) and "webhook_id" in part:
            part["webhook_id"] = server.webhook()
            aimed = True
        elif isinstance(part, dict) and "worker_id" in part:
            part["worker_id"] = "w2"
            aimed = True
    if aimed:
        case.call_and_validate(base_url=server.url, checks=CHECKS, headers=HEADERS, timeout=60)


FLEET = {
    path for path, each in published()["paths"].items() for one in each.values() if "fleet" in one["tags"]
}


async def test_only_a_coordinator_serves_and_describes_the_fleet() -> None:
    assert {"/v1/fleet", "/v1/fleet/sessions"} <= FLEET
    async with living() as live:
        own = (await live.client.get("/openapi.json")).json()
        assert published()["paths"].keys() - own["paths"].keys() == FLEET
        assert "fleet" not in {tag["name"] for tag in own["tags"]}
        for path in FLEET:
            answer = await live.client.request("POST" if "drain" in path else "GET", path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    async with two_workers() as scene, living(fleet=scene.coordinator.operations) as live:
        assert (await live.client.get("/openapi.json")).json()["paths"].keys() == published()["paths"].keys()
