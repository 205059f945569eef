"""Scopes: every call of the contract needs one, and a key without it is refused before anything happens."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from sandlot.domain.callers.principal import (
    ALL_SCOPES,
    NOBODY,
    USER_SCOPES,
    Principal,
    Scope,
    check_tenant,
    parse_scopes,
)
from sandlot.domain.callers.scoped_service import ScopedService, scoped
from sandlot.domain.errors import Forbidden, InvalidRequest
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession
from sandlot.testing import FakeService

NEEDED = {
    "create_session": {Scope.SESSIONS_WRITE},
    "get_session": {Scope.SESSIONS_READ},
    "list_sessions": {Scope.SESSIONS_READ},
    "update_session": {Scope.SESSIONS_WRITE},
    "recreate_session": {Scope.SESSIONS_WRITE},
    "delete_session": {Scope.SESSIONS_WRITE},
    "execute": {Scope.EXEC},
    "execute_in_thread": {Scope.EXEC, Scope.SESSIONS_WRITE},
    "start_exec": {Scope.EXEC},
    "attach_exec": {Scope.EXEC},
    "get_exec": {Scope.EXEC},
    "list_execs": {Scope.EXEC},
    "signal_exec": {Scope.EXEC},
    "kill_exec": {Scope.EXEC},
    "resize_exec": {Scope.EXEC},
    "list_shells": {Scope.EXEC},
    "close_shell": {Scope.EXEC},
    "files": {Scope.FILES},
    "get_usage": {Scope.SESSIONS_READ},
    "get_network": {Scope.SESSIONS_READ},
    "change_network": {Scope.NETWORK},
    "connect": {Scope.NETWORK},
    "expose_port": {Scope.NETWORK},
    "unexpose_port": {Scope.NETWORK},
    "list_exposed": {Scope.SESSIONS_READ},
    "list_events": {Scope.SESSIONS_READ},
    "read_recording": {Scope.SESSIONS_READ, Scope.EXEC},
    "catalogue": {Scope.SESSIONS_READ},
}
FREE = {"health", "close"}
CREATE = CreateSession()


class Called(Exception):
    """Raised by ``Recorder`` for every call that got through."""


class Recorder:
    def __getattr__(self, name: str) -> Any:
        def call(*_: object, **__: object) -> Any:
            raise Called(name)

        return call


async def call(service: SandboxService, name: str) -> None:
    method = getattr(service, name)
    required = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    positional = [
        CREATE if "CreateSession" in str(parameter.annotation) else None
        for parameter in required
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    keywords = {
        parameter.name: None for parameter in required if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    answer = method(*positional, **keywords)
    if inspect.isawaitable(answer):
        await answer


def test_every_call_of_the_contract_is_decided_on() -> None:
    contract = {name for name in vars(SandboxService) if not name.startswith("_")}
    assert contract == NEEDED.keys() | FREE
    assert contract <= vars(ScopedService).keys()


@pytest.mark.parametrize("name", NEEDED)
async def test_what_a_call_needs_is_enough_and_nothing_less_is(name: str) -> None:
    def holding(scopes: frozenset[Scope]) -> ScopedService:
        return ScopedService(Recorder(), Principal("t", scopes))  # type: ignore[arg-type]

    with pytest.raises(Called, match=name):
        await call(holding(frozenset(NEEDED[name])), name)
    for missing in NEEDED[name]:
        with pytest.raises(Forbidden, match=missing.value) as refused:
            await call(holding(ALL_SCOPES - {missing}), name)
        assert refused.value.details == {"scope": missing.value}
        assert not refused.value.retryable
        assert not refused.value.may_have_executed


async def test_a_policy_of_its_own_needs_the_scope_network() -> None:
    asking = CreateSession(thread="t", network=parse_policy(["pypi"]))
    allowed = Principal("t", frozenset({Scope.SESSIONS_WRITE, Scope.EXEC}))
    service = ScopedService(Recorder(), allowed)  # type: ignore[arg-type]
    for refused in (service.create_session(asking), service.execute_in_thread(asking, None)):  # type: ignore[arg-type]
        with pytest.raises(Forbidden, match="network"):
            await refused


async def test_nobody_may_do_nothing() -> None:
    service = FakeService().acting_for(NOBODY)
    for name in NEEDED:
        with pytest.raises(Forbidden):
            await call(service, name)
    health = await service.health()
    assert (health.active_sessions, health.pools, health.problems, health.workers) == (0, {}, (), None)


def test_a_caller_who_may_do_everything_pays_for_no_check() -> None:
    service = FakeService()
    assert scoped(service, Principal("t", USER_SCOPES)) is service


@pytest.mark.parametrize("tenant", ["", "A", "a b", "a:b", "-a", "a-", "a" * 65, "ä", "a/b", "a\n"])
def test_what_is_no_tenant(tenant: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid tenant"):
        check_tenant(tenant)


def test_what_is_a_tenant() -> None:
    assert [check_tenant(name) for name in ("a", "team-1", "acme.dev_2", "a" * 64)]


def test_scopes_are_parsed_strictly() -> None:
    assert parse_scopes(["exec", "files"]) == {Scope.EXEC, Scope.FILES}
    with pytest.raises(InvalidRequest, match=r"Unknown scope 'execs'\. Did you mean 'exec'\? Scopes are: "):
        parse_scopes(["exec", "execs"])
