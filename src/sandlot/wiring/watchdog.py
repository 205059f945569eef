"""Reports that the event loop runs, so that a supervisor restarts a server that hangs.

There are two ways, for two kinds of supervisors. systemd expects regular notifications
(``Type=notify``, ``WatchdogSec=``) and kills a service that stops sending them. Docker has nothing
like this, so there the process exits by itself: each turn of the loop postpones a timer outside of
Python. If the timer fires, it writes the stack of every thread and exits. Sandboxes survive both.
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

# How often the server reports within the time after which it counts as hung.
REPORTS_PER_TIMEOUT = 4
STDERR = 2


@contextlib.asynccontextmanager
async def watchdog(
    exit_after_s: float | None = None, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[None]:
    """Run the watchdog while the body serves.

    ``exit_after_s``: exit if the loop hangs for this long.
    """
    supervisor = environ.get("NOTIFY_SOCKET", "")
    notify_every_s = int(environ.get("WATCHDOG_USEC", "0")) / 1_000_000 / REPORTS_PER_TIMEOUT
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        notify_every_s = 0.0  # systemd watches another process of the service
    if supervisor:
        faulthandler.enable(file=STDERR)  # systemd kills with SIGABRT, and this shows where it hung
    _notify(supervisor, "READY=1")
    tasks = []
    if supervisor and notify_every_s:
        tasks.append(
            asyncio.create_task(_notify_regularly(supervisor, notify_every_s), name="notify systemd")
        )
    if exit_after_s is not None:
        tasks.append(asyncio.create_task(_postpone_exit(exit_after_s), name="watchdog"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _notify(supervisor, "STOPPING=1")


async def _notify_regularly(supervisor: str, every_s: float) -> None:
    while True:
        _notify(supervisor, "WATCHDOG=1")
        await asyncio.sleep(every_s)


async def _postpone_exit(seconds: float) -> None:
    try:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
            await asyncio.sleep(seconds / REPORTS_PER_TIMEOUT)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _notify(supervisor: str, state: str) -> None:
    if not supervisor:
        return
    address = "\0" + supervisor[1:] if supervisor.startswith("@") else supervisor
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as error:
        log.warning("cannot notify systemd", word=state, error=str(error))
