"""What may be asked of a session, and when its time is over."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import Busy, Conflict, InvalidRequest, SessionEnded
from sandlot.domain.session import (
    MAX_ENV_BYTES,
    MAX_IDEMPOTENCY_KEY,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_TIMEOUT_S,
    NEVER,
    CreateSession,
    EndReason,
    OnIdle,
    Predecessor,
    Session,
    SessionChange,
    SessionState,
)
from sandlot.domain.session_states import (
    end,
    ended_error,
    expiry_reason,
    latest_predecessor,
    lifetime_over,
    lose,
    loss_report,
    mark_worker_lost,
    recreate,
    resolve_timeout,
    worker_loss_report,
)

SECONDS = st.floats(0.001, MAX_TIMEOUT_S)
TIMEOUTS = st.none() | SECONDS
NOW = st.floats(0, 4e9)


def session(**changes: object) -> Session:
    return Session(
        **{"id": "ses_1", "environment": "base", "created_at": 1000.0, "last_active_at": 1000.0, **changes}
    )  # type: ignore[arg-type]


# --- validation -------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["idle_timeout_s", "lifetime_s"])
@pytest.mark.parametrize("request_type", [CreateSession, SessionChange])
class TestTimeouts:
    @pytest.mark.parametrize("value", [0, -1, -0.0, MAX_TIMEOUT_S + 1, math.inf, -math.inf, math.nan])
    def test_refused(self, request_type: type, field: str, value: float) -> None:
        with pytest.raises(InvalidRequest, match=field):
            request_type(**{field: value})

    @pytest.mark.parametrize("value", [None, NEVER, 1e-9, 1, MAX_TIMEOUT_S])
    def test_accepted(self, request_type: type, field: str, value: object) -> None:
        assert getattr(request_type(**{field: value}), field) is value


@pytest.mark.parametrize("request_type", [CreateSession, SessionChange])
class TestMetadata:
    def test_bounds_themselves_are_accepted(self, request_type: type) -> None:
        request_type(metadata={f"{n:02}": "" for n in range(MAX_METADATA_ENTRIES)})
        request_type(metadata={"k": "v" * (MAX_METADATA_BYTES - 1)})

    def test_one_more_entry_is_refused(self, request_type: type) -> None:
        with pytest.raises(InvalidRequest, match="metadata"):
            request_type(metadata={f"{n:02}": "" for n in range(MAX_METADATA_ENTRIES + 1)})

    def test_bytes_count_not_characters(self, request_type: type) -> None:
        with pytest.raises(InvalidRequest, match="metadata"):
            request_type(metadata={"k": "é" * (MAX_METADATA_BYTES // 2)})

    def test_what_cannot_be_written_down_is_refused(self, request_type: type) -> None:
        with pytest.raises(InvalidRequest, match="Unicode"):
            request_type(metadata={"k": "\udcff"})


@pytest.mark.parametrize("name", ["", "Base", "a b", "-a", ".a", "a" * 64, "a/b", "é", "a\n"])
def test_environment_name_is_checked(name: str) -> None:
    with pytest.raises(InvalidRequest):
        CreateSession(environment=name)


@pytest.mark.parametrize("thread", ["", " ", "a b", "a\n", "a" * 201, "é", "\x7f"])
def test_thread_is_checked(thread: str) -> None:
    with pytest.raises(InvalidRequest):
        CreateSession(thread=thread)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=200))
def test_any_printable_thread_is_accepted(thread: str) -> None:
    assert CreateSession(thread=thread).thread == thread


@pytest.mark.parametrize("key", ["", "k" * (MAX_IDEMPOTENCY_KEY + 1), "\ud800"])
def test_idempotency_key_is_checked(key: str) -> None:
    with pytest.raises(InvalidRequest):
        CreateSession(idempotency_key=key)


@pytest.mark.parametrize(
    "env", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": "x" * MAX_ENV_BYTES}, {"A": "\ud800"}]
)
def test_variables_are_checked(env: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        CreateSession(env=env)


def test_variables_up_to_the_bound_are_accepted() -> None:
    CreateSession(
        env={
            "A": "x" * (MAX_ENV_BYTES - 1),
        }
    )


def test_message_does_not_repeat_a_long_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        CreateSession(environment="X" * 100_000)
    assert len(caught.value.message) < 200


# --- when its time is over --------------------------------------------------------------------


@given(NOW, NOW, TIMEOUTS, TIMEOUTS)
def test_expiry_is_the_sooner_of_the_two(
    created: float, active: float, idle: float | None, lifetime: float | None
) -> None:
    it = session(created_at=created, last_active_at=active, idle_timeout_s=idle, lifetime_s=lifetime)
    ends = [
        *([] if idle is None else [active + idle]),
        *([] if lifetime is None else [created + lifetime]),
    ]
    assert it.expires_at == (min(ends) if ends else None)


@given(NOW, NOW, TIMEOUTS, TIMEOUTS, NOW)
def test_due_exactly_from_its_expiry_on(
    created: float, active: float, idle: float | None, lifetime: float | None, now: float
) -> None:
    it = session(created_at=created, last_active_at=active, idle_timeout_s=idle, lifetime_s=lifetime)
    assert (expiry_reason(it, now) is not None) == (it.expires_at is not None and now >= it.expires_at)


def test_lifetime_is_named_when_both_are_over() -> None:
    it = session(idle_timeout_s=10.0, lifetime_s=20.0)
    assert [expiry_reason(it, 1000.0 + seconds) for seconds in (9.9, 10.0, 19.9, 20.0)] == [
        None,
        EndReason.IDLE,
        EndReason.IDLE,
        EndReason.LIFETIME,
    ]


def test_what_has_ended_is_never_due() -> None:
    assert expiry_reason(end(session(lifetime_s=1.0), EndReason.DELETED, 1000.5), 1e9) is None


def test_clock_an_hour_back_ends_nothing() -> None:
    assert expiry_reason(session(), 1000.0 - 3600) is None


@given(SECONDS, TIMEOUTS, st.booleans())
def test_asked_timeout_goes_before_the_configured(
    asked: float, configured: float | None, never: bool
) -> None:
    assert resolve_timeout(asked, configured, never_allowed=never) == asked
    assert resolve_timeout(None, configured, never_allowed=never) == configured


def test_never_only_where_it_is_allowed() -> None:
    assert resolve_timeout(NEVER, 5.0, never_allowed=True) is None
    with pytest.raises(InvalidRequest, match="without an end"):
        resolve_timeout(NEVER, 5.0, never_allowed=False)


# --- what is told -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "says"),
    [(EndReason.DELETED, "deleted"), (EndReason.IDLE, "idle"), (EndReason.LIFETIME, "lifetime")],
)
def test_ended_error_says_why(reason: EndReason, says: str) -> None:
    error = ended_error(end(session(), reason, 1234.5))
    assert says in error.message
    assert error.details == {"reason": reason.value, "ended_at": 1234.5}


def test_recreate_says_why_not() -> None:
    with pytest.raises(Conflict, match="still running"):
        recreate(session(), "sbx_2", 2000.0)
    with pytest.raises(SessionEnded, match="deleted"):
        recreate(end(session(), EndReason.DELETED, 1500.0), "sbx_2", 2000.0)


# --- a worker that is gone --------------------------------------------------------------------


def test_loss_of_a_worker_says_that_the_variables_are_lost() -> None:
    session = Session("ses_1", "base", 0.0, 0.0, sandbox_id="sbx_1", generation=2)
    lost = mark_worker_lost(session, 50.0, "w1")
    assert (lost.state, lost.sandbox_id, lost.generation) == (SessionState.LOST, None, 2)
    assert lost.loss == worker_loss_report(session, 50.0, "w1")
    assert lost.loss is not None
    assert (lost.loss.reason, lost.loss.at) == ("its worker w1 is gone", 50.0)
    assert not any("variables" in kept for kept in lost.loss.kept)
    assert any("variables" in gone for gone in lost.loss.lost)
    assert mark_worker_lost(lost, 60.0, "w1") == lost, "said once"


def test_loss_before_the_worker_was_gone_stays_the_reason() -> None:
    session = Session("ses_1", "base", 0.0, 0.0, sandbox_id="sbx_1")
    before = lose(session, loss_report(session, "out of memory", 10.0))
    lost = mark_worker_lost(before, 50.0)
    assert lost.loss is not None
    assert (lost.loss.reason, lost.loss.at) == ("out of memory; then its worker is gone", 10.0)
    assert not any("variables" in kept for kept in lost.loss.kept)


def test_ended_session_has_no_worker_to_lose() -> None:
    session = end(Session("ses_1", "base", 0.0, 0.0), EndReason.DELETED, 5.0)
    assert mark_worker_lost(session, 50.0) is session


def test_latest_predecessor() -> None:
    early, late = (Predecessor(f"ses_{at}", EndReason.IDLE, float(at)) for at in (1, 2))
    assert latest_predecessor(early, None, late) == late
    assert latest_predecessor(late, early) == late
    assert latest_predecessor(None, None) is None


@pytest.mark.parametrize("thread", [None, "t"])
def test_new_work_at_the_end_of_a_lifetime(thread: str | None) -> None:
    """A command still runs. What hibernates afterwards takes the work a little later; what ends does not."""
    ends = lifetime_over(session(thread=thread, on_idle=OnIdle.END), 2000.0)
    assert (type(ends), ends.retryable) == (SessionEnded, thread is not None)
    waits = lifetime_over(session(thread=thread, on_idle=OnIdle.HIBERNATE), 2000.0)
    assert (type(waits), waits.retryable, waits.may_have_executed) == (Busy, True, False)
    assert waits.retry_after_s
