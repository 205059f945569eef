"""Environments with a set-up script, on real sandboxes and btrfs: what it made is in every new session."""

from __future__ import annotations

import secrets
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from sandlot import AsyncClient, AsyncSession
from sandlot.config.registry.loading import load_registry
from sandlot.config.registry.recipes import RecipeDefaults
from sandlot.domain.errors import Unavailable
from sandlot.providers.docker.spec import container_name
from sandlot.testing.eventually import eventually
from sandlot.wiring import LocalWorker, local_service
from sandlot.worker.failpoints import Step
from tests.docker.conftest import docker
from tests.faults.rig import HERE as FAULTS
from tests.faults.rig import ServerProcess
from tests.network.conftest import OPEN, serve_folder
from tests.unit.network.rig import outside, resolving

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

PREPARED_S = 120.0
MEASURED = 20


def declare(registry: Path, name: str, setup: str = "", **more: str) -> None:
    """``more``: further keys of the environment's file."""
    lines = [f"name: {name}", "description: for a test", *(f"{key}: {value}" for key, value in more.items())]
    if setup:
        lines += ["setup: |", textwrap.indent(textwrap.dedent(setup), "  ")]
    folder = registry / "environments"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")


@asynccontextmanager
async def worker_with(registry: Path, btrfs: Path | None, data_dir: Path) -> AsyncIterator[LocalWorker]:
    storage = (
        {"workspace_store": "volume"} if btrfs is None else {"workspace_store": "btrfs", "storage_dir": btrfs}
    )
    worker = await local_service(
        worker_id=f"test-{secrets.token_hex(4)}",
        data_dir=data_dir,
        registry_dir=registry,
        overcommit_memory=100,
        overcommit_cpus=1000,
        pool_size=0,
        min_pool_size=0,
        **storage,
        **OPEN,
    )
    try:
        yield worker
    finally:
        await worker.close()


async def warm(worker: LocalWorker, name: str, count: int) -> None:
    await eventually(
        lambda: worker._environments.pools[name].ready == count,
        PREPARED_S,
        lambda: str(worker._environments.pools[name].stats()),
    )


def repository(folder: Path) -> None:
    """A Git repository that a web server for files can serve."""
    source, bare = folder / "source", folder / "served" / "repo.git"
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
    subprocess.run([*git, "init", "-q", str(source)], check=True)
    (source / "file").write_text("cloned\n")
    subprocess.run([*git, "-C", str(source), "add", "."], check=True)
    subprocess.run([*git, "-C", str(source), "commit", "-qm", "first"], check=True)
    subprocess.run([*git, "clone", "-q", "--bare", str(source), str(bare)], check=True)
    subprocess.run([*git, "-C", str(bare), "update-server-info"], check=True)


@pytest.mark.parametrize("tier", ["runc", "runsc"])
async def test_sessions_have_what_the_script_made(
    tier: str, btrfs: Path, short_tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, a=["127.0.0.1"])
    repository(tmp_path)
    async with outside(partial(serve_folder, tmp_path / "served")) as host:
        script = f"""
            git clone -q http://a.test:{host.port}/repo.git
            seq 1000 > numbers
            printf '#!/bin/sh\\necho a tool\\n' > tool && chmod 755 tool
            ln -s numbers link
            id -u > uid
        """
        network = f"['a.test:{host.port}']"
        declare(tmp_path, "warm", script, image="sandlot/base", tier=tier, network=network, pool="{size: 2}")
        async with worker_with(tmp_path, btrfs, short_tmp) as worker, AsyncClient(service=worker) as client:
            await warm(worker, "warm", 2)
            async with client.create("warm") as first, client.create("warm") as second:
                assert worker._environments.pools["warm"].stats().hits == 2
                seen = "cat repo/file; wc -l < link; ./tool; test $(cat uid) = 1000 && git -C repo status -s"
                result = await first.run(f"{seen}; echo mine > repo/file; rm numbers; touch new")
                assert result.stdout == "cloned\n1000\na tool\n", result
                result = await second.run(f"{seen}; ls")
                assert result.stdout == "cloned\n1000\na tool\nlink\nnumbers\nrepo\ntool\nuid\n", result
                # Another sandbox of a session has the session's files, not the script's.
                docker("rm", "-f", container_name(first.info.sandbox_id))
                await eventually(partial(is_lost, first), PREPARED_S)
                await first.recreate()
                assert (await first.run("cat repo/file; ls")).stdout == "mine\nlink\nnew\nrepo\ntool\nuid\n"
            assert len((await worker._provider.workspaces.list()).snapshots) == 1
            # A changed script: new sessions have its result, and the old one is deleted.
            declare(tmp_path, "warm", "echo changed > it", image="sandlot/base", tier=tier)
            await reloaded(worker, tmp_path)
            async with client.create("warm") as third:
                assert (await third.run("cat it; ls")).stdout == "changed\nit\n"
            assert len((await worker._provider.workspaces.list()).snapshots) == 1


async def is_lost(session: AsyncSession) -> bool:
    await session.refresh()
    return session.state == "lost"


async def reloaded(worker: LocalWorker, registry_dir: Path) -> None:
    registry = load_registry(registry_dir, defaults=RecipeDefaults())
    await worker.reload(registry.recipes, registry.catalogue, registry.policies)


async def test_a_failed_script_says_why(
    btrfs: Path, short_tmp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, b=["127.0.0.1"])
    declare(tmp_path, "denied", "curl -sSf http://b.test:81/x\necho never", image="sandlot/base")
    declare(tmp_path, "slow", "echo begun\nsleep 60", image="sandlot/slim", setup_timeout_s="1")
    declare(tmp_path, "piped", "false | true\necho never", image="sandlot/slim")
    async with worker_with(tmp_path, btrfs, short_tmp) as worker, AsyncClient(service=worker) as client:
        for name, wanted in {
            "denied": r"(?s)network denied b\.test:81\. .*ends with:\ncurl: .*403",
            "slow": r"was not done after 1 s\. .*ends with:\nbegun$",
            "piped": r"failed with exit code 1\. .*printed nothing\.$",
        }.items():
            with pytest.raises(Unavailable, match=wanted) as raised:
                await client.create(name)
            assert raised.value.details["reason"] == "environment_broken"
            assert "never" not in raised.value.message

        async def nothing_is_stored() -> bool:
            stored = await worker._provider.workspaces.list()
            return not stored.workspaces and not stored.snapshots

        await eventually(nothing_is_stored, 20, "what the failed scripts left is removed")


async def test_on_volumes_each_workspace_gets_a_copy(short_tmp: Path, tmp_path: Path) -> None:
    declare(tmp_path, "warm", "echo warm >content; chmod 600 content", image="sandlot/slim")
    async with worker_with(tmp_path, None, short_tmp) as worker, AsyncClient(service=worker) as client:
        look = "stat -c '%a %u' content; id -u; cat content; echo own >>content"
        for _ in range(2):
            async with await client.create("warm") as session:
                mode, owner, user, content = (await session.run(look, check=True)).output.split()[:4]
                assert (mode, owner, content) == ("600", user, "warm")
        stored = await worker._provider.workspaces.list()
        assert len(stored.snapshots) == 1


@pytest.mark.slow
@pytest.mark.alone
async def test_a_warm_create_takes_as_long_as_without(btrfs: Path, short_tmp: Path, tmp_path: Path) -> None:
    script = "mkdir data && for i in $(seq 2000); do echo $i > data/$i; done; head -c 200M /dev/zero > large"
    for name, setup in {"plain": "", "warm": script}.items():
        declare(tmp_path, name, setup, image="sandlot/slim", pool="{size: 4, min: 4, max: 4}")
    took: dict[str, list[float]] = {"plain": [], "warm": []}
    made: dict[str, float] = {}
    async with worker_with(tmp_path, btrfs, short_tmp) as worker, AsyncClient(service=worker) as client:
        for number in range(MEASURED):
            # In turns, and never while either pool still makes a sandbox: that would be measured too.
            for name in ("plain", "warm") if number % 2 else ("warm", "plain"):
                times = took[name]
                for each in took:
                    await warm(worker, each, 4)
                began = time.perf_counter()
                session = await client.create(name)
                times.append(time.perf_counter() - began)
                await session.delete()
        for name in took:
            await warm(worker, name, 4)
            made[name] = worker._environments.pools[name]._refill_s
            assert worker._environments.pools[name].stats().hits == MEASURED
    plain, seeded = (statistics.median(times) * 1000 for times in took.values())
    print(
        f"\nwarm create: {plain:.2f} ms without, {seeded:.2f} ms with a seed of 200 MB in 2,001 files: "
        f"{seeded / plain:.2f} times; making one: {made['plain'] * 1000:.0f} and {made['warm'] * 1000:.0f} ms"
    )


@pytest.mark.slow
@pytest.mark.parametrize("step", [Step.SANDBOX_MADE, Step.SEED_STORED, Step.SEED_RECORDED, Step.SEED_CLONED])
async def test_killed_at_every_step(step: Step, btrfs: Path, tmp_path: Path) -> None:
    declare(tmp_path, "base", "echo made > it", image="sandlot/slim", pool="{size: 1}")
    server = ServerProcess(registry=tmp_path, workspace_store="btrfs", storage_dir=str(btrfs))
    try:
        await server.start([sys.executable, str(FAULTS / "dying_server.py"), step.value], ready=False)
        assert await server.wait_ended() == -signal.SIGKILL
        await server.start()
        async with server.client() as client:
            async with client.create() as session:
                assert (await session.run("cat it; ls")).stdout == "made\nit\n"
            await server.settle()
        snapshots = btrfs / server.owner / "snapshots"
        await eventually(
            lambda: len(list(snapshots.iterdir())) == 1, 60, lambda: str(list(snapshots.iterdir()))
        )
        await server.terminate()
    finally:
        await server.clean()
