"""The one error tree. Errors are named by what the caller must do about them.

SandlotError
├── InvalidRequest
├── Unauthorized
├── Forbidden
├── PolicyDenied
├── ApprovalRequired
├── NotFound
│   └── SessionEnded
├── Conflict
│   ├── IdempotencyMismatch
│   └── ThreadDiffers
├── Busy
├── Unavailable
├── TooLarge
├── Unsupported
├── FileProblem
├── SandboxLost
│   └── SandboxQuarantined
├── SandboxUnresponsive
├── LinkInterrupted
├── EngineProblem
│   ├── EngineTimeout
│   ├── ImageMissing
│   └── TierMissing
└── StorageProblem
    └── StorageFull

Every error carries ``code`` (stable), ``retryable`` and ``may_have_executed``. It carries
``retry_after_s`` if the time is known, and ``details``: JSON values for programs to act on.
A failed command is a result, never an error.

Each docstring says what the error means and, after ``What to do:``, how to react. ``make docs`` turns them
into docs/reference/errors.md; nothing else says it a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SandlotError(Exception):
    """The server failed in a way that it did not expect. All other errors are subclasses of this one.

    What to do: find the cause in the server's log by ``details["request_id"]``. If ``may_have_executed`` is
    true, ask for the command's result by its exec id before you run it again.
    """

    code = "internal"
    retryable = False
    may_have_executed = False
    retry_after_s: float | None = None

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        may_have_executed: bool | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        if retryable is not None:
            self.retryable = retryable
        if may_have_executed is not None:
            self.may_have_executed = may_have_executed


class InvalidRequest(SandlotError):
    """The request cannot succeed as it is: a value is wrong, missing, or not allowed here.

    What to do: change the request. The message names the value; for an HTTP body, ``details["places"]`` lists
    the wrong fields.
    """

    code = "invalid_request"


class Unauthorized(SandlotError):
    """The request carries no API key, or one that the server does not accept.

    What to do: set ``SANDLOT_API_KEY``, or pass ``api_key`` to the client. Over HTTP, send the header
    ``Authorization: Bearer KEY`` or ``X-API-Key: KEY``.
    """

    code = "unauthorized"


class Forbidden(SandlotError):
    """The API key is valid, but may not do this. ``details["scope"]`` names the scope that it lacks.

    What to do: use a key with that scope, or ask an administrator for one.
    """

    code = "forbidden"


class PolicyDenied(SandlotError):
    """A command policy, of the environment or of the tenant, denies the command. It did not run.

    ``details["policy"]`` names the policy, ``details["rule"]`` the rule, ``details["words"]`` the part of the
    command, ``details["allowed"]`` what would be allowed.

    What to do: run what ``details["allowed"]`` says.
    """

    code = "policy_denied"


class ApprovalRequired(SandlotError):
    """A command policy, of the environment or of the tenant, asks for a person's approval.

    The command did not run.     ``details`` has the fields of ``PolicyDenied``.

    What to do: show the command and the reason to a person. If they agree, send the same request with
    ``approved`` set to true.
    """

    code = "approval_required"


class NotFound(SandlotError):
    """The session, exec, shell, thread or route does not exist.

    What to do: check the id. If it belongs to an old session, create a new one.
    """

    code = "not_found"


class SessionEnded(NotFound):
    """The session existed, but was deleted or has expired.

    ``details["reason"]`` is ``deleted``, ``idle`` or ``lifetime``; ``details["ended_at"]`` is the time, in
    seconds since the epoch.

    What to do: create a new session. ``client.thread(...)`` does so by itself for a conversation.
    """

    code = "session_ended"


class Conflict(SandlotError):
    """The request contradicts the current state. Examples: the exec id belongs to another command, the
    session to recreate still has its sandbox, or the command's stdin is closed.

    What to do: read the message. Use another id for another command; do not repeat the request unchanged.
    """

    code = "conflict"


class IdempotencyMismatch(Conflict):
    """The idempotency key was already used for a different request.

    What to do: use a new key for every new request.
    """

    code = "idempotency_mismatch"


class ThreadDiffers(Conflict):
    """The thread already has a session, with a different environment, variables or limits.

    ``details["different"]`` lists the options that differ; ``details["session_id"]`` names the session.

    What to do: pass the options that the session was created with, pass ``if_different="keep"`` to use it as
    it is, or delete it to start again.
    """

    code = "thread_differs"


class Busy(SandlotError):
    """A limit on concurrent work is reached: commands in a sandbox, open streams, sessions of a tenant, or
    result data that is being sent to clients.

    What to do: wait ``retry_after_s`` seconds if it is set, else until a command ends, then retry. If
    ``may_have_executed`` is true, ask for the result by its exec id.
    """

    code = "busy"
    retryable = True


# The ``details["reason"]`` of an ``Unavailable`` if the client could not connect to any server.
UNREACHABLE = "unreachable"


class Unavailable(SandlotError):
    """No sandbox or server can take the request now.

    ``details["reason"]`` says why. Examples: ``capacity`` (the machine is full), ``queue`` (waited too long
    for a sandbox), ``environment_broken`` (its sandboxes cannot be created), ``draining``, ``stopping``, and
    ``unreachable`` (no server answered).

    What to do: retry after ``retry_after_s`` seconds. If ``retryable`` is false, an operator must first fix
    what the message names.
    """

    code = "unavailable"
    retryable = True


class TooLarge(SandlotError):
    """A request body or a message exceeds the size that the error message names.

    What to do: send less at a time. The operator can raise ``SANDLOT_MAX_UPLOAD_BYTES``.
    """

    code = "too_large"


class Unsupported(SandlotError):
    """This server, this tier or this sandbox's agent cannot do what was asked.

    What to do: follow the message. Often the option must be left out, or the sandbox was created by an older
    version and a new one can do it.
    """

    code = "unsupported"


class FileProblem(SandlotError):
    """A file operation in the sandbox failed.

    ``reason`` says why and ``path`` where, as the caller wrote it. Both are in ``details`` too.

    not_found: there is no such file or folder.
    exists: something is already there.
    permission_denied: the sandbox's user may not do this.
    not_a_directory: a part of the path is not a folder.
    is_a_directory: the path is a folder, and the operation needs a file.
    not_regular: the path is a device, socket or pipe, and the operation needs a regular file.
    not_empty: the folder has something in it; remove it recursively.
    no_space: the sandbox's disk is full.
    too_large: the file, folder or archive exceeds a limit, which the message names.
    invalid_path: the path is empty, too long, or not valid here.

    What to do: act on ``reason``.
    """

    code = "file_problem"

    def __init__(self, message: str, *, reason: str, path: str) -> None:
        super().__init__(message, details={"reason": reason, "path": path})
        self.reason = reason
        self.path = path


FILE_REASONS = frozenset(
    {
        "not_found",
        "exists",
        "permission_denied",
        "not_a_directory",
        "is_a_directory",
        "not_regular",
        "not_empty",
        "no_space",
        "too_large",
        "invalid_path",
    }
)


class SandboxLost(SandlotError):
    """The sandbox is gone: its container died or was removed, or its worker is gone.

    ``details["loss"]`` is the loss report: why, what was lost, and what is kept.

    What to do: call ``session.recreate()`` to continue with a new sandbox in the same session. It has the
    session's files in /workspace, unless the report says that they are lost. With ``recreate_lost=True``,
    ``create`` and ``thread`` do so at once.
    """

    code = "sandbox_lost"
    may_have_executed = True


class SandboxQuarantined(SandboxLost):
    """The sandbox's agent broke the protocol, so the worker cut the sandbox off.

    What to do: recreate the session, as for ``SandboxLost``. Look at what ran in it: something inside may be
    hostile.
    """

    code = "sandbox_quarantined"


class SandboxUnresponsive(SandlotError):
    """The sandbox does not answer. It may be frozen or overloaded; it is not lost, and may recover.

    What to do: retry later, with the same exec id: Sandlot never runs a command twice under one id. To give
    the sandbox up, recreate or delete the session.
    """

    code = "sandbox_unresponsive"
    retryable = True
    may_have_executed = True


class LinkInterrupted(SandlotError):
    """The connection to the server or to the sandbox broke during the call.

    What to do: repeat the call. For a command, pass the same exec id: Sandlot never runs a command twice
    under one id.
    """

    code = "link_interrupted"
    retryable = True
    may_have_executed = True


class EngineProblem(SandlotError):
    """The container engine refused a request, failed, or is not running.

    What to do: run ``sandlot doctor`` on the worker's machine. Retry if ``retryable`` is true.
    """

    code = "engine_problem"


class EngineTimeout(EngineProblem):
    """The container engine did not answer in time.

    What to do: retry. If it happens again, the engine is overloaded or stuck: run ``sandlot doctor``.
    """

    code = "engine_timeout"
    retryable = True
    may_have_executed = True


class ImageMissing(EngineProblem):
    """The environment's image is not on the worker's machine. Sandlot does not pull images.

    What to do: build it with ``sandlot images build``, pull it with ``docker pull``, or correct its name in
    the environment's file.
    """

    code = "image_missing"


class TierMissing(EngineProblem):
    """The container runtime of the environment's tier (``runc``, or ``runsc`` for gVisor) is not installed.
    Sandlot never uses a weaker one instead.

    What to do: install the runtime and register it in ``/etc/docker/daemon.json``; ``sandlot doctor`` checks
    it.
    """

    code = "tier_missing"


class StorageProblem(SandlotError):
    """The worker cannot write its records.

    What to do: look at the disk of the worker's data folder; the worker's log has the cause.
    """

    code = "storage_problem"


class StorageFull(StorageProblem):
    """The disk of the worker's data folder or of the container engine is full.

    What to do: free some space, then retry.
    """

    code = "storage_full"
    retryable = True
