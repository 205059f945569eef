"""Gives the sessions of ``FakeService`` their computers and files, and takes computers away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sandlot.domain import session_states as states
from sandlot.domain.callers.principal import Principal
from sandlot.domain.execution import ExecResult
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.session import EndReason, OnIdle, Session, SessionState
from sandlot.domain.workspaces.snapshots import Snapshot
from sandlot.testing.fake.computer import FakeComputer
from sandlot.testing.fake.execs import FakeExec
from sandlot.testing.fake.history import FakeHistory
from sandlot.testing.fake.records import Record
from sandlot.testing.fake.scripts import Scripts
from sandlot.testing.fake.volumes.store import FakeVolumes
from sandlot.testing.fake.workspaces.store import FakeSnapshots


class Computers:
    """The part of ``FakeService`` about losing, recreating and replacing what runs a session."""

    scripts: Scripts
    _principal: Principal
    _clock: Callable[[], float]
    _max_execs: int
    _history: FakeHistory
    _snapshots: FakeSnapshots
    _volumes: FakeVolumes

    def _record(self, session_id: str) -> Record:
        raise NotImplementedError

    def _computer(self, session_id: str, *, starts_work: bool = False) -> FakeComputer:
        raise NotImplementedError

    def _keep_declared(self, record: Record) -> None:
        raise NotImplementedError

    def _check_volumes(self, session: Session) -> None:
        raise NotImplementedError

    def _exec_ended(self, record: Record, ended: FakeExec) -> None:
        raise NotImplementedError

    def _give_first_computer(self, record: Record, snapshot: Snapshot | None) -> None:
        """``snapshot``: whose files the session begins with."""
        workspace = None
        if snapshot is not None:
            workspace, record.files = self._snapshots.clone(snapshot)
        sandbox_id = self._provision(record, record.session.generation)
        record.session = replace(
            record.session,
            sandbox_id=sandbox_id,
            workspace=workspace or self._snapshots.first_workspace(sandbox_id),
            on_idle=record.request.on_idle or self._snapshots.store.on_idle,
            hibernation_s=self._snapshots.store.hibernation_s,
        )

    def _provision(self, record: Record, generation: int) -> str:
        """Give the session a computer with its files and volumes, and return that one's id."""
        self._check_volumes(record.session)

        def add_origin(result: ExecResult) -> ExecResult:
            return replace(result, session_id=record.session.id, generation=generation)

        record.network.report = lambda denied: self._history.recorder.network_denied(record.session, denied)
        record.computer = FakeComputer(
            env=with_proxy(record.request.env),
            max_execs=self._max_execs,
            scripts=self.scripts,
            add_origin=add_origin,
            on_output=lambda *output: self._history.output(record.session, *output),
            on_exec_end=lambda ended: self._exec_ended(record, ended),
            connect=record.network.connect,
            files=record.files,
            quota_bytes=self._snapshots.store.quota_bytes,
            volumes=self._volumes.shown(record.session.volumes),
        )
        return record.computer.id

    async def recreate_session(self, session_id: str) -> Session:
        record = self._record(session_id)
        if record.computer is not None and record.computer.frozen:
            self.lose(session_id, "it did not answer, and was given up on request")
        self._recreate(record)
        return record.session

    def _recreate(self, record: Record) -> None:
        if record.session.state is SessionState.HIBERNATED:
            self._wake(record)
        else:
            # Raises before anything changes if the session cannot be recreated.
            self._give_again(record, states.recreate(record.session, "", self._clock()))

    def _give_again(self, record: Record, session: Session) -> None:
        """Give a session another computer. ``session``: with its new generation."""
        record.session = replace(session, sandbox_id=self._provision(record, session.generation))
        self._history.opened(record.session, self._principal, created=False)

    async def _replace(self, record: Record, session: Session) -> None:
        """Put a new computer in place of the session's own, whose commands end.

        ``session``: with its new generation and files, and the report about what it loses.
        """
        old = record.computer
        self._history.replaced(record.session)
        self._give_again(record, session)
        if old is not None:
            await old.end(states.lost_error(session, may_have_executed=True))

    # --- hibernation ------------------------------------------------------------------------------

    async def hibernate_session(self, session_id: str) -> Session:
        record = self._record(session_id)
        if record.session.state is SessionState.LOST:
            raise states.lost_error(record.session, may_have_executed=False)
        if (computer := record.computer) is not None:
            self._hibernate(record)
            await computer.end(states.lost_error(record.session, may_have_executed=True))
        return record.session

    def _hibernates(self, record: Record) -> bool:
        """Whether the session hibernates once it has expired."""
        active = record.session.state is SessionState.ACTIVE
        return active and record.session.on_idle is OnIdle.HIBERNATE

    def _hibernate(self, record: Record, reason: EndReason | None = None) -> None:
        """``reason``: None if somebody asked for it."""
        self._keep_declared(record)
        report = states.hibernation_report(record.session, reason, self._clock())
        record.session = states.hibernate(record.session, report)
        self._history.hibernated(record.session, self._principal if reason is None else None)
        computer, record.computer = record.computer, None
        if computer is not None:
            computer.abort(states.lost_error(record.session, may_have_executed=True))

    def _wake(self, record: Record) -> None:
        if record.session.state is SessionState.HIBERNATED:
            self._give_again(record, states.wake(record.session, "", self._clock()))

    # --- for tests --------------------------------------------------------------------------------

    def lose(self, session_id: str, reason: str = "the test removed the sandbox") -> None:
        """For tests: destroys the session's sandbox, as if the machine's engine had removed it."""
        record = self._record(session_id)
        report = states.loss_report(record.session, reason, self._clock())
        record.session = states.lose(record.session, report)
        computer, record.computer = record.computer, None
        if computer is not None:
            self._history.lost(record.session)
            computer.abort(states.lost_error(record.session, may_have_executed=True))

    def freeze(self, session_id: str) -> None:
        """For tests: makes the session's sandbox stop answering, as a paused container does."""
        computer = self._computer(session_id)
        computer.freeze(states.unresponsive_error(session_id, "no longer answers", may_have_executed=True))

    def thaw(self, session_id: str) -> None:
        """For tests: makes a frozen sandbox answer again."""
        if (computer := self._record(session_id).computer) is not None:
            computer.freeze(None)
