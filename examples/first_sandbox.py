"""The README's first sandbox, as a program."""

import asyncio
import tempfile
from pathlib import Path

from sandlot.domain.environment import Environment
from sandlot.domain.execution import ExecRequest
from sandlot.domain.ids import new_sandbox_id
from sandlot.providers.base import SandboxSpec
from sandlot.providers.docker import DockerProvider


async def main(data_dir: Path) -> None:
    provider = DockerProvider(owner="example", data_dir=data_dir)
    spec = SandboxSpec(id=new_sandbox_id(), environment=Environment(name="base", image="sandlot/base"))
    sandbox = await provider.create(spec)
    try:
        await sandbox.files.write("hello.py", b"print(6 * 7)")
        print((await sandbox.run(ExecRequest(command="python hello.py"))).stdout.decode(), end="")

        await sandbox.run(ExecRequest(command="cd /tmp && export NAME=Ada", shell="main"))
        print(
            (await sandbox.run(ExecRequest(command='echo "$NAME in $PWD"', shell="main"))).stdout.decode(),
            end="",
        )

        result = await sandbox.run(ExecRequest(command="sleep 60", timeout_s=1))
        print(result.verdict)
    finally:
        await provider.destroy(spec.id)
        await provider.close()


with tempfile.TemporaryDirectory(prefix="sandlot-") as folder:
    asyncio.run(main(Path(folder)))
