"""Artifacts on a worker's disk: hostile files, limits, retention, leftovers, and damage."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene
from tests.unit.worker.scripted import Engine

from sandlot.domain.artifacts.artifact import KeptArtifacts, NotKept
from sandlot.domain.callers.principal import Principal
from sandlot.domain.errors import FileProblem, NotFound, SandboxLost, StorageFull, StorageProblem
from sandlot.domain.files import Walk
from sandlot.domain.session import CreateSession, Session
from sandlot.testing.eventually import eventually
from sandlot.testing.fake.files import FakeFiles
from sandlot.testing.fake.tree import Tree
from sandlot.worker.artifacts import artifacts
from sandlot.worker.artifacts.options import ArtifactOptions

KIB = 1024


class Files(FakeFiles):
    """A sandbox's files, which may do what the test wants while they are read."""

    def __init__(self) -> None:
        self.tree = Tree()
        super().__init__(lambda: self.tree)
        self.instead: dict[str, AsyncIterator[bytes]] = {}

    def put(self, path: str, data: bytes = b"x") -> None:
        self.tree.write(f"/workspace/{path}", data, mode=None, parents=True, exclusive=False)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        pieces = self.instead.get(path.removeprefix("/workspace/"))
        if pieces is None:
            pieces = super().read(path, offset=offset, length=length)
        async for piece in pieces:
            yield piece


class Kept:
    """A worker with one session, whose files are ``files``."""

    def __init__(self, worker: OwnWorker, session: Session, files: Files, folder: Path) -> None:
        self.worker = worker
        self.session = session
        self.files = files
        self.folder = folder / "artifacts"

    async def keep(self, *paths: str) -> KeptArtifacts:
        return await self.worker.keep_artifacts(self.session.id, paths)

    async def paths(self) -> list[str]:
        return [artifact.path for artifact in (await self.worker.list_artifacts()).artifacts]

    async def content(self, artifact_id: str) -> bytes:
        return b"".join([piece async for piece in self.worker.read_artifact(artifact_id)])

    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())

    @property
    def live_session(self) -> Any:
        return self.worker._parts.sessions.table.by_id(self.session.id)


async def kept_by(scene: Scene, engine: Engine, *, artifacts: tuple[str, ...] = (), **options: Any) -> Kept:
    worker = await scene.start(artifacts=ArtifactOptions(**options), min_free_bytes=0)
    session = (await worker.create_session(CreateSession(artifacts=artifacts))).session
    files = Files()
    engine.sandboxes[session.sandbox_id or ""].files = files  # type: ignore[assignment]
    return Kept(worker, session, files, scene.database.parent)


async def test_artifacts_stay_over_a_restart(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("out/a.txt", b"content" * 100_000)
    [artifact] = (await kept.keep("out")).kept
    await kept.worker.delete_session(kept.session.id)
    kept.worker = await scene.restart(kept.worker)
    assert await kept.content(artifact.id) == b"content" * 100_000
    assert (await kept.worker.list_artifacts()).artifacts == (artifact,)


async def test_equal_contents_of_a_tenant_are_one_file(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a", b"same")
    kept.files.put("b", b"same")
    first, second = (await kept.keep("a", "b")).kept
    assert kept.on_disk() == [hashlib.sha256(b"same").hexdigest()]
    await kept.worker.delete_artifact(first.id)
    assert await kept.content(second.id) == b"same"
    await kept.worker.delete_artifact(second.id)
    assert kept.on_disk() == []


async def test_tenants_share_no_file(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a", b"same")
    [mine] = (await kept.keep("a")).kept
    other = kept.worker.acting_for(Principal("other"))
    session = (await other.create_session(CreateSession())).session
    engine.sandboxes[session.sandbox_id or ""].files = kept.files  # type: ignore[assignment]
    [theirs] = (await other.keep_artifacts(session.id, ["a"])).kept
    assert len(kept.on_disk()) == 2
    await other.delete_artifact(mine.id)
    with pytest.raises(NotFound):
        await other.get_artifact(mine.id)
    await kept.worker.delete_artifact(mine.id)
    assert [piece async for piece in other.read_artifact(theirs.id)] == [b"same"]


# --- hostile files --------------------------------------------------------------------------------


async def test_a_file_without_an_end_is_refused(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, max_file_bytes=100 * KIB)
    kept.files.put("endless")
    kept.files.put("good")
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(64 * KIB)
        finally:
            closed.set()

    kept.files.instead["endless"] = endless()
    done = await kept.keep("endless", "good")
    assert [(file.path, file.reason) for file in done.refused] == [("endless", NotKept.TOO_LARGE)]
    assert await kept.paths() == ["good"]
    assert len(kept.on_disk()) == 1
    await kept.files.instead["endless"].aclose()  # type: ignore[attr-defined]
    assert closed.is_set()


async def test_what_is_read_is_kept_whatever_its_size_was(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("grows", b"12345")

    async def more() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"grown"

    kept.files.instead["grows"] = more()
    [artifact] = (await kept.keep("grows")).kept
    assert (artifact.size, await kept.content(artifact.id)) == (15, b"grown" * 3)
    assert artifact.sha256 == hashlib.sha256(b"grown" * 3).hexdigest()


async def test_a_file_that_cannot_be_read_does_not_keep_others_out(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    for path in ("a", "b", "c"):
        kept.files.put(path)

    async def broken(reason: str) -> AsyncIterator[bytes]:
        yield b"begun"
        raise FileProblem("it is gone", reason=reason, path="x")

    kept.files.instead = {"a": broken("not_found"), "b": broken("not_regular")}
    done = await kept.keep("*")
    assert [(file.path, file.reason) for file in done.refused] == [
        ("a", NotKept.UNREADABLE),
        ("b", NotKept.UNREADABLE),
    ]
    assert await kept.paths() == ["c"]
    assert len(kept.on_disk()) == 1


async def test_names_that_are_no_text_are_refused(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("bad\udcff")
    kept.files.put("d" * 200 + "/" + "\n")
    done = await kept.keep("**")
    assert [(file.path, file.reason) for file in done.refused] == [("bad?", NotKept.NAME)]
    assert [artifact.path for artifact in done.kept] == ["d" * 200 + "/\n"]


async def test_paths_outside_that_a_sandbox_claims_are_ignored(
    scene: Scene, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a")
    honest = (await kept.files.walk("/workspace")).entries[0]

    async def lying(path: str, *, depth: int = 0, glob: str | None = None, limit: int = 10_000) -> Walk:
        claimed = ("/etc/passwd", "/workspace/../etc/passwd", "/workspace", "relative", "/workspace/a")
        return Walk(tuple(replace(honest, path=each) for each in claimed), truncated=False)

    monkeypatch.setattr(kept.files, "walk", lying)
    assert [artifact.path for artifact in (await kept.keep("**")).kept] == ["a"]


async def test_one_call_keeps_a_limited_number(
    scene: Scene, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_FILES", 5)
    kept = await kept_by(scene, engine)
    for number in range(6):
        kept.files.put(f"many/{number}", b"same")
    done = await kept.keep("many", "many/5*")
    assert len(done.kept) == 5
    assert {file.reason for file in done.refused} == {NotKept.TOO_MANY}


async def test_a_cancelled_caller_leaves_nothing_half_written(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("slow")
    begun = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(2 * KIB * KIB)
        begun.set()
        await asyncio.Event().wait()

    kept.files.instead["slow"] = slow()
    keeping = asyncio.create_task(kept.keep("slow"))
    await begun.wait()
    assert len(kept.on_disk()) == 1
    keeping.cancel()
    await asyncio.wait({keeping})
    assert kept.on_disk() == []
    assert await kept.paths() == []


async def test_a_sandbox_that_is_lost_meanwhile_is_the_callers_to_know(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a")
    kept.files.put("b")

    async def lost() -> AsyncIterator[bytes]:
        yield b"begun"
        raise SandboxLost("the container was removed")

    kept.files.instead["b"] = lost()
    with pytest.raises(SandboxLost):
        await kept.keep("a", "b")
    assert await kept.paths() == ["a"]
    assert len(kept.on_disk()) == 1


# --- limits and retention -------------------------------------------------------------------------


async def test_a_session_that_has_kept_enough_is_refused(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, max_session_bytes=10, max_session_count=3)
    kept.files.put("a", b"123456")
    kept.files.put("b", b"1234567")
    done = await kept.keep("a", "b")
    assert [artifact.path for artifact in done.kept] == ["a"]
    assert [(file.path, file.reason) for file in done.refused] == [("b", NotKept.SESSION_FULL)]
    # What is kept already is not refused.
    assert (await kept.keep("a")).kept == done.kept
    await kept.worker.delete_artifact(done.kept[0].id)
    assert [artifact.path for artifact in (await kept.keep("b")).kept] == ["b"]
    for path in ("c", "d", "e"):
        kept.files.put(path, b"")
    assert [file.path for file in (await kept.keep("c", "d", "e")).refused] == ["e"]


async def test_the_oldest_of_a_tenant_go_by_count_and_by_size(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, max_count=3, max_tenant_bytes=100)
    for number in range(5):
        kept.files.put(str(number), bytes([number]))
        await kept.keep(str(number))
    assert await kept.paths() == ["2", "3", "4"]
    kept.files.put("large", bytes(99))
    await kept.keep("large")
    assert await kept.paths() == ["4", "large"]
    kept.files.put("larger", bytes(101))
    assert [file.reason for file in (await kept.keep("larger")).refused] == [NotKept.TOO_LARGE]
    assert await kept.paths() == ["4", "large"]
    assert len(kept.on_disk()) == 2


async def test_another_tenants_artifacts_do_not_go(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, max_count=1)
    kept.files.put("a")
    other = kept.worker.acting_for(Principal("other"))
    session = (await other.create_session(CreateSession())).session
    engine.sandboxes[session.sandbox_id or ""].files = kept.files  # type: ignore[assignment]
    await other.keep_artifacts(session.id, ["a"])
    for number in range(3):
        kept.files.put(str(number), bytes([number]))
        await kept.keep(str(number))
    assert await kept.paths() == ["2"]
    assert len((await other.list_artifacts()).artifacts) == 1


async def test_old_artifacts_go(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, max_age_s=100)
    keeper = kept.worker._parts.artifacts
    now = 1000.0
    keeper._clock = lambda: now
    kept.files.put("old", b"1")
    await kept.keep("old")
    now += 60
    kept.files.put("new", b"2")
    await kept.keep("new")
    now += 60
    await keeper.sweep()
    assert await kept.paths() == ["new"]
    assert len(kept.on_disk()) == 1


async def test_a_disk_without_space_is_an_error(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a")
    kept.worker._parts.artifacts._contents._min_free_bytes = 2**62
    with pytest.raises(StorageFull, match="The artifact was not kept"):
        await kept.keep("a")
    assert kept.on_disk() == []
    kept.worker._parts.artifacts._contents._min_free_bytes = 0
    assert len((await kept.keep("a")).kept) == 1


# --- declared files -------------------------------------------------------------------------------


async def test_declared_files_come_from_environment_and_request(scene: Scene, engine: Engine) -> None:
    worker = await scene.start(recipe={"artifacts": ("report.txt", "out/*")})
    session = (await worker.create_session(CreateSession(artifacts=("out/*", "/workspace/log")))).session
    assert session.artifacts == ("report.txt", "out/*", "log")
    worker = await scene.restart(worker)
    assert (await worker.get_session(session.id)).artifacts == session.artifacts


async def test_declared_files_are_kept(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, artifacts=("a", "none", "b"))
    kept.files.put("a")
    kept.files.put("b")

    async def broken() -> AsyncIterator[bytes]:
        yield b"begun"
        raise FileProblem("it is gone", reason="not_found", path="a")

    kept.files.instead["a"] = broken()
    await kept.worker._parts.artifacts.keep_declared(kept.live_session)
    assert await kept.paths() == ["b"]


async def test_nothing_a_sandbox_does_keeps_its_session_alive(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine, artifacts=("first", "stalls"), declared_within_s=0.05)
    kept.files.put("first")
    kept.files.put("stalls")

    async def stalls() -> AsyncIterator[bytes]:
        yield b"begun"
        await asyncio.Event().wait()

    async def misbehaves() -> AsyncIterator[bytes]:
        yield b"begun"
        raise ValueError("no frame of ours")

    keep_declared = kept.worker._parts.artifacts.keep_declared
    kept.files.instead["stalls"] = stalls()
    await keep_declared(kept.live_session)
    kept.files.instead["stalls"] = misbehaves()
    await keep_declared(kept.live_session)
    assert await kept.paths() == ["first"]
    assert len(kept.on_disk()) == 1
    kept.live_session.mark_unresponsive()
    kept.files.instead["stalls"] = stalls()
    await keep_declared(kept.live_session)  # asks nothing of a sandbox that does not answer


# --- what an earlier life left --------------------------------------------------------------------


async def test_a_start_removes_what_has_no_record(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a", b"known")
    [artifact] = (await kept.keep("a")).kept
    await kept.worker.close()
    scene.lives.remove(kept.worker)
    [known] = [path for path in kept.folder.rglob("*") if path.is_file()]
    (kept.folder / "incoming" / "art_left").write_bytes(b"half")
    stray = known.with_name("f" * 64)
    stray.write_bytes(b"stored and not recorded")
    elsewhere = kept.folder / "kept" / ("0" * 32) / "ab"
    elsewhere.mkdir(parents=True)
    (elsewhere / known.name).write_bytes(b"of nobody")
    kept.worker = await scene.start()
    assert [path for path in kept.folder.rglob("*") if path.is_file()] == [known]
    assert await kept.content(artifact.id) == b"known"


@pytest.mark.parametrize("where", [0, -1])
async def test_a_flipped_bit_is_found(scene: Scene, engine: Engine, where: int) -> None:
    kept = await kept_by(scene, engine)
    data = bytes(3 * KIB * KIB)
    kept.files.put("a", data)
    [artifact] = (await kept.keep("a")).kept
    [file] = [path for path in kept.folder.rglob("*") if path.is_file()]
    damaged = bytearray(data)
    damaged[where] ^= 1
    file.write_bytes(damaged)
    pieces: list[bytes] = []

    async def read() -> None:
        async for piece in kept.worker.read_artifact(artifact.id):
            pieces.append(piece)

    with pytest.raises(StorageProblem, match="damaged"):
        await read()
    assert sum(map(len, pieces)) < len(data), "nobody takes it for the whole"
    file.unlink()
    with pytest.raises(StorageProblem):
        await kept.content(artifact.id)


async def test_nobody_else_can_read_the_folder(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    kept.files.put("a")
    await kept.keep("a")
    assert {
        path.stat().st_mode & 0o077 for path in [kept.folder, *kept.folder.rglob("*")] if path.is_dir()
    } == {0}


async def test_many_at_once(scene: Scene, engine: Engine) -> None:
    kept = await kept_by(scene, engine)
    for number in range(20):
        kept.files.put(str(number), bytes([number % 5]))
    done = await asyncio.gather(*(kept.keep("*") for _ in range(5)))
    first = done[0].kept
    assert all({one.id for one in each.kept} == {one.id for one in first} for each in done)
    assert len(await kept.paths()) == 20
    await asyncio.gather(*(kept.worker.delete_artifact(one.id) for one in first for _ in range(2)))

    def nothing_left() -> bool:
        return kept.on_disk() == []

    await eventually(nothing_left)
