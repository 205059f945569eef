"""The steps of docs/operations/watching.md and traces.md for one server, with a real Prometheus and a real receiver."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copytree

import httpx
import pytest
import pytest_asyncio

from sandlot.testing.directory_suite.redis_server import free_port
from sandlot.testing.eventually import eventually
from tests.docs.operations.host import host, section
from tests.docs.test_tutorial import ROOT
from tests.faults.rig import ServerProcess
from tests.observability.prometheus import PROMETHEUS
from tests.observability.receiver import Receiver

pytestmark = [pytest.mark.docker, pytest.mark.slow]

KEY = "a-key-for-the-tests-alone"
SCRAPED_WITHIN_S = 60.0
SENT_WITHIN_S = 30.0


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerProcess]:
    server = ServerProcess(api_key=KEY, pool_size="0", min_pool_size="0")
    yield server
    await server.clean()


@pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus: scripts/engine packages installs it")
async def test_prometheus_watches_a_server(server: ServerProcess) -> None:
    """As shipped, but for the server's port, the place of the key, and how often it looks."""
    assert PROMETHEUS is not None
    await server.start()
    (creating,) = section("operations/watching.md", "Watch a server")
    async with host({"SANDLOT_URL": server.url, "SANDLOT_API_KEY": KEY}) as here:
        key = (await here.run(creating)).strip()
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=20) as http:
            assert (await http.get("/metrics")).status_code == 200
            for path in ("/v1/sessions", "/v1/keys", "/v1/events"):
                assert (await http.get(path)).status_code == 403, path

        copytree(ROOT / "deploy/prometheus", here.folder / "prometheus")
        (here.folder / "key").write_text(key)
        config = here.folder / "prometheus/prometheus.yml"
        text = config.read_text()
        for shipped, mine in (
            ("/etc/prometheus/sandlot-key", str(here.folder / "key")),
            ("127.0.0.1:8000", f"127.0.0.1:{server.port}"),
            ("interval: 15s", "interval: 1s"),
        ):
            assert shipped in text
            text = text.replace(shipped, mine)
        config.write_text(text.replace("global:", "global:\n  scrape_timeout: 1s"))
        port = free_port()
        with (here.folder / "log").open("wb") as log:
            prometheus = await asyncio.create_subprocess_exec(
                PROMETHEUS,
                f"--config.file={config}",
                f"--storage.tsdb.path={here.folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{port}",
                stdout=log,
                stderr=log,
            )

        async def sees_it() -> bool:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=20) as http:
                try:
                    found = (await http.get("/query", params={"query": "up + on() sandlot_ready"})).json()
                    rules = (await http.get("/rules")).json()["data"]["groups"]
                except (httpx.HTTPError, KeyError):
                    return False
            return [one["value"][1] for one in found["data"]["result"]] == ["2"] and len(rules) > 1

        try:
            await eventually(sees_it, SCRAPED_WITHIN_S, (here.folder / "log").read_text)
        finally:
            prometheus.send_signal(signal.SIGTERM)
            await prometheus.wait()


async def test_a_server_sends_traces(server: ServerProcess, tmp_path: Path) -> None:
    """With what the page exports, and no other setting."""
    (exports,) = section("operations/traces.md", "On servers")
    receiver = Receiver(tmp_path)
    try:
        await receiver.start()
        async with host({}) as here:
            here.program("pip", "#!/bin/bash\n[[ $* == 'install .[server,otel]' ]]\n")
            here.names = {"http://collector:4318": receiver.endpoint}
            exports.text += "env -0\n"
            printed = (await here.run(exports)).split("\0")
        told = dict(line.partition("=")[::2] for line in printed if line.startswith(("SANDLOT_", "OTEL_")))
        assert len(told) == 2
        server.environ |= told
        await server.start()
        async with server.client() as client, client.create() as session:
            await session.run("true")

        async def arrived() -> bool:
            return "exec" in {span.name for span in await receiver.spans()}

        await eventually(arrived, SENT_WITHIN_S, "the span of the command")
    finally:
        await receiver.clean()
