"""O11: where a collector reads JSON, every line is an event. 90, 97: strangers' text cannot pass for one of ours."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow  # each case is a process of its own: logging is a whole process's


def lines_of(work: str, form: str = "json") -> list[str]:
    code = f"""
        import asyncio, logging, warnings
        import structlog
        from sandlot.cli.serve import run
        from sandlot.domain.errors import StorageFull
        from sandlot.wiring.logs import configure_server_logs

        async def work():
            configure_server_logs("info", {form!r})
            {work}

        run(work())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    return ran.stderr.splitlines()


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("structlog.get_logger('sandlot').info('ours')", "ours"),
        ("logging.getLogger('uvicorn.error').error('theirs')", "theirs"),
        ("logging.getLogger('redis').warning('of %s', 'Redis')", "of Redis"),
        ("warnings.warn('old')", "old"),
        (
            "asyncio.get_running_loop().call_soon(lambda: 1 / 0); await asyncio.sleep(0.05)",
            "ZeroDivisionError",
        ),
        ("raise StorageFull('no room on the disk of /data')", "no room on the disk of /data"),
        ("raise OSError(28, 'No space left on device', '/data')", "/data"),
        ("raise RuntimeError('unforeseen')", "unforeseen"),
    ],
)
def test_every_line_is_an_event(work: str, told: str) -> None:
    lines = lines_of(work)
    events = [json.loads(line) for line in lines]
    assert events, lines
    assert any(told in line for line in lines)
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)


def test_people_are_told_as_by_any_command() -> None:
    lines = lines_of("raise StorageFull('no room')", form="text")
    assert "StorageFull: no room" in lines[-1]  # which the command line turns into one line


# Clears the screen, sets the clipboard, hides a link, asks the terminal to answer, reorders, ends the line.
HOSTILE = (
    "x\\x1b[2J\\x1b]52;c;ZXZpbA==\\x07\\x1b]8;;http://evil\\x1b\\\\\\x1b[6n\\x9b2J\\u202e\\u2066\\r\\n"
    "2026-01-01T00:00:00Z [info     ] all is well\\x85more\\u2028more"
)


OURS = "structlog.get_logger('sandlot').info"
WAYS = (
    f"{OURS}('ours', thread='{HOSTILE}')",
    f"{OURS}('ours', thread='x\\x1b[2J\\u202e')",
    f"{OURS}('ours', threads=['{HOSTILE}'], by={{'{HOSTILE}': 1}})",
    f"{OURS}('ours', error=type('E', (), dict(__repr__=lambda _: '{HOSTILE}'))())",
    f"{OURS}('{HOSTILE}')",
    f"logging.getLogger('redis').warning('of %s', '{HOSTILE}')",
    f"{OURS}('ours', exc_info=ValueError('{HOSTILE}'))",
)


@pytest.mark.parametrize("form", ["text", "json"])
def test_97_strangers_text_is_inert(form: str) -> None:
    lines = lines_of("; ".join(WAYS), form)
    assert all(line.isprintable() for line in lines), lines
    events = [line for line in lines if not line.startswith("    ")]
    assert len(events) == len(WAYS), "no line of it can be taken for an event"
    # What it was can still be read; of an exception it stands below.
    assert all("x1b" in line or "u001b" in line for line in events[:-1]), events
