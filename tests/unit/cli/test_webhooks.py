"""``sandlot webhooks`` against a real server, each command a process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.fleet.test_cli import sandlot
from tests.service.served import served
from tests.unit.webhooks.receiver import HASTY, Request, Rig, receiving, rig_in, status

from sandlot.domain.callers.principal import OWNER
from sandlot.testing import FakeService
from sandlot.testing.eventually import eventually

pytestmark = pytest.mark.slow  # each command is a process of its own
KEY = "key-of-the-administrator"


@pytest_asyncio.fixture
async def at(tmp_path: Path) -> AsyncIterator[tuple[Rig, dict[str, str]]]:
    service = FakeService()
    async with (
        rig_in(tmp_path, HASTY) as rig,
        served(service, api_key=KEY, webhooks=rig.webhooks) as url,
    ):
        yield rig, {"SANDLOT_URL": url, "SANDLOT_API_KEY": KEY}
    await service.close()


async def test_a_webhook_on_the_command_line(at: tuple[Rig, dict[str, str]]) -> None:
    rig, server = at
    wrong = True

    async def answers(_: Request) -> bytes:
        return status(500 if wrong else 200)

    async with receiving(answers) as receiver:
        out, told = await sandlot(
            "webhooks",
            "create",
            receiver.url,
            "--event",
            "session.ended",
            "--event",
            "session.lost",
            **server,
        )
        secret = out.strip()
        assert secret.startswith("whsec_")
        assert "Keep this secret now: it is not shown again." in told
        assert "sends session.ended, session.lost from now on" in told
        [webhook] = json.loads((await sandlot("webhooks", "list", "--json", **server))[0])
        rig.record(1)

        made = (await rig.webhooks.get(OWNER, webhook["id"]))[0]
        await rig.until(made, lambda found: found.dead_letters == 1)
        table, _ = await sandlot("webhooks", "list", **server)
        head, row = (line.split("\t") for line in table.splitlines())
        shown = dict(zip(head, row, strict=True))
        assert shown["WEBHOOK ID"] == webhook["id"]
        assert shown["EVENTS"] == "session.ended session.lost"
        assert (shown["STATE"], shown["LAST ERROR"]) == ("failing", "The receiver answered 500.")
        assert secret not in table
        table, _ = await sandlot("webhooks", "dead-letters", webhook["id"], **server)
        assert table.splitlines()[1].split("\t")[:2] == [receiver.ids[0], "session.ended"]
        wrong = False
        out, _ = await sandlot("webhooks", "redeliver", webhook["id"], **server)
        assert out == "redelivering 1\n"
        await eventually(lambda: len(receiver.requests) == 4, 20)
        assert len(set(receiver.ids)) == 1
        assert all(request.is_signed_with(secret) for request in receiver.requests)
        out, _ = await sandlot("webhooks", "delete", webhook["id"], **server)
        assert out == f"{webhook['id']} is deleted\n"
        assert json.loads((await sandlot("webhooks", "list", "--json", **server))[0]) == []
        _, refused = await sandlot("webhooks", "dead-letters", webhook["id"], code=1, **server)
        assert "There is no webhook with this id." in refused
        _, refused = await sandlot(
            "webhooks", "create", "https://example.com", "--event", "session.end", code=1, **server
        )
        assert "Did you mean 'session.ended'?" in refused
