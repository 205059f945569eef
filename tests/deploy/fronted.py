"""nginx with the project's own configuration, in its container, before coordinators that do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sandlot.testing.directory_suite.redis_server import free_port

ROOT = Path(__file__).parents[2]
DOCKER = "/usr/bin/docker" if os.path.exists("/usr/bin/docker") else "docker"
START_SECONDS = 90.0


def fleet_image(name: str) -> str:
    """What scripts/fleet-images calls it; made if it is missing."""
    command = [str(ROOT / "scripts/fleet-images"), name]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout.strip()


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def body(self) -> bytes:
        if "transfer-encoding" not in self.headers:
            return await self.reader.readexactly(int(self.headers.get("content-length", "0")))
        whole = b""
        while size := int(await self.reader.readline(), 16):
            whole += await self.reader.readexactly(size)
            await self.reader.readline()
        return whole

    def answer(self, body: bytes, *, status: str = "200 OK", kind: str = "application/json") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.writer.write(head.encode() + body)


Behaviour = Callable[[Request], Awaitable[None]]
# The name of a configuration file and its text; what it is instead.
Change = Callable[[str, str], str]


async def says_ok(request: Request) -> None:
    await request.body()
    request.answer(b"{}")


async def begins_and_dies(request: Request) -> None:
    """As a coordinator that is killed in the middle of a call: all was read, nothing is answered."""
    await request.body()


@dataclass
class Coordinator:
    """Speaks just enough HTTP, and no more to a connection than one answer."""

    behave: Behaviour = says_ok
    seen: list[Request] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = lines[0].split(" ")
            pairs = (line.split(": ", 1) for line in lines[1:] if line)
            headers = {name.lower(): value for name, value in pairs}
            request = Request(method, path, headers, reader, writer)
            self.seen.append(request)
            await self.behave(request)
            await writer.drain()
        writer.close()


@dataclass
class Front:
    url: str
    authority: Path
    coordinators: list[Coordinator]

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, verify=self.tls, trust_env=False, timeout=20)

    @property
    def seen(self) -> list[Request]:
        return [request for coordinator in self.coordinators for request in coordinator.seen]


def configuration(port: int, health_port: int, ports: list[int], *, patient: bool) -> str:
    """deploy/compose/nginx.conf with addresses of the test. ``patient``: no coordinator is ever left out."""
    text = (ROOT / "deploy/compose/nginx.conf").read_text()
    replaced = {"listen 8443": f"listen 127.0.0.1:{port}", "127.0.0.1:8081": f"127.0.0.1:{health_port}"}
    for number, coordinator_port in enumerate(ports, 1):
        replaced[f"coordinator{number}:8000"] = f"127.0.0.1:{coordinator_port}"
    if patient:
        replaced["max_fails=1"] = "max_fails=0"
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    return text


@asynccontextmanager
async def front(
    behaviours: list[Behaviour | None],
    *,
    patient: bool = True,
    change: Change | None = None,
    secrets: Path,
    image: str,
) -> AsyncIterator[Front]:
    """A behaviour for each of the two coordinators; None: nobody listens there. ``change``: of a file."""
    port, health_port, *ports = (free_port() for _ in range(2 + len(behaviours)))
    coordinators = [
        Coordinator(behave or says_ok, port=one) for behave, one in zip(behaviours, ports, strict=True)
    ]
    servers = [
        await asyncio.start_server(coordinator.serve, "127.0.0.1", coordinator.port)
        for coordinator, behave in zip(coordinators, behaviours, strict=True)
        if behave is not None
    ]
    with tempfile.TemporaryDirectory(prefix="sandlot-test-nginx-") as folder:
        files = {name: (ROOT / "deploy/nginx" / name).read_text() for name in ("http.conf", "server.conf")}
        files["nginx.conf"] = configuration(port, health_port, ports, patient=patient)
        for file, text in files.items():
            (Path(folder) / file).write_text(text if change is None else change(file, text))
        Path(folder).chmod(0o755)
        name = f"test-nginx-{port}"
        nginx = subprocess.Popen(
            [
                *(DOCKER, "run", "--rm", "--name", name, "--network", "host", "--user", "101:101"),
                *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
                f"--volume={folder}:/etc/nginx/sandlot:ro",
                *(
                    f"--volume={secrets}/{one}:/run/secrets/{one}:ro"
                    for one in ("tls-certificate", "tls-key")
                ),
                *("--entrypoint", "nginx", image, "-e", "stderr", "-c", "/etc/nginx/sandlot/nginx.conf"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            await _answers(f"http://127.0.0.1:{health_port}/", nginx)
            yield Front(f"https://localhost:{port}", secrets / "ca.pem", coordinators)
        finally:
            subprocess.run([DOCKER, "rm", "-f", name], capture_output=True, check=False)
            nginx.wait(90)
            for server in servers:
                server.close()


async def _answers(url: str, nginx: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            assert nginx.poll() is None, "nginx ended at once"
            assert time.monotonic() < deadline, "nginx does not answer"
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(url)).status_code == 204:
                    return
            await asyncio.sleep(0.05)
