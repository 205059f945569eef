"""U4: that a sandbox is not the one which the conversation had is said once, whichever tool comes first."""

from __future__ import annotations

import pytest
from deepagents.backends.protocol import WriteResult

from sandlot import AsyncClient
from sandlot.integrations import model_text, toolbox
from sandlot.integrations.deepagents.operation import add_note
from sandlot.testing.fake import FakeService

SAID = "this is a new, empty sandbox"


@pytest.fixture
async def client() -> AsyncClient:
    """Of a thread whose first sandbox has been deleted."""
    client = AsyncClient(service=FakeService())
    first = await client.thread("t")
    await first.run("true")
    await first.delete()
    return client


async def test_u4_file_tools_say_it_once(client: AsyncClient) -> None:
    first = await toolbox.write_file(await client.thread("t"), "note", "kept")
    assert SAID in first.text
    for _ in range(3):
        assert SAID not in (await toolbox.read_file(await client.thread("t"), "note")).text
    assert SAID not in (await toolbox.bash(await client.thread("t"), "true")).text


async def test_u4_also_in_another_process(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SAID in (await toolbox.list_files(await client.thread("t"), ".")).text
    monkeypatch.setattr(
        model_text, "_sandboxes_with_execs", set()
    )  # which a process of its own would not know
    assert SAID not in (await toolbox.list_files(await client.thread("t"), ".")).text


async def test_u4_a_command_that_says_it_runs_nothing_beside_itself(client: AsyncClient) -> None:
    session = await client.thread("t")
    assert SAID in (await toolbox.bash(session, "echo x")).text
    assert [summary.command for summary in await session.execs()] == ["echo x"]


async def test_u4_each_predecessor_is_told_of(client: AsyncClient) -> None:
    for _ in range(2):
        session = await client.thread("t")
        assert SAID in (await toolbox.list_files(session, ".")).text
        assert SAID not in (await toolbox.list_files(await client.thread("t"), ".")).text
        await session.delete()


async def test_after_a_loss_the_model_reads_that_its_files_are_kept() -> None:
    service = FakeService()
    client = AsyncClient(service=service)
    session = await client.thread("t")
    await toolbox.write_file(session, "note", "kept")
    service.lose(session.id)
    lost = await toolbox.bash(await client.thread("t"), "cat note")
    assert lost.failed
    assert "Kept: files in /workspace" in lost.text
    again = await toolbox.restart(await client.thread("t"))
    assert "new sandbox with the files in /workspace" in again.text
    assert SAID not in again.text
    assert (await toolbox.bash(await client.thread("t"), "cat note")).text == "kept"


async def test_what_replaced_a_lost_sandbox_is_said_once() -> None:
    service = FakeService()
    client = AsyncClient(service=service)
    await toolbox.write_file(await client.thread("t"), "note", "kept")
    service.lose((await client.thread("t")).id)
    first = await toolbox.read_file(await client.thread("t", recreate_lost=True), "note")
    assert "its files in /workspace are still here" in first.text
    assert "still here" not in (await toolbox.read_file(await client.thread("t"), "note")).text


def test_u4_what_has_no_place_for_it_is_not_taken_for_told() -> None:
    assert add_note(WriteResult(path="/note"), "a word") is False
    failed = WriteResult(error="permission_denied")
    assert add_note(failed, "a word") is True
    assert failed.error == "permission_denied\na word"
