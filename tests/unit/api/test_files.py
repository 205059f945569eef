"""Files over HTTP: contents and ranges, archives, changes, and what a browser may do with a download."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile

import pytest
from tests.unit.api.conftest import Live, living

from sandlot.api.v1.downloads import byte_range, content_disposition


async def written(live: Live, path: str = "f.txt", content: bytes = b"0123456789") -> str:
    """The path of a new session's files."""
    files = f"/v1/sessions/{await live.session()}/files"
    answer = await live.client.put(files + "/content", params={"path": path}, content=content)
    assert answer.status_code == 200, answer.text
    assert answer.json()["size"] == len(content)
    return files


async def test_a_file_and_its_folder(live: Live) -> None:
    files = await written(live, "a/b.txt")
    read = await live.client.get(files + "/content", params={"path": "a/b.txt"})
    assert (read.status_code, read.content, read.headers["content-length"]) == (200, b"0123456789", "10")
    assert (await live.client.get(files + "/stat", params={"path": "a"})).json()["type"] == "directory"
    made = await live.client.post(files + "/mkdir", json={"path": "c/d"})
    assert made.json()["name"] == "d"
    moved = await live.client.post(files + "/move", json={"source": "a/b.txt", "destination": "c/d/e.txt"})
    assert moved.json()["path"].endswith("/c/d/e.txt")
    listed = (await live.client.get(files, params={"path": "c/d"})).json()
    assert [entry["name"] for entry in listed["entries"]] == ["e.txt"]
    walked = (await live.client.get(files + "/walk", params={"path": "c"})).json()
    assert [entry["name"] for entry in walked["entries"]] == ["d", "e.txt"]
    found = (await live.client.get(files + "/search", params={"pattern": "345"})).json()
    assert [match["line"] for match in found["matches"]] == [1]
    assert (await live.client.delete(files, params={"path": "c"})).status_code == 400
    assert (await live.client.delete(files, params={"path": "c", "recursive": True})).json()["removed"] == 3
    missing = await live.client.get(files + "/content", params={"path": "c/d/e.txt"})
    assert missing.status_code == 404
    assert missing.json()["details"]["reason"] == "not_found"


async def test_exclusive_and_mode(live: Live) -> None:
    files = await written(live)
    again = await live.client.put(
        files + "/content", params={"path": "f.txt", "exclusive": True}, content=b""
    )
    assert again.status_code == 409
    ran = await live.client.put(files + "/content", params={"path": "run", "mode": 0o755}, content=b"x")
    assert ran.json()["mode"] & 0o777 == 0o755


@pytest.mark.parametrize(
    ("header", "status", "content", "where"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-1000", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=" + ",".join(["0-0"] * 10_000), 200, b"0123456789", None),
    ],
)
async def test_ranges(live: Live, header: str, status: int, content: bytes | None, where: str | None) -> None:
    files = await written(live)
    async with asyncio.timeout(15):
        read = await live.client.get(files + "/content", params={"path": "f.txt"}, headers={"Range": header})
    assert (read.status_code, read.headers.get("content-range")) == (status, where)
    if content is not None:
        assert read.content == content


def test_ranges_of_an_empty_file() -> None:
    assert byte_range("", 0) is None


async def test_a_page_made_in_a_sandbox_is_never_ours(live: Live) -> None:
    files = await written(live, "x.html", b"<script>alert(1)</script>")
    headers = (await live.client.get(files + "/content", params={"path": "x.html"})).headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["content-disposition"].startswith("attachment;")
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]


def test_a_files_name_cannot_leave_its_header() -> None:
    assert content_disposition('a"b\r\nSet-Cookie: x;ü.txt') == (
        "attachment; filename=\"a_b__Set-Cookie_ x__.txt\"; filename*=UTF-8''a%22b%0D%0ASet-Cookie%3A%20x%3B%C3%BC.txt"
    )
    assert content_disposition("\udcff") == "attachment; filename=\"_\"; filename*=UTF-8''%FF"


async def test_archives(live: Live) -> None:
    files = await written(live, "a/b.txt")
    tar = (await live.client.get(files + "/archive", params={"path": "a"})).content
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert any(name.endswith("b.txt") for name in archive.getnames())
    unpacked = await live.client.put(files + "/archive", params={"path": "copy"}, content=tar)
    assert unpacked.json()["bytes"] == 10
    walked = (await live.client.get(files + "/walk", params={"path": "copy", "glob": "b.txt"})).json()
    assert len(walked["entries"]) == 1
    broken = await live.client.put(files + "/archive", content=b"not a tar" * 200)
    assert (broken.status_code, broken.json()["code"]) == (422, "invalid_request")


async def test_changes(live: Live) -> None:
    files = await written(live)
    async with live.client.stream("GET", files + "/watch", params={"path": "."}) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: ready"
        await live.client.put(files + "/content", params={"path": "new.txt"}, content=b"x")
        async with asyncio.timeout(20):
            while "new.txt" not in (line := await anext(lines)):
                pass
            assert json.loads(line[6:]) == {"type": "create", "path": "/workspace/new.txt"}
    assert (await live.client.get(files + "/watch", params={"path": "none"})).status_code == 404


async def test_a_name_that_is_not_utf8_does_not_break_a_listing(live: Live) -> None:
    files = await written(live)
    session_id = files.split("/")[3]
    await live.service.files(session_id).write("bad\udcff", b"")
    listed = await live.client.get(files)
    assert listed.status_code == 200
    assert "bad\ufffd" in [entry["name"] for entry in listed.json()["entries"]]


async def test_upload_over_the_limit() -> None:
    async with living(max_upload_bytes=100_000) as live:
        files = await written(live)
        large = await live.client.put(files + "/content", params={"path": "big"}, content=b"x" * 100_001)
        assert (large.status_code, large.json()["code"]) == (413, "too_large")

        async def endless():  # type: ignore[no-untyped-def]
            for _ in range(1000):
                yield b"x" * 1000

        chunked = await live.client.put(files + "/content", params={"path": "big"}, content=endless())
        assert (chunked.status_code, chunked.json()["code"]) == (413, "too_large")
        assert (await live.client.get(files + "/stat", params={"path": "big"})).status_code == 404
        exact = await live.client.put(files + "/content", params={"path": "ok"}, content=b"x" * 100_000)
        assert exact.status_code == 200
