"""How ids and keys are written for E2B's SDKs. Each form leads back to ours, so nothing has to be stored.

A sandbox's id is a session's id without its prefix, because E2B's ids have only letters and digits. A process
has a number: the exec that E2B's SDK starts carries it in its id, and any other exec gets one from its id.
"""

from __future__ import annotations

import binascii
import re
import secrets
import zlib
from typing import Final

from sandlot.domain.errors import NotFound
from sandlot.domain.ids import is_session_id

# Some versions of E2B's SDK refuse a key that is not written so.
KEY_PREFIX: Final = b"e2b_"
_SESSION_PREFIX: Final = "ses_"
_SANDBOX_ID: Final = re.compile(r"[0-9a-f]{32}")
_EXEC_ID: Final = re.compile(r"e2b-(exec|term)-([1-9][0-9]{0,9})")
MAX_PID: Final = 2**31 - 1
# Below it are the numbers of real processes, with which nobody should confuse them.
_MIN_PID: Final = 2**24


def sandbox_id_of(session_id: str) -> str:
    return session_id.removeprefix(_SESSION_PREFIX)


def session_id_of(sandbox_id: str) -> str:
    """``NotFound`` if no sandbox can have this id."""
    session_id = _SESSION_PREFIX + sandbox_id
    if _SANDBOX_ID.fullmatch(sandbox_id) is None or not is_session_id(session_id):
        raise NotFound(f"Sandbox {sandbox_id[:64]!r} was not found.")
    return session_id


def new_exec_id(*, terminal: bool) -> str:
    """The id of an exec that E2B's SDK starts."""
    return f"e2b-{'term' if terminal else 'exec'}-{_MIN_PID + secrets.randbelow(MAX_PID - _MIN_PID)}"


def pid_of(exec_id: str) -> int:
    """The number by which E2B's SDK knows an exec, whoever started it."""
    match = _EXEC_ID.fullmatch(exec_id)
    if match is not None and int(match[2]) <= MAX_PID:
        return int(match[2])
    return _MIN_PID + zlib.crc32(exec_id.encode()) % (MAX_PID - _MIN_PID)


def is_terminal(exec_id: str) -> bool:
    """Whether E2B's SDK started the exec as a terminal."""
    return exec_id.startswith("e2b-term-")


def key_for_e2b(key: str) -> str:
    """An API key in the form that every version of E2B's SDK accepts."""
    return KEY_PREFIX.decode() + key.encode().hex()


def key_from_e2b(key: bytes) -> bytes:
    """The API key that a client sent, whichever way it is written."""
    if not key.startswith(KEY_PREFIX):
        return key
    try:
        return binascii.unhexlify(key.removeprefix(KEY_PREFIX)) or key
    except binascii.Error:
        return key
