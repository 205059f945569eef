"""One sandbox's agent link: its socket, who is connected now, and whether the sandbox may still be believed.

The agent dials; we listen, shake hands and keep the newest core link and the newest files link. A broken
connection is nothing: the agent redials and callers wait for it within a bound. A broken *rule* on the core
link is the end: the sandbox is quarantined, its socket shut for good, and every pending and later call
fails. The files link is served by a process that user code may get hold of, so there a broken rule costs
that link, and the sandbox only after several, unless it is abuse, which no accident explains. A stranger
who cannot prove the secret is refused and changes nothing, except on first contact, where whoever speaks
nonsense stands in the real agent's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Mapping
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
from sandlot.providers.link.handshake import SECRET_BYTES, Agreed, Handshake, Refused, Role, refusal
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.problems import domain_error
from sandlot.providers.link.stream import LinkClosed, Message, StreamReset
from sandlot.wire.frames import Frame, ProtocolAbuse, ProtocolViolation

SOCKET_NAME: Final = "agent.sock"
HANDSHAKE_TIMEOUT_S: Final = 10.0
MAX_STRANGERS: Final = 4  # connections that have not shaken hands yet
DIALS_PER_S: Final = 100  # a redial waits at least 10 ms, and longer each time
DIALS_BURST: Final = 300
DIALS_SETTLE_S: Final = 0.1
REDIAL_TIMEOUT_S: Final = 30.0  # how long a call waits for an agent that is not connected
FILES_TIMEOUT_S: Final = 15.0  # from asking for a files link to having it
MAX_FILES_VIOLATIONS: Final = 5  # broken rules on files links before the sandbox is quarantined
_LISTEN_BACKLOG: Final = 16
_SUN_PATH_BYTES: Final = 107  # longest path of a Unix socket


class AgentLink:
    """``first_contact``: the agent does not hold ``secret`` yet. ``epoch`` grows with each worker's life."""

    def __init__(
        self,
        directory: Path,
        *,
        secret: bytes,
        epoch: int,
        setup: Mapping[str, Any],
        first_contact: bool,
    ) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes")
        self.first_contact = first_contact
        self.agreed: Agreed | None = None  # of the newest core link
        self.failure: SandlotError | None = None
        self._path = directory / SOCKET_NAME
        self._secret = secret
        self._epoch = epoch
        self._setup = setup
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._strangers: set[_Stranger] = set()
        self._dials = Allowance(per_s=DIALS_PER_S, burst=DIALS_BURST, now=monotonic())
        self._links: dict[Role, Mux] = {}
        self._files_violations = 0
        self._files_opening: asyncio.Task[Mux] | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    # life

    async def open(self) -> None:
        """Listens. The agent may dial from now on."""
        listener, self._inode = _listen(self._path)
        # In two steps: whoever is cancelled or destroyed while serving begins has a server to close.
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(_Stranger(self)), sock=listener, backlog=_LISTEN_BACKLOG, start_serving=False
        )
        await self._server.start_serving()

    async def wait_ready(self, timeout: float = REDIAL_TIMEOUT_S) -> None:
        """Returns when the agent has shaken hands."""
        await self.core(timeout)

    async def wait_lost(self) -> str:
        """Returns when the sandbox may no longer be used, with the reason."""
        while self.failure is None:
            await self._change()
        return self.failure.message

    async def close(self) -> None:
        """Lets go of the sandbox, which goes on without us; calls under way are interrupted."""
        self.fail(LinkInterrupted("the worker lets go of the sandbox"))
        opening = self._files_opening
        if opening is not None:
            await asyncio.wait([opening])

    def lose(self, reason: str) -> None:
        """The sandbox is known to be gone, as when its container ended."""
        self.fail(SandboxLost(reason))

    def fail(self, failure: SandlotError) -> None:
        """Shuts the link for good; the first failure is the one that is told."""
        if self.failure is not None:
            return
        self.failure = failure
        if self._server is not None:
            self._server.close()
            _unlink(self._path, self._inode)
        for stranger in list(self._strangers):
            stranger.drop()
        for mux in list(self._links.values()):
            mux.close(failure.message)
        if self._files_opening is not None:
            self._files_opening.cancel()
        self._notify()

    # for callers

    async def core(self, timeout: float = REDIAL_TIMEOUT_S) -> Mux:
        """The live core link, waited for if the agent is redialling."""
        mux = self._live(Role.CORE)
        return mux if mux is not None else await self._wait_for(Role.CORE, timeout)

    async def files(self) -> Mux:
        """The live files link; the agent is asked for one, by however many callers once."""
        mux = self._live(Role.FILES)
        if mux is not None:
            return mux
        if self._files_opening is None:
            self._files_opening = asyncio.get_running_loop().create_task(self._open_files())
            self._files_opening.add_done_callback(self._files_opened)
        # Waiting on the task instead of awaiting it: a caller's cancellation is not the others' business.
        opening = self._files_opening
        await asyncio.wait([opening], timeout=FILES_TIMEOUT_S)
        if not opening.done():
            raise LinkInterrupted("the files link did not come up in time", may_have_executed=False)
        if opening.cancelled():
            raise self.explain(LinkClosed("the link was shut"))
        return opening.result()

    def explain(
        self, problem: StreamReset | LinkClosed | ProtocolViolation, path: str | None = None
    ) -> SandlotError:
        """What a caller is told. A lost sandbox outweighs whatever else went wrong."""
        if self.failure is not None:
            return type(self.failure)(self.failure.message)
        if isinstance(problem, StreamReset):
            return domain_error(problem, path)
        return LinkInterrupted(str(problem))

    # inside

    def _live(self, role: Role) -> Mux | None:
        if self.failure is not None:  # nothing of this call has been sent
            raise type(self.failure)(self.failure.message, may_have_executed=False)
        return self._links.get(role)

    async def _wait_for(self, role: Role, timeout: float) -> Mux:
        try:
            async with asyncio.timeout(timeout):
                while (mux := self._live(role)) is None:
                    await self._change()
                return mux
        except TimeoutError:
            raise LinkInterrupted(
                f"the agent did not connect within {timeout:g} s", may_have_executed=False
            ) from None

    async def _open_files(self) -> Mux:
        core = await self.core(FILES_TIMEOUT_S)
        try:
            stream = await core.open({"op": "files.open"})
            try:
                if not isinstance(await stream.receive(), Message):
                    raise core.violated(ProtocolViolation("files.open was not answered by a message"))
            finally:
                stream.close()
        except (StreamReset, LinkClosed) as problem:
            raise self.explain(problem) from problem
        return await self._wait_for(Role.FILES, FILES_TIMEOUT_S)

    def _files_opened(self, task: asyncio.Task[Mux]) -> None:
        self._files_opening = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; if nobody did, it is nobody's news

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # for strangers and links

    def greet(self, stranger: _Stranger) -> Handshake | None:
        """None: not now."""
        if self._dials.take(1, monotonic()):
            self._refuse_dials()
            return None
        if self.failure is not None or len(self._strangers) >= MAX_STRANGERS:
            return None
        self._strangers.add(stranger)
        return Handshake(
            secret=self._secret, epoch=self._epoch, setup=self._setup, first_contact=self.first_contact
        )

    def _refuse_dials(self) -> None:
        """Nobody finds the socket any more. Connections on their way are taken first, and hung up on: asyncio
        leaves those of a server that is closed meanwhile to the garbage collector."""
        _unlink(self._path, self._inode)
        abuse = SandboxQuarantined(f"protocol abuse: more than {DIALS_BURST} connections at once")
        asyncio.get_running_loop().call_later(DIALS_SETTLE_S, self.fail, abuse)

    def gone(self, stranger: _Stranger) -> None:
        self._strangers.discard(stranger)

    def welcome(self, connection: Connection, agreed: Agreed) -> None:
        """A peer has proved itself: its link replaces the former one of its role."""
        former = self._links.pop(agreed.role, None)
        self._links[agreed.role] = Mux(connection, partial(self._link_closed, agreed.role))
        if former is not None:
            former.close("the agent has dialled again")
        if agreed.role is Role.CORE:
            self.first_contact = False
            self.agreed = agreed
        self._notify()

    def refused(self, refused: Refused) -> None:
        """On first contact nobody but the agent can be there: a wrong one is told to whoever waits."""
        if not self.first_contact:
            return
        if refused.code == "incompatible":
            self.fail(Unsupported(f"the agent cannot be driven: {refused.message}"))
        elif refused.code == "unauthenticated":
            self.fail(SandboxQuarantined(f"the agent failed the handshake: {refused.message}"))

    def violated_by_stranger(self, violation: ProtocolViolation) -> None:
        if self.first_contact:
            self.fail(SandboxQuarantined(f"the agent broke the protocol: {violation}"))

    def _link_closed(self, role: Role, mux: Mux, closed: LinkClosed) -> None:
        if self._links.get(role) is mux:
            del self._links[role]
        if closed.violation is None:
            return
        if role is Role.FILES and not isinstance(closed.violation, ProtocolAbuse):
            self._files_violations += 1
            if self._files_violations < MAX_FILES_VIOLATIONS:
                return
        self.fail(SandboxQuarantined(closed.reason))


class _Stranger:
    """A peer until it has proved itself."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._connection: Connection | None = None
        self._handshake: Handshake | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def on_connected(self, connection: Connection) -> None:
        self._connection = connection
        self._handshake = self._link.greet(self)
        if self._handshake is None:
            connection.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.drop)

    def on_frame(self, frame: Frame) -> None:
        assert self._connection is not None
        assert self._handshake is not None
        try:
            answer = self._handshake.receive(frame)
        except Refused as refused:
            self._leave()
            self._connection.send_last(refusal(refused))
            self._link.refused(refused)
            return
        if isinstance(answer, bytes):
            self._connection.send(answer)
        else:
            self._leave()
            self._link.welcome(self._connection, answer)

    def on_violation(self, violation: ProtocolViolation) -> None:
        self.drop()
        self._link.violated_by_stranger(violation)

    def on_lost(self, reason: str) -> None:
        self._leave()

    def drop(self) -> None:
        self._leave()
        if self._connection is not None:
            self._connection.abort()

    def _leave(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._link.gone(self)


def _listen(path: Path) -> tuple[socket.socket, int]:
    """A listening socket file that anyone who reaches it may dial; its parents are the worker's alone."""
    path.parent.mkdir(mode=0o755, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(folder, 0o755)
        _unlink(path)
        # A long path does not fit into a socket's address; the folder's descriptor makes it short.
        short = os.fspath(path)
        if len(os.fsencode(short)) > _SUN_PATH_BYTES:
            short = f"/proc/self/fd/{folder}/{path.name}"
        listener.bind(short)
        os.chmod(path.name, 0o666, dir_fd=folder)  # noqa: S103  # inside, another uid dials it
        listener.listen(_LISTEN_BACKLOG)
        return listener, os.lstat(path).st_ino
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(folder)


def _unlink(path: Path, inode: int | None = None) -> None:
    """Removes a stale socket, and nothing that is not one."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(f"{path} is in the way and is not a socket")
        if inode is None or found.st_ino == inode:
            path.unlink()
