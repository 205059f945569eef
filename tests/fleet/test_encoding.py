"""A session's few bytes: whole again, also between two versions."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.capacity.machine import MachineUse, Resources
from sandlot.domain.capacity.readiness import Readiness, ReadinessState
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.ids import (
    new_sandbox_id,
    new_session_id,
    new_snapshot_id,
    new_volume_id,
    new_workspace_id,
)
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.session import EndReason, LossReport, OnIdle, Predecessor, Session, SessionState
from sandlot.domain.volumes.volume import SessionVolume, VolumeMode
from sandlot.domain.workspaces.workspace import Workspace
from sandlot.fleet.directory.contract import Room, SessionEntry, WorkerReport
from sandlot.fleet.directory.encoding import (
    as_text,
    pack_entry,
    pack_id,
    pack_report,
    unpack_id,
    unpack_report,
    unpack_session,
)
from sandlot.testing.directory_suite.harness import a_session

TIMES = st.floats(0, 4e9)
LIMITS = st.builds(Limits, st.integers(32 * MIB, 2**40), st.floats(0.05, 1024), st.integers(32, 65_536))
WORKSPACES = st.builds(
    Workspace,
    st.builds(new_workspace_id) | st.just("wsp_i-0123456789abcdef"),
    st.none() | st.integers(1, 2**50),
    st.none() | st.builds(new_snapshot_id, st.just("0a1b2c3d")),
)
VOLUMES = st.builds(
    SessionVolume,
    st.builds(new_volume_id, st.just("0a1b2c3d")),
    st.text(min_size=1),
    st.sampled_from(VolumeMode),
)
POLICIES = st.builds(EgressPolicy, st.just(("pypi.org",)), st.just(("example.com:443",)))
# Lost with the worker that has them, as the report of the loss says.
NOT_RECORDED = {"exposed"}
SESSION_FIELDS: dict[str, st.SearchStrategy[object]] = {
    "id": st.builds(new_session_id),
    "environment": st.sampled_from(["base", "data"]),
    "created_at": TIMES,
    "last_active_at": TIMES,
    "tenant": st.text(max_size=20),
    "thread": st.none() | st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1),
    "state": st.sampled_from(SessionState),
    "generation": st.integers(1, 2**31),
    "sandbox_id": st.none() | st.builds(new_sandbox_id) | st.just("i-0123456789abcdef"),
    "idle_timeout_s": st.none() | TIMES,
    "lifetime_s": st.none() | TIMES,
    "limits": LIMITS,
    "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=3),
    "loss": st.none()
    | st.builds(LossReport, st.integers(1, 9), TIMES, st.text(), st.just(("a",)), st.just(("b", "c"))),
    "predecessor": st.none() | st.builds(Predecessor, st.text(), st.sampled_from(EndReason), TIMES),
    "end_reason": st.none() | st.sampled_from(EndReason),
    "ended_at": st.none() | TIMES,
    "workspace": st.none() | WORKSPACES,
    "on_idle": st.sampled_from(OnIdle),
    "hibernation_s": TIMES,
    "woken_at": st.none() | TIMES,
    "created_by": st.text(max_size=20),
    "record": st.booleans(),
    "network": st.none() | POLICIES,
    "artifacts": st.lists(st.text(min_size=1), max_size=3).map(tuple),
    "volumes": st.lists(VOLUMES, max_size=3).map(tuple),
}
SESSIONS = st.builds(Session, **SESSION_FIELDS)


def test_no_field_is_forgotten() -> None:
    assert SESSION_FIELDS.keys() | NOT_RECORDED == {each.name for each in fields(Session)}


@given(SESSIONS)
def test_whole_again(session: Session) -> None:
    value = pack_entry("w1", SessionEntry(session, idempotency_key="k"))
    assert unpack_session(pack_id(session.id), value) == session


def test_few_bytes() -> None:
    """Of a usual session with a thread: what a million of them take is told in the documentation."""
    value = pack_entry("worker-0001", SessionEntry(a_session(thread="0b1c6f0e-8f2b-4a53-9d0f-3a1b7f5f8d11")))
    assert len(value) < 150


def test_from_a_newer_version() -> None:
    session = a_session(thread="t")
    entry = msgspec.msgpack.decode(_readable(pack_entry("w1", SessionEntry(session))))
    rest = msgspec.msgpack.decode(entry[7])
    rest["new"] = {"unknown": 1}
    entry[7] = as_text(msgspec.msgpack.encode(rest))
    value = msgspec.msgpack.encode([*entry, "more"])
    assert unpack_session(pack_id(session.id), value) == session


def test_from_a_version_that_did_not_count() -> None:
    session = a_session(thread="t", created_by="k")
    parts = msgspec.msgpack.decode(pack_entry("w1", SessionEntry(session)), type=list[msgspec.Raw])
    before = msgspec.msgpack.encode(parts[:8])
    assert unpack_session(pack_id(session.id), before) == replace(session, created_by="")


def test_whether_it_is_recorded() -> None:
    recorded, other = (a_session(record=record) for record in (True, False))
    packed = [pack_entry("w1", SessionEntry(session)) for session in (recorded, other)]
    assert unpack_session(pack_id(recorded.id), packed[0]) == recorded
    assert len(packed[0]) > len(packed[1])  # the usual case takes nothing


def test_a_hibernated_session_in_the_eyes_of_an_earlier_version() -> None:
    """It knows no such state. It sends the session's calls to its worker, and that wakes it."""
    session = a_session(state=SessionState.HIBERNATED, sandbox_id=None, on_idle=OnIdle.HIBERNATE)
    packed = pack_entry("w1", SessionEntry(session))
    assert unpack_session(pack_id(session.id), packed) == session
    details = msgspec.msgpack.decode(msgspec.msgpack.decode(_readable(packed))[7])
    assert details.get("s", "active") == "active"


def test_a_workspace_takes_few_bytes() -> None:
    session = a_session(workspace=Workspace(new_workspace_id(), 2**30))
    packed = [pack_entry("w1", SessionEntry(each)) for each in (session, replace(session, workspace=None))]
    assert unpack_session(pack_id(session.id), packed[0]) == session
    assert len(packed[0]) - len(packed[1]) < 36


def _readable(value: bytes) -> bytes:
    """With the details as bytes, so that any reader of MessagePack takes them."""
    parts = msgspec.msgpack.decode(value, type=list[msgspec.Raw])
    details = bytes(parts[7])
    assert details[0] == 0xD9
    return msgspec.msgpack.encode([*parts[:7], details[2:], *parts[8:]])


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_text_of_any_content(size: int) -> None:
    assert msgspec.msgpack.decode(bytes(as_text(b"x" * size))) == "x" * size


def test_ids() -> None:
    session_id = new_session_id()
    assert len(pack_id(session_id)) == 16
    assert unpack_id(pack_id(session_id)) == session_id
    with pytest.raises(InvalidRequest):
        pack_id("ses_what")


def test_reports() -> None:
    report = WorkerReport({"base": Room(1, 2)}, 3, draining=True, complete=False)
    assert unpack_report(pack_report(report)) == report
    assert unpack_report(b"") is None


def test_a_report_with_its_machine() -> None:
    use = MachineUse(Resources(33 * 1024**3, 16.0, 4_192_256), Resources(512 * MIB, 0.5, 256), 12 * 1024**3)
    report = WorkerReport(room={"base": Room(1, 2)}, machine=use, problems=("the disk is full",))
    whole = unpack_report(pack_report(report))
    assert whole == report
    assert whole is not None
    assert whole.machine is not None
    assert whole.machine.disk_free_bytes == 12 * 1024**3
    # How full the disk is changes all the time; that alone is no reason to report.
    assert report == replace(report, machine=replace(use, disk_free_bytes=5))


def test_a_report_of_what_can_be_made() -> None:
    missing = Readiness("w1", ReadinessState.MISSING, "Image x is not on this machine.", 5.5)
    report = WorkerReport(readiness={"base": missing, "data": Readiness("w1", ReadinessState.READY, warm=2)})
    assert unpack_report(pack_report(report)) == report


def test_a_report_of_an_earlier_version() -> None:
    assert unpack_report(msgspec.msgpack.encode({"room": {}, "sessions": 3})) == WorkerReport(sessions=3)
