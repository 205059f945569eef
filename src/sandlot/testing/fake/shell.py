"""The fake's shell: runs what ``syntax`` has parsed, on a tree in memory, with ``commands``.

``testing/README.md`` says what it knows, what it refuses, and why it is there.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from sandlot.domain.errors import FileProblem
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.hosts import Target
from sandlot.testing.fake.pipes import BrokenPipe, Buffer, Bytes, Pipe, Sink, Source
from sandlot.testing.fake.syntax import (
    Pipeline,
    Redirect,
    Script,
    Simple,
    Subshell,
    Substitution,
    SyntaxProblem,
    Text,
    Variable,
    Word,
    parse,
)
from sandlot.testing.fake.tree import Folder, Node, NullDevice, Tree, absolute, error_text

SIGPIPE_CODE = 141
_GLOB = re.compile(r"[*?\[]")
_pids = itertools.count(100)


def new_pid() -> int:
    return next(_pids)


class UnknownGlob(Exception):
    """A pattern that files match: bash would put their names in its place."""


class ExitShell(Exception):
    """Raised by ``exit``: ends the shell that runs it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class State:
    """The state that a shell keeps from one command to the next."""

    cwd: str
    variables: dict[str, str]
    exported: set[str]
    status: int = 0
    pid: int = field(default_factory=new_pid)

    def copy(self) -> State:
        return replace(self, variables=dict(self.variables), exported=set(self.exported))


@dataclass(frozen=True)
class Streams:
    stdin: Source
    stdout: Sink
    stderr: Sink


@dataclass
class Process:
    """One running simple command: its words, its shell, its streams and its variables."""

    words: tuple[str, ...]
    shell: Shell
    streams: Streams
    variables: dict[str, str]

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[1:]

    @property
    def state(self) -> State:
        return self.shell.state

    @property
    def tree(self) -> Tree:
        return self.shell.machine.tree

    def path(self, text: str) -> str:
        return absolute(text, self.state.cwd)

    async def out(self, text: str) -> None:
        await self.streams.stdout.write(text.encode("utf-8", "surrogateescape"))

    async def refuse(self, known: str) -> int:
        """Says what this command knows, where the real one knows more."""
        return await self.fail(f"the fake's {self.words[0]} knows {known}", 2)

    async def fail(self, text: str, code: int = 1) -> int:
        """Prints an error after the program's name, and returns the exit code."""
        await self.streams.stderr.write(f"{self.words[0]}: {text}\n".encode("utf-8", "surrogateescape"))
        return code


Program = Callable[[Process], Awaitable[int]]


@dataclass(frozen=True)
class Machine:
    """What a shell runs on.

    ``programs`` finds a simple command's program. ``terminal`` returns the terminal's size, or
    None. ``connect`` says why a connection is denied, or None.
    """

    tree: Tree
    programs: Callable[[Sequence[str]], Program | None]
    terminal: Callable[[], tuple[int, int] | None]
    connect: Callable[[Target], Denied | None]


class _FileSink:
    def __init__(self, tree: Tree, path: str, node: Node) -> None:
        self._tree, self._path, self._node = tree, path, node

    async def write(self, data: bytes) -> None:
        self._tree.append(self._path, self._node, data)
        await asyncio.sleep(0)


class Shell:
    def __init__(self, machine: Machine, state: State) -> None:
        self.machine = machine
        self.state = state

    async def run_text(self, text: str, streams: Streams) -> int:
        """Parses and runs a text. Raises ``ExitShell`` when the text runs ``exit``."""
        try:
            script = parse(text)
        except SyntaxProblem as error:
            await _print_error(streams, str(error))
            self.state.status = 2
            return 2
        return await self.run(script, streams)

    async def run(self, script: Script, streams: Streams) -> int:
        for connector, pipeline in script.steps:
            if (connector == "&&" and self.state.status) or (connector == "||" and not self.state.status):
                continue
            status = await self._run_pipeline(pipeline, streams)
            self.state.status = int(not status) if pipeline.negated else status
        return self.state.status

    async def run_words(self, words: tuple[str, ...], streams: Streams, extra: dict[str, str]) -> int:
        """Runs the words of a command without parsing them as shell text."""
        program = self.machine.programs(words)
        if program is None:
            return await self._report_missing(words[0], streams)
        return await self.run_program(program, words, streams, extra)

    async def run_program(
        self, program: Program, words: tuple[str, ...], streams: Streams, extra: dict[str, str] | None = None
    ) -> int:
        exported = {name: self.state.variables[name] for name in sorted(self.state.exported)}
        process = Process(words, self, streams, exported | (extra or {}))
        try:
            return await program(process)
        except FileProblem as error:
            return await process.fail(f"{error.path}: {error_text(error)}")
        except BrokenPipe:
            return SIGPIPE_CODE

    async def _report_missing(self, name: str, streams: Streams) -> int:
        if "/" not in name:
            await _print_error(streams, f"{name}: command not found")
            return 127
        exists = self.machine.tree.locate(absolute(name, self.state.cwd)).node is not None
        await _print_error(
            streams, f"{name}: {'Permission denied' if exists else 'No such file or directory'}"
        )
        return 126 if exists else 127

    # --- commands ---------------------------------------------------------------------------------

    async def _run_pipeline(self, pipeline: Pipeline, streams: Streams) -> int:
        if len(pipeline.commands) == 1:
            return await self.run_command(pipeline.commands[0], streams)
        source, tasks = streams.stdin, []
        async with asyncio.TaskGroup() as group:
            for command in pipeline.commands:
                pipe = Pipe() if command is not pipeline.commands[-1] else None
                command_streams = Streams(source, pipe or streams.stdout, streams.stderr)
                tasks.append(group.create_task(self._run_piped(command, command_streams, pipe)))
                source = pipe or source
        return tasks[-1].result()

    async def _run_piped(self, command: Simple | Subshell, streams: Streams, pipe: Pipe | None) -> int:
        try:
            return await self._run_in_subshell(command, streams)
        finally:
            if pipe is not None:
                pipe.close()
            if isinstance(streams.stdin, Pipe):
                streams.stdin.stop_reading()

    async def _run_in_subshell(self, command: Simple | Subshell, streams: Streams) -> int:
        """Runs a command in a subshell, so that its changes and its exit stay there."""
        try:
            return await Shell(self.machine, self.state.copy()).run_command(command, streams)
        except ExitShell as ended:
            return ended.code

    async def run_command(self, command: Simple | Subshell, streams: Streams) -> int:
        try:
            streams = await self._redirect(command.redirects, streams)
        except FileProblem as error:
            await _print_error(streams, f"{error.path}: {error_text(error)}")
            return 1
        if isinstance(command, Subshell):
            try:
                return await Shell(self.machine, self.state.copy()).run(command.script, streams)
            except ExitShell as ended:
                return ended.code
        assigned = {name: await self._expand_to_text(word, streams) for name, word in command.assignments}
        try:
            words = tuple(
                [field for word in command.words for field in await self._expand_to_fields(word, streams)]
            )
        except UnknownGlob as glob:
            await _print_error(
                streams, f"the fake's shell does not expand `{glob}': name the files, or quote it"
            )
            return 2
        if not words:
            self.state.variables.update(assigned)
            return 0
        return await self.run_words(words, streams, assigned)

    async def _redirect(self, redirects: tuple[Redirect, ...], streams: Streams) -> Streams:
        tree = self.machine.tree
        for redirect in redirects:
            target = await self._expand_to_text(redirect.target, streams)
            if redirect.operator == ">&":
                sink: Sink = streams.stderr if target == "2" else streams.stdout
            elif redirect.operator == "<":
                path = absolute(target, self.state.cwd)
                null = isinstance(tree.find(path), NullDevice)
                streams = replace(streams, stdin=Bytes(b"" if null else bytes(tree.content(path))))
                continue
            else:
                path = absolute(target, self.state.cwd)
                sink = _FileSink(tree, path, tree.open_file(path, truncate=redirect.operator == ">"))
            if redirect.descriptor == 2:
                streams = replace(streams, stderr=sink)
            else:
                streams = replace(streams, stdout=sink)
        return streams

    # --- words ------------------------------------------------------------------------------------

    async def _expand_to_fields(self, word: Word, streams: Streams) -> list[str]:
        """Expands a word into fields. Unquoted values are split at blanks.

        Raises ``UnknownGlob`` if bash would replace the word by names of files.
        """
        fields: list[str] = []
        current: str | None = None
        pattern = ""
        for index, part in enumerate(word):
            value = await self._expand_part(part, streams, first=index == 0)
            pattern += _GLOB.sub(r"[\g<0>]", value) if part.quoted else value
            if part.quoted or isinstance(part, Text):
                current = (current or "") + value
                continue
            pieces = value.split()
            if current is not None and value[:1].isspace():
                fields.append(current)
                current = None
            for number, piece in enumerate(pieces):
                if number:
                    fields.append(current or "")
                    current = None
                current = (current or "") + piece
            if pieces and value[-1:].isspace():
                fields.append(current or "")
                current = None
        for each in pattern.split():
            if _GLOB.search(each.replace("[*]", "").replace("[?]", "").replace("[[]", "")) and self._names(
                each
            ):
                raise UnknownGlob(each)
        return fields if current is None else [*fields, current]

    def _names(self, pattern: str) -> bool:
        """Whether files match. Without one, bash too takes the pattern as it is."""
        found: list[Node] = [self.machine.tree.find("/")]
        for part in absolute(pattern, self.state.cwd).strip("/").split("/"):
            found = [
                child
                for folder in found
                if isinstance(folder, Folder)
                for name, child in folder.children.items()
                if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            ]
        return bool(found)

    async def _expand_to_text(self, word: Word, streams: Streams) -> str:
        parts = [await self._expand_part(part, streams, first=not i) for i, part in enumerate(word)]
        return "".join(parts)

    async def _expand_part(
        self, part: Text | Variable | Substitution, streams: Streams, *, first: bool
    ) -> str:
        if isinstance(part, Text):
            if first and not part.quoted and part.value.split("/")[0] == "~":
                return self.state.variables.get("HOME", "") + part.value[1:]
            return part.value
        if isinstance(part, Variable):
            special = {"?": str(self.state.status), "$": str(self.state.pid), "#": "0", "0": "bash"}
            value = special.get(part.name) or self.state.variables.get(part.name, "")
            return value or (
                "" if part.default is None else await self._expand_to_text(part.default, streams)
            )
        buffer = Buffer()
        inner = Shell(self.machine, self.state.copy())
        try:
            self.state.status = await inner.run(part.script, replace(streams, stdout=buffer))
        except ExitShell as ended:
            self.state.status = ended.code
        return bytes(buffer.data).decode("utf-8", "surrogateescape").rstrip("\n")


async def _print_error(streams: Streams, text: str) -> None:
    await streams.stderr.write(f"bash: line 1: {text}\n".encode("utf-8", "surrogateescape"))
