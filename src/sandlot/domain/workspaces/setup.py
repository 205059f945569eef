"""Set-up scripts: what an environment's new workspaces start from, made once by a script."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from sandlot.domain.errors import InvalidRequest

# It becomes one argument of bash, and Linux allows 128 KiB.
MAX_SETUP_BYTES: Final = 64 * 1024
DEFAULT_SETUP_TIMEOUT_S: Final = 600.0
MAX_SETUP_TIMEOUT_S: Final = 24 * 3600.0
# Raise it when a script is run in another way: every script then runs again.
_VERSION: Final = "1"


@dataclass(frozen=True, slots=True)
class Setup:
    """``script``: for bash, run in /workspace. ``timeout_s``: how long it may take."""

    script: str
    timeout_s: float = DEFAULT_SETUP_TIMEOUT_S

    def __post_init__(self) -> None:
        try:
            size = len(self.script.encode())
        except UnicodeEncodeError:
            raise InvalidRequest("setup is not valid Unicode text.") from None
        if not self.script.strip() or "\0" in self.script:
            raise InvalidRequest("setup must be a script for bash: some text without NUL characters.")
        if size > MAX_SETUP_BYTES:
            raise InvalidRequest(
                f"setup has {size} bytes; at most {MAX_SETUP_BYTES} are allowed. Let it download the rest."
            )
        if not 0 < self.timeout_s <= MAX_SETUP_TIMEOUT_S:
            raise InvalidRequest(f"setup_timeout_s must be more than 0 and at most {MAX_SETUP_TIMEOUT_S:g}.")

    @property
    def digest(self) -> str:
        """Scripts with the same digest have the same result. The time that one may take is not part of it."""
        return hashlib.sha256(f"{_VERSION}\n{self.script}".encode()).hexdigest()
