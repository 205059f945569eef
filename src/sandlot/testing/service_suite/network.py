"""The network of a session: what is denied, what a caller may change, and what results and events say.

Nothing here connects to a host outside. ``.example`` is a name that nobody can have.
"""

from __future__ import annotations

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, ThreadDiffers
from sandlot.domain.execution import Exited, Verdict
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.status import Forward, NetworkChange
from sandlot.testing.service_suite.harness import (
    Cases,
    ServiceHarness,
    check_three_fields,
    deleted_afterwards,
    ok,
    raises_within,
    unique,
)

# curl gives up at once if it is denied; otherwise the name does not resolve.
CURL = "curl -sS -m20"


def targets(session_denied: object) -> list[str]:
    return [denied.target for denied in session_denied]  # type: ignore[attr-defined]


class NetworkCases(Cases):
    async def test_nothing_is_allowed_by_default(self, fresh: AsyncSession) -> None:
        status = await fresh.network.status()
        assert status.policy == await fresh.network.policy() == parse_policy("none")
        assert (status.grants, status.forwards, status.denied) == ((), (), ())
        assert fresh.info.network is None

    async def test_a_denial_is_in_the_result(self, fresh: AsyncSession) -> None:
        result = await fresh.run(f"{CURL} https://a.sandlot.example/x")
        assert (result.exit_code, result.verdict) == (56, Verdict.EGRESS_DENIED)
        assert [(denied.target, denied.rule) for denied in result.denied] == [
            ("a.sandlot.example:443", "not allowed")
        ]
        assert 'session.network.allow("a.sandlot.example", for_s=600)' in result.denied[0].text
        assert result["denied"] == result.denied
        again = await fresh.run(f"{CURL} https://a.sandlot.example/x", exec_id=result.exec_id)
        assert (again.denied, again.verdict) == (result.denied, result.verdict)
        later = await fresh.run("false")
        assert (later.denied, later.verdict) == ((), Verdict.NONZERO)
        status = await fresh.network.status()
        assert targets(status.denied) == ["a.sandlot.example:443"]
        assert (status.traffic.denied, status.traffic.requests) == (1, 0)

    async def test_a_command_that_succeeds_lists_its_denials_too(self, fresh: AsyncSession) -> None:
        plain = await fresh.run(f"{CURL} http://a.sandlot.example/")
        assert (plain.ok, targets(plain.denied)) == (True, ["a.sandlot.example:80"])
        assert "Sandlot denied the connection to a.sandlot.example:80." in plain.stdout
        caught = await fresh.run(f"{CURL} https://b.sandlot.example || true")
        assert (caught.verdict, targets(caught.denied)) == (Verdict.OK, ["b.sandlot.example:443"])

    async def test_every_way_of_reading_shows_the_denials(self, fresh: AsyncSession) -> None:
        command = f"{CURL} https://a.sandlot.example"
        events = [event async for event in fresh.stream(command)]
        assert isinstance(events[-1], Exited)
        assert targets(events[-1].denied) == ["a.sandlot.example:443"]
        started = await fresh.start(command)
        waited = await started.wait()
        assert (targets(waited.denied), waited.verdict) == (["a.sandlot.example:443"], Verdict.EGRESS_DENIED)
        status = await (await fresh.exec(started.id)).status()
        assert status.result is not None
        assert status.result.denied == waited.denied
        in_shell = await fresh.shell().run(command)
        assert targets(in_shell.denied) == ["a.sandlot.example:443"]

    async def test_allowed_and_revoked(self, fresh: AsyncSession) -> None:
        command = f"{CURL} https://a.sandlot.example"
        granted = await fresh.network.allow("a.sandlot.example", "pypi", for_s=600)
        assert [grant.entry for grant in granted.grants] == ["a.sandlot.example", "pypi"]
        assert granted.grants[0].until is not None
        allowed = await fresh.run(command)
        assert (allowed.ok, allowed.denied) == (False, ())  # the name does not resolve
        assert [grant.entry for grant in (await fresh.network.revoke("pypi")).grants] == ["a.sandlot.example"]
        await fresh.network.revoke("a.sandlot.example")
        assert targets((await fresh.run(command)).denied) == ["a.sandlot.example:443"]
        with pytest.raises(InvalidRequest, match="was not granted") as caught:
            await fresh.network.revoke("a.sandlot.example")
        check_three_fields(caught.value)
        assert (await fresh.network.allow("b.example")).grants[0].until is None

    async def test_a_policy_of_the_session(self, client: AsyncClient) -> None:
        policy = {"allow": ["pypi", "*.sandlot.example"], "deny": ["b.sandlot.example"]}
        async with client.create(network=policy) as session:
            assert session.info.network == parse_policy(policy)
            assert await session.network.policy() == parse_policy(policy)
            assert not (await session.run(f"{CURL} https://a.sandlot.example")).denied
            denied = (await session.run(f"{CURL} https://b.sandlot.example")).denied
            assert [each.rule for each in denied] == ["deny: b.sandlot.example"]
            await session.network.allow("b.sandlot.example")
            assert (await session.run(f"{CURL} https://b.sandlot.example")).denied
            status = await session.network.set("none")
            assert (status.policy, status.grants) == (parse_policy("none"), ())
            assert (await session.run(f"{CURL} https://a.sandlot.example")).denied
            assert (await session.refresh()).info.network == parse_policy("none")

    async def test_one_entry_needs_no_list(self, client: AsyncClient) -> None:
        async with client.create(network="pypi") as session:
            assert (await session.network.policy()).allow == ("pypi",)
            assert (await session.network.set("npm")).policy.allow == ("npm",)

    async def test_more_than_sessions_may_ask_for_is_refused(
        self, client: AsyncClient, fresh: AsyncSession
    ) -> None:
        """The ceiling is every name on the ports of the web."""
        entry = "db.sandlot.example:5432"
        for asked in (
            client.create(network=[entry]),
            fresh.network.allow("b.example", entry),
            fresh.network.set([entry]),
        ):
            with pytest.raises(InvalidRequest, match="more than sessions may be allowed here") as caught:
                await asked
            check_three_fields(caught.value)
        status = await fresh.network.status()
        assert (status.policy, status.grants) == (parse_policy("none"), ())

    @pytest.mark.parametrize(
        ("network", "message"),
        [
            ("pypii", "Did you mean 'pypi'"),
            (["https://example.com"], "without a scheme"),
            ({"alow": ["pypi"]}, "Did you mean 'allow'"),
            ({"caps": {"conections": 1}}, "Did you mean 'connections'"),
        ],
    )
    async def test_a_mistake_names_what_was_meant(
        self, client: AsyncClient, network: object, message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            await client.create(network=network)  # type: ignore[arg-type]

    async def test_forwards(self, client: AsyncClient) -> None:
        async with client.create(network=["a.sandlot.example"]) as session:
            forward = Forward(5443, "a.sandlot.example:443")
            assert (await session.network.forward(5443, "a.sandlot.example:443")).forwards == (forward,)
            for port, target, message in (
                (5444, "b.sandlot.example:443", "is not allowed"),
                (5443, "a.sandlot.example:80", "already leads to a.sandlot.example:443"),
                (3128, "a.sandlot.example:443", "the proxy's"),
                (80, "a.sandlot.example:443", "from 1024"),
                (5444, "a.sandlot.example", "has no port"),
            ):
                with pytest.raises(InvalidRequest, match=message):
                    await session.network.forward(port, target)
            assert (await session.network.status()).forwards == (forward,)
            assert (await session.network.unforward(5443)).forwards == ()
            with pytest.raises(InvalidRequest, match="not forwarded"):
                await session.network.unforward(5443)

    async def test_programs_find_the_proxy(self, fresh: AsyncSession, client: AsyncClient) -> None:
        script = 'printf \'%s %s %s\' "$HTTPS_PROXY" "$https_proxy" "$no_proxy"'
        proxy = "http://127.0.0.1:3128"
        assert await ok(fresh, script) == f"{proxy} {proxy} localhost,127.0.0.1,::1"
        async with client.create(env={"https_proxy": "http://127.0.0.1:9"}) as own:
            assert await ok(own, script) == f"{proxy} http://127.0.0.1:9 localhost,127.0.0.1,::1"

    async def test_a_threads_policy_is_compared(self, client: AsyncClient) -> None:
        thread = unique("network")
        async with deleted_afterwards(client.thread(thread, network=["pypi"])) as session:
            assert (await client.thread(thread, network=["pypi"])).id == session.id
            assert (await client.thread(thread)).id == session.id
            with pytest.raises(ThreadDiffers) as caught:
                await client.thread(thread, network=["npm"])
            assert caught.value.details["different"] == ["network"]

    async def test_grants_outlive_a_lost_sandbox(
        self, service_harness: ServiceHarness, client: AsyncClient
    ) -> None:
        async with client.create(network=["a.sandlot.example"]) as session:
            await session.network.allow("b.sandlot.example")
            await service_harness.lose(session.id)
            await raises_within(lambda: session.run("true"), SandlotError, 20)
            await session.recreate()
            for host in "ab":
                assert not (await session.run(f"{CURL} https://{host}.sandlot.example")).denied
            assert (await session.run(f"{CURL} https://c.sandlot.example")).denied

    async def test_the_history_has_changes_and_denials(self, client: AsyncClient) -> None:
        async with client.create(network=["pypi"]) as session:
            await session.network.allow("a.example", for_s=60)
            await session.run(f"{CURL} https://b.example")
            events = [event async for event in session.history()]
        by_kind = {event.kind: event for event in events}
        assert by_kind["session.created"].details["network"] == "pypi"
        assert by_kind["network.changed"].details == {"allow": "a.example", "for_s": 60}
        assert by_kind["network.denied"].details == {"target": "b.example:443", "rule": "not allowed"}
        assert by_kind["exec.ended"].details["verdict"] == "egress_denied"

    async def test_a_stranger_sees_and_changes_nothing(
        self, service_harness: ServiceHarness, fresh: AsyncSession
    ) -> None:
        if service_harness.stranger is None:
            pytest.skip("this service has one tenant")
        service = await service_harness.stranger.opened()
        with pytest.raises(NotFound):
            await service.get_network(fresh.id)
        with pytest.raises(NotFound):
            await service.change_network(fresh.id, NetworkChange(allow=("pypi",)))
        assert (await fresh.network.status()).grants == ()

    async def test_the_catalogue_shows_the_networks(self, client: AsyncClient) -> None:
        catalogue = await client.catalogue()
        assert all(environment.network == parse_policy("none") for environment in catalogue.environments)
