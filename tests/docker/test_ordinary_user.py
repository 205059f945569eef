"""A worker that is an ordinary user in the docker group, with the very uid that commands have inside.

It keeps workspaces in Docker volumes and says why, although the machine has a btrfs that root would use.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandlot
from sandlot.domain.capacity.limits import MIB
from tests.btrfs_storage import btrfs_storage

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

WORKER = """
import asyncio, os, sys
from pathlib import Path
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.provider import DockerProvider
from sandlot.providers.docker.workspaces.choosing import choose_store

async def main(data_dir, tier, storage):
    assert os.getuid() == 1000
    owner, data_dir, engine = "test-ordinary", Path(data_dir), Engine()
    store = await choose_store(
        "auto", Path(storage), engine=engine, owner=owner, quota_bytes=2**30, data_dir=data_dir
    )
    assert store.abilities.kind == "volume", store.abilities
    assert not store.abilities.quotas, store.abilities
    assert "does not run as root" in store.abilities.note, store.abilities
    provider = DockerProvider(owner=owner, data_dir=data_dir, engine=engine, workspaces=store)
    environment = Environment(name="test", image="sandlot/base:latest", tier=Tier(tier))
    spec = SandboxSpec(id=new_sandbox_id(), environment=environment)
    try:
        sandbox = await provider.create(spec)
        result = await sandbox.run(ExecRequest(command="id -un; python3 -c \\"import socket; socket.socket(1).connect('/.sandlot/link/host/agent.sock')\\""))
        assert result.stdout == b"sandboxuser\\n", result
        assert b"PermissionError" in result.stderr, result
        await sandbox.files.write("f", b"written")
        owner = await sandbox.run(ExecRequest(command="stat -c %u f; id -u"))
        assert len(set(owner.stdout.split())) == 1 and owner.stdout.split()[0] != b"1000", owner
        assert await sandbox.files.read_bytes("f") == b"written"
        assert (await sandbox.run(ExecRequest(command="kill -9 1"))).exit_code != 0
        print("fine")
    finally:
        await provider.destroy(spec.id)
        await provider.close()

asyncio.run(main(*sys.argv[1:]))
"""


def python_for_everyone() -> str:
    """This interpreter if others may run it, else the system's of the same version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for program in (os.path.realpath(sys.executable), f"/usr/bin/python{version}"):
        path = Path(program)
        if path.exists() and all(parent.stat().st_mode & 0o001 for parent in path.parents):
            return program
    pytest.skip(f"no Python {version} here that an ordinary user may run")


@pytest.fixture
def storage() -> Iterator[Path]:
    with btrfs_storage(512 * MIB) as folder:
        yield folder


async def python(
    home: Path, *arguments: str | Path, uid: int = 1000, **settings: str
) -> tuple[int, str, str]:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    source = str(Path(sandlot.__file__).parent.parent)
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([source, *packages])}
    program = await asyncio.create_subprocess_exec(
        python_for_everyone(), *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        user=uid, group=uid, extra_groups=[os.stat("/var/run/docker.sock").st_gid],
        env={**path, "HOME": str(home), **settings},
        cwd="/",
    )  # fmt: skip
    out, err = await asyncio.wait_for(program.communicate(), 90)
    assert program.returncode is not None
    return program.returncode, out.decode(), err.decode()  # the log is in its output


@pytest.mark.parametrize("tier", ["runc", "runsc"])
async def test_ordinary_user(short_tmp: Path, tier: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user; the rest of the suite shows this user already")
    os.chown(short_tmp, 1000, 1000)
    code, out, err = await python(short_tmp, "-c", WORKER, short_tmp / "d", tier, short_tmp / "storage")
    assert (code, out.splitlines()[-1:]) == (0, ["fine"]), err


async def test_doctor_says_what_an_ordinary_user_gets(short_tmp: Path, storage: Path) -> None:
    os.chown(short_tmp, 1000, 1000)
    found = {}
    for uid in (0, 1000):
        settings = {"SANDLOT_STORAGE_DIR": str(storage), "SANDLOT_DATA_DIR": str(short_tmp / "data")}
        _, out, err = await python(short_tmp, "-m", "sandlot", "doctor", "--json", uid=uid, **settings)
        assert out, err
        (found[uid],) = [check for check in json.loads(out)["checks"] if check["name"] == "workspaces"]
    assert found[0]["message"].startswith(f"{storage} is on btrfs"), "root would use it"
    assert found[1000]["status"] == "warn"
    assert "in Docker volumes" in found[1000]["message"]
    assert "the worker does not run as root" in found[1000]["message"]
    assert "Run the worker as root" in found[1000]["fix"]
