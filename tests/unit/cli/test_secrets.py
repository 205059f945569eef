"""``sandlot secrets``: each command a process, on a worker's folder."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from tests.unit.cli.conftest import SANDLOT, SECONDS, environment

from sandlot.domain.network.hosts import parse_target
from sandlot.worker.secrets.vault import Vault

pytestmark = pytest.mark.slow  # each command is a process of its own
VALUE = "sk-0123456789abcdef"


def sandlot(folder: Path, *arguments: str, stdin: str = "", code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [*SANDLOT, "secrets", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(SANDLOT_DATA_DIR=str(folder)),
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    assert VALUE not in done.stdout + done.stderr
    return done.stdout, done.stderr


async def test_set_list_remove(tmp_path: Path) -> None:
    _, said = sandlot(tmp_path, "set", "openai", "--host", "api.openai.com", stdin=VALUE + "\n")
    assert "It goes to api.openai.com as 'Authorization: Bearer {secret}'." in said
    sandlot(
        tmp_path,
        *("set", "maps", "--host", "a.test:8443", "--host", "*.b.test", "--as", "?key={secret}"),
        *("--tenant", "acme", "--environment", "ml"),
        stdin=VALUE,
    )
    table, _ = sandlot(tmp_path, "list")
    assert [line.split("\t") for line in table.splitlines()] == [
        ["NAME", "HOSTS", "AS", "TENANTS", "ENVIRONMENTS"],
        ["maps", "a.test:8443 *.b.test", "?key={secret}", "acme", "ml"],
        ["openai", "api.openai.com", "Authorization: Bearer {secret}", "default", "*"],
    ]
    # A new value alone keeps the rules.
    sandlot(tmp_path, "set", "maps", stdin="another-value\n")
    vault = Vault(tmp_path)
    await vault.open()
    found = vault.find("maps", "acme", "ml", parse_target("x.b.test:443"))
    assert found is not None
    assert found.value == "another-value"
    await vault.close()
    out, _ = sandlot(tmp_path, "remove", "maps")
    assert out == "maps is removed\n"
    [left] = json.loads(sandlot(tmp_path, "list", "--json")[0])
    assert left == {
        "name": "openai",
        "hosts": ["api.openai.com"],
        "as": "Authorization: Bearer {secret}",
        "tenants": ["default"],
        "environments": ["*"],
    }
    _, refused = sandlot(tmp_path, "remove", "opnai", code=1)
    assert "There is no secret 'opnai'. Did you mean 'openai'?" in refused


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("set", "a"), VALUE, "--host api.example.com"),
        (("set", "a", "--host", "a.test"), "", "8 to 8192 characters"),
        (("set", "a", "--host", "a.test"), VALUE + "\nmore\n", "on one line"),
        (("set", "a", "--host", "public"), VALUE, "named one by one"),
        (("set", "A", "--host", "a.test"), VALUE, "not a valid name of a secret"),
        (("set", "a", "--host", "a.test", "--as", "Bearer"), VALUE, "does not say where"),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: tuple[str, ...], stdin: str, message: str) -> None:
    _, refused = sandlot(tmp_path, *arguments, stdin=stdin, code=1)
    assert message in refused
    assert json.loads(sandlot(tmp_path, "list", "--json")[0]) == []


def test_a_person_is_asked_and_the_terminal_shows_nothing(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*SANDLOT, "secrets", "set", "a", "--host", "a.test"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(SANDLOT_DATA_DIR=str(tmp_path)),
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"Value of a: " not in shown:
        shown += os.read(ours, 1024)
    os.write(ours, VALUE.encode() + b"\n")
    try:
        while data := os.read(ours, 1024):
            shown += data
    except OSError:
        pass  # the program has ended
    os.close(ours)
    assert process.wait(SECONDS) == 0
    assert b"Secret a is set" in shown
    assert VALUE.encode() not in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_the_folder_of_another_user(tmp_path: Path) -> None:
    """A file that root makes there could not be read by the worker."""
    os.chown(tmp_path, 12345, 12345)
    _, refused = sandlot(tmp_path, "set", "a", "--host", "a.test", stdin=VALUE, code=1)
    assert "belongs to another user" in refused
    assert list(tmp_path.iterdir()) == []
