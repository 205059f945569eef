"""A server with something to see: conversations, files, a loss, a denial, snapshots, a recording."""

from __future__ import annotations

import asyncio
import base64

import httpx

from sandlot import AsyncClient, AsyncSession
from tests.faults.rig import ServerProcess

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mP8z8BQz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
)
REPORT = "month,revenue,cost\nJanuary,1200,800\nFebruary,1350,820\nMarch,1610,900\n"
THREAD = "monthly-report"


async def conversation(client: AsyncClient) -> AsyncSession:
    """What an agent might have done: files written, commands that work and fail, a denied connection."""
    session = await client.thread(THREAD, record=True, metadata={"agent": "analyst", "ticket": "4711"})
    await session.files.write("data/report.csv", REPORT)
    await session.files.write("plot.png", PNG)
    await session.files.write("README.md", "# Report\n\nNumbers of the first quarter.\n")
    await session.run("wc -l data/report.csv && head -3 data/report.csv")
    await session.run("python3 - <<'P'\nimport csv\nrows = list(csv.DictReader(open('data/report.csv')))\n"
                      "print('profit', sum(int(r['revenue']) - int(r['cost']) for r in rows))\nP")  # fmt: skip
    first = await session.workspace.snapshot("before the fix")
    await session.files.write("data/report.csv", REPORT + "April,1700,950\n")
    await session.run("curl -sS -m 5 https://api.example.com/rates")
    await session.run("ls missing")
    await session.workspace.snapshot("with April")
    await client.create(snapshot=first.id, metadata={"try": "another way"})
    await session.start("for i in $(seq 600); do echo waiting $i; sleep 5; done")
    return session


async def research(client: AsyncClient) -> AsyncSession:
    """Another agent: it searches, is refused, and goes on with what it has."""
    session = await client.thread("market-research", metadata={"agent": "researcher"})
    await session.run("mkdir -p notes && echo '- three suppliers' > notes/plan.md && cat notes/plan.md")
    await session.run("curl -sS -m 5 https://prices.example.org/steel.json")
    await session.run("python3 -c \"print('without prices:', 3 * 14)\" | tee notes/estimate.txt")
    return session


async def administered(server: ServerProcess) -> None:
    """Keys, limits of a tenant and a webhook, as an operator would have made them."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
        for name, tenant in (("ci", "acme"), ("notebook", "globex")):
            answer = await http.post("/v1/keys", json={"name": name, "tenant": tenant})
            assert answer.is_success, answer.text
        webhook = {"url": "https://hooks.example.com/sandlot", "events": ["session.lost", "session.ended"]}
        for method, path, body in (
            ("PUT", "/v1/tenants/acme/limits", {"sessions": 20, "execs": 40}),
            ("POST", "/v1/webhooks", webhook),
        ):
            answer = await http.request(method, path, json=body)
            assert answer.is_success, answer.text


async def lost(server: ServerProcess, client: AsyncClient) -> AsyncSession:
    session = await client.thread("long-research")
    await session.run("echo notes > notes.txt")
    await asyncio.to_thread(server.docker, "kill", server.container_of(session))
    async with httpx.AsyncClient(
        base_url=server.url, headers={"Authorization": f"Bearer {server.api_key}"}
    ) as http:
        for _ in range(100):
            if (await http.get(f"/v1/sessions/{session.id}")).json()["state"] == "lost":
                break
            await asyncio.sleep(0.1)
    return session
