"""Finds the server that runs on this machine, by its announcement.

An API key goes only to a URL that the caller named, or to a server that announced itself to the
caller (``config.announcement``) and whose ``/health`` confirms its name. No port is ever guessed.
"""

from __future__ import annotations

import asyncio
import json
import os

from sandlot.cli.terminal.display import note_if_slow
from sandlot.config.announcement import Announcement, read_announcement
from sandlot.config.client_settings import DEFAULT_URL
from sandlot.config.data_folder import data_dir
from sandlot.config.variable_names import check_client_variables
from sandlot.domain.errors import Conflict, Unavailable

# How long an announced server may take to answer.
ANSWER_WITHIN_S = 5.0
# How long an unknown program at the default address may take. It is only looked at for a hint.
HINT_WITHIN_S = 0.5
MAX_HEALTH_BYTES = 64 * 1024


async def find_server(*, quiet: bool = False) -> Announcement | None:
    """Return the running server that announced itself to this user, or None.

    Raises an error if the server runs and does not answer, or if another program answers in its
    place. Going on without it would run the command somewhere else than the caller expects.
    """
    check_client_variables(os.environ)
    folder = data_dir()
    found = read_announcement(folder)
    if found is None:
        return None
    with note_if_slow(f"Waiting for the server at {found.url} to answer.", quiet=quiet):
        name = await _name_of_server(found.url, ANSWER_WITHIN_S)
    if name == found.worker_id:
        return found
    if read_announcement(folder) != found:
        return None  # it has stopped meanwhile
    if name is None:
        raise Unavailable(
            f"The server at {found.url} (process {found.pid}) is running, but does not answer. "
            "Restart it, or name another one: sandlot --url URL COMMAND"
        )
    raise Conflict(
        f"Another program answers at {found.url} in place of the server that announced itself there "
        f"(process {found.pid}). Your API key was not sent to it. Restart your server, or name one: "
        "sandlot --url URL COMMAND"
    )


async def unannounced_server() -> str:
    """Return a sentence about a server at the default address that has no announcement, or ""."""
    if await _name_of_server(DEFAULT_URL, HINT_WITHIN_S) is None:
        return ""
    return (
        f"A server answers at {DEFAULT_URL}, but it belongs to another user, uses another data folder, or is "
        f"part of a fleet. If you trust it, use it with: sandlot --url {DEFAULT_URL} COMMAND"
    )


async def _name_of_server(url: str, within_s: float) -> str | None:
    """Return the name that a server's ``/health`` reports; None if no Sandlot server answers there.

    Sends no key, and follows no proxy settings and no redirects.
    """
    import httpx

    content = b""
    try:
        async with (
            asyncio.timeout(within_s),
            httpx.AsyncClient(trust_env=False) as client,
            client.stream("GET", f"{url}/health") as answer,
        ):
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > MAX_HEALTH_BYTES:
                    return None
        name = json.loads(content)["worker_id"] if answer.status_code == 200 else None
    except (
        httpx.HTTPError,
        httpx.InvalidURL,
        TimeoutError,
        ValueError,
        TypeError,
        LookupError,
        RecursionError,
    ):
        return None
    return name if isinstance(name, str) else None
