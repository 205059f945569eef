"""A real server as a process of its own, which tests may kill, stop and start again, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from sandlot import AsyncClient, AsyncSession
from sandlot.domain.errors import SandlotError
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.recovery import LIVE_STATES
from sandlot.testing.directory_suite.redis_server import free_port
from sandlot.testing.eventually import eventually
from tests.faults.invariants import Footprint, told, unforeseen

HERE = Path(__file__).parent
SERVE = [sys.executable, "-m", "sandlot", "serve"]
# Nobody measures these: under load the engine has taken over a minute for one removal.
READY_WITHIN_S = 60.0
ENDED_WITHIN_S = 60.0
SETTLED_WITHIN_S = 90.0
CLEANED_WITHIN_S = 90.0


class ServerProcess:
    """``docker_host``: another engine than the machine's. ``through``: what the server takes for it.

    ``group``: the id of a group that only this process has, by which its packets can be told from others'.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = SERVE,
        api_key: str | None = None,
        group: int | None = None,
        docker_host: str | None = None,
        through: str | None = None,
        registry: Path | None = None,
        **settings: str,
    ) -> None:
        self.owner = f"test-{secrets.token_hex(4)}"
        self.data_dir = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = list(command)
        self.api_key = api_key
        self.group = group
        self.docker_host = docker_host
        self.log = self.data_dir / "server.log"
        self.storage_dir = Path(settings.get("storage_dir", self.data_dir / "none"))
        self.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("SANDLOT_", "DOCKER_"))
            },
            "SANDLOT_PORT": str(self.port),
            "SANDLOT_WORKER_ID": self.owner,
            "SANDLOT_DATA_DIR": str(self.data_dir),
            "SANDLOT_ORPHAN_GRACE_S": "2",
            "SANDLOT_DRAIN_TIMEOUT_S": "5",
            # More sandboxes than a small machine would be given: most of them do nothing.
            "SANDLOT_OVERCOMMIT_MEMORY": "100",
            "SANDLOT_OVERCOMMIT_CPUS": "1000",
            "SANDLOT_POOL_SIZE": "2",
            "SANDLOT_MIN_POOL_SIZE": "1",
            "SANDLOT_DOCKER_HOST": through or docker_host or "",
            **({"SANDLOT_REGISTRY_DIR": str(registry)} if registry else {}),
            **({"SANDLOT_API_KEY": api_key} if api_key else {}),
            **{f"SANDLOT_{name.upper()}": value for name, value in settings.items()},
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.baseline: Footprint | None = None

    async def start(self, command: list[str] | None = None, *, ready: bool = True) -> None:
        await self._launch(command or self.command)
        if ready:
            await self.wait_ready()
            self.baseline = Footprint.of(self.pid)

    async def _launch(self, command: list[str]) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                group=self.group,
            )

    async def wait_ready(self, seconds: float = READY_WITHIN_S) -> None:
        async with httpx.AsyncClient() as http:
            deadline = time.monotonic() + seconds
            while True:
                assert self.process is not None
                assert self.process.poll() is None, self.log.read_text()
                try:
                    answer = await http.get(f"{self.url}/ready")
                    if answer.status_code == 200 and answer.json().get("creates", True):
                        return
                except httpx.HTTPError:
                    pass
                assert time.monotonic() < deadline, self.log.read_text()
                await asyncio.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        await self.wait_ended()

    async def terminate(self, seconds: float = ENDED_WITHIN_S) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return await self.wait_ended(seconds)

    async def wait_ended(self, seconds: float = ENDED_WITHIN_S) -> int:
        process = self.process
        assert process is not None
        code = await asyncio.to_thread(process.wait, seconds)
        self.process = None
        return code

    async def mend(self) -> None:
        """After a test that failed half way, too: it runs, and no sessions are left."""
        if self.process is None or self.process.poll() is not None:
            await self.start()
        else:
            os.kill(self.pid, signal.SIGCONT)
        async with self.client() as client:
            async for session in client.sessions():
                await session.delete()

    def client(self) -> AsyncClient:
        """In a hurry: a refusal is what these tests look for."""
        return AsyncClient(self.url, api_key=self.api_key, patience_s=0)

    def containers(self) -> dict[str, str]:
        """Sandbox id → state, as the engine itself lists them."""
        rows = self.docker(
            "ps", "-a", "--filter", f"label=sandlot.owner={self.owner}", "--format", "{{json .}}"
        )
        found = {}
        for line in rows.splitlines():
            row = json.loads(line)
            labels = dict(part.partition("=")[::2] for part in row["Labels"].split(","))
            found[labels["sandlot.sandbox"]] = row["State"]
        return found

    def container_of(self, session: AsyncSession) -> str:
        return self.docker(
            "ps", "-aq", "--filter", f"label=sandlot.sandbox={session.info.sandbox_id}"
        ).strip()

    def init_of(self, session: AsyncSession) -> int:
        """The host's number of its sandbox's PID 1."""
        return int(self.docker("inspect", "-f", "{{.State.Pid}}", self.container_of(session)))

    def docker(self, *arguments: str) -> str:
        client = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
        host = ["-H", self.docker_host] if self.docker_host else []
        return subprocess.run(
            [client, *host, *arguments], capture_output=True, text=True, check=True, timeout=120
        ).stdout

    def workspaces(self) -> set[str]:
        """The ids of the workspaces that its store has."""
        root = self.storage_dir / self.owner
        if root.exists():
            attached = (root / "sandboxes").iterdir()
            detached = {folder.name for folder in (root / "workspaces").iterdir()}
            return detached | {os.readlink(sandbox / "has") for sandbox in attached}
        return {first_workspace_of(sandbox_id) for sandbox_id in self._volumes()}

    def _volumes(self) -> set[str]:
        rows = self.docker(
            "volume", "ls", "--filter", f"label=sandlot.owner={self.owner}", "--format", "{{.Name}}"
        )
        return {name.removeprefix("sandlot-") for name in rows.split()}

    def folders(self) -> set[str]:
        """The sandboxes' own folders, by the part of the id that names them."""
        return {folder.name for folder in (self.data_dir / "docker" / "s").iterdir()}

    async def settle(self, seconds: float = SETTLED_WITHIN_S) -> None:
        """I1, I5, I9: what the engine has, what the worker knows and what the API lists become the same, and the
        server holds no more than it did; nothing that it could not foresee has happened to it.
        """

        async def same() -> bool:
            async with self.client() as client:
                sessions = [session async for session in client.sessions()]
                health = await client.health()
            threads = [session.thread for session in sessions if session.thread is not None]
            assert len(threads) == len(set(threads)), "two sessions of one thread"
            expected = {session.info.sandbox_id for session in sessions if session.info.sandbox_id}
            warm = sum(pool.ready for pool in health.pools.values())
            making = sum(pool.making + pool.waiting for pool in health.pools.values())
            found, stored, folders = self.containers(), self.workspaces(), self.folders()
            warm_ones = {first_workspace_of(sandbox) for sandbox in found.keys() - expected}
            kept = warm_ones | {session.info.workspace.id for session in sessions if session.info.workspace}
            footprint = Footprint.of(self.pid)
            self._seen = (
                f"sessions {expected}, warm {warm}, making {making}, engine {found}, "
                f"workspaces {stored}, kept {kept}, folders {folders}, {footprint} after {self.baseline}"
            )
            return (
                making == 0
                and expected <= found.keys()
                and len(found) == len(expected) + warm
                and all(state in LIVE_STATES for state in found.values())
                and stored == kept
                and folders == {sandbox_id.removeprefix("sbx_")[:16] for sandbox_id in found}
                and (self.baseline is None or footprint.is_near(self.baseline, len(found)))
            )

        await eventually(same, seconds, lambda: self._seen)
        log = self.log.read_text()
        assert not unforeseen(log), log

    async def clean(self) -> None:
        if self.process is not None and self.process.poll() is None:
            await self.kill()
        # Again and again: what the server asked of the engine may still come to be.
        deadline = time.monotonic() + CLEANED_WITHIN_S
        ours = ("-q", "--filter", f"label=sandlot.owner={self.owner}")
        while True:
            containers = self.docker("ps", "-a", *ours).split()
            volumes = self.docker("volume", "ls", *ours).split()
            if not containers and not volumes:
                break
            assert time.monotonic() < deadline, f"{containers} and {volumes} cannot be removed"
            with contextlib.suppress(subprocess.CalledProcessError):
                if containers:
                    self.docker("rm", "-f", *containers)
                if volumes:
                    self.docker("volume", "rm", "-f", *volumes)
                continue
            await asyncio.sleep(0.2)  # somebody else is removing it
        shutil.rmtree(self.data_dir, ignore_errors=True)


async def running(session: AsyncSession, count: int) -> None:
    """Until so many commands run in it."""

    async def begun() -> bool:
        return sum(summary.running for summary in await session.execs()) == count

    await eventually(begun, 30, f"{count} run")


async def created_at_last(
    client: AsyncClient, seconds: float = 90.0, *, certain: bool = True, **options: Any
) -> AsyncSession:
    """Asked for again and again, as a client does that is told to; every refusal must tell. ``certain``: it must
    also know that nothing was made, as it cannot where an open connection was cut. Patient: an engine that was away
    for long is asked again by the server after 15 s, and then after 31.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await client.create(**options)
        except SandlotError as error:
            refusal = told(error)
        assert not (certain and refusal.may_have_executed)
        assert time.monotonic() < deadline, f"not within {seconds} s: {refusal.message}"
        await asyncio.sleep(0.3)
