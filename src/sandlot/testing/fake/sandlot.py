"""``FakeSandlot``: sandboxes for the tests of your own code, without Docker, a server or a network.

fake = FakeSandlot()
fake.on("pytest -q", stdout="1 passed", exit_code=0)
async with fake.client() as client:
    session = await client.create()
    result = await session.run("cd /workspace && pytest -q")
assert [call.command for call in fake.calls] == ["cd /workspace && pytest -q"]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandlot.testing.fake.code.cells import CellHandler, CellReply, Forms
from sandlot.testing.fake.scripts import Call, Handler, Reply
from sandlot.testing.fake.service import FakeService

if TYPE_CHECKING:
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_session import AsyncSession
    from sandlot.client.sync.client import Client
    from sandlot.client.sync.session import Session


class FakeSandlot:
    def __init__(self, service: FakeService | None = None) -> None:
        self.service = service or FakeService()

    def client(self) -> AsyncClient:
        from sandlot.client.async_client import AsyncClient

        return AsyncClient(service=self.service)

    def sync_client(self) -> Client:
        from sandlot.client.sync.client import Client

        return Client(service=self.service)

    def on(
        self,
        command: str,
        handler: Handler | None = None,
        *,
        stdout: str | bytes = "",
        stderr: str | bytes = "",
        exit_code: int = 0,
        delay_s: float = 0.0,
        oom: bool = False,
        disk_full: bool = False,
    ) -> None:
        """Scripts a command: it gets a fixed reply, or ``handler`` returns one for each run.

        A rule matches every command that begins with its words: ``on("git")`` matches ``git
        status``. It also matches a command text that equals ``command``. The newest matching rule
        wins. A rule may replace a command that the fake knows.
        """
        reply = Reply(stdout, stderr, exit_code, delay_s, oom, disk_full)
        self.service.scripts.add(command, handler or (lambda invocation: reply))

    def on_cell(
        self,
        code: str,
        handler: CellHandler | None = None,
        *,
        value: str | Forms | None = None,
        displays: Sequence[Forms] = (),
        stdout: str = "",
        stderr: str = "",
        error: tuple[str, str] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Scripts a cell: it gives a fixed reply, or ``handler`` returns one for each run.

        A rule matches every cell whose code contains ``code``. The newest matching rule wins. ``value`` is
        the text of the cell's value, or its forms by media type, such as ``{"image/png": png_bytes}``.
        ``displays``: forms of what it displays before. ``error``: the name and the message of an error.

        Cells without a script run as very small Python: arithmetic, variables and ``print``.
        """
        reply = CellReply(value, displays, stdout, stderr, error, delay_s)
        self.service.scripts.cells.add(code, handler or (lambda call: reply))

    @property
    def calls(self) -> list[Call]:
        """Every exec that was started, in order."""
        return self.service.calls

    def lose(
        self, session: str | AsyncSession | Session, reason: str = "the test removed the sandbox"
    ) -> None:
        """Destroys a session's sandbox. ``session`` is a session of either client, or its id."""
        self.service.lose(session if isinstance(session, str) else session.id, reason)
