"""A server, or a fleet, with something to see: what agents did, a loss, a denial, a fork, and what an operator set up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from sandlot import Client, Session
from sandlot.domain.session import SessionState
from tests.console.stage.agents import (
    LOST_THREAD,
    REPORT_THREAD,
    RESEARCH_THREAD,
    WHAT_IF_THREAD,
    Scripted,
    analyst,
    long_researcher,
    nightly_checker,
    researcher,
)
from tests.faults.rig import ServerProcess

LOST_WITHIN_S = 30.0


@dataclass(frozen=True)
class Scene:
    """The ids of its sessions, and who did what."""

    report: str
    what_if: str
    research: str
    recovered: str
    lost: str
    analyst: Scripted
    researcher: Scripted
    long_researcher: Scripted


def play(client: Client, lose: Callable[[Session], None]) -> Scene:
    """Three agents, one after the other, and a fourth whose sandbox stays lost."""

    def session_of(thread: str) -> Session:
        return client.thread(thread, if_different="keep")

    agents = analyst(client), researcher(client), long_researcher(client, lose)
    # A person's own, which goes on.
    session_of(REPORT_THREAD).start("for day in $(seq 600); do echo waiting, day $day; sleep 5; done")
    nightly_checker(client)
    lost = session_of("nightly-checks")
    lose(lost)
    threads = (REPORT_THREAD, WHAT_IF_THREAD, RESEARCH_THREAD, LOST_THREAD)
    report, what_if, research, recovered = (session_of(thread).id for thread in threads)
    return Scene(report, what_if, research, recovered, lost.id, *agents)


def losing(server: ServerProcess, client: Client) -> Callable[[Session], None]:
    """Kills a session's sandbox from outside, and waits until the server knows it."""

    def lose(session: Session) -> None:
        container = server.docker("ps", "-q", "--filter", f"label=sandlot.sandbox={session.info.sandbox_id}")
        server.docker("kill", container.strip())
        deadline = time.monotonic() + LOST_WITHIN_S
        while client.get(session.id).info.state is not SessionState.LOST:
            assert time.monotonic() < deadline, "the loss was not noticed"
            time.sleep(0.05)

    return lose


async def played(server: ServerProcess, key: str | None = None) -> Scene:
    """On one server, or through a coordinator on its fleet: sandboxes are killed on this machine's engine."""

    def on_thread() -> Scene:
        with Client(server.url, api_key=key or server.api_key) as client:
            return play(client, losing(server, client))

    return await asyncio.to_thread(on_thread)


async def administered(server: ServerProcess, key: str | None = None) -> None:
    """Keys, limits of a tenant and a webhook, as an operator would have made them."""
    headers = {"Authorization": f"Bearer {key or server.api_key}"}
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
