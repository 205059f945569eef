"""Tells the outside that the event loop turns, so that a server that hangs is started again.

Two ways, because two kinds of supervisors: systemd is told (``Type=notify``, ``WatchdogSec=``) and kills what
does not tell it any more. Docker does nothing of the kind, so there the process ends itself: a timer outside
of Python, which each turn of the loop puts off, writes what every thread is doing and exits. Sandboxes
outlive both.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
from collections.abc import AsyncIterator, Mapping

import structlog

log = structlog.get_logger("sandlot.server")

# Of the time after which a server counts as hung, it says so often that it does not.
TURNS = 4
STDERR = 2


@contextlib.asynccontextmanager
async def watched(
    ends_itself_after_s: float | None = None, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[None]:
    """While it serves."""
    supervisor = environ.get("NOTIFY_SOCKET", "")
    told_every_s = int(environ.get("WATCHDOG_USEC", "0")) / 1_000_000 / TURNS
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        told_every_s = 0.0  # another process of the service is watched
    if supervisor:
        faulthandler.enable(file=STDERR)  # systemd ends what hangs by SIGABRT: then it is seen where it hung
    _notify(supervisor, "READY=1")
    tasks = []
    if supervisor and told_every_s:
        tasks.append(asyncio.create_task(_tell(supervisor, told_every_s), name="tell systemd"))
    if ends_itself_after_s is not None:
        tasks.append(asyncio.create_task(_put_off(ends_itself_after_s), name="watchdog"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _notify(supervisor, "STOPPING=1")


async def _tell(supervisor: str, every_s: float) -> None:
    while True:
        _notify(supervisor, "WATCHDOG=1")
        await asyncio.sleep(every_s)


async def _put_off(seconds: float) -> None:
    try:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
            await asyncio.sleep(seconds / TURNS)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _notify(supervisor: str, word: str) -> None:
    if not supervisor:
        return
    address = "\0" + supervisor[1:] if supervisor.startswith("@") else supervisor
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.setblocking(False)
            to.sendto(word.encode(), address)
    except OSError as error:
        log.warning("systemd could not be told", word=word, error=str(error))
