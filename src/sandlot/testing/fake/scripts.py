"""What a test says its commands do: replies by command, and a record of what was run."""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sandlot.domain.execution import ExecRequest
from sandlot.testing.fake.commands import COMMANDS
from sandlot.testing.fake.execs import FakeExec
from sandlot.testing.fake.shell import Process, Program


@dataclass(frozen=True, slots=True)
class Reply:
    """What a scripted command prints and how it ends; ``oom`` and ``disk_full`` give it that verdict."""

    stdout: str | bytes = ""
    stderr: str | bytes = ""
    exit_code: int = 0
    delay_s: float = 0.0
    oom: bool = False
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a handler is told: the command's words, its surroundings, and its whole stdin."""

    words: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    stdin: bytes


Handler = Callable[[Invocation], Reply | Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Call:
    """One exec that was started."""

    session_id: str
    request: ExecRequest

    @property
    def command(self) -> str:
        return self.request.command if self.request.argv is None else shlex.join(self.request.argv)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Rule:
    text: str
    words: tuple[str, ...]
    handler: Handler


class Scripts:
    """Rules by command, the newest first. A rule is met by a command whose words begin with the rule's, anywhere in
    a shell's text, and by a command text that equals the rule's: so that what the fake's shell cannot read can be
    scripted as a whole."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def add(self, command: str, handler: Handler) -> None:
        try:
            words = tuple(shlex.split(command))
        except ValueError:
            words = ()  # quotes that do not close: met as a whole text only
        self._rules.insert(0, _Rule(command.strip(), words, handler))

    def programs(self, running: FakeExec) -> Programs:
        return Programs(self._rules, running)


class Programs:
    """What can be run by one exec: scripted replies before the fake's own commands."""

    def __init__(self, rules: Sequence[_Rule], running: FakeExec) -> None:
        self._rules = rules
        self._exec = running

    def find(self, words: Sequence[str]) -> Program | None:
        for rule in self._rules:
            if rule.words and tuple(words[: len(rule.words)]) == rule.words:
                return self._scripted(rule.handler)
        return COMMANDS.get(words[0])

    def find_whole(self, command: str) -> Program | None:
        for rule in self._rules:
            if rule.text == command.strip():
                return self._scripted(rule.handler)
        return None

    def _scripted(self, handler: Handler) -> Program:
        async def program(process: Process) -> int:
            stdin = bytearray()
            if self._exec.request.pty is None:
                while piece := await process.streams.stdin.read():
                    stdin += piece
            invocation = Invocation(process.words, process.state.cwd, process.variables, bytes(stdin))
            answer = handler(invocation)
            reply = await answer if inspect.isawaitable(answer) else answer
            await asyncio.sleep(reply.delay_s)
            await process.streams.stdout.write(_bytes(reply.stdout))
            await process.streams.stderr.write(_bytes(reply.stderr))
            self._exec.oom, self._exec.disk_full = reply.oom, reply.disk_full
            return reply.exit_code

        return program


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
