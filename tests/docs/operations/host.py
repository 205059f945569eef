"""A machine of one's own, as the pages for operators know it: its blocks run as they stand, in one bash.

What this machine cannot be asked for has a stand-in. ``sudo`` runs the command, ``systemctl`` starts and stops the
processes of the test, and folders and names such as ``/etc/sandlot`` and ``worker-a`` are the test's own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.test_tutorial import ROOT, Block, blocks
from tests.faults.rig import ServerProcess

BLOCK_WITHIN_S = 150.0
# Where deploy/README.md installs it. Here it is the one of the tests.
INSTALLED = "/opt/sandlot/bin/sandlot"
SUDO = '#!/bin/bash\nexec "$@"\n'
# Asks the test, and exits as systemctl would.
SYSTEMCTL = f"""#!{sys.executable} -IB
import socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect(__file__ + ".socket")
asked.sendall(" ".join(sys.argv[1:]).encode() + b"\\n")
answer = asked.makefile().read()
sys.exit(answer.strip() != "done" and f"systemctl: {{answer}}")
"""


@dataclass
class Host:
    """``units``: what systemd would start; those of several machines, one after the other. ``names``: what a page
    says → what it is here.
    """

    folder: Path
    environ: dict[str, str]
    units: dict[str, Sequence[ServerProcess]]
    names: dict[str, str] = field(default_factory=dict)

    def here(self, text: str) -> str:
        for named in sorted(self.names, key=len, reverse=True):
            text = text.replace(named, self.names[named])
        return text.replace(INSTALLED, "sandlot")

    def program(self, name: str, script: str) -> Path:
        path = self.folder / "bin" / name
        path.write_text(script)
        path.chmod(0o755)
        return path

    async def run(self, block: Block | str) -> str:
        """What it prints. It must succeed: every command of it, as in one shell with ``set -e``."""
        text = self.here(block if isinstance(block, str) else block.text)
        running = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"set -eo pipefail\n{text}"),
            cwd=self.folder,
            env=self.environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(BLOCK_WITHIN_S):
                printed, errors = await running.communicate()
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
        assert running.returncode == 0, f"{text}\nprinted\n{printed.decode()}{errors.decode()}"
        return printed.decode()

    async def _systemctl(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        words = (await reader.readline()).decode().strip()
        action, _, unit = words.partition(" ")
        try:
            assert action in ("start", "stop", "restart"), action
            for server in self.units[unit]:
                if action != "start" and server.process is not None:
                    await server.terminate()
                if action != "stop":
                    await server.start()
            writer.write(b"done\n")
        except Exception as error:  # the command fails, and says why
            writer.write(f"{error!r}\n".encode())
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def host(environ: Mapping[str, str], **units: Sequence[ServerProcess]) -> AsyncIterator[Host]:
    """``environ``: what the operator's shell has beside the machine's own variables."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-host-"))
    (folder / "bin").mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    path = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = Host(
        folder,
        {**inherited, **environ, "PATH": path, "HOME": str(folder)},
        {name.replace("_", "-"): servers for name, servers in units.items()},
    )
    here.program("sudo", SUDO)
    socket = here.program("systemctl", SYSTEMCTL).with_name("systemctl.socket")
    server = await asyncio.start_unix_server(here._systemctl, socket)
    try:
        yield here
    finally:
        server.close()
        await server.wait_closed()
        shutil.rmtree(folder)


def section(page: str, heading: str) -> list[Block]:
    """The blocks below a heading of a page in docs/."""
    text = (ROOT / "docs" / page).read_text()
    wanted = [part for part in text.split("\n## ") if part.partition("\n")[0] == heading]
    assert len(wanted) == 1, f"{page} has {len(wanted)} sections {heading}"
    part = wanted[0]
    return [block for block in blocks(ROOT / "docs" / page) if block.text in part]
