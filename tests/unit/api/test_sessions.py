"""Sessions, threads and the catalogue over HTTP."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest
from tests.unit.api.conftest import Live

from sandlot.domain.errors import Unavailable
from sandlot.domain.service import ServiceHealth


async def test_life_of_a_session(live: Live) -> None:
    created = await live.client.post("/v1/sessions", json={"thread": "t1", "metadata": {"a": "b"}})
    assert created.status_code == 201
    body = created.json()
    assert body["state"] == "active"
    assert body["metadata"] == {"a": "b"}
    assert created.headers["location"] == f"/v1/sessions/{body['id']}"

    again = await live.client.post("/v1/sessions", json={"thread": "t1"})
    assert again.status_code == 200
    assert again.json()["id"] == body["id"]

    path = f"/v1/sessions/{body['id']}"
    changed = await live.client.patch(path, json={"lifetime_s": 120, "idle_timeout_s": "never"})
    assert changed.json()["lifetime_s"] == 120
    assert changed.json()["idle_timeout_s"] is None
    assert (await live.client.get(path)).json()["lifetime_s"] == 120
    assert (await live.client.post(path + "/recreate")).status_code == 409

    deleted = await live.client.delete(path)
    assert deleted.status_code == 204
    assert deleted.content == b""
    gone = await live.client.get(path)
    assert gone.status_code == 404
    assert gone.headers["content-type"] == "application/problem+json"
    assert gone.json()["code"] == "session_ended"
    assert gone.json()["request_id"] == gone.headers["x-request-id"]


async def test_create_without_a_body_takes_the_defaults(live: Live) -> None:
    assert (await live.client.post("/v1/sessions")).status_code == 201


async def test_idempotency_key(live: Live) -> None:
    first = await live.client.post("/v1/sessions", json={}, headers={"Idempotency-Key": "k"})
    second = await live.client.post("/v1/sessions", json={}, headers={"Idempotency-Key": "k"})
    other = await live.client.post("/v1/sessions", json={"thread": "x"}, headers={"Idempotency-Key": "k"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_pages(live: Live) -> None:
    ids = [await live.session() for _ in range(5)]
    first = (await live.client.get("/v1/sessions", params={"limit": 3})).json()
    rest = (await live.client.get("/v1/sessions", params={"limit": 3, "after": first["next"]})).json()
    assert [found["id"] for found in first["sessions"] + rest["sessions"]] == ids
    assert rest["next"] is None


async def test_a_thread_may_have_any_printable_id(live: Live) -> None:
    thread = "user/42:chat?x=1&y#z%"
    path = "/v1/threads/" + quote(thread, safe="")
    assert (await live.client.get(path)).status_code == 404
    run = await live.client.post(path + "/exec", json={"exec": {"command": "echo hi"}})
    assert run.status_code == 200, run.text
    assert run.json()["created"] is True
    assert run.json()["result"]["stdout"] == "hi\n"
    assert run.json()["session"]["thread"] == thread
    again = await live.client.post(path + "/exec", json={"exec": {"command": "true"}})
    assert again.json()["created"] is False
    assert (await live.client.get(path)).json()["id"] == run.json()["session"]["id"]


async def test_a_threads_body_cannot_name_another_thread(live: Live) -> None:
    body = {"exec": {"command": "true"}, "session": {"thread": "b"}}
    refused = await live.client.post("/v1/threads/a/exec", json=body)
    assert refused.status_code == 422


async def test_catalogue(live: Live) -> None:
    whole = (await live.client.get("/v1/catalogue")).json()
    assert (await live.client.get("/v1/environments")).json() == {"environments": whole["environments"]}
    assert whole["environments"][0]["name"] == "base"
    for kind in ("tools", "prompts", "agents"):
        assert (await live.client.get(f"/v1/{kind}")).json() == {kind: whole[kind]}


async def test_operations(live: Live) -> None:
    await live.session()
    await live.client.get("/v1/sessions/ses_none")
    health = (await live.client.get("/health")).json()
    assert health["status"] == "healthy"
    assert health["active_sessions"] == 1
    assert set(health) == {"status", "pool_size", "active_sessions", "worker_id", "workers"}
    assert (await live.client.get("/ready")).json() == {"ready": True, "creates": True}
    assert (await live.client.get("/v1/health")).json()["ready"] is True
    text = (await live.client.get("/metrics")).text
    assert "sandlot_active_sessions 1.0" in text
    assert 'sandlot_http_requests_total{method="POST",route="/v1/sessions",status="201"}' in text
    assert 'route="/v1/sessions/{session_id}",status="404"}' in text
    assert "ses_none" not in text


async def test_ready_tells_a_service_that_takes_nothing(live: Live) -> None:
    await live.service.close()
    answer = await live.client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "creates": False})


async def test_ready_means_that_what_is_there_can_be_used(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O8: as of a coordinator whose directory is away, and of a worker that is being emptied."""
    health = replace(await live.service.health(), creates=False)

    async def no_creates() -> ServiceHealth:
        return health

    monkeypatch.setattr(live.service, "health", no_creates)
    answer = await live.client.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "creates": False})
    assert (await live.client.get("/health")).json()["status"] == "degraded"
    text = (await live.client.get("/metrics")).text
    assert "sandlot_ready 1.0" in text
    assert "sandlot_creates 0.0" in text


async def test_retry_after(live: Live) -> None:
    async def full(request: object) -> None:
        raise Unavailable("no room", retry_after_s=2.3)

    live.service.create_session = full  # type: ignore[assignment,method-assign]
    refused = await live.client.post("/v1/sessions", json={})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "3"
    assert refused.json()["retryable"] is True
