"""One connection of a program to the proxy: requests one after the other, or a tunnel.

Every request is decided anew, and each plain request gets a connection to its host of its own. So nothing
that one request leaves behind, in either direction, can be taken for a part of the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Final

import h11

from sandlot.domain.network.decisions import Allowed
from sandlot.domain.network.hosts import Target
from sandlot.domain.secrets.gateways import GATEWAY_HOST
from sandlot.domain.secrets.secret import TLS_PORT
from sandlot.providers.base import ByteStream
from sandlot.worker.network.broker.broker import (
    Broker,
    UnknownGateway,
    gateways_speak_http,
    split_gateway_path,
    unknown_gateway,
)
from sandlot.worker.network.broker.program_tls import ProgramTls
from sandlot.worker.network.cache.serving import serve_package
from sandlot.worker.network.client_hello import ACCESS_DENIED
from sandlot.worker.network.dialer import EgressDenied
from sandlot.worker.network.gate import Gate
from sandlot.worker.network.http import (
    HTTP_PORT,
    BadRequest,
    plain_target,
    request_for_host,
    tunnel_target,
)
from sandlot.worker.network.meter import BytesUsedUp
from sandlot.worker.network.options import ProxyOptions
from sandlot.worker.network.requests.exchange import Exchange, Outgoing
from sandlot.worker.network.requests.program import Program
from sandlot.worker.network.streams import BROKEN, HostProblem
from sandlot.worker.network.tunnel import TunnelDenied, read_opening, relay

HEAD_TOO_LARGE: Final = 431


class Conversation:
    """``target``: of the open tunnel or request; None if there is none, or if the operator declared it."""

    def __init__(
        self, stream: ByteStream, gate: Gate, options: ProxyOptions, broker: Broker | None = None
    ) -> None:
        self.target: Target | None = None
        self._program = Program(stream, options)
        self._gate = gate
        self._options = options
        self._broker = broker
        self._inside: Target | None = None  # of a tunnel through which the program speaks HTTP
        self._reads_tls = False  # whether that is in TLS, which the worker reads

    async def run(self) -> None:
        """Serve the program until it ends, breaks a rule, or takes too long."""
        try:
            async with self._program.limit:
                await self._serve()
        except (TimeoutError, HostProblem, BytesUsedUp, h11.ProtocolError, *BROKEN):
            pass  # an answer has begun, or nobody is there to read one: the program sees a broken connection
        finally:
            self._program.stream.abort()

    def stop(self) -> None:
        """End at once: the target is no longer allowed."""
        self._program.stop()

    async def _serve(self) -> None:
        program = self._program
        try:
            while (request := await program.next_request()) is not None:
                if request.method == b"CONNECT" and self._inside is None:
                    if not await self._tunnel(request):
                        return
                    continue
                await self._forward(request)
                if program.http.our_state is not h11.DONE or program.http.their_state is not h11.DONE:
                    break  # the host answered before it had the whole request, or the program wants no more
                program.http.start_next_cycle()
                self.target = None
        except BadRequest as error:
            await program.refuse(400, "Bad Request", f"{error}\n")
        except h11.RemoteProtocolError as error:
            too_large = error.error_status_hint == HEAD_TOO_LARGE
            text = "The head of the request is too large." if too_large else "The request is not valid HTTP."
            await program.refuse(error.error_status_hint, "Bad Request", f"{text}\n")
        except EgressDenied as error:
            self._gate.record(error.denied)
            # Of the answer to CONNECT, many tools show the status line alone.
            await program.refuse(403, error.denied.line, error.denied.text)
        except UnknownGateway as error:
            names = () if self._broker is None else self._broker.gateway_names
            await program.refuse(404, "Unknown gateway", unknown_gateway(str(error), names))
        except HostProblem as error:
            await program.refuse(error.status, HTTPStatus(error.status).phrase, f"{error}\n")
        await program.finish()

    # --- requests -----------------------------------------------------------------------------

    async def _forward(self, request: h11.Request) -> None:
        port = TLS_PORT if self._reads_tls else HTTP_PORT
        target, path = plain_target(request, self._inside, port)
        if target.host == GATEWAY_HOST:
            await self._through_gateway(request, target, path)
            return
        self._gate.decide(target)
        self.target = target
        outgoing = Outgoing(target, request_for_host(request, target, path, port), tls=self._reads_tls)
        if self._reads_tls and self._broker is not None:
            outgoing = self._broker.inject(outgoing)
        await self._exchange(outgoing)

    async def _through_gateway(self, request: h11.Request, target: Target, path: bytes) -> None:
        if target.port != HTTP_PORT:
            raise gateways_speak_http(target)
        name, rest = split_gateway_path(path)
        if self._broker is None:
            raise UnknownGateway(name)
        if (packages := self._broker.packages) is not None and name in packages.registries:
            registry = packages.registries[name]
            await serve_package(packages, registry, self._program, self._gate, request, rest)
            return
        outgoing = self._broker.through_gateway(request, name, rest)
        self._gate.decide_declared(outgoing.target)
        await self._exchange(outgoing)

    async def _exchange(self, outgoing: Outgoing) -> None:
        await Exchange(self._program, self._gate, outgoing, self._options.max_head_bytes).run()

    # --- tunnels ------------------------------------------------------------------------------

    async def _tunnel(self, request: h11.Request) -> bool:
        """Returns whether requests follow through the tunnel."""
        target = tunnel_target(request)
        if target.host == GATEWAY_HOST:
            if target.port != HTTP_PORT:
                raise gateways_speak_http(target)
            return await self._read_http(target)
        allowed = self._gate.decide(target)
        self.target = target
        if target.port == HTTP_PORT and not allowed.any_protocol:
            return await self._read_http(target)
        if self._broker is not None and self._broker.reads_tls_of(target):
            return await self._read_tls(target, allowed, self._broker)
        self._program.touch()
        host = await self._gate.connect(target)
        try:
            stream = self._program.stream
            opening: Callable[[], Awaitable[bytes]] = partial(
                read_opening, stream, await self._program.accept_tunnel(), target, allowed
            )
            if not allowed.any_protocol:  # the host hears nothing before the name is checked
                self._program.allow(self._options.head_s)
                opening = partial(_given, await opening())
            self._program.touch()
            passing = relay(stream, host, opening, self._gate.meter, self._program.touch)
            await self._gate.metered(target, passing)
        except TunnelDenied as error:
            await self._deny_tunnel(error)
        finally:
            host.abort()
        return False

    async def _read_http(self, target: Target) -> bool:
        """Some tools open a tunnel for http too. Each request in it is read, as if there were none."""
        first = await self._program.accept_tunnel()
        self._inside = target
        self._program.speak_inside(self._program.stream, first)
        return True

    async def _read_tls(self, target: Target, allowed: Allowed, broker: Broker) -> bool:
        """Speak TLS as the host, so that requests can get their secrets. Each request in it is read."""
        assert broker.authority is not None  # or it reads no TLS
        first = await self._program.accept_tunnel()
        self._program.allow(self._options.head_s)
        try:
            hello = await read_opening(self._program.stream, first, target, Allowed(allowed.rule))
        except TunnelDenied as error:
            await self._deny_tunnel(error)
            return False
        tls = ProgramTls(self._program.stream, broker.authority.context_for(target.host.text), hello)
        await tls.handshake()
        self._inside, self._reads_tls = target, True
        self._program.speak_inside(tls, b"")
        return True

    async def _deny_tunnel(self, error: TunnelDenied) -> None:
        self._gate.record(error.denied)
        if error.tls:
            await self._program.stream.send(ACCESS_DENIED)
        await self._program.finish()


async def _given(data: bytes) -> bytes:
    return data
