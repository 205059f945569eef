"""Gives each sandbox its own user, so that sandboxes share no limits that are counted per user.

The kernel counts pipes, inotify instances, message queues, POSIX timers and descriptors in flight
per user, on the whole machine. If all sandboxes had one user, a sandbox could use up its
neighbours' share. The host's first human account, which often has the same uid, could signal a
sandbox's processes. So each sandbox has its own user and group, from a range that nothing else
uses.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandlot.domain.errors import InvalidRequest

# The uid of the sandbox's user in images. In a sandbox, that user gets the sandbox's own uid.
IMAGE_UID: Final = 1000
_LARGEST_UID: Final = 2**31 - 1  # some programs read a larger uid as negative


@dataclass(frozen=True, slots=True)
class UserRange:
    """A range of user ids, from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.last <= _LARGEST_UID:
            raise InvalidRequest(
                f"{self} is not a valid range of user ids. The first must not be greater than the last, and "
                f"both must be within 1-{_LARGEST_UID}."
            )

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
            raise InvalidRequest(f"{text!r} is not a range of user ids. Use a range such as {DEFAULT_USERS}.")
        return cls(int(first), int(last))

    def choose(self, taken: Collection[int]) -> int:
        """Returns a random uid that is not taken.

        Random, because another worker on this machine may choose from the same range.
        """
        if self.last - self.first + 1 <= len(taken):
            free = set(range(self.first, self.last + 1)) - set(taken)
            if not free:
                raise InvalidRequest(
                    f"Every user id in {self} is taken. Choose a larger range with SANDLOT_SANDBOX_USERS."
                )
            return min(free)
        while True:
            uid = self.first + secrets.randbelow(self.last - self.first + 1)
            if uid not in taken:
                return uid


# Above systemd's range for containers (up to 1879048191), below ids that programs read as negative.
DEFAULT_USERS: Final = UserRange(0x70000000, _LARGEST_UID)
# The range that nspawn and others allocate from, as systemd documents it.
SYSTEMD_CONTAINERS: Final = UserRange(524_288, 1_879_048_191)
# In a user namespace a container has 65,536 uids. The engine maps them to other uids on the host.
NAMESPACED_USERS: Final = UserRange(20_000, 60_000)


def uses_user_namespaces(info: Mapping[str, Any]) -> bool:
    """Whether the engine maps containers' users to other users on the host.

    ``info`` is the engine's answer to ``GET /info``.
    """
    options = info.get("SecurityOptions") or []
    return any(option in ("name=userns", "name=rootless") for option in options)


def find_overlap(users: UserRange, etc: Path = Path("/etc")) -> str | None:
    """Returns what else on this machine uses some of these uids, or None."""
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


def renumber_accounts(content: bytes, uid: int) -> bytes:
    """Returns an image's /etc/passwd or /etc/group with the sandbox's uid, not the image's."""
    lines = [_renumber_line(line, uid) for line in content.split(b"\n")]
    return b"\n".join(lines)


def _renumber_line(line: bytes, uid: int) -> bytes:
    fields = line.split(b":")
    # passwd has name:password:uid:gid:text:home:shell, group has name:password:gid:members.
    for index in (2, 3) if len(fields) == 7 else (2,):
        if index < len(fields) and fields[index] == str(IMAGE_UID).encode():
            fields[index] = str(uid).encode()
    return b":".join(fields)
