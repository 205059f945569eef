"""What a worker does about what it finds. The rules that matter are about what it must never remove."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.recovery import LIVE_STATES, Purpose, SandboxRecord, plan, sweep
from sandlot.domain.session import Session, SessionState

IDS = [f"sbx_{n}" for n in range(8)]
STATES = st.sampled_from(["running", "paused", "exited", "created", "dead", "removing"])
FOUND = st.dictionaries(st.sampled_from(IDS), STATES)
RECORDS = st.lists(
    st.builds(SandboxRecord, st.sampled_from(IDS), st.just("base"), st.sampled_from(Purpose)),
    unique_by=lambda record: record.id,
)
# Each session has a sandbox of its own, or none.
SESSIONS = st.lists(
    st.tuples(st.sampled_from(IDS), st.sampled_from(SessionState)), unique_by=lambda pair: pair[0]
).map(lambda pairs: [made(sandbox_id, state) for sandbox_id, state in pairs])


def made(sandbox_id: str, state: SessionState = SessionState.ACTIVE) -> Session:
    return Session(
        id=f"ses_{sandbox_id}",
        environment="base",
        created_at=0.0,
        last_active_at=0.0,
        state=state,
        sandbox_id=sandbox_id if state is SessionState.ACTIVE else None,
    )


# --- the plan at start-up ---------------------------------------------------------------------


@given(SESSIONS, RECORDS, FOUND)
def test_every_active_session_is_adopted_or_lost(
    sessions: list[Session], records: list[SandboxRecord], found: dict[str, str]
) -> None:
    what = plan(sessions, records, found)
    adopted = {session.id for session in what.adopt}
    lost = {session.id for session, _ in what.lose}
    assert adopted.isdisjoint(lost)
    assert adopted | lost == {s.id for s in sessions if s.state is SessionState.ACTIVE}
    assert adopted == {
        s.id
        for s in sessions
        if s.sandbox_id is not None and found.get(s.sandbox_id) in LIVE_STATES
    }  # fmt: skip


@given(SESSIONS, RECORDS, FOUND)
def test_nothing_adopted_is_removed(
    sessions: list[Session], records: list[SandboxRecord], found: dict[str, str]
) -> None:
    what = plan(sessions, records, found)
    assert {session.sandbox_id for session in what.adopt}.isdisjoint(what.remove)


@given(SESSIONS, RECORDS, FOUND)
def test_only_what_is_on_record_is_removed_and_all_of_the_rest(
    sessions: list[Session], records: list[SandboxRecord], found: dict[str, str]
) -> None:
    what = plan(sessions, records, found)
    kept = {session.sandbox_id for session in what.adopt}
    assert set(what.remove) == {record.id for record in records} - kept


def test_reason_of_a_loss_says_what_was_found() -> None:
    gone, stopped = made("sbx_0"), made("sbx_1")
    what = plan([gone, stopped], [], {"sbx_1": "exited"})
    assert [(session.id, reason) for session, reason in what.lose] == [
        (gone.id, "its container was gone when the worker started"),
        (stopped.id, "its container was exited when the worker started"),
    ]


def test_warm_one_of_an_earlier_life_is_removed_though_it_runs() -> None:
    what = plan([], [SandboxRecord("sbx_0", "base", Purpose.WARM)], {"sbx_0": "running"})
    assert what.remove == ("sbx_0",)


# --- the sweep --------------------------------------------------------------------------------

NOW = 1_000_000.0
UNKNOWN = st.dictionaries(st.sampled_from(IDS), st.floats(NOW - 100, NOW + 100))
SEEN = st.sets(st.sampled_from(IDS))
GRACE = st.floats(0, 60)


@given(UNKNOWN, GRACE)
def test_nothing_is_removed_on_first_sight(unknown: dict[str, float], grace_s: float) -> None:
    remove, look_again = sweep(unknown, (), NOW + 1e9, grace_s)
    assert remove == ()
    assert look_again == set(unknown)


@given(UNKNOWN, SEEN, GRACE)
def test_only_what_was_seen_before_and_is_old_enough(
    unknown: dict[str, float], seen: set[str], grace_s: float
) -> None:
    remove, look_again = sweep(unknown, seen, NOW, grace_s)
    assert set(remove) == {name for name, at in unknown.items() if name in seen and NOW - at >= grace_s}
    assert look_again == set(unknown) - set(remove)


@given(UNKNOWN, SEEN, st.floats(0.1, 60))
def test_one_from_the_future_waits(unknown: dict[str, float], seen: set[str], grace_s: float) -> None:
    remove, _ = sweep(unknown, seen, NOW - 3600, grace_s)  # our clock went back an hour
    assert remove == ()


@given(st.lists(UNKNOWN, max_size=6), GRACE)
def test_over_many_rounds_each_was_seen_the_round_before(
    rounds: list[dict[str, float]], grace_s: float
) -> None:
    seen: frozenset[str] = frozenset()
    previous: dict[str, float] = {}
    for unknown in rounds:
        remove, seen = sweep(unknown, seen, NOW, grace_s)
        assert set(remove) <= set(previous) & set(unknown)
        previous = unknown


def test_orphan_goes_in_the_second_round() -> None:
    unknown = {"sbx_0": NOW - 31}
    remove, seen = sweep(unknown, (), NOW, 30)
    assert remove == ()
    assert sweep(unknown, seen, NOW + 15, 30) == (("sbx_0",), frozenset())
