"""A scripted agent: speaks real frames over the link's real socket, and does only what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandlot.providers.link.handshake import PROTOCOL, Role, agent_proof, worker_proof
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.sandbox_agent import SandboxAgent
from sandlot.wire import frames
from sandlot.wire.frames import Frame, FrameDecoder, Kind

SECRET = bytes(range(32))
SETUP = {"uid": 1000, "gid": 1000, "workspace": "/workspace"}
EXIT = {
    "event": "exit",
    "code": 0,
    "signal": 0,
    "reason": "exited",
    "error": "",
    "truncated": False,
    "output_bytes": 3,
    "duration_ms": 1.5,
    "user_ms": 1,
    "system_ms": 0.25,
    "peak_memory_bytes": 4096,
    "oom": False,
    "disk_full": False,
    "shell_ended": False,
}


class Peer:
    """One connection of the scripted agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    @classmethod
    async def dial(cls, path: Path) -> Peer:
        return cls(*await asyncio.open_unix_connection(path))

    async def hello(self, *, role: str = "core", known: bool = False, **changes: Any) -> dict[str, Any]:
        """Says HELLO and returns the WELCOME (or REFUSE)."""
        self.nonce = secrets.token_bytes(32)
        body = {
            "protocol": list(PROTOCOL),
            "agent": "0.1.0",
            "role": role,
            "boot": "ab" * 16,
            "nonce": self.nonce.hex(),
            "known": known,
        }
        self.role = Role(role) if role in list(Role) else Role.CORE
        self.json(Kind.HELLO, 0, {**body, **changes})
        frame = await self.frame()
        return {"kind": frame.kind, **json.loads(frame.body)}

    def ready(self, welcome: dict[str, Any], secret: bytes = SECRET) -> None:
        proof = agent_proof(secret, bytes.fromhex(welcome["nonce"]), welcome["epoch"], self.role)
        self.json(Kind.READY, 0, {"proof": proof.hex()})

    async def shake_hands(self, *, role: str = "core", known: bool = True, **changes: Any) -> Peer:
        welcome = await self.hello(role=role, known=known, **changes)
        assert welcome["kind"] is Kind.WELCOME, welcome
        if known:
            assert welcome["proof"] == worker_proof(SECRET, self.nonce, welcome["epoch"], self.role).hex()
        self.ready(welcome)
        return self

    def raw(self, data: bytes) -> None:
        self._writer.write(data)

    def json(self, kind: Kind, stream: int, body: dict[str, Any]) -> None:
        self.raw(frames.encode(kind, stream, frames.encode_object(body)))

    def message(self, stream: int, body: dict[str, Any]) -> None:
        self.json(Kind.MESSAGE, stream, body)

    def data(self, stream: int, data: bytes, *, channel: int = 0, offset: int = 0) -> None:
        self.raw(frames.encode_data(stream, channel, offset, data))

    def end(self, stream: int) -> None:
        self.raw(frames.encode_end(stream))

    def answer(self, stream: int, body: dict[str, Any]) -> None:
        self.message(stream, body)
        self.end(stream)

    def reset(self, stream: int, code: str) -> None:
        self.json(Kind.RESET, stream, {"code": code, "message": f"said {code}"})

    async def drain(self) -> None:
        await self._writer.drain()

    async def frame(self) -> Frame:
        while not self._frames:
            data = await self._reader.read(65_536)
            if not data:
                raise EOFError
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def request(self) -> tuple[int, dict[str, Any]]:
        """The next OPEN; everything before it (END, CREDIT, RESET of other streams) is passed over."""
        parts = b""
        while True:
            frame = await self.frame()
            if frame.kind is Kind.PART:
                parts += frame.body
            elif frame.kind is Kind.OPEN:
                return frame.stream, json.loads(parts + frame.body)

    async def until(self, kind: Kind) -> Frame:
        while True:
            frame = await self.frame()
            if frame.kind is kind:
                return frame

    async def eof(self) -> None:
        """Returns when the worker has hung up."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await self.frame()

    def close(self) -> None:
        self._writer.transport.abort()

    async def closed(self) -> None:
        self.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Scene:
    """A link, its client, and the scripted agent's connections."""

    def __init__(self, folder: Path, *, first_contact: bool = False) -> None:
        self.folder = folder
        self.link = AgentLink(folder, secret=SECRET, epoch=7, setup=SETUP, first_contact=first_contact)
        self.agent = SandboxAgent(self.link)
        self.peers: list[Peer] = []
        self._serving: list[asyncio.Task[None]] = []

    async def dial(self) -> Peer:
        peer = await Peer.dial(self.folder / "agent.sock")
        self.peers.append(peer)
        return peer

    async def core(self, **changes: Any) -> Peer:
        """``changes``: to the agent's HELLO."""
        peer = await (await self.dial()).shake_hands(known=not self.link.first_contact, **changes)
        await self.link.wait_ready()
        return peer

    async def files(self, core: Peer) -> Peer:
        """Serves one files.open."""
        return await self._helper(core, "files")

    async def net(self, core: Peer) -> Peer:
        """Serves one net.open."""
        return await self._helper(core, "net")

    async def _helper(self, core: Peer, role: str) -> Peer:
        stream, request = await core.request()
        assert request == {"op": f"{role}.open"}
        peer = await (await self.dial()).shake_hands(role=role)
        core.answer(stream, {})
        return peer

    def script(self, steps: Awaitable[None]) -> asyncio.Task[None]:
        """Runs the agent's side beside the test; its failure fails the test."""
        task = asyncio.ensure_future(steps)
        self._serving.append(task)
        return task

    async def close(self) -> None:
        """Returns when both sides of every connection are closed, so that no test leaves one to the next."""
        for task in self._serving:
            if task.done():
                task.result()
            else:
                task.cancel()
        await self.link.close()
        for peer in self.peers:
            await asyncio.wait_for(peer.eof(), 5)
            await peer.closed()


@pytest.fixture
async def make_scene(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Scene]]]:
    scenes: list[Scene] = []

    async def make(**options: Any) -> Scene:
        scene = Scene(tmp_path / f"link{len(scenes)}", **options)
        scenes.append(scene)
        await scene.link.open()
        return scene

    yield make
    for scene in scenes:
        await scene.close()


@pytest.fixture
async def scene(make_scene: Callable[..., Awaitable[Scene]]) -> Scene:
    return await make_scene()


@pytest.fixture
def exit_event() -> dict[str, Any]:
    return dict(EXIT)
