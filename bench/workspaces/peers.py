"""What other ways to keep a tree need for the same files, on the same disk."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from bench.rig import docker


def measure_peers(container: str, folder: Path) -> dict[str, float]:
    """Milliseconds for each way. ``folder``: on the file system of the workspaces, for the copies."""
    tree = _workspace_of(container)
    took = {
        "cp -a": _timed("cp", "-a", tree, str(folder / "copied")),
        "cp --reflink": _timed("cp", "-a", "--reflink=always", tree, str(folder / "reflinked")),
        "tar.zst": _timed("sh", "-c", f"tar -C {tree} -c . | zstd -q -T0 -o {folder}/tree.tar.zst"),
    }
    # A commit does not include mounts. So it gets a copy in the container's own layer.
    peer = docker("create", "debian:bookworm-slim", "true").stdout.decode().strip()
    try:
        docker("cp", tree, f"{peer}:/copy")
        began = time.perf_counter()
        image = docker("commit", peer).stdout.decode().strip()
        took["docker commit"] = 1000 * (time.perf_counter() - began)
        docker("rmi", image)
    finally:
        docker("rm", "-f", peer)
    for name in ("copied", "reflinked"):
        shutil.rmtree(folder / name)
    (folder / "tree.tar.zst").unlink()
    return took


def _workspace_of(container: str) -> str:
    form = '{{range .Mounts}}{{if eq .Destination "/sandbox"}}{{.Source}}{{end}}{{end}}'
    return docker("inspect", "--format", form, container).stdout.decode().strip() + "/workspace"


def _timed(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return 1000 * (time.perf_counter() - began)
