"""Secrets on the worker's disk and in its memory."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from structlog.typing import EventDict

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import Conflict
from sandlot.domain.execution import ExecRequest
from sandlot.domain.history.events import Event
from sandlot.domain.history.recorder import Recorder
from sandlot.domain.network.hosts import parse_target
from sandlot.domain.secrets import secret as limits
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import Secret
from sandlot.domain.session import Session
from sandlot.worker.secrets import vault as vault_module
from sandlot.worker.secrets.store import FILE_NAME, SecretStore
from sandlot.worker.secrets.vault import Vault

A = Secret(
    "a", "value-of-a-1", ("a.test", "*.b.test:8443"), parse_placement("?k={secret}"), ("x", "y"), ("ml",)
)
TARGET = parse_target("a.test:443")
SECONDS = 20.0


async def test_secrets_come_back_as_they_were_set(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    await store.open()
    b = Secret("b", "value-of-b", ("b.test",), parse_placement("Authorization: Bearer {secret}"))
    await store.set(b)
    await store.set(A)
    assert await store.all() == [A, b]
    assert await store.remove("b")
    assert not await store.remove("b")
    await store.close()
    again = SecretStore(tmp_path)
    await again.open()
    assert await again.all() == [A]
    await again.close()


async def test_nobody_else_can_read_the_file_and_old_values_are_gone_from_it(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    await store.open()
    await store.set(A)
    await store.set(Secret("a", "another-value", A.hosts, A.placement))
    await store.set(Secret("b", "removed-value", A.hosts, A.placement))
    await store.remove("b")
    found = [file for file in tmp_path.iterdir() if file.name.startswith(FILE_NAME)]
    assert found
    for file in found:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert b"value-of-a-1" not in file.read_bytes()
        assert b"removed-value" not in file.read_bytes()
    await store.close()


async def test_there_is_an_end_to_how_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.worker.secrets.store.MAX_SECRETS", 2)
    store = SecretStore(tmp_path)
    await store.open()
    for name in "ab":
        await store.set(Secret(name, "some-value", A.hosts, A.placement))
    await store.set(Secret("a", "another-value", A.hosts, A.placement))
    with pytest.raises(Conflict, match="has 2 secrets"):
        await store.set(Secret("c", "some-value", A.hosts, A.placement))
    await store.close()
    # With more than the history can look for, it would mask every command.
    assert limits.MAX_SECRETS < 256


async def test_a_vault_gives_a_secret_to_those_it_is_for(tmp_path: Path) -> None:
    store = SecretStore(tmp_path)
    await store.open()
    await store.set(A)
    vault = Vault(tmp_path)
    await vault.open()
    assert vault.find("a", "x", "ml", TARGET) == A
    assert vault.find("a", "x", "ml", parse_target("c.b.test:8443")) == A
    for name, tenant, environment, target in (
        ("b", "x", "ml", TARGET),
        ("a", "default", "ml", TARGET),
        ("a", "x", "base", TARGET),
        ("a", "x", "ml", parse_target("b.test:443")),
        ("a", "x", "ml", parse_target("a.test:80")),
    ):
        assert vault.find(name, tenant, environment, target) is None
    await vault.close()
    await store.close()


async def test_a_vault_follows_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of what is masked is one list, so whoever has it masks new values too."""
    monkeypatch.setattr(vault_module, "FOLLOW_S", 0.01)
    store, vault = SecretStore(tmp_path), Vault(tmp_path, also=("the-servers-key",))
    await store.open()
    await vault.open()
    masked = vault.masked
    assert masked == ["the-servers-key"]

    async def until(expected: list[str]) -> None:
        async with asyncio.timeout(SECONDS):
            while masked != expected:
                await asyncio.sleep(0.01)

    await store.set(A)
    await until(["the-servers-key", A.value])
    assert vault.find("a", "x", "ml", TARGET) == A
    await store.remove("a")
    await until(["the-servers-key"])
    assert vault.find("a", "x", "ml", TARGET) is None
    await vault.close()
    await store.close()


async def test_logs_have_names_and_no_values(tmp_path: Path, logged: list[EventDict]) -> None:
    store = SecretStore(tmp_path)
    await store.open()
    await store.set(A)
    vault = Vault(tmp_path)
    await vault.open()
    await vault.close()
    await store.close()
    assert "'a'" in str(logged)
    assert A.value not in str(logged)


async def test_the_history_masks_a_secret_that_was_set_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault_module, "FOLLOW_S", 0.01)
    store, vault = SecretStore(tmp_path), Vault(tmp_path)
    await store.open()
    await vault.open()
    events: list[Event] = []
    recorder = Recorder(events.append, "tag", secrets=vault.masked)
    await store.set(A)
    async with asyncio.timeout(SECONDS):
        while not vault.masked:
            await asyncio.sleep(0.01)
    request = ExecRequest(command=f"curl -H 'Authorization: {A.value}' https://a.test", exec_id="e")
    session = Session(id="ses_1", environment="base", created_at=0, last_active_at=0)
    recorder.exec_started(session, request, {}, OWNER)
    assert "curl -H 'Authorization: ***'" in str(events)
    assert A.value not in str(events)
    await vault.close()
    await store.close()
