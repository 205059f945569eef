"""Export: each event as a line of JSON, in files that are renamed when they are full, or to syslog."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tests.unit.worker.test_history_store import a_history, fill

from sandlot.config.reading import server_settings
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.history.query import EventQuery


async def test_every_event_is_a_line_in_files_of_bounded_size(data_dir: Path) -> None:
    target = data_dir / "exported" / "history.jsonl"
    history = a_history(data_dir, export=str(target), export_max_bytes=64 * 1024, export_files=3)
    await history.open()
    for _ in range(4):
        fill(history, 300)
        await history.page(OWNER, EventQuery())
    await history.close()
    files = sorted(target.parent.iterdir(), reverse=True)
    assert [path.name for path in files] == [
        "history.jsonl.3",
        "history.jsonl.2",
        "history.jsonl.1",
        "history.jsonl",
    ]
    for path in files:
        assert path.stat().st_size <= 64 * 1024
        assert path.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert {line["worker"] for line in lines} == {"w1"}
    assert lines[-1]["details"] == {"unseen": "command 299"}
    ids = [line["id"] for line in lines]
    assert ids == sorted(set(ids))


async def test_a_target_that_takes_nothing_is_no_reason_to_record_nothing(data_dir: Path) -> None:
    blocked = data_dir / "blocked"
    blocked.write_text("a file where a folder should be")
    history = a_history(data_dir, export=str(blocked / "history.jsonl"))
    await history.open()
    fill(history, 3)
    assert len((await history.page(OWNER, EventQuery())).events) == 3
    blocked.unlink()
    fill(history, 2)
    await history.page(OWNER, EventQuery())
    await history.close()
    assert len((blocked / "history.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_syslog_gets_every_event(data_dir: Path, family: socket.AddressFamily) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as syslog:
        syslog.settimeout(10)
        if family == socket.AF_INET:
            syslog.bind(("127.0.0.1", 0))
            target = f"syslog://127.0.0.1:{syslog.getsockname()[1]}"
        else:
            syslog.bind(str(data_dir / "log"))
            target = f"syslog://{data_dir / 'log'}"
        history = a_history(data_dir, export=target)
        await history.open()
        fill(history, 2)
        await history.page(OWNER, EventQuery())
        for number in range(2):
            head, _, line = syslog.recv(65536).decode().partition(": ")
            assert head == "<14>sandlot"
            assert list(json.loads(line)["details"].values()) == [f"command {number}"]
        await history.close()


@pytest.mark.parametrize(
    "target", ["relative/file", "syslog://", "syslog://host:x", "syslog://host:99999", ""]
)
def test_a_wrong_target_is_refused_at_the_start(target: str, tmp_path: Path) -> None:
    if not target:
        assert server_settings(data_dir=tmp_path, history_export=None).history_export is None
        return
    with pytest.raises(InvalidRequest, match="cannot be exported"):
        server_settings(data_dir=tmp_path, history_export=target)
