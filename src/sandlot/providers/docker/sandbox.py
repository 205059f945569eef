"""One sandbox on a Docker engine: what its agent does, plus what only the engine can tell."""

from __future__ import annotations

from sandlot.domain.environment import Tier
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.sandbox_agent import AgentClient


class DockerSandbox(AgentClient):
    """Lost in two ways: its agent broke the protocol (so says the link), its container ended (``lose``)."""

    def __init__(self, sandbox_id: str, tier: Tier, link: AgentLink) -> None:
        super().__init__(link)
        self._id = sandbox_id
        self._tier = tier
        # The provider's notes: events of an earlier container with this name, and gaps before the start, are
        # not this sandbox's end.
        self.container_id: str | None = None
        self.started = False

    @property
    def id(self) -> str:
        return self._id

    @property
    def tier(self) -> Tier:
        return self._tier

    def lose(self, reason: str) -> None:
        """Every pending and later call fails with ``SandboxLost``; ``wait_lost`` returns."""
        self._link.lose(reason)

    async def close(self) -> None:
        """Lets go of it; the sandbox goes on."""
        await self._link.close()
