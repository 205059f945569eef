"""A secret used from a real sandbox: the API sees it, and nothing in the sandbox does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.secrets.gateways import parse_gateways
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import Secret
from sandlot.providers.base import Sandbox
from sandlot.worker.network.broker.authority import Authority
from sandlot.worker.network.broker.trust import trust_variables
from tests.unit.network.rig import Outside, brokering, new_authority, outside, proxying, resolving

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

VALUE = "sk-live-0123456789abcdef"
BUNDLE = "/workspace/ca.pem"
# Everything that came back, with its headers, on stdout.
CALL = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:
    print(answer.status, answer.headers, answer.read().decode())
"""
# The value is put together at run time, so that this program itself does not have it.
SEARCH = """
import os
value = b"-".join([b"sk", b"live", b"0123456789" + b"abcdef"])
looked, found = 0, []
def look(path):
    global looked
    try:
        with open(path, "rb") as file:
            data = file.read(50_000_000)
    except OSError:
        return
    looked += 1
    if value in data:
        found.append(path)
for top in ("/workspace", "/tmp", "/dev/shm", "/run", "/etc", "/var", "/home", "/root", "/opt"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                look(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        look(f"/proc/{pid}/{name}")
print(looked, found)
"""


async def repeating(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An API that shows the request that it got, which is the worst that an honest one does."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nx-seen: %s\r\ncontent-length: %d\r\n\r\n" % (VALUE.encode(), len(head)))
    writer.write(head)
    await writer.drain()


@contextlib.asynccontextmanager
async def networked(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> AsyncIterator[Outside]:
    """The sandbox with a proxy, as its session would have it, and an API outside."""
    resolving(monkeypatch, api=["127.0.0.1"])
    outer, own = new_authority(folder), Authority.open(folder / "tls", "worker-1")
    async with outside(repeating, outer.server("api.test")) as host:
        target = f"api.test:{host.port}"
        known = Secret("api", VALUE, (target,), parse_placement("Authorization: Bearer {secret}"))
        gateways = parse_gateways({"api": {"upstream": f"https://{target}", "secret": "api"}})
        async with (
            brokering(folder, [known], gateways=gateways, inject=["api"], authority=own) as broker,
            proxying([target], broker=broker, trust=outer.client()) as rig,
        ):
            listener = await sandbox.listen("127.0.0.1:3128")
            serving = asyncio.create_task(rig.proxy.serve_listener(listener))
            await sandbox.files.write("ca.pem", own.pem.encode())
            await sandbox.files.write("call.py", CALL.encode())
            await sandbox.files.write("search.py", SEARCH.encode())
            try:
                yield host
            finally:
                await listener.close()
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                await rig.proxy.close()


async def run(sandbox: Sandbox, command: str) -> ExecResult:
    proxy = "http://127.0.0.1:3128"
    env = {"http_proxy": proxy, "https_proxy": proxy, **trust_variables(BUNDLE)}
    return await sandbox.run(ExecRequest(command=command, env=env, timeout_s=60))


async def test_a_secret_by_gateway_and_by_interception(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with networked(sandbox, monkeypatch, tmp_path) as host:
        for number, url in enumerate(
            (
                "http://gateway.sandlot/api/v1",
                "http://127.0.0.1:3128/api/v1",
                f"https://api.test:{host.port}/v1",
            ),
            start=1,
        ):
            plain = "http_proxy= " if "127.0.0.1" in url else ""
            # What comes back goes into a file too: it is searched with the others.
            result = await run(sandbox, f"{plain}python3 call.py {url} | tee answer{number}.txt")
            assert result.exit_code == 0, result
            said = result.stdout.decode()
            assert said.startswith("200 "), said
            assert "x-seen: ***" in said
            assert "authorization: Bearer " + "*" * len(VALUE) in said
            assert VALUE not in said + result.stderr.decode()
            assert len(host.received) == number
            assert VALUE.encode() in host.received[-1]
        searched = (await run(sandbox, "python3 search.py")).stdout.decode()
        looked, _, found = searched.strip().partition(" ")
        assert int(looked) > 20
        assert found == "[]"


async def test_the_search_finds_what_is_there(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with networked(sandbox, monkeypatch, tmp_path):
        await sandbox.files.write("leak.txt", b"x" * 1000 + VALUE.encode())
        searched = (await run(sandbox, f"LEAK={VALUE} python3 search.py; rm leak.txt")).stdout.decode()
        assert "/workspace/leak.txt" in searched
        assert "/environ" in searched
