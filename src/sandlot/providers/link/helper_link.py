"""A link that the agent opens on request and hands to a helper process, which runs as the user.

User code may take control of such a helper. So a protocol violation closes only its link, and
several violations quarantine the sandbox. Abuse is never an accident, so it quarantines at once.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from sandlot.domain.errors import LinkInterrupted, SandlotError
from sandlot.providers.link.handshake import Role
from sandlot.providers.link.mux import Mux
from sandlot.providers.link.stream import LinkClosed, Message, StreamReset
from sandlot.wire.frames import ProtocolAbuse, ProtocolViolation

OPEN_TIMEOUT_S: Final = 15.0  # from asking for a link to having it
MAX_VIOLATIONS: Final = 5  # on links of one role, until the sandbox is quarantined


class Links(Protocol):
    """What a helper link needs from the sandbox's other links. ``AgentLink`` implements it."""

    async def core(self, timeout: float) -> Mux: ...

    def current(self, role: Role) -> Mux | None: ...

    async def wait_for(self, role: Role, timeout: float) -> Mux: ...

    def error_for(self, problem: StreamReset | LinkClosed) -> SandlotError: ...


class HelperLink:
    def __init__(self, links: Links, role: Role) -> None:
        self._links = links
        self._role = role
        self._opening: asyncio.Task[Mux] | None = None
        self._violations = 0

    async def mux(self) -> Mux:
        """Returns the current link, or asks the agent for one. Concurrent callers ask once."""
        mux = self._links.current(self._role)
        if mux is not None:
            return mux
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._on_opened)
        # Wait for the task instead of awaiting it: one cancelled caller must not cancel the others.
        opening = self._opening
        await asyncio.wait([opening], timeout=OPEN_TIMEOUT_S)
        if not opening.done():
            raise LinkInterrupted(
                f"The sandbox's {self._role} connection did not open in time. Retry.",
                may_have_executed=False,
            )
        if opening.cancelled():
            raise self._links.error_for(LinkClosed("the link was closed"))
        return opening.result()

    def tolerates(self, violation: ProtocolViolation) -> bool:
        """Counts a violation. Returns whether the sandbox may go on."""
        self._violations += 1
        return not isinstance(violation, ProtocolAbuse) and self._violations < MAX_VIOLATIONS

    def cancel(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    async def wait_cancelled(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])

    async def _open(self) -> Mux:
        core = await self._links.core(OPEN_TIMEOUT_S)
        operation = f"{self._role}.open"
        try:
            stream = await core.open({"op": operation})
            try:
                if not isinstance(await stream.receive(), Message):
                    raise core.close_for_violation(
                        ProtocolViolation(f"the answer to {operation} is not a message")
                    )
            finally:
                stream.close()
        except (StreamReset, LinkClosed) as problem:
            raise self._links.error_for(problem) from problem
        return await self._links.wait_for(self._role, OPEN_TIMEOUT_S)

    def _on_opened(self, task: asyncio.Task[Mux]) -> None:
        self._opening = None
        if not task.cancelled():
            # Callers that waited have the exception. If none did, asyncio must not log it.
            task.exception()
