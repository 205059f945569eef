"""The examples of the texts that this system grew out of, as they stand there with only the import changed.

They name ports 5000 and 8000 of localhost. So that nothing of the machine is in the way, server and examples run in
a network namespace of their own, with only a loopback in it; the engine is reached by its socket as ever.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent / "examples"
pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of one's own needs root"),
]


@dataclass
class Place:
    """A namespace in which a server listens on ports 5000 and 8000."""

    folder: Path
    holder: int
    environ: dict[str, str]

    def run(self, *command: str) -> str:
        ran = subprocess.run(
            ["nsenter", f"--net=/proc/{self.holder}/ns/net", *command],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def python(self, source: str, before: str = "", after: str = "") -> str:
        return self.run(sys.executable, "-c", f"{before}\n{source}\n{after}")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    servers: list[subprocess.Popen[bytes]] = []
    holder = subprocess.Popen(
        ["unshare", "--net", "bash", "-c", "ip link set lo up && exec sleep 3600"], stdin=subprocess.DEVNULL
    )
    try:
        place = Place(folder, holder.pid, environ)
        _wait_for_loopback(holder.pid)
        for port in ("5000", "8000"):
            settings = {
                "SANDLOT_PORT": port,
                "SANDLOT_WORKER_ID": f"test-{secrets.token_hex(4)}",
                "SANDLOT_DATA_DIR": str(folder / port),
                "SANDLOT_POOL_SIZE": "2",
            }
            with (folder / f"log-{port}").open("wb") as log:
                servers.append(
                    subprocess.Popen(
                        [
                            "nsenter",
                            f"--net=/proc/{holder.pid}/ns/net",
                            sys.executable,
                            "-m",
                            "sandlot",
                            "serve",
                        ],
                        env=environ | settings,
                        stdout=log,
                        stderr=log,
                    )
                )
            _wait_ready(place, port)
        yield place
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
            server.wait(90)
        holder.kill()
        holder.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_loopback(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # Once it sleeps, `ip link` is done, in a namespace of its own.
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
            assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
            return
        time.sleep(0.05)
    pytest.fail("no namespace")


def _wait_ready(place: Place, port: str) -> None:
    for _ in range(600):
        try:
            place.run("curl", "-sf", f"http://localhost:{port}/ready")
        except AssertionError:
            time.sleep(0.1)
        else:
            return
    pytest.fail((place.folder / f"log-{port}").read_text())


def example(name: str) -> str:
    return (EXAMPLES / name).read_text()


def test_v1_basic(place: Place) -> None:
    assert "total" in place.python(example("v1_basic.py"))


def test_v1_steps(place: Place) -> None:
    assert place.python(example("v1_steps.py")).startswith("bash command")


def test_v1_langgraph(place: Place) -> None:
    graph = """
from typing import TypedDict
class State(TypedDict, total=False):
    command: str
    output: str
graph = StateGraph(State)
graph.add_node("bash", bash_node)
graph.set_entry_point("bash")
graph.set_finish_point("bash")
print(graph.compile().invoke({"command": "echo from a graph"})["output"])
"""
    assert "from a graph" in place.python(example("v1_langgraph.py"), after=graph)


def test_v1_curl(place: Place) -> None:
    create, execute, cleanup = _commands("v1_curl.sh")
    created = json.loads(place.run("bash", "-c", create + " -s"))
    assert created["status"] == "created"
    session = created["session_id"]
    result = json.loads(place.run("bash", "-c", execute.replace("your-session-id", session) + " -s"))
    assert (result["exit_code"], result["output"]) == (0, "Hello\n")
    assert json.loads(place.run("bash", "-c", cleanup.replace("your-session-id", session) + " -s")) == {
        "status": "cleaned up"
    }


def test_v2_basic(place: Place) -> None:
    assert place.python(example("v2_basic.py")).split() == ["User:", "sandboxuser", "4"]


def test_v2_batch(place: Place) -> None:
    printed = place.python(example("v2_batch.py"))
    assert printed.startswith("Step 1\n")
    assert "Python 3" in printed
    assert "total" in printed


def test_v2_upload(place: Place) -> None:
    (place.folder / "local_script.py").write_text("print('uploaded and run')")
    assert place.python(example("v2_upload.py")).startswith("uploaded and run")


def test_v2_langgraph(place: Place) -> None:
    before = """
from typing import TypedDict
class State(TypedDict, total=False):
    code: str
    output: str
    exit_code: int
"""
    after = """
workflow.set_entry_point("execute")
workflow.set_finish_point("execute")
print(workflow.compile().invoke({"code": "echo graph; exit 3"}))
"""
    printed = place.python(example("v2_langgraph.py"), before, after)
    assert "'output': 'graph\\n'" in printed
    assert "'exit_code': 3" in printed


def test_v2_curl(place: Place) -> None:
    (health,) = _commands("v2_curl.sh")
    answer = json.loads(place.run("bash", "-c", health + " -s"))
    assert answer["status"] == "healthy"
    assert {"pool_size", "active_sessions", "worker_id"} <= answer.keys()


def test_v3_lifecycle(place: Place) -> None:
    printed = place.python(example("v3_lifecycle.py"), after="print(result['stdout'], session['provider'])")
    assert printed.split() == ["Hello", "World", "docker"]


def test_v3_storage(place: Place) -> None:
    """What the third specification's system kept in ``storage/``: artifacts, and what is known of sessions."""
    code = "import os; os.makedirs('artifacts/deep'); open('artifacts/deep/plot.txt', 'w').write('drawn')"
    before = "import glob, json, os"
    source = f"""
from sandlot import Client, Lifecycle
lifecycle = Lifecycle(storage_path="./storage")
session = lifecycle.start(agent_config={{"type": "code_executor"}})["session_id"]
print(json.load(open(f"storage/sessions/{{session}}.json"))["state"])
result = lifecycle.sandbox_mgr.execute_code(session_id=session, code={code!r})
print([artifact["path"] for artifact in result["artifacts"]])
with Client() as client:
    client.get(session).files.write("/workspace/artifacts/late.txt", b"after the last program")
lifecycle.stop(session)
print(open(f"storage/artifacts/{{session}}/artifacts/late.txt").read())
print(open(f"storage/artifacts/{{session}}/artifacts/deep/plot.txt").read())
print(json.load(open(f"storage/sessions/{{session}}.json"))["metadata"])
"""
    assert place.python(source, before).splitlines() == [
        "active",
        "['artifacts/deep/plot.txt']",
        "after the last program",
        "drawn",
        "{'agent.type': 'code_executor'}",
    ]


def test_v3_providers(place: Place) -> None:
    before = "from sandlot import Lifecycle\nlifecycle = Lifecycle()\nmanager, session_id = lifecycle.sandbox_mgr, 'my-session'"
    after = (
        "print(manager.execute_code(session_id, 'print(1 + 1)')['stdout']); manager.stop_sandbox(session_id)"
    )
    assert place.python(example("v3_providers.py"), before, after).strip() == "2"


def test_v3_curl(place: Place) -> None:
    create, execute, destroy = _commands("v3_curl.sh")
    created = json.loads(place.run("bash", "-c", create + " -s"))
    assert {"session_id", "sandbox_id", "provider", "url"} <= created.keys()
    session = created["session_id"]
    result = json.loads(place.run("bash", "-c", execute.replace("abc-123", session) + " -s"))
    assert result["stdout"] == "42\n"
    gone = destroy.replace("abc-123", session).replace("xyz", created["sandbox_id"])
    place.run("bash", "-c", gone + " -sf")


def _commands(name: str) -> list[str]:
    """The curl commands of an example, without its comments."""
    lines = [line for line in example(name).splitlines() if not line.startswith("#")]
    return [part.strip() for part in "\n".join(lines).split("\n\n") if part.strip()]
