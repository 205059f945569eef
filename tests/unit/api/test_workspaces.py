"""Workspaces and snapshots over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.api.conftest import Live

UNKNOWN = "snp_" + "0" * 32


async def write(live: Live, session: str, path: str, content: str) -> None:
    put = await live.client.put(
        f"/v1/sessions/{session}/files/content", params={"path": path}, content=content.encode()
    )
    assert put.status_code < 300, put.text


async def read(live: Live, session: str, path: str) -> str:
    got = await live.client.get(f"/v1/sessions/{session}/files/content", params={"path": path})
    assert got.status_code == 200, got.text
    return got.text


async def snapshot(live: Live, session: str, **body: Any) -> dict[str, Any]:
    taken = await live.client.post(f"/v1/sessions/{session}/snapshots", json=body)
    assert taken.status_code == 201, taken.text
    found: dict[str, Any] = taken.json()
    return found


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_session_shows_its_workspace(live: Live) -> None:
    session = await live.session()
    shown = (await live.client.get(f"/v1/sessions/{session}")).json()
    status = (await live.client.get(f"/v1/sessions/{session}/workspace")).json()
    assert shown["workspace"] == status["workspace"]
    assert shown["workspace"]["id"].startswith("wsp_")
    assert (status["store"], status["snapshots"]) == ("memory", 0)
    await snapshot(live, session)
    assert (await live.client.get(f"/v1/sessions/{session}/workspace")).json()["snapshots"] == 1


async def test_snapshots_are_taken_listed_and_deleted(live: Live) -> None:
    session, other = await live.session(), await live.session()
    first = await snapshot(live, session, name="before", labels={"a": "b"})
    assert (first["name"], first["labels"], first["session_id"]) == ("before", {"a": "b"}, session)
    bare = await live.client.post(f"/v1/sessions/{session}/snapshots")
    assert bare.status_code == 201, "it needs no body"
    third = await snapshot(live, other)

    page = (await live.client.get("/v1/snapshots", params={"limit": 2})).json()
    assert [each["id"] for each in page["snapshots"]] == [first["id"], bare.json()["id"]]
    rest = (await live.client.get("/v1/snapshots", params={"after": page["next"]})).json()
    assert ([each["id"] for each in rest["snapshots"]], rest["next"]) == ([third["id"]], None)
    own = (await live.client.get("/v1/snapshots", params={"session": other})).json()
    assert [each["id"] for each in own["snapshots"]] == [third["id"]]

    for _ in range(2):
        deleted = await live.client.delete(f"/v1/snapshots/{first['id']}")
        assert (deleted.status_code, deleted.content) == (204, b"")
    left = (await live.client.get("/v1/snapshots", params={"session": session})).json()
    assert [each["id"] for each in left["snapshots"]] == [bare.json()["id"]]


async def test_what_has_changed(live: Live) -> None:
    session = await live.session()
    await write(live, session, "kept.txt", "1")
    await write(live, session, "gone.txt", "1")
    first = await snapshot(live, session)
    await write(live, session, "kept.txt", "2")
    await write(live, session, "new.txt", "2")
    removed = await live.client.delete(f"/v1/sessions/{session}/files", params={"path": "gone.txt"})
    assert removed.status_code < 300, removed.text
    expected = {"added": ["new.txt"], "changed": ["kept.txt"], "removed": ["gone.txt"], "truncated": False}
    second = await snapshot(live, session)
    await write(live, session, "later.txt", "3")
    path = f"/v1/snapshots/{first['id']}/diff"
    assert (await live.client.get(path, params={"to": second["id"]})).json() == expected
    now = (await live.client.get(path)).json()
    assert now == {**expected, "added": ["later.txt", "new.txt"]}


async def test_going_back(live: Live) -> None:
    session = await live.session()
    await write(live, session, "a.txt", "before")
    taken = await snapshot(live, session)
    await write(live, session, "a.txt", "after")
    answer = await live.client.post(f"/v1/sessions/{session}/restore", json={"snapshot": taken["id"]})
    assert answer.status_code == 200, answer.text
    restored = answer.json()
    assert (restored["replaced"], restored["snapshot"]) == (True, taken["id"])
    assert restored["session"]["generation"] == 2
    assert restored["session"]["workspace"]["snapshot"] == taken["id"]
    assert restored["lost"]
    assert restored["kept"]
    assert await read(live, session, "a.txt") == "before"


async def test_a_session_begins_with_a_snapshot(live: Live) -> None:
    session = await live.session()
    await write(live, session, "a.txt", "from there")
    taken = await snapshot(live, session)
    await live.client.delete(f"/v1/sessions/{session}")
    for body in ({"snapshot": taken["id"]}, {"snapshot": taken["id"], "thread": "t"}):
        assert await read(live, await live.session(**body), "a.txt") == "from there"
    in_thread = await live.client.post(
        "/v1/threads/u/exec",
        json={"session": {"snapshot": taken["id"]}, "exec": {"command": "cat a.txt"}},
    )
    assert in_thread.json()["result"]["stdout"] == "from there"
    missing = await live.client.post("/v1/sessions", json={"snapshot": UNKNOWN})
    assert problem(missing) == (404, "not_found")


async def test_a_step_that_goes_on_keeps_its_sandbox(live: Live) -> None:
    session = await live.session()
    begun = await live.client.post(f"/v1/sessions/{session}/restore", json={"step": "s1"})
    assert begun.json()["replaced"] is False
    await write(live, session, "a.txt", "1")
    first = await snapshot(live, session, step="s1")
    again = await snapshot(live, session, step="s1")
    assert again["id"] == first["id"], "nothing has changed since"
    overtaken = await live.client.post(f"/v1/sessions/{session}/snapshots", json={"step": "another"})
    assert problem(overtaken) == (409, "conflict")


async def test_hibernation(live: Live) -> None:
    session = await live.session(on_idle="hibernate")
    await write(live, session, "a.txt", "kept")
    for _ in range(2):
        asleep = await live.client.post(f"/v1/sessions/{session}/hibernate")
        assert asleep.status_code == 200, asleep.text
        assert (asleep.json()["state"], asleep.json()["sandbox_id"]) == ("hibernated", None)
    listed = (await live.client.get("/v1/sessions")).json()["sessions"]
    assert [(each["id"], each["state"]) for each in listed] == [(session, "hibernated")]
    assert await read(live, session, "a.txt") == "kept"
    awake = (await live.client.get(f"/v1/sessions/{session}")).json()
    assert (awake["state"], awake["generation"], awake["on_idle"]) == ("active", 2, "hibernate")
    assert awake["woken_at"] is not None


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("snapshots", {"name": "x" * 201}, "name"),
        ("snapshots", {"labels": {"a": 1}}, "labels"),
        ("snapshots", {"labels": {"a": "x" * 5000}}, "labels"),
        ("snapshots", {"lables": {}}, "lables"),
        ("restore", {}, "snapshot"),
        ("restore", {"snapshot": "../../etc"}, "snapshot"),
        ("restore", {"snapshot": UNKNOWN, "force": True}, "force"),
    ],
)
async def test_what_is_not_understood_is_refused(
    live: Live, path: str, body: dict[str, Any], says: str
) -> None:
    session = await live.session()
    answer = await live.client.post(f"/v1/sessions/{session}/{path}", json=body)
    assert problem(answer) == (422, "invalid_request")
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/sessions/{id}/snapshots", {"lables": {}}, "body.lables: Unknown field. Did you mean 'labels'?"),
        ("/v1/sessions/{id}/restore", {"snapshots": "x"}, "Did you mean 'snapshot'?"),
        ("/v1/sessions", {"snapshto": "x"}, "Did you mean 'snapshot'?"),
        ("/v1/sessions", {"limits": {"memory_byte": 1}}, "Did you mean 'memory_bytes'?"),
        (
            "/v1/threads/t/exec",
            {"session": {"snapshto": "x"}, "exec": {"command": "true"}},
            "body.session.snapshto: Unknown field. Did you mean 'snapshot'?",
        ),
    ],
)
async def test_an_unknown_field_names_the_nearest(
    live: Live, path: str, body: dict[str, Any], says: str
) -> None:
    answer = await live.client.post(path.replace("{id}", await live.session()), json=body)
    assert problem(answer) == (422, "invalid_request")
    assert says in answer.json()["detail"]


async def test_unknown_parameters_are_refused(live: Live) -> None:
    answer = await live.client.get("/v1/snapshots", params={"sesion": "x"})
    assert problem(answer) == (422, "invalid_request")
    assert "Did you mean 'session'?" in answer.json()["detail"]
    for query in ("after=what", "limit=0", "limit=1001"):
        assert problem(await live.client.get(f"/v1/snapshots?{query}")) == (422, "invalid_request")
    assert problem(await live.client.get(f"/v1/snapshots/{UNKNOWN}/diff?since=x")) == (422, "invalid_request")
    assert problem(await live.client.post("/v1/sessions", json={"snapshot": "x"})) == (422, "invalid_request")
    assert problem(await live.client.post("/v1/sessions", json={"on_idle": "sleep"})) == (
        422,
        "invalid_request",
    )


async def test_what_does_not_exist(live: Live) -> None:
    session = await live.session()
    for path in (f"/v1/snapshots/{UNKNOWN}/diff", "/v1/snapshots/nonsense/diff", "/v1/sessions/x/workspace"):
        assert problem(await live.client.get(path)) == (404, "not_found")
    restored = await live.client.post(f"/v1/sessions/{session}/restore", json={"snapshot": UNKNOWN})
    assert problem(restored) == (404, "not_found")
    assert (await live.client.delete("/v1/snapshots/nonsense")).status_code == 204
