"""How long the fleet took to be whole again, for people to read: told at the end of a run, never asserted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

TIMES: list[tuple[str, float]] = []


@contextmanager
def healing(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    TIMES.append((what, time.monotonic() - began))
