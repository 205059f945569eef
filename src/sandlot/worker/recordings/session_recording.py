"""``SessionRecording``: what is recorded of one live session, before it is written.

Several readers may bring the same output: the call that waits for a command, clients that read its events,
and a reader of our own. Each byte is recorded once, by its offset, when the first of them brings it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.domain.execution import Channel, ExecEvent, ExecRequest, Exited, Output, PtySize, Started
from sandlot.domain.history.masking import secrets_in
from sandlot.domain.recordings.cast import NOT_SHOWN, Cast, shown_command
from sandlot.worker.recordings.files import CastFile, Name, Step, full
from sandlot.worker.recordings.options import RecordingOptions

# Output within so many seconds becomes one event, as long as it has no more bytes. An eye sees no difference.
TOGETHER_S: Final = 0.02
TOGETHER_BYTES: Final = 32 * 1024
# What a step takes in memory beside its output.
STEP_BYTES: Final = 500


@dataclass(slots=True)
class _OutputStep:
    at: float
    exec_id: str
    channel: Channel
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    def takes(self, at: float, exec_id: str, output: Output) -> bool:
        return (
            self.exec_id == exec_id
            and self.channel is output.channel
            and at - self.at <= TOGETHER_S
            and self.size + len(output.data) <= TOGETHER_BYTES
        )

    def add(self, data: bytes) -> None:
        self.pieces.append(data)
        self.size += len(data)

    def __call__(self, cast: Cast) -> bytes:
        return cast.output(self.at, self.exec_id, self.channel, b"".join(self.pieces))


class SessionRecording:
    """``changed`` is called with the number of bytes that were added to what waits. ``stopped``: why nothing
    more is recorded, if so. ``file`` is for the writer's thread.
    """

    def __init__(
        self,
        name: Name,
        env: Mapping[str, str],
        file: CastFile,
        options: RecordingOptions,
        changed: Callable[[SessionRecording, int], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.file = file
        self.stopped: str | None = None
        self._env = env
        self._options = options
        self._changed = changed
        self._clock = clock
        self._offsets: dict[str, int] = {}  # of each running command: what comes next
        self._taken = 0  # bytes of output
        self._steps: list[Step] = []

    def take(self) -> list[Step]:
        """What waits to be written."""
        steps, self._steps = self._steps, []
        return steps

    # --- commands -----------------------------------------------------------------------------

    def on_start(self, request: ExecRequest) -> Callable[[Started], None]:
        """What to call once the agent has started the command."""

        def started(event: Started) -> None:
            # The agent never runs an id twice. Asked for the same command again, it shows the first one.
            if not event.existing and self.stopped is None:
                self._offsets[request.exec_id] = 0
                self._add(self._started_step(request))

        return started

    def _started_step(self, request: ExecRequest) -> Step:
        at = self._clock()

        def step(cast: Cast) -> bytes:
            secrets = secrets_in(self._options.secrets, self._env.values(), request.env.values())
            hidden = self._options.commands == "hashed"
            shown = NOT_SHOWN if hidden else shown_command(request, secrets)
            return cast.started(at, request, shown, secrets)

        return step

    def next_offset(self, exec_id: str) -> int | None:
        """The first byte of the command's output that is not recorded. None if it is not recorded at all."""
        return None if self.stopped is not None else self._offsets.get(exec_id)

    def output(self, exec_id: str, output: Output, *, from_start: bool) -> None:
        """``from_start``: the reader has read all that the agent has of it. A jump is a gap then; otherwise
        another reader brings the bytes before it.
        """
        expected = self.next_offset(exec_id)
        end = output.offset + len(output.data)
        if expected is None or end <= expected or (output.offset > expected and not from_start):
            return
        if output.offset > expected:
            missing, at = output.offset - expected, self._clock()
            self._add(lambda cast: cast.gap(at, exec_id, missing))
            expected = output.offset
        self._offsets[exec_id] = end
        self._taken += end - expected
        if self._taken > self._options.max_session_bytes:
            self.stop(full(self._options.max_session_bytes))
            return
        data = output.data[expected - output.offset :]
        at = self._clock()
        last = self._steps[-1] if self._steps else None
        if isinstance(last, _OutputStep) and last.takes(at, exec_id, output):
            last.add(data)
            self._changed(self, len(data))
        else:
            step = _OutputStep(at, exec_id, output.channel)
            step.add(data)
            self._add(step, len(data))

    def seen(self, exec_id: str, event: ExecEvent) -> None:
        """A client has read this event: it is recorded too, so that no client sees more than its recording.

        If the client has not read all output before the end, our own reader brings the end.
        """
        if isinstance(event, Output):
            self.output(exec_id, event, from_start=False)
        elif isinstance(event, Exited):
            expected = self.next_offset(exec_id)
            if expected is not None and expected >= event.output_bytes:
                self.ended(exec_id, event)

    def ended(self, exec_id: str, exited: Exited) -> None:
        if self._offsets.pop(exec_id, None) is not None:
            at = self._clock()
            self._add(lambda cast: cast.ended(at, exec_id, exited))

    def all_unseen(self, reason: str) -> None:
        """The session has no sandbox any more, so that no end can be seen."""
        for exec_id in list(self._offsets):
            self.unseen(exec_id, reason)

    def unseen(self, exec_id: str, reason: str) -> None:
        if self._offsets.pop(exec_id, None) is not None:
            at = self._clock()
            self._add(lambda cast: cast.unseen(at, exec_id, reason))

    def resized(self, exec_id: str, size: PtySize) -> None:
        if exec_id in self._offsets:
            at = self._clock()
            self._add(lambda cast: cast.resized(at, size))

    # --- the recording itself -----------------------------------------------------------------

    def note(self, text: str) -> None:
        at = self._clock()
        self._add(lambda cast: cast.note(at, text))

    def stop(self, reason: str) -> None:
        """Record nothing more. The commands go on."""
        if self.stopped is None:
            self.stopped, at = reason, self._clock()
            self._steps.append(lambda cast: cast.note(at, reason, visible=True))
            self._changed(self, STEP_BYTES)

    def _add(self, step: Step, size: int = 0) -> None:
        if self.stopped is None:
            self._steps.append(step)
            self._changed(self, STEP_BYTES + size)
