"""Paths of the HTTP API, with every id escaped."""

from __future__ import annotations

from sandlot.client.http.transport.request import query, segment
from sandlot.domain.history.query import EventQuery


def thread_path(thread: str) -> str:
    return "/v1/threads/" + segment(thread)


def session_path(session_id: str) -> str:
    return "/v1/sessions/" + segment(session_id)


def snapshot_path(snapshot_id: str) -> str:
    return "/v1/snapshots/" + segment(snapshot_id)


def exec_path(session_id: str, exec_id: str) -> str:
    return f"/v1/sessions/{segment(session_id)}/execs/{segment(exec_id)}"


def events_path(asked: EventQuery) -> str:
    return "/v1/events" + query(
        session=asked.session_id,
        thread=asked.thread,
        kind=[kind.value for kind in asked.kinds],
        since=asked.since,
        until=asked.until,
        after=asked.after,
        limit=asked.limit,
        wait_s=asked.wait_s or None,
        server=asked.server or None,
    )
