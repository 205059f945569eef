"""Sessions' files on a real worker: kept when the container goes, replaced by a restore, bounded by a quota."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.session import KEPT_FILES, CreateSession, Session, SessionState
from sandlot.domain.workspaces.snapshots import RestoreSnapshot, TakeSnapshot
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.testing.eventually import eventually
from sandlot.testing.workspace_suite.harness import DESCRIBE, MAKE_FILES
from sandlot.wiring import LocalWorker
from tests.service.workers import engine_call, worker

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

TIERS = ["base", "gvisor"]  # environments
QUOTA_MIB = 1024  # of ``worker``'s


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["btrfs", "volume"])
async def service(request: pytest.FixtureRequest) -> AsyncIterator[LocalWorker]:
    storage: Path | None = request.getfixturevalue("btrfs") if request.param == "btrfs" else None
    async with worker(max_execs=10, storage=storage) as started:
        yield started


async def run(service: LocalWorker, session: Session, command: str) -> ExecResult:
    return await service.execute(session.id, ExecRequest(command=command, timeout_s=60))


async def ok(service: LocalWorker, session: Session, command: str) -> str:
    result = await run(service, session, command)
    assert result.exit_code == 0, result
    return result.output.decode()


@pytest_asyncio.fixture(params=TIERS, loop_scope="session")
async def session(request: pytest.FixtureRequest, service: LocalWorker) -> AsyncIterator[Session]:
    opened = await service.create_session(CreateSession(environment=request.param))
    yield opened.session
    await service.delete_session(opened.session.id)


async def test_files_survive_a_removed_container(service: LocalWorker, session: Session) -> None:
    """Twice: the second sandbox was made, or got, the files."""
    await ok(service, session, MAKE_FILES)
    before = await ok(service, session, DESCRIBE)
    for round_number in range(2):
        await engine_call(service, "rm", session.id, "-f")

        async def is_lost() -> bool:
            return (await service.get_session(session.id)).state is SessionState.LOST

        await eventually(is_lost, 30)
        lost = await service.get_session(session.id)
        assert lost.loss is not None
        assert KEPT_FILES in lost.loss.kept
        again = await service.recreate_session(session.id)
        assert again.generation == round_number + 2
        assert await ok(service, session, DESCRIBE) == before
    assert (
        await ok(service, session, "echo more >>one; cat deep/hard; chmod 700 shut; ls shut")
        == "one\nmore\ninside\n"
    )


async def test_a_restore_replaces_the_files(service: LocalWorker, session: Session) -> None:
    await ok(service, session, MAKE_FILES)
    before = await ok(service, session, DESCRIBE)
    snapshot = await service.take_snapshot(session.id, TakeSnapshot("first"))
    await ok(service, session, "chmod 700 shut; rm -rf shut deep one; echo new >new")
    now = await ok(service, session, DESCRIBE)
    later = await service.take_snapshot(session.id, TakeSnapshot("later"))
    for wanted, files in ((snapshot, before), (later, now), (snapshot, before)):
        restored = await service.restore_snapshot(session.id, RestoreSnapshot(wanted.id))
        assert restored.replaced
        assert await ok(service, session, DESCRIBE) == files
    difference = await service.compare_snapshot(snapshot.id, to=later.id)
    assert difference.added == ("new",)
    assert "deep/two" in difference.removed


async def test_a_new_session_begins_with_a_snapshot(service: LocalWorker, session: Session) -> None:
    await ok(service, session, "echo 1 >a")
    snapshot = await service.take_snapshot(session.id, TakeSnapshot())
    forks = [
        (await service.create_session(CreateSession(environment=tier, snapshot=snapshot.id))).session
        for tier in TIERS
    ]
    await asyncio.gather(*(ok(service, fork, f"echo {n} >>a") for n, fork in enumerate(forks)))
    assert [await ok(service, fork, "cat a") for fork in forks] == ["1\n0\n", "1\n1\n"]
    assert await ok(service, session, "cat a") == "1\n"
    for fork in forks:
        await service.delete_session(fork.id)


# SUBVOL_CREATE, SNAP_CREATE_V2 of the workspace itself, SUBVOL_SETFLAGS, and last FICLONE, which may.
MAKE_SUBVOLUMES = """
import fcntl, os, struct
here, made = os.open(".", os.O_RDONLY), []
open("a", "w").write("x" * 9000)
for number, argument in ((0x5000940E, struct.pack("=q4088s", 0, b"new")),
                         (0x50009417, struct.pack("=qQQ32x4040s", here, 0, 0, b"copy")),
                         (0x4008941A, struct.pack("=Q", 2))):
    try:
        fcntl.ioctl(here, number, bytearray(argument))
        made.append(hex(number))
    except OSError:
        pass
try:
    fcntl.ioctl(os.open("b", os.O_RDWR | os.O_CREAT), 0x40049409, os.open("a", os.O_RDONLY))
    made.append("copy of a file")
except OSError:
    pass
print(made, sorted(os.listdir(".")))
"""


async def test_no_sandbox_makes_subvolumes(service: LocalWorker, session: Session) -> None:
    """They would be outside its quota and its snapshots. Any user of a btrfs may make them otherwise."""
    if (await service.get_workspace(session.id)).store is StoreKind.VOLUME:
        pytest.skip("the engine's volumes are not on btrfs here")
    copies = ["copy of a file"] if session.environment == "base" else []  # gVisor has no such call
    assert await ok(service, session, f"python3 -c '{MAKE_SUBVOLUMES}'") == f"{copies} ['a', 'b']\n"


async def test_a_full_workspace_is_full_alone(service: LocalWorker, session: Session) -> None:
    status = await service.get_workspace(session.id)
    if status.workspace.quota_bytes is None:
        pytest.skip(status.note)
    assert status.workspace.quota_bytes == QUOTA_MIB * MIB
    neighbour = (await service.create_session(CreateSession())).session
    # Reserved, not written: that is charged at once, and takes no time.
    result = await run(service, session, f"fallocate -l {QUOTA_MIB + 8}M big")
    assert result.exit_code != 0
    assert b"quota exceeded" in result.output or b"No space left" in result.output, result
    await ok(service, session, f"rm -f big; fallocate -l {QUOTA_MIB - 16}M big")
    result = await run(service, session, "dd if=/dev/urandom of=more bs=1M count=32 conv=fsync")
    assert b"quota exceeded" in result.output or b"No space left" in result.output, result
    assert await ok(service, neighbour, "head -c 20000000 /dev/zero >a; stat -c %s a") == "20000000\n"
    await ok(service, session, "rm big more; head -c 20000000 /dev/zero >a")
    await service.delete_session(neighbour.id)
