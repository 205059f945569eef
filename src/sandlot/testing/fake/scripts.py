"""Scripted commands: the replies that a test sets, and a record of the execs that ran."""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sandlot.domain.execution import ExecRequest
from sandlot.testing.fake.code.cells import CellScripts
from sandlot.testing.fake.commands import COMMANDS
from sandlot.testing.fake.execs import FakeExec
from sandlot.testing.fake.shell import Process, Program


@dataclass(frozen=True, slots=True)
class Reply:
    """What a scripted command prints and how it ends. ``oom`` and ``disk_full`` set the verdict."""

    stdout: str | bytes = ""
    stderr: str | bytes = ""
    exit_code: int = 0
    delay_s: float = 0.0
    oom: bool = False
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a handler receives: a command's words, folder, variables and whole stdin."""

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
        """The command line, or the code of a cell."""
        return self.request.text if self.request.argv is None else shlex.join(self.request.argv)


@dataclass(frozen=True, slots=True)
class _Rule:
    text: str
    words: tuple[str, ...]
    handler: Handler


class Scripts:
    """Rules by command, newest first.

    A rule matches a command whose words begin with the rule's words, anywhere in a shell's text. It
    also matches a command text that equals the rule's text. So a test can script text that the
    fake's shell cannot parse.
    """

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self.cells = CellScripts()

    def add(self, command: str, handler: Handler) -> None:
        try:
            words = tuple(shlex.split(command))
        except ValueError:
            words = ()  # unclosed quotes: the rule matches only as a whole text
        self._rules.insert(0, _Rule(command.strip(), words, handler))

    def programs(self, running: FakeExec) -> Programs:
        return Programs(self._rules, running)


class Programs:
    """The programs that one exec can run: scripted replies first, then the fake's own commands."""

    def __init__(self, rules: Sequence[_Rule], running: FakeExec) -> None:
        self._rules = rules
        self._exec = running

    def find(self, words: Sequence[str]) -> Program | None:
        for rule in self._rules:
            if rule.words and tuple(words[: len(rule.words)]) == rule.words:
                return self._as_program(rule.handler)
        return COMMANDS.get(words[0])

    def find_exact(self, command: str) -> Program | None:
        for rule in self._rules:
            if rule.text == command.strip():
                return self._as_program(rule.handler)
        return None

    def _as_program(self, handler: Handler) -> Program:
        async def program(process: Process) -> int:
            stdin = bytearray()
            if self._exec.request.pty is None:
                while piece := await process.streams.stdin.read():
                    stdin += piece
            invocation = Invocation(process.words, process.state.cwd, process.variables, bytes(stdin))
            answer = handler(invocation)
            reply = await answer if inspect.isawaitable(answer) else answer
            await asyncio.sleep(reply.delay_s)
            await process.streams.stdout.write(_encode(reply.stdout))
            await process.streams.stderr.write(_encode(reply.stderr))
            self._exec.oom, self._exec.disk_full = reply.oom, reply.disk_full
            return reply.exit_code

        return program


def _encode(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
