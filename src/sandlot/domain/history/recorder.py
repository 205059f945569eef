"""``Recorder``: turns what happens into events. It decides what an event says, and stores nothing itself."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal

from sandlot.domain.callers.principal import Principal
from sandlot.domain.execution import ExecRequest, Exited, verdict_of
from sandlot.domain.history.details import DETAILS
from sandlot.domain.history.events import SERVER_TENANT, Detail, Event, EventKind
from sandlot.domain.history.masking import masked, masked_words, secrets_in
from sandlot.domain.history.positions import EventTimes, event_id
from sandlot.domain.network.decisions import Denied
from sandlot.domain.network.policy import NONE, EgressPolicy
from sandlot.domain.network.ports import Exposure
from sandlot.domain.network.status import NetworkChange
from sandlot.domain.session import EndReason, Session

Commands = Literal["full", "hashed"]

MAX_PATH_CHARS: Final = 1024
MAX_SUBJECT_CHARS: Final = 256
MAX_LIST_CHARS: Final = 1024

# Who makes the current call, where a session is created, recreated or deleted for somebody.
current_caller: ContextVar[Principal | None] = ContextVar("current_caller", default=None)


@contextmanager
def called_by(principal: Principal) -> Iterator[None]:
    """Everything in this context is recorded as the caller's. Tasks that it starts inherit it."""
    token = current_caller.set(principal)
    try:
        yield
    finally:
        current_caller.reset(token)


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about: a session, or a command in it and who ran that."""

    tenant: str
    session_id: str
    thread: str | None = None
    exec_id: str | None = None
    key_id: str = ""
    subject: str = ""

    @classmethod
    def of(cls, session: Session) -> Subject:
        return cls(session.tenant, session.id, session.thread)


@dataclass(slots=True, eq=False)
class Recorder:
    """Makes events and gives them to ``emit``, unless it is not ``on``.

    ``tag``: the worker's, for the events' ids. ``commands``: ``full`` records commands with secrets masked,
    ``hashed`` records a keyed digest of each, made with ``digest_key``: equal commands have equal digests,
    and without the key no one can find a command by trying. ``secrets``: masked in all texts.
    """

    emit: Callable[[Event], None]
    tag: str
    commands: Commands = "full"
    digest_key: bytes = field(default=b"", repr=False)
    secrets: Collection[str] = field(default=(), repr=False)
    on: bool = True
    times: EventTimes = field(default_factory=EventTimes)
    clock: Callable[[], float] = time.time

    def record(
        self,
        kind: EventKind,
        about: Subject | None = None,
        details: Mapping[str, Detail | None] | None = None,
        *,
        tenant: str = SERVER_TENANT,
        caller: Principal | None = None,
    ) -> None:
        """Record an event. Details that are None are left out."""
        if not self.on:
            return
        assert details is None or details.keys() <= DETAILS[kind].keys(), f"undocumented details of {kind}"
        now = self.clock()
        event = Event(
            id=event_id(self.times.next(now), self.tag),
            at=now,
            kind=kind,
            tenant=tenant if about is None else about.tenant,
            session_id=None if about is None else about.session_id,
            thread=None if about is None else about.thread,
            exec_id=None if about is None else about.exec_id,
            key_id=caller.key_id if caller is not None else "" if about is None else about.key_id,
            subject=_clean(caller.subject if caller is not None else "" if about is None else about.subject),
            details={name: value for name, value in (details or {}).items() if value is not None},
        )
        self.emit(event)

    # --- sessions -----------------------------------------------------------------------------

    def session_created(self, session: Session) -> None:
        network = None if session.network is None else described_policy(session.network)
        details = {"environment": session.environment, "network": network}
        self.record(EventKind.SESSION_CREATED, Subject.of(session), details, caller=current_caller.get())

    def session_claimed(self, session: Session) -> None:
        details = {"sandbox_id": session.sandbox_id, "generation": session.generation}
        self.record(EventKind.SESSION_CLAIMED, Subject.of(session), details, caller=current_caller.get())

    def session_hibernated(self, session: Session) -> None:
        reason = None if session.loss is None else session.loss.reason
        details = {"generation": session.generation, "reason": reason}
        caller = current_caller.get()
        self.record(EventKind.SESSION_HIBERNATED, Subject.of(session), details, caller=caller)

    def session_lost(self, session: Session) -> None:
        """No caller: whatever task notices a loss, it is nobody's doing."""
        reason = None if session.loss is None else masked(session.loss.reason, ())
        details = {"generation": session.generation, "reason": reason}
        self.record(EventKind.SESSION_LOST, Subject.of(session), details)

    def session_ended(self, session: Session) -> None:
        by = current_caller.get() if session.end_reason is EndReason.DELETED else None
        reason = None if session.end_reason is None else session.end_reason.value
        self.record(EventKind.SESSION_ENDED, Subject.of(session), {"reason": reason}, caller=by)

    # --- execs --------------------------------------------------------------------------------

    def exec_started(
        self, session: Session, request: ExecRequest, env: Mapping[str, str], caller: Principal
    ) -> Subject:
        """``env``: the session's variables, whose values are masked in the command."""
        started = Subject(
            session.tenant, session.id, session.thread, request.exec_id, caller.key_id, caller.subject
        )
        details: dict[str, Detail | None] = {"generation": session.generation, "shell": request.shell}
        self.record(EventKind.EXEC_STARTED, started, details | self._command(request, env))
        return started

    def _command(self, request: ExecRequest, env: Mapping[str, str]) -> dict[str, Detail | None]:
        if not self.on:
            return {}
        if self.commands == "hashed":
            words = (request.text,) if request.argv is None else request.argv
            text = "\0".join(words).encode("utf-8", "surrogateescape")
            return {"command_digest": hmac.digest(self.digest_key, text, "sha256").hex()}
        secrets = secrets_in(self.secrets, env.values(), request.env.values())
        if request.argv is not None:
            return {"command": masked_words(request.argv, secrets)}
        return {"command": masked(request.text, secrets)}

    def exec_ended(self, started: Subject, exited: Exited) -> None:
        details: dict[str, Detail | None] = {
            "verdict": verdict_of(exited).value,
            "exit_code": exited.code,
            "signal": exited.signal or None,
            "duration_ms": round(exited.duration_ms, 3),
            "output_bytes": exited.output_bytes,
            "stderr_bytes": exited.stderr_bytes or None,
            "truncated": exited.truncated or None,
            "user_ms": round(exited.user_ms, 3),
            "system_ms": round(exited.system_ms, 3),
            "peak_memory_bytes": exited.peak_memory_bytes,
        }
        self.record(EventKind.EXEC_ENDED, started, details)

    def exec_unseen(self, started: Subject, reason: str) -> None:
        """Its end could not be seen. ``reason``: why, in words."""
        self.record(EventKind.EXEC_ENDED, started, {"unseen": reason})

    # --- network ------------------------------------------------------------------------------

    def network_changed(self, session: Session, change: NetworkChange, caller: Principal) -> None:
        details: dict[str, Detail | None] = {
            "policy": None if change.policy is None else described_policy(change.policy),
            "allow": _listed(change.allow),
            "for_s": change.for_s,
            "revoke": _listed(change.revoke),
            "forward": _listed([f"{forward.port} to {forward.target}" for forward in change.forward]),
            "unforward": _listed([str(port) for port in change.unforward]),
        }
        self.record(EventKind.NETWORK_CHANGED, Subject.of(session), details, caller=caller)

    def network_denied(self, session: Session, denied: Denied) -> None:
        details = {"target": masked(denied.target, ()), "rule": masked(denied.rule, ())}
        self.record(EventKind.NETWORK_DENIED, Subject.of(session), details)

    # --- files --------------------------------------------------------------------------------

    def file_changed(
        self,
        kind: EventKind,
        session: Session,
        env: Mapping[str, str],
        caller: Principal,
        paths: Mapping[str, str],
        figures: Mapping[str, int] | None = None,
    ) -> None:
        """``paths``: ``path``, and for a move ``destination``."""
        secrets = secrets_in(self.secrets, env.values())
        details = {name: masked(path, secrets, MAX_PATH_CHARS) for name, path in paths.items()}
        self.record(kind, Subject.of(session), {**details, **(figures or {})}, caller=caller)

    # --- ports --------------------------------------------------------------------------------

    def port_exposed(self, session: Session, exposure: Exposure, caller: Principal) -> None:
        details = {"port": exposure.port, "public": exposure.public}
        self.record(EventKind.PORT_EXPOSED, Subject.of(session), details, caller=caller)

    def port_unexposed(self, session: Session, port: int, caller: Principal) -> None:
        self.record(EventKind.PORT_UNEXPOSED, Subject.of(session), {"port": port}, caller=caller)


def described_policy(policy: EgressPolicy) -> str:
    """A policy in a few words, for people."""
    deny = "" if not policy.deny else f", not {', '.join(policy.deny)}"
    return _cut((", ".join(policy.allow) or NONE) + deny)


def _listed(entries: Sequence[str]) -> str | None:
    return _cut(", ".join(entries)) or None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LIST_CHARS else f"{text[:MAX_LIST_CHARS]}…"


def _clean(subject: str) -> str:
    """An issuer writes the subjects of its tokens, and may write what cannot be stored."""
    return subject[:MAX_SUBJECT_CHARS].encode("utf-8", "replace").decode()
