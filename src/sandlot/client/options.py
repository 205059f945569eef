"""The options of commands and sessions, defined once for all methods that take them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, TypedDict

from sandlot.client.async_network import NetworkPolicy, network_policy
from sandlot.client.keywords import COMMAND_HINTS, SESSION_HINTS, check_keywords, resolve_timeout
from sandlot.client.volumes.async_volumes import VolumeModes, volume_uses
from sandlot.client.workspaces.async_workspace import SnapshotOrId, snapshot_id
from sandlot.domain.artifacts.patterns import check_patterns
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.environment import ProviderName, provider_named
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import DEFAULT_OUTPUT_LIMIT_BYTES, ExecRequest, OnLimit, PtySize
from sandlot.domain.ids import is_thread, new_exec_id
from sandlot.domain.session import CreateSession, IfDifferent, OnIdle, Timeout

Command = str | Sequence[str]

# Longer than a fleet takes to recover after a restart of its directory, a coordinator or a worker.
# It is used in http/retries/creates.py, and stands here so that a client can be imported without httpx.
PATIENCE_S = 30.0


class ExecOptions(TypedDict, total=False):
    """Options of a command.

    cwd: the folder to run in; /workspace by default.
    env: variables for this command; they override those of the session.
    timeout_s: seconds after which the command is killed; the server has a default and a maximum.
    timeout: another name for timeout_s, as other libraries call it.
    output_limit: how many bytes of output are kept; None means no limit, for streams only.
    on_limit: "truncate" drops output over the limit, "kill" ends the command.
    merge_output: use one pipe for stdout and stderr, as with `2>&1`. Their order is then exact, and
        all output is stdout.
    shell: the name of a shell that keeps its folder, variables and functions between commands.
    exec_id: an id for this run. Using the same id again returns the same result; the command never
        runs twice.
    approved: a person has approved this command. It passes rules of command policies that ask,
        and none that deny.
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
    approved: bool


class SessionOptions(TypedDict, total=False):
    """Options of a session.

    env: variables for every command of the session.
    limits: changes to the environment's limits.
    idle_timeout_s, lifetime_s: seconds, or NEVER where the server allows it. They default to the
        environment's values.
    metadata: your own names and values, returned with the session.
    idempotency_key: using the same key again returns the same session.
    recreate_lost: if the thread's sandbox was lost, give the session a new one at once.
    if_different: what to do if the thread has a session with another environment, variables or
        limits than those given: "error" raises ThreadDiffers, "keep" uses the session as it is.
    record: record what commands write, for replay; see ``Session.recording``.
    network: what the sandbox may connect to, in place of what the environment allows. It is "none",
        "public", a host or preset such as "pypi", a list of them, or a mapping with "allow", "deny" and
        "caps".
    on_idle: "hibernate" keeps the files of a session that nobody uses, and "end" does not. It defaults to
        what the server is set up for.
    snapshot: the snapshot, or its id, whose files a new session begins with.
    artifacts: files in /workspace that are kept when the session ends or hibernates, as paths or patterns
        such as "out/*.png"; see ``Session.artifacts``.
    volumes: the volumes that the session gets at /volumes/<name>, such as {"data": "rw"}. "rw" means to
        write, which one session at a time can. "ro" means to read a copy of the files as they are now.
    provider: what makes the sandbox, "docker" or "e2b". The environment must be one of its. Without an
        environment, it is the default or the first one of the provider.
    """

    env: Mapping[str, str]
    limits: LimitChange | None
    idle_timeout_s: Timeout | None
    lifetime_s: Timeout | None
    metadata: Mapping[str, str]
    idempotency_key: str | None
    recreate_lost: bool
    if_different: IfDifferent
    record: bool
    network: NetworkPolicy | None
    on_idle: OnIdle | Literal["hibernate", "end"] | None
    snapshot: SnapshotOrId | None
    artifacts: Sequence[str]
    volumes: VolumeModes
    provider: ProviderName | Literal["docker", "e2b"] | None


EXEC_OPTIONS: Final = frozenset(ExecOptions.__annotations__)
SESSION_OPTIONS: Final = frozenset(SessionOptions.__annotations__)


def exec_request(
    method: str,
    command: Command,
    options: ExecOptions,
    *,
    accepts: Collection[str] = (),
    stdin: bool = False,
    pty: PtySize | None = None,
) -> ExecRequest:
    """Build the request for a command: a string runs in a shell, a sequence of words runs as it is.

    ``method``: the name of the method that was called with ``options``. ``accepts``: its other
    keyword arguments.
    """
    check_keywords(method, options, {*EXEC_OPTIONS, *accepts}, COMMAND_HINTS)
    on_limit = options.get("on_limit", OnLimit.TRUNCATE)
    if on_limit not in OnLimit.__members__.values():
        raise InvalidRequest(f"on_limit must be 'truncate' or 'kill', not {on_limit!r}.")
    return ExecRequest(
        command=command if isinstance(command, str) else None,
        argv=None if isinstance(command, str) else tuple(command),
        exec_id=options.get("exec_id") or new_exec_id(),
        cwd=options.get("cwd"),
        env=options.get("env") or {},
        stdin=stdin,
        timeout_s=resolve_timeout(method, options.get("timeout_s"), options.get("timeout")),
        output_limit=options.get("output_limit", DEFAULT_OUTPUT_LIMIT_BYTES),
        on_limit=OnLimit(on_limit),
        pty=pty,
        shell=options.get("shell"),
        merge_output=options.get("merge_output", False),
        approved=options.get("approved", False),
    )


def create_request(
    method: str,
    environment: str | None,
    thread: str | None,
    options: SessionOptions,
    *,
    accepts: Collection[str] = ("environment", "thread"),
) -> CreateSession:
    check_session_options(method, options, accepts)
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
        record=options.get("record", False),
        network=network_policy(options.get("network")),
        on_idle=parse_on_idle(options.get("on_idle")),
        snapshot=None if (snapshot := options.get("snapshot")) is None else snapshot_id(snapshot),
        artifacts=check_patterns(options.get("artifacts") or ()),
        volumes=volume_uses(options.get("volumes")),
        provider=None if (provider := options.get("provider")) is None else provider_named(provider),
    )


def parse_on_idle(given: str | None) -> OnIdle | None:
    if given is not None and given not in OnIdle.__members__.values():
        raise InvalidRequest(f"on_idle must be 'hibernate' or 'end', not {given!r:.80}.")
    return None if given is None else OnIdle(given)


def thread_key(thread: object) -> str:
    """Return the id under which the service knows a thread.

    That is the thread's id itself, or its hash if it is not 1-200 printable ASCII characters.
    Frameworks allow any text as an id, and the same text always leads to the same sandbox.
    """
    if not isinstance(thread, str) or not thread:
        raise InvalidRequest(f"A thread id must be a non-empty string, not {thread!r:.80}.")
    if is_thread(thread):
        return thread
    return "sha256-" + hashlib.sha256(thread.encode("utf-8", "replace")).hexdigest()


def check_session_options(method: str, options: SessionOptions, accepts: Collection[str]) -> None:
    """Reject unknown options.

    ``accepts``: the arguments of ``method`` that are not session options.
    """
    check_keywords(method, options, {*SESSION_OPTIONS, *accepts}, SESSION_HINTS)


def input_bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
