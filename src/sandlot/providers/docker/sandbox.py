"""One sandbox on a Docker engine: its agent, plus what only the engine knows."""

from __future__ import annotations

from sandlot.domain.environment import Tier
from sandlot.providers.docker.spec import AGENT_TARGET
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.sandbox_agent import SandboxAgent


class DockerSandbox(SandboxAgent):
    """A sandbox that runs as a container.

    It is lost if its agent breaks the protocol, which the link detects, or if its container ends,
    which the provider reports with ``mark_lost``.
    """

    def __init__(self, sandbox_id: str, tier: Tier, link: AgentLink) -> None:
        super().__init__(link)
        self._id = sandbox_id
        self._tier = tier
        # Set by the provider. With them it ignores events of an earlier container with this name,
        # and gaps in the events before the start: neither means that this sandbox ended.
        self.container_id: str | None = None
        self.started = False

    @property
    def id(self) -> str:
        return self._id

    @property
    def tier(self) -> Tier:
        return self._tier

    @property
    def agent_program(self) -> str:
        return AGENT_TARGET

    def mark_lost(self, reason: str) -> None:
        """Fails all pending and later calls with ``SandboxLost``. ``wait_lost`` returns."""
        self._link.mark_lost(reason)

    async def close(self) -> None:
        """Releases the sandbox, which keeps running."""
        await self._link.close()
