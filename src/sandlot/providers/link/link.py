"""One sandbox's agent link: its socket, its connected peers, and whether it is still trusted.

The agent dials. The worker listens, shakes hands, and keeps the newest link of each role. A broken
connection does no harm: the agent redials, and callers wait for it up to a limit.

A protocol violation on the core link is final. The worker quarantines the sandbox and closes its
socket for good, and every pending and later call fails. ``helper_link`` says what holds for links
that helpers serve.

A peer that cannot prove that it holds the secret is refused and changes nothing. First contact is
the exception: only the real agent can dial then, so a peer that breaks the protocol quarantines the
sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from sandlot.domain.errors import (
    LinkInterrupted,
    SandboxLost,
    SandboxQuarantined,
    SandlotError,
    Unsupported,
)
from sandlot.providers.link.allowance import Allowance
from sandlot.providers.link.connection import Connection
from sandlot.providers.link.handshake import (
    SECRET_BYTES,
    Handshake,
    HandshakeResult,
    Refused,
    Role,
    encode_refusal,
)
from sandlot.providers.link.helper_link import HelperLink
from sandlot.providers.link.mux import LIMITS, NET_LIMITS, Mux
from sandlot.providers.link.reset_codes import domain_error
from sandlot.providers.link.stream import LinkClosed, StreamReset
from sandlot.wire.frames import Frame, ProtocolViolation

SOCKET_NAME: Final = "agent.sock"
HANDSHAKE_TIMEOUT_S: Final = 10.0
MAX_PENDING_PEERS: Final = 4  # connections that have not finished the handshake
DIALS_PER_S: Final = 100  # the agent waits at least 10 ms before a redial, and longer each time
DIALS_BURST: Final = 300
DIALS_SETTLE_S: Final = 0.1
REDIAL_TIMEOUT_S: Final = 30.0  # how long a call waits for an agent that is not connected
_LISTEN_BACKLOG: Final = 16
_SUN_PATH_BYTES: Final = 107  # longest path of a Unix socket


class AgentLink:
    """The worker's connection to one sandbox's agent.

    ``first_contact``: the agent does not hold ``secret`` yet. ``epoch`` grows with each start.
    ``on_redial``: called when the agent is back after a break, or after a restart of the worker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        secret: bytes,
        epoch: int,
        setup: Mapping[str, Any],
        first_contact: bool,
        on_redial: Callable[[], None] = lambda: None,
    ) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes")
        self.first_contact = first_contact
        self.handshake_result: HandshakeResult | None = None  # of the newest core link
        self.failure: SandlotError | None = None
        self._path = folder / SOCKET_NAME
        self._secret = secret
        self._epoch = epoch
        self._setup = setup
        self._on_redial = on_redial
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._pending_peers: set[_PendingPeer] = set()
        self._dials = Allowance(per_s=DIALS_PER_S, burst=DIALS_BURST, now=monotonic())
        self._muxes: dict[Role, Mux] = {}
        self._helpers = {role: HelperLink(self, role) for role in Role if role is not Role.CORE}
        self._waiters: set[asyncio.Future[None]] = set()

    # lifecycle

    async def open(self) -> None:
        """Starts listening. The agent may dial from now on."""
        listener, self._inode = _listen(self._path)
        # In two steps: if the caller is cancelled or the sandbox is destroyed while serving starts,
        # there is a server to close.
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(_PendingPeer(self)),
            sock=listener,
            backlog=_LISTEN_BACKLOG,
            start_serving=False,
        )
        await self._server.start_serving()

    async def wait_ready(self, timeout: float = REDIAL_TIMEOUT_S) -> None:
        """Waits until the agent has finished the handshake."""
        await self.core(timeout)

    async def wait_lost(self) -> str:
        """Waits until the sandbox may no longer be used, then returns the reason."""
        while self.failure is None:
            await self._wait_for_change()
        return self.failure.message

    async def close(self) -> None:
        """Releases the sandbox, which keeps running. Calls in progress are interrupted."""
        self.fail(LinkInterrupted("The worker is shutting down. The sandbox keeps running."))
        for helper in self._helpers.values():
            await helper.wait_cancelled()

    def mark_lost(self, reason: str) -> None:
        """Marks the sandbox as lost, for example because its container ended."""
        self.fail(SandboxLost(reason))

    def fail(self, failure: SandlotError) -> None:
        """Closes the link for good. Callers get the first failure; later ones are ignored."""
        if self.failure is not None:
            return
        self.failure = failure
        if self._server is not None:
            self._server.close()
            _unlink(self._path, self._inode)
        for peer in list(self._pending_peers):
            peer.disconnect()
        for mux in list(self._muxes.values()):
            mux.close(failure.message)
        for helper in self._helpers.values():
            helper.cancel()
        self._notify_waiters()

    # for callers

    async def core(self, timeout: float = REDIAL_TIMEOUT_S) -> Mux:
        """Returns the current core link. Waits for it if the agent is redialling."""
        mux = self.current(Role.CORE)
        return mux if mux is not None else await self.wait_for(Role.CORE, timeout)

    async def files(self) -> Mux:
        """Returns the current files link, or asks the agent for one."""
        return await self._helpers[Role.FILES].mux()

    async def net(self) -> Mux:
        """Returns the current net link, or asks the agent for one. See ``agent_has``."""
        return await self._helpers[Role.NET].mux()

    async def agent_has(self, minor: int) -> bool:
        """Whether the agent speaks this minor version of the protocol, or a later one."""
        await self.core()
        return self.handshake_result is not None and self.handshake_result.minor >= minor

    def error_for(
        self, problem: StreamReset | LinkClosed | ProtocolViolation, path: str | None = None
    ) -> SandlotError:
        """Returns the error for a caller.

        A lost sandbox takes precedence over any other problem.
        """
        if self.failure is not None:
            return type(self.failure)(self.failure.message)
        if isinstance(problem, StreamReset):
            return domain_error(problem, path)
        return LinkInterrupted(f"The connection to the sandbox broke: {problem}.")

    # for helper links

    def current(self, role: Role) -> Mux | None:
        if self.failure is not None:  # this call has sent nothing yet
            raise type(self.failure)(self.failure.message, may_have_executed=False)
        return self._muxes.get(role)

    async def wait_for(self, role: Role, timeout: float) -> Mux:
        try:
            async with asyncio.timeout(timeout):
                while (mux := self.current(role)) is None:
                    await self._wait_for_change()
                return mux
        except TimeoutError:
            raise LinkInterrupted(
                f"The sandbox did not connect within {timeout:g} s.", may_have_executed=False
            ) from None

    # internal

    async def _wait_for_change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _notify_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # called by peers and muxes

    def begin_handshake(self, peer: _PendingPeer) -> Handshake | None:
        """Returns a handshake for a new peer, or None if the peer must be dropped."""
        if self._dials.take(1, monotonic()):
            self._refuse_dials()
            return None
        if self.failure is not None or len(self._pending_peers) >= MAX_PENDING_PEERS:
            return None
        self._pending_peers.add(peer)
        return Handshake(
            secret=self._secret, epoch=self._epoch, setup=self._setup, first_contact=self.first_contact
        )

    def _refuse_dials(self) -> None:
        """Removes the socket, so that no peer can dial it, and soon closes the link for good.

        Until then the server accepts connections that are on their way and drops them. If the
        server closed first, asyncio would leave those connections to the garbage collector.
        """
        _unlink(self._path, self._inode)
        abuse = SandboxQuarantined(f"protocol abuse: more than {DIALS_BURST} connections at once")
        asyncio.get_running_loop().call_later(DIALS_SETTLE_S, self.fail, abuse)

    def remove_peer(self, peer: _PendingPeer) -> None:
        self._pending_peers.discard(peer)

    def accept(self, connection: Connection, result: HandshakeResult) -> None:
        """Makes a peer's connection the current link of its role, in place of the previous one."""
        previous = self._muxes.pop(result.role, None)
        limits = NET_LIMITS if result.role is Role.NET else LIMITS
        self._muxes[result.role] = Mux(connection, partial(self._on_mux_closed, result.role), limits)
        if previous is not None:
            previous.close("the agent reconnected")
        if result.role is Role.CORE:
            if not self.first_contact:
                self._on_redial()
            self.first_contact = False
            self.handshake_result = result
        self._notify_waiters()

    def on_refused(self, refused: Refused) -> None:
        """Handles a refused peer.

        On first contact only the agent can dial, so waiting callers fail.
        """
        if not self.first_contact:
            return
        if refused.code == "incompatible":
            self.fail(Unsupported(f"The worker cannot use this sandbox's agent: {refused.message}"))
        elif refused.code == "unauthenticated":
            self.fail(SandboxQuarantined(f"the sandbox's agent failed the handshake: {refused.message}"))

    def on_handshake_violation(self, violation: ProtocolViolation) -> None:
        if self.first_contact:
            self.fail(SandboxQuarantined(f"the sandbox's agent broke the protocol: {violation}"))

    def _on_mux_closed(self, role: Role, mux: Mux, closed: LinkClosed) -> None:
        if self._muxes.get(role) is mux:
            del self._muxes[role]
        if closed.violation is None:
            return
        if role in self._helpers and self._helpers[role].tolerates(closed.violation):
            return
        self.fail(SandboxQuarantined(closed.reason))


class _PendingPeer:
    """A connected peer that has not finished the handshake."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._connection: Connection | None = None
        self._handshake: Handshake | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def on_connected(self, connection: Connection) -> None:
        self._connection = connection
        self._handshake = self._link.begin_handshake(self)
        if self._handshake is None:
            connection.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.disconnect)

    def on_frame(self, frame: Frame) -> None:
        assert self._connection is not None
        assert self._handshake is not None
        try:
            answer = self._handshake.receive(frame)
        except Refused as refused:
            self._end_handshake()
            self._connection.send_last(encode_refusal(refused))
            self._link.on_refused(refused)
            return
        if isinstance(answer, bytes):
            self._connection.send(answer)
        else:
            self._end_handshake()
            self._link.accept(self._connection, answer)

    def on_violation(self, violation: ProtocolViolation) -> None:
        self.disconnect()
        self._link.on_handshake_violation(violation)

    def on_lost(self, reason: str) -> None:
        self._end_handshake()

    def disconnect(self) -> None:
        self._end_handshake()
        if self._connection is not None:
            self._connection.abort()

    def _end_handshake(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._link.remove_peer(self)


def _listen(path: Path) -> tuple[socket.socket, int]:
    """Creates a listening socket that any user may dial.

    Only the worker can reach it on the host, because the folders above it are the worker's alone.
    """
    path.parent.mkdir(mode=0o755, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(folder, 0o755)
        _unlink(path)
        # A long path does not fit into a socket's address. The folder's descriptor makes it short.
        short = os.fspath(path)
        if len(os.fsencode(short)) > _SUN_PATH_BYTES:
            short = f"/proc/self/fd/{folder}/{path.name}"
        listener.bind(short)
        os.chmod(path.name, 0o666, dir_fd=folder)  # noqa: S103  # another uid dials it from inside
        listener.listen(_LISTEN_BACKLOG)
        return listener, os.lstat(path).st_ino
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)


def _unlink(path: Path, inode: int | None = None) -> None:
    """Removes a stale socket. Never removes anything else."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(f"{path} exists and is not a socket.")
        if inode is None or found.st_ino == inode:
            path.unlink()
