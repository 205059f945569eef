"""``port-forward``: ports of a sandbox as ports of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sandlot.cli.connection import with_client
from sandlot.domain.background_tasks import side_by_side

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.domain.computer import ByteStream

# Only programs on this machine can connect.
LOCAL_ADDRESS: Final = "127.0.0.1"
PIECE_BYTES: Final = 64 * 1024

Connect = Callable[[], Awaitable["ByteStream"]]


@dataclass(frozen=True, slots=True)
class Forward:
    """``local``: the port of this machine; 0 for any that is free."""

    local: int
    remote: int


def register(app: typer.Typer) -> None:
    app.command("port-forward")(port_forward)


def port_forward(
    ctx: typer.Context,
    session_id: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="PORT...", help="8000, or 9000:8000 for port 9000 here and port 8000 in the sandbox."
        ),
    ],
) -> None:
    """Reach ports of a sandbox on 127.0.0.1.

    Runs until Ctrl-C. Only programs on this machine can connect.
    """
    forwards = [parse_forward(text) for text in ports]

    async def work(client: AsyncClient) -> None:
        session = await client.get(session_id)
        await asyncio.gather(*(_forward(client, session.id, forward) for forward in forwards))

    try:
        with_client(ctx, work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def parse_forward(text: str) -> Forward:
    """Parse 8000 or 9000:8000."""
    here, colon, inside = text.partition(":")
    numbers = [here, inside if colon else here]
    if not all(number.isascii() and number.isdigit() and int(number) <= 65535 for number in numbers):
        raise typer.BadParameter(f"{text!r} is not PORT or LOCAL:REMOTE, such as 8000 or 9000:8000.")
    return Forward(int(numbers[0]), int(numbers[1]))


async def _forward(client: AsyncClient, session_id: str, forward: Forward) -> None:
    from sandlot.cli.terminal.display import note
    from sandlot.domain.network.ports import check_port

    check_port(forward.remote)
    service = client.service

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        problem = await carry(reader, writer, lambda: service.connect(session_id, forward.remote))
        if problem is not None:
            note(problem)

    server = await asyncio.start_server(accept, LOCAL_ADDRESS, forward.local)
    async with server:
        port = server.sockets[0].getsockname()[1]
        note(f"Forwarding {LOCAL_ADDRESS}:{port} to port {forward.remote} of {session_id}. Ctrl-C ends it.")
        await server.serve_forever()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connect: Connect) -> str | None:
    """Serve one connection of a local program until its end. Returns what went wrong, if anything."""
    from sandlot.domain.errors import SandlotError

    try:
        stream = await connect()
        try:
            await _join(reader, writer, stream)
        finally:
            stream.abort()
    except SandlotError as error:
        return error.message
    except OSError:
        return None  # the local program is gone
    finally:
        writer.close()
    return None


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: ByteStream) -> None:
    async def inward() -> None:
        while data := await reader.read(PIECE_BYTES):
            await stream.send(data)
        await stream.send_end()

    async def outward() -> None:
        while data := await stream.receive():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    await side_by_side(inward(), outward())
