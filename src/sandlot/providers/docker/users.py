"""A user for each sandbox, so that no limit which the kernel counts per user is shared between two of them.

Pipes, inotify instances, message queues, POSIX timers and descriptors in flight are counted per user on the
whole machine. With one user for all, a sandbox could use up its neighbours' share, and the host's first
human account, which often has the same number, could signal its processes. So each sandbox has a user and a
group of its own, out of a range that nobody else uses.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest

# The number under which images know the sandbox's user; in a sandbox it has the sandbox's own.
IMAGE_UID: Final = 1000
_LARGEST_UID: Final = 2**31 - 1  # above it some programs read a number as negative


@dataclass(frozen=True, slots=True)
class UserRange:
    """``first`` to ``last``, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.last <= _LARGEST_UID:
            raise InvalidRequest(f"users {self} are outside 1-{_LARGEST_UID}")

    def __contains__(self, uid: int) -> bool:
        return self.first <= uid <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def overlaps(self, other: UserRange) -> bool:
        return self.first <= other.last and other.first <= self.last

    @classmethod
    def parse(cls, text: str) -> UserRange:
        first, dash, last = text.partition("-")
        if not (dash and first.strip().isascii() and first.strip().isdigit() and last.strip().isdigit()):
            raise InvalidRequest(f"{text!r} is not a range of users such as {DEFAULT_USERS}")
        return cls(int(first), int(last))

    def choose(self, taken: Collection[int]) -> int:
        """A number that is not taken, at random: another worker here may choose from the same range."""
        if self.last - self.first + 1 <= len(taken):
            free = set(range(self.first, self.last + 1)) - set(taken)
            if not free:
                raise InvalidRequest(f"every user in {self} is taken; give the sandboxes a larger range")
            return min(free)
        while True:
            uid = self.first + secrets.randbelow(self.last - self.first + 1)
            if uid not in taken:
                return uid


# Above what systemd gives to containers (up to 1879048191) and below what programs read as negative.
DEFAULT_USERS: Final = UserRange(0x70000000, _LARGEST_UID)
# Which nspawn and others give out, as systemd documents it.
SYSTEMD_CONTAINERS: Final = UserRange(524_288, 1_879_048_191)
# In a user namespace a container has 65,536 numbers, and the engine maps them to others on the host.
NAMESPACED_USERS: Final = UserRange(20_000, 60_000)


def remapped(info: Mapping[str, Any]) -> bool:
    """Whether the engine, by what it says of itself, maps the users of containers to others of the host."""
    options = info.get("SecurityOptions") or []
    return any(option in ("name=userns", "name=rootless") for option in options)


def taken_by(users: UserRange, etc: Path = Path("/etc")) -> str | None:
    """Who else on this machine has some of these users."""
    for name in ("subuid", "subgid"):
        for owner, *numbers in _fields(etc / name):
            if len(numbers) == 2 and all(number.isdigit() for number in numbers):
                first, count = map(int, numbers)
                if count and users.first <= first + count - 1 and first <= users.last:
                    return f"{etc / name} ({owner})"
    for owner, _, number, *_ in _fields(etc / "passwd"):
        if number.isdigit() and int(number) in users:
            return f"{etc / 'passwd'} ({owner})"
    return (
        f"systemd's range for containers ({SYSTEMD_CONTAINERS})"
        if users.overlaps(SYSTEMD_CONTAINERS)
        else None
    )


def _fields(file: Path) -> list[list[str]]:
    try:
        return [fields for line in file.read_text().splitlines() if len(fields := line.split(":")) >= 3]
    except OSError:
        return []


def accounts_for(content: bytes, uid: int) -> bytes:
    """/etc/passwd or /etc/group of an image, with the sandbox's own number in the place of the image's."""
    lines = [_renumbered(line, uid) for line in content.split(b"\n")]
    return b"\n".join(lines)


def _renumbered(line: bytes, uid: int) -> bytes:
    fields = line.split(b":")
    # name:password:uid:gid:text:home:shell in the one, name:password:gid:members in the other.
    for place in (2, 3) if len(fields) == 7 else (2,):
        if place < len(fields) and fields[place] == str(IMAGE_UID).encode():
            fields[place] = str(uid).encode()
    return b":".join(fields)
