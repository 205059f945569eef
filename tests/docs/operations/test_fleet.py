"""The steps of docs/howto/fleet-operations.md and keys.md, each as it stands on the page, on a real fleet.

One fleet from its first day to its last: a Redis with users, a coordinator, and the workers that come and go.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from redis import Redis
from redis.exceptions import AuthenticationError

from sandlot import AsyncClient, AsyncSession
from sandlot.domain.callers.principal import OWNER
from sandlot.fleet.access import AccessTokens
from sandlot.fleet.signing_keys import SigningKey
from sandlot.testing.directory_suite.redis_server import RedisServer
from sandlot.testing.eventually import eventually
from tests.docs.operations.host import Host, host, section
from tests.docs.test_tutorial import ROOT, Block, blocks
from tests.faults.rig import created_at_last
from tests.fleet_faults.member import SANDLOT, Member
from tests.fleet_faults.rig import KEY, Fleet, running
from tests.fleet_faults.waiting import works_again

pytestmark = [pytest.mark.docker, pytest.mark.slow]

PAGE = "howto/fleet-operations.md"
KEYS = "howto/keys.md"
NEXT = "99.1.0"
NEXT_VERSION = [sys.executable, str(ROOT / "tests/fleet_faults/other_version.py"), NEXT, "worker"]
# tests/test_package.py builds the wheel and installs it; here, only when they do so matters.
PIP = """#!/bin/bash
case $* in
  'wheel --wheel-dir wheels .[server,fleet]') mkdir wheels && touch wheels/sandlot.whl ;;
  'install --force-reinstall --no-index --find-links wheels sandlot[server,fleet]') mv wheels/sandlot.whl installed ;;
  *) exit 1 ;;
esac
"""


class Guarded(RedisServer):
    """With the users of ``deploy/redis/users``, which its folder holds."""

    def __init__(self, secrets: Path, acl: Path) -> None:
        super().__init__("--aclfile", str(acl))
        self._secrets = secrets

    def url_of(self, user: str) -> str:
        password = (self._secrets / f"redis-{user}").read_text().strip()
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"

    @property
    def url(self) -> str:
        return self.url_of("admin")


class Operated:
    """``fleet`` begins with one worker, ``a``. ``b`` comes later."""

    def __init__(self, here: Host) -> None:
        self.here = here
        self.secrets, self.settings, self.acl = (here.folder / name for name in ("secrets", "etc", "redis"))
        for folder in (self.secrets, self.settings, self.acl):
            folder.mkdir()
        self.redis = Guarded(self.secrets, self.acl / "redis-users")
        self.fleet = Fleet(workers=1, coordinators=1, redis=self.redis)
        (self.a,), (self.coordinator,) = self.fleet.workers, self.fleet.coordinators
        self.b = self.fleet.new_worker()
        self.old_key = self.fleet.key
        (self.settings / "fleet-public-keys").write_text(self.old_key.public.text)
        (self.settings / "fleet-private-key").write_text(self.old_key.text)
        here.program("pip", PIP)
        next_version = " ".join(NEXT_VERSION)
        self.a.command = [
            *("bash", "-c"),
            f"[ -e {here.folder}/installed ] && exec {next_version}; exec {' '.join(SANDLOT)} worker",
        ]
        here.environ |= {"SANDLOT_URL": self.coordinator.url, "SANDLOT_API_KEY": KEY}
        here.names = {
            "worker-a": self.a.owner,
            "worker-b": self.b.owner,
            "deploy/redis/users": str(ROOT / "deploy/redis/users"),
            "/etc/sandlot": str(self.settings),
            "/etc/redis": str(self.acl),
            " -g sandlot": "",
            " -g redis": "",
            "redis-cli --user admin --askpass ACL LOAD": (
                f"redis-cli -e -p {self.redis.port} --user admin --askpass ACL LOAD <secrets/redis-admin"
            ),
            "/opt/sandlot/bin/pip": "pip",
            "sleep 10": "sleep 0.5",
        }

    async def run(self, block: Block, *machines: Member) -> str:
        """On the machine of this worker; where several are named, on one after the other."""
        self.here.units = {"sandlot-worker": machines, "sandlot-coordinator": [self.coordinator]}
        return await self.here.run(block)

    def let_in(self, member: Member, user: str) -> None:
        """With its own user of Redis, and its keys in a file."""
        member.environ["SANDLOT_REDIS_URL"] = self.redis.url_of(user)
        kind = "PRIVATE_KEY" if member is self.coordinator else "PUBLIC_KEYS"
        del member.environ[f"SANDLOT_FLEET_{kind}"]
        file = self.settings / f"fleet-{kind.lower().replace('_', '-')}"
        member.environ[f"SANDLOT_FLEET_{kind}_FILE"] = str(file)

    async def takes_tokens_of(self, key: SigningKey) -> bool:
        """Whether worker ``a`` does, from whoever reaches it straight."""
        token = AccessTokens(key, lifetime_s=30).for_member(self.a.owner, OWNER)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
            return (await http.get(f"{self.a.url}/v1/sessions", timeout=20)).status_code == 200


def block(role: str) -> Block:
    (found,) = (each for each in blocks(ROOT / "docs" / PAGE) if each.role == role)
    return found


@asynccontextmanager
async def operated() -> AsyncIterator[Operated]:
    async with host({}) as here:
        all_of_it = Operated(here)
        first = block("add")
        first.text = first.text.replace(" worker-b", "").partition("redis-cli")[0]  # no Redis runs yet
        await here.run(first)
        all_of_it.redis.start()
        all_of_it.let_in(all_of_it.a, all_of_it.a.owner)
        all_of_it.let_in(all_of_it.coordinator, "coordinator")
        try:
            async with running(all_of_it.fleet):
                yield all_of_it
        finally:
            all_of_it.redis.remove()


@pytest.mark.timeout(900)  # two minutes on a quiet machine
async def test_from_the_first_day_to_the_last() -> None:
    async with operated() as fleet, fleet.fleet.client() as client:
        session = await created_at_last(client, thread="of the first day", certain=False)
        await session.files.write("note.txt", "kept")
        await look(fleet, session)
        await add_a_worker(fleet, client)
        await upgrade(fleet, session)
        await rotate_a_users_key(fleet)
        await rotate_the_fleets_keys(fleet, session)
        await remove_a_worker(fleet, client)
        await shut_down(fleet)


async def look(fleet: Operated, session: AsyncSession) -> None:
    (monitoring,) = section(PAGE, "Monitoring")
    printed = await fleet.run(monitoring, fleet.a)
    for what in ("1 alive", fleet.a.owner, session.id):
        assert what in printed


async def add_a_worker(fleet: Operated, client: AsyncClient) -> None:
    await fleet.run(block("add"))
    fleet.let_in(fleet.b, fleet.b.owner)
    fleet.fleet.workers.append(fleet.b)
    printed = await fleet.run(block("start"), fleet.b)
    assert fleet.b.owner in printed
    there = await fleet.fleet.session_on(fleet.b, client)
    assert (await there.run("echo new")).output == "new\n"
    await there.delete()


async def upgrade(fleet: Operated, session: AsyncSession) -> None:
    (upgrading,) = section(PAGE, "Upgrading")
    counting = await session.start("sleep 3; cat note.txt", exec_id="across")
    printed = await fleet.run(upgrading, fleet.a)
    (row,) = [line.split() for line in printed.splitlines() if line.startswith(fleet.a.owner + "\t")]
    assert row[1] == "alive"
    assert NEXT in row
    await works_again(partial(session.run, "cat note.txt"), "kept")
    assert (await counting.wait(timeout_s=60)).output == "kept"
    assert (await session.refresh()).generation == 1


async def rotate_a_users_key(fleet: Operated) -> None:
    """At a coordinator. The old key ends, and the new one goes on."""
    (creating,) = section(KEYS, "Create a key")[-1:]
    old = (await fleet.run(creating)).strip()
    (rotating,) = section(KEYS, "Revoke and rotate")
    rotating.text = rotating.text.replace("KEY_ID", old.split("_")[1])
    printed = (await fleet.run(rotating)).split()
    (new,) = (word for word in printed if word.startswith("sl_"))
    assert new != old

    async def status(key: str) -> int:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
            return (await http.get(f"{fleet.coordinator.url}/v1/sessions", timeout=20)).status_code

    async def is_over() -> bool:
        return await status(old) == 401

    await eventually(is_over, 60)
    assert await status(new) == 200


async def rotate_the_fleets_keys(fleet: Operated, session: AsyncSession) -> None:
    reads = partial(session.run, "cat note.txt")
    await fleet.run(block("pair"))
    new_key = SigningKey.parse((fleet.here.folder / "new/fleet-private-key").read_text().strip())
    assert await fleet.takes_tokens_of(fleet.old_key)
    assert not await fleet.takes_tokens_of(new_key)
    await fleet.run(block("both"), fleet.a, fleet.b)
    await works_again(reads, "kept")
    assert await fleet.takes_tokens_of(fleet.old_key)
    assert await fleet.takes_tokens_of(new_key)
    await fleet.run(block("sign"))
    await works_again(reads, "kept")
    await fleet.run(block("only"), fleet.a, fleet.b)
    await works_again(reads, "kept")
    assert not await fleet.takes_tokens_of(fleet.old_key)
    assert await fleet.takes_tokens_of(new_key)
    (monitoring,) = section(PAGE, "Monitoring")
    assert "2 alive" in await fleet.run(monitoring, fleet.a)


async def remove_a_worker(fleet: Operated, client: AsyncClient) -> None:
    """Not before the last of its sessions has ended."""
    last = await fleet.fleet.session_on(fleet.b, client)
    removing = asyncio.create_task(fleet.run(block("remove"), fleet.b))

    async def drains() -> bool:
        return not await fleet.b.is_ready()

    await eventually(drains, 30)
    assert (await last.run("echo still here")).output == "still here\n"
    assert not removing.done()
    await last.delete()
    printed = await removing
    assert fleet.b.owner not in printed.rpartition("WORKER\tSTATE")[2]
    assert fleet.a.owner in printed
    users = block("add")
    users.text = users.text.replace(" worker-b", "")
    await fleet.run(users)
    with Redis.from_url(fleet.redis.url_of(fleet.b.owner)) as redis, pytest.raises(AuthenticationError):
        redis.ping()
    fleet.fleet.workers.remove(fleet.b)
    await fleet.b.clean()


async def shut_down(fleet: Operated) -> None:
    """What a worker leaves for its next start, which never comes."""
    (left,) = section(PAGE, "Shutting down")
    await fleet.a.terminate()
    assert fleet.a.containers()
    assert fleet.a.workspaces()
    left.text = left.text.replace("WORKER_ID", fleet.a.owner)
    await fleet.run(left)
    assert not fleet.a.containers()
    assert not fleet.a.workspaces()
