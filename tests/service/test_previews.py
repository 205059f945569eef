"""Previews of real sandboxes, on both tiers, of a server and of a fleet."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.domain.network.ports import PUBLIC
from sandlot.domain.network.preview_links import Link, LinkTokens
from sandlot.testing.eventually import eventually
from tests.faults.rig import ServerProcess
from tests.fleet_faults.rig import Fleet

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

PORT = 8000
SECONDS = 60.0
KEY = "a-key-for-the-tests-alone"
TIERS = {"base": "runc", "gvisor": "runsc"}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server() -> AsyncIterator[ServerProcess]:
    server = ServerProcess(api_key=KEY)
    try:
        await server.start()
        yield server
    finally:
        await server.mend()
        await server.terminate()
        await server.clean()


async def serving(session: AsyncSession) -> str:
    """A link to a web server in the sandbox that shows its files."""
    await session.files.write("page.html", b"<h1>from the sandbox</h1>")
    await session.start(f"python3 -m http.server {PORT} --bind 127.0.0.1")
    url = (await session.expose(PORT)).url

    async def answers() -> bool:
        async with httpx.AsyncClient(timeout=SECONDS) as visitor:
            return (await visitor.get(url)).status_code == 200

    await eventually(answers, SECONDS, "the program answers")
    return url


@pytest.mark.parametrize("environment", TIERS)
async def test_a_page_and_a_large_file(server: ServerProcess, environment: str) -> None:
    async with server.client() as client, client.create(environment=environment) as session:
        url = await serving(session)
        await session.run("head -c 20000000 /dev/urandom > large && sha256sum large > sum", check=True)
        async with httpx.AsyncClient(timeout=SECONDS) as visitor:
            page = await visitor.get(url + "page.html")
            assert (page.status_code, page.text) == (200, "<h1>from the sandbox</h1>")
            assert page.headers["content-security-policy"].startswith("sandbox ")
            large = await visitor.get(url + "large")
            assert len(large.content) == 20_000_000
            assert hashlib.sha256(large.content).hexdigest() in (await session.run("cat sum")).output
            many = await asyncio.gather(*(visitor.get(url + "page.html") for _ in range(60)))
            assert {answer.status_code for answer in many} == {200}
            await session.unexpose(PORT)
            assert (await visitor.get(url)).status_code == 404


@pytest.mark.parametrize("environment", TIERS)
async def test_nothing_listens(server: ServerProcess, environment: str) -> None:
    async with server.client() as client, client.create(environment=environment) as session:
        url = (await session.expose(PORT)).url
        async with httpx.AsyncClient(timeout=SECONDS) as visitor:
            answer = await visitor.get(url)
        assert (answer.status_code, "Nothing listens on port 8000" in answer.text) == (502, True)


async def test_a_program_that_listens_on_ipv6_alone(server: ServerProcess) -> None:
    async with server.client() as client, client.create() as session:
        if not (await session.run("test -e /proc/net/if_inet6 && grep -q lo /proc/net/if_inet6")).ok:
            pytest.skip("the sandbox's loopback has no IPv6")
        await session.start(f"python3 -m http.server {PORT} --bind ::1")
        url = (await session.expose(PORT)).url

        async def answers() -> bool:
            async with httpx.AsyncClient(timeout=SECONDS) as visitor:
                return (await visitor.get(url)).status_code == 200

        await eventually(answers, SECONDS, "the program answers")


async def test_links_and_exposed_ports_survive_a_killed_server(server: ServerProcess) -> None:
    async with server.client() as client:
        session = await client.create()
        url = await serving(session)
        async with httpx.AsyncClient(timeout=SECONDS) as visitor:
            async with visitor.stream("GET", url) as answer:
                assert answer.status_code == 200
            await server.kill()
            await server.start()
            began = time.monotonic()

            async def answers() -> bool:
                return (await visitor.get(url + "page.html")).status_code == 200

            await eventually(answers, SECONDS, "the preview works again")
            print(f"the preview was back after {time.monotonic() - began:.1f} s")
            assert [one.port for one in await session.previews()] == [PORT]
            await session.delete()
            assert (await visitor.get(url)).status_code == 404


async def test_through_every_coordinator_of_a_fleet() -> None:
    fleet = Fleet(workers=2, coordinators=2)
    try:
        await fleet.start()
        async with fleet.client(0) as client, httpx.AsyncClient(timeout=SECONDS) as visitor:
            session = await client.create()
            url = await serving(session)
            assert url.startswith(fleet.coordinators[0].url)
            elsewhere = url.replace(fleet.coordinators[0].url, fleet.coordinators[1].url)
            for one in (url, elsewhere):
                page = await visitor.get(one + "page.html")
                assert (page.status_code, page.text) == (200, "<h1>from the sandbox</h1>")
                await _refuses_bad_links(visitor, session, one)
            # A worker serves no previews itself: its links would end with it.
            path = url.removeprefix(fleet.coordinators[0].url)
            assert (await visitor.get(fleet.worker_of(session).url + path)).status_code == 401
            await _connects(client, session)
            await session.delete()
            for one in (url, elsewhere):
                assert (await visitor.get(one)).status_code == 404
    finally:
        await fleet.clean()


async def _refuses_bad_links(visitor: httpx.AsyncClient, session: AsyncSession, url: str) -> None:
    """For requests and for WebSockets alike."""
    begin, _, token = url.rstrip("/").rpartition("/")
    expired = (await session.expose(PORT, expires_s=0.1)).prefix.rpartition("/")[2]
    # Of a server that has another key, whatever it says.
    forged = LinkTokens(b"x" * 32).sign(Link(session.id, PORT, PUBLIC))

    async def has_expired() -> bool:
        return (await visitor.get(f"{begin}/{expired}/")).status_code == 403

    await eventually(has_expired, SECONDS, "the link has expired")
    for bad in (expired, forged, token[:-4] + "AAAA", token[:-4], "x"):
        answer = await visitor.get(f"{begin}/{bad}/page.html")
        assert (answer.status_code, "from the sandbox" in answer.text) == (403, False), bad
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws{begin.removeprefix('http')}/{bad}/")
        assert refused.value.response.status_code == 403, bad


async def _connects(client: AsyncClient, session: AsyncSession) -> None:
    """Straight to the worker, and through the coordinator."""
    stream = await client.service.connect(session.id, PORT)
    try:
        await stream.send(b"GET /page.html HTTP/1.0\r\n\r\n")
        got = b""
        async with asyncio.timeout(SECONDS):
            while piece := await stream.receive():
                got += piece
        assert got.endswith(b"from the sandbox</h1>")
    except SandlotError as error:
        raise AssertionError(error.message) from error
    finally:
        await stream.close()
