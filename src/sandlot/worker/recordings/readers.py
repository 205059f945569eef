"""Reads commands for their recordings, where nobody waits for their end.

A reader of our own brings each piece when it was written, however slowly the client reads, and goes on when
the client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Final

from sandlot.domain.errors import NotFound, SandboxLost, SandlotError
from sandlot.domain.execution import Exited, Output
from sandlot.providers.base import Sandbox
from sandlot.worker.recordings.files import Name
from sandlot.worker.recordings.session_recording import SessionRecording

# Seconds between two tries to reach the sandbox.
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0


class Readers:
    def __init__(self) -> None:
        self._tasks: dict[tuple[Name, str], asyncio.Task[None]] = {}

    def read(self, recording: SessionRecording, sandbox: Sandbox, exec_id: str) -> None:
        """Read a command to its end, if it is recorded and is not read already."""
        name = (recording.name, exec_id)
        if recording.next_offset(exec_id) is None or name in self._tasks:
            return
        task = asyncio.create_task(_read(recording, sandbox, exec_id), name=f"record {exec_id}")
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    @contextmanager
    def read_if_left(
        self, recording: SessionRecording | None, sandbox: Sandbox, exec_id: str
    ) -> Iterator[None]:
        """A context for waiting for a command's end. If it is left earlier, the command is read here."""
        try:
            yield
        except BaseException:
            if recording is not None:
                self.read(recording, sandbox, exec_id)
            raise

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _read(recording: SessionRecording, sandbox: Sandbox, exec_id: str) -> None:
    pause_s = FIRST_PAUSE_S
    while (offset := recording.next_offset(exec_id)) is not None:
        try:
            await _read_from(recording, sandbox, exec_id, offset)
        except NotFound:
            recording.unseen(exec_id, "the sandbox no longer knows the command")
        except SandboxLost:
            return  # its loss is recorded, and with it all its commands
        except SandlotError:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _read_from(recording: SessionRecording, sandbox: Sandbox, exec_id: str, offset: int) -> None:
    execution = await sandbox.attach(exec_id, offset=offset)
    try:
        async with aclosing(execution.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Output):
                    recording.output(exec_id, event, from_start=True)
                elif isinstance(event, Exited):
                    recording.ended(exec_id, event)
                if recording.next_offset(exec_id) is None:
                    return
    finally:
        await execution.detach()
