"""``/v1/webhooks`` over HTTP: who may, what is shown, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.unit.api.conftest import KEY, living
from tests.unit.api.keyed import Keyed, bearer, code, keyed_server
from tests.unit.webhooks.receiver import HASTY, Request, Rig, receiving, rig_in, status

from sandlot.testing.eventually import eventually

EVENTS = ["session.ended"]
PUBLIC = {"url": "https://example.com/x", "events": EVENTS}


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_in(tmp_path, HASTY) as rig:
        yield rig


@pytest_asyncio.fixture
async def server(tmp_path: Path, rig: Rig) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path, webhooks=rig.webhooks) as keyed:
        yield keyed


async def administrator(server: Keyed, tenant: str) -> str:
    scopes = ["admin", "sessions:read", "exec", "files"]
    return str((await server.create(tenant=tenant, scopes=scopes))["secret"])


async def test_the_life_of_a_webhook(server: Keyed, rig: Rig) -> None:
    ada = await administrator(server, "acme")
    async with receiving() as receiver:
        made = await server.post("/v1/webhooks", ada, {"url": receiver.url, "events": EVENTS})
        assert made.status_code == 201, made.text
        assert made.headers["cache-control"] == "no-store"
        body = made.json()
        webhook = body["webhook"]
        assert made.headers["location"] == f"/v1/webhooks/{webhook['id']}"
        assert body["secret"].startswith("whsec_")
        assert (webhook["state"], webhook["events"], webhook["delivered"]) == ("active", EVENTS, 0)
        rig.record(1, tenant="acme")
        await eventually(lambda: receiver.requests, 20)
        assert receiver.requests[0].is_signed_with(body["secret"])

        async def delivered() -> bool:
            shown = (await server.get(f"/v1/webhooks/{webhook['id']}", ada)).json()
            return bool(shown["delivered"] == 1 and shown["delivered_at"])

        await eventually(delivered, 20)
        listed = await server.get("/v1/webhooks", ada)
        assert [each["id"] for each in listed.json()["webhooks"]] == [webhook["id"]]
        assert body["secret"] not in listed.text, "it is shown once"
        deleted = await server.live.client.delete(f"/v1/webhooks/{webhook['id']}", headers=bearer(ada))
        assert deleted.status_code == 204
        assert code(await server.get(f"/v1/webhooks/{webhook['id']}", ada)) == (404, "not_found")


async def test_dead_letters(server: Keyed, rig: Rig) -> None:
    wrong = True

    async def answers(_: Request) -> bytes:
        return status(500 if wrong else 200)

    ada = await administrator(server, "acme")
    async with receiving(answers) as receiver:
        made = (await server.post("/v1/webhooks", ada, {"url": receiver.url, "events": EVENTS})).json()
        path = f"/v1/webhooks/{made['webhook']['id']}"
        rig.record(1, 2, tenant="acme")

        async def letters() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await server.get(f"{path}/dead-letters", ada)).json()[
                "dead_letters"
            ]
            return found

        async def both() -> bool:
            return len(await letters()) == 2

        await eventually(both, 20)
        first = (await letters())[0]
        assert (first["type"], first["attempts"], first["due"]) == ("session.ended", 3, False)
        assert first["error"] == "The receiver answered 500."
        assert first["id"] == receiver.ids[0]
        assert "body" not in first, "an administrator may lack the scope exec"
        page = (await server.get(f"{path}/dead-letters?limit=1", ada)).json()
        assert [letter["id"] for letter in page["dead_letters"]] == [first["id"]]
        rest = (await server.get(f"{path}/dead-letters?after={page['next']}", ada)).json()
        assert (len(rest["dead_letters"]), rest["next"]) == (1, None)
        assert code(await server.get(f"{path}/dead-letters?after=x", ada)) == (422, "invalid_request")
        wrong = False
        again = await server.post(f"{path}/dead-letters/redeliver", ada)
        assert (again.status_code, again.json()) == (202, {"redelivering": 2, "missing_workers": []})

        async def none() -> bool:
            return not await letters()

        await eventually(none, 20)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"url": "https://example.com/x"}, "events"),
        ({**PUBLIC, "event": "x"}, "event"),
        ({**PUBLIC, "events": []}, "at least one type"),
        ({**PUBLIC, "events": ["session.end"]}, "Did you mean 'session.ended'"),
        ({**PUBLIC, "url": "https://10.0.0.1/"}, "SANDLOT_WEBHOOK_ALLOW"),
        ({**PUBLIC, "url": "http://93.184.216.34/"}, "Use https"),
        ({**PUBLIC, "url": "example.com"}, "https://HOST"),
        ({**PUBLIC, "url": "https://me:secret@example.com/"}, "password"),
    ],
)
async def test_what_is_refused(server: Keyed, body: dict[str, Any], said: str) -> None:
    answer = await server.post("/v1/webhooks", KEY, body)
    assert code(answer) == (422, "invalid_request")
    assert said in answer.text
    assert (await server.get("/v1/webhooks", KEY)).json() == {"webhooks": []}


async def test_who_may(server: Keyed) -> None:
    user = (await server.create(tenant="acme"))["secret"]
    assert code(await server.get("/v1/webhooks", user)) == (403, "forbidden")
    assert code(await server.post("/v1/webhooks", user, PUBLIC)) == (403, "forbidden")
    # One who may not read events cannot have them sent.
    bare = (await server.create(tenant="acme", scopes=["admin"]))["secret"]
    refused = await server.post("/v1/webhooks", bare, PUBLIC)
    assert code(refused) == (403, "forbidden")
    assert refused.json()["details"] == {"scope": "sessions:read"}
    for _ in range(10):
        assert (await server.post("/v1/webhooks", KEY, PUBLIC)).status_code == 201
    assert code(await server.post("/v1/webhooks", KEY, PUBLIC)) == (409, "conflict")


async def test_a_server_that_sends_none() -> None:
    """A coordinator, a worker of a fleet, and a server without a history."""
    async with living() as live:
        answers: list[httpx.Response] = [
            await live.client.get("/v1/webhooks"),
            await live.client.post("/v1/webhooks", json=PUBLIC),
        ]
    for answer in answers:
        assert code(answer) == (501, "unsupported")
        assert "SANDLOT_HISTORY=false" in answer.json()["detail"]
