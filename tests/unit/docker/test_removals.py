"""Removals: once however many ask, and repeated while what they remove is still being made."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Container

import pytest

from sandlot.domain.errors import Conflict, EngineProblem, LinkInterrupted, SandlotError, StorageFull
from sandlot.providers import removals
from sandlot.providers.docker.agent_setup import wait_for_agent
from sandlot.providers.host_errors import host_errors
from sandlot.providers.removals import Removals


async def _nothing(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "FIRST_RETRY_DELAY_S", 0.001)


async def test_beside_a_create_it_is_repeated_until_all_is_gone() -> None:
    making = {"sbx"}
    tries = 0

    async def remove(_: str, keep: Container[str]) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            making.clear()
        if tries < 3:
            raise Conflict("volume is in use")

    await Removals(_nothing, remove, making).destroy("sbx")
    assert tries == 3


@pytest.mark.parametrize("making", [set(), {"sbx"}])
async def test_what_cannot_be_removed_is_told(making: set[str]) -> None:
    async def remove(_: str, keep: Container[str]) -> None:
        raise EngineProblem("broken")

    with pytest.raises(EngineProblem, match="broken"):
        await Removals(_nothing, remove, making).destroy("sbx")


async def test_two_who_ask_are_one_removal() -> None:
    removed: list[str] = []

    async def remove(sandbox_id: str, keep: Container[str]) -> None:
        await asyncio.sleep(0.01)
        removed.append(sandbox_id)

    made = Removals(_nothing, remove, ())
    await asyncio.gather(made.destroy("sbx"), made.destroy("sbx"))
    assert removed == ["sbx"]
    assert not made.under_way


class _Link:
    def __init__(self, failure: SandlotError | None) -> None:
        self.failure = failure

    async def wait_ready(self, _: float) -> None:
        raise self.failure or LinkInterrupted("the agent did not connect within 30 s")


@pytest.mark.parametrize(
    ("failure", "said"),
    [(None, "did not answer within 30 s"), (LinkInterrupted("the worker lets go"), "the worker lets go")],
)
async def test_why_an_agent_is_not_waited_for(failure: SandlotError | None, said: str) -> None:
    with pytest.raises(EngineProblem, match=said) as caught:
        await wait_for_agent(_Link(failure), 30.0)  # type: ignore[arg-type]
    assert ("within" in caught.value.message) == (failure is None)
    assert caught.value.retryable


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EMFILE, EngineProblem)])
def test_s13_paths_of_the_host_are_for_the_log(number: int, kind: type[SandlotError]) -> None:
    with pytest.raises(kind) as caught, host_errors("make sandbox x"):
        raise OSError(number, "no", "/var/lib/sandlot/docker/s/x")
    assert "/var/lib" not in caught.value.message
    assert "make sandbox x" in caught.value.message
