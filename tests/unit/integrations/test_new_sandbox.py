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


def test_u4_what_has_no_place_for_it_is_not_taken_for_told() -> None:
    assert add_note(WriteResult(path="/note"), "a word") is False
    failed = WriteResult(error="permission_denied")
    assert add_note(failed, "a word") is True
    assert failed.error == "permission_denied\na word"
