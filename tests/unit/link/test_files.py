"""Files over the link: streaming, bounds, refusals."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from sandlot.domain.errors import FileProblem, InvalidRequest, LinkInterrupted
from sandlot.domain.files import FileChange, FileChangeType
from sandlot.wire.frames import Kind, encode, encode_credit

ENTRY = {
    "path": "/workspace/a",
    "name": "a",
    "type": "file",
    "size": 3,
    "mode": 0o644,
    "mtime_ms": 1,
    "uid": 1000,
    "gid": 1000,
}


@pytest.fixture
async def helper(scene) -> Any:
    """The files link, up."""
    core = await scene.core()
    opening = asyncio.create_task(scene.link.files())
    peer = await scene.files(core)
    await opening
    return peer


def entry(name: str, **changes: Any) -> dict:
    return {**ENTRY, "name": name, "path": f"/workspace/{name}", **changes}


async def asked(helper, call, *answers: dict) -> tuple[dict, Any]:
    """What was asked, and what came of it when these messages are the answer."""
    task = asyncio.create_task(call)
    number, request = await helper.request()
    for answer in answers:
        helper.message(number, answer)
    helper.end(number)
    return request, await task


async def test_one_answer_operations(scene, helper) -> None:
    files = scene.agent.files
    request, got = await asked(
        helper, files.stat("a", follow=False), {"entry": entry("a", type="symlink", target="b")}
    )
    assert request == {"op": "file.stat", "path": "a", "follow": False}
    assert (got.type, got.target, got.mode) == ("symlink", "b", 0o644)
    request, _ = await asked(helper, files.mkdir("d", mode=0o700), {"entry": entry("d", type="directory")})
    assert request == {"op": "file.mkdir", "path": "d", "parents": True, "mode": 0o700}
    request, _ = await asked(helper, files.move("a", "b", overwrite=True), {"entry": entry("b")})
    assert request == {"op": "file.move", "source": "a", "destination": "b", "overwrite": True}
    request, removed = await asked(helper, files.remove("a", recursive=True), {"removed": 4})
    assert removed == 4
    assert request == {"op": "file.remove", "path": "a", "recursive": True, "missing_ok": False}


async def test_collected_answers(scene, helper) -> None:
    files = scene.agent.files
    _, page = await asked(
        helper, files.list("."), {"entries": [entry("a")]}, {"entries": [entry("b")], "next": "b"}
    )
    assert ([item.name for item in page.entries], page.next) == (["a", "b"], "b")
    _, page = await asked(helper, files.list("."), {"entries": [], "next": None})
    assert page.next is None
    _, walk = await asked(helper, files.walk(".", glob="**"), {"entries": [entry("a")], "truncated": True})
    assert walk.truncated
    _, found = await asked(
        helper,
        files.search(".", "x"),
        {"matches": [{"path": "a", "line": 1, "text": "x"}], "truncated": False},
    )
    assert [match.line for match in found.matches] == [1]


async def test_names_that_are_not_utf8_go_both_ways(scene, helper) -> None:
    """Any program inside can make such a file: seeing it must not cost the link."""
    name = os.fsdecode(b"caf\xe9")
    task = asyncio.create_task(scene.agent.files.list(name))
    frame = await helper.until(Kind.OPEN)
    assert b'"caf\\udce9"' in frame.body
    helper.raw(
        encode(Kind.MESSAGE, frame.stream, json.dumps({"entries": [entry(name)], "next": name}).encode())
    )
    helper.end(frame.stream)
    page = await task
    assert (page.entries[0].name, page.next) == (name, name)
    with pytest.raises(InvalidRequest):
        await scene.agent.files.search(".", name)


async def test_answer_beyond_what_was_asked_closes_the_link(scene, helper) -> None:
    with pytest.raises(LinkInterrupted):
        await asked(
            helper, scene.agent.files.list(".", limit=1), {"entries": [entry("a"), entry("b")], "next": None}
        )
    assert scene.link.failure is None


@pytest.mark.parametrize("body", [{"entries": []}, {"entries": None, "next": None}, {"next": None}], ids=repr)
async def test_incomplete_listing_closes_the_link(scene, helper, body) -> None:
    with pytest.raises(LinkInterrupted):
        await asked(helper, scene.agent.files.list("."), body)


@pytest.mark.parametrize(
    "code",
    [
        "not_found",
        "exists",
        "permission_denied",
        "not_a_directory",
        "is_a_directory",
        "no_space",
        "too_large",
    ],
)
async def test_refusals_are_file_problems(scene, helper, code) -> None:
    task = asyncio.create_task(scene.agent.files.stat("some/where"))
    number, _ = await helper.request()
    helper.reset(number, code)
    with pytest.raises(FileProblem) as caught:
        await task
    assert (caught.value.reason, caught.value.path) == (code, "some/where")


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800"])
async def test_what_cannot_be_a_path_is_not_asked(scene, path) -> None:
    with pytest.raises(FileProblem) as caught:
        await scene.agent.files.stat(path)
    assert caught.value.reason == "invalid_path"
    with pytest.raises(InvalidRequest):
        await scene.agent.files.list(".", limit=0)


async def serve_read(helper, content: bytes, offset: int = 0, **last: Any) -> None:
    number, _ = await helper.request()
    helper.message(number, {"entry": entry("a", size=offset + len(content))})
    for at in range(0, len(content), 1000):
        helper.data(number, content[at : at + 1000], offset=offset + at)
    helper.answer(number, {"bytes": len(content), "truncated": False, **last})


async def test_read_streams(scene, helper) -> None:
    content = bytes(range(250)) * 10
    serving = scene.script(serve_read(helper, content, offset=5))
    assert b"".join([piece async for piece in scene.agent.files.read("a", offset=5)]) == content
    await serving
    serving = scene.script(serve_read(helper, content))
    assert await scene.agent.files.read_bytes("a") == content
    await serving


async def test_abandoned_read_resets(scene, helper) -> None:
    serving = scene.script(serve_read(helper, bytes(200_000)))
    reading = scene.agent.files.read("a")
    await anext(reading)
    await reading.aclose()
    await serving
    mux = await scene.link.files()
    assert mux._streams == {}


async def test_read_bytes_is_bounded(scene, helper) -> None:
    scene.script(serve_read(helper, bytes(5000)))
    with pytest.raises(FileProblem) as caught:
        await scene.agent.files.read_bytes("a", max_bytes=4999)
    assert caught.value.reason == "too_large"


async def test_file_that_grows_while_it_is_read_is_too_large(scene, helper) -> None:
    scene.script(serve_read(helper, bytes(5000), truncated=True))
    with pytest.raises(FileProblem) as caught:
        await scene.agent.files.read_bytes("a", max_bytes=5000)
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize("wrong", [{"bytes": 1}, {"bytes": -1}, {"bytes": None}], ids=repr)
async def test_read_that_does_not_add_up_closes_the_link(scene, helper, wrong) -> None:
    scene.script(serve_read(helper, b"abc", **wrong))
    with pytest.raises(LinkInterrupted):
        await scene.agent.files.read_bytes("a")


async def chunks(*pieces: bytes) -> Any:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize("content", [b"", b"abc", bytes(1_000_000), "stream"], ids=["0", "3", "1M", "stream"])
async def test_write_streams(scene, helper, content) -> None:
    source = chunks(b"abc", b"", bytes(300_000)) if content == "stream" else content
    expected = b"abc" + bytes(300_000) if content == "stream" else content
    task = asyncio.create_task(scene.agent.files.write("a", source, mode=0o600))
    number, request = await helper.request()
    assert (request["op"], request["mode"]) == ("file.write", 0o600)
    got = b""
    while (frame := await helper.frame()).kind is Kind.DATA:
        assert frame.offset == len(got)
        got += frame.body
        helper.raw(encode_credit(number, 9 + len(frame.body)))
    assert frame.kind is Kind.END
    assert got == expected
    helper.answer(number, {"entry": entry("a")})
    assert (await task).name == "a"


async def test_write_stops_when_it_is_refused(scene, helper) -> None:
    task = asyncio.create_task(scene.agent.files.write("a", bytes(10**6)))
    number, _ = await helper.request()
    helper.reset(number, "no_space")
    with pytest.raises(FileProblem) as caught:
        await task
    assert caught.value.reason == "no_space"


async def test_write_whose_source_fails_is_reset(scene, helper) -> None:
    async def failing() -> Any:
        yield b"abc"
        raise ZeroDivisionError

    task = asyncio.create_task(scene.agent.files.write("a", failing()))
    await helper.request()
    await helper.until(Kind.RESET)
    with pytest.raises(ZeroDivisionError):
        await task


async def test_archives(scene, helper) -> None:
    async def serve() -> None:
        number, request = await helper.request()
        assert request == {"op": "archive.read", "path": "."}
        helper.data(number, b"tar", offset=0)
        helper.data(number, b"ball", offset=3)
        helper.answer(number, {"bytes": 7, "files": 1})
        number, request = await helper.request()
        assert request == {"op": "archive.write", "path": "d", "max_files": 5}
        await helper.until(Kind.END)
        helper.answer(number, {"files": 1, "bytes": 7})

    scene.script(serve())
    files = scene.agent.files
    assert b"".join([piece async for piece in files.read_archive(".")]) == b"tarball"
    summary = await files.write_archive("d", chunks(b"tarball"), max_files=5)
    assert (summary.files, summary.bytes) == (1, 7)


async def test_watch(scene, helper) -> None:
    async def serve() -> None:
        number, request = await helper.request()
        assert request == {"op": "file.watch", "path": "d", "recursive": True}
        helper.message(number, {"ready": True})
        helper.message(
            number, {"events": [{"type": "create", "path": "d/a"}, {"type": "write", "path": "d/a"}]}
        )
        helper.message(number, {"overflow": True})
        assert (await helper.frame()).kind is Kind.RESET, "and no END before: it would have ended the watch"

    serving = scene.script(serve())
    async with scene.agent.files.watch("d", recursive=True) as changes:
        got = [await anext(changes) for _ in range(3)]
    assert got == [
        FileChange(FileChangeType.CREATE, "d/a"),
        FileChange(FileChangeType.WRITE, "d/a"),
        FileChange(FileChangeType.OVERFLOW, ""),
    ]
    await asyncio.wait_for(serving, 5)


async def test_watch_whose_link_breaks(scene, helper) -> None:
    async def serve() -> None:
        number, _ = await helper.request()
        helper.message(number, {"ready": True})
        await helper.drain()
        await asyncio.sleep(0.01)
        helper.close()

    scene.script(serve())
    async with scene.agent.files.watch("d") as changes:
        with pytest.raises(LinkInterrupted):
            await anext(changes)
