"""Paths of the HTTP API, with every id escaped."""

from __future__ import annotations

from sandlot.client.http.transport.request import segment


def thread_path(thread: str) -> str:
    return "/v1/threads/" + segment(thread)


def session_path(session_id: str) -> str:
    return "/v1/sessions/" + segment(session_id)


def exec_path(session_id: str, exec_id: str) -> str:
    return f"/v1/sessions/{segment(session_id)}/execs/{segment(exec_id)}"
