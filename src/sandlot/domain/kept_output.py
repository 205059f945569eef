"""Keeps the beginning and the end of a command's output within a limit.

The first bytes stay. The newest bytes push out older ones between them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import compress
from typing import Final

BLOCK_BYTES: Final = 64 * 1024
# A byte's mark names its channel, with the same numbers as in the agent's frames.
STDOUT: Final = 1
STDERR: Final = 2
# If runs of one channel's bytes are shorter than this on average, bytes are selected one by one.
RUN_BYTES: Final = 32
# Translation tables, one per channel: the channel's mark becomes 1, every other value 0.
_SELECTORS: Final = {mark: bytes(value == mark for value in range(256)) for mark in (STDOUT, STDERR)}


@dataclass(frozen=True, slots=True)
class Omitted:
    """Bytes that are missing in an output.

    at: the position in the kept output before which they are missing; its length if they are missing at the
        end.
    bytes: how many.
    """

    at: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The bytes of an output between the offsets ``start`` and ``end``, which were not kept."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class HeadAndTail:
    """The kept output: two runs of bytes, with bytes missing between or after them, if any are.

    The marks name the channel of each byte. They are empty if there is only one channel.
    """

    head: bytes
    tail: bytes
    head_marks: bytes
    tail_marks: bytes
    joined: bool  # nothing is missing between head and tail

    def of(self, mark: int) -> HeadAndTail:
        """The bytes of one channel."""
        return HeadAndTail(
            _select(self.head, self.head_marks, mark),
            _select(self.tail, self.tail_marks, mark),
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
    """Holds at most ``keep_bytes`` of output plus one block.

    Once there are two channels, it holds as many marks as well.
    """

    def __init__(self, keep_bytes: int, offset: int) -> None:
        self._start = self._next = offset
        self._head_room = keep_bytes - keep_bytes // 2
        self._head, self._head_marks = bytearray(), bytearray()
        self._tail, self._tail_marks = _TailBuffer(keep_bytes // 2), _TailBuffer(keep_bytes // 2)
        self._jumped = False  # after a jump nothing is added to the head, even if it has room
        self._mark: int | None = None  # the first channel seen
        self._marking = False
        self.jumps = 0

    @property
    def size(self) -> int:
        """How many bytes this holds, marks included."""
        return (len(self._head) + len(self._tail)) * (2 if self._marking else 1)

    @property
    def end_offset(self) -> int:
        """The offset after the last byte that arrived."""
        return self._next

    @property
    def mark(self) -> int | None:
        """The only channel seen so far; None if there were two, or none."""
        return None if self._marking else self._mark

    def add(self, offset: int, data: bytes, mark: int) -> None:
        if not data:
            return
        if offset > self._next:
            # Head and tail have no gaps of their own, so that all missing bytes are in one place.
            self.jumps += 1
            self._jumped = True
            self._tail.clear()
            self._tail_marks.clear()
        self._next = offset + len(data)
        self._note_channel(mark)
        room = 0 if self._jumped else self._head_room - len(self._head)
        self._head += data[:room]
        self._tail.add(data[room:])
        if self._marking:
            marks = bytes((mark,)) * len(data)
            self._head_marks += marks[:room]
            self._tail_marks.add(marks[room:])

    def _note_channel(self, mark: int) -> None:
        """Start to keep marks once a second channel appears. All bytes so far are of the first."""
        if self._mark is None:
            self._mark = mark
        if not self._marking and mark != self._mark:
            self._marking = True
            first = bytes((self._mark,))
            self._head_marks += first * len(self._head)
            while left := len(self._tail) - len(self._tail_marks):
                self._tail_marks.add(first * min(BLOCK_BYTES, left))

    def take(self, gap: Gap) -> HeadAndTail:
        """Return the kept output and empty this object. Call it once, at the end.

        ``gap``: the bytes that the exec did not keep. This reader may have received some of them;
        they are left out, so that all readers get the same result.
        """
        head, head_marks = bytes(self._head), bytes(self._head_marks)
        tail, tail_marks = self._tail.take(), self._tail_marks.take()
        self._head, self._head_marks = bytearray(), bytearray()
        tail_start = self._next - len(tail)
        joined = tail_start <= self._start + len(head)
        if gap.end > gap.start:
            first, last = (max(0, offset - self._start) for offset in (gap.start, gap.end))
            # Cut the gap out of the tail too. Tail bytes before the gap go to the head if the two
            # are joined.
            begin, end = (max(0, offset - tail_start) for offset in (gap.start, gap.end))
            begin = begin if joined else 0
            head, tail = head[:first] + tail[:begin], head[last:] + tail[end:]
            head_marks, tail_marks = (
                head_marks[:first] + tail_marks[:begin],
                head_marks[last:] + tail_marks[end:],
            )
            joined = False
        return HeadAndTail(head, tail, head_marks, tail_marks, joined=joined or not tail)


class _TailBuffer:
    """Keeps the last bytes that were added. They are stored in blocks, so that bytes which arrive
    one by one take no more memory than their number.
    """

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


def _select(data: bytes, marks: bytes, mark: int) -> bytes:
    """The bytes with this mark, copied run by run if runs are long, else byte by byte.

    A run costs many times as much as a byte, and the command decides how many runs there are.
    """
    wanted, other = bytes((mark,)), bytes((STDOUT + STDERR - mark,))
    if marks.count(wanted + other) > len(marks) // RUN_BYTES:
        return bytes(compress(data, marks.translate(_SELECTORS[mark])))
    kept, at = bytearray(), 0
    while (begin := marks.find(wanted, at)) >= 0:
        at = marks.find(other, begin)
        if at < 0:
            at = len(marks)
        kept += data[begin:at]
    return bytes(kept)
