"""Recordings over HTTP: a download that is no page of this server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
from tests.unit.api.conftest import Live
from tests.unit.api.keyed import code, keyed_server

from sandlot.api.v1.metrics import RequestMetrics
from sandlot.domain.ids import new_session_id
from sandlot.domain.recordings.reports import RecordingFigures
from sandlot.testing.asciicast import parse_asciicast


async def run(client: httpx.AsyncClient, session: str, command: str) -> None:
    answer = await client.post(f"/v1/sessions/{session}/exec", json={"command": command})
    assert answer.status_code == 200, answer.text


async def test_a_recording_is_downloaded_as_an_asciicast(live: Live) -> None:
    session = await live.session(record=True)
    assert (await live.client.get(f"/v1/sessions/{session}")).json()["record"] is True
    await run(live.client, session, "echo '<script>'")
    await live.client.delete(f"/v1/sessions/{session}")
    answer = await live.client.get(f"/v1/sessions/{session}/recording")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/x-asciicast"
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="{session}.cast"')
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert parse_asciicast(answer.content).shown == "$ echo '<script>'\r\n<script>\r\n"


async def test_without_a_recording_there_is_nothing(live: Live) -> None:
    session = await live.session()
    answer = await live.client.get(f"/v1/sessions/{session}/recording")
    assert code(answer) == (404, "not_found")
    assert "record=True" in answer.text
    for unknown in (new_session_id(), "nonsense", "..%2F..%2Fworker.db"):
        assert code(await live.client.get(f"/v1/sessions/{unknown}/recording")) == (404, "not_found")


async def test_a_wrong_option_is_refused(live: Live) -> None:
    for body in ({"recorded": True}, {"record": "sometimes"}):
        answer = await live.client.post("/v1/sessions", json=body)
        assert code(answer) == (422, "invalid_request"), answer.text


async def test_a_recording_needs_its_tenant_and_both_scopes(tmp_path: Path) -> None:
    async with keyed_server(tmp_path) as server:

        async def holder(*scopes: str) -> str:
            return str((await server.create(tenant="acme", scopes=list(scopes)))["secret"])

        user = await holder("sessions:read", "sessions:write", "exec", "files", "network")
        session = (await server.post("/v1/sessions", user, {"record": True})).json()["id"]
        path = f"/v1/sessions/{session}/recording"
        assert (await server.get(path, user)).status_code == 200
        assert code(await server.get(path, await holder("sessions:read"))) == (403, "forbidden")
        assert code(await server.get(path, await holder("exec"))) == (403, "forbidden")
        other = str((await server.create(tenant="other"))["secret"])
        assert code(await server.get(path, other)) == (404, "not_found")


async def test_metrics_have_the_recordings(live: Live) -> None:
    """The fake reports none; what a worker reports, a collector shows."""
    health = replace(await live.service.health(), recordings=RecordingFigures(3, 4096))
    text = RequestMetrics().exposition(health).decode()
    assert "sandlot_recorded_sessions 3.0" in text
    assert "sandlot_recordings_bytes 4096.0" in text
