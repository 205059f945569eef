"""What a command is about: its session, by id or by thread, its variables and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession

ThreadOption = Annotated[
    str | None,
    typer.Option(
        "--thread",
        metavar="THREAD",
        help="Use the session of this thread (your id for a conversation) instead of SESSION.",
    ),
]


async def find_session(client: AsyncClient, session_id: str | None, thread: str | None) -> AsyncSession:
    """Return an existing session. A mistyped thread must not create a sandbox."""
    from sandlot.domain.errors import NotFound

    if session_id is not None:
        return await client.get(session_id)
    assert thread is not None, "one of the two is given"
    async for session in client.sessions(thread=thread):
        return session
    shown = f"{thread!r:.80}"
    raise NotFound(f"Thread {shown} has no session. To create one: sandlot run --thread {shown} COMMAND")


def parse_variables(given: list[str] | None) -> dict[str, str]:
    """Parse the values of ``--env NAME=VALUE``."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(
                f"--env needs NAME=VALUE. To choose an environment, use --environment {text}."
            )
        found[name] = value
    return found


def parse_time(text: str) -> float | None:
    """Parse 90 (seconds), 30m, 12h or 30d. None means never."""
    from sandlot.config.registry.recipes import seconds_of_duration

    return seconds_of_duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
