"""What recipes name of the world outside, on this machine: a model, a package index, and an API that wants a key."""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.network.rig import new_authority

MODEL = '"anthropic:claude-sonnet-5"'
# Runs what the user says after "Run:", and answers what that printed.
SCRIPT = """\
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

class Scripted(BaseChatModel):
    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, *_, **__):
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(messages[-1].text.strip())
        else:
            command = {"command": messages[-1].text.removeprefix("Run: ")}
            answer = AIMessage("", tool_calls=[{"name": "bash", "args": command, "id": f"call-{len(messages)}"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])

"""
WHEEL = "six-1.17.0-py2.py3-none-any.whl"


@dataclass(frozen=True)
class Outside:
    replacements: dict[str, str]
    authorities: Path


class _Index(BaseHTTPRequestHandler):
    """A package index with one package of one line."""

    def do_GET(self) -> None:
        page = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
        body = _wheel() if self.path.endswith(WHEEL) else page
        self.send_response(200)
        self.send_header("content-type", "application/zip" if body[:2] == b"PK" else "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Weather(BaseHTTPRequestHandler):
    """Answers who has the key, and nobody else."""

    def do_GET(self) -> None:
        allowed = self.headers["authorization"] == "Bearer s3cret-key" and self.path == "/today"
        body = b"sunny\n" if allowed else b"no\n"
        self.send_response(200 if allowed else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _wheel() -> bytes:
    info = "six-1.17.0.dist-info"
    files = {
        "six.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: six\nVersion: 1.17.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py2-none-any\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return packed.getvalue()


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def outside(folder: Path) -> Iterator[Outside]:
    """By this machine's own name, because no proxy is asked for ``localhost``."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    if not address.startswith("127."):
        pytest.skip("the machine's own name does not lead to its loopback")
    authority = new_authority(folder)
    authorities = folder / "authorities.pem"
    authorities.write_bytes(authority.pem)
    with _serving(_Index) as index, _serving(_Weather, authority.server(name)) as weather:
        variables = {"PIP_INDEX_URL": f"http://{name}:{index}/simple", "PIP_TRUSTED_HOST": name}
        yield Outside(
            {
                'network=["pypi"]': f'network=["{name}:{index}"], env={variables}',
                "api.weather.example": f"{name}:{weather}",
            },
            authorities,
        )
