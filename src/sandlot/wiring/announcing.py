"""Announces a running server to the command line of the same user."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator

import structlog

from sandlot.config.announcement import announce, withdraw
from sandlot.config.settings import ServerSettings

log = structlog.get_logger("sandlot.server")


@contextlib.contextmanager
def announced(listener: socket.socket, settings: ServerSettings) -> Iterator[Callable[[], None]]:
    """Announce the server while the block runs. Call the yielded function to withdraw it earlier.

    A server that cannot write its announcement still serves; commands then need its URL.
    """
    folder = settings.data_dir.absolute()
    try:
        made = announce(folder, local_url(listener), settings.worker_id)
    except OSError as error:
        log.warning(
            "cannot announce this server: commands need --url or SANDLOT_URL to find it",
            folder=str(folder),
            error=error.strerror or str(error),
        )
        yield lambda: None
        return
    try:
        yield lambda: withdraw(folder, made)
    finally:
        withdraw(folder, made)


def local_url(listener: socket.socket) -> str:
    """Return the URL at which a program on this machine reaches the listener."""
    host, port = listener.getsockname()[:2]
    return reachable_here(host.partition("%")[0], port)


def reachable_here(host: str, port: int) -> str:
    """Return the URL at which a program on this machine reaches a server that listens on ``host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"
