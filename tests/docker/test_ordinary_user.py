"""A worker that is an ordinary user in the docker group, with the very uid that commands have inside."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import sandlot

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

WORKER = """
import asyncio, os, sys
from pathlib import Path
from sandlot.domain.environment import Environment, Tier
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker.provider import DockerProvider

async def main(data_dir, tier):
    assert os.getuid() == 1000
    provider = DockerProvider(owner="test-ordinary", data_dir=Path(data_dir))
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


@pytest.mark.parametrize("tier", ["runc", "runsc"])
async def test_ordinary_user(short_tmp: Path, tier: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user; the rest of the suite shows this user already")
    os.chown(short_tmp, 1000, 1000)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    source = str(Path(sandlot.__file__).parent.parent)
    worker = await asyncio.create_subprocess_exec(
        python_for_everyone(), "-c", WORKER, str(short_tmp / "d"), tier,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        user=1000, group=1000, extra_groups=[os.stat("/var/run/docker.sock").st_gid],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join([source, *packages]), "HOME": str(short_tmp)},
        cwd="/",
    )  # fmt: skip
    out, err = await asyncio.wait_for(worker.communicate(), 90)
    assert (worker.returncode, out) == (0, b"fine\n"), err.decode()
