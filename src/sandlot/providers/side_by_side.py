"""Two providers as one: an environment names its own, and a sandbox stays with the one that made it."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from typing import Protocol

import structlog

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, ProviderName
from sandlot.domain.errors import EngineProblem
from sandlot.providers.base import FoundSandbox, Provider, Sandbox, SandboxSpec, Stats
from sandlot.providers.workspaces import WorkspaceStore

log = structlog.get_logger("sandlot.providers")


class RemoteProvider(Provider, Protocol):
    """A provider elsewhere, which can be out of reach while this machine's sandboxes work."""

    def has(self, sandbox_id: str) -> bool:
        """Whether the sandbox is this provider's, as far as this machine has recorded. Never waits."""
        ...

    def recorded(self) -> Sequence[FoundSandbox]:
        """The sandboxes that this machine has recorded, without asking anybody. Each may be gone."""
        ...


class Providers:
    """This machine's provider, which also has the workspaces, beside one elsewhere."""

    def __init__(self, here: Provider, remote: RemoteProvider) -> None:
        self._here = here
        self._remote = remote
        # What was last seen there. A worker that lost its folder knows its sandboxes by this alone.
        self._seen: frozenset[str] = frozenset()

    @property
    def workspaces(self) -> WorkspaceStore:
        return self._here.workspaces

    def _for(self, environment: Environment) -> Provider:
        return self._here if environment.provider is ProviderName.DOCKER else self._remote

    def _having(self, sandbox_id: str) -> Provider:
        is_remote = sandbox_id in self._seen or self._remote.has(sandbox_id)
        return self._remote if is_remote else self._here

    async def open(self) -> None:
        """Both, or neither: a caller that gets an error need not close anything."""
        await self._here.open()
        try:
            await self._remote.open()
        except BaseException:
            await self._here.close()
            raise

    async def close(self) -> None:
        try:
            await self._remote.close()
        finally:
            await self._here.close()

    async def prepare(self, environment: Environment) -> None:
        await self._for(environment).prepare(environment)

    async def image_of(self, environment: Environment) -> str:
        return await self._for(environment).image_of(environment)

    async def check_image(self, environment: Environment) -> bool:
        return await self._for(environment).check_image(environment)

    async def forget_rebuilt_images(self) -> Collection[str]:
        here = await self._here.forget_rebuilt_images()
        return {*here, *await self._remote.forget_rebuilt_images()}

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self._for(spec.environment).create(spec)

    async def adopt(self, sandbox_id: str) -> Sandbox:
        return await self._having(sandbox_id).adopt(sandbox_id)

    async def destroy(self, sandbox_id: str, *, keep: Container[str] = ()) -> None:
        await self._having(sandbox_id).destroy(sandbox_id, keep=keep)

    async def list(self) -> Sequence[FoundSandbox]:
        """A provider that is out of reach may not hold up the others, and no sandbox is lost for that.

        Those recorded count as running. Who adopts one learns the truth.
        """
        here = await self._here.list()
        try:
            there = await self._remote.list()
        except EngineProblem as error:
            log.warning("cannot list the sandboxes elsewhere; will retry", error=error.message)
            return [*here, *self._remote.recorded()]
        self._seen = frozenset(found.id for found in there)
        return [*here, *there]

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        return self._for(environment).can_update(environment, limits)

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        await self._having(sandbox_id).update_limits(sandbox_id, limits)

    async def pause(self, sandbox_id: str) -> None:
        await self._having(sandbox_id).pause(sandbox_id)

    async def unpause(self, sandbox_id: str) -> None:
        await self._having(sandbox_id).unpause(sandbox_id)

    async def stats(self, sandbox_id: str) -> Stats:
        return await self._having(sandbox_id).stats(sandbox_id)

    async def warnings(self) -> Sequence[str]:
        return [*await self._here.warnings(), *await self._remote.warnings()]
