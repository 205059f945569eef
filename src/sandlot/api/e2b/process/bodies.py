"""The messages of ``process.Process``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sandlot.api.e2b.bodies import Body

Pid = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Cells = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Size(Body, frozen=True):
    cols: Cells = 0
    rows: Cells = 0


class Terminal(Body, frozen=True):
    size: Size = Size()


class ProcessConfig(Body, frozen=True):
    cmd: str = ""
    args: Annotated[list[str], msgspec.Meta(max_length=4096)] = msgspec.field(default_factory=list)
    envs: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None


class Start(Body, frozen=True):
    process: ProcessConfig
    pty: Terminal | None = None
    tag: str | None = None
    stdin: bool | None = None


class Selector(Body, frozen=True):
    """Which process: by its number, or by a tag."""

    pid: Pid | None = None
    tag: str | None = None


class Selected(Body, frozen=True):
    """A request about one process."""

    process: Selector


class Input(Body, frozen=True):
    stdin: bytes | None = None
    pty: bytes | None = None

    @property
    def data(self) -> bytes:
        return self.stdin or self.pty or b""


class SendInput(Body, frozen=True):
    process: Selector
    input: Input


class SendSignal(Body, frozen=True):
    process: Selector
    signal: str | int = 0


class Update(Body, frozen=True):
    process: Selector
    pty: Terminal | None = None


class StreamStart(Body, frozen=True):
    process: Selector


class StreamData(Body, frozen=True):
    input: Input


class Nothing(Body, frozen=True):
    pass


class StreamInput(Body, frozen=True):
    start: StreamStart | None = None
    data: StreamData | None = None
    keepalive: Nothing | None = None
