"""Sandboxes: create, connect, look at, extend, pause, end."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from sandlot.api.e2b.bodies import read_body
from sandlot.api.e2b.control.bodies import Connect, CreateSandbox, NetworkUpdate, Pause, SetTimeout
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.control.creating import check_memory, network_request, session_request
from sandlot.api.e2b.options import DEFAULT_TIMEOUT_S
from sandlot.api.e2b.sessions import is_running
from sandlot.api.responses.json import json_response
from sandlot.domain.errors import Conflict, InvalidRequest
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.status import NetworkChange
from sandlot.domain.session import Session, SessionChange, SessionState

_IDEMPOTENCY_KEY: Final = re.compile(r"[a-z0-9-]{1,255}")


async def create(call: ControlCall) -> Response:
    body = read_body(await call.request.body(), CreateSandbox)
    key = call.request.headers.get("idempotency-key")
    if key is not None and _IDEMPOTENCY_KEY.fullmatch(key) is None:
        raise InvalidRequest("Idempotency-Key must have 1-255 lowercase letters, digits and hyphens.")
    opened = await call.service.create_session(await session_request(call, body, key))
    return json_response(call.sandbox_body(opened.session), 201)


async def connect(call: ControlCall) -> Response:
    """Resume a paused or lost sandbox. A running one may live longer afterwards, and never shorter."""
    body = read_body(await call.request.body(), Connect)
    session = await call.service.get_session(call.session_id)
    if is_running(session):
        if body.timeout is not None:
            session = await _live_until(call, session, time.time() + body.timeout, may_shorten=False)
        return json_response(call.sandbox_body(session))
    if session.state is SessionState.LOST:
        session = await call.service.recreate_session(session.id)
    else:
        await call.service.list_execs(session.id)  # its next use gives it a sandbox
        session = await call.service.get_session(session.id)
    session = await _live_until(
        call, session, time.time() + (body.timeout or DEFAULT_TIMEOUT_S), may_shorten=True
    )
    return json_response(call.sandbox_body(session), 201)


async def get(call: ControlCall) -> Response:
    session = await call.service.get_session(call.session_id)
    return json_response(call.detail(session, await _policy_of(call, session)))


async def _policy_of(call: ControlCall, session: Session) -> EgressPolicy:
    """What the session asked for, or what its environment has."""
    if session.network is not None:
        return session.network
    for environment in (await call.service.catalogue()).environments:
        if environment.name == session.environment:
            return environment.network
    return EgressPolicy()


async def delete(call: ControlCall) -> Response:
    await call.service.delete_session((await call.service.get_session(call.session_id)).id)
    return Response(status_code=204)


async def set_timeout(call: ControlCall) -> Response:
    body = read_body(await call.request.body(), SetTimeout)
    session = await call.service.get_session(call.session_id)
    await _live_until(call, session, time.time() + body.timeout, may_shorten=True)
    return Response(status_code=204)


async def _live_until(call: ControlCall, session: Session, at: float, *, may_shorten: bool) -> Session:
    lifetime_s = max(1.0, at - session.lifetime_from)
    if not may_shorten and (session.lifetime_s is None or session.lifetime_s >= lifetime_s):
        return session
    change = SessionChange(lifetime_s=lifetime_s, idle_timeout_s=lifetime_s)
    return await call.service.update_session(session.id, change)


async def pause(call: ControlCall) -> Response:
    body = read_body(await call.request.body(), Pause)
    check_memory(body.memory, call.user_agent)
    session = await call.service.get_session(call.session_id)
    if not is_running(session):
        raise Conflict("The sandbox is paused already.")
    await call.service.hibernate_session(session.id)
    return Response(status_code=204)


async def change_network(call: ControlCall) -> Response:
    """Replace what the sandbox may reach. Without anything, its environment's own rules hold again."""
    body = read_body(await call.request.body(), NetworkUpdate)
    asked = network_request(body.allow_internet_access, body)
    if asked is None:
        session = await call.service.get_session(call.session_id)
        asked = await _policy_of(call, replace(session, network=None))
    await call.service.change_network(call.session_id, NetworkChange(policy=asked))
    return Response(status_code=204)
