"""``sandlot.run``: on a server that is named, on one that is not, and refused before anything is made."""

from __future__ import annotations

import pytest
from tests.service.served import served

import sandlot
from sandlot.client.sync import one_off
from sandlot.domain.errors import Unavailable
from sandlot.testing import FakeService


async def in_thread(*args: object, **options: object) -> object:
    import asyncio

    return await asyncio.to_thread(lambda: sandlot.run(*args, **options))  # type: ignore[arg-type]


async def test_a_command_in_a_sandbox_that_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    async with served(service, api_key="key") as url:
        result = await in_thread("cat; exit 3", url=url, api_key="key", stdin="input", timeout=5)
        assert isinstance(result, sandlot.Result)
        assert (result.exit_code, result.stdout) == (3, "input")
        monkeypatch.setenv("SANDLOT_URL", url)
        monkeypatch.setenv("SANDLOT_API_KEY", "key")
        assert (await in_thread(["echo", "a  b"], check=True)).stdout == "a  b\n"  # type: ignore[attr-defined]
        with pytest.raises(sandlot.CommandFailed):
            await in_thread("false", check=True)
        with pytest.raises(TypeError, match="timeout"):
            await in_thread("true", timeot=1)
    assert len(service.calls) == 3
    assert (await service.list_sessions()).sessions == ()


async def test_a_named_server_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only without a name does the command run locally: nobody expects it elsewhere."""
    monkeypatch.setattr(one_off.Client, "local", lambda **_: pytest.fail("it must not run here"))
    with pytest.raises(Unavailable):
        await in_thread("true", url="http://127.0.0.1:9")


def test_without_a_server_a_worker_here_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    monkeypatch.delenv("SANDLOT_URL", raising=False)
    monkeypatch.setattr("sandlot.config.client_settings.DEFAULT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(one_off.Client, "local", lambda **_: sandlot.Client(service=service))
    assert sandlot.run("echo here").output == "here\n"
