"""The known SANDLOT_… variables. One that no setting reads is an error: most likely a typo.

A server's environment is made for it, so a server refuses every unknown variable. A program that
uses the SDK may have variables of its own, so the SDK refuses only near misses of the two that it
reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.text.suggestions import did_you_mean

PREFIX: Final = "SANDLOT_"
CLIENT_VARIABLES: Final = ("SANDLOT_URL", "SANDLOT_API_KEY")
# Settings of a server that look like typos of a client's.
SIMILAR_OF_SERVERS: Final = ("SANDLOT_API_KEY_FILE", "SANDLOT_E2B_API_KEY")
# Not settings, but present in the environment of a server that is started by hand next to them.
DEPLOY_VARIABLES: Final = (
    "SANDLOT_DATA_ROOT",
    "SANDLOT_IMAGE",
    "SANDLOT_NAME",
    "SANDLOT_NET",
    "SANDLOT_PUBLISH",
    "SANDLOT_SECRETS",
)
# Variables of version 0.2 that mean nothing now.
SHARED_KEYS: Final = ("SANDLOT_FLEET_KEYS", "SANDLOT_FLEET_KEYS_FILE")
TEST_PREFIXES: Final = ("SANDLOT_TEST_", "SANDLOT_WRITE_GOLDEN")
# Names at least this similar are typos of each other. No two real names are this similar.
TYPO_SIMILARITY: Final = 0.8


def check_server_variables(environ: Mapping[str, str], settings: Collection[str]) -> None:
    """Refuse unknown variables.

    ``settings``: the variables of every kind of server, since several may share an environment.
    """
    known = {*settings, *CLIENT_VARIABLES, *DEPLOY_VARIABLES}
    for name, value in environ.items():
        if value and name in SHARED_KEYS:
            raise InvalidRequest(
                f"{name} is a setting of version 0.2. Members no longer share a secret: a coordinator has a "
                "private key (SANDLOT_FLEET_PRIVATE_KEY), and a worker has public keys "
                "(SANDLOT_FLEET_PUBLIC_KEYS). How to move: docs/howto/fleet-operations.md#keys."
            )
        # An empty variable counts as not set, so ignoring it loses nothing.
        if value and name.startswith(PREFIX) and name not in known and not name.startswith(TEST_PREFIXES):
            raise InvalidRequest(
                f"Unknown setting {name}.{did_you_mean(name, known)} See docs/reference/settings.md, "
                "or unset it if it belongs to another program."
            )


def check_client_variables(environ: Mapping[str, str]) -> None:
    import difflib

    for name, value in environ.items():
        if not value or not name.startswith(PREFIX) or name in CLIENT_VARIABLES or name in SIMILAR_OF_SERVERS:
            continue
        matches = difflib.get_close_matches(name, CLIENT_VARIABLES, n=1, cutoff=TYPO_SIMILARITY)
        if matches:
            raise InvalidRequest(f"Unknown client setting {name}. Did you mean {matches[0]}?")
