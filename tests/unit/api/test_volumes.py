"""Volumes over HTTP."""

from __future__ import annotations

import pytest
from tests.unit.api.conftest import Live
from tests.unit.api.test_artifacts import problem


async def test_volumes_are_made_listed_used_and_deleted(live: Live) -> None:
    made = await live.client.post("/v1/volumes", json={"name": "data", "quota_bytes": 64 * 1024**2})
    assert made.status_code == 201, made.text
    volume = made.json()
    assert problem(await live.client.post("/v1/volumes", json={"name": "data"})) == (409, "conflict")
    assert (await live.client.get("/v1/volumes/data")).json() == volume
    assert (await live.client.get(f"/v1/volumes/{volume['id']}")).json() == volume
    assert (await live.client.get("/v1/volumes")).json()["volumes"] == [volume]
    created = await live.client.post("/v1/sessions", json={"volumes": {"data": "rw"}})
    assert created.status_code == 201, created.text
    session = created.json()
    assert session["volumes"] == [{"id": volume["id"], "name": "data", "mode": "rw"}]
    assert (await live.client.get("/v1/volumes/data")).json()["writer"] == session["id"]
    second = await live.client.post("/v1/sessions", json={"volumes": {"data": "rw"}})
    assert problem(second) == (409, "conflict")
    assert problem(await live.client.delete("/v1/volumes/data")) == (409, "conflict")
    assert (await live.client.delete(f"/v1/sessions/{session['id']}")).status_code == 204
    for _ in range(2):
        assert (await live.client.delete("/v1/volumes/data")).status_code == 204
    assert problem(await live.client.get("/v1/volumes/data")) == (404, "not_found")


@pytest.mark.parametrize(
    "body", [{}, {"name": "Data"}, {"name": "data", "size": 1}, {"name": "data", "quota_bytes": 1}]
)
async def test_a_body_that_is_none(live: Live, body: dict[str, object]) -> None:
    assert problem(await live.client.post("/v1/volumes", json=body)) == (422, "invalid_request")


async def test_a_wish_or_a_page_that_is_none(live: Live) -> None:
    for volumes in ({"data": "w"}, ["data"], {"../x": "ro"}):
        answer = await live.client.post("/v1/sessions", json={"volumes": volumes})
        assert problem(answer) == (422, "invalid_request")
    for query in ({"session": "x"}, {"after": "x"}, {"limit": "0"}):
        assert problem(await live.client.get("/v1/volumes", params=query)) == (422, "invalid_request")
