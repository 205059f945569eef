"""Connections to ports inside a sandbox, and listeners inside that forward to the host."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import InvalidRequest, NotFound
from sandlot.providers.base import Sandbox
from sandlot.testing.eventually import eventually
from sandlot.testing.provider_suite.harness import Cases, ok, require, run

ECHO = """
import socket, threading
def serve(c):
    with c:
        while data := c.recv(65536):
            c.sendall(data)
s = socket.create_server(("127.0.0.1", 7777)) if {tcp} else socket.socket(socket.AF_UNIX)
if not {tcp}:
    s.bind("/tmp/echo.sock"); s.listen()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""


class PortCases(Cases):
    @pytest.mark.parametrize("network", ["tcp", "unix"])
    async def test_connect_inwards(self, sandbox: Sandbox, network: str) -> None:
        await require(sandbox, "python3")
        await sandbox.files.write("echo.py", ECHO.format(tcp=network == "tcp").encode())
        await ok(sandbox, "python3 echo.py &")
        address = "127.0.0.1:7777" if network == "tcp" else "/tmp/echo.sock"

        async def accepts() -> bool:
            try:
                stream = await sandbox.connect(address, network=network)
            except NotFound:
                return False
            await stream.close()
            return True

        await eventually(accepts, 20, "the echo server listens")
        data = bytes(range(256)) * 8000
        stream = await sandbox.connect(address, network=network)

        async def send() -> None:
            await stream.send(data)
            await stream.send_end()

        sender = asyncio.create_task(send())
        got = b""
        while piece := await asyncio.wait_for(stream.receive(), 20):
            got += piece
        await sender
        await stream.close()
        assert got == data

    async def test_closed_port_and_foreign_address_are_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(NotFound, match="refused"):
            await sandbox.connect("127.0.0.1:1")
        for address in ("10.0.0.1:80", "example.com:80"):
            with pytest.raises(InvalidRequest, match="loopback"):
                await sandbox.connect(address)

    async def test_listen_outwards(self, sandbox: Sandbox) -> None:
        await require(sandbox, "python3")
        listener = await sandbox.listen("127.0.0.1:0")
        port = listener.address.rsplit(":", 1)[1]
        client = (
            "import socket; c = socket.create_connection(('127.0.0.1', "
            f"{port})); c.sendall(b'ping'); c.shutdown(1); print(c.recv(100).decode())"
        )
        ran = asyncio.create_task(run(sandbox, f'python3 -c "{client}"'))
        stream = await asyncio.wait_for(anext(listener.connections()), 20)
        assert await stream.receive() == b"ping"
        await stream.send(b"pong")
        await stream.send_end()
        assert (await ran).stdout == b"pong\n"
        await stream.close()
        await listener.close()
        assert (await run(sandbox, f'python3 -c "{client}"')).exit_code != 0
