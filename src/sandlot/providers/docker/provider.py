"""The Docker provider: makes sandboxes out of containers, finds them again, and notices when they end.

What a sandbox consists of, in the order of its making: a folder on the host with its secret, the socket that
its agent dials, a workspace, a container. Whatever goes wrong on the way, all of it is removed again;
``destroy`` removes the same things by the same names, so it can be repeated and also finishes what a dead
worker began.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from sandlot.domain.environment import Environment, Tier
from sandlot.domain.errors import (
    Conflict,
    EngineProblem,
    ImageMissing,
    LinkInterrupted,
    NotFound,
    SandboxLost,
    SandlotError,
    TierMissing,
    Unsupported,
)
from sandlot.domain.limits import Limits
from sandlot.providers.base import FoundSandbox, SandboxSpec, Stats
from sandlot.providers.docker import floors
from sandlot.providers.docker.engine import Engine, EngineEvent, shared, uncut
from sandlot.providers.docker.host_errors import host_errors
from sandlot.providers.docker.hostdir import HostDirectory, SandboxDirectory
from sandlot.providers.docker.images import ImagePreparer, PreparedImage
from sandlot.providers.docker.removals import Removals
from sandlot.providers.docker.sandbox import DockerSandbox
from sandlot.providers.docker.seccomp import native_machine
from sandlot.providers.docker.spec import (
    LABEL_CALLER,
    LABEL_ENVIRONMENT,
    LABEL_OWNER,
    LABEL_SANDBOX,
    LABEL_SPEC,
    LABEL_TIER,
    RUN_TARGET,
    RUNTIMES,
    WORKSPACE_LINK,
    HostPaths,
    container_name,
    container_spec,
    fixed_limits,
    resource_limits,
)
from sandlot.providers.docker.users import DEFAULT_USERS, NAMESPACED_USERS, UserRange
from sandlot.providers.docker.workspace import VolumeStore, WorkspaceStore
from sandlot.providers.link.link import AgentLink

# Seconds from a container's start to its agent's first word; 0.02 when idle, more while many start at once.
AGENT_START_SECONDS = 30.0
# Seconds in which a running agent redials; it tries at least every two.
AGENT_REDIAL_SECONDS = 15.0
# Seconds until an engine that could not list its containers is asked again.
COMPARE_AGAIN_SECONDS = 1.0
_AGENT_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LIVE_STATES = ("running", "paused")


class DockerProvider:
    """``owner`` tells apart the sandboxes of workers that share an engine; ``data_dir`` is never shared."""

    def __init__(
        self,
        *,
        owner: str,
        data_dir: Path,
        agent_path: Path | None = None,
        engine: Engine | None = None,
        workspaces: WorkspaceStore | None = None,
        pull_images: bool = False,
        users: UserRange | None = None,
    ) -> None:
        self._owner = owner
        self._host = HostDirectory(data_dir)
        self._agent_source = agent_path or packaged_agent()
        self._agents: dict[Tier, Path] = {}
        self._users = users
        self._engine = engine or Engine()
        self._workspaces = workspaces or VolumeStore(self._engine, owner)
        self._preparer = ImagePreparer(self._engine, pull=pull_images)
        self._images: dict[str, PreparedImage] = {}
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._creations: set[asyncio.Future[None]] = set()
        self._adoptions: dict[str, asyncio.Task[DockerSandbox]] = {}
        self._making: set[str] = set()
        self._removals = Removals(self._let_go, self._remove, self._making)
        self._opening = asyncio.Lock()
        self._epoch = 0
        self._watcher: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begins this life; other calls imply it. ``Conflict`` if another worker uses the data directory."""
        async with self._opening:
            if self._watcher is not None:
                return
            try:
                self._epoch = await uncut(asyncio.to_thread(self._host.open))
                self._agents = await asyncio.to_thread(self._install_agent)
                await self._first_contact()
                if self._users is None:
                    remapped = await self._engine.remaps_users()
                    self._users = NAMESPACED_USERS if remapped else DEFAULT_USERS
            except BaseException:
                self._host.close()
                raise
            self._watcher = asyncio.create_task(self._watch(), name=f"watch the engine for {self._owner}")

    async def _first_contact(self) -> None:
        """An error here needs the address most: it may come from a DOCKER_HOST that was forgotten."""
        try:
            await self._preparer.remove_leftovers()
        except EngineProblem as error:
            raise EngineProblem(
                f"the Docker engine at {self._engine.host} cannot be used: {error.message}. Start it, or set "
                "DOCKER_HOST to where it is",
                retryable=error.retryable,
            ) from error

    async def close(self) -> None:
        """Lets go of everything; what is being made fails. Sandboxes stay: the next life may adopt them."""
        await self._preparer.close()
        for adoption in self._adoptions.values():
            adoption.cancel()
        while True:
            for sandbox in list(self._sandboxes.values()):
                await sandbox.close()
            # Waited for while all else still stands: a create that fails removes what it made.
            under_way: set[asyncio.Future[Any]] = {*self._creations, *self._adoptions.values()}
            under_way |= self._removals.under_way
            if not under_way:
                break
            await asyncio.wait(under_way)
        self._sandboxes.clear()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        await self._engine.close()
        self._host.close()

    async def warnings(self) -> Sequence[str]:
        """What an operator should know about this engine; empty if all is well."""
        runsc = await floors.runsc_version(await self._engine.info())
        return floors.warnings(await self._engine.version(), runsc)

    # --- the contract -------------------------------------------------------------------------

    async def prepare(self, environment: Environment) -> None:
        await self.open()
        await self._check_tier(environment.tier)
        self._images[environment.image] = await self._preparer.prepare(environment.image)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        await self.open()
        image = self._images.get(spec.environment.image)
        if image is None:
            await self.prepare(spec.environment)
            image = self._images[spec.environment.image]
        ended = asyncio.get_running_loop().create_future()
        self._creations.add(ended)
        self._making.add(spec.id)
        try:
            with host_errors(f"make sandbox {spec.id}"):
                directory = await self._make_directory(spec.id, image)
                try:
                    return await self._create(spec, image, directory)
                except BaseException as error:
                    if isinstance(error, ImageMissing):  # removed behind our back: prepared anew next time
                        self._images.pop(spec.environment.image, None)
                    self._making.discard(spec.id)  # from here on nothing more comes of it
                    await _to_its_end(self._undo(spec.id))
                    raise
        finally:
            self._making.discard(spec.id)
            self._creations.discard(ended)
            ended.set_result(None)

    async def adopt(self, sandbox_id: str) -> DockerSandbox:
        await self.open()
        task = self._adoptions.get(sandbox_id)
        if task is None:
            if (known := self._sandboxes.get(sandbox_id)) is not None:
                return known
            task = asyncio.create_task(self._adopt(sandbox_id), name=f"adopt {sandbox_id}")
            self._adoptions[sandbox_id] = task
            task.add_done_callback(lambda _: self._adoptions.pop(sandbox_id, None))
        # Shared and shielded: two listeners on one socket would take the agent from each other.
        return await shared(task)

    async def _adopt(self, sandbox_id: str) -> DockerSandbox:
        with host_errors(f"take over sandbox {sandbox_id}"):
            return await self._take_over(sandbox_id)

    async def _take_over(self, sandbox_id: str) -> DockerSandbox:
        directory = await asyncio.to_thread(self._host.find, sandbox_id)
        container = await self._inspect(sandbox_id)
        if container["State"]["Status"] not in _LIVE_STATES:
            raise SandboxLost(_how_it_ended(container["State"]))
        if (known := self._sandboxes.get(sandbox_id)) is not None:
            return known
        if sandbox_id in self._removals:
            raise SandboxLost("the sandbox is being destroyed")
        link = AgentLink(
            directory.link, secret=directory.secret, epoch=self._epoch, setup={}, first_contact=False
        )
        tier = Tier(container["Config"]["Labels"][LABEL_TIER])
        sandbox = DockerSandbox(sandbox_id, tier, link)
        sandbox.container_id, sandbox.started = container["Id"], True
        self._sandboxes[sandbox_id] = sandbox
        try:
            await link.open()
            # A paused one redials when it is woken.
            if container["State"]["Status"] == "running":
                await self._wait_for_agent(link, AGENT_REDIAL_SECONDS)
        except BaseException:
            if self._sandboxes.get(sandbox_id) is sandbox:
                del self._sandboxes[sandbox_id]
            await _to_its_end(sandbox.close())
            raise
        return sandbox

    async def destroy(self, sandbox_id: str) -> None:
        await self.open()
        await self._removals.destroy(sandbox_id)

    async def list(self) -> Sequence[FoundSandbox]:
        """Also those of which only the workspace is left (state ``removed``): they still want destroying."""
        await self.open()
        labels = {LABEL_OWNER: self._owner, LABEL_SANDBOX: None}
        found = [_found(container) for container in await self._engine.list(labels)]
        with_container = {sandbox.id for sandbox in found}
        found += [
            FoundSandbox(sandbox_id, "removed", "", Tier.RUNC, "", 0.0)
            for sandbox_id in await self._workspaces.list()
            if sandbox_id not in with_container and sandbox_id not in self._sandboxes
        ]
        return found

    def can_update(self, environment: Environment, limits: Limits) -> bool:
        tier, made = environment.tier, environment.limits
        if fixed_limits(tier, limits) != fixed_limits(tier, made):
            return False
        if tier is Tier.RUNC:
            return True
        same = (limits.cpus, limits.pids) == (made.cpus, made.pids)
        return same and limits.memory_bytes <= made.memory_bytes

    async def update_limits(self, sandbox_id: str, limits: Limits) -> None:
        """Memory, processor and processes; the other limits are fixed when a sandbox is made.

        runsc cannot change a container's limits: on that tier only memory moves, which the agent watches, and
        not beyond what the sandbox was made with.
        """
        container = await self._inspect(sandbox_id)
        tier = Tier(container["Config"]["Labels"][LABEL_TIER])
        fixed, moving = fixed_limits(tier, limits), resource_limits(tier, limits)
        current = container["HostConfig"]
        if tier is Tier.RUNSC:
            if moving["Memory"] > current["Memory"]:
                raise Unsupported("a runsc sandbox cannot be given more memory than it was made with")
            fixed |= moving | {name: current[name] for name in ("Memory", "MemorySwap")}
        for name, value in fixed.items():
            if current.get(name) != value:
                raise Unsupported(f"{name} of a {tier} sandbox cannot be changed while it runs")
        if tier is Tier.RUNSC:
            await (await self.adopt(sandbox_id)).limit_memory(limits.memory_bytes)
        else:
            await self._engine.update(container_name(sandbox_id), moving)

    async def pause(self, sandbox_id: str) -> None:
        await self._engine.pause(await self._own(sandbox_id))

    async def unpause(self, sandbox_id: str) -> None:
        await self._engine.unpause(await self._own(sandbox_id))

    async def stats(self, sandbox_id: str) -> Stats:
        sample = await self._engine.stats(await self._own(sandbox_id))
        memory = sample.get("memory_stats") or {}
        details = memory.get("stats") or {}
        # Cached file content is given back under pressure: as `docker stats` does, it does not count as used.
        cached = details.get("total_inactive_file", details.get("inactive_file", 0))
        return Stats(
            memory_bytes=max(0, int(memory.get("usage", 0)) - int(cached)),
            cpu_ns=int(((sample.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage", 0)),
            pids=int((sample.get("pids_stats") or {}).get("current", 0)),
        )

    def _install_agent(self) -> dict[Tier, Path]:
        try:
            return self._host.install_agent(self._agent_source)
        except OSError as error:
            raise NotFound(
                f"the agent's program cannot be read: {error}; build it with `make agent`"
            ) from error

    # --- making and removing ------------------------------------------------------------------

    async def _create(
        self, spec: SandboxSpec, image: PreparedImage, directory: SandboxDirectory
    ) -> DockerSandbox:
        tier = spec.environment.tier
        link = AgentLink(
            directory.link,
            secret=directory.secret,
            epoch=self._epoch,
            setup=_setup(spec.environment, image, directory.uid),
            first_contact=True,
        )
        sandbox = DockerSandbox(spec.id, tier, link)
        self._sandboxes[spec.id] = sandbox
        await link.open()
        await self._workspaces.create(spec.id)
        body = container_spec(
            spec,
            owner=self._owner,
            image_id=image.id,
            paths=HostPaths(
                agent=str(self._agents[tier]),
                link=str(directory.link),
                etc={path.name: str(path) for path in directory.etc.iterdir()},
            ),
            workspace=self._workspaces.mount_for(spec.id),
        )
        name = container_name(spec.id)
        try:
            sandbox.container_id = await self._engine.create(name, body)
        except Conflict:
            await self._remove_namesake(spec.id)
            sandbox.container_id = await self._engine.create(name, body)
        await self._engine.start(name)
        sandbox.started = True
        try:
            await self._wait_for_agent(link, AGENT_START_SECONDS)
        except SandboxLost as error:
            # Nobody had it yet, and nothing ran in it: for the caller it was never made.
            raise EngineProblem(
                f"the sandbox ended before its agent answered: {error.message}", retryable=True
            ) from error
        return sandbox

    async def _make_directory(self, sandbox_id: str, image: PreparedImage) -> SandboxDirectory:
        accounts = {"passwd": image.passwd, "group": image.group}
        known = {name: content for name, content in accounts.items() if content is not None}
        assert self._users is not None, "open comes first"
        making = asyncio.ensure_future(asyncio.to_thread(self._host.make, sandbox_id, self._users, known))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # A thread cannot be cut short. What it made is ours to remove; if it refused, nothing is.
            await asyncio.wait([making])
            if making.exception() is None:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(self._host.remove, sandbox_id)
            raise

    async def _undo(self, sandbox_id: str) -> None:
        """A removal that began while things were still being made may have passed them by."""
        await self._removals.wait(sandbox_id)
        await self.destroy(sandbox_id)

    async def _remove_namesake(self, sandbox_id: str) -> None:
        """A container with our name but without our folder: a remnant, since the folder is made first."""
        try:
            await self._inspect(sandbox_id)
        except NotFound as error:  # gone since, or not ours to remove
            raise EngineProblem(
                f"the engine says that the name of {sandbox_id} is taken, and shows nothing of ours under it",
                retryable=True,
            ) from error
        await self._engine.remove(container_name(sandbox_id))

    async def _let_go(self, sandbox_id: str) -> None:
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox.lose("the sandbox was destroyed")
            await sandbox.close()

    async def _remove(self, sandbox_id: str) -> None:
        with contextlib.suppress(NotFound):
            await self._inspect(sandbox_id)
            await self._engine.remove(container_name(sandbox_id))
        await self._workspaces.destroy(sandbox_id)
        # Last: while the folder is there, a repeated destroy knows that something may be left.
        with host_errors(f"remove the folder of sandbox {sandbox_id}"):
            await asyncio.to_thread(self._host.remove, sandbox_id)

    async def _wait_for_agent(self, link: AgentLink, seconds: float) -> None:
        try:
            await link.wait_ready(seconds)
        except LinkInterrupted as error:
            if link.failure is None:
                why = f"the container runs, but its agent has not answered within {seconds:g} s"
            else:
                why = f"the container runs, and its agent is not waited for: {error.message}"
            raise EngineProblem(why, retryable=True) from error

    async def _inspect(self, sandbox_id: str) -> dict[str, Any]:
        container = await self._engine.inspect(container_name(sandbox_id))
        labels = container["Config"].get("Labels") or {}
        if labels.get(LABEL_OWNER) != self._owner or labels.get(LABEL_SANDBOX) != sandbox_id:
            raise NotFound(f"sandbox {sandbox_id} is not one of {self._owner}")
        return container

    async def _own(self, sandbox_id: str) -> str:
        """The container's name if it is ours, else ``NotFound``; what we drive is known without asking."""
        if sandbox_id not in self._sandboxes:
            await self._inspect(sandbox_id)
        return container_name(sandbox_id)

    async def _check_tier(self, tier: Tier) -> None:
        runtime = RUNTIMES[tier]
        if runtime not in await self._engine.runtimes():
            raise TierMissing(
                f"the engine has no runtime '{runtime}': install {runtime}, add it under \"runtimes\" in "
                "/etc/docker/daemon.json and restart the engine; a weaker tier is never taken instead"
            )

    # --- noticing ends ------------------------------------------------------------------------

    async def _watch(self) -> None:
        labels = {LABEL_OWNER: self._owner, LABEL_SANDBOX: None}
        async with contextlib.aclosing(self._engine.events(labels)) as events:
            async for event in events:
                if event is None:
                    # Asked until it answers: the stream of events may live on where the list has failed.
                    while not await self._compare_with_engine():  # noqa: ASYNC110  # the engine tells nobody
                        await asyncio.sleep(COMPARE_AGAIN_SECONDS)
                elif event.action in ("die", "destroy"):
                    self._ended(event)

    def _ended(self, event: EngineEvent) -> None:
        sandbox = self._sandboxes.get(event.sandbox_id)
        if sandbox is not None and sandbox.container_id == event.container_id:
            code = f" with exit code {event.exit_code}" if event.exit_code else ""
            sandbox.lose(f"the sandbox's container ended{code}")

    async def _compare_with_engine(self) -> bool:
        """After a gap in the events: what they would have told is read from the list of containers."""
        before = {name for name, sandbox in self._sandboxes.items() if sandbox.started}
        try:
            containers = await self._engine.list({LABEL_OWNER: self._owner, LABEL_SANDBOX: None})
        except SandlotError:
            return False
        live = {
            container["Labels"][LABEL_SANDBOX]
            for container in containers
            if container["State"] in _LIVE_STATES
        }
        for sandbox_id in before - live:
            if (sandbox := self._sandboxes.get(sandbox_id)) is not None:
                sandbox.lose("the sandbox's container is gone")
        return True


def packaged_agent() -> Path:
    """The agent for this machine, as it is installed with this package."""
    machine = native_machine()
    name = f"sandlot-agent-{_AGENT_ARCHITECTURES.get(machine, machine)}"
    return Path(str(files("sandlot.providers.link").joinpath("bin", name)))


def _setup(environment: Environment, image: PreparedImage, uid: int) -> dict[str, Any]:
    return {
        "uid": uid,
        "gid": uid,
        "user": image.user,
        # Not the image's: the root file system is read-only, and a home must be writable.
        "home": WORKSPACE_LINK,
        "workspace": WORKSPACE_LINK,
        # gVisor's kernel ends the whole sandbox when memory runs out, so there the agent watches.
        "memory_bytes": environment.limits.memory_bytes if environment.tier is Tier.RUNSC else 0,
        "run_dir": RUN_TARGET,
    }


def _found(container: dict[str, Any]) -> FoundSandbox:
    labels = container["Labels"]
    return FoundSandbox(
        id=labels[LABEL_SANDBOX],
        state=container["State"],
        environment=labels.get(LABEL_ENVIRONMENT, ""),
        tier=Tier(labels.get(LABEL_TIER, Tier.RUNC)),
        spec_hash=labels.get(LABEL_SPEC, ""),
        created_at=float(container["Created"]),
        labels={
            name.removeprefix(LABEL_CALLER): value
            for name, value in labels.items()
            if name.startswith(LABEL_CALLER)
        },
    )


def _how_it_ended(state: dict[str, Any]) -> str:
    if state.get("OOMKilled"):
        return "the sandbox's container ran out of memory"
    return f"the sandbox's container is {state['Status']}, exit code {state.get('ExitCode')}"


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Cleaning up is not cut short by a second cancellation, and does not hide the error that led to it."""
    with contextlib.suppress(SandlotError):
        await uncut(work)
