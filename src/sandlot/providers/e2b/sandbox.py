"""One sandbox at E2B: its agent, and the carrier that brings the agent's link here."""

from __future__ import annotations

from sandlot.domain.environment import Tier
from sandlot.providers.e2b.carrier import Carrier
from sandlot.providers.e2b.service import RemoteSandbox
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.sandbox_agent import SandboxAgent


class E2BSandbox(SandboxAgent):
    """It is lost if E2B has ended it, if its agent breaks the protocol, or if it was destroyed."""

    def __init__(self, sandbox_id: str, remote: RemoteSandbox, link: AgentLink, agent_program: str) -> None:
        super().__init__(link)
        self._id = sandbox_id
        self._agent_program = agent_program
        self.remote_id = remote.id
        self._carrier: Carrier | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def tier(self) -> Tier:
        return Tier.MICROVM

    @property
    def agent_program(self) -> str:
        return self._agent_program

    def carry_with(self, carrier: Carrier) -> None:
        self._carrier = carrier
        carrier.start()

    def mark_lost(self, reason: str) -> None:
        """Fails all pending and later calls with ``SandboxLost``. ``wait_lost`` returns."""
        self._link.mark_lost(reason)

    async def close(self) -> None:
        """Releases the sandbox, which keeps running."""
        await self._link.close()
        if self._carrier is not None:
            await self._carrier.close()
