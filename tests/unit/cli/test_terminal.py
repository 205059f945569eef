"""``shell`` and ``exec -t`` on a real pseudo-terminal: raw while they run, resized with ours, put back after."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest
from tests.unit.cli.conftest import SANDLOT, SECONDS, Served, needs


class Terminal:
    """The master's side of a terminal on which a command runs, as its session's leader."""

    def __init__(self, served: Served, *arguments: str, **variables: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *SANDLOT, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=served.environment(**variables),
        )

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: bytes) -> bytes:
        """Everything seen up to and with ``text``; a later call looks behind it."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come, but {self.seen!r}"
            self.seen += os.read(self.master, 65536)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminals(served: Served) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


pytestmark = [needs("setsid"), pytest.mark.slow]


def test_shell_is_a_terminal_that_follows_ours(served: Served, terminals: list[Terminal]) -> None:
    terminal = Terminal(served, "shell")
    terminals.append(terminal)
    terminal.expect(b"$ ")
    assert terminal.is_raw()
    terminal.type("stty size\r")
    terminal.expect(b"30 100")
    terminal.resize(41, 133)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        terminal.type("stty size\r")
        terminal.expect(b"stty size")
        if b"41 133" in terminal.expect(b"$ "):
            break
    else:
        pytest.fail("the size did not follow")
    terminal.type("exit 7\r")
    assert terminal.process.wait(SECONDS) == 7
    assert termios.tcgetattr(terminal.slave) == terminal.before, "the terminal was not put back"


def test_a_shells_new_session_is_deleted_and_a_given_one_kept(
    served: Served, terminals: list[Terminal]
) -> None:
    kept = served.create()
    before = len(served.sandlot("sessions", "list").splitlines())
    terminal = Terminal(served, "shell", "--session", kept)
    terminals.append(terminal)
    terminal.expect(b"$ ")
    terminal.type("echo here > /workspace/mark\rexit\r")
    assert terminal.process.wait(SECONDS) == 0
    assert served.sandlot("files", "cat", f"{kept}:mark") == b"here\n"
    assert len(served.sandlot("sessions", "list").splitlines()) == before


def test_exec_on_a_terminal(served: Served, terminals: list[Terminal]) -> None:
    terminal = Terminal(
        served, "exec", "-t", served.create(), "--", "bash", "-c", "stty size; read x; echo got:$x"
    )
    terminals.append(terminal)
    terminal.expect(b"30 100")
    terminal.type("word\r")
    terminal.expect(b"got:word")
    assert terminal.process.wait(SECONDS) == 0
    assert not terminal.is_raw()


def test_the_terminal_is_put_back_when_the_sandbox_is_lost(served: Served, terminals: list[Terminal]) -> None:
    session_id = served.create()
    terminal = Terminal(served, "shell", "--session", session_id)
    terminals.append(terminal)
    terminal.expect(b"$ ")
    served.service.lose(session_id)
    assert terminal.process.wait(SECONDS) == 1
    assert termios.tcgetattr(terminal.slave) == terminal.before
    terminal.expect(b"sandlot: ")


def test_lists_are_tables_in_colour_on_a_terminal(served: Served, terminals: list[Terminal]) -> None:
    terminal = Terminal(served, "env", "list")
    terminals.append(terminal)
    shown = terminal.expect(b"gvisor")
    assert b"\x1b[" in shown
    assert b"\t" not in shown


def test_an_id_can_be_copied_from_a_narrow_terminal(served: Served, terminals: list[Terminal]) -> None:
    session_id = served.create(thread="a-conversation-with-a-long-name")
    terminal = Terminal(served, "sessions", "list", COLUMNS="80")
    terminals.append(terminal)
    terminal.expect(session_id.encode())
    assert terminal.process.wait(SECONDS) == 0
