"""A Docker engine of the tests' own, which they may restart, kill and freeze without touching the machine's.

Own data root, own runtime folder, own containerd, own socket. It has one image, copied from the machine's engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

IMAGE = "sandlot/slim:latest"
START_WITHIN_S = 90.0


class OwnEngine:
    def __init__(self, data_root: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sandlot-test-engine-"))
        self.data_root = data_root or self.folder / "data"
        self.socket = self.folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        (self.folder / "daemon.json").write_text(json.dumps({"live-restore": True}))

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    # In a network of its own: an engine without a bridge removes docker0, whosever that is.
                    *("unshare", "--net"),
                    "dockerd",
                    f"--config-file={self.folder}/daemon.json",
                    f"--data-root={self.data_root}",
                    f"--exec-root={self.folder}/run",
                    f"--pidfile={self.folder}/pid",
                    f"--host={self.host}",
                    "--bridge=none",
                    "--iptables=false",
                    "--ip6tables=false",
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while self.docker("version", check=False).returncode != 0:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def load(self, image: str = IMAGE) -> None:
        """From the machine's engine, without a registry."""
        with subprocess.Popen(["/usr/bin/docker", "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["/usr/bin/docker", "-H", self.host, "load"],
                stdin=saving.stdout,
                check=True,
                capture_output=True,
            )
        assert saving.returncode == 0

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/usr/bin/docker", "-H", self.host, *arguments],
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.send(number)
            self.process.wait(60)
            self.process = None
            (self.folder / "pid").unlink(missing_ok=True)
            self._wait_for_containerd()

    def _wait_for_containerd(self) -> None:
        """It ends with its dockerd, a moment later; one that is still seen would be waited for ten seconds."""
        deadline = time.monotonic() + 30
        for pid_file in self.folder.glob("run/containerd/containerd.pid"):
            while Path(f"/proc/{pid_file.read_text()}").exists() and time.monotonic() < deadline:
                time.sleep(0.02)

    def clean(self) -> None:
        if self.process is None:
            with contextlib.suppress(AssertionError):
                self.start()
        for container in self.docker("ps", "-aq", check=False).stdout.split():
            self.docker("rm", "-f", container, check=False)
        self.stop()
        # containerd outlives a killed dockerd; it is ours by its folder.
        for pid_file in self.folder.glob("run/containerd/containerd.pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and _mounted(self.folder):
            for point in _mounted(self.folder):
                subprocess.run(["umount", "-l", point], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _mounted(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(str(folder))][::-1]
