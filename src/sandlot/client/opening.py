"""``Opening``: the return value of ``AsyncClient.create`` and ``thread``. Await it or enter it:

session = await client.create()
async with client.create() as session: ...
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from sandlot.client.async_session import AsyncSession


class Opening(Coroutine[Any, Any, AsyncSession]):
    """A session that is being opened: ``await`` it, or enter it with ``async with``.

    It is a coroutine, so ``create_task`` and ``asyncio.run`` accept it too.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, AsyncSession]) -> None:
        self._coroutine = coroutine
        self._session: AsyncSession | None = None

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, AsyncSession]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._coroutine
        return await self._session.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        assert self._session is not None, "it was entered"
        await self._session.__aexit__(*error)
