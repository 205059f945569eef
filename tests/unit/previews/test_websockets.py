"""WebSockets through a preview."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from tests.unit.previews.rig import DOMAIN, PORT, SECONDS, Rig, rigged
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from sandlot.testing.eventually import eventually

pytestmark = pytest.mark.asyncio

Handler = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def speaking(handler: Handler, **options: object) -> AsyncIterator[Rig]:
    """A rig whose program speaks WebSockets."""

    def choose(socket: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        return next(iter(offered), None)

    async with serve(handler, "127.0.0.1", 0, select_subprotocol=choose) as server:
        port = server.sockets[0].getsockname()[1]

        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
                target.write_eof()

            tasks = [asyncio.create_task(copy(reader, back)), asyncio.create_task(copy(there, writer))]
            await asyncio.gather(*tasks, return_exceptions=True)
            back.close()

        async with rigged(**options) as rig:  # type: ignore[arg-type]
            rig.program.script = join
            yield rig


def socket_url(rig: Rig, path: str) -> str:
    return "ws" + rig.url.removeprefix("http") + path


async def echo(socket: ServerConnection) -> None:
    await socket.send("welcome")  # together with the handshake
    async for message in socket:
        await socket.send(message)


async def test_messages_pass_both_ways() -> None:
    seen: list[ServerConnection] = []

    async def handler(socket: ServerConnection) -> None:
        seen.append(socket)
        await echo(socket)

    async with speaking(handler) as rig:
        preview = await rig.expose()
        url = socket_url(rig, preview.prefix + "/hmr?token=1")
        headers = {"Origin": "null", "Cookie": "a=b", "Authorization": "Bearer x"}
        async with connect(url, subprotocols=[Subprotocol("own")], additional_headers=headers) as socket:
            async with asyncio.timeout(SECONDS):
                assert socket.subprotocol == "own"
                assert await socket.recv() == "welcome"
                large = "ü" * 400_000
                for message in ("text", b"\x00\xff bytes", "", large):
                    await socket.send(message)
                    assert await socket.recv() == message
        request = seen[0].request
        assert request is not None
        assert request.path == "/hmr?token=1"
        assert request.headers["Host"] == f"localhost:{PORT}"
        assert request.headers["Origin"] == f"http://localhost:{PORT}"
        assert request.headers["X-Forwarded-Prefix"] == preview.prefix
        assert "Cookie" not in request.headers
        assert "Authorization" not in request.headers


async def test_close_codes_pass_both_ways() -> None:
    codes = asyncio.Queue[int | None]()

    async def handler(socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            if await socket.recv() == "close":
                await socket.close(4321, "own reason")
            await socket.recv()
        await socket.wait_closed()
        codes.put_nowait(socket.close_code)

    async with speaking(handler) as rig:
        preview = await rig.expose()
        url = socket_url(rig, preview.prefix + "/")
        async with asyncio.timeout(SECONDS):
            async with connect(url) as socket:
                await socket.send("close")
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "own reason")
            assert await codes.get() == 4321
            async with connect(url) as socket:
                await socket.send("stay")
                await socket.close(4000)
            assert await codes.get() == 4000


async def test_fragments_become_one_message() -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.send(["one ", "two ", "three"])
        await socket.send([b"1", b"2"])
        await socket.wait_closed()

    async with speaking(handler) as rig:
        preview = await rig.expose()
        async with connect(socket_url(rig, preview.prefix + "/")) as socket:
            async with asyncio.timeout(SECONDS):
                assert await socket.recv() == "one two three"
                assert await socket.recv() == b"12"


async def test_by_host_with_the_cookie_and_from_its_own_pages_only() -> None:
    async with speaking(echo, domain=DOMAIN) as rig:
        preview = await rig.expose()
        cookie = f"sandlot-preview={preview.url.partition('=')[2]}"
        own = {"Cookie": cookie, "Origin": f"http://{rig.host}", "Host": rig.host}
        url = socket_url(rig, "/")

        async def status(**headers: str) -> int:
            try:
                async with rig_connect(url, {**own, **headers}) as socket:
                    await socket.recv()
                    return 101
            except InvalidStatus as refused:
                return refused.response.status_code

        assert await status() == 101
        assert await status(Origin="http://evil.example") == 403
        assert await status(Origin=f"http://7001{rig.host[4:]}") == 403
        assert await status(Cookie="sandlot-preview=x") == 404
        await rig.service.unexpose_port(rig.session_id, PORT)
        assert await status() == 404


@contextlib.asynccontextmanager
async def rig_connect(url: str, headers: dict[str, str]) -> AsyncIterator[object]:
    """With a Host header that is not the one in the URL."""
    host, port = url.removeprefix("ws://").partition("/")[0].split(":")
    own = {name: value for name, value in headers.items() if name != "Host"}
    async with connect(
        f"ws://{headers['Host']}/", host=host, port=int(port), additional_headers=own
    ) as socket:
        yield socket


async def test_nothing_listens_and_no_websocket() -> None:
    async with rigged() as rig:
        for preview, status in ((await rig.expose(7001), 502), (await rig.expose(), 502)):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(socket_url(rig, preview.prefix + "/")):
                    pass
            assert refused.value.response.status_code == status
        assert rig.program.heads[-1].target == b"/"  # it answered 200, which opens no WebSocket


async def test_unexposing_ends_an_open_websocket() -> None:
    async with speaking(echo) as rig:
        preview = await rig.expose()
        async with connect(socket_url(rig, preview.prefix + "/")) as socket:
            async with asyncio.timeout(SECONDS):
                assert await socket.recv() == "welcome"
                await rig.service.unexpose_port(rig.session_id, PORT)
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 1001


async def test_a_message_that_is_too_large_ends_the_websocket() -> None:
    async def handler(socket: ServerConnection) -> None:
        await socket.send(b"x" * 300_000)
        await socket.wait_closed()

    async with speaking(handler, max_message_bytes=100_000) as rig:
        preview = await rig.expose()
        async with connect(socket_url(rig, preview.prefix + "/")) as socket:
            async with asyncio.timeout(SECONDS):
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 1009


async def test_what_programs_send_is_held_within_a_budget() -> None:
    """Messages that never end, in fragments, of several programs at once."""

    async def endless(socket: ServerConnection) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * 10_000
            await socket.wait_closed()

        with contextlib.suppress(ConnectionClosed):
            await socket.send(pieces())

    async with speaking(endless, max_held_bytes=500_000) as rig:
        preview = await rig.expose()
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(SECONDS):
            url = socket_url(rig, preview.prefix + "/")
            sockets = [await stack.enter_async_context(connect(url)) for _ in range(3)]
            ends = [asyncio.create_task(socket.wait_closed()) for socket in sockets]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert 1013 in [socket.close_code for socket in sockets]
            for end in ends:
                end.cancel()


@pytest.mark.parametrize("frames", ["pings", "empty fragments"])
async def test_what_is_no_part_of_a_message_is_not_held(frames: str) -> None:
    """A program that sends it without end must not use up what all programs may hold."""
    flooded = asyncio.Event()

    async def fragments(socket: ServerConnection) -> AsyncIterator[bytes]:
        yield b"begin"
        for _ in range(100_000):
            yield b""
        await (await socket.ping(b"last"))
        flooded.set()
        await socket.wait_closed()

    async def handler(socket: ServerConnection) -> None:
        if flooded.is_set():
            await socket.send(b"x" * 300_000)
        elif frames == "pings":
            for number in range(2_000):
                pong = await socket.ping(b"%100d" % number)
            await pong
            flooded.set()
        else:
            with contextlib.suppress(ConnectionClosed):
                await socket.send(fragments(socket))
        await socket.wait_closed()

    async with speaking(handler, max_held_bytes=100_000) as rig:
        url = socket_url(rig, (await rig.expose()).prefix + "/")
        async with connect(url), asyncio.timeout(SECONDS):
            await flooded.wait()
            async with connect(url) as socket:
                assert await socket.recv() == b"x" * 300_000


async def test_a_visitor_that_leaves_ends_the_programs_websocket() -> None:
    async with speaking(echo) as rig:
        preview = await rig.expose()
        async with connect(socket_url(rig, preview.prefix + "/")) as socket:
            assert await socket.recv() == "welcome"
            socket.transport.abort()

        async def ended() -> bool:
            return rig.program.open == 0

        await eventually(ended, SECONDS, "the program's connection has ended")
