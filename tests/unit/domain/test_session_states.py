"""The session's states, walked at random: whatever happens in whatever order, the rules hold."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandlot.domain.errors import Conflict, SessionEnded
from sandlot.domain.session import EndReason, LossReport, OnIdle, Session, SessionState
from sandlot.domain.session_states import (
    end,
    expiry_reason,
    hibernate,
    hibernation_report,
    lose,
    recreate,
    restore_report,
    restored,
    touch,
    wake,
)
from sandlot.domain.workspaces.workspace import Workspace

TIMEOUTS = st.none() | st.floats(0.5, 10_000)


class SessionStates(RuleBasedStateMachine):
    """Time is what the machine says, and goes back now and then."""

    @initialize(idle=TIMEOUTS, lifetime=TIMEOUTS, on_idle=st.sampled_from(OnIdle))
    def begin(self, idle: float | None, lifetime: float | None, on_idle: OnIdle) -> None:
        self.now = 1_000_000.0
        self.session = Session(
            id="ses_1",
            environment="base",
            created_at=self.now,
            last_active_at=self.now,
            sandbox_id="sbx_1",
            idle_timeout_s=idle,
            lifetime_s=lifetime,
            metadata={"kept": "yes"},
            on_idle=on_idle,
            workspace=Workspace("wsp_1"),
        )
        self.recreated = 0
        self.ended: Session | None = None

    @rule(seconds=st.floats(0, 5000))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.floats(0, 5000))
    def clock_goes_back(self, seconds: float) -> None:
        self.now -= seconds

    @rule()
    def is_used(self) -> None:
        before = self.session
        self.session = touch(before, self.now)
        assert self.session.last_active_at >= before.last_active_at
        if before.expires_at is not None:
            assert self.session.expires_at is not None
            assert self.session.expires_at >= before.expires_at
        if before.state is SessionState.ACTIVE:
            assert self.session.last_active_at == max(self.now, before.last_active_at)

    @rule()
    def is_lost(self) -> None:
        before = self.session
        report = LossReport(before.generation, self.now, "gone", ("all",), ())
        self.session = lose(before, report)
        if before.state is SessionState.ACTIVE:
            assert (self.session.state, self.session.loss) == (SessionState.LOST, report)
            assert self.session.generation == before.generation
        else:
            assert self.session == before

    @rule(other=st.integers(0, 50))
    def stale_report_of_a_loss(self, other: int) -> None:
        if other != self.session.generation:
            before = self.session
            assert lose(before, LossReport(other, self.now, "an old one", (), ())) == before

    @rule()
    def is_recreated(self) -> None:
        before = self.session
        sandbox_id = f"sbx_{before.generation + 1}"
        if before.state is SessionState.LOST:
            self.session = recreate(before, sandbox_id, self.now)
            self.recreated += 1
            assert self.session.sandbox_id == sandbox_id
            assert self.session.loss == before.loss  # still to be read
            assert self.session.last_active_at >= before.last_active_at
        else:
            refusal = SessionEnded if before.state is SessionState.ENDED else Conflict
            with pytest.raises(refusal):
                recreate(before, sandbox_id, self.now)

    @rule(reason=st.sampled_from([None, EndReason.IDLE, EndReason.LIFETIME]))
    def hibernates(self, reason: EndReason | None) -> None:
        before = self.session
        if before.state is SessionState.ACTIVE:
            self.session = hibernate(before, hibernation_report(before, reason, self.now))
            assert self.session.loss is not None
            assert self.session.loss.generation == before.generation

    @rule()
    def wakes(self) -> None:
        before = self.session
        if before.state is SessionState.HIBERNATED:
            self.session = wake(before, f"sbx_{before.generation + 1}", self.now)
            self.recreated += 1
            if before.lifetime_s is not None:
                assert self.session.lifetime_from == self.now

    @rule()
    def is_restored(self) -> None:
        before = self.session
        if before.state is not SessionState.ENDED:
            report = restore_report(before, "snp_1", self.now)
            self.session = restored(before, f"sbx_{before.generation + 1}", report, self.now)
            self.recreated += 1
            assert self.session.loss == report

    @rule(reason=st.sampled_from(EndReason))
    def is_ended(self, reason: EndReason) -> None:
        self.session = end(self.session, reason, self.now)
        if self.ended is None:
            assert (self.session.end_reason, self.session.ended_at) == (reason, self.now)
            self.ended = self.session

    @invariant()
    def what_has_ended_stays_as_it_ended(self) -> None:
        if self.ended is not None:
            assert self.session == self.ended

    @invariant()
    def generation_counts_recreations(self) -> None:
        assert self.session.generation == 1 + self.recreated

    @invariant()
    def sandbox_exactly_while_active(self) -> None:
        assert (self.session.sandbox_id is not None) == (self.session.state is SessionState.ACTIVE)

    @invariant()
    def files_stay_until_the_end(self) -> None:
        assert (self.session.workspace is None) == (self.session.state is SessionState.ENDED)

    @invariant()
    def expires_when_it_says(self) -> None:
        ends = self.session.expires_at
        if self.session.state is not SessionState.ENDED:
            assert (expiry_reason(self.session, self.now) is not None) == (
                ends is not None and self.now >= ends
            )
            assert ends is not None or not self.session.keeps_files_unused

    @invariant()
    def identity_is_never_touched(self) -> None:
        assert (self.session.id, self.session.environment, self.session.metadata) == (
            "ses_1",
            "base",
            {"kept": "yes"},
        )
        assert self.session.created_at == 1_000_000.0


TestSessionStates = SessionStates.TestCase
TestSessionStates.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
