"""Request and response bodies of the classic interface, and the functions that read them.

Classic clients send JSON under any content type that their tool sets (``curl -d`` declares a form).
So every body is read as JSON, except plain text, which is refused. An unknown field is an error: a
misspelled ``environment`` would otherwise give a sandbox with weaker isolation than the client
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.responses.lists import entries_response, list_within_budget
from sandlot.domain.artifacts.artifact import Artifact
from sandlot.domain.artifacts.generated import FOLDER
from sandlot.domain.environment import Tier
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.files import FileEntry
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.text.suggestions import did_you_mean
from sandlot.wire.exec_bodies import text_and_base64
from sandlot.wire.former_names import resolve_environment

USER: Final = "sandboxuser"
WORKSPACE: Final = "/workspace"
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_LISTED: Final = 10_000

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Body = TypeVar("Body", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class CreateBody:
    """A session to create.

    thread_id: the conversation that it belongs to.
    environment: the environment's name.
    """

    thread_id: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedBody:
    """A session that was created, or that the thread already had."""

    session_id: str
    worker: str
    status: str = "created"
    user: str = USER
    workspace: str = WORKSPACE


@dataclass(frozen=True, slots=True)
class ExecuteBody:
    """A command to run.

    session_id: the session to run it in.
    command: a command line for bash.
    timeout: seconds after which it is killed.
    """

    session_id: str
    command: str
    timeout: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class UploadedBody:
    """A file that was uploaded."""

    filename: str
    path: str
    status: str = "uploaded"


@dataclass(frozen=True, slots=True)
class FileBody:
    """Which file of which session."""

    session_id: str
    path: str


@dataclass(frozen=True, slots=True)
class ListBody:
    """Which folder of which session."""

    session_id: str
    path: str = WORKSPACE


@dataclass(frozen=True, slots=True)
class FilesBody:
    """The files of a folder.

    files: the files.
    truncated: whether there are more; ``/v1`` has pages.
    """

    files: list[FileEntry]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SessionIdBody:
    """Which session."""

    session_id: str


@dataclass(frozen=True, slots=True)
class CleanedBody:
    """A session was deleted."""

    status: str = "cleaned up"


@dataclass(frozen=True, slots=True)
class SessionStateBody:
    """A session. Times are seconds since the epoch."""

    session_id: str
    status: str
    environment: str
    thread_id: str | None
    created_at: float
    last_active_at: float
    expires_at: float | None
    user: str = USER
    workspace: str = WORKSPACE

    @classmethod
    def of(cls, session: Session) -> SessionStateBody:
        return cls(
            session_id=session.id,
            status=session.state.value,
            environment=session.environment,
            thread_id=session.thread,
            created_at=session.created_at,
            last_active_at=session.last_active_at,
            expires_at=session.expires_at,
        )


# --- /api: the interface modelled on a hosted sandbox service ------------------------------------


@dataclass(frozen=True, slots=True)
class ApiCreateBody:
    """A session to create.

    environment: the environment's name.
    provider: ``docker`` or ``e2b``. On a server without environments at E2B, both mean this server.
    agent_config: accepted and ignored.
    """

    environment: str | None = None
    provider: str | None = None
    agent_config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiSessionBody:
    """A session."""

    session_id: str
    sandbox_id: str | None
    provider: str
    url: str
    environment: str
    status: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ApiCodeBody:
    """A program to run.

    session_id: the session to run it in.
    code: the program.
    language: ``python``, ``javascript``, ``bash`` or ``sh``.
    timeout: seconds after which it is killed.
    """

    session_id: str
    code: str
    language: str = "python"
    timeout: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ApiArtifactBody:
    """A file that a program generated. It stays after the session's end.

    id: the artifact's id.
    path: its path, relative to ``/workspace``.
    size: its size in bytes.
    media_type: what its name says that it contains.
    url: where to download it, relative to the server's address.
    """

    id: str
    path: str
    size: int
    media_type: str
    url: str

    @classmethod
    def of(cls, artifact: Artifact) -> ApiArtifactBody:
        return cls(
            artifact.id,
            artifact.path,
            artifact.size,
            artifact.media_type,
            f"/v1/artifacts/{artifact.id}/content",
        )


@dataclass(frozen=True, slots=True)
class ApiResultBody:
    """The result of a program. ``results`` is always empty.

    artifacts: the files that the program left in ``/workspace/artifacts``, which are kept.
    """

    stdout: str
    stderr: str
    exit_code: int
    results: list[Any] = field(default_factory=list)
    artifacts: list[ApiArtifactBody] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ApiFileBody:
    """A file's content.

    path: the file.
    content: its content as text.
    content_base64: the exact bytes, if they are not valid UTF-8.
    """

    path: str
    content: str
    content_base64: str | None = None

    @classmethod
    def of(cls, path: str, data: bytes) -> ApiFileBody:
        text, exact = text_and_base64(data)
        return cls(path, text, exact)


@dataclass(frozen=True, slots=True)
class ApiWriteBody:
    """A file to write.

    session_id: the session.
    path: the file.
    content: its content, as text.
    """

    session_id: str
    path: str
    content: str


@dataclass(frozen=True, slots=True)
class ApiWrittenBody:
    """A file that was written."""

    path: str
    status: str = "written"


# --- reading ------------------------------------------------------------------------------------


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Read the request's JSON body as ``kind``. An empty body counts as an empty object.

    Plain text is refused: a foreign web page can send it without the browser asking first, and no
    client of ours labels JSON as text.
    """
    if request.headers.get("content-type", "").lower().startswith("text/plain"):
        raise InvalidRequest("Send the body as JSON, with the header Content-Type: application/json.")
    content = await request.body() or b"{}"
    try:
        body = msgspec.json.decode(content, type=kind)
        sent_fields: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Invalid request body: {error}") from None
    known = [known_field.name for known_field in fields(kind)]
    for name in sent_fields:
        if name not in known:
            raise InvalidRequest(
                f"Unknown field {name!r:.80} in the request body.{did_you_mean(name[:80], known)}"
            )
    return body


def body_schema(kind: type[object], *, required: bool = True) -> dict[str, Any]:
    """The schema for ``openapi_extra`` of a route that reads its body itself."""
    schema = TypeAdapter(kind).json_schema()
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


async def classic_session(
    service: SandboxService, environment: str | None, thread: str | None, provider: str | None = None
) -> Session:
    """Create the session, or get the thread's.

    Environment names of the classic interface (Python3, python:latest) mean the default
    environment.
    """
    known = await known_tiers(service)
    request = CreateSession(
        environment=resolve_environment(environment, known, provider),
        thread=thread,
        recreate_lost=thread is not None,
        artifacts=(FOLDER,),
    )
    opened = await service.create_session(request)
    return opened.session


async def known_tiers(service: SandboxService) -> Mapping[str, Tier]:
    """The server's environments, by name."""
    return {found.name: found.tier for found in (await service.catalogue()).environments}


def server_url(request: Request) -> str:
    """This server's URL as the server knows it, not as the client's Host header claims."""
    host, port = request.scope.get("server") or ("localhost", None)
    host = f"[{host}]" if ":" in host else host
    return f"{request.scope['scheme']}://{host}" + (f":{port}" if port else "")


async def files_response(service: SandboxService, session_id: str, path: str) -> Response:
    """List a folder as ``FilesBody``."""
    files = service.files(session_id)
    entries: list[FileEntry] = []
    after = None
    while len(entries) < MAX_LISTED:
        page = await list_within_budget(files.list(path, after=after, limit=1000), 1000)
        entries += page.entries
        after = page.next
        if after is None:
            break
    return await entries_response("files", entries, {"truncated": after is not None})
