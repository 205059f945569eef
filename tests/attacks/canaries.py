"""Canaries: random words in places that no attack may reach. None of them may come back, in an answer or a log.

Everything that agents send to this process is looked through, whichever sandbox it comes from, and everything that
is logged. ``inside/hunt.py`` looks for the words themselves from inside.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from bench.rig import rss_bytes

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.environment import Tier
from sandlot.domain.execution import ExecRequest
from sandlot.providers.base import Sandbox
from sandlot.testing.provider_suite import Harness
from sandlot.wire.frames import Frame, FrameDecoder
from tests.docker.conftest import harness_for

WORD = re.compile(rb"canary-[0-9a-f]{32}")
IN_ENVIRONMENT = "CANARY_OF_THE_WORKER"
# Of this process, over all attacks of a module: it tells a leak from what allocators keep.
WORKER_BOUND_BYTES = 200 * MIB


def new_word() -> str:
    return "canary-" + secrets.token_hex(16)


@dataclass
class Canaries:
    planted: dict[str, str] = field(default_factory=dict)  # the word, and where it is
    seen: set[str] = field(default_factory=set)

    def plant(self, where: str) -> str:
        word = new_word()
        self.planted[word] = where
        return word

    def look(self, data: bytes) -> None:
        if b"canary-" in data:
            self.seen.update(word.decode() for word in WORD.findall(data))

    @property
    def out(self) -> set[str]:
        """The places of those that came back."""
        return {where for word, where in self.planted.items() if word in self.seen}


@dataclass
class Watch:
    """A provider to attack, and what must not be touched by it."""

    harness: Harness
    neighbour: Sandbox
    canaries: Canaries
    host_file: Path


@contextlib.contextmanager
def looked_through(canaries: Canaries) -> Iterator[None]:
    """Every frame that arrives and every event that is logged."""
    received = FrameDecoder.received

    def looking(decoder: FrameDecoder, count: int) -> Iterator[Frame]:
        for frame in received(decoder, count):
            canaries.look(frame.body)
            yield frame

    def logged(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        canaries.look(repr(event).encode("utf-8", "replace"))
        return event

    processors = structlog.get_config()["processors"]
    FrameDecoder.received = looking  # type: ignore[assignment,method-assign]
    processors.insert(0, logged)
    try:
        yield
    finally:
        processors.remove(logged)
        FrameDecoder.received = received  # type: ignore[method-assign]


@contextlib.contextmanager
def in_environment(word: str) -> Iterator[None]:
    """Of this process, and only for so long: whatever is started later would inherit it."""
    os.environ[IN_ENVIRONMENT] = word
    try:
        yield
    finally:
        del os.environ[IN_ENVIRONMENT]


@contextlib.asynccontextmanager
async def watched(tier: Tier) -> AsyncIterator[Watch]:
    canaries = Canaries()
    memory = rss_bytes()
    with (
        in_environment(canaries.plant("the worker's environment")),
        looked_through(canaries),
        tempfile.TemporaryDirectory(prefix="sandlot-test-") as name,
    ):
        folder = Path(name)
        async with harness_for(tier) as harness, harness_for(tier) as next_door:
            # Beside what is mounted into the sandboxes; and where everybody on the host may read.
            data_dir = harness.provider._host.path  # type: ignore[attr-defined]
            (data_dir / "canary").write_text(canaries.plant("the worker's folder"))
            folder.chmod(0o755)
            host_file = folder / "canary"
            host_file.write_text(canaries.plant("a file of the host"))
            host_file.chmod(0o644)
            neighbour = await next_door.create()
            of_neighbour = canaries.plant("a neighbour's file")
            await neighbour.files.write("canary", of_neighbour.encode())
            env = {"SECRET": canaries.plant("a neighbour's environment")}
            await neighbour.start(ExecRequest(command="exec sleep 86400", env=env))
            yield Watch(harness, neighbour, canaries, host_file)
            kept = await neighbour.run(ExecRequest(command="wc -c <canary", timeout_s=60))
            assert kept.stdout.split() == [str(len(of_neighbour)).encode()], "the neighbour answers"
    assert not canaries.out
    assert rss_bytes() - memory < WORKER_BOUND_BYTES
