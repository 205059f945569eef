"""Builds of templates: what a client asks for, how far it is, and what may not be asked for.

A template becomes an environment. It has the image that its steps made. All else it takes from the
environment that it is built on, and from ``base`` if it is built on an image.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import InvalidRequest, Unsupported

MAX_STEPS: Final = 200
MAX_ARGUMENT: Final = 64 * 1024
MAX_LOG_LINES: Final = 10_000
MAX_LINE: Final = 2000
# What the steps of one build may use of the machine at once.
BUILD_MEMORY_BYTES: Final = 2048 * MIB
BUILD_CPUS: Final = 2.0

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
# What an environment's image may be called, without a digest.
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}(@sha256:[0-9a-f]{64})?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_MODE: Final = re.compile(r"[0-7]{3,4}")
ROOT: Final = "root"
# A sandbox has one user, whatever it is called. Files of that user belong to it.
USERS: Final = ("", "user", "sandboxuser", ROOT)


class StepKind(StrEnum):
    COPY = "COPY"
    ENV = "ENV"
    RUN = "RUN"
    WORKDIR = "WORKDIR"
    USER = "USER"


@dataclass(frozen=True, slots=True)
class Step:
    """``files``: which uploaded archive a COPY takes its files from."""

    kind: StepKind
    arguments: tuple[str, ...]
    files: str | None = None

    def check(self) -> None:
        """Raise an error that says what is wrong with the step."""
        for argument in self.arguments:
            if "\0" in argument or len(argument) > MAX_ARGUMENT:
                raise InvalidRequest(
                    f"An argument of {self.kind} has a NUL or more than {MAX_ARGUMENT} characters."
                )
        _CHECKS[self.kind](self)


def _check_copy(step: Step) -> None:
    if not 2 <= len(step.arguments) <= 4 or step.files is None or _HASH.fullmatch(step.files) is None:
        raise InvalidRequest("COPY needs a source, a destination and the hash of its files.")
    source, target, user, mode = (*step.arguments, "", "")[:4]
    if source.startswith("/") or ".." in source.split("/") or not source:
        raise InvalidRequest(f"COPY {source[:100]!r}: the source must lie in the folder of the build.")
    if not target or "\n" in source + target:
        raise InvalidRequest("COPY needs a destination on one line.")
    check_user(user)
    if mode and _MODE.fullmatch(mode) is None:
        raise InvalidRequest(f"COPY: {mode[:20]!r} is not a mode, such as 0644.")


def _check_env(step: Step) -> None:
    if not step.arguments or len(step.arguments) % 2:
        raise InvalidRequest("ENV needs names and values by turns.")
    for name, value in zip(step.arguments[::2], step.arguments[1::2], strict=True):
        if _VARIABLE.fullmatch(name) is None:
            raise InvalidRequest(f"ENV: {name[:100]!r} is not the name of a variable.")
        if "\n" in value or "\r" in value:
            raise Unsupported(f"ENV: the value of {name} has more than one line. An image cannot keep that.")


def _check_run(step: Step) -> None:
    if not 1 <= len(step.arguments) <= 2 or not step.arguments[0].strip():
        raise InvalidRequest("RUN needs a command.")
    check_user(step.arguments[1] if len(step.arguments) == 2 else "")


def _check_workdir(step: Step) -> None:
    if len(step.arguments) != 1 or not step.arguments[0] or "\n" in step.arguments[0]:
        raise InvalidRequest("WORKDIR needs one folder.")


def _check_user(step: Step) -> None:
    if len(step.arguments) != 1:
        raise InvalidRequest("USER needs one user.")
    check_user(step.arguments[0])


_CHECKS: Final = {
    StepKind.COPY: _check_copy,
    StepKind.ENV: _check_env,
    StepKind.RUN: _check_run,
    StepKind.WORKDIR: _check_workdir,
    StepKind.USER: _check_user,
}


def check_user(name: str) -> None:
    if name not in USERS:
        raise Unsupported(f"There is no user {name[:64]!r} in sandboxes. Leave it out, or use root or user.")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is built. It begins with an image or with another environment's.

    ``fresh``: whether to run steps again that the engine remembers.
    """

    steps: tuple[Step, ...]
    image: str | None = None
    environment: str | None = None
    fresh: bool = False

    def check(self) -> None:
        if (self.image is None) == (self.environment is None):
            raise InvalidRequest("A build begins with an image or with a template: name one of them.")
        if self.image is not None and _IMAGE.fullmatch(self.image) is None:
            raise InvalidRequest(f"{self.image[:100]!r} is not the name of an image.")
        if len(self.steps) > MAX_STEPS:
            raise InvalidRequest(f"A build has at most {MAX_STEPS} steps. Join some of them with &&.")
        for step in self.steps:
            step.check()

    @property
    def files(self) -> frozenset[str]:
        return frozenset(step.files for step in self.steps if step.files is not None)


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A template that is going to be built. None: as in the environment that it is built on."""

    name: str
    cpus: float | None = None
    memory_bytes: int | None = None

    def check(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidRequest(
                f"{self.name[:100]!r} cannot be a template's name. It has up to 63 lower-case letters, "
                "digits, '.', '_' and '-'."
            )


def check_hash(files: str) -> None:
    if _HASH.fullmatch(files) is None:
        raise InvalidRequest("Files are named by their SHA-256, in 64 lower-case hexadecimal digits.")


def is_inside(name: str) -> bool:
    """Whether a name in an archive stays in the archive's folder."""
    return not name.startswith("/") and ".." not in posixpath.normpath(name).split("/")


class BuildState(StrEnum):
    WAITING = "waiting"
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogLine:
    at: float
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is. ``failed_step``: counted from 1; 0 for what it begins with, None for none."""

    id: str
    template: str
    state: BuildState
    lines: tuple[LogLine, ...] = ()
    problem: str = ""
    failed_step: int | None = None


class BuildFailed(Exception):
    """A step failed, or what the build begins with. ``step``: as in ``Progress``."""

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class TemplateBuilds(Protocol):
    """The builds of one server."""

    def request(self, new: NewTemplate) -> Progress:
        """Announce a build. Its files may then be uploaded."""
        ...

    def has_files(self, template: str, files: str) -> bool: ...

    async def receive(self, template: str, files: str, content: AsyncIterator[bytes]) -> None:
        """Keep an archive for the builds of a template that were announced."""
        ...

    def start(self, template: str, build_id: str, plan: Plan) -> None: ...

    def progress(self, template: str, build_id: str, after: int, limit: int) -> Progress:
        """``after``: how many lines the caller has already."""
        ...

    async def remove(self, template: str) -> bool:
        """Remove a template that was built. Returns False if there is none."""
        ...
