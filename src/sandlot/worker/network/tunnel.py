"""What passes through a tunnel: first its opening is checked, then bytes go both ways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sandlot.domain.background_tasks import side_by_side
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.decisions import Allowed, Denied
from sandlot.domain.network.hosts import Target, parse_host, shown
from sandlot.providers.base import ByteStream
from sandlot.worker.network.client_hello import ClientHello, ClientHelloReader, MalformedHello, NotTls
from sandlot.worker.network.meter import Meter


class TunnelDenied(Exception):
    """``tls``: whether the program speaks TLS, and so understands an alert."""

    def __init__(self, denied: Denied, *, tls: bool) -> None:
        super().__init__(denied.text)
        self.denied = denied
        self.tls = tls


async def read_opening(stream: ByteStream, first: bytes, target: Target, allowed: Allowed) -> bytes:
    """The first bytes of the program, once they show that it speaks to the host that was allowed.

    That is TLS with the host's name. An address has no name. Where the rule names the port, the program may
    speak something else, or TLS without a name; a wrong name is never allowed.
    """
    reader, data = ClientHelloReader(), first
    while True:
        try:
            hello = reader.feed(data)
        except NotTls:
            if allowed.any_protocol:
                return bytes(reader.received)
            raise TunnelDenied(_no_tls(target), tls=False) from None
        except MalformedHello as error:
            raise TunnelDenied(_wrong_name(target, f"{str(error).capitalize()}."), tls=True) from None
        if hello is not None:
            _check_name(hello, target, allowed)
            return bytes(reader.received)
        data = await stream.receive()
        if not data:
            if allowed.any_protocol:
                return bytes(reader.received)
            raise ConnectionResetError("the program ended the tunnel before it said anything")


async def relay(
    program: ByteStream,
    host: ByteStream,
    opening: Callable[[], Awaitable[bytes]],
    meter: Meter,
    on_bytes: Callable[[], None],
) -> None:
    """Copy both ways until both sides have ended. ``opening`` gives the first bytes for the host.

    Each side waits until the other has taken its bytes, so only one piece of each is in memory.
    """

    async def outward() -> None:
        data = await opening()
        while data:
            await meter.sending(len(data))
            on_bytes()
            await host.send(data)
            data = await program.receive()
        await host.send_end()

    async def inward() -> None:
        while data := await host.receive():
            await meter.receiving(len(data))
            on_bytes()
            await program.send(data)
        await program.send_end()

    await side_by_side(outward(), inward())


def _check_name(hello: ClientHello, target: Target, allowed: Allowed) -> None:
    if hello.server_name is None:
        if target.host.is_name and not allowed.any_protocol:
            why = "The program does not say in TLS which server it wants (SNI)."
            raise TunnelDenied(_wrong_name(target, why), tls=True)
        return
    try:
        same = parse_host(hello.server_name) == target.host
    except InvalidRequest:
        same = False
    if not same:
        why = f"The program asks for another server in TLS: {shown(hello.server_name)}."
        raise TunnelDenied(_wrong_name(target, why), tls=True)


def _wrong_name(target: Target, why: str) -> Denied:
    return Denied(
        target=str(target),
        rule="server name",
        why=why,
        ask="Connect to a host by its own name.",
    )


def _no_tls(target: Target) -> Denied:
    return Denied(
        target=str(target),
        rule="TLS only",
        why="The program does not speak TLS.",
        ask=f'To allow any protocol there, name the port: session.network.allow("{target}", for_s=600).',
        entry=str(target),
    )
