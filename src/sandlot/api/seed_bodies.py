"""Bodies of the older interface, and how they are read.

Its clients send JSON under whatever content type their tool puts there (``curl -d`` says that it is a form),
so the body is read as JSON in any case but one, plain text. Fields that are not known are errors: with a
misspelled ``environment``, a sandbox would have a weaker wall than was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.file_lists import entries_answer, listed_within
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.files import FileEntry
from sandlot.domain.service import SandboxService
from sandlot.domain.session import CreateSession, Session
from sandlot.domain.suggestions import did_you_mean
from sandlot.wire.exec_bodies import text_and_base64
from sandlot.wire.former_names import environment_meant

USER: Final = "sandboxuser"
WORKSPACE: Final = "/workspace"
DEFAULT_TIMEOUT_S: Final = 30.0
MAX_LISTED: Final = 10_000

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Body = TypeVar("Body", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class CreateBody:
    thread_id: str | None = None
    environment: str | None = None


@dataclass(frozen=True, slots=True)
class CreatedBody:
    session_id: str
    worker: str
    status: str = "created"
    user: str = USER
    workspace: str = WORKSPACE


@dataclass(frozen=True, slots=True)
class ExecuteBody:
    session_id: str
    command: str
    timeout: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class UploadedBody:
    filename: str
    path: str
    status: str = "uploaded"


@dataclass(frozen=True, slots=True)
class FileBody:
    session_id: str
    path: str


@dataclass(frozen=True, slots=True)
class ListBody:
    session_id: str
    path: str = WORKSPACE


@dataclass(frozen=True, slots=True)
class FilesBody:
    """``truncated``: there are more than are listed here; ``/v1`` has pages."""

    files: list[FileEntry]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SessionIdBody:
    session_id: str


@dataclass(frozen=True, slots=True)
class CleanedBody:
    status: str = "cleaned up"


@dataclass(frozen=True, slots=True)
class SessionStateBody:
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


# --- /api: the interface that was modelled on a hosted sandbox ---------------------------------


@dataclass(frozen=True, slots=True)
class ApiCreateBody:
    environment: str | None = None
    provider: str | None = None
    agent_config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiSessionBody:
    session_id: str
    sandbox_id: str | None
    provider: str
    url: str
    environment: str
    status: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ApiCodeBody:
    session_id: str
    code: str
    language: str = "python"
    timeout: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ApiResultBody:
    """``results`` and ``artifacts`` stay empty: a program is run, not a notebook's cell."""

    stdout: str
    stderr: str
    exit_code: int
    results: list[Any] = field(default_factory=list)
    artifacts: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ApiFileBody:
    path: str
    content: str
    content_base64: str | None = None

    @classmethod
    def of(cls, path: str, data: bytes) -> ApiFileBody:
        text, exact = text_and_base64(data)
        return cls(path, text, exact)


@dataclass(frozen=True, slots=True)
class ApiWriteBody:
    session_id: str
    path: str
    content: str


@dataclass(frozen=True, slots=True)
class ApiWrittenBody:
    path: str
    status: str = "written"


# --- reading ------------------------------------------------------------------------------------


async def read_body(request: Request, kind: type[Body]) -> Body:
    """An empty body is an empty object. Text is refused: it is what a foreign page may send unasked, and no
    client of ours calls JSON so.
    """
    if request.headers.get("content-type", "").lower().startswith("text/plain"):
        raise InvalidRequest("send the body as JSON, with the header Content-Type: application/json")
    content = await request.body() or b"{}"
    try:
        body = msgspec.json.decode(content, type=kind)
        given: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not the JSON that is wanted: {error}") from None
    known = [one.name for one in fields(kind)]
    for name in given:
        if name not in known:
            raise InvalidRequest(
                f"the body has an unknown field {name!r:.80}{did_you_mean(name[:80], known)}"
            )
    return body


def documented(kind: type[object], *, required: bool = True) -> dict[str, Any]:
    """For ``openapi_extra``: FastAPI does not see a body that is read by hand."""
    schema = TypeAdapter(kind).json_schema()
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


async def seed_session(service: SandboxService, environment: str | None, thread: str | None) -> Session:
    """Names of that time (Python3, python:latest) mean the default environment."""
    known = {found.name: found.tier for found in (await service.catalogue()).environments}
    request = CreateSession(
        environment=environment_meant(environment, known), thread=thread, recreate_lost=thread is not None
    )
    opened = await service.create_session(request)
    return opened.session


def own_url(request: Request) -> str:
    """Where this server is reached, by its own knowledge: what a client calls it is not repeated."""
    host, port = request.scope.get("server") or ("localhost", None)
    host = f"[{host}]" if ":" in host else host
    return f"{request.scope['scheme']}://{host}" + (f":{port}" if port else "")


async def files_answer(service: SandboxService, session_id: str, path: str) -> Response:
    """``FilesBody`` of a folder."""
    files = service.files(session_id)
    entries: list[FileEntry] = []
    after = None
    while len(entries) < MAX_LISTED:
        page = await listed_within(files.list(path, after=after, limit=1000), 1000)
        entries += page.entries
        after = page.next
        if after is None:
            break
    return await entries_answer("files", entries, {"truncated": after is not None})
