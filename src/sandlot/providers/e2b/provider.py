"""The E2B provider makes sandboxes at E2B, finds them again, and notices when they end.

A sandbox has three parts, made in this order: a folder on the host with its secret, a sandbox at E2B
whose metadata name its owner, and the agent inside. ``destroy`` removes the first two by the same
names. So callers can repeat it, and it also finishes what a dead worker began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Container, Sequence
from pathlib import Path
from typing import Final

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import EngineProblem, LinkInterrupted, NotFound, SandboxLost, Unsupported
from sandlot.providers.base import FoundSandbox, SandboxSpec, Stats
from sandlot.providers.e2b import start
from sandlot.providers.e2b.account import E2BAccount
from sandlot.providers.e2b.carrier import Carrier
from sandlot.providers.e2b.demands import check_environment
from sandlot.providers.e2b.folder import RemoteFolder, WorkerFolder
from sandlot.providers.e2b.keeper import Keeper
from sandlot.providers.e2b.listing import AGENT_FOLDER, Listing, found, metadata_of
from sandlot.providers.e2b.no_workspaces import NoWorkspaces
from sandlot.providers.e2b.sandbox import E2BSandbox
from sandlot.providers.e2b.service import E2BService, RemoteSandbox
from sandlot.providers.host_errors import host_errors
from sandlot.providers.link.link import SOCKET_NAME, AgentLink
from sandlot.providers.sandboxes_in_use import SandboxesInUse
from sandlot.providers.waiting import run_to_completion
from sandlot.providers.workspaces import WorkspaceStore

# Seconds from the agent's start to its handshake, over a relay that starts meanwhile.
AGENT_START_S: Final = 60.0
# Seconds in which a running agent redials the next relay. It tries at least every two seconds.
AGENT_REDIAL_S: Final = 30.0


class E2BProvider:
    """Implements ``Provider`` on E2B's API. ``owner`` separates workers that share an account."""

    def __init__(self, *, owner: str, data_dir: Path, account: E2BAccount) -> None:
        self._owner = owner
        self._account = account
        self._folders = WorkerFolder(data_dir)
        self._service = E2BService(account)
        self._in_use: SandboxesInUse[E2BSandbox] = SandboxesInUse(self._remove)
        self._listing = Listing(self._service, owner)
        self._keeper = Keeper(self._service, self._in_use.by_id, self._listing.remote_ids)
        self._keeping: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._epoch = 0
        self.workspaces: WorkspaceStore = NoWorkspaces()

    async def open(self) -> None:
        async with self._opening:
            if self._keeping is None:
                try:
                    self._epoch = await run_to_completion(asyncio.to_thread(self._folders.open))
                except BaseException:  # a cancelled caller never learns that the folder was opened
                    self._folders.close()
                    raise
                self._keeping = asyncio.create_task(
                    self._keeper.run(), name=f"keep {self._owner}'s sandboxes at E2B"
                )

    async def close(self) -> None:
        """Releases all resources. Sandboxes keep running until their timeout at E2B."""
        await self._in_use.close()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        self._folders.close()

    async def warnings(self) -> Sequence[str]:
        if self._account.user == "root":
            return ()
        return (
            "SANDLOT_E2B_USER is not root: commands in sandboxes of E2B run as the agent's own user, and "
            "can end their sandbox",
        )

    def has(self, sandbox_id: str) -> bool:
        """Whether the sandbox is this provider's. Never waits."""
        return self._folders.has(sandbox_id)

    def recorded(self) -> Sequence[FoundSandbox]:
        """The sandboxes that have a folder here, without asking E2B. Each may be gone."""
        return [
            FoundSandbox(sandbox_id, "running", environment, Tier.MICROVM, made_at)
            for sandbox_id, environment, made_at in self._folders.recorded()
        ]

    # --- the contract -------------------------------------------------------------------------

    async def prepare(self, environment: Environment) -> None:
        check_environment(environment)
        await self.open()

    async def image_of(self, environment: Environment) -> str:
        await self.prepare(environment)
        return f"e2b:{environment.image}"

    async def check_image(self, environment: Environment) -> bool:
        """E2B alone knows its templates, and is asked at each create."""
        return False

    async def forget_rebuilt_images(self) -> Collection[str]:
        """None: E2B resolves a template's name at each create."""
        return ()

    async def create(self, spec: SandboxSpec) -> E2BSandbox:
        await self.prepare(spec.environment)
        if spec.workspace is not None:
            raise Unsupported("A sandbox at E2B cannot get an existing workspace.")
        async with self._in_use.creating(spec.id):
            folder = self._folders.make(spec.id, spec.environment.name)
            async with self._in_use.removed_on_failure(spec.id):
                return await self._create(spec, folder)

    async def adopt(self, sandbox_id: str) -> E2BSandbox:
        await self.open()
        return await self._in_use.adopt(sandbox_id, self._take_over)

    async def destroy(self, sandbox_id: str, *, keep: Container[str] = ()) -> None:
        await self.open()
        await self._in_use.destroy(sandbox_id, keep)

    async def list(self) -> Sequence[FoundSandbox]:
        await self.open()
        return [found(record) for record in await self._listing.records()]

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        return limits == environment.limits

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        raise Unsupported("E2B cannot change a sandbox's limits: its template fixes them.")

    async def pause(self, sandbox_id: str) -> None:
        raise Unsupported("Pausing at E2B is not supported: not every server keeps the processes.")

    async def unpause(self, sandbox_id: str) -> None:
        raise Unsupported("Pausing at E2B is not supported: not every server keeps the processes.")

    async def stats(self, sandbox_id: str) -> Stats:
        raise Unsupported("E2B does not measure a sandbox's processor time or processes. Use its health.")

    # --- making and removing ------------------------------------------------------------------

    async def _create(self, spec: SandboxSpec, folder: RemoteFolder) -> E2BSandbox:
        inside = start.new_folder()
        metadata = metadata_of(spec, self._owner, inside)
        # Once asked for, E2B may make it: only with its id can it be removed at once.
        remote = await run_to_completion(self._service.create(spec.environment.image, metadata))
        await asyncio.to_thread(folder.set_remote_id, remote.id)
        place = await start.prepare(remote, inside, self._account.user)
        link = AgentLink(
            folder.link, secret=folder.secret, epoch=self._epoch, setup=place.setup(), first_contact=True
        )
        sandbox = E2BSandbox(spec.id, remote, link, start.agent_program(inside))
        self._in_use.by_id[spec.id] = sandbox
        await link.open()
        self._carry(sandbox, remote, folder, inside)
        await start.start_agent(remote, inside)
        try:
            await _wait_for_agent(link, AGENT_START_S)
        except SandboxLost as error:
            raise EngineProblem(
                f"The sandbox ended before its agent answered: {error.message}", retryable=True
            ) from error
        return sandbox

    def _carry(self, sandbox: E2BSandbox, remote: RemoteSandbox, folder: RemoteFolder, inside: str) -> None:
        sandbox.carry_with(
            Carrier(remote, start.relay_command(inside), folder.link / SOCKET_NAME, sandbox.mark_lost)
        )

    async def _take_over(self, sandbox_id: str) -> E2BSandbox:
        folder = await asyncio.to_thread(self._folders.find, sandbox_id)
        known = await self._listing.records(sandbox_id)
        if not known:
            raise SandboxLost("E2B has ended the sandbox")
        inside = known[0].metadata.get(AGENT_FOLDER, "")
        if not start.is_folder(inside):
            raise SandboxLost("E2B's record of the sandbox does not name its agent")
        remote = await self._service.connect(known[0].id)
        link = AgentLink(folder.link, secret=folder.secret, epoch=self._epoch, setup={}, first_contact=False)
        sandbox = E2BSandbox(sandbox_id, remote, link, start.agent_program(inside))
        async with self._in_use.entering(sandbox):
            await link.open()
            self._carry(sandbox, remote, folder, inside)
            await _wait_for_agent(link, AGENT_REDIAL_S)
        return sandbox

    async def _remove(self, sandbox_id: str, keep: Container[str]) -> None:
        """The folder goes last: while it exists, a repeated destroy knows that parts may be left."""
        with host_errors(f"remove sandbox {sandbox_id}"):
            for remote_id in await self._remote_ids_of(sandbox_id):
                await self._service.kill(remote_id)
            await asyncio.to_thread(self._folders.remove, sandbox_id)

    async def _remote_ids_of(self, sandbox_id: str) -> Collection[str]:
        """The recorded id if there is one. A worker that died in a create may have recorded none."""
        with contextlib.suppress(NotFound):
            if (remote_id := self._folders.find(sandbox_id).remote_id) is not None:
                return (remote_id,)
        return [record.id for record in await self._listing.records(sandbox_id)]


async def _wait_for_agent(link: AgentLink, seconds: float) -> None:
    try:
        await link.wait_ready(seconds)
    except LinkInterrupted as error:
        raise EngineProblem(
            f"The sandbox is running at E2B, but its agent did not answer within {seconds:g} s.",
            retryable=True,
        ) from error
