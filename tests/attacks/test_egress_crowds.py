"""82: a session that crowds the proxy is held back, and its neighbours and the worker do not feel it."""

from __future__ import annotations

import os
import time

import pytest
from bench.rig import rss_bytes

from sandlot.client.async_session import AsyncSession
from sandlot.domain.capacity.limits import MIB
from sandlot.domain.network.caps import DEFAULT_CONNECTIONS
from sandlot.domain.network.status import Traffic
from sandlot.domain.secrets.gateways import GATEWAY_HOST
from sandlot.testing.eventually import eventually
from tests.attacks.egress import FORBIDDEN, HERE, PROGRAMS, Inside, answers_of_names, connect, get
from tests.unit.network.rig import OK, answering, echo, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

CROWD, DRIPPING = 10_000, 200
# Of a neighbour's request and command. They take some 0.1 s by themselves, more on a machine that does other things.
NEIGHBOUR_S = 15.0
SECONDS = 60.0
OTHER_FILES = 40  # of warm sandboxes that the worker makes meanwhile; fewer than one crowd has
MEMORY_BYTES = 100 * MIB


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def traffic(session: AsyncSession) -> Traffic:
    return (await session.network.status()).traffic


async def test_82_crowds_are_held_back(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand connections of one session and slow heads of another, at once."""
    answers_of_names(monkeypatch, a=[HERE])
    create, crowded = inside.client.create, inside.session
    async with (
        outside(echo) as tunnels,
        outside(answering(OK)) as web,
        create(inside.environment) as dripping,
        create(inside.environment, network=[f"a.test:{web.port}"]) as neighbour,
    ):
        target, url = f"a.test:{tunnels.port}", f"http://a.test:{web.port}"
        await crowded.network.set([target, f"a.test:{web.port}"])
        for session in (crowded, dripping):
            await session.files.write("crowd.py", (PROGRAMS / "crowd.py").read_bytes())
        files, memory = open_files(), rss_bytes()
        crowds = [
            await dripping.start(f"python3 crowd.py {DRIPPING} drip"),
            await crowded.start(f"python3 crowd.py {CROWD} {target}"),
        ]

        async def heads_are_begun() -> bool:
            return (await traffic(dripping)).open == DEFAULT_CONNECTIONS

        await eventually(heads_are_begun, SECONDS, "slow heads take what they may have")
        await eventually(
            lambda: tunnels.open == DEFAULT_CONNECTIONS, SECONDS, "the crowd takes what it may have"
        )
        slowest = 0.0
        for _ in range(5):
            began = time.monotonic()
            assert (await neighbour.run(f"curl -fsS -m {NEIGHBOUR_S} {url}")).stdout == "hello"
            slowest = max(slowest, time.monotonic() - began)
            for session in (crowded, dripping):
                assert (await traffic(session)).open <= DEFAULT_CONNECTIONS
            assert tunnels.open <= DEFAULT_CONNECTIONS
            assert (
                open_files() <= files + 2 * DEFAULT_CONNECTIONS + OTHER_FILES
            )  # both ends are in this process
        assert slowest < NEIGHBOUR_S
        assert (await traffic(crowded)).refused > DEFAULT_CONNECTIONS
        assert (await crowded.run("echo alive")).stdout == "alive\n"

        async def heads_are_over() -> bool:
            return (await traffic(dripping)).open == 0

        await eventually(heads_are_over, SECONDS, "heads that never end are ended")
        for each in crowds:
            await each.kill()
        # The agent still hands over connections of the crowd, some hundred in a second. They lead nowhere from here on.
        await crowded.network.set("none")
        await eventually(lambda: tunnels.open == 0, SECONDS, "the tunnels end with their program")
        await eventually(
            lambda: open_files() <= files + OTHER_FILES, SECONDS, "the worker has its files back"
        )
        assert rss_bytes() - memory < MEMORY_BYTES


async def test_82_the_proxy_does_not_lead_to_itself(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, connects: list[tuple[str, int]]
) -> None:
    """Nor to what the worker serves on its own machine, also if the session's policy lists it."""
    asked = answers_of_names(monkeypatch, a=[HERE], own=[FORBIDDEN])
    async with outside(answering(OK)) as web, outside(answering(OK), address=FORBIDDEN) as api:
        own = ("127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.0.0.2", str(GATEWAY_HOST))
        loop = get("127.0.0.1:3128").replace(b"http://127.0.0.1:3128/", b"/")
        messages = [
            *(message for host in own for message in (get(f"{host}:3128"), connect(f"{host}:3128", loop))),
            *(connect(f"{host}:{api.port}") for host in own),
            *(get(f"{host}:{api.port}", "/v1/sessions") for host in own),
        ]
        await inside.session.network.set(["public", f"a.test:{web.port}"])
        await inside.refused(messages)
        assert (asked, connects) == ([], [])
        listed = [f"{host}:{api.port}" for host in ("own.test", FORBIDDEN, "[::1]")]
        await inside.session.network.set([f"a.test:{web.port}", *listed, f"{FORBIDDEN}:3128", "[::1]:3128"])
        await inside.refused(
            [get(each, "/v1/sessions") for each in listed] + [connect(each) for each in listed], 403
        )
        await inside.refused([connect(f"{FORBIDDEN}:3128"), connect("[::1]:3128")], 403)
        assert connects == []
        assert api.received == []
        # As a server, the proxy knows gateways alone.
        direct, answer = await inside.say([loop, get(f"a.test:{web.port}")])
        assert direct.startswith(b"HTTP/1.1 404 ")
        assert answer.endswith(b"hello")
        assert connects == [(HERE, web.port)]
