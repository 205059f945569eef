"""Artifacts over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.api.conftest import Live

UNKNOWN = "art_" + "0" * 32


async def write(live: Live, session: str, path: str, content: bytes) -> None:
    put = await live.client.put(
        f"/v1/sessions/{session}/files/content", params={"path": path}, content=content
    )
    assert put.status_code < 300, put.text


async def keep(live: Live, session: str, *paths: str) -> dict[str, Any]:
    kept = await live.client.post(f"/v1/sessions/{session}/artifacts", json={"paths": list(paths)})
    assert kept.status_code == 200, kept.text
    found: dict[str, Any] = kept.json()
    return found


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_files_are_kept_listed_downloaded_and_deleted(live: Live) -> None:
    session, other = await live.session(thread="t"), await live.session()
    await write(live, session, "out/a.txt", b"first")
    await write(live, other, "b", b"second")
    kept = await keep(live, session, "out/*", "none")
    [artifact] = kept["kept"]
    assert (kept["unmatched"], kept["refused"]) == (["none"], [])
    assert (artifact["path"], artifact["size"], artifact["thread"]) == ("out/a.txt", 5, "t")
    [second] = (await keep(live, other, "b"))["kept"]
    assert (await live.client.delete(f"/v1/sessions/{session}")).status_code == 204

    assert (await live.client.get(f"/v1/artifacts/{artifact['id']}")).json() == artifact
    page = (await live.client.get("/v1/artifacts", params={"limit": 1})).json()
    assert page["artifacts"] == [artifact]
    rest = (await live.client.get("/v1/artifacts", params={"after": page["next"]})).json()
    assert (rest["artifacts"], rest["next"], rest["missing"]) == ([second], None, [])
    for query in ({"session": session}, {"thread": "t"}, {"session": session, "thread": "t"}):
        assert (await live.client.get("/v1/artifacts", params=query)).json()["artifacts"] == [artifact]
    nothing = await live.client.get("/v1/artifacts", params={"session": other, "thread": "t"})
    assert nothing.json()["artifacts"] == []

    content = await live.client.get(f"/v1/artifacts/{artifact['id']}/content")
    assert content.content == b"first"
    for _ in range(2):
        assert (await live.client.delete(f"/v1/artifacts/{artifact['id']}")).status_code == 204
    assert problem(await live.client.get(f"/v1/artifacts/{artifact['id']}")) == (404, "not_found")
    assert problem(await live.client.get(f"/v1/artifacts/{artifact['id']}/content")) == (404, "not_found")


async def test_a_download_never_becomes_a_page_of_this_server(live: Live) -> None:
    session = await live.session()
    name = 'a";\r\nX-Evil: 1\r\n\r\n<script>.html'
    await write(live, session, name, b"<script>alert(1)</script>")
    [artifact] = (await keep(live, session, "*"))["kept"]
    content = await live.client.get(f"/v1/artifacts/{artifact['id']}/content")
    assert content.headers["content-disposition"].startswith("attachment; ")
    assert content.headers["x-content-type-options"] == "nosniff"
    assert content.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert content.headers["content-length"] == "25"
    assert "x-evil" not in content.headers


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"paths": "out"},
        {"paths": []},
        {"paths": [1]},
        {"paths": ["/etc/passwd"]},
        {"paths": ["../a"]},
        {"paths": ["a"], "path": "a"},
        {"path": ["a"]},
        {"paths": [""]},
        {"paths": ["a"] * 2 + [f"f{number}" for number in range(100)]},
        [],
        None,
    ],
)
async def test_a_malformed_request_keeps_nothing(live: Live, body: Any) -> None:
    session = await live.session()
    await write(live, session, "a", b"x")
    answer = await live.client.post(f"/v1/sessions/{session}/artifacts", json=body)
    assert problem(answer) == (422, "invalid_request")
    listed = await live.client.get("/v1/artifacts", params={"session": session})
    assert listed.json()["artifacts"] == []


async def test_a_misspelled_field_or_parameter_names_the_right_one(live: Live) -> None:
    session = await live.session()
    answer = await live.client.post(f"/v1/sessions/{session}/artifacts", json={"path": ["a"]})
    assert "paths" in answer.json()["detail"]
    filtered = await live.client.get("/v1/artifacts", params={"sesion": session})
    assert problem(filtered) == (422, "invalid_request")
    assert "session" in filtered.json()["detail"]
    for query in ({"after": "x"}, {"limit": 0}, {"limit": 1001}, {"limit": "x"}):
        assert problem(await live.client.get("/v1/artifacts", params=query)) == (422, "invalid_request")


@pytest.mark.parametrize("artifact_id", [UNKNOWN, "x", "..%2F..", "%00", "a" * 300, UNKNOWN.upper()])
async def test_unknown_and_malformed_ids(live: Live, artifact_id: str) -> None:
    for path in (f"/v1/artifacts/{artifact_id}", f"/v1/artifacts/{artifact_id}/content"):
        assert problem(await live.client.get(path)) == (404, "not_found")
    deleted = await live.client.delete(f"/v1/artifacts/{artifact_id}")
    assert deleted.status_code == (204 if artifact_id == UNKNOWN else 404)


async def test_a_session_declares_what_is_kept_at_its_end(live: Live) -> None:
    session = await live.session(artifacts=["out/*", "/workspace/log"])
    shown = (await live.client.get(f"/v1/sessions/{session}")).json()
    assert shown["artifacts"] == ["out/*", "log"]
    await write(live, session, "log", b"x")
    await live.client.delete(f"/v1/sessions/{session}")
    listed = (await live.client.get("/v1/artifacts", params={"session": session})).json()
    assert [artifact["path"] for artifact in listed["artifacts"]] == ["log"]
    for wrong in (["/etc/passwd"], "out", [1], [f"f{number}" for number in range(101)]):
        refused = await live.client.post("/v1/sessions", json={"artifacts": wrong})
        assert problem(refused) == (422, "invalid_request"), wrong
