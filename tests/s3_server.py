"""A real S3 server on this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.testing.directory_suite.redis_server import free_port

BUCKET: Final = "bucket"
REGION: Final = "us-east-1"
ACCESS_KEY: Final = "reader"
SECRET: Final = "the-secret-of-this-test"
START_S = 30.0


@dataclass(frozen=True)
class S3Server:
    """``files``: the folder of its bucket."""

    endpoint: str
    files: Path


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    files = folder / "buckets" / BUCKET
    files.mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    command = [Path(sys.executable).parent / "rclone", "serve", "s3", files.parent, "--addr", address]
    options = ["--auth-key", f"{ACCESS_KEY},{SECRET}", "--config", "/dev/null", "--vfs-cache-mode", "off"]
    log = folder / "log"
    with (
        log.open("w") as said,
        subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=said, stderr=said) as server,
    ):
        try:
            end = time.monotonic() + START_S
            while "Starting s3 server" not in log.read_text():
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield S3Server(f"http://{address}", files)
        finally:
            server.kill()
