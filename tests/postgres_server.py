"""A PostgreSQL of the tests' own, in a folder and on a Unix socket."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

READY_WITHIN_S = 60.0
ENDED_WITHIN_S = 60.0
USER = "postgres"  # as Debian names it: the server refuses to run as root


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The address of its one database."""
    if (programs := _programs()) is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-postgres-"))
    try:
        user = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            os.chown(folder, account.pw_uid, account.pw_gid)
            user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        made = [programs / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, timeout=READY_WITHIN_S, **user)
        with (folder / "log").open("wb") as log:
            options = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
            server = subprocess.Popen(
                [
                    *(programs / "postgres", "-D", folder / "data"),
                    *(word for name, value in options.items() for word in ("-c", f"{name}={value}")),
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
                **user,
            )
        address = f"postgresql://{USER}@/postgres?host={folder}"
        try:
            _await_ready(server, address)
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # ends its connections, too
            server.wait(ENDED_WITHIN_S)
    finally:
        shutil.rmtree(folder)


def _programs() -> Path | None:
    """Debian keeps them out of the PATH, one folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def _await_ready(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        assert server.poll() is None, "PostgreSQL ended at once"
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)
        else:
            return
