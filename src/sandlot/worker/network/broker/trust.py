"""What programs in a sandbox must trust so that the worker can read their TLS, and how they find it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from sandlot.domain.errors import EngineProblem

# In a sandbox whose TLS the worker reads. Programs that change it there harm themselves alone.
TRUST_PATH: Final = "/tmp/sandlot-ca.pem"  # noqa: S108  a file of the sandbox

# Each names a file with all certificates to trust, for the programs beside it.
TRUST_VARIABLES: Final = (
    "SSL_CERT_FILE",  # OpenSSL, Python's ssl, Go, uv, Ruby
    "REQUESTS_CA_BUNDLE",  # requests, pip
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
)


def trust_bundle(authority_pem: str) -> str:
    """The certificates that this machine trusts, and the worker's own: programs speak to other hosts too."""
    paths = ssl.get_default_verify_paths()
    for name in (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt"):
        if (file := Path(name or "")).is_file():  # the first is None if there is no such file
            return f"{file.read_text('ascii', 'replace').rstrip()}\n{authority_pem}"
    raise EngineProblem(
        "This machine has no file of trusted certificates, which sandboxes with injected secrets need. "
        "Install the package ca-certificates."
    )


def trust_variables(path: str = TRUST_PATH) -> dict[str, str]:
    """``path``: of the bundle in the sandbox."""
    return dict.fromkeys(TRUST_VARIABLES, path)
