"""Both ends of a command's output, within a bound: the first bytes stay, the last push older ones out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import compress
from typing import Final

BLOCK_BYTES: Final = 64 * 1024
STDOUT: Final = 1  # the mark of a byte, as the agent's frames have it
STDERR: Final = 2
RUN_BYTES: Final = 32  # of one channel, on average: where they are shorter, bytes are sorted one by one
# For each channel: its mark becomes 1, every other one 0.
_IS: Final = {mark: bytes(value == mark for value in range(256)) for mark in (STDOUT, STDERR)}


@dataclass(frozen=True, slots=True)
class Omitted:
    """``bytes`` of a stream are missing before its byte ``at``; where ``at`` is its length, after its end."""

    at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes of an output from the offset ``start`` to ``end``, which were not kept."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ends:
    """What is left at last: two runs of bytes, with something missing between them or after them.

    ``marks`` names the channel of each byte where there is more than one; else it is empty.
    """

    head: bytes
    tail: bytes
    head_marks: bytes
    tail_marks: bytes
    joined: bool  # nothing is missing between the two

    def of(self, mark: int) -> Ends:
        """Those of one channel."""
        return Ends(
            _marked(self.head, self.head_marks, mark),
            _marked(self.tail, self.tail_marks, mark),
            b"",
            b"",
            self.joined,
        )

    @property
    def whole(self) -> bytes:
        return self.head + self.tail if self.tail else self.head

    def omitted(self, missing: int) -> Omitted | None:
        at = len(self.head) + (len(self.tail) if self.joined else 0)
        return Omitted(at, missing) if missing > 0 else None


class KeptOutput:
    """At most ``keep_bytes`` are held, and as many marks once there are two channels, and a block of each."""

    def __init__(self, keep_bytes: int, offset: int) -> None:
        self._start = self._next = offset
        self._head_room = keep_bytes - keep_bytes // 2
        self._head, self._head_marks = bytearray(), bytearray()
        self._tail, self._tail_marks = _Newest(keep_bytes // 2), _Newest(keep_bytes // 2)
        self._jumped = False  # the head has ended, full or not
        self._mark: int | None = None  # of the one channel that there was until now
        self._marking = False
        self.jumps = 0

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return (len(self._head) + len(self._tail)) * (2 if self._marking else 1)

    @property
    def reached(self) -> int:
        """The offset after the last byte that came."""
        return self._next

    @property
    def mark(self) -> int | None:
        """The one channel that there was; None if there were more, or none."""
        return None if self._marking else self._mark

    def add(self, offset: int, data: bytes, mark: int) -> None:
        if not data:
            return
        if offset > self._next:
            # Each end is without gaps, so that what is missing has one place.
            self.jumps += 1
            self._jumped = True
            self._tail.clear()
            self._tail_marks.clear()
        self._next = offset + len(data)
        self._note(mark)
        room = 0 if self._jumped else self._head_room - len(self._head)
        self._head += data[:room]
        self._tail.add(data[room:])
        if self._marking:
            marks = bytes((mark,)) * len(data)
            self._head_marks += marks[:room]
            self._tail_marks.add(marks[room:])

    def _note(self, mark: int) -> None:
        if self._mark is None:
            self._mark = mark
        if not self._marking and mark != self._mark:
            self._marking = True
            former = bytes((self._mark,))
            self._head_marks += former * len(self._head)
            while left := len(self._tail) - len(self._tail_marks):
                self._tail_marks.add(former * min(BLOCK_BYTES, left))

    def ends(self, gap: Gap) -> Ends:
        """Once, at the end. ``gap``: what the exec did not keep; this reader may have seen some of it."""
        head, head_marks = bytes(self._head), bytes(self._head_marks)
        tail, tail_marks = self._tail.take(), self._tail_marks.take()
        self._head, self._head_marks = bytearray(), bytearray()
        tail_start = self._next - len(tail)
        joined = tail_start <= self._start + len(head)
        if gap.end > gap.start:
            first, last = (max(0, offset - self._start) for offset in (gap.start, gap.end))
            # Of the tail, as well; what is before the gap there belongs to the head, if it follows on it.
            begin, end = (max(0, offset - tail_start) for offset in (gap.start, gap.end))
            begin = begin if joined else 0
            head, tail = head[:first] + tail[:begin], head[last:] + tail[end:]
            head_marks, tail_marks = (
                head_marks[:first] + tail_marks[:begin],
                head_marks[last:] + tail_marks[end:],
            )
            joined = False
        return Ends(head, tail, head_marks, tail_marks, joined=joined or not tail)


class _Newest:
    """The last bytes of what is added, in blocks: those that came singly cost what they weigh."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._blocks: deque[bytearray] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, data: bytes) -> None:
        data = data[max(0, len(data) - self._room) :]
        at = 0
        while at < len(data):
            if not self._blocks or len(self._blocks[-1]) >= BLOCK_BYTES:
                self._blocks.append(bytearray())
            piece = data[at : at + BLOCK_BYTES - len(self._blocks[-1])]
            self._blocks[-1] += piece
            at += len(piece)
        self._size += len(data)
        while (over := self._size - self._room) > 0:
            oldest = self._blocks[0]
            self._size -= min(over, len(oldest))
            if len(oldest) <= over:
                self._blocks.popleft()
            else:
                del oldest[:over]

    def clear(self) -> None:
        self._blocks.clear()
        self._size = 0

    def take(self) -> bytes:
        whole = b"".join(self._blocks)
        self.clear()
        return whole


def _marked(data: bytes, marks: bytes, mark: int) -> bytes:
    """The bytes with this mark: in runs where these are long, else one by one. A run costs many times as much
    as a byte, and whoever writes the output says how many there are.
    """
    wanted, other = bytes((mark,)), bytes((STDOUT + STDERR - mark,))
    if marks.count(wanted + other) > len(marks) // RUN_BYTES:
        return bytes(compress(data, marks.translate(_IS[mark])))
    kept, at = bytearray(), 0
    while (begin := marks.find(wanted, at)) >= 0:
        at = marks.find(other, begin)
        if at < 0:
            at = len(marks)
        kept += data[begin:at]
    return bytes(kept)
