"""What every ``KeyStore`` must do. Subclass ``KeySuite`` and give it the fixtures ``store`` and ``other``: two
clients of one new, empty store.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.domain.callers import key_store
from sandlot.domain.callers.key_store import CHANGES_AT_ONCE, KeyStore
from sandlot.domain.callers.keys import ApiKey, NewKey, issue, opens, parse_key
from sandlot.domain.callers.limits import NO_LIMITS, CallerLimits
from sandlot.domain.callers.principal import OWNER, Scope
from sandlot.domain.errors import Conflict

NOW = 1_700_000_000.25


def a_key(*, tenant: str = "acme", name: str = "a program", lifetime_s: float | None = None) -> NewKey:
    return issue(OWNER, NOW, name=name, tenant=tenant, lifetime_s=lifetime_s)


async def added(store: KeyStore, count: int = 1, *, tenant: str = "acme") -> list[ApiKey]:
    keys = [a_key(tenant=tenant).key for _ in range(count)]
    for key in keys:
        await store.add(key)
    return sorted(keys, key=lambda key: key.id)


class KeySuite:
    async def test_a_key_comes_back_as_it_was(self, store: KeyStore, other: KeyStore) -> None:
        new = issue(
            OWNER,
            NOW,
            name='a "quoted" 100% name',
            tenant="acme",
            scopes=frozenset({Scope.EXEC}),
            lifetime_s=60.5,
            limits=CallerLimits(sessions=3, calls_per_s=0.5),
        )
        await store.add(new.key)
        assert await other.get(new.key.id) == new.key
        parsed = parse_key(new.text)
        assert parsed is not None
        found = await other.get(parsed[0])
        assert found is not None
        assert opens(found, parsed[1])
        assert not opens(found, parsed[1][::-1])

    async def test_unknown_ids(self, store: KeyStore) -> None:
        assert await store.get("aaaaaaaaaaaa") is None
        assert await store.end("aaaaaaaaaaaa", NOW, revoked=True) is None
        await store.record_use({"aaaaaaaaaaaa": NOW})
        assert await store.get("aaaaaaaaaaaa") is None
        assert (await store.page(None)).keys == []

    async def test_an_id_twice(self, store: KeyStore) -> None:
        key = a_key().key
        await store.add(key)
        with pytest.raises(Conflict):
            await store.add(replace(key, tenant="other"))
        assert await store.get(key.id) == key
        await store.add(key)  # the same call again, by a client that did not get the answer
        assert [found.id for found in (await store.page(None)).keys] == [key.id]

    async def test_pages_by_tenant(self, store: KeyStore) -> None:
        mine, others = await added(store, 5), await added(store, 2, tenant="other")
        first = await store.page("acme", limit=3)
        assert list(first.keys) == mine[:3]
        assert first.next is not None
        second = await store.page("acme", after=first.next, limit=3)
        assert list(second.keys) == mine[3:]
        assert second.next is None
        assert list((await store.page("other", limit=2)).keys) == others
        assert (await store.page("other", limit=2)).next is None
        assert list((await store.page("nobody")).keys) == []
        everyone = sorted(mine + others, key=lambda key: key.id)
        assert list((await store.page(None)).keys) == everyone

    async def test_revoked_for_good(self, store: KeyStore, other: KeyStore) -> None:
        key = a_key(lifetime_s=100).key
        await store.add(key)
        revoked = await store.end(key.id, NOW + 10, revoked=True)
        assert revoked == await other.get(key.id)
        assert revoked is not None
        assert (revoked.revoked_at, revoked.expires_at, revoked.state(NOW + 10)) == (
            NOW + 10,
            NOW + 10,
            "revoked",
        )
        # Neither a later revocation nor the end of a rotation changes when it ended.
        for was_revoked in (True, False):
            again = await other.end(key.id, NOW + 50, revoked=was_revoked)
            assert again is not None
            assert (again.revoked_at, again.expires_at) == (NOW + 10, NOW + 10)

    async def test_replaced_with_a_grace(self, store: KeyStore) -> None:
        key = a_key().key
        await store.add(key)
        replaced = await store.end(key.id, NOW + 60, revoked=False, replaced_by="bbbbbbbbbbbb")
        assert replaced is not None
        assert (replaced.state(NOW + 59), replaced.state(NOW + 60)) == ("active", "expired")
        assert replaced.replaced_by == "bbbbbbbbbbbb"
        revoked = await store.end(key.id, NOW + 5, revoked=True)
        assert revoked is not None
        assert (revoked.state(NOW + 5), revoked.replaced_by) == ("revoked", "bbbbbbbbbbbb")

    async def test_ends_at_once_from_many_sides(self, store: KeyStore, other: KeyStore) -> None:
        key = a_key().key
        await store.add(key)
        await asyncio.gather(
            *(
                client.end(key.id, NOW + after, revoked=True)
                for after in range(1, 6)
                for client in (store, other)
            )
        )
        found = await store.get(key.id)
        assert found is not None
        assert found.revoked_at is not None
        assert found.expires_at == NOW + 1

    async def test_uses_never_move_back(self, store: KeyStore, other: KeyStore) -> None:
        [key] = await added(store)
        await store.record_use({key.id: NOW + 5})
        await other.record_use({key.id: NOW + 3})
        found = await store.get(key.id)
        assert found is not None
        assert found.last_used_at == pytest.approx(NOW + 5, abs=0.01)
        await store.end(key.id, NOW + 9, revoked=True)
        [listed] = (await store.page("acme")).keys
        assert listed.last_used_at == pytest.approx(NOW + 5, abs=0.01)

    async def test_changes(self, store: KeyStore, other: KeyStore) -> None:
        nothing = await other.changes()
        assert nothing.keys == []
        assert nothing.everything
        first, second = await added(store, 2)
        changes = await other.changes(nothing.mark)
        assert sorted(key.id for key in changes.keys) == [first.id, second.id]
        assert not changes.everything
        assert (await other.changes(changes.mark)).keys == []
        await store.record_use({first.id: NOW})
        assert (await other.changes(changes.mark)).keys == []
        ended = await store.end(first.id, NOW, revoked=True)
        later = await other.changes(changes.mark)
        assert [replace(key, last_used_at=None) for key in later.keys] == [
            ended and replace(ended, last_used_at=None)
        ]
        everything = await other.changes("a-mark-of:7")
        assert everything.everything
        assert len(everything.keys) == 2

    async def test_many_changes_in_several_answers(self, store: KeyStore, other: KeyStore) -> None:
        keys = await added(store, CHANGES_AT_ONCE + 20)
        found: list[ApiKey] = []
        mark, answers = "", 0
        while True:
            changes = await other.changes(mark)
            assert changes.everything is (answers == 0)
            found += changes.keys
            mark, answers = changes.mark, answers + 1
            if not changes.more:
                break
        assert answers == 2
        assert sorted(key.id for key in found) == [key.id for key in keys]

    async def test_ended_keys_are_forgotten(self, store: KeyStore) -> None:
        kept, revoked = await added(store, 2)
        expired = a_key(lifetime_s=5).key
        await store.add(expired)
        await store.end(revoked.id, NOW + 1, revoked=True)
        assert await store.forget_ended(NOW) == 0
        assert await store.forget_ended(NOW + 6) == 2
        assert list((await store.page(None)).keys) == [kept]
        assert list((await store.page("acme")).keys) == [kept]
        assert [key.id for key in (await store.changes()).keys] == [kept.id]

    async def test_too_many(self, store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """One tenant's keys leave room for another's, and its ended ones for its new ones."""
        monkeypatch.setattr(key_store, "MAX_KEYS_OF_TENANT", 3)
        first, second, third = await added(store, 3)
        with pytest.raises(Conflict, match="3 active keys"):
            await store.add(a_key().key)
        await added(store, tenant="other")
        await store.end(second.id, NOW - 2, revoked=True)
        await store.end(third.id, NOW - 3, revoked=False)
        [new] = await added(store)
        assert {key.id for key in (await store.page("acme")).keys} == {first.id, second.id, new.id}
        [newer] = await added(store)
        assert {key.id for key in (await store.page("acme")).keys} == {first.id, new.id, newer.id}
        with pytest.raises(Conflict, match="3 active keys"):
            await store.add(a_key().key)

    async def test_limits_of_tenants(self, store: KeyStore, other: KeyStore) -> None:
        nothing = await other.changes()
        limits = CallerLimits(sessions=3, cpus=1.5, memory_mb=2048, creates_per_s=0.5, calls_per_s=20)
        [key] = await added(store)
        await store.set_limits("acme", limits)
        changes = await other.changes(nothing.mark)
        assert ([found.id for found in changes.keys], changes.limits) == ([key.id], {"acme": limits})
        assert (await other.changes(changes.mark)).limits == {}
        await store.set_limits("acme", NO_LIMITS)
        await store.set_limits("b", CallerLimits(sessions=0))
        later = await other.changes(changes.mark)
        assert later.limits == {"acme": NO_LIMITS, "b": CallerLimits(sessions=0)}
        assert later.keys == []
        # Whoever asks for everything gets the limits too.
        everything = await store.changes("a-mark-of:7")
        assert everything.everything
        assert everything.limits == later.limits

    async def test_keys_and_limits_in_several_answers(self, store: KeyStore, other: KeyStore) -> None:
        names = [f"t{number}" for number in range(CHANGES_AT_ONCE)]
        keys = await added(store, 10)
        for name in names:
            await store.set_limits(name, CallerLimits(sessions=1))
        ids: list[str] = []
        limited: dict[str, CallerLimits] = {}
        mark = ""
        while True:
            changes = await other.changes(mark)
            ids += [key.id for key in changes.keys]
            limited |= changes.limits
            mark = changes.mark
            if not changes.more:
                break
        assert sorted(ids) == [key.id for key in keys]
        assert sorted(limited) == sorted(names)

    async def test_policies_of_tenants(self, store: KeyStore, other: KeyStore) -> None:
        nothing = await other.changes()
        await store.set_policy("acme", "validation")
        changes = await other.changes(nothing.mark)
        assert (changes.policies, changes.keys) == ({"acme": "validation"}, [])
        assert (await other.changes(changes.mark)).policies == {}
        # Limits and policy leave each other alone.
        limits = CallerLimits(sessions=3)
        await store.set_limits("acme", limits)
        await store.set_limits("b", limits)
        await store.set_policy("b", "team")
        later = await other.changes(changes.mark)
        assert later.policies == {"acme": "validation", "b": "team"}
        assert later.limits == {"acme": limits, "b": limits}
        await store.set_policy("acme", None)
        await store.set_limits("b", NO_LIMITS)
        last = await other.changes(later.mark)
        assert last.policies == {"acme": None, "b": "team"}
        assert last.limits == {"acme": limits, "b": NO_LIMITS}
        everything = await store.changes("a-mark-of:7")
        assert (everything.everything, everything.policies) == (True, last.policies)

    async def test_too_many_tenants_with_a_policy(
        self, store: KeyStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_store, "MAX_TENANTS_WITH_POLICY", 2)
        await store.set_limits("d", CallerLimits(sessions=1))
        for name in ("a", "b", "a"):
            await store.set_policy(name, "validation")
        with pytest.raises(Conflict, match="2 tenants have a policy of their own"):
            await store.set_policy("c", "validation")
        await store.set_policy("d", None)
        await store.set_policy("a", None)
        await store.set_policy("c", "validation")
        given = {name for name, policy in (await store.changes()).policies.items() if policy is not None}
        assert given == {"b", "c"}

    async def test_too_many_tenants_with_limits(
        self, store: KeyStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_store, "MAX_TENANTS_WITH_LIMITS", 2)
        for name in ("a", "b", "a"):
            await store.set_limits(name, CallerLimits(sessions=1))
        with pytest.raises(Conflict, match="2 tenants have limits of their own"):
            await store.set_limits("c", CallerLimits(sessions=1))
        assert set((await store.changes()).limits) == {"a", "b"}
        # A tenant without limits leaves its place to another, and may lose them where all places are taken.
        await store.set_limits("a", NO_LIMITS)
        await store.set_limits("c", CallerLimits(sessions=1))
        await store.set_limits("d", NO_LIMITS)
        limited = {name for name, own in (await store.changes()).limits.items() if own != NO_LIMITS}
        assert limited == {"b", "c"}
