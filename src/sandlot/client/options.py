"""The options that commands and sessions are given, said once for every method that takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, TypedDict

from sandlot.client.keywords import FOR_COMMANDS, FOR_SESSIONS, check_keywords, one_timeout
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import DEFAULT_OUTPUT_LIMIT_BYTES, ExecRequest, OnLimit, PtySize
from sandlot.domain.ids import is_thread, new_exec_id
from sandlot.domain.limits import LimitChange
from sandlot.domain.session import CreateSession, IfDifferent, Timeout

Command = str | Sequence[str]

# Longer than a fleet takes to heal after a restart of its directory, a coordinator or a worker.
PATIENCE_S = 30.0


class ExecOptions(TypedDict, total=False):
    """cwd: where it runs; /workspace, unless told otherwise.
    env: variables for this command, over those of the session.
    timeout_s: seconds after which it is killed; the server has a default and a ceiling.
    timeout: the same, by the name that other libraries have for it.
    output_limit: bytes of output that are kept; None: no cap, for streams alone.
    on_limit: "truncate" drops what is over the limit, "kill" ends the command.
    merge_output: one pipe for stdout and stderr, as with `2>&1`. Their order is exact, and all is stdout.
    shell: the name of a shell that keeps its folder, variables and functions from command to command.
    exec_id: names this run. The same id again gives the same result and never runs the command twice.
    """

    cwd: str | None
    env: Mapping[str, str]
    timeout_s: float | None
    timeout: float | None
    output_limit: int | None
    on_limit: OnLimit | Literal["truncate", "kill"]
    merge_output: bool
    shell: str | None
    exec_id: str | None


class SessionOptions(TypedDict, total=False):
    """env: variables for every command of the session.
    limits: what to change of the environment's limits.
    idle_timeout_s, lifetime_s: seconds, or NEVER where the server allows it; else as the environment says.
    metadata: names and values of yours, given back with the session.
    idempotency_key: the same key again gives the same session.
    recreate_lost: a thread whose sandbox was lost gets a new one at once.
    if_different: of a thread that has a session with another environment, variables or limits than are given:
        "error" raises ThreadDiffers, "keep" goes on with it as it is.
    """

    env: Mapping[str, str]
    limits: LimitChange | None
    idle_timeout_s: Timeout | None
    lifetime_s: Timeout | None
    metadata: Mapping[str, str]
    idempotency_key: str | None
    recreate_lost: bool
    if_different: IfDifferent


EXEC_OPTIONS: Final = frozenset(ExecOptions.__annotations__)
SESSION_OPTIONS: Final = frozenset(SessionOptions.__annotations__)


def exec_request(
    method: str,
    command: Command,
    options: ExecOptions,
    *,
    takes: Collection[str] = (),
    stdin: bool = False,
    pty: PtySize | None = None,
) -> ExecRequest:
    """A string is for the shell, a sequence of words is run as it is.

    ``method`` was called with ``options``; ``takes`` names the arguments that it has beside them.
    """
    check_keywords(method, options, {*EXEC_OPTIONS, *takes}, FOR_COMMANDS)
    on_limit = options.get("on_limit", OnLimit.TRUNCATE)
    if on_limit not in OnLimit.__members__.values():
        raise InvalidRequest(f"on_limit is 'truncate' or 'kill', not {on_limit!r}")
    return ExecRequest(
        command=command if isinstance(command, str) else None,
        argv=None if isinstance(command, str) else tuple(command),
        exec_id=options.get("exec_id") or new_exec_id(),
        cwd=options.get("cwd"),
        env=options.get("env") or {},
        stdin=stdin,
        timeout_s=one_timeout(method, options.get("timeout_s"), options.get("timeout")),
        output_limit=options.get("output_limit", DEFAULT_OUTPUT_LIMIT_BYTES),
        on_limit=OnLimit(on_limit),
        pty=pty,
        shell=options.get("shell"),
        merge_output=options.get("merge_output", False),
    )


def create_request(
    method: str,
    environment: str | None,
    thread: str | None,
    options: SessionOptions,
    *,
    takes: Collection[str] = ("environment", "thread"),
) -> CreateSession:
    check_session_options(method, options, takes)
    return CreateSession(
        environment=environment,
        thread=None if thread is None else thread_key(thread),
        env=options.get("env") or {},
        limits=options.get("limits") or LimitChange(),
        idle_timeout_s=options.get("idle_timeout_s"),
        lifetime_s=options.get("lifetime_s"),
        metadata=options.get("metadata") or {},
        idempotency_key=options.get("idempotency_key"),
        recreate_lost=options.get("recreate_lost", False),
        if_different=options.get("if_different", "error"),
    )


def thread_key(thread: object) -> str:
    """What the service knows a thread by: the id itself, or the hash of one that is not 1-200 printable ASCII
    characters. Frameworks allow any text, and whoever gives the same text gets the same sandbox.
    """
    if not isinstance(thread, str) or not thread:
        raise InvalidRequest(f"a thread's id is text that is not empty, not {thread!r:.80}")
    if is_thread(thread):
        return thread
    return "sha256-" + hashlib.sha256(thread.encode("utf-8", "replace")).hexdigest()


def check_session_options(method: str, options: SessionOptions, takes: Collection[str]) -> None:
    """``takes``: the arguments that ``method`` has beside the options."""
    check_keywords(method, options, {*SESSION_OPTIONS, *takes}, FOR_SESSIONS)


def input_bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
