"""Builds of templates. A template that is built is an environment of the server, for all of its tenants.

So a caller needs the scope ``fleet:operate``. The files of COPY come to an address that the server signs, as
E2B's SDK wants it: that request carries no key.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope as AsgiScope

from sandlot.api.context import principal_of
from sandlot.api.e2b.admission import query_of
from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.control.build_bodies import (
    BuildBody,
    BuildLine,
    BuildReason,
    BuildStatusBody,
    RequestBuild,
    StartBuild,
    UploadBody,
)
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.control.creating import environment_in, without_tag
from sandlot.api.e2b.options import TokenHolders
from sandlot.api.e2b.sessions import timestamp
from sandlot.api.edge.admission import Admission, Refusal
from sandlot.api.edge.request_body import BodyLimits
from sandlot.api.responses.json import json_response
from sandlot.domain.callers.principal import Principal, Scope
from sandlot.domain.e2b.tokens import TokenKind
from sandlot.domain.errors import InvalidRequest, Unauthorized, Unsupported
from sandlot.domain.templates.build import NewTemplate, Plan, Progress, Step, StepKind, TemplateBuilds

_MIB: Final = 1024 * 1024
MAX_LINES: Final = 100
UPLOAD_PATH: Final = re.compile(r"/templates/([^/]{1,100})/files/([^/]{1,100})")
# E2B's own images, which its SDK begins with if nobody names one: ours with the same purpose.
_BASES: Final = {"e2bdev/base": "base", "e2bdev/code-interpreter": "code"}
_NO_START: Final = (
    "Sandboxes here begin without a start command: leave out set_start_cmd and set_ready_cmd, and a "
    "Dockerfile's CMD and ENTRYPOINT. Start the program with commands.run(background=True)."
)


async def request(call: ControlCall) -> Response:
    builds = builds_of(call)
    body = read_body(await call.request.body(), RequestBuild)
    if body.min_free_disk_mb:
        raise Unsupported("min_free_disk_mb is not supported: a sandbox's disk has its quota. Leave it out.")
    name = without_tag(body.name or body.alias or "")
    if ":" in name or any(tag not in ("default", "latest") for tag in body.tags or ()):
        raise Unsupported("Templates have no tags here. Build the version under a name of its own.")
    new = NewTemplate(
        name,
        None if body.cpu_count is None else float(body.cpu_count),
        None if body.memory_mb is None else body.memory_mb * _MIB,
    )
    progress = builds.request(new)
    return json_response(BuildBody(name, progress.id, False, [name], ["default"], [name]), 202)


async def upload_link(call: ControlCall) -> Response:
    """Where the files of a COPY go. They are kept until the template's builds are over."""
    builds = builds_of(call)
    template, files = call.request.path_params["template_id"], call.request.path_params["hash"]
    present = builds.has_files(template, files)
    token = call.holders.tokens.issue(_upload(template, files), call.caller.key_id, TokenKind.UPLOAD)
    url = f"{call.request.base_url}templates/{quote(template, safe='')}/files/{files}?token={token}"
    return json_response(UploadBody(present, url), 201)


async def start(call: ControlCall) -> Response:
    builds = builds_of(call)
    body = read_body(await call.request.body(), StartBuild)
    if body.start_cmd or body.ready_cmd:
        raise Unsupported(_NO_START)
    if body.from_image_registry is not None:
        raise Unsupported(
            "Credentials of a registry belong to the operator's engine (`docker login`, `docker pull`). Use "
            "the image's name alone."
        )
    steps = tuple(
        Step(StepKind(step.type), tuple(step.args or ()), step.files_hash) for step in body.steps or ()
    )
    base = None if body.from_image is None else _BASES.get(without_tag(body.from_image))
    environment = environment_in(body.from_template) if body.from_template else base
    fresh = body.force or any(step.force for step in body.steps or ())
    plan = Plan(steps, None if base else body.from_image or None, environment, fresh)
    builds.start(call.request.path_params["template_id"], call.request.path_params["build_id"], plan)
    return Response(status_code=202)


async def status(call: ControlCall) -> Response:
    builds = builds_of(call)
    query = call.query("logsOffset", "limit", "level")
    progress = builds.progress(
        call.request.path_params["template_id"],
        call.request.path_params["build_id"],
        _number(query.get("logsOffset", "0"), "logsOffset"),
        min(MAX_LINES, _number(query.get("limit", str(MAX_LINES)), "limit")),
    )
    return json_response(_status_body(progress))


def builds_of(call: ControlCall) -> TemplateBuilds:
    """The server's builds, if it has them and the caller may use them."""
    if call.builds is None:
        raise not_built_here()
    call.caller.require(Scope.FLEET_OPERATE)
    return call.builds


def not_built_here() -> Unsupported:
    return Unsupported(
        "This server builds, changes and removes no templates for clients: a build is code on the operator's "
        "engine. The operator can allow it with SANDLOT_E2B_BUILDS=1, or add an environment "
        "(docs/howto/custom-image.md). In a fleet, the image is built on each worker. Snapshots keep files."
    )


class UploadAdmission:
    """Admits who has an upload's link, if the key that asked for it may still build."""

    def __init__(self, admission: Admission, holders: TokenHolders) -> None:
        self._admission = admission
        self._holders = holders

    def admit_request(self, scope: AsgiScope) -> Principal | Refusal:
        refusal = self._admission.refusal_of_site(scope["headers"])
        if refusal is not None:
            return refusal
        match = UPLOAD_PATH.fullmatch(scope["path"])
        try:
            token = query_of(scope).get("token", "")
        except (InvalidRequest, ValueError):
            token = ""
        holder = None
        if match is not None:
            holder = self._holders.of(_upload(match[1], match[2]), token, TokenKind.UPLOAD)
        return holder or Refusal(401, Unauthorized("This link does not take an upload. Build again."))

    async def may_admit_later(self, refusal: Refusal) -> bool:
        return False


class UploadLimits(BodyLimits):
    """Archives of files may be long."""

    def limit(self, method: str, path: str) -> int:
        return self.max_upload_bytes


async def receive_upload(request: Request, builds: TemplateBuilds) -> Response:
    principal_of(request).require(Scope.FLEET_OPERATE)
    match = UPLOAD_PATH.fullmatch(request.scope["path"])
    assert match is not None  # admitted by its path
    await builds.receive(match[1], match[2], _whole(request))
    return Response(status_code=200)


async def _whole(request: Request) -> AsyncIterator[bytes]:
    """An archive whose client left must not be taken for a complete one."""
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise InvalidRequest("The client left before its files were complete.") from None


def _upload(template: str, files: str) -> str:
    return f"{template}/{files}"


def _status_body(progress: Progress) -> BuildStatusBody:
    reason = None
    if progress.problem:
        step = progress.failed_step
        # What a build begins with is a step of this name in E2B's SDK.
        reason = BuildReason(progress.problem, None if step is None else "base" if step == 0 else str(step))
    return BuildStatusBody(
        progress.template,
        progress.id,
        progress.state,
        [],
        [
            BuildLine(timestamp(line.at), "error" if line.failed else "info", line.text)
            for line in progress.lines
        ],
        reason,
    )


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(f"{name} is not a number: {text[:20]!r}.")
    return int(text)
