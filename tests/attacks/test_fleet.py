"""90, 93, 96: a fleet of real processes: names that would be more, keys that must stay where they are, a crowd at a quota."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from redis import Redis

from sandlot.domain.errors import SandlotError
from tests.attacks.canaries import Canaries
from tests.docker.conftest import docker
from tests.fleet_faults.rig import KEY, Fleet, running

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

QUOTA = 10
CROWD = 100
# To Redis, to a script in it, to a log, to a page and to a shell they would be something else.
NAMES = [
    "sandlot:{default}:meta", "*", "'..redis.call('FLUSHALL')..'", "x%0d%0aFLUSHALL%0d%0a", "</script><script>alert(1)</script>",
]  # fmt: skip
# With these a name would begin a line of its own, or steer what shows it.
NO_NAMES = [
    "x\r\nFLUSHALL\r\n",
    "x\n2026-01-01 [info] all is well",
    "\x1b]52;c;ZXZpbA==\x07",
    "\u202eevil",
    "a\0b",
    "",
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet(workers=1, coordinators=0, log_level="debug")
    fleet.coordinators = [
        fleet.new_coordinator(log_level="debug", tenant_limits=f"sessions={QUOTA}") for _ in range(2)
    ]
    async with running(fleet):
        yield fleet


@pytest_asyncio.fixture(loop_scope="session")
async def empty(fleet: Fleet) -> Fleet:
    await fleet.mend()
    return fleet


def dumped(fleet: Fleet) -> dict[str, str]:
    """Everything that Redis holds, by its key."""
    found = {}
    with Redis.from_url(fleet.redis.url, decode_responses=True, encoding_errors="replace") as redis:
        for key in redis.scan_iter(count=1000):
            match redis.type(key):
                case "hash":
                    found[key] = json.dumps(redis.hgetall(key))
                case "zset":
                    found[key] = json.dumps(redis.zrange(key, 0, -1, withscores=True))
                case "set":
                    found[key] = json.dumps(sorted(redis.smembers(key)))
                case "string":
                    found[key] = str(redis.get(key))
                case other:
                    raise AssertionError(f"{key} is a {other}, which this test does not read")
    return found


async def test_90_names_are_names_everywhere(empty: Fleet) -> None:
    canaries = Canaries()
    word = canaries.plant("a key of Redis")
    with Redis.from_url(empty.redis.url) as redis:
        redis.set("canary", word)
        async with empty.client() as client, empty.client(1) as other:
            made = {name: await client.thread(name) for name in NAMES}
            assert len({session.id for session in made.values()}) == len(NAMES)
            for name, session in made.items():
                assert (await other.thread(name)).id == session.id
                assert (await other.get(session.id)).thread == name
                assert (await session.run("echo 'x\n2026-01-01 [info] forged'")).exit_code == 0
            for session in made.values():
                await session.delete()
            async with httpx.AsyncClient(base_url=empty.coordinators[0].url, timeout=30) as http:
                for name in NO_NAMES:
                    body = {"thread": name, "metadata": {"name": name}}
                    answer = await http.post("/v1/sessions", json=body, headers={"X-API-Key": KEY})
                    assert answer.status_code == 422, name
                    assert answer.text.isprintable()
        assert redis.get("canary") == word.encode()
        redis.delete("canary")
    assert all(key.startswith("sandlot:{default}:") for key in dumped(empty))
    for member in empty.members:
        log = member.log.read_text()
        canaries.look(log.encode())
        assert log.replace("\n", "").isprintable()
        assert "\n2026-01-01 [info]" not in log
    assert not canaries.out


async def test_93_secrets_are_told_to_nobody(empty: Fleet) -> None:
    """The API's key, the fleet's, a token and a session's variables: not in an answer, a log, Redis or the engine."""
    canaries = Canaries()
    secrets = {
        KEY: "the API's key",
        empty.key.text.partition(".")[2]: "the fleet's key",
    }
    answers: list[str] = []

    async def keep(response: httpx.Response) -> None:
        answers.append(f"{response.headers}{(await response.aread()).decode('utf-8', 'replace')}")

    variable = canaries.plant("a variable")
    secrets[variable] = "a variable"
    async with httpx.AsyncClient(
        base_url=empty.coordinators[0].url,
        headers={"Authorization": f"Bearer {KEY}"},
        event_hooks={"response": [keep]},
        timeout=60,
    ) as http:
        created = await http.post("/v1/sessions", json={"env": {"SECRET": variable}, "thread": "t"})
        assert created.status_code == 201
        path = f"/v1/sessions/{created.json()['id']}"
        ran = await http.post(f"{path}/exec", json={"command": 'test -n "$SECRET" && echo there'})
        assert "there" in ran.text
        token = created.json()["access"]["token"]
        secrets[token] = "a token"
        answers.clear()  # the one answer that is meant to carry it
        for wrong in (KEY[:-1], KEY + "x", f"{KEY} {KEY}"):
            assert (await http.get(path, headers={"Authorization": f"Bearer {wrong}"})).status_code == 401
        for body in (b"{", b'{"limits": 1}', b'{"env": {"A=B": "x"}}', b"\xff"):
            await http.post("/v1/sessions", content=body, headers={"Content-Type": "application/json"})
        for name in (
            "/health",
            "/ready",
            "/v1/health",
            "/metrics",
            "/v1/sessions",
            "/openapi.json",
            f"{path}/execs",
        ):
            await http.get(name)
        inspected = json.dumps(docker("inspect", f"sandlot-{created.json()['sandbox_id']}"))
        held = json.dumps(dumped(empty))
        await http.delete(path)
    places = {
        "answers": "".join(answers),
        "logs": "".join(member.log.read_text() for member in empty.members),
        "Redis": held,
        "the engine": inspected,
    }
    found = {
        (where, what) for where, text in places.items() for word, what in secrets.items() if word in text
    }
    assert found == set()


async def test_96_a_crowd_at_a_quota(empty: Fleet) -> None:
    """100 creates at once, through two coordinators: no more than the quota allows, and the others may come again."""
    async with empty.client() as client, empty.client(1) as other:
        asked = [(client, other)[number % 2].create() for number in range(CROWD)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        made = [answer for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert 0 < len(made) <= QUOTA
        # One may be there whose answer was lost; it counts as well.
        assert len([session async for session in client.sessions()]) <= QUOTA
        # A crowd is told that the quota is used up or, where a machine is slow, that nobody had the time for it.
        final = [error for error in refused if not (isinstance(error, SandlotError) and error.retryable)]
        assert not final, final[:3]
        for session in made:
            await session.delete()
