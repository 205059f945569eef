"""A server announces the address at which its own machine reaches it."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from structlog.typing import EventDict

from sandlot.config.announcement import read_announcement
from sandlot.config.settings import ServerSettings
from sandlot.wiring.announcing import announced, local_url


def test_it_is_announced_while_it_serves(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, worker_id="worker-1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with announced(listener, settings) as withdraw:
            found = read_announcement(tmp_path)
            assert found is not None
            assert found.url == f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert found.worker_id == "worker-1"
            withdraw()
            assert read_announcement(tmp_path) is None
        with contextlib.suppress(RuntimeError), announced(listener, settings):
            assert read_announcement(tmp_path) is not None
            raise RuntimeError
        assert read_announcement(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, logged: list[EventDict]) -> None:
    settings = ServerSettings(data_dir=tmp_path / "none", worker_id="worker-1")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        announced(listener, settings) as withdraw,
    ):
        withdraw()
    (warning,) = logged
    assert "--url or SANDLOT_URL" in warning["event"]
    assert str(tmp_path) in warning["folder"]


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")],
)
def test_the_url_is_for_this_machine(host: str, shown: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener:
        assert local_url(listener) == f"http://{shown}:{listener.getsockname()[1]}"
