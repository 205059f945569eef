"""Keeps what was read from object storage for a moment, within a bound."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from sandlot.domain.errors import StorageProblem

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Used from several threads. ``most``: how many values. ``fresh_s``: how long one is used."""

    def __init__(self, most: int, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._fresh_s = fresh_s
        self._clock = clock
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, read: Callable[[], V]) -> V:
        """What was read a moment ago, or else what is read now. If nobody answers, what was read last."""
        now = self._clock()
        before = self._last(key)
        if before is not None and now - before[0] < self._fresh_s:
            return before[1]
        try:
            value = read()
        except StorageProblem:
            if before is None:
                raise
            return before[1]
        self.put(key, value, now)
        return value

    def find(self, key: K) -> V | None:
        """What was read last, however long ago."""
        last = self._last(key)
        return None if last is None else last[1]

    def put(self, key: K, value: V, now: float = 0.0) -> None:
        with self._lock:
            self._known[key] = (now, value)
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def forget(self, key: K) -> None:
        with self._lock:
            self._known.pop(key, None)

    def _last(self, key: K) -> tuple[float, V] | None:
        with self._lock:
            return self._known.get(key)
