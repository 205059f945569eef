"""The Docker provider makes sandboxes as containers, finds them again, and notices when they end.

A sandbox has four parts, made in this order: a folder on the host with its secret, the socket that
its agent dials, a workspace, and a container. If any step fails, the provider removes all of them
again. ``destroy`` removes the same parts by the same names, except a workspace that the caller keeps.
So callers can repeat it, and it also finishes what a dead worker began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sandlot.domain.capacity.limits import Limits
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import Conflict, EngineProblem, ImageMissing, NotFound, SandboxLost
from sandlot.providers.base import FoundSandbox, SandboxSpec, Stats
from sandlot.providers.docker import engine_requirements
from sandlot.providers.docker.agent_setup import agent_setup, packaged_agent, wait_for_agent
from sandlot.providers.docker.containers import LIVE_STATES, end_reason, parse_sandbox, parse_stats
from sandlot.providers.docker.end_watcher import EndWatcher
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.host.folder import HostFolder, SandboxFolder, make_folder
from sandlot.providers.docker.host.users import DEFAULT_USERS, NAMESPACED_USERS, UserRange
from sandlot.providers.docker.images.preparing import ImagePreparer, PreparedImage, prepared_tag
from sandlot.providers.docker.limit_changes import can_update, limit_change
from sandlot.providers.docker.sandbox import DockerSandbox
from sandlot.providers.docker.spec import (
    LABEL_OWNER,
    LABEL_SANDBOX,
    LABEL_TIER,
    HostPaths,
    container_name,
    container_spec,
)
from sandlot.providers.docker.workspaces.contract import DockerWorkspaceStore, ImageFiles
from sandlot.providers.docker.workspaces.volumes.store import VolumeStore
from sandlot.providers.host_errors import host_errors
from sandlot.providers.link.link import AgentLink
from sandlot.providers.sandboxes_in_use import SandboxesInUse
from sandlot.providers.waiting import run_to_completion

# Seconds from a container's start to its agent's handshake. 0.02 when idle, more when many start.
AGENT_START_SECONDS = 30.0
# Seconds in which a running agent redials. It tries at least every two seconds.
AGENT_REDIAL_SECONDS = 15.0


class DockerProvider:
    """Implements ``Provider`` on a Docker engine.

    ``owner`` separates the sandboxes of workers that share an engine. ``data_dir`` is never shared.
    """

    def __init__(
        self,
        *,
        owner: str,
        data_dir: Path,
        agent_path: Path | None = None,
        engine: Engine | None = None,
        workspaces: DockerWorkspaceStore | None = None,
        pull_images: bool = False,
        users: UserRange | None = None,
        on_redial: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner = owner
        self._host = HostFolder(data_dir)
        self._agent_source = agent_path or packaged_agent()
        self._agents: dict[Tier, Path] = {}
        self._users = users
        self._link = partial(AgentLink, on_redial=on_redial)
        self._engine = engine or Engine()
        self.workspaces: DockerWorkspaceStore = workspaces or VolumeStore(
            self._engine, owner, data_dir / "snapshots", users=users
        )
        self._preparer = ImagePreparer(self._engine, pull=pull_images)
        self._images: dict[str, PreparedImage] = {}
        self._in_use: SandboxesInUse[DockerSandbox] = SandboxesInUse(self._remove)
        self._end_watcher = EndWatcher(self._engine, owner, self._in_use.by_id)
        self._opening = asyncio.Lock()
        self._epoch = 0
        self._watch_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Starts the provider; other calls do this implicitly.

        Raises ``Conflict`` if another worker uses the data folder.
        """
        async with self._opening:
            if self._watch_task is not None:
                return
            try:
                self._epoch = await run_to_completion(asyncio.to_thread(self._host.open))
                self._agents = await asyncio.to_thread(self._install_agent)
                await self._reach_engine()
                await self.workspaces.open()
                if self._users is None:
                    remapped = await self._engine.remaps_users()
                    self._users = NAMESPACED_USERS if remapped else DEFAULT_USERS
            except BaseException:
                self._host.close()
                raise
            self._watch_task = asyncio.create_task(
                self._end_watcher.run(), name=f"watch the engine for {self._owner}"
            )

    async def _reach_engine(self) -> None:
        """Makes the first call to the engine, which removes leftovers of image preparations. Its error
        names the engine's address, because a forgotten DOCKER_HOST may be the cause.
        """
        try:
            await self._preparer.remove_leftovers()
        except EngineProblem as error:
            raise EngineProblem(
                f"Cannot use Docker at {self._engine.host}: {error.message.removesuffix('.')}. Start "
                "Docker, or set DOCKER_HOST to its address.",
                retryable=error.retryable,
            ) from error

    async def close(self) -> None:
        """Releases all resources. Unfinished creates fail.

        Sandboxes keep running: the next start of the worker may adopt them.
        """
        await self._preparer.close()
        await self._in_use.close()
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
            self._watch_task = None
        await self.workspaces.close()
        await self._engine.close()
        self._host.close()

    async def warnings(self) -> Sequence[str]:
        """Returns what an operator should know about this engine; empty if all is well."""
        runsc = await engine_requirements.runsc_version(await self._engine.info())
        return engine_requirements.warnings(await self._engine.version(), runsc)

    # --- the contract -------------------------------------------------------------------------

    async def prepare(self, environment: Environment) -> None:
        await self.open()
        await engine_requirements.check_tier(self._engine, environment.tier)
        self._images[environment.image] = await self._preparer.prepare(environment.image)

    async def image_of(self, environment: Environment) -> str:
        await self.open()
        return prepared_tag((await self._image(environment)).source_id)

    async def _image(self, environment: Environment) -> PreparedImage:
        image = self._images.get(environment.image)
        if image is None:
            await self.prepare(environment)
            image = self._images[environment.image]
        return image

    async def check_image(self, environment: Environment) -> bool:
        await self.open()
        if environment.image not in self._images:  # a prepared one works without it
            await self._preparer.find(environment.image)
        return True

    async def forget_rebuilt_images(self) -> Collection[str]:
        return await self._preparer.forget_rebuilt(self._images)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        await self.open()
        image = await self._image(spec.environment)
        keep = () if spec.workspace is None else (spec.workspace,)
        async with self._in_use.creating(spec.id):
            folder = await self._make_folder(spec, image)
            async with self._in_use.removed_on_failure(spec.id, keep):
                try:
                    return await self._create(spec, image, folder)
                except ImageMissing:
                    # The prepared image was removed meanwhile. The next create prepares it again.
                    self._images.pop(spec.environment.image, None)
                    raise

    async def adopt(self, sandbox_id: str) -> DockerSandbox:
        await self.open()
        return await self._in_use.adopt(sandbox_id, self._take_over)

    async def _take_over(self, sandbox_id: str) -> DockerSandbox:
        folder = await asyncio.to_thread(self._host.find, sandbox_id)
        container = await self._inspect(sandbox_id)
        if container["State"]["Status"] not in LIVE_STATES:
            raise SandboxLost(end_reason(container["State"]))
        if (existing := self._in_use.by_id.get(sandbox_id)) is not None:
            return existing
        link = self._link(folder.link, secret=folder.secret, epoch=self._epoch, setup={}, first_contact=False)
        tier = Tier(container["Config"]["Labels"][LABEL_TIER])
        sandbox = DockerSandbox(sandbox_id, tier, link)
        sandbox.container_id, sandbox.started = container["Id"], True
        async with self._in_use.entering(sandbox):
            await link.open()
            # The agent of a paused container redials once the container is unpaused.
            if container["State"]["Status"] == "running":
                await wait_for_agent(link, AGENT_REDIAL_SECONDS)
        return sandbox

    async def destroy(self, sandbox_id: str, *, keep: Container[str] = ()) -> None:
        await self.open()
        await self._in_use.destroy(sandbox_id, keep)

    async def list(self) -> Sequence[FoundSandbox]:
        await self.open()
        labels = {LABEL_OWNER: self._owner, LABEL_SANDBOX: None}
        return [parse_sandbox(container) for container in await self._engine.list(labels)]

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        return can_update(environment, limits)

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        """Changes memory, CPU and process limits.

        The other limits are fixed when a sandbox is made.
        """
        container = await self._inspect(sandbox_id)
        tier = Tier(container["Config"]["Labels"][LABEL_TIER])
        change = limit_change(tier, limits, container["HostConfig"])
        if tier is Tier.RUNSC:
            await (await self.adopt(sandbox_id)).limit_memory(limits.memory_bytes)
        else:
            await self._engine.update(container_name(sandbox_id), change)

    async def pause(self, sandbox_id: str) -> None:
        await self._engine.pause(await self._owned_container(sandbox_id))

    async def unpause(self, sandbox_id: str) -> None:
        await self._engine.unpause(await self._owned_container(sandbox_id))

    async def stats(self, sandbox_id: str) -> Stats:
        return parse_stats(await self._engine.stats(await self._owned_container(sandbox_id)))

    def _install_agent(self) -> dict[Tier, Path]:
        try:
            return self._host.install_agent(self._agent_source)
        except OSError as error:
            raise NotFound(
                f"Cannot read the agent's binary: {error}. Reinstall Sandlot, or in a clone run `make agent`."
            ) from error

    # --- making and removing ------------------------------------------------------------------

    async def _create(self, spec: SandboxSpec, image: PreparedImage, folder: SandboxFolder) -> DockerSandbox:
        tier = spec.environment.tier
        link = self._link(
            folder.link,
            secret=folder.secret,
            epoch=self._epoch,
            setup=agent_setup(spec.environment, image, folder.uid),
            first_contact=True,
        )
        sandbox = DockerSandbox(spec.id, tier, link)
        self._in_use.by_id[spec.id] = sandbox
        await link.open()
        files = ImageFiles(image.id, partial(self._preparer.read_sandbox_folder, image.id))
        workspace = await self.workspaces.prepare(spec.id, folder.uid, files, spec.workspace)
        body = container_spec(
            spec,
            owner=self._owner,
            image_id=image.id,
            paths=HostPaths(
                agent=str(self._agents[tier]),
                link=str(folder.link),
                etc={path.name: str(path) for path in folder.etc.iterdir()},
            ),
            workspace=workspace,
        )
        name = container_name(spec.id)
        try:
            sandbox.container_id = await self._engine.create(name, body)
        except Conflict:
            await self._remove_stale_container(spec.id)
            sandbox.container_id = await self._engine.create(name, body)
        await self._engine.start(name)
        sandbox.started = True
        try:
            await wait_for_agent(link, AGENT_START_SECONDS)
        except SandboxLost as error:
            # No caller had the sandbox yet, and nothing ran in it: for them it was never created.
            raise EngineProblem(
                f"The sandbox ended before its agent answered: {error.message}", retryable=True
            ) from error
        return sandbox

    async def _make_folder(self, spec: SandboxSpec, image: PreparedImage) -> SandboxFolder:
        accounts = {"passwd": image.passwd, "group": image.group}
        readable = {name: content for name, content in accounts.items() if content is not None}
        assert self._users is not None, "call open() first"
        uid = None if spec.workspace is None else await self.workspaces.user_of(spec.workspace)
        return await make_folder(self._host, spec.id, self._users, readable, uid)

    async def _remove_stale_container(self, sandbox_id: str) -> None:
        """Removes a leftover container that has this sandbox's name.

        Every create makes the folder first. This create found none, so the container is a leftover.
        """
        try:
            await self._inspect(sandbox_id)
        except NotFound as error:  # it has gone since, or belongs to another owner
            raise EngineProblem(
                f"Docker says that the name of {sandbox_id} is taken, but lists no such container of "
                "this worker.",
                retryable=True,
            ) from error
        await self._engine.remove(container_name(sandbox_id))

    async def _remove(self, sandbox_id: str, keep: Container[str]) -> None:
        with contextlib.suppress(NotFound):
            await self._inspect(sandbox_id)
            await self._engine.remove(container_name(sandbox_id))
        await self.workspaces.release(sandbox_id, keep)
        # The folder goes last: while it exists, a repeated destroy knows that parts may be left.
        with host_errors(f"remove the folder of sandbox {sandbox_id}"):
            await asyncio.to_thread(self._host.remove, sandbox_id)

    async def _inspect(self, sandbox_id: str) -> dict[str, Any]:
        container = await self._engine.inspect(container_name(sandbox_id))
        labels = container["Config"].get("Labels") or {}
        if labels.get(LABEL_OWNER) != self._owner or labels.get(LABEL_SANDBOX) != sandbox_id:
            raise NotFound(f"Sandbox {sandbox_id} does not belong to {self._owner}.")
        return container

    async def _owned_container(self, sandbox_id: str) -> str:
        """Returns the container's name. Raises ``NotFound`` if this owner has no such sandbox.

        For sandboxes in use, this does not ask the engine.
        """
        if sandbox_id not in self._in_use.by_id:
            await self._inspect(sandbox_id)
        return container_name(sandbox_id)
