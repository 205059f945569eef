"""The package cache, through the proxy, with a registry that is a stand-in on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.unit.network.registry_rig import WHEEL, Index, caching, tag_of
from tests.unit.network.rig import SECONDS, Rig, eventually, proxying

from sandlot.domain.packages.registries import NPM_SHORT, PYPI_JSON
from sandlot.worker.network.broker.broker import Broker
from sandlot.worker.network.cache.package_cache import PackageCache

SIMPLE = "http://gateway.sandlot/pypi/simple"


def files(index: Index) -> str:
    assert index.host is not None
    return f"http://gateway.sandlot/pypi/files/index.test:{index.host.port}"


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def how(answer: bytes) -> bytes:
    return answer.split(b"x-sandlot-cache: ")[1].split(b"\r\n")[0]


async def test_a_page_leads_to_files_through_the_gateway(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        page = await rig.get(f"{SIMPLE}/A/", "Accept: text/html", "Authorization: Basic c2VjcmV0")
        path = f"{files(index)}/f/a-1.whl".removeprefix("http://gateway.sandlot")
        assert body(page) == f'<a href="{path}#sha256=00">a-1.whl</a>'.encode()
        first, second = [await rig.get(f"{files(index)}/f/a-1.whl") for _ in range(2)]
        assert body(first) == body(second) == WHEEL
        assert (how(first), how(second)) == (b"miss", b"hit")
        assert b"immutable" in second
        assert index.paths() == ["/simple/a/", "/f/a-1.whl"]
        # The registry learns nothing of the program but what it wants.
        assert set(index.asked[0][1]) == {"host", "user-agent", "accept", "accept-encoding", "connection"}
        assert index.asked[0][1]["user-agent"].startswith("sandlot/")
        assert rig.proxy.traffic.received_bytes >= 2 * len(WHEEL)


async def test_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        index.type = "application/json"
        page = await rig.get("http://gateway.sandlot/npm/b", f"Accept: {NPM_SHORT}")
        assert index.asked[0][1]["accept"] == NPM_SHORT
        tarball = json.loads(body(page))["versions"]["1"]["dist"]["tarball"]
        assert tarball == "http://gateway.sandlot/npm/b/-/b-1.tgz"
        assert [body(await rig.get(tarball)) for _ in range(2)] == [b"tarball"] * 2
        assert index.paths() == ["/npm/b", "/npm/b/-/b-1.tgz"]


async def test_a_page_is_asked_for_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with caching(monkeypatch, tmp_path, fresh_s=60) as (rig, index):
        answers = [await rig.get(f"{SIMPLE}/a/") for _ in range(2)]
        assert [how(answer) for answer in answers] == [b"miss", b"hit"]
        assert len(index.asked) == 1
        index.now += 60
        same = await rig.get(f"{SIMPLE}/a/")
        assert body(same) == body(answers[0])
        assert index.asked[1][1]["if-none-match"] == tag_of(index.pages["/simple/a/"])
        assert how(await rig.get(f"{SIMPLE}/a/")) == b"hit"  # the registry said that it is still so
        index.now += 60
        index.pages["/simple/a/"] += b"new"
        assert body(await rig.get(f"{SIMPLE}/a/")).endswith(b"new")
        assert len(index.asked) == 3


async def test_a_program_that_knows_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, _):
        tag = (await rig.get(f"{SIMPLE}/a/")).split(b"etag: ")[1].split(b"\r\n")[0].decode()
        answer = await rig.get(f"{SIMPLE}/a/", f"If-None-Match: {tag}")
        assert answer.startswith(b"HTTP/1.1 304 ")
        assert body(answer) == b""


async def test_forms_of_a_page_are_kept_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        await rig.get(f"{SIMPLE}/a/")
        index.type, index.pages["/simple/a/"] = PYPI_JSON, b'{"files":[]}'
        assert body(await rig.get(f"{SIMPLE}/a/", f"Accept: {PYPI_JSON}")) == b'{"files":[]}'
        assert body(await rig.get(f"{SIMPLE}/a/")).startswith(b"<a ")
        assert [headers["accept"] for _, headers in index.asked] == ["text/html", PYPI_JSON]


async def test_the_registry_is_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        await rig.get(f"{SIMPLE}/a/")
        index.now += 3600
        index.status = 503
        stale = await rig.get(f"{SIMPLE}/a/")
        assert how(stale) == b"stale"
        assert body(stale).startswith(b"<a ")
        unknown = await rig.get(f"{files(index)}/f/a-1.whl")
        assert unknown.startswith(b"HTTP/1.1 502 ")
        assert b"answers with status 503" in unknown


async def test_one_download_for_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each sees the bytes as they come, and one that leaves does not disturb the others."""
    async with caching(monkeypatch, tmp_path) as (rig, index):
        index.go_on.clear()
        reader, writer = await rig.connect()
        writer.write(f"GET {files(index)}/f/a-1.whl HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1000) == WHEEL[:1000]
        others = [asyncio.create_task(rig.get(f"{files(index)}/f/a-1.whl")) for _ in range(20)]
        await eventually(lambda: rig.proxy.traffic.open == 21)  # none of them ends before it may go on
        pages = [asyncio.create_task(rig.get(f"{SIMPLE}/a/")) for _ in range(20)]
        writer.transport.abort()
        index.go_on.set()
        assert {body(answer) for answer in await asyncio.gather(*others)} == {WHEEL}
        assert len({body(answer) for answer in await asyncio.gather(*pages)}) == 1
        assert sorted(index.paths()) == ["/f/a-1.whl", "/simple/a/"]


async def test_a_download_that_nobody_wants_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path, linger_s=0.1) as (rig, index):
        index.piece, index.pause_s = 1000, 0.1
        reader, writer = await rig.connect()
        writer.write(f"GET {files(index)}/f/a-1.whl HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        new = tmp_path / "packages/new"
        await eventually(lambda: not list(new.iterdir()))
        assert list((tmp_path / "packages/blobs").glob("*/*")) == []
        index.piece, index.pause_s = 1_000_000, 0.0
        assert body(await rig.get(f"{files(index)}/f/a-1.whl")) == WHEEL
        assert index.paths() == ["/f/a-1.whl"] * 2


async def test_a_reader_that_comes_back_finds_its_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """uv asks for the head of a wheel first."""
    async with caching(monkeypatch, tmp_path) as (rig, index):
        index.go_on.clear()
        get = f"GET {files(index)}/f/a-1.whl HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n".encode()
        assert (await rig.exchange(get.replace(b"GET", b"HEAD", 1))).startswith(b"HTTP/1.1 200 ")
        getting = asyncio.create_task(rig.exchange(get))
        index.go_on.set()
        assert body(await getting) == WHEEL
        assert index.paths() == ["/f/a-1.whl"]


async def test_a_download_that_breaks_off_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        index.cut = 200_000
        broken = body(await rig.get(f"{files(index)}/f/a-1.whl"))
        assert len(broken) < len(WHEEL)
        assert WHEEL.startswith(broken)
        index.cut = None
        answer = await rig.get(f"{files(index)}/f/a-1.whl")
        assert (how(answer), body(answer)) == (b"miss", WHEEL)


async def test_the_cache_stays_below_its_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was not used for the longest time goes first."""
    async with caching(monkeypatch, tmp_path, max_bytes=100_000) as (rig, index):
        for name in "abcd":
            index.pages[f"/f/{name}.whl"] = name.encode() * 30_000
            index.now += 100
            await rig.get(f"{files(index)}/f/{name}.whl")
            await rig.get(f"{files(index)}/f/a.whl")
        kept = [file.stat().st_size for file in (tmp_path / "packages/blobs").glob("*/*")]
        assert sum(kept) <= 100_000
        index.asked.clear()
        assert how(await rig.get(f"{files(index)}/f/a.whl")) == b"hit"
        assert how(await rig.get(f"{files(index)}/f/d.whl")) == b"hit"
        assert how(await rig.get(f"{files(index)}/f/b.whl")) == b"miss"
        index.pages["/f/huge.whl"] = bytes(50_001)
        refused = await rig.get(f"{files(index)}/f/huge.whl")
        assert refused.startswith(b"HTTP/1.1 502 ")
        assert b"larger than 50000 bytes" in refused


async def test_equal_files_are_kept_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        index.pages["/f/same.whl"] = WHEEL
        for name in ("a-1.whl", "same.whl"):
            assert body(await rig.get(f"{files(index)}/f/{name}")) == WHEEL
        [blob] = (tmp_path / "packages/blobs").glob("*/*")
        assert blob.name == hashlib.sha256(WHEEL).hexdigest()
        assert blob.read_bytes() == WHEEL
        assert blob.stat().st_mode & 0o077 == 0


async def test_what_is_kept_survives_a_restart_and_what_is_damaged_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        await rig.get(f"{files(index)}/f/a-1.whl")
        cache = _cache_of(rig)
        await cache.close()
        left = tmp_path / "packages/new/left-behind"
        left.write_bytes(b"half a file")
        stray = tmp_path / "packages/blobs/00/0000"
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"of no entry")
        again = PackageCache(
            tmp_path / "packages", 10_000_000, cache.registries.values(), rig.dialer, clock=lambda: index.now
        )
        await again.open()
        _set_cache(rig, again)
        assert not left.exists()
        assert not stray.exists()
        assert how(await rig.get(f"{files(index)}/f/a-1.whl")) == b"hit"
        [blob] = (tmp_path / "packages/blobs").glob("*/*")
        blob.write_bytes(WHEEL[:10])
        answer = await rig.get(f"{files(index)}/f/a-1.whl")
        assert (how(answer), body(answer)) == (b"miss", WHEEL)
        [blob] = (tmp_path / "packages/blobs").glob("*/*")
        blob.unlink()
        assert body(await rig.get(f"{files(index)}/f/a-1.whl")) == WHEEL
        await again.close()


def _cache_of(rig: Rig) -> PackageCache:
    broker: Broker | None = rig.proxy.broker
    assert broker is not None
    assert broker.packages is not None
    return broker.packages


def _set_cache(rig: Rig, cache: PackageCache) -> None:
    broker: Broker | None = rig.proxy.broker
    assert broker is not None
    broker.packages = cache


async def test_the_policy_decides_who_may_use_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the registry's own name, whichever mirror the worker asks."""
    async with caching(monkeypatch, tmp_path, policy=["npm"]) as (rig, index):
        denied = await rig.get(f"{SIMPLE}/a/")
        assert denied.startswith(b"HTTP/1.1 403 Sandlot denied pypi.org:443 (not allowed)")
        assert index.asked == []
        rig.egress = rig.egress.with_grant("pypi", rig.now, 10)
        assert (await rig.get(f"{SIMPLE}/a/")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST {simple}/a/", b"405"),
        ("PUT {simple}/a/", b"405"),
        ("GET {simple}/", b"404"),
        ("GET {simple}/nothing/", b"404"),
        ("GET http://gateway.sandlot/pypi/files/evil.test/x", b"404"),
        ("GET http://gateway.sandlot/pypi/files/evil.test/../x", b"400"),
        ("GET http://gateway.sandlot/npm/-/v1/search?text=x", b"404"),
    ],
)
async def test_what_the_cache_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request_line: str, status: bytes
) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        line = request_line.format(simple=SIMPLE)
        answer = await rig.exchange(f"{line} HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert index.paths() in ([], ["/simple/nothing/"])


async def test_head_and_requests_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        get = f"GET {files(index)}/f/a-1.whl HTTP/1.1\r\nHost: gateway.sandlot\r\n\r\n".encode()
        await rig.exchange(get)
        answer = await rig.exchange(get.replace(b"GET", b"HEAD", 1) + get)
        head, rest = answer.split(b"\r\n\r\n", 1)
        assert b"content-length: %d" % len(WHEEL) in head
        assert rest.startswith(b"HTTP/1.1 200 ")
        assert body(rest) == WHEEL


@pytest.mark.parametrize(
    ("location", "reached"),
    [
        (
            "https://index.test:{port}/f/a-1.whl",
            False,
        ),  # loopback is not public, and a redirect may not go there
        ("http://index.test/f/a-1.whl", False),
        ("https://169.254.169.254/x", False),
        ("//index.test/x", False),
        ("", False),
        ("/f/other.whl", False),
    ],
)
async def test_a_redirect_leads_to_no_private_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str, reached: bool
) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        assert index.host is not None
        index.status, index.type = 302, location.format(port=index.host.port)
        answer = await rig.get(f"{files(index)}/f/a-1.whl")
        assert answer.startswith(b"HTTP/1.1 502 "), answer
        assert index.paths() == ["/f/a-1.whl"]


async def test_caps_hold_for_what_comes_from_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with caching(monkeypatch, tmp_path) as (rig, index):
        await rig.get(f"{files(index)}/f/a-1.whl")
        used = rig.proxy.traffic.received_bytes
        policy = {"allow": ["pypi"], "caps": {"bytes": used + 100_000}}
        async with proxying(policy, worker=rig, broker=rig.proxy.broker) as other:
            answers = [await other.get(f"{files(index)}/f/a-1.whl") for _ in range(3)]
            assert how(answers[0]) == b"hit"
            assert answers[-1].startswith(b"HTTP/1.1 403 ")
            assert b"caps: bytes" in answers[-1]


async def test_nothing_is_asked_for_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Requests of a session that has ended must not keep those of others waiting."""
    async with caching(monkeypatch, tmp_path, pages_at_once=1, at_once=1) as (rig, index):
        assert index.host is not None
        cache = _cache_of(rig)
        registry = cache.registries["pypi"]
        for path, slots in (
            ("/simple/a{}/", cache._page_slots),
            (f"/files/index.test:{index.host.port}/f/a-{{}}.whl", cache._slots),
        ):
            async with slots:
                wanted = [registry.wanted(path.format(number), "") for number in range(20)]
                asking = [
                    asyncio.create_task(cache.get(registry, each)) for each in wanted if each is not None
                ]
                await eventually(lambda: len(cache._tasks) == 20)
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
                await eventually(lambda: not cache._tasks)
        assert index.paths() == []
        assert how(await rig.get(f"{SIMPLE}/a/")) == b"miss"


async def test_requests_that_are_given_up_leave_no_file_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At whichever step: each of the waits in between is cut short once."""

    def files_open() -> int:
        return sum("packages/" in os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors())

    async with caching(monkeypatch, tmp_path) as (rig, index):
        assert index.host is not None
        cache = _cache_of(rig)
        registry = cache.registries["pypi"]
        port = index.host.port
        for path in ("/simple/a/", f"/files/index.test:{port}/f/a-1.whl"):
            wanted = registry.wanted(path, "")
            assert wanted is not None
            for known in (False, True):
                for steps in range(30):
                    index.now += 3600 if path.startswith("/simple") else 0
                    getting = asyncio.create_task(cache.get(registry, wanted))
                    for _ in range(steps):
                        await asyncio.sleep(0 if known else 0.001)
                    if getting.done():
                        getting.result().source.close()
                        break
                    getting.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await getting
            content = await cache.get(registry, wanted)
            content.source.close()
        await eventually(lambda: files_open() == _of_database())


def _descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def _of_database() -> int:
    return sum("packages.sqlite3" in os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors())
