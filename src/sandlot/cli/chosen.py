"""Which session a command is about: by its id, or by its thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession

OfThread = Annotated[
    str | None, typer.Option("--thread", help="The session of this conversation, instead of SESSION.")
]


async def session_of(client: AsyncClient, session_id: str | None, thread: str | None) -> AsyncSession:
    """One that is there: asking for a thread by mistake must not make a sandbox."""
    from sandlot.domain.errors import NotFound

    if session_id is not None:
        return await client.get(session_id)
    assert thread is not None, "one of the two is given"
    async for session in client.sessions(thread=thread):
        return session
    raise NotFound(f"thread {thread!r:.80} has no session; `sandlot run --thread` makes one")


def variables(given: list[str] | None) -> dict[str, str]:
    """Of ``--env NAME=VALUE``."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(
                f"--env sets a variable, as NAME=VALUE. An environment is chosen by --environment {text}"
            )
        found[name] = value
    return found
