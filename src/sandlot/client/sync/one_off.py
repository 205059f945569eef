"""``sandlot.run``: one command in a sandbox of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Unpack

from sandlot.client.options import Command, ExecOptions, exec_request
from sandlot.client.result import Result
from sandlot.client.sync.client import Client
from sandlot.domain.errors import UNREACHABLE, Unavailable

_ARGUMENTS: Final = ("environment", "url", "api_key", "stdin", "check")


def run(
    command: Command,
    *,
    environment: str | None = None,
    url: str | None = None,
    api_key: str | None = None,
    stdin: bytes | str | None = None,
    check: bool = False,
    **options: Unpack[ExecOptions],
) -> Result:
    """Run a command in a new sandbox, delete the sandbox, and return the result.

    The sandbox is one of the server that ``url`` or SANDLOT_URL names, or of the server on this machine. If
    there is none, a worker in this process makes it, which needs Docker and the server part of the package.

    ``stdin``: input for the command. ``check``: raise ``CommandFailed`` if the command fails. For the other
    options, see ``ExecOptions``. To run more than one command, use ``Client``.
    """
    exec_request("run", command, options, accepts=_ARGUMENTS)  # before a sandbox is made for nothing
    with _client(url, api_key) as client, client.create(environment) as session:
        return session.run(command, stdin=stdin, check=check, **options)


@contextmanager
def _client(url: str | None, api_key: str | None) -> Iterator[Client]:
    with Client(url, api_key=api_key) as client:
        if url or os.environ.get("SANDLOT_URL") or _answers(client):
            yield client
            return
    # One command needs no warm sandboxes.
    with Client.local(pool_size=0, min_pool_size=0, max_pool_size=0) as client:
        yield client


def _answers(client: Client) -> bool:
    """Whether a server runs on this machine. One that refuses the call does run."""
    try:
        client.health()
    except Unavailable as error:
        if error.details.get("reason") != UNREACHABLE:
            raise
        return False
    return True
