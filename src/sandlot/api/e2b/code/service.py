"""The routes of the code interpreter: run code, and list, create, restart and remove contexts.

A cell is an exec. A client that disconnects interrupts it, as E2B's SDK promises, and its context stays.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import PlainTextResponse, Response

from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.calls import SandboxCall
from sandlot.api.e2b.code.bodies import ContextBody, Execute, NewContext
from sandlot.api.e2b.code.events import KEEPALIVE, cell_lines
from sandlot.api.e2b.errors import SandboxGone, error_body, error_response
from sandlot.api.responses.json import json_response
from sandlot.api.responses.streams import StreamedResponse, with_pings
from sandlot.domain.code.contexts import Cell, Context, CreateContext, Language, new_context_id
from sandlot.domain.errors import InvalidRequest, NotFound, SandlotError, Unsupported
from sandlot.domain.execution import ExecRequest
from sandlot.domain.text.suggestions import did_you_mean

PATHS: Final = ("/execute", "/contexts", "/contexts/{context_id}", "/contexts/{context_id}/restart")
_CONTEXT: Final = re.compile(r"/contexts/([^/]{1,200})(/restart)?")
_NDJSON: Final = "application/x-ndjson"
# Other names of languages that E2B's code interpreter takes.
_OTHER_NAMES: Final = {"js": Language.JAVASCRIPT, "ts": Language.TYPESCRIPT}


def label_of(path: str) -> str | None:
    """The path as a label in metrics; None if it is no path of the code interpreter."""
    match = _CONTEXT.fullmatch(path)
    if match is None:
        return path if path in PATHS else None
    return PATHS[3] if match[2] else PATHS[2]


async def answer(call: SandboxCall) -> Response:
    try:
        return await _routed(call)
    except SandlotError as error:
        return refused(error)


def refused(error: SandlotError) -> Response:
    """As text, which is what the code interpreter's SDK shows."""
    if isinstance(error, SandboxGone):
        return error_response(error)
    body = error_body(error)
    return PlainTextResponse(body["message"], body["code"])


async def _routed(call: SandboxCall) -> Response:
    path, method = call.request.scope["path"], call.request.method
    if (method, path) == ("POST", "/execute"):
        return await _execute(call)
    if (method, path) == ("POST", "/contexts"):
        return await _create_context(call)
    if (method, path) == ("GET", "/contexts"):
        contexts = await call.service.list_contexts(call.session_id)
        return json_response([_body(context) for context in contexts])
    match = _CONTEXT.fullmatch(path)
    if match is not None and method == "POST" and match[2]:
        return json_response(_body(await call.service.restart_context(call.session_id, match[1])))
    if match is not None and method == "DELETE" and not match[2]:
        return await _remove_context(call, match[1])
    raise NotFound(f"There is no {method[:16]} {path[:200]!r} in the code interpreter.")


async def _execute(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), Execute)
    if body.context_id is not None and body.language is not None:
        raise InvalidRequest("Give a context or a language, not both: a context has its language.")
    context = _language(body.language).value if body.context_id is None else body.context_id
    execution = await call.service.start_exec(
        call.session_id,
        # Without a limit of output, the client gets all of it as it comes, and its own timeout counts.
        ExecRequest(cell=Cell(body.code, context), env=body.env_vars or {}, output_limit=None),
    )

    ended = False

    async def lines() -> AsyncIterator[bytes]:
        nonlocal ended
        async for line in cell_lines(execution):
            yield line
        ended = True

    async def release() -> None:
        try:
            if not ended:
                # Nobody is left to be told if this fails.
                with contextlib.suppress(SandlotError):
                    await call.service.kill_exec(call.session_id, execution.exec_id)
        finally:
            await execution.detach()

    return StreamedResponse(
        with_pings(lines(), KEEPALIVE),
        release=release,
        media_type=_NDJSON,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _create_context(call: SandboxCall) -> Response:
    body = read_body(await call.request.body(), NewContext)
    language = _language(body.language)
    request = CreateContext(language, new_context_id(language), body.cwd)
    return json_response(_body(await call.service.create_context(call.session_id, request)))


async def _remove_context(call: SandboxCall, context_id: str) -> Response:
    contexts = await call.service.list_contexts(call.session_id)
    if context_id not in [context.id for context in contexts]:
        raise NotFound(f"Context {context_id[:64]!r} not found")
    await call.service.delete_context(call.session_id, context_id)
    return Response(status_code=204)


def _language(name: str | None) -> Language:
    lower = (name or Language.PYTHON).lower()
    if lower in _OTHER_NAMES:
        return _OTHER_NAMES[lower]
    if lower not in set(Language):
        known = [language.value for language in Language]
        raise Unsupported(
            f"Code in {lower[:40]!r} does not run here.{did_you_mean(lower[:40], known)} Languages are: "
            f"{', '.join(known)}."
        )
    return Language(lower)


def _body(context: Context) -> ContextBody:
    return ContextBody(context.id, context.language.value, context.cwd)
