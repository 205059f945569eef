"""Domain → body → JSON → body → domain is the identity, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.domain.capacity.limits import MIB, LimitChange, Limits
from sandlot.domain.code.contexts import Cell, CreateContext, Language
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import (
    Channel,
    ExecRequest,
    ExecResult,
    Exited,
    OnLimit,
    Output,
    PtySize,
    Started,
    Verdict,
    verdict_of,
)
from sandlot.domain.ids import new_snapshot_id, new_workspace_id
from sandlot.domain.network.decisions import Denied
from sandlot.domain.service import ExecStatus, Opened, SessionPage, ThreadRun
from sandlot.domain.session import (
    MAX_TIMEOUT_S,
    NEVER,
    CreateSession,
    EndReason,
    LossReport,
    OnIdle,
    Session,
    SessionChange,
    SessionState,
)
from sandlot.domain.workspaces.snapshots import (
    Difference,
    Restored,
    RestoreSnapshot,
    Snapshot,
    SnapshotPage,
    TakeSnapshot,
)
from sandlot.domain.workspaces.workspace import StoreKind, Workspace, WorkspaceStatus
from sandlot.wire.code.context_bodies import CreateContextBody, RunCellBody
from sandlot.wire.event_bodies import EVENT_BODIES, event_body, event_of
from sandlot.wire.exec_bodies import (
    ExecBody,
    ExecStatusBody,
    ResultBody,
    ThreadRunBody,
    bytes_of,
    text_and_base64,
    verdict_for_sdk,
)
from sandlot.wire.http_bodies import CreateSessionBody, SessionBody, SessionChangeBody, SessionPageBody
from sandlot.wire.packed import (
    RESULT,
    STATUS,
    THREAD_RUN,
    DecodedThreadRun,
    PackedResult,
    PackedStatus,
    PackedThreadRun,
    ResultDecoder,
)
from sandlot.wire.workspaces.snapshot_bodies import RestoreBody, RestoredBody, TakeSnapshotBody

T = TypeVar("T")
# Values with dozens of parts: fewer of them, so that the test stays quick.
LARGE = settings(max_examples=40)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
VARIABLES = st.dictionaries(st.from_regex(r"[A-Za-z_]{1,8}", fullmatch=True), TEXT, max_size=3)
METADATA = st.dictionaries(TEXT, TEXT, max_size=3)
SECONDS = st.floats(0.001, MAX_TIMEOUT_S)
ASKED = st.none() | st.just(NEVER) | SECONDS
TIMES = st.floats(0, 4e9)
# Text, and what is none: cut off in the middle of a character, bytes at random.
DATA = st.binary(max_size=40) | TEXT.map(str.encode) | st.sampled_from([b"\xff", "é".encode()[:1], b"a\0b"])
CHANGES = st.builds(
    LimitChange,
    memory_bytes=st.none() | st.integers(32 * MIB, 1024 * MIB),
    cpus=st.none() | st.floats(0.05, 8),
)
LIMITS = st.builds(Limits, memory_bytes=st.integers(32 * MIB, 1024 * MIB), cpus=st.floats(0.05, 8))
LOSSES = st.builds(
    LossReport,
    generation=st.integers(1, 99),
    at=TIMES,
    reason=TEXT,
    lost=st.lists(TEXT, max_size=2).map(tuple),
    kept=st.lists(TEXT, max_size=2).map(tuple),
)
SNAPSHOT_IDS = st.builds(new_snapshot_id, st.just("0a1b2c3d"))
WORKSPACES = st.builds(
    Workspace,
    st.builds(new_workspace_id),
    st.none() | st.integers(1, 2**50),
    st.none() | SNAPSHOT_IDS,
)
SESSIONS = st.builds(
    Session,
    id=NAMES,
    environment=NAMES,
    created_at=TIMES,
    last_active_at=TIMES,
    tenant=NAMES,
    thread=st.none() | NAMES,
    state=st.sampled_from(SessionState),
    generation=st.integers(1, 99),
    sandbox_id=st.none() | NAMES,
    idle_timeout_s=st.none() | SECONDS,
    lifetime_s=st.none() | SECONDS,
    limits=LIMITS,
    metadata=METADATA,
    loss=st.none() | LOSSES,
    end_reason=st.none() | st.sampled_from(EndReason),
    ended_at=st.none() | TIMES,
    workspace=st.none() | WORKSPACES,
    on_idle=st.sampled_from(OnIdle),
    hibernation_s=SECONDS,
    woken_at=st.none() | TIMES,
)
CREATES = st.builds(
    CreateSession,
    environment=st.none() | NAMES,
    thread=st.none() | NAMES,
    env=VARIABLES,
    limits=CHANGES,
    idle_timeout_s=ASKED,
    lifetime_s=ASKED,
    metadata=METADATA,
    recreate_lost=st.booleans(),
    snapshot=st.none() | SNAPSHOT_IDS,
    on_idle=st.none() | st.sampled_from(OnIdle),
)
EXITS = st.builds(
    Exited,
    code=st.integers(0, 255),
    signal=st.integers(0, 64),
    reason=st.sampled_from(["exited", "timeout", "output_limit", "oom", "killed"]),
    error=TEXT,
    truncated=st.booleans(),
    output_bytes=st.integers(0, 2**40),
    duration_ms=st.floats(0, 1e9),
    peak_memory_bytes=st.integers(0, 2**40),
    oom=st.booleans(),
    disk_full=st.booleans(),
    shell_ended=st.booleans(),
    shell_restarted=st.booleans(),
    denied=st.lists(st.builds(Denied, TEXT, TEXT, TEXT, TEXT, TEXT), max_size=2).map(tuple),
)
RESULTS = st.builds(
    ExecResult,
    exec_id=NAMES,
    exit_code=st.integers(0, 255),
    stdout=DATA,
    stderr=DATA,
    output=DATA,
    verdict=st.just(Verdict.OK),  # see below
    exited=EXITS,
    gaps=st.integers(0, 3),
    session_id=NAMES,
    generation=st.integers(1, 9),
).map(lambda result: replace(result, verdict=verdict_of(result.exited)))
PLAIN_EXECS = st.builds(
    ExecRequest,
    command=st.none(),
    argv=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
    exec_id=NAMES,
    cwd=st.none() | TEXT,
    env=VARIABLES,
    stdin=st.booleans(),
    timeout_s=st.none() | st.floats(0.001, 3600),
    output_limit=st.none() | st.integers(1, MIB),
    on_limit=st.sampled_from(OnLimit),
    pty=st.none() | st.builds(PtySize, st.integers(1, 500), st.integers(1, 500)),
)
SHELL_EXECS = st.builds(
    ExecRequest,
    command=TEXT,
    exec_id=NAMES,
    env=VARIABLES,
    shell=st.none() | NAMES,
    merge_output=st.booleans(),
)
EXECS = PLAIN_EXECS | SHELL_EXECS


def over_the_wire(body: T, kind: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


@LARGE
@given(CREATES, st.none() | TEXT.filter(bool))
def test_create_session(request: CreateSession, key: str | None) -> None:
    body = over_the_wire(CreateSessionBody.of(replace(request, idempotency_key=key)), CreateSessionBody)
    assert body.to_domain(idempotency_key=key) == replace(request, idempotency_key=key)


@LARGE
@given(CREATES, NAMES)
def test_thread_of_the_path_goes_before_that_of_the_body(request: CreateSession, thread: str) -> None:
    assert CreateSessionBody.of(request).to_domain(thread=thread) == replace(request, thread=thread)


@given(st.builds(SessionChange, ASKED, ASKED, st.none() | METADATA))
def test_session_change(change: SessionChange) -> None:
    assert over_the_wire(SessionChangeBody.of(change), SessionChangeBody).to_domain() == change


@LARGE
@given(SESSIONS)
def test_session(session: Session) -> None:
    body = over_the_wire(SessionBody.of(session), SessionBody)
    assert body.to_domain() == session
    assert body.expires_at == session.expires_at


@LARGE
@given(st.builds(SessionPage, st.lists(SESSIONS, max_size=3).map(tuple), st.none() | TEXT))
def test_session_page(page: SessionPage) -> None:
    assert over_the_wire(SessionPageBody.of(page), SessionPageBody).to_domain() == page


@given(TEXT, st.sampled_from(["python", "javascript", "my-context_1"]))
def test_a_cell(code: str, context: str) -> None:
    request = ExecRequest(cell=Cell(code, context), exec_id="one", env={"A": "b"}, timeout_s=5)
    body = over_the_wire(ExecBody.of(request).to_wire(), ExecBody)
    assert body.to_domain() == request
    assert "cell" not in ExecBody.of(ExecRequest(command="true")).to_wire(), "an older server refuses it"
    run = over_the_wire(RunCellBody(code, "one", 5, {"A": "b"}), RunCellBody)
    assert replace(run.to_domain(context), output_limit=request.output_limit) == request


@given(
    st.builds(
        CreateContext, st.sampled_from(Language), st.none() | st.just("mine"), st.none() | st.just("/tmp")
    )
)
def test_a_context_to_create(request: CreateContext) -> None:
    assert over_the_wire(CreateContextBody.of(request), CreateContextBody).to_domain() == request


@LARGE
@given(EXECS, st.none() | DATA, st.booleans())
def test_exec(request: ExecRequest, stdin: bytes | None, background: bool) -> None:
    sent = msgspec.json.encode(ExecBody.of(request, stdin, background=background).to_wire())
    body = msgspec.json.decode(sent, type=ExecBody)
    assert body.stdin_bytes == stdin
    assert body.background is background
    assert body.to_domain() == replace(request, stdin=request.stdin or stdin is not None)


def assert_read(decoder: ResultDecoder[T], packed: bytes, body: object, value: T) -> None:
    """Packed, and from a server that knows JSON alone."""
    assert decoder.decode(packed) == value
    assert decoder.decode(msgspec.json.encode(body)) == value


@LARGE
@given(RESULTS)
def test_result(result: ExecResult) -> None:
    body = over_the_wire(ResultBody.of(result), ResultBody)
    assert body.to_domain() == result
    assert_read(RESULT, msgspec.msgpack.encode(PackedResult.of(result)), ResultBody.of(result), result)
    assert (body.timed_out, body.truncated) == (result.timed_out, result.truncated)
    assert body.retryable is False, "version 0.1 does not read a result without it"


@LARGE
@given(st.builds(ExecStatus, NAMES, st.booleans(), st.none() | RESULTS))
def test_exec_status(status: ExecStatus) -> None:
    assert_read(STATUS, msgspec.msgpack.encode(PackedStatus.of(status)), ExecStatusBody.of(status), status)


@LARGE
@given(st.builds(ThreadRun, st.builds(Opened, SESSIONS, st.booleans()), RESULTS))
def test_thread_run(run: ThreadRun) -> None:
    packed = PackedThreadRun.of(run)
    assert_read(
        THREAD_RUN,
        msgspec.msgpack.encode(packed),
        ThreadRunBody.of(run),
        DecodedThreadRun(packed.session, run),
    )


@given(
    st.builds(Started, st.integers(1, 2**22), st.booleans())
    | st.builds(Output, st.sampled_from(Channel), st.integers(0, 2**50), DATA)
    | EXITS
)
def test_event(event: Any) -> None:
    name, body = event_body("exec_1", event)
    back = over_the_wire(body, EVENT_BODIES[name])
    assert event_of(back) == event
    if isinstance(event, Exited):
        assert back.verdict is verdict_for_sdk(verdict_of(event))


LABELS = st.dictionaries(TEXT, TEXT, max_size=3)
PRINTABLE = TEXT.filter(str.isprintable)


@given(st.builds(TakeSnapshot, PRINTABLE, LABELS, PRINTABLE))
def test_take_snapshot(request: TakeSnapshot) -> None:
    assert over_the_wire(TakeSnapshotBody.of(request), TakeSnapshotBody).to_domain() == request


@given(
    st.builds(RestoreSnapshot, SNAPSHOT_IDS, PRINTABLE)
    | st.builds(RestoreSnapshot, st.none(), PRINTABLE.filter(bool))
)
def test_restore_snapshot(request: RestoreSnapshot) -> None:
    assert over_the_wire(RestoreBody.of(request), RestoreBody).to_domain() == request


@LARGE
@given(
    st.builds(
        Restored,
        SESSIONS,
        st.booleans(),
        SNAPSHOT_IDS,
        st.lists(TEXT, max_size=2).map(tuple),
        st.lists(TEXT, max_size=2).map(tuple),
    )
)
def test_restored(restored: Restored) -> None:
    assert over_the_wire(RestoredBody.of(restored), RestoredBody).to_domain() == restored


@given(
    st.builds(
        Snapshot,
        SNAPSHOT_IDS,
        NAMES,
        TIMES,
        NAMES,
        NAMES,
        thread=st.none() | NAMES,
        name=PRINTABLE,
        labels=LABELS,
        parent=st.none() | SNAPSHOT_IDS,
        unique_bytes=st.none() | st.integers(0, 2**50),
    )
)
def test_values_of_workspaces_are_json_as_they_are(snapshot: Snapshot) -> None:
    page = SnapshotPage((snapshot,), "next", ("w1",))
    assert over_the_wire(page, SnapshotPage) == page
    status = WorkspaceStatus(Workspace("wsp_1", 5), StoreKind.BTRFS, 3, 2, snapshot.name)
    assert over_the_wire(status, WorkspaceStatus) == status
    difference = Difference((snapshot.name,), truncated=True)
    assert over_the_wire(difference, Difference) == difference


def test_a_session_of_an_older_server_ends_when_it_is_idle() -> None:
    old = b'{"id":"s","environment":"base","state":"active","generation":1,"created_at":1,"last_active_at":1,'
    body = msgspec.json.decode(old + b'"expires_at":null,"limits":{}}', type=SessionBody)
    session = body.to_domain()
    assert (session.workspace, session.on_idle, session.woken_at) == (None, OnIdle.END, None)


# --- bytes ------------------------------------------------------------------------------------


@given(DATA)
def test_bytes_are_exact_and_text_is_readable(data: bytes) -> None:
    text, exact = text_and_base64(data)
    assert bytes_of(text, exact) == data
    assert (exact is None) == is_utf8(data)
    assert text == data.decode(errors="replace")


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("text", ["*", "abc", "YWJj\n!", "é"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="base64"):
        bytes_of("", text)


# --- what a client may send -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "check"),
    [
        (b"{}", lambda r: (r.idle_timeout_s, r.lifetime_s) == (None, None)),
        (b'{"lifetime_s": "never"}', lambda r: r.lifetime_s is NEVER),
        (b'{"lifetime_s": 3}', lambda r: r.lifetime_s == 3.0),
        (b'{"thread": "t-1", "recreate_lost": true}', lambda r: (r.thread, r.recreate_lost) == ("t-1", True)),
        (b'{"limits": {"pids": 64}}', lambda r: r.limits == LimitChange(pids=64)),
    ],
)
def test_written_by_hand(body: bytes, check: Callable[[CreateSession], bool]) -> None:
    assert check(msgspec.json.decode(body, type=CreateSessionBody).to_domain())


@pytest.mark.parametrize(
    "body", [b'{"lifetime_s": "for ever"}', b'{"env": {"A": 1}}', b'{"limits": {"cpus": "two"}}']
)
def test_of_another_type_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=CreateSessionBody)


def test_exec_id_is_the_bodys_or_the_callers_or_a_new_one() -> None:
    assert ExecBody(command="x", exec_id="mine").to_domain(exec_id="yours").exec_id == "mine"
    assert ExecBody(command="x").to_domain(exec_id="yours").exec_id == "yours"
    fresh = [ExecBody(command="x").to_domain().exec_id for _ in range(2)]
    assert fresh[0] != fresh[1]
