"""The older interface, called as its texts call it."""

from __future__ import annotations

import json

import pytest
from tests.unit.api.conftest import Live

from sandlot.testing.fake import Reply

# What ``curl -d`` says of any body.
CURL = {"Content-Type": "application/x-www-form-urlencoded"}


async def created(live: Live) -> str:
    answer = await live.client.post("/create_session")
    body = answer.json()
    assert (body["status"], body["user"], body["workspace"]) == ("created", "sandboxuser", "/workspace")
    assert body["worker"] == live.url
    session_id: str = body["session_id"]
    return session_id


async def test_create_execute_cleanup(live: Live) -> None:
    session_id = await created(live)
    body = {"session_id": session_id, "command": "echo Hello; echo no >&2"}
    ran = (await live.client.post("/execute", json=body)).json()
    assert (ran["exit_code"], ran["output"], ran["stdout"], ran["stderr"]) == (
        0,
        "Hello\nno\n",
        "Hello\n",
        "no\n",
    )
    slow = (await live.client.post("/execute", json={**body, "command": "sleep 9", "timeout": 0.05})).json()
    assert slow["timed_out"] is True
    assert (await live.client.get(f"/session/{session_id}")).json()["status"] == "active"
    cleaned = await live.client.post("/cleanup", content=json.dumps({"session_id": session_id}), headers=CURL)
    assert cleaned.json() == {"status": "cleaned up"}
    assert (await live.client.post("/execute", json=body)).status_code == 404


async def test_a_thread_has_one_session(live: Live) -> None:
    ids = [
        (await live.client.post("/create_session", json={"thread_id": "t"})).json()["session_id"]
        for _ in range(2)
    ]
    assert ids[0] == ids[1]
    assert (await live.client.delete(f"/session/{ids[0]}")).json() == {"status": "cleaned up"}


async def test_files(live: Live) -> None:
    session_id = await created(live)
    form = {"session_id": session_id}
    sent = await live.client.post(
        "/upload_file", data=form, files={"file": ("../../etc/file.txt", b"content")}
    )
    assert sent.json() == {"status": "uploaded", "filename": "file.txt", "path": "/workspace/file.txt"}
    sent = await live.client.post(
        "/upload_file",
        data={**form, "path": "/workspace/sub/"},
        files={"file": ("b.bin", b"\xff" * 2_000_000)},
    )
    assert sent.json()["path"] == "/workspace/sub/b.bin"
    asked = {"session_id": session_id, "path": "/workspace/file.txt"}
    for answer in (
        await live.client.get("/download_file", params=asked),
        await live.client.post("/download_file", params=asked),
        await live.client.post("/download_file", json=asked),
    ):
        assert answer.content == b"content"
        assert answer.headers["content-disposition"].startswith("attachment")
    for answer in (
        await live.client.get("/list_files", params=form),
        await live.client.post("/list_files", params=form),
        await live.client.post("/list_files", content=json.dumps(form), headers=CURL),
    ):
        assert sorted(entry["name"] for entry in answer.json()["files"]) == ["file.txt", "sub"]


@pytest.mark.parametrize("files", [{}, {"file": ("", b"x")}, {"file": ("..", b"x")}, {"other": ("a", b"x")}])
async def test_upload_without_a_file(live: Live, files: dict[str, tuple[str, bytes]]) -> None:
    answer = await live.client.post("/upload_file", data={"session_id": await created(live)}, files=files)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("provider", ["e2b", "docker"])
@pytest.mark.parametrize("environment", ["Python3", "Node", "python:latest", "base"])
async def test_api_session(live: Live, provider: str, environment: str) -> None:
    body = {"environment": environment, "provider": provider, "agent_config": {"type": "code_executor"}}
    session = (await live.client.post("/api/sessions", content=json.dumps(body), headers=CURL)).json()
    assert (session["provider"], session["environment"]) == ("docker", "base")
    assert session["sandbox_id"]
    path = f"/api/sessions/{session['session_id']}"
    assert session["url"] == live.url + path
    assert (await live.client.get(path)).json()["status"] == "active"
    assert (await live.client.delete(path, params={"sandbox_id": "xyz"})).status_code == 200
    assert (await live.client.get(path)).status_code == 404


async def test_api_code_generates_artifacts(live: Live) -> None:
    """What a program leaves in `artifacts` is listed, and stays after the session."""
    session_id = (await live.client.post("/api/sessions")).json()["session_id"]

    async def run(code: str) -> list[dict[str, object]]:
        body = {"session_id": session_id, "code": code, "language": "bash"}
        ran = await live.client.post("/api/e2b/execute", json=body)
        assert (ran.status_code, ran.json()["exit_code"]) == (200, 0), ran.text
        artifacts: list[dict[str, object]] = ran.json()["artifacts"]
        return artifacts

    assert await run("echo nothing > elsewhere") == []
    [plot] = await run("mkdir artifacts; echo -n pixels > 'artifacts/plot[1].png'")
    assert (plot["path"], plot["size"], plot["media_type"]) == ("artifacts/plot[1].png", 6, "image/png")
    assert await run("true") == []
    [table] = await run("echo -n 1,2 > artifacts/table.csv")
    assert table["path"] == "artifacts/table.csv"
    await live.client.put(
        f"/v1/sessions/{session_id}/files/content", params={"path": "artifacts/late"}, content=b"x"
    )
    assert (await live.client.delete(f"/api/sessions/{session_id}")).status_code == 200
    assert (await live.client.get(str(plot["url"]))).content == b"pixels"
    listed = (await live.client.get("/v1/artifacts", params={"session": session_id})).json()
    assert [one["path"] for one in listed["artifacts"]] == [plot["path"], table["path"], "artifacts/late"]


async def test_api_code_and_files(live: Live) -> None:
    session_id = (await live.client.post("/api/sessions")).json()["session_id"]
    live.service.scripts.add("python3 -", lambda call: Reply(stdout=call.stdin + b"|42\n"))
    body = {"session_id": session_id, "code": "print(42)"}
    ran = (await live.client.post("/api/e2b/execute", content=json.dumps(body), headers=CURL)).json()
    assert ran == {"stdout": "print(42)|42\n", "stderr": "", "exit_code": 0, "results": [], "artifacts": []}
    assert (await live.client.post("/api/e2b/execute", json={**body, "language": "cobol"})).status_code == 422
    wrote = await live.client.post(
        "/api/e2b/files", json={"session_id": session_id, "path": "a.txt", "content": "héllo"}
    )
    assert wrote.json() == {"status": "written", "path": "/workspace/a.txt"}
    listed = (await live.client.get(f"/api/e2b/files/{session_id}")).json()
    assert [entry["name"] for entry in listed["files"]] == ["a.txt"]
    read = (await live.client.get(f"/api/e2b/files/{session_id}", params={"path": "a.txt"})).json()
    assert read["content"] == "héllo"


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"session_id": 1}', '{"session_id": "\\ud800"}', "[" * 100_000]
)
@pytest.mark.parametrize(
    "path", ["/execute", "/cleanup", "/api/e2b/execute", "/api/e2b/files", "/list_files"]
)
async def test_wrong_bodies(live: Live, path: str, body: str) -> None:
    answer = await live.client.post(path, content=body, headers=CURL)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"


@pytest.mark.parametrize("route", ["/create_session", "/api/sessions"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"environment": "gVisor"}, "Did you mean 'gvisor'?"),
        ({"environment": "gvizor"}, "Did you mean 'gvisor'?"),
        ({"environment": "runsc"}, "runsc is the tier of gvisor"),
        (
            {"enviroment": "gvisor"},
            "Unknown field 'enviroment' in the request body. Did you mean 'environment'?",
        ),
        ({"environment": "qqq"}, "Unknown environment 'qqq'. Available: base, gvisor"),
    ],
)
async def test_s4_a_typo_never_gives_the_default_environment(
    live: Live, route: str, body: dict[str, str], told: str
) -> None:
    """S4: it silently was base on runc, the weaker wall."""
    answer = await live.client.post(route, content=json.dumps(body), headers=CURL)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert told in answer.json()["detail"]
    assert not (await live.service.list_sessions()).sessions


@pytest.mark.parametrize("environment", ["gvisor", "base"])
async def test_s4_an_environment_by_its_name(live: Live, environment: str) -> None:
    session_id = (await live.client.post("/create_session", json={"environment": environment})).json()[
        "session_id"
    ]
    assert (await live.service.get_session(session_id)).environment == environment
