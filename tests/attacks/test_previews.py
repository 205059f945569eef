"""83: a preview leads to one port of one sandbox, on both tiers, and never to what Sandlot itself has inside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio

from sandlot import AsyncClient, AsyncSession
from sandlot.api.previews.options import PreviewOptions
from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.domain.network.ports import PUBLIC, Preview
from sandlot.domain.network.preview_links import LinkTokens, PreviewDomain
from sandlot.domain.network.variables import PROXY_PORT
from sandlot.testing.eventually import eventually
from sandlot.wiring import LocalWorker
from tests.service.served import served
from tests.service.test_service_conformance import KEY, STRANGERS_KEY, Callers
from tests.service.workers import worker

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

PORT = 8000
SECONDS = 60.0
TOKENS = LinkTokens(b"s" * 32)
DOMAIN = PreviewDomain.parse("http://*.preview.test")
TIERS = {"base": "runc", "gvisor": "runsc"}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def shared() -> AsyncIterator[LocalWorker]:
    async with worker(max_execs=12) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def url(shared: LocalWorker) -> AsyncIterator[str]:
    options = PreviewOptions(TOKENS, DOMAIN)
    async with served(shared, tokens=Callers(), previews=options, allowed_hosts=None) as url:
        yield url


async def showing(session: AsyncSession, word: str) -> Preview:
    """A preview of a program that says a word."""
    await session.files.write("index.html", word.encode())
    await session.start(f"python3 -m http.server {PORT} --bind 127.0.0.1")
    preview = await session.expose(PORT)

    async def listens() -> bool:
        return (await session.run(f"exec 3<>/dev/tcp/127.0.0.1/{PORT}")).ok

    await eventually(listens, SECONDS, "the program listens")
    return preview


def host_of(session: AsyncSession, port: int = PORT) -> str:
    return DOMAIN.origin(session.id, port).removeprefix("http://")


@pytest.mark.parametrize("environment", TIERS)
async def test_83_a_preview_leads_to_one_port_of_one_sandbox(url: str, environment: str) -> None:
    async with (
        AsyncClient(url, api_key=KEY) as ours,
        AsyncClient(url, api_key=STRANGERS_KEY) as theirs,
        ours.create(environment=environment) as mine,
        theirs.create(environment=environment) as foreign,
        httpx.AsyncClient(timeout=SECONDS) as visitor,
    ):
        own, other = await showing(mine, "mine"), await showing(foreign, "theirs")
        token = own.url.partition("sandlot_link=")[2]
        link = TOKENS.read(token)

        async def ask(host: str, cookie: str = token, path: str = "/") -> httpx.Response:
            headers = {"Host": host, "Cookie": f"sandlot-preview={cookie}"}
            return await visitor.get(url + path, headers=headers)

        assert (await ask(host_of(mine))).text == "mine"
        # Our link at their host, at another port, with their exposure, as a path, as if it were public.
        for host in (host_of(foreign), host_of(mine, PORT + 1), host_of(mine, PROXY_PORT)):
            assert (await ask(host)).status_code == 404
            assert (await ask(host, path=f"/?sandlot_link={token}")).status_code == 403
        forged = LinkTokens(b"x" * 32).sign(replace(link, session_id=foreign.id))
        assert (await ask(host_of(foreign), forged)).status_code == 404
        swapped = TOKENS.sign(replace(link, session_id=foreign.id))  # signed, but of another exposure
        assert (await ask(host_of(foreign), swapped)).status_code == 404
        assert (await ask(host_of(foreign), TOKENS.sign(replace(link, exposure=PUBLIC)))).status_code == 404
        assert (await visitor.get(f"{url}/preview/{swapped}/", headers={"Host": "x"})).status_code == 404
        for call in (foreign.id, "ses_" + "0" * 32):
            with pytest.raises(NotFound):
                await ours.service.connect(call, PORT)
            with pytest.raises(NotFound):
                await ours.service.connect(call, PORT, through=other.exposure.id)
            with pytest.raises(NotFound):
                await ours.service.unexpose_port(call, PORT)
        assert (await ask(host_of(foreign), other.url.partition("sandlot_link=")[2])).text == "theirs"
        # After its end, a session's links open nothing, whoever has the next sandbox.
        await mine.delete()
        assert (await ask(host_of(mine))).status_code == 404


@pytest.mark.parametrize("environment", TIERS)
async def test_83_no_port_leads_to_the_agent(url: str, environment: str) -> None:
    """It listens on the port of the worker's proxy alone, and that one is refused."""
    listening = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == \"0A\" {print $2}'"
    async with AsyncClient(url, api_key=KEY) as client, client.create(environment=environment) as session:
        assert (await session.run(listening)).output == f"0100007F:{PROXY_PORT:04X}\n"
        with pytest.raises(InvalidRequest, match="reserved"):
            await session.expose(PROXY_PORT)
        with pytest.raises(InvalidRequest, match="reserved"):
            await client.service.connect(session.id, PROXY_PORT)
        async with httpx.AsyncClient(timeout=SECONDS) as visitor:
            answer = await visitor.get(url, headers={"Host": host_of(session, PROXY_PORT)})
            assert answer.status_code == 404
            refused = await visitor.put(
                f"{url}/v1/sessions/{session.id}/ports/{PROXY_PORT}",
                headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
                content=b"{}",
            )
            assert refused.status_code == 422
