"""Which SANDLOT_… variables there are. One that nobody reads is an error: most likely a setting with a typo.

A server's environment is made for it, so it refuses every unknown one. A program that uses the SDK may have
variables of its own, so it refuses only what is all but one of the two that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.suggestions import did_you_mean

PREFIX: Final = "SANDLOT_"
OF_CLIENTS: Final = ("SANDLOT_URL", "SANDLOT_API_KEY")
# Not settings, and yet in the environment of a server that is started by hand beside them.
OF_DEPLOY: Final = (
    "SANDLOT_DATA_ROOT",
    "SANDLOT_IMAGE",
    "SANDLOT_NAME",
    "SANDLOT_NET",
    "SANDLOT_PUBLISH",
    "SANDLOT_SECRETS",
)
OF_TESTS: Final = ("SANDLOT_TEST_", "SANDLOT_WRITE_GOLDEN")
# So like another that one of them is a slip of the keyboard; two real names are never so like.
A_SLIP: Final = 0.8


def check_server_variables(environ: Mapping[str, str], settings: Collection[str]) -> None:
    """``settings``: the variables of every kind of server, since several may share an environment."""
    known = {*settings, *OF_CLIENTS, *OF_DEPLOY}
    for name, value in environ.items():
        # An empty variable counts as not set, so nothing is lost with it.
        if value and name.startswith(PREFIX) and name not in known and not name.startswith(OF_TESTS):
            raise InvalidRequest(
                f"{name} is set, and no server reads it{did_you_mean(name, known)} "
                "(docs/reference/settings.md has all settings; unset it if it is not meant for Sandlot)"
            )


def check_client_variables(environ: Mapping[str, str]) -> None:
    import difflib

    for name, value in environ.items():
        if not value or not name.startswith(PREFIX) or name in OF_CLIENTS or name == "SANDLOT_API_KEY_FILE":
            continue
        meant = difflib.get_close_matches(name, OF_CLIENTS, n=1, cutoff=A_SLIP)
        if meant:
            raise InvalidRequest(
                f"{name} is set, and this client reads {' and '.join(OF_CLIENTS)}: did you mean {meant[0]}?"
            )
