"""Settings of a server's front door: its address, its keys and its limits on clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from sandlot.config.variable_names import PREFIX
from sandlot.domain.callers.limits import CallerLimits, parse_limits
from sandlot.domain.capacity import client_limits
from sandlot.domain.errors import InvalidRequest


class FrontDoorSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, populate_by_name=True, frozen=True, extra="ignore"
    )

    host: str = Field(
        "127.0.0.1",
        description=(
            "Address to listen on. The default is loopback, because anyone who can reach the server "
            "can run commands. Any other address needs an API key."
        ),
    )
    port: int = Field(
        8000,
        ge=1,
        le=65535,
        validation_alias=AliasChoices("SANDLOT_PORT", "PORT"),
        description="TCP port to listen on.",
    )
    e2b: bool = Field(
        True,
        description=(
            "Whether E2B's own SDKs can use this server, beside Sandlot's. It needs the same API keys, and "
            "gives them nothing else than Sandlot's API does. In a fleet, set it on the coordinators."
        ),
    )
    e2b_builds: bool = Field(
        False,
        description=(
            "Whether clients with the scope `fleet:operate` may build templates with E2B's SDK. A build runs "
            "their commands in containers of this machine's engine, with its network. Not in a fleet."
        ),
    )
    console: bool = Field(
        True,
        description=(
            "Whether the server shows its web console at /console. The console uses the same API and keys as "
            "every client. In a fleet, set it on the coordinators."
        ),
    )
    api_key: SecretStr | None = Field(
        None,
        description=(
            "API key that clients must send: at least 16 printable ASCII characters, without spaces. "
            "If unset, no key is required, and the server listens on loopback only."
        ),
    )
    api_key_file: Path | None = Field(
        None,
        description=(
            "File with the API key, for secrets that must not be in a process's environment. Cannot be "
            "combined with SANDLOT_API_KEY."
        ),
    )
    oidc_issuer: str | None = Field(
        None,
        description=(
            "URL of an OpenID Connect issuer whose tokens open the server, such as "
            "https://login.example.com. Needs SANDLOT_API_KEY and SANDLOT_OIDC_AUDIENCE, and "
            "`pip install '.[oidc]'` in your clone."
        ),
    )
    oidc_audience: str | None = Field(
        None, description="What the issuer's tokens must name as their audience (`aud`): this server."
    )
    oidc_tenant_claim: str = Field("tenant", description="The token's claim that names the caller's tenant.")
    oidc_scope_claim: str = Field(
        "scope",
        description=(
            "The token's claim with the caller's scopes: a list, or names with spaces between. Scopes "
            "that Sandlot does not know are ignored."
        ),
    )
    tenant_limits: str = Field(
        "",
        description=(
            "What each tenant may use, as in `sessions=10 cpus=8 memory_mb=16384 execs=50 creates_per_s=2 "
            "calls_per_s=50`. What is not named is not limited. `sandlot tenants limit` sets other limits "
            "for one tenant. Needs SANDLOT_API_KEY. In a fleet, use the same value on all members."
        ),
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Host names that requests may use in addition to the loopback names, separated by commas. "
            "A server on loopback accepts no others, so that a web page cannot reach it under its own "
            "name. If a reverse proxy passes on a public name, add that name here. A server on any "
            "other address accepts all names by default."
        ),
    )
    max_connections: int = Field(
        client_limits.MAX_CONNECTIONS,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of open connections. It is never more than half of the descriptors that "
            "the process may open (`ulimit -n`); the rest is reserved for sandboxes and Docker. At the "
            "limit, the connection that has been idle longest is closed. If none is idle, a new "
            "connection gets status 503."
        ),
    )
    max_connections_per_address: int = Field(
        client_limits.MAX_CONNECTIONS_PER_ADDRESS,
        ge=1,
        le=1_000_000,
        description="The same for one address. A reverse proxy counts as one address, so behind one set this "
        "to the value of SANDLOT_MAX_CONNECTIONS.",
    )
    max_streams: int = Field(
        client_limits.MAX_STREAMS,
        ge=1,
        le=1_000_000,
        description="Maximum number of open event streams and WebSockets. The next one gets status 429.",
    )
    max_streams_per_key: int = Field(
        client_limits.MAX_STREAMS_PER_KEY,
        ge=1,
        le=1_000_000,
        description="The same for one key or token.",
    )
    max_streams_per_address: int = Field(
        client_limits.MAX_STREAMS_PER_ADDRESS,
        ge=1,
        le=1_000_000,
        description="The same for one address.",
    )
    keep_alive_s: int = Field(
        75,
        ge=1,
        le=3600,
        description=(
            "Seconds to keep an idle connection open. Must be longer than the keep-alive of a proxy in front "
            "of the server."
        ),
    )
    max_held_bytes: int = Field(
        160 * 1024 * 1024,
        ge=32 * 1024 * 1024,
        description=(
            "Maximum bytes of results and files that the server holds for all clients while it sends "
            "them. Beyond this, a request gets status 429; the command's result is kept and can be "
            "fetched by its exec id. The first 64 KiB of each response do not count."
        ),
    )
    max_upload_bytes: int = Field(
        1024**3,
        ge=1024,
        description=(
            "Maximum bytes in one uploaded file or archive. The default lets a dataset pass, but one "
            "request cannot fill the disk."
        ),
    )

    @field_validator("tenant_limits")
    @classmethod
    def _check_limits(cls, value: str) -> str:
        try:
            parse_limits(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        return value

    @property
    def shared_limits(self) -> CallerLimits:
        return parse_limits(self.tenant_limits)

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)


def split_list(value: Any) -> Any:
    """Split a variable's comma-separated list. Any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())
