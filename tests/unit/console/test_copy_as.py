"""What the console lets people copy does what its buttons do, on the command line and in Python."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from tests.unit.console.acting import (
    ACTIONS,
    CONTENT,
    KEY,
    LOCAL,
    Call,
    World,
    parse,
    words_in_fish,
    words_of,
    world_in,
)

from sandlot import AsyncSession
from sandlot.wire.key_bodies import CreateKeyBody

pytestmark = pytest.mark.slow
FOLDER = "/workspace/a folder"
PATH = f"{FOLDER}/it's.txt"
HOST = "api.example.com"
# How the page runs a command: it names it, and does not wait for its end.
OWN = {"exec_id", "background", "pty", "stdin"}
HOSTILE = (
    "it's",
    'say "hi"',
    "$(touch /tmp/pwned) `id`",
    "a;b && c | d > e",
    "back\\slash \\x41",
    "two\nlines\r\ttab",
    "\x1b[31mred\x1b[0m\x07",
    "right\u202eleft\u2066",
    "-x",
    "--help",
    "{curly} %s %(x)s",
    "ünï \U0001f600",
    "#no comment !!",
    "\u2028\x85",
    "x\\';id;#",
    "bell\x07\\';id;#",
    "=ls",
    "%self",
)


@dataclass
class Case:
    """``args``: makes what the action is about, and returns its arguments.

    ``terminal``: the line starts a program for a person's terminal, which is only parsed. ``reads``: what is
    asked for an action without a button, with ``{0}`` for the first argument.
    """

    args: Callable[[World], Awaitable[list[Any]]]
    reads: str = ""
    terminal: bool = False


@pytest_asyncio.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    (tmp_path / LOCAL).write_text(CONTENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SANDLOT_API_KEY", KEY)
    async with world_in(tmp_path) as world:
        yield world


async def _session(world: World) -> AsyncSession:
    session = await world.client.create("gvisor", record=True)
    await session.files.write(PATH, CONTENT)
    return session


async def _nothing(_: World) -> list[Any]:
    return []


async def _id(world: World) -> list[Any]:
    return [(await _session(world)).id]


async def _lost(world: World) -> list[Any]:
    session = await _session(world)
    world.service.lose(session.id)
    return [session.id]


async def _running(world: World) -> list[Any]:
    session = await _session(world)
    return [session.id, (await session.start("echo begun; sleep 600")).id]


async def _snapshot(world: World) -> list[Any]:
    session = await _session(world)
    return [session.id, (await session.workspace.snapshot("before")).id]


async def _two_snapshots(world: World) -> list[Any]:
    [session, before] = await _snapshot(world)
    after = await (await world.client.get(session)).workspace.snapshot("after")
    return [session, before, after.id]


async def _granted(world: World) -> list[Any]:
    session = await _session(world)
    await session.network.allow(HOST)
    return [session.id, HOST]


async def _exposed(world: World) -> list[Any]:
    session = await _session(world)
    await session.expose(8000)
    return [session.id, 8000]


async def _webhook(world: World) -> list[Any]:
    return [(await world.webhooks.create("http://127.0.0.1:1/events")).id]


async def _key(world: World) -> list[Any]:
    return [(await world.administrator.create_key(CreateKeyBody("of a program"))).key.id]


def _with(*more: Any, first: Callable[[World], Awaitable[list[Any]]] = _id) -> Callable[..., Any]:
    async def args(world: World) -> list[Any]:
        return [*await first(world), *more]

    return args


async def _snapshot_alone(world: World) -> list[Any]:
    return [(await _snapshot(world))[1]]


async def _fork(world: World) -> list[Any]:
    return [(await _snapshot(world))[1], "gvisor"]


LIMITS = {
    "sessions": 3,
    "cpus": None,
    "memory_mb": 2048,
    "execs": None,
    "creates_per_s": 0.5,
    "calls_per_s": None,
}
SCOPES = ["sessions:read", "exec"]
EVENTS = ["session.lost", "exec.ended"]
UPLOADED = {"file": LOCAL, "text": CONTENT}
CASES: dict[str, dict[str, Case]] = {
    "sessions": {
        "listSessions": Case(_nothing, "/v1/sessions"),
        "showSession": Case(_id, "/v1/sessions/{0}"),
        "createSession": Case(_with("gvisor", "a-thread", True, first=_nothing)),
        "recreateSession": Case(_lost),
        "hibernateSession": Case(_id),
        "deleteSession": Case(_id),
        "openTerminal": Case(_with("console-1"), terminal=True),
    },
    "execs": {
        "listCommands": Case(_id, "/v1/sessions/{0}/execs"),
        "runCommand": Case(_with("ls -la; echo 'it is' \"$HOME\"")),
        "readOutput": Case(_running, "/v1/sessions/{0}/execs"),
        "killCommand": Case(_running),
    },
    "files": {
        "listFiles": Case(_with(FOLDER), "/v1/sessions/{0}/files?path={1}"),
        "readText": Case(_with(PATH), "/v1/sessions/{0}/files/content?path={1}"),
        "downloadFile": Case(_with(PATH, "it's.txt")),
        "uploadFile": Case(_with(FOLDER, UPLOADED)),
        "saveFile": Case(_with(PATH, CONTENT)),
        "createFolder": Case(_with(f"{FOLDER}/new")),
        "removeEntry": Case(_with(FOLDER)),
    },
    "snapshots": {
        "listSnapshots": Case(_id, "/v1/snapshots?session={0}"),
        "takeSnapshot": Case(_with("before the change")),
        "compareSnapshot": Case(_two_snapshots, "/v1/snapshots/{1}/diff?to={2}"),
        "restoreSnapshot": Case(_snapshot),
        "forkSnapshot": Case(_fork),
        "deleteSnapshot": Case(_snapshot_alone),
    },
    "network": {
        "showNetwork": Case(_id, "/v1/sessions/{0}/network"),
        "allowHost": Case(_with(HOST)),
        "revokeHost": Case(_granted),
        "listPorts": Case(_id, "/v1/sessions/{0}/ports"),
        "exposePort": Case(_with(8000, True)),
        "unexposePort": Case(_exposed),
    },
    "history": {
        "watchServer": Case(_nothing, "/v1/health", terminal=True),
        "sessionHistory": Case(_id, "/v1/events?session={0}"),
        "threadHistory": Case(_with("a-thread", first=_nothing), "/v1/events?thread={0}"),
        "downloadRecording": Case(_with("a.cast"), "/v1/sessions/{0}/recording"),
    },
    "fleet": {
        "listWorkers": Case(_nothing, "/v1/fleet"),
        "listPlacedSessions": Case(_with("w1", "acme", first=_nothing), "/v1/fleet/sessions?tenant={1}"),
        "drainWorker": Case(_with("w1", first=_nothing)),
        "undrainWorker": Case(_with("w1", first=_nothing)),
    },
    "admin": {
        "listEnvironments": Case(_nothing, "/v1/catalogue"),
        "reloadEnvironments": Case(_nothing),
        "listKeys": Case(_nothing, "/v1/keys"),
        "createKey": Case(_with("a program", "acme", SCOPES, first=_nothing)),
        "revokeKey": Case(_key),
        "listTenants": Case(_nothing, "/v1/tenants"),
        "limitTenant": Case(_with("acme", LIMITS, first=_nothing)),
        "listWebhooks": Case(_nothing, "/v1/webhooks"),
        "createWebhook": Case(_with("http://127.0.0.1:1/events", EVENTS, first=_nothing)),
        "redeliverDeadLetters": Case(_webhook),
        "deleteWebhook": Case(_webhook),
    },
}
# Functions of the modules that are no actions.
OTHERS = {"newExecId"}


def test_each_module_has_cases() -> None:
    modules = {path.stem for path in ACTIONS.glob("*.ts")} - {"action", "words"}
    assert modules == CASES.keys()


@pytest.mark.parametrize("module", CASES)
async def test_what_is_copied_does_the_same(world: World, module: str) -> None:
    assert set(await world.functions(module)) - OTHERS == CASES[module].keys()
    for name, case in CASES[module].items():
        args = await case.args(world)
        form = await world.form(module, name, args)
        parse(form.cli)
        assert form.runs != bool(case.reads), name
        if case.reads:
            wanted = [_read(case.reads, args)]
        else:
            wanted = _comparable(await world.calls_of_button(module, name, args), args)
            assert wanted, name
        for kind in ("cli", "python"):
            args = await case.args(world)
            form = await world.form(module, name, args)
            if kind == "cli" and not case.terminal:
                made = await world.calls_of_line(form.cli)
            elif kind == "python" and form.python is not None:
                made = await world.calls_of_python(form.python)
            else:
                continue
            found = _comparable(made, args)
            for one in wanted:
                assert any(_covers(other, one) for other in found), (name, kind, one, found)


@dataclass(frozen=True)
class _Comparable:
    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]


def _covers(other: _Comparable, one: _Comparable) -> bool:
    """Whether it asks for the same: where, and at least what the page's own request says."""
    return (
        (other.method, other.path) == (one.method, one.path)
        and one.query.items() <= other.query.items()
        and all(other.body.get(field) == value for field, value in one.body.items())
    )


def _comparable(calls: list[Call], args: list[Any]) -> list[_Comparable]:
    """The changes, or else all calls; with the arguments' places instead of their values, which differ."""
    changes = [call for call in calls if call.changes]
    return [
        _Comparable(
            call.method,
            _placed(call.path, args),
            {name: _placed(value, args) for name, [value] in call.query.items() if value != "false"},
            {
                field: json.loads(_placed(json.dumps(value), args))
                for field, value in (call.body or {}).items()
                if field not in OWN and value not in (None, False)
            },
        )
        for call in changes or calls
    ]


def _placed(text: str, args: list[Any]) -> str:
    for index, arg in enumerate(args):
        if isinstance(arg, str) and arg:
            for form in (arg, quote(arg, safe=""), quote(arg)):
                text = re.sub(rf"(?<![\w]){re.escape(form)}(?![\w])", f"{{{index}}}", text)
    return text


def _read(pattern: str, args: list[Any]) -> _Comparable:
    path, _, query = pattern.partition("?")
    named = [pair.partition("=") for pair in query.split("&") if pair]
    return _Comparable("GET", path, {name: value for name, _, value in named}, {})


async def test_a_name_from_a_sandbox_stays_one_word(world: World) -> None:
    session = await world.client.create()
    for name in HOSTILE:
        path = f"/workspace/{name}"
        await session.files.write(path, CONTENT)
        form = await world.form("files", "readText", [session.id, path])
        for made in (await world.calls_of_line(form.cli), await world.calls_of_python(form.python or "")):
            [content] = [call for call in made if call.path.endswith("/content")]
            assert content.query["path"] == [path]
        for module, action, args in (
            ("execs", "runCommand", [session.id, name]),
            ("snapshots", "takeSnapshot", [session.id, name]),
            ("sessions", "createSession", ["", name, False]),
        ):
            form = await world.form(module, action, args)
            parse(form.cli)
            assert words_of(form.cli)[-1] == name, action
            if "$'" in form.cli:
                assert len(words_of(form.cli, "sh")) == len(words_of(form.cli)), action
            else:
                assert words_in_fish(form.cli) == words_of(form.cli), action
                # A bare word that begins so is another one in zsh or fish.
                assert f" {name}" not in form.cli or name[0] not in "=%", action
            assert name in _texts(form.python or ""), action
            # Nothing of it moves the cursor, ends a line or turns text around where it is pasted.
            assert form.cli.isprintable()
            assert all(line.isprintable() for line in (form.python or "").split("\n"))


async def test_a_name_leads_to_no_other_resource(world: World) -> None:
    for name in ("", ".", ".."):
        form = await world.attempt("snapshots", "deleteSnapshot", [name])
        assert form.failed is not None
        assert "not a valid id" in form.failed
    assert world.watched.calls == []


def _texts(python: str) -> set[Any]:
    return {node.value for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Constant)}
