"""What a worker records of commands' output, on a scripted engine and a real disk."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene, full_disk

from sandlot.domain.callers.principal import OWNER, Principal, Scope
from sandlot.domain.errors import Forbidden, NotFound, Unsupported
from sandlot.domain.execution import Channel, ExecRequest, Exited, Output, Started
from sandlot.domain.session import CreateSession, Session
from sandlot.testing.asciicast import Asciicast, parse_asciicast
from sandlot.testing.eventually import eventually
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.recordings import recordings
from sandlot.worker.recordings.files import CONTINUES, CastFile, Name, RecordingFolder
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.recordings.recordings import Recordings
from sandlot.worker.recordings.session_recording import SessionRecording

ADA = Principal("acme", key_id="keyofada")
SESSION = "ses_" + "0" * 32
RECORDED = CreateSession(record=True)


async def raw(worker: OwnWorker, session: Session, caller: Principal = OWNER) -> bytes:
    return b"".join([piece async for piece in worker.acting_for(caller).read_recording(session.id)])


async def cast_of(worker: OwnWorker, session: Session, caller: Principal = OWNER) -> Asciicast:
    return parse_asciicast(await raw(worker, session, caller))


def file_of(scene: Scene, session: Session) -> Path:
    return scene.database.parent / "recordings" / session.tenant / f"{session.id}.cast"


async def run(worker: OwnWorker, session: Session, command: str, **options: Any) -> None:
    await worker.execute(session.id, ExecRequest(command=command, **options))


# --- what is recorded ---------------------------------------------------------------------------------


async def test_only_sessions_that_asked_for_it_are_recorded(scene: Scene) -> None:
    worker = await scene.start(history=HistoryOptions(enabled=False))
    recorded = (await worker.create_session(RECORDED)).session
    other = (await worker.create_session(CreateSession())).session
    for session in (recorded, other):
        await run(worker, session, "hello", exec_id="e1")
    cast = await cast_of(worker, recorded)
    assert cast.shown == "$ hello\r\nhello"
    assert cast.markers == ["sandbox 1", "exec e1 started", "exec e1 ended: ok, exit code 0"]
    with pytest.raises(NotFound, match="created without record=True"):
        await raw(worker, other)
    figures = (await worker.health()).recordings
    assert figures is not None
    assert (figures.sessions, figures.used_bytes) == (1, file_of(scene, recorded).stat().st_size)
    assert file_of(scene, recorded).stat().st_mode & 0o777 == 0o600
    for folder in list(file_of(scene, recorded).parents)[:2]:
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_an_environment_may_record_all_its_sessions(scene: Scene) -> None:
    worker = await scene.start(recipe={"record": True})
    session = (await worker.create_session(CreateSession())).session
    assert session.record
    await run(worker, session, "hello")
    assert (await cast_of(worker, session)).shown == "$ hello\r\nhello"


async def test_a_server_that_records_nothing_says_so(scene: Scene) -> None:
    worker = await scene.start(recordings=RecordingOptions(enabled=False))
    with pytest.raises(Unsupported, match="SANDLOT_RECORDINGS"):
        await worker.create_session(RECORDED)
    assert (await worker.create_session(CreateSession())).created
    assert (await worker.health()).recordings is None


async def test_secrets_are_masked_and_commands_can_be_hidden(scene: Scene) -> None:
    options = RecordingOptions(secrets=["the-servers-key"])
    worker = await scene.start(recordings=options)
    session = (await worker.create_session(CreateSession(record=True, env={"A": "hunter22"}))).session
    await run(worker, session, "echo hunter22 the-servers-key of-the-exec", env={"B": "of-the-exec"})
    assert (await cast_of(worker, session)).shown == "$ echo *** *** ***\r\necho *** *** ***"
    worker = await scene.restart(worker, recordings=RecordingOptions(commands="hashed"))
    await run(worker, session, "ls")
    assert (await cast_of(worker, session)).shown.endswith("$ (command not shown)\r\nls")


async def test_a_command_whose_caller_left_is_recorded_to_its_end(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(RECORDED)).session
    assert session.sandbox_id is not None
    execs = scene.engine.sandboxes[session.sandbox_id].execs
    await (await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="left"))).detach()
    waiting = asyncio.create_task(run(worker, session, "wait", exec_id="gone"))
    await eventually(lambda: _true("gone" in execs), 10, "started")
    waiting.cancel()
    await asyncio.wait({waiting})
    for known in execs.values():
        known.done.set()

    async def ended() -> bool:
        markers = (await cast_of(worker, session)).markers
        return {f"exec {name} ended: ok, exit code 0" for name in ("left", "gone")} <= set(markers)

    await eventually(ended, 10, "both ends are recorded")
    assert (await cast_of(worker, session)).shown.count("wait") == 4  # two prompts and two outputs


async def test_the_end_of_a_session_is_the_end_of_its_recording(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(RECORDED)).session
    await worker.start_exec(session.id, ExecRequest(command="wait", exec_id="e1"))
    await worker.delete_session(session.id)
    cast = await cast_of(worker, session)
    assert cast.markers[-2:] == ["exec e1: end not seen: the session ended", "the session ended"]


# --- who may read it ----------------------------------------------------------------------------------


async def test_only_its_tenant_reads_a_recording(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.acting_for(ADA).create_session(RECORDED)).session
    assert (await cast_of(worker, session, ADA)).markers == ["sandbox 1"]
    with pytest.raises(NotFound, match="does not exist"):
        await raw(worker, session)
    for lacking in (Scope.EXEC, Scope.SESSIONS_READ):
        with pytest.raises(Forbidden):
            await raw(worker, session, Principal("acme", scopes=ADA.scopes - {lacking}))
    for name in ("../../worker.db", f"../acme/{session.id}", ""):
        with pytest.raises(NotFound):
            async for _ in worker.acting_for(ADA).read_recording(name):
                pass


# --- restarts -----------------------------------------------------------------------------------------


async def test_a_recording_continues_after_a_restart(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(RECORDED)).session
    await run(worker, session, "before")
    worker = await scene.restart(worker)
    assert (await worker.get_session(session.id)).record
    await run(worker, session, "after")
    cast = await cast_of(worker, session)
    assert cast.shown == "$ before\r\nbefore$ after\r\nafter"
    assert CONTINUES in cast.markers


async def test_a_line_that_a_crash_cut_is_dropped(scene: Scene) -> None:
    worker = await scene.start()
    session = (await worker.create_session(RECORDED)).session
    await run(worker, session, "before")
    whole = await raw(worker, session)
    await worker.close()
    scene.lives.remove(worker)
    with file_of(scene, session).open("ab") as file:
        file.write(b'[12.5,"o","cut by a cra')
    worker = await scene.start()
    assert await raw(worker, session) == whole
    await run(worker, session, "after")
    assert (await raw(worker, session)).startswith(whole)
    assert "cut by" not in (await cast_of(worker, session)).shown


async def test_a_file_without_a_header_is_begun_again(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "acme" / "x.cast"
    path.parent.mkdir()
    path.write_bytes(b'{"version":2,"wid')
    file = CastFile(path, SESSION, 100_000)
    file.add([lambda cast: cast.note(1.0, "begun")])
    assert parse_asciicast(path.read_bytes()).markers == ["begun"]


async def test_times_do_not_depend_on_when_they_are_written(tmp_path: Path) -> None:
    file = RecordingFolder(tmp_path).file(Name("acme", SESSION), 100_000)
    now = time.time()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: now + 60)
        file.add([lambda cast: cast.note(now + 0.25, "first"), lambda cast: cast.note(now + 1.5, "second")])
    cast = parse_asciicast((tmp_path / "acme" / f"{SESSION}.cast").read_bytes())
    assert cast.events[1].at - cast.events[0].at == pytest.approx(1.25, abs=1e-5)
    assert cast.header["timestamp"] <= now


# --- bounds -------------------------------------------------------------------------------------------


async def test_a_recording_stops_at_its_size_and_the_commands_go_on(scene: Scene) -> None:
    limit = 20_000
    worker = await scene.start(recordings=RecordingOptions(max_session_bytes=limit))
    session = (await worker.create_session(RECORDED)).session
    for number in range(30):
        result = await worker.execute(session.id, ExecRequest(command=f"echo {number} {'x' * 1000}"))
        assert result.stdout.endswith(b"x" * 1000)
    cast = await cast_of(worker, session)
    assert cast.shown.endswith(f"[recording stopped: it has reached {limit} bytes]\r\n")
    assert cast.markers.count(f"recording stopped: it has reached {limit} bytes") == 1
    assert 15_000 < file_of(scene, session).stat().st_size <= limit
    for _ in range(3):  # it does not grow with restarts either
        worker = await scene.restart(worker, recordings=RecordingOptions(max_session_bytes=limit))
        await run(worker, session, "echo more")
    assert file_of(scene, session).stat().st_size <= limit


async def test_much_output_at_once_stops_the_recording_before_it_fills_the_memory(tmp_path: Path) -> None:
    kept = Recordings(tmp_path, RecordingOptions(max_session_bytes=1_000_000))
    await kept.open()
    recording = recording_in(kept)
    for number in range(100):
        recording.output("e1", Output(Channel.STDOUT, number * 65_536, b"x" * 65_536), from_start=True)
    assert recording.stopped is not None
    assert sum(len(getattr(step, "pieces", ())) for step in recording.take()) <= 16
    await kept.close()


async def test_a_disk_that_cannot_keep_up_stops_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MAX_WAITING_BYTES", 100_000)
    kept = Recordings(tmp_path, RecordingOptions())
    await kept.open()
    recording = recording_in(kept)
    for number in range(200):  # the writer gets no turn in between
        recording.output("e1", Output(Channel.STDOUT, number * 1000, b"x" * 1000), from_start=True)
    cast = parse_asciicast(b"".join([piece async for piece in kept.read("acme", SESSION)]))
    assert cast.shown.endswith(f"[{recordings.TOO_SLOW}]\r\n")
    assert 90_000 < cast.shown.count("x") < 110_000
    await kept.close()


async def test_a_full_disk_stops_the_recording_and_not_the_command(scene: Scene) -> None:
    worker = await scene.start(history=HistoryOptions(enabled=False))
    session = (await worker.create_session(RECORDED)).session
    await run(worker, session, "before")
    whole = await raw(worker, session)
    with full_disk():
        result = await worker.execute(session.id, ExecRequest(command="x" * 3_000 + "y" * 20_000))
        assert result.stdout.endswith(b"y")
        assert await raw(worker, session) == whole
    await run(worker, session, "after")
    assert await raw(worker, session) == whole


def test_the_tenant_with_the_most_loses_its_oldest_recordings(tmp_path: Path) -> None:
    folder = RecordingFolder(tmp_path)
    names = [Name(tenant, f"ses_{number:032x}") for number, tenant in enumerate(("small", *["large"] * 4))]
    for age, name in enumerate(reversed(names)):
        path = tmp_path / name.tenant / f"{name.session_id}.cast"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * (900 if name.tenant == "small" else 1000))
        os.utime(path, (1000.0 + age, 1000.0 + age))
    folder.scan()
    assert (folder.count, folder.used_bytes) == (5, 4900)
    # The oldest one of all is the last of the large tenant, but it is being written.
    removed = folder.make_room(3000, being_written={names[4]})
    assert removed == [names[3], names[2]]
    assert folder.make_room(1000, being_written={names[4]}) == [names[1], names[4]]
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_recordings_are_removed_when_they_are_too_old(tmp_path: Path) -> None:
    names = [Name("acme", f"ses_{number:032x}") for number in range(3)]
    (tmp_path / "acme").mkdir()
    for number, name in enumerate(names):
        path = tmp_path / "acme" / f"{name.session_id}.cast"
        path.write_bytes(b"x")
        os.utime(path, (1000.0 * number, 1000.0 * number))
    folder = RecordingFolder(tmp_path)
    folder.scan()
    folder.remove_old(1500.0, being_written={names[0]})
    assert sorted(path.stem for path in (tmp_path / "acme").iterdir()) == [
        names[0].session_id,
        names[2].session_id,
    ]


async def test_a_live_recording_that_makes_room_stops(scene: Scene) -> None:
    worker = await scene.start(recordings=RecordingOptions(max_bytes=6_000))
    first, second = [(await worker.create_session(RECORDED)).session for _ in range(2)]
    for session in (first, second):
        await run(worker, session, "x" * 2_000)
        assert "xxx" in (await cast_of(worker, session)).shown
    with pytest.raises(NotFound, match="removed to make room"):
        await raw(worker, first)
    await run(worker, first, "again")
    with pytest.raises(NotFound, match="removed to make room"):
        await raw(worker, first)
    assert "xxx" in (await cast_of(worker, second)).shown
    figures = (await worker.health()).recordings
    assert figures is not None
    assert (figures.sessions, figures.used_bytes) == (1, file_of(scene, second).stat().st_size)


# --- readers ------------------------------------------------------------------------------------------


def recording_in(kept: Recordings, **options: Any) -> SessionRecording:
    file = kept._folder.file(Name("acme", SESSION), kept._options.max_session_bytes)
    recording = SessionRecording(
        Name("acme", SESSION),
        {},
        file,
        kept._options,
        kept._on_change,
        **options,
    )
    recording.on_start(ExecRequest(command="c", exec_id="e1"))(Started(1, existing=False))
    return recording


def out(offset: int, data: bytes) -> Output:
    return Output(Channel.STDOUT, offset, data)


async def test_each_byte_is_recorded_once_whoever_reads_it(tmp_path: Path) -> None:
    kept = Recordings(tmp_path, RecordingOptions())
    await kept.open()
    recording = recording_in(kept)
    recording.output("e1", out(0, b"abc"), from_start=True)
    recording.seen("e1", out(0, b"abc"))
    recording.seen("e1", out(1, b"bcde"))
    recording.seen("e1", out(9, b"late"))  # a client that attached further on
    recording.seen("e1", Exited(0, 0, "exited", output_bytes=13))  # and has not read all
    recording.output("e1", out(3, b"defghi"), from_start=True)
    recording.output("e1", out(9, b"late"), from_start=True)
    recording.ended("e1", Exited(0, 0, "exited", output_bytes=13))
    recording.seen("e1", Exited(0, 0, "exited", output_bytes=13))
    recording.seen("unknown", out(0, b"of an exec that began before"))
    cast = parse_asciicast(b"".join([piece async for piece in kept.read("acme", SESSION)]))
    assert cast.shown == "$ c\r\nabcdefghilate"
    assert cast.markers.count("exec e1 ended: ok, exit code 0") == 1
    await kept.close()


async def test_output_that_the_agent_did_not_keep_is_a_gap(tmp_path: Path) -> None:
    kept = Recordings(tmp_path, RecordingOptions())
    await kept.open()
    recording = recording_in(kept)
    recording.output("e1", out(0, b"head"), from_start=True)
    recording.output("e1", out(100, b"tail"), from_start=True)
    cast = parse_asciicast(b"".join([piece async for piece in kept.read("acme", SESSION)]))
    assert cast.shown == "$ c\r\nheadtail"
    assert "exec e1: 96 bytes were not kept" in cast.markers
    await kept.close()


async def test_output_within_a_moment_is_one_event(tmp_path: Path) -> None:
    kept, now = Recordings(tmp_path, RecordingOptions()), 1000.0
    await kept.open()
    recording = recording_in(kept, clock=lambda: now)
    for number in range(100):
        recording.output("e1", out(number, b"x"), from_start=True)
    now = 1001.0
    recording.output("e1", out(100, b"later"), from_start=True)
    cast = parse_asciicast(b"".join([piece async for piece in kept.read("acme", SESSION)]))
    assert [event.data for event in cast.events if event.code == "o"] == ["$ c\r\n", "x" * 100, "later"]
    await kept.close()


async def _true(value: bool) -> bool:
    return value
